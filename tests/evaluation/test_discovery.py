"""The hull against ASE's and pymatgen's, the leaderboard's metrics by hand, and whole runs with a trained model."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.phasediagram import PhaseDiagram

from cli_calls import denskit
from denskit.cli.discovery import _print
from denskit.data import DataConfig
from denskit.data.frames import structures_of
from denskit.data.loading import read_file
from denskit.evaluation.convex_hull import ConvexHull
from denskit.evaluation.discovery import Materials
from denskit.evaluation.stability_metrics import stability_metrics

from trained import TRAINED


def _phase(formula: str, energy_per_atom: float) -> ase.Atoms:
    atoms = ase.Atoms(formula, cell=np.eye(3) * 9, pbc=True)
    atoms.positions[:] = np.random.default_rng(0).uniform(0, 9, (len(atoms), 3))
    atoms.calc = SinglePointCalculator(atoms, energy=energy_per_atom * len(atoms))
    return atoms


def _hull(frames: list[ase.Atoms]) -> ConvexHull:
    return ConvexHull(structures_of(frames)[0], "phases")


TERNARY = [("Li", -1.9), ("Co", -7.1), ("O", -4.9), ("Li2O", -4.8), ("CoO", -6.4), ("Co3O4", -6.3), ("LiCoO2", -5.9),
           ("LiO", -4.6), ("Li6CoO4", -5.2), ("Co2", -7.0)]  # fmt: skip
ASKED = ["Li", "LiCoO2", "Li2CoO3", "LiCo2O4", "Li5CoO4", "CoO2", "Co", "Li3Co"]


def _numbers(formula: str) -> np.ndarray:
    return ase.Atoms(formula).numbers


def test_the_hull_is_that_of_ase() -> None:
    hull = _hull([_phase(*phase) for phase in TERNARY])
    reference = PhaseDiagram([(f, e * len(_numbers(f))) for f, e in TERNARY], verbose=False)
    for formula in ASKED:
        energy, *_ = reference.decompose(formula)
        assert hull.energy(_numbers(formula)) == pytest.approx(energy / len(_numbers(formula)), abs=1e-9), formula


def test_the_hull_is_that_of_pymatgen() -> None:
    phase_diagram = pytest.importorskip("pymatgen.analysis.phase_diagram", reason="pymatgen is not installed")
    from pymatgen.core import Composition

    entries = [phase_diagram.PDEntry(Composition(f), e * len(_numbers(f))) for f, e in TERNARY]
    reference, hull = phase_diagram.PhaseDiagram(entries), _hull([_phase(*phase) for phase in TERNARY])
    for formula in ASKED:
        expected = reference.get_hull_energy_per_atom(Composition(formula))
        assert hull.energy(_numbers(formula)) == pytest.approx(expected, abs=1e-9), formula


def test_the_hull_of_real_alloys_is_that_of_ase(data_dir: Path) -> None:
    """W-Be: the lowest energy of each composition; hull energies at unseen phases."""
    frames = ase.io.read(data_dir / "wbe_crystals_train.extxyz", "::4")
    ends = [_phase("W", -8.5), _phase("Be", -3.4)]
    hull = _hull([*frames, *ends])
    phases = [(atoms.get_chemical_formula(), atoms.get_potential_energy()) for atoms in (*frames, *ends)]
    reference = PhaseDiagram(phases, verbose=False)
    for atoms in ase.io.read(data_dir / "wbe_crystals_newphase_test.extxyz", ":3"):
        energy, *_ = reference.decompose(atoms.get_chemical_formula())
        assert hull.energy(atoms.numbers) == pytest.approx(energy / len(atoms), abs=1e-9)


def test_compositions_outside_of_the_phases_are_refused() -> None:
    hull = _hull([_phase("Li", -1.9), _phase("Li2O", -4.8)])
    assert hull.energy(_numbers("Li4O")) == pytest.approx((2 * -1.9 + 3 * -4.8) / 5)
    for formula in ("LiO", "Co"):
        with pytest.raises(ValueError, match=f"phases: no mixture of its 2 phases is {formula}"):
            hull.energy(_numbers(formula))
    with pytest.raises(ValueError, match="record 1: a phase of the hull needs an energy"):
        _hull([_phase("Li", -1.9), ase.Atoms("O")])


def test_metrics_by_hand() -> None:
    reference = np.array([-0.1, 0.0, -0.2, 0.1, 0.3, 0.2, -0.05, 0.4])
    predicted = np.array([-0.2, 0.1, -0.1, -0.1, 0.4, 0.3, math.nan, 0.0])
    found = stability_metrics(reference, predicted)
    counts = [found[f"{kind}_{sign}"] for kind in ("true", "false") for sign in ("positives", "negatives")]
    assert counts == [2, 2, 2, 2], "one without a prediction counts as unstable"
    assert found["precision"] == 2 / 4 and found["recall"] == 2 / 4 and found["F1"] == 0.5
    assert found["DAF"] == (2 / 4) / (4 / 8)
    errors = np.array([-0.1, 0.1, 0.1, -0.2, 0.1, 0.1, -0.4])
    assert found["MAE_eV_per_atom"] == pytest.approx(np.abs(errors).mean())
    assert found["RMSE_eV_per_atom"] == pytest.approx(np.sqrt((errors**2).mean()))
    judged = np.delete(reference, 6)
    assert found["R2"] == pytest.approx(1 - (errors**2).sum() / ((judged - judged.mean()) ** 2).sum())
    assert found["without_a_prediction"] == 1


def test_a_model_that_calls_nothing_stable_has_no_precision() -> None:
    found = stability_metrics(np.array([-0.1, 0.2]), np.array([0.1, 0.1]))
    assert math.isnan(found["precision"]) and math.isnan(found["F1"]) and found["recall"] == 0


@pytest.mark.parametrize(
    ("reference", "predicted", "told"),
    [
        ([0.1, 0.2], [-0.1, 0.3], {"F1": "none is stable", "DAF": "none is stable", "recall": "none is stable"}),
        ([-0.1, 0.2], [0.1, 0.3], {"F1": "none predicted stable", "precision": "none predicted stable"}),
        ([-0.1, 0.2], [0.1, -0.3], {"F1": "no stable one found", "precision": "0.000"}),
        ([0.1], [0.2], {"precision": "none predicted stable", "R²": "too few materials"}),
    ],
)
def test_metrics_that_are_no_numbers_are_told_in_words(
    reference: list[float], predicted: list[float], told: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _print(stability_metrics(np.array(reference), np.array(predicted)), "model on file")
    printed = capsys.readouterr().out
    assert "nan" not in printed
    for name, words in told.items():
        assert any(name in line and words in line for line in printed.splitlines()), name


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Copper, compressed and whole, gold that the model does not know; a hull at copper's own energy."""
    frames = [bulk("Cu", a=3.5), bulk("Cu", cubic=True, a=3.7), bulk("Au")]
    for name, atoms in zip(("wbm-1", "wbm-2", "wbm-3"), frames, strict=True):
        atoms.info["material_id"] = name
    ase.io.write(tmp_path / "initial.extxyz", frames)
    relaxed = [
        bulk("Cu", cubic=True, a=3.59),
        bulk("Cu", cubic=True, a=3.59),
        bulk("Au", a=4.06),
    ]  # wbm-1: another cell
    for name, atoms in zip(("wbm-3", "wbm-1", "wbm-2"), relaxed[2:] + relaxed[:2], strict=True):
        atoms.info["material_id"] = name
        energy = (0.0 if name == "wbm-3" else -0.01) * len(atoms)
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
    ase.io.write(tmp_path / "relaxed.extxyz", relaxed)
    ase.io.write(tmp_path / "hull.extxyz", [_phase("Cu", -0.005), _phase("Au", -0.005)])
    return {name: tmp_path / f"{name}.extxyz" for name in ("initial", "relaxed", "hull")}


def _run(*arguments: str | Path) -> tuple[int, str, str]:
    result = denskit("evaluate", TRAINED, *arguments)
    return result.exit_code, result.stdout, result.stderr


def test_discovery_with_a_hull_and_references(tmp_path: Path, files: dict[str, Path]) -> None:
    given = ["--discovery", files["initial"], "--hull", files["hull"], "--relaxed", files["relaxed"]]
    output = tmp_path / "out"
    code, printed, said = _run(*given, "-o", output)
    assert code == 0, said
    with (output / "discovery.csv").open(encoding="utf-8") as file:
        rows = {row["material_id"]: row for row in csv.DictReader(file)}
    small, large, gold = rows["wbm-1"], rows["wbm-2"], rows["wbm-3"]
    assert gold["status"] == "unknown_element" and gold["e_above_hull_eV_per_atom"] == ""
    assert float(small["energy_eV_per_atom"]) == pytest.approx(float(large["energy_eV_per_atom"]), abs=2e-3)
    above = float(small["e_above_hull_eV_per_atom"])
    assert above == pytest.approx(float(small["energy_eV_per_atom"]) + 0.005, abs=1e-9)
    assert float(small["reference_e_above_hull_eV_per_atom"]) == pytest.approx(-0.005)
    assert float(gold["reference_e_above_hull_eV_per_atom"]) == pytest.approx(0.005)
    found = json.loads((output / "discovery.json").read_text())
    assert found["materials"] == 3 and found["converged"] == 2 and found["without_a_prediction"] == 1
    assert found["true_negatives"] == 1
    assert found["MAE_eV_per_atom"] == pytest.approx(abs(float(small["energy_eV_per_atom"]) + 0.01), abs=2e-3)
    assert "stable: F1" in printed
    assert len(ase.io.read(output / "relaxed.extxyz", ":")) == 3

    counted = dict(re.findall(r"│ (with an element that.*?|converged) +│ (\d+) +│", printed))
    assert counted == {"converged": "2", "with an element that the model does not know": "1"}
    assert "Without a result: 1 of 3" in said and "Au" in said.partition("Without a result")[2]

    assert _run(*given, "-o", output)[0] == 1, "a finished folder is not overwritten"
    code, _, said = _run(*given, "-o", output, "--resume")
    assert code == 0, said
    text = (output / "discovery.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == found, "NaN is no JSON"


def test_hull_and_references_may_come_later(tmp_path: Path, files: dict[str, Path]) -> None:
    """They only judge: no relaxation is repeated."""
    given = ["--discovery", files["initial"], "-o", tmp_path / "out"]
    assert _run(*given)[0] == 0
    moved = (tmp_path / "out" / "relaxed.extxyz").read_bytes()
    code, printed, said = _run(*given, "--hull", files["hull"], "--relaxed", files["relaxed"], "--resume")
    assert code == 0, said
    assert "stable: F1" in printed and (tmp_path / "out" / "relaxed.extxyz").read_bytes() == moved
    found = json.loads((tmp_path / "out" / "discovery.json").read_text())
    assert found["judged_by"].keys() == {"hull", "relaxed"}
    assert _run(*given[:2], "--hull", files["hull"], "--relaxed", files["relaxed"], "-o", tmp_path / "once")[0] == 0
    assert json.loads((tmp_path / "once" / "discovery.json").read_text()) == found


def test_structures_after_relaxation(tmp_path: Path, files: dict[str, Path]) -> None:
    pytest.importorskip("pymatgen.core.structure_matcher", reason="pymatgen is not installed")
    code, _, said = _run("--discovery", files["initial"], "--relaxed", files["relaxed"], "-o", tmp_path / "out")
    assert code == 0, said
    found = json.loads((tmp_path / "out" / "discovery.json").read_text())
    assert found["matched"] == 2 and found["reference_structures"] == 3
    assert found["rmsd"] == pytest.approx(1 / 3, abs=1e-6), (
        "atoms of fcc cannot move; one has no prediction, which is 1"
    )


def test_known_distances_from_the_hull_need_no_hull(tmp_path: Path) -> None:
    """As WBM gives it: the energy above the hull, and the energy of the relaxed structure."""
    frames = [bulk("Cu", a=3.5), bulk("Cu", cubic=True)]
    for place, atoms in enumerate(frames):
        atoms.info |= {"material_id": f"wbm-{place}", "e_above_hull": 0.03, "relaxed_energy": -0.02 * len(atoms)}
    ase.io.write(tmp_path / "wbm.extxyz", frames)
    code, _, said = _run("--discovery", tmp_path / "wbm.extxyz", "-o", tmp_path / "out")
    assert code == 0, said
    with (tmp_path / "out" / "discovery.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            predicted = 0.03 + float(row["energy_eV_per_atom"]) + 0.02
            assert float(row["e_above_hull_eV_per_atom"]) == pytest.approx(predicted, abs=1e-9)
    assert "no energies above the hull" not in said
    for atoms in frames:
        del atoms.info["relaxed_energy"]
    ase.io.write(tmp_path / "without.extxyz", frames)
    code, _, said = _run("--discovery", tmp_path / "without.extxyz", "-o", tmp_path / "no_energies")
    assert code == 0, said
    assert "of 2 materials 2 have e_above_hull and 0 a reference energy, none both; give" in " ".join(said.split())


def test_a_material_may_be_called_0(tmp_path: Path) -> None:
    """In any order: it is not the place in the file."""
    frames = [bulk("Cu"), bulk("Au")]
    for name, atoms in zip((1, 0), frames, strict=True):
        atoms.info["material_id"] = name
    file = tmp_path / "numbers.extxyz"
    ase.io.write(file, frames)
    source, _ = read_file(file, DataConfig(missing="mask"))
    assert Materials(source, file).names == ["1", "0"]


def test_mistakes_are_told_before_the_first_move(tmp_path: Path, files: dict[str, Path]) -> None:
    ase.io.write(tmp_path / "copper.extxyz", [_phase("Cu", -0.005)])
    output = tmp_path / "out"
    code, _, said = _run("--discovery", files["initial"], "--hull", tmp_path / "copper.extxyz", "-o", output)
    assert code == 1 and "initial.extxyz, record 2 (wbm-3)" in said and "no mixture of its 1 phases is Au" in said
    frames = ase.io.read(files["initial"], ":")
    frames[1].info["material_id"] = "wbm-1"
    ase.io.write(tmp_path / "twice.extxyz", frames)
    code, _, said = _run("--discovery", tmp_path / "twice.extxyz", "-o", output)
    assert code == 1 and "two structures have the material_id wbm-1" in said
    frames[1].info["material_id"] = "wbm-2"
    for place, atoms in enumerate(frames):
        atoms.info["material_id"] = f"mp-{place}"
    ase.io.write(tmp_path / "others.extxyz", frames)
    code, _, said = _run("--discovery", files["initial"], "--relaxed", tmp_path / "others.extxyz", "-o", output)
    assert code == 1 and "none of its structures has the material_id of one of" in said and "mp-0, mp-1" in said
    ends = ase.io.read(files["relaxed"], ":")
    ase.io.write(tmp_path / "again.extxyz", [*ends, ends[0]])
    code, _, said = _run("--discovery", files["initial"], "--relaxed", tmp_path / "again.extxyz", "-o", output)
    assert code == 1 and "again.extxyz: two structures have the material_id wbm-1" in said
    for name in ("initial", "relaxed"):
        bare = ase.io.read(files[name], ":")
        for atoms in bare:
            del atoms.info["material_id"]
        ase.io.write(tmp_path / f"bare_{name}.extxyz", bare[:: 1 if name == "initial" else -1])
    arguments = ("--discovery", tmp_path / "bare_initial.extxyz", "--relaxed", tmp_path / "bare_relaxed.extxyz")
    code, _, said = _run(*arguments, "-o", output)
    assert code == 1 and "is Cu in" in said and "and Au in" in said and "matched by their places" in said
    assert "give --output FOLDER" in _run("--discovery", files["initial"])[2]
    assert "--hull, --relaxed and --resume belong to --discovery" in _run("--hull", files["hull"])[2]
    assert not output.exists()
