"""A contest compares the same function, measures what it says, and refuses to time two different functions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tolerances import SAME_GRADIENT64

pytest.importorskip("e3nn", reason="the benchmark's baseline needs e3nn: pip install denskit[test]")

from denskit.bench.contest import (
    Agreement,
    Contest,
    Contestant,
    Side,
    Work,
    build_contestants,
    check_agreement,
    differences,
    prepare_batch,
)
from denskit.bench.machine import Machine
from denskit.bench.measure import Measured, Memory, Result, run
from denskit.bench.systems import benchmark_batch
from denskit.cli.bench import app
from denskit.geometry.neighbors import build_neighbors
from denskit.models.published_equiformer import MD17_CONFIGS, convert_equiformer

TRAIN = Contest(work="train", model="equiformer_l2", system="ethanol", batch=2, against="e3nn-eager")


@pytest.fixture(scope="module")
def contestants() -> dict[Side, Contestant]:
    return build_contestants(TRAIN, torch.float64)


def test_both_have_the_parameters_of_the_paper(contestants: dict[Side, Contestant]) -> None:
    """4,000,577 as published; ours has no bias in the encoding of forces (128)."""
    assert contestants["theirs"].parameters == 4_000_577
    assert contestants["ours"].parameters == 4_000_577 - 128


def test_weight_gradients_of_both_models_are_the_same(contestants: dict[Side, Contestant]) -> None:
    prepared = prepare_batch(TRAIN, torch.float64, 2)
    for contestant in contestants.values():
        contestant.loss(contestant.predict(prepared), prepared).backward()
    state = contestants["theirs"].module.published_state()
    parameters = dict(contestants["theirs"].module.named_parameters())
    gradients = {name: parameters[name].grad if name in parameters else value for name, value in state.items()}
    expected, _ = convert_equiformer(gradients, MD17_CONFIGS[2])
    # the import adds the bias of the force encoding to the atoms' bias; both have the gradient of ours
    expected["backbone.atom_bias"] = expected["backbone.atom_bias"] / 2
    found = {name: p.grad for name, p in contestants["ours"].module.named_parameters() if p.grad is not None}
    assert len(found) > 100
    for name, gradient in found.items():
        scale = expected[name].square().mean().sqrt().clamp(min=1e-30)
        error = float((gradient.reshape(expected[name].shape) - expected[name]).abs().max() / scale)
        assert error < SAME_GRADIENT64, f"gradient of {name}: relative error {error:.1e}"


def test_a_slightly_different_function_is_noticed(contestants: dict[Side, Contestant]) -> None:
    prepared = prepare_batch(TRAIN, torch.float64, 2)
    same = differences(contestants, prepared)
    check_agreement(Agreement(float64=same, float32=same))
    weights = contestants["ours"].module.backbone.blocks[0].feed_forward.second.weights[1].detach()
    weights.mul_(1.001)
    other = differences(contestants, prepared)
    weights.div_(1.001)
    with pytest.raises(ValueError, match=r"forces \(float64\)"):
        check_agreement(Agreement(float64=other, float32=same))
    with pytest.raises(ValueError, match=r"forces \(float32\)"):
        check_agreement(Agreement(float64=same, float32=other))


def test_the_batch_has_corrupted_atoms_and_atoms_left_alone() -> None:
    prepared = prepare_batch(TRAIN, torch.float32, 2)
    assert prepared.noise_mask.any()
    assert not prepared.noise_mask.all()
    assert prepared.batch.edge_index.shape == (2, 2 * 9 * 8)  # ethanol lies within 5 Å
    assert prepared.batch.positions.dtype == prepared.targets.energy.dtype == torch.float32


@pytest.mark.parametrize("work", ["train", "energy_forces"])
def test_edges_belong_to_the_positions_that_the_models_see(work: Work) -> None:
    prepared = prepare_batch(replace(TRAIN, system="aspirin", work=work), torch.float64, 8)
    assert prepared.noise_mask.any() == (work == "train")
    again = build_neighbors(prepared.batch, 5.0)
    assert torch.equal(prepared.batch.edge_index, again.edge_index)
    assert prepared.batch.edge_vectors().norm(dim=1).max() < 5.0


def test_aspirin_is_a_molecule_of_the_size_that_is_benchmarked() -> None:
    batch, targets = benchmark_batch("aspirin", 8)
    batch = build_neighbors(batch, 5.0)
    assert batch.n_atoms.tolist() == [21] * 8
    assert 8 * 290 < batch.edge_index.shape[1] < 8 * 320
    assert batch.edge_vectors().norm(dim=1).min() > 0.7
    assert targets.forces_mask.all()


def test_the_command_measures_both(tmp_path: Path) -> None:
    threads, file = torch.get_num_threads(), tmp_path / "result.json"
    options = "--batch 1 --repeats 2 --against e3nn-eager --no-dens --no-memory --json"
    try:
        outcome = CliRunner().invoke(app, ["energy_forces", *options.split(), str(file)])
    finally:
        torch.set_num_threads(threads)
    assert outcome.exit_code == 0, outcome.output
    assert "times faster" in outcome.output
    result = json.loads(file.read_text())
    assert len(result["ours"]["cpu"]) == len(result["theirs"]["wall"]) == 2
    assert result["ours"]["parameters"] == result["theirs"]["parameters"] == 3_496_001
    assert 0 < result["ours"]["matmul_gflop"] < result["theirs"]["matmul_gflop"]
    assert result["ratios"]["cpu_median"] > 1


def test_ratios_are_theirs_over_ours_for_times_and_ours_over_theirs_for_memory() -> None:
    result = _result(ours=[1.0, 2.0, 3.0], theirs=[4.0, 6.0, 6.0])
    ratios = result.ratios()
    assert ratios["cpu_median"] == 3.0
    assert ratios["wall_min"] == 4.0
    assert ratios["memory_process"] == 0.5
    assert ratios["cpu_lower_quartile"] <= 3.0 <= ratios["cpu_upper_quartile"]


def _result(ours: list[float], theirs: list[float]) -> Result:
    def measured(times: list[float], megabytes: float) -> Measured:
        memory = Memory(process_mb=megabytes, steps_mb=megabytes)
        return Measured(wall=times, cpu=times, matmul_gflop=1.0, parameters=1, memory=memory)

    machine = Machine(cpu="", cpus=1, threads=1, load=0.0, torch="", e3nn="", matmul_gflops=1.0, copy_gb_per_s=1.0)
    agreement = Agreement(float64={}, float32={})
    return Result(
        contest=TRAIN, machine=machine, atoms=1, edges=1, agreement=agreement,
        ours=measured(ours, 10.0), theirs=measured(theirs, 20.0),
    )  # fmt: skip


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats=0"):
        run(TRAIN, threads=1, repeats=0, memory=False)


def test_a_missing_folder_is_noticed_before_anything_is_measured(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["train", "--json", str(tmp_path / "absent" / "result.json")])
    assert isinstance(outcome.exception, ValueError)
    assert "absent" in str(outcome.exception)
