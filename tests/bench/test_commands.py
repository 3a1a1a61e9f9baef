"""Every verb of ``python -m denskit_bench`` for real, on the smallest work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from denskit_bench.cli import app

QUICK = "--repeats 2 --warm-ups 1 --json"
SMALL = "--model equiformer_small --system ethanol --batch 1"


def bench(tmp_path: Path, command: str) -> tuple[dict[str, Any], str]:
    """The record of a command, and what it printed."""
    file = tmp_path / "record.json"
    file.unlink(missing_ok=True)
    outcome = CliRunner().invoke(app, [*command.split(), *QUICK.split(), str(file)])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(file.read_text()), outcome.output


def test_energy_forces_against_e3nn(tmp_path: Path) -> None:
    pytest.importorskip("e3nn", reason="the opponent needs e3nn: pip install denskit[test]")
    record, said = bench(tmp_path, "energy_forces --batch 1 --against e3nn-eager --no-dens --no-memory")
    ours, theirs = record["sides"]["ours"], record["sides"]["theirs"]
    assert "time of e3nn-eager / time of denskit" in said
    assert len(ours["times"]["cpu"]) == len(theirs["times"]["wall"]) == 2
    assert ours["parameters"] == theirs["parameters"] == 3_496_001
    assert 0 < ours["counted"]["matmul_gflop"] < theirs["counted"]["matmul_gflop"]
    assert record["agreement"]["forces (float64)"] < 1e-10
    assert record["ratio"] == record["ratios"]["cpu_median"] > 0


def test_energy_forces_of_fused_kernels_against_plain_ones(tmp_path: Path) -> None:
    record, _ = bench(tmp_path, f"energy_forces {SMALL} --layers 1 --against plain --no-memory")
    assert record["sides"]["ours"]["kernels"] == "fused"
    assert record["sides"]["theirs"]["kernels"] == "plain"
    assert record["agreement"]["forces (float64)"] < 1e-10


def test_compiled_energy_forces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the traced graph: what a C++ compiler makes of it is tested where potentials are."""
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", _without_a_compiler)
    with pytest.warns(UserWarning, match="not compiled"):
        record, _ = bench(tmp_path, f"energy_forces {SMALL} --layers 1 --l-max 1 --compile --against plain --no-memory")
    assert record["agreement"]["forces (float64)"] < 1e-10
    assert "matmul_gflop" in record["sides"]["theirs"]["counted"]
    assert not record["sides"]["ours"]["counted"]


def _without_a_compiler(*args: object, **kwargs: object) -> object:
    raise RuntimeError("no C++ compiler")


def test_train_alone_with_its_memory(tmp_path: Path) -> None:
    record, _ = bench(tmp_path, f"train {SMALL} --layers 1 --against none")
    assert record["ratio"] is None
    assert record["edges"] == 72
    assert 0 < record["sides"]["ours"]["memory"]["steps_mb"] < record["sides"]["ours"]["memory"]["process_mb"]
    assert record["sides"]["ours"]["share_of_ceiling"]["matmul"] > 0


def test_md_beside_a_plain_loop(tmp_path: Path) -> None:
    record, _ = bench(tmp_path, "md --system ethanol --replicas 2 --no-memory")
    assert record["structures"] == 2
    assert record["agreement"]["forces (float32)"] < 1e-5
    assert record["ratio"] > 0
    assert [record["sides"][side]["kernels"] for side in ("ours", "theirs")] == ["fused", "plain"]


def test_md_in_two_processes(tmp_path: Path) -> None:
    record, said = bench(tmp_path, "md --system ethanol --replicas 2 --processes 2 --against one-process --no-memory")
    assert record["agreement"]["forces (float32)"] < 1e-5
    assert record["clock"] == "wall"
    assert "time of one-process / time of denskit, 2 processes" in said
    assert [record["sides"][side]["kernels"] for side in ("ours", "theirs")] == ["fused", "fused"]


def test_dens_beside_none(tmp_path: Path) -> None:
    record, said = bench(tmp_path, "dens --batch 1 --layers 1 --no-memory")
    assert "paper: +10.5 %" in said
    assert record["sides"]["ours"]["parameters"] > record["sides"]["theirs"]["parameters"]
    assert record["ratio_of"] == "time of with DeNS / time of without"


@pytest.mark.parametrize("limit", ["", "--max-neighbors 10"])
def test_neighbors_are_those_of_ase(tmp_path: Path, limit: str) -> None:
    record, _ = bench(tmp_path, f"neighbors --system liquid-72 --cutoff 4 --batch 2 {limit}")
    assert record["agreement"] == {"edges not shared": 0.0}
    assert record["atoms"] == 144
    assert record["edges"] == 1440 if limit else record["edges"] > 1440


def test_loader_makes_batches_from_a_made_file_and_from_a_given_one(tmp_path: Path) -> None:
    made, said = bench(tmp_path, "loader --system ethanol --batch 2 --model equiformer_l2")
    assert made["structures_in_file"] == 16
    assert made["cpu_ms_per_structure"].keys() == {"convert", "read", "read and collate", "neighbors", "all"}
    assert "structures per s" in said
    data = Path(__file__).parents[2] / "src/denskit/data/embedded/ethanol.npz"
    given, _ = bench(tmp_path, f"loader {data} --batch 8 --model equiformer_l2 --against none")
    assert given["atoms"] == 72


def test_scaling_is_one_record_a_size_and_a_plot(tmp_path: Path) -> None:
    plot = tmp_path / "scaling.png"
    found, said = bench(tmp_path, f"scaling --over batch --values 1,2 {SMALL} --plot {plot}")
    first, second = found["records"]
    assert (first["structures"], second["structures"]) == (1, 2)
    assert found["ratio"] == pytest.approx(found["cost_s"][1] / found["cost_s"][0])
    assert found["cost_s"][1] == pytest.approx(second["sides"]["ours"]["median_s"] / 2)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "cost per structure at 2 / at 1" in said


@pytest.mark.parametrize(
    ("axis", "value", "changed"),
    [
        ("atoms", 243, {"system": "liquid-243"}),
        ("edges", 3.5, {"cutoff": 3.5}),
        ("l_max", 3, {"l_max": 3}),
        ("batch", 4, {"batch": 4}),
    ],
)
def test_each_axis_of_scaling_changes_one_thing(axis: Any, value: float, changed: dict[str, Any]) -> None:
    from dataclasses import replace

    from denskit_bench.job import Job
    from denskit_bench.scaling import sized

    job = Job(work="energy_forces", model="equiformer_small", system="ethanol")
    assert sized(job, axis, value) == replace(job, **changed)
    published = replace(job, model="equiformer_l2", against="e3nn")
    assert sized(published, "l_max", 3).model == "equiformer_l3"


def test_report_is_a_table_with_a_line_for_each_record_and_plots(tmp_path: Path) -> None:
    bench(tmp_path, f"dens {SMALL} --layers 1 --no-memory")
    (tmp_path / "record.json").rename(tmp_path / "dens.json")
    bench(tmp_path, f"scaling --over l_max --values 1,2 {SMALL}")
    files = [str(tmp_path / name) for name in ("dens.json", "record.json")]
    outcome = CliRunner().invoke(app, ["report", *files, "--output", str(tmp_path / "out")])
    assert outcome.exit_code == 0, outcome.output
    text = (tmp_path / "out" / "benchmarks.md").read_text()
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 2 + 3
    assert "with DeNS: " in text
    assert (tmp_path / "out" / "record.png").is_file()


def test_report_refuses_other_files(tmp_path: Path) -> None:
    for name, text in (("a.json", "{}"), ("b.json", "no json")):
        (tmp_path / name).write_text(text)
        outcome = CliRunner().invoke(app, ["report", str(tmp_path / name), "-o", str(tmp_path / "out")])
        assert outcome.exit_code == 1
        assert name in outcome.output.replace("\n", "")


def test_mistakes_are_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    mistakes = {
        f"neighbors --json {tmp_path / 'there.json'}": "there.json",
        f"train --json {tmp_path / 'absent' / 'result.json'}": "absent",
        "train --model equiformer_l4": "equiformer_v2_gradient",
        "md --system water": "liquid-N",
        "energy_forces --against tensorflow": "e3nn-eager",
        "md --against mace": "--peer-python",
        "train --batch 0": "batch=0",
        "scaling --values 72": "no scaling",
        "scaling --values a,b": "numbers",
        "scaling --over batch --values 1.5,2": "whole numbers",
    }
    for command, answer in mistakes.items():
        outcome = CliRunner().invoke(app, [*command.split()])
        assert outcome.exit_code == 1, command
        assert answer in outcome.output, outcome.output
