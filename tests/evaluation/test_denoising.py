"""The denoising diagnostic: against numbers computed here, for runs of every kind, and through the program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.calculators.emt import EMT

from cli_calls import denskit
from denskit.analysis.denoising_plot import denoising_figure
from denskit.analysis.plots import save_figure
from denskit.batch import Prepared
from denskit.data import load_data
from denskit.data.base import collate
from denskit.evaluation.denoising import Recovery, corrupt, denoise, guessed_noise, noise_error, noise_of
from denskit.models.model_file import load_model, save_model
from denskit.random import keys_for
from denskit.tasks import CellDeNS, DeNS, DeNSConfig
from denskit.training.load_config import load_config
from denskit.training.run import train

TINY = Path(__file__).parents[1] / "training" / "tiny.yaml"


def trained(folder: Path, *overrides: str) -> Path:
    return train(load_config(TINY, [f"output={folder}", "device=cpu", "training.max_steps=1", *overrides]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeNS with sigma 0.05 Å and ratio 0.25."""
    return trained(tmp_path_factory.mktemp("dens") / "run")


def by_hand(run: Path, sigma: float, ratio: float, *, unit: float, informed: bool) -> float:
    """Mean |error| over mean |noise| in Å; ``unit`` Å is that of the model's answers."""
    config = load_config(run)
    test = load_data(config.data, config.seed).test
    assert test is not None
    batch, targets = collate([test[index] for index in range(len(test))])
    task = DeNS(DeNSConfig(probability=1.0, sigma=sigma, corruption_ratio=ratio))
    prepared = task.prepare(batch, targets, keys_for(config.seed, 0, range(len(test))), 0.0)
    force_field = load_model(run / "model.safetensors")
    force_input = prepared.force_input if informed else torch.zeros_like(prepared.force_input)
    with torch.no_grad():
        answer = force_field(force_field.config.with_neighbors(prepared.batch), force_input)["noise"]
    atoms = prepared.noise_mask
    moved = (prepared.batch.positions - batch.positions)[atoms]
    return float((unit * answer[atoms].detach() - moved).abs().sum() / moved.abs().sum())


def test_one_structure_is_corrupted_and_denoised(run: Path) -> None:
    config = load_config(run)
    test = load_data(config.data, config.seed).test
    assert test is not None
    system = test[2]
    half, whole = corrupt(run, system, [0.05, 0.1])
    assert whole.noisy.any() and not whole.noisy.all()
    for cell in (half, whole):
        np.testing.assert_allclose(cell.corrupted[~cell.noisy], system.positions[~cell.noisy], atol=1e-6)
        np.testing.assert_allclose(cell.denoised[~cell.noisy], system.positions[~cell.noisy], atol=1e-6)
    np.testing.assert_allclose(whole.corrupted - system.positions, 2 * (half.corrupted - system.positions), atol=1e-5)
    assert whole.noisy.sum() >= 2  # a quarter of nine atoms
    batch, targets = collate([replace(system, positions=whole.corrupted)])
    known = targets.forces * torch.from_numpy(whole.noisy)[:, None]
    force_field = load_model(run / "model.safetensors")
    with torch.no_grad():
        answer = force_field(force_field.config.with_neighbors(batch), known)["noise"].numpy()
    np.testing.assert_allclose(whole.corrupted - whole.denoised, 0.05 * answer * whole.noisy[:, None], atol=1e-4)


def test_each_cell_of_the_grid_is_compared_in_angstrom(run: Path) -> None:
    found = denoise(run, batch_size=3)
    assert [(cell.corruption_ratio, cell.sigma) for cell in found] == [
        (ratio, sigma) for ratio in (0.25, 0.5, 1.0) for sigma in (0.025, 0.05, 0.1)
    ]
    for cell in found:
        expected = [by_hand(run, cell.sigma, cell.corruption_ratio, unit=0.05, informed=yes) for yes in (True, False)]
        assert [cell.with_forces, cell.without_forces] == pytest.approx(expected, rel=1e-4)
    assert found[-1].atoms == 4 * 9  # all of the test split
    assert found[0].atoms < found[3].atoms < found[6].atoms
    assert noise_error(run) == pytest.approx({
        "noise_error_relative_to_zero_with_test_forces": found[1].with_forces,
        "noise_error_relative_to_zero_without_forces": found[1].without_forces,
    })  # fmt: skip


def test_a_model_that_says_zero_has_error_one(tmp_path: Path) -> None:
    silent = trained(tmp_path / "run")
    force_field = load_model(silent / "model.safetensors")
    with torch.no_grad():
        for name, parameter in force_field.named_parameters():
            if name.startswith("heads.noise"):
                parameter.zero_()
    save_model(silent / "model.safetensors", force_field, {})
    for cell in denoise(silent, sigmas=[0.01, 0.3]):
        assert (cell.with_forces, cell.without_forces) == (1.0, 1.0)


def test_the_answer_is_in_units_of_the_last_sigma(tmp_path: Path) -> None:
    moving = trained(tmp_path / "run", "task.sigma=0.1", "task.sigma_end=0.02", "task.partial=false")
    (cell,) = denoise(moving, sigmas=[0.1])
    assert cell.corruption_ratio == 1.0  # the only ratio of a run with partial=false
    assert cell.with_forces == pytest.approx(by_hand(moving, 0.1, 1.0, unit=0.02, informed=True), rel=1e-4)
    assert [cell.sigma for cell in denoise(moving)] == [0.01, 0.02, 0.04]


def test_without_force_encoding_there_is_one_number(tmp_path: Path) -> None:
    uninformed = trained(tmp_path / "run", "task.force_encoding=false")
    assert {cell.with_forces for cell in denoise(uninformed)} == {None}
    assert set(noise_error(uninformed)) == {"noise_error_relative_to_zero_without_forces"}


def test_noisy_nodes_are_judged_without_forces_on_all_atoms(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "task=noisy_nodes")
    found = denoise(run)
    assert [(cell.sigma, cell.corruption_ratio) for cell in found] == [(0.0025, 1.0), (0.005, 1.0), (0.01, 1.0)]
    for cell in found:
        assert cell.with_forces is None and cell.atoms == 4 * 9
        assert cell.without_forces == pytest.approx(by_hand(run, cell.sigma, 1.0, unit=0.005, informed=False), rel=1e-3)
    with pytest.raises(ValueError, match=r"corrupts all atoms; a corruption ratio of 0.5 wants task=dens"):
        denoise(run, ratios=[0.5])


def test_noise_that_positions_tell_is_named() -> None:
    assert guessed_noise(0.6) is None
    assert "recovered with an error of 0.28: positions alone tell it" in str(guessed_noise(0.28))
    one = {"noise_error_relative_to_zero_with_test_forces": 0.1, "noise_error_relative_to_zero_without_forces": 0.3}
    bare = {"noise_error_relative_to_zero_without_forces": 0.5}
    assert noise_of([one, one | bare]) == pytest.approx((0.1, 0.4))
    assert np.isnan(noise_of([bare])[0]) and noise_of([bare])[1] == 0.5


def test_cells_are_not_strained_where_noise_of_atoms_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = []
    for seed in range(8):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=seed)
        atoms.calc = EMT()
        atoms.get_potential_energy(), atoms.get_stress()
        frames.append(atoms)
    ase.io.write(tmp_path / "copper.extxyz", frames)
    data = [
        "data.name=file",
        "data.molecule=null",
        f"data.path={tmp_path / 'copper.extxyz'}",
        "data.split={train: 4, valid: 2, test: 2}",
    ]
    model = (
        "model={channels: [8, 8, 4], feature_channels: [16, 8, 4], head_channels: [4, 4, 4], ffn_channels: [8, 4, 4]}"
    )
    run = trained(tmp_path / "run", *data, model, "task=cell_dens", "task.strain_probability=1")
    strained = []
    prepare = CellDeNS.prepare

    def recorded(*arguments: Any) -> Prepared:
        strained.append(prepare(*arguments))
        return strained[-1]

    monkeypatch.setattr(CellDeNS, "prepare", recorded)
    denoise(run, sigmas=[0.05], ratios=[0.5])
    assert strained and not any(bool(one.strain_mask.any()) for one in strained if one.strain_mask is not None)


def test_what_cannot_be_denoised_says_why(run: Path, tmp_path: Path) -> None:
    plain = trained(tmp_path / "run", "task=energy_forces")
    with pytest.raises(ValueError, match=r"was trained with task=energy_forces; only .* task=dens or"):
        denoise(plain)
    with pytest.raises(ValueError, match=r"only .* task=dens or"):
        noise_error(plain)
    with pytest.raises(ValueError, match=r"is no run folder; only runs of task=dens"):
        denoise(run / "model.safetensors")
    for wrong in ({"sigmas": [0.0]}, {"ratios": [1.5]}, {"ratios": [0.0]}):
        with pytest.raises(ValueError, match="sigma > 0, 0 < ratio <= 1 wanted"):
            denoise(run, **wrong)
    with pytest.raises(ValueError, match="no atom of 4 structures was corrupted"):
        denoise(run, ratios=[1e-6])


def test_the_program_writes_table_file_and_plot(run: Path, tmp_path: Path) -> None:
    grid = ("--denoise", "--sigma", "0.05", "--sigma", "0.2", "--ratio", "0.5", "-o", tmp_path / "out")
    done = denskit("evaluate", run, *grid)
    assert done.exit_code == 0, done.output
    cells = json.loads((tmp_path / "out" / "denoising.json").read_text())
    assert [(cell["sigma"], cell["corruption_ratio"]) for cell in cells] == [(0.05, 0.5), (0.2, 0.5)]
    for cell in cells:
        assert f"{cell['with_forces']:.3f}" in done.output and f"{cell['without_forces']:.3f}" in done.output
    assert (tmp_path / "out" / "denoising.png").read_bytes().startswith(b"\x89PNG")
    assert denskit("evaluate", run, *grid).exit_code == 1  # the files are there
    assert not (run / "test.json").exists()


def test_the_program_refuses_what_it_would_ignore(run: Path) -> None:
    for arguments, why in (
        (("--sigma", "0.1"), "belong to --denoise"),
        (("a.extxyz", "b.extxyz", "--denoise"), "one file of structures at most"),
        (("a.extxyz", "--denoise", "data.units=eV"), "no data.KEY=VALUE"),
        (("data.units=eV",), "give the file"),
        (("a.extxyz", "data.split.train=3"), "data.split does not say how a file is read"),
        (("a.extxyz", "data.unit=eV"), "units"),
    ):
        done = denskit("evaluate", run, *arguments)
        assert done.exit_code == 1 and why in done.output, done.output


def test_the_plot_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    cells = [
        Recovery(sigma=sigma, corruption_ratio=0.25, atoms=9, with_forces=informed, without_forces=0.9)
        for sigma, informed in ((0.1, 0.4), (0.05, 0.5))
    ]
    bare = [Recovery(sigma=0.1, corruption_ratio=0.5, atoms=9, with_forces=None, without_forces=0.9)]
    both, one = (save_figure(denoising_figure(found), tmp_path / "plot.png").read_bytes() for found in (cells, bare))
    assert both.startswith(b"\x89PNG") and both != one
