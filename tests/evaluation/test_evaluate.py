"""Evaluation against numbers computed here, and prediction to a file."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from denskit.cli import app
from denskit.data import load_data, read_file
from denskit.data.base import Subset, collate
from denskit.data.splits import Splits
from denskit.data.writing import plain, relabelled
from denskit.evaluation.evaluate import evaluate, evaluate_splits, predict, predict_file
from denskit.evaluation.judged_structures import read_structures
from denskit.geometry.neighbors import build_neighbors
from denskit.models.model_file import load_model
from denskit.training.load_config import RunConfig
from denskit.training.run import train
from denskit.training.seen import _learned

Tiny = Callable[..., RunConfig]


def test_errors_are_those_of_the_test_split(tiny: Tiny) -> None:
    config = tiny("training.max_steps=2")
    run = train(config)
    test = load_data(config.data, config.seed).test
    assert test is not None
    force_field = load_model(run / "model.safetensors")
    energy_errors, force_errors = [], []
    for index in range(len(test)):
        batch, targets = collate([test[index]])
        prediction = force_field.predict(build_neighbors(batch, 3.0))
        energy_errors.append(float((prediction["energy"] - targets.energy).abs()))
        force_errors.append((prediction["forces"] - targets.forces).abs().mean().item())
    result = evaluate(run, batch_size=3)
    assert result["energy_mae_meV"] == pytest.approx(1000 * np.mean(energy_errors), rel=1e-4)
    assert result["forces_mae_meV_per_A"] == pytest.approx(1000 * np.mean(force_errors), rel=1e-4)
    assert evaluate(run / "model.safetensors", test) == pytest.approx(result, rel=1e-4)
    assert evaluate(force_field, test) == pytest.approx(result, rel=1e-4)
    assert evaluate(run, split="valid", checkpoint="last") != result


def test_the_split_is_the_one_that_was_trained_with(tiny: Tiny) -> None:
    """Time blocks are the default of the embedded data: the run folder must not turn them into a random split."""
    run = train(tiny("training.max_steps=1", "data.split={train: 8, valid: 2, test: 4, mode: blocks}"))
    config = tiny("data.split={train: 8, valid: 2, test: 4, mode: blocks}")
    test = load_data(config.data, config.seed).test
    assert test is not None
    assert evaluate(run) == pytest.approx(evaluate(run / "model.safetensors", test))


def test_a_committee_is_the_mean_of_its_members(tiny: Tiny, tmp_path: Path) -> None:
    """Its errors, arrays and written frames; the standard deviation is that over the members."""
    split = "data.split={mode: random, train: 8, valid: 2, test: 6, seed: 0}"
    runs = [train(tiny(split, f"seed={seed}", f"output={tmp_path / str(seed)}")) for seed in range(3)]
    test = load_data(tiny(split).data, 0).test
    assert test is not None
    file = tmp_path / "test.extxyz"
    systems = list(test)
    ase.io.write(file, [relabelled(plain(s), {"energy": s.energy, "forces": s.forces}) for s in systems])
    each = [predict(run, file) for run in runs]
    forces = np.stack([np.concatenate(one.forces) for one in each])
    energies = np.stack([one.energy for one in each])
    labels = np.concatenate([system.forces for system in systems])
    expected = 1000 * np.abs(forces.mean(0) - labels).mean()
    for found in (evaluate(runs), evaluate(runs, file), evaluate_splits(runs, {"a": file})["a"]):
        assert found["forces_mae_meV_per_A"] == pytest.approx(expected, rel=1e-4)
    mean = predict(runs, file)
    np.testing.assert_allclose(mean.energy, energies.mean(0), rtol=1e-6)
    np.testing.assert_allclose(mean.energy_std, energies.std(0, ddof=1), atol=1e-4)
    np.testing.assert_allclose(np.concatenate(mean.forces_std or []), forces.std(0, ddof=1), atol=1e-5)
    assert each[0].energy_std is None and each[0].forces_std is None

    result = CliRunner().invoke(
        app, ["predict", str(runs[0]), str(file), "--committee", str(runs[1]), "--committee", str(runs[2]),
              "-o", str(tmp_path / "mean.extxyz")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    written = ase.io.read(tmp_path / "mean.extxyz", ":")
    np.testing.assert_allclose(np.concatenate([a.get_forces() for a in written]), forces.mean(0), atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([a.arrays["forces_std"] for a in written]), forces.std(0, ddof=1), atol=1e-5
    )
    np.testing.assert_allclose([a.info["energy_std"] for a in written], energies.std(0, ddof=1), atol=1e-4)

    before = (runs[0] / "test.json").is_file()
    shown = CliRunner().invoke(app, ["evaluate", str(runs[0]), "--committee", str(runs[1])])
    assert shown.exit_code == 0 and "mean of" in shown.output
    assert (runs[0] / "test.json").is_file() == before, "the folder is of one run"


def test_a_committee_is_not_judged_on_what_a_member_has_seen(tiny: Tiny, tmp_path: Path) -> None:
    file, few = tmp_path / "all.extxyz", tmp_path / "few.extxyz"
    frames = load_data(tiny("data.split={mode: random, train: 18, valid: 1, test: 1}").data, 0).train
    ase.io.write(file, [relabelled(plain(s), {"energy": s.energy, "forces": s.forces}) for s in frames])
    ase.io.write(few, ase.io.read(file, ":2"))

    def trained(name: str, *settings: str) -> Path:
        return train(
            tiny("data.name=file", "data.molecule=null", "training.max_steps=1", f"output={tmp_path / name}", *settings)
        )

    divided = [f"data.path={file}", "data.split={mode: random, train: 8, valid: 4, test: 6}"]
    first, second = (trained(f"run{seed}", *divided, f"seed={seed}") for seed in range(2))
    for members in ([first, second], [first, second / "model.safetensors"]):
        for part in ("test", "valid"):
            with pytest.raises(ValueError, match=rf"has trained on \d of the \d {part} structures of .*run0, so"):
                evaluate(members, split=part)
    whole = trained(
        "whole",
        f"data.train={file}",
        f"data.valid={few}",
        "data.split={train: null, valid: null, test: null, mode: null}",
    )
    said = read_structures([first, whole], file)[1]
    assert [line for line in said if line.startswith("warning")] == [
        f"warning: {run} has trained on {count} of the 18 structures of {file}, whose errors say little about others; "
        "denskit evaluate without a file judges the test split of a run"
        for run, count in ((first, 8), (whole, 18))
    ]
    assert not any("trained on" in line for line in read_structures([first, whole], file, judged=False)[1])  # a hull
    copies = int((Splits.read(first / "splits.json").train < 2).sum())
    warned = [line for line in read_structures(first, few)[1] if line.startswith("warning")]
    assert len(warned) == (copies > 0)
    assert not copies or f"{first} has trained on copies of {copies} of the 2 structures of {few}, whose" in warned[0]
    best = first / "checkpoints" / "best.safetensors"
    assert f"{best} has trained on 8 of the 18" in read_structures(best, file)[1][-1]
    alone = shutil.copy(first / "model.safetensors", tmp_path / "alone.safetensors")
    assert f"{alone} has trained on some of the 18" in read_structures(alone, file)[1][-1]
    with pytest.raises(ValueError, match=r"whole was trained on the whole file that .*run0 divides"):
        evaluate([first, whole])
    with pytest.warns(UserWarning, match="a force field in memory has trained on the structures judged is not known"):
        evaluate([first, load_model(second)])
    turned = tmp_path / "turned.extxyz"
    ase.io.write(turned, ase.io.read(file, ":")[::-1])
    copied = trained("copied", f"data.path={turned}", divided[1])
    judged = 17 - Splits.read(first / "splits.json").test  # their numbers in the turned file
    split = Splits.read(copied / "splits.json")
    seen = np.isin(judged, [*split.train, *split.valid]).sum()
    assert seen, "choose another seed"
    with pytest.raises(ValueError, match=rf"copied has trained on {seen} of the 6 test structures of .*run0, so"):
        evaluate([first, copied])
    turned.unlink()
    _learned.cache_clear()
    with pytest.warns(UserWarning, match="copied has trained on the structures judged is not known"):
        evaluate([first, copied])
    with pytest.raises(ValueError, match=r"run0 and .*run0 are the same model"):
        evaluate([first, first])


def test_frames_without_a_label_are_counted(tiny: Tiny, tmp_path: Path) -> None:
    run = train(tiny("training.max_steps=1"))
    frames = []
    for number in range(5):
        atoms = molecule("CH3CH2OH")
        labels = {"energy": 1.0, "forces": np.full((9, 3), np.nan if number == 2 else 0.1)}
        atoms.calc = SinglePointCalculator(atoms, **labels if number != 4 else {"energy": 1.0})
        frames.append(atoms)
    ase.io.write(tmp_path / "some.extxyz", frames)
    with pytest.warns(UserWarning, match=r"2 of 5 frames have no forces that can be used \(frames 2, 4") as warned:
        found = evaluate(run, tmp_path / "some.extxyz")
    assert warned[0].filename == __file__, "the user's line"
    assert np.isfinite(found["forces_mae_meV_per_A"])


def test_labels_of_a_model_are_no_reference(tiny: Tiny, tmp_path: Path) -> None:
    frame = molecule("H2O")
    frame.calc = SinglePointCalculator(frame, energy=-1.0, forces=np.zeros((3, 3)))
    own = frame.copy()
    own.calc = SinglePointCalculator(own, energy=-1.0, forces=np.zeros((3, 3)))
    own.info |= {"time_ps": 0.1, "step": 200, "replica": 0}
    ase.io.write(tmp_path / "mixed.extxyz", [frame, own])
    ase.io.write(tmp_path / "reference.extxyz", [frame, frame])
    run = train(tiny("training.max_steps=1"))
    with pytest.warns(
        UserWarning, match=r"mixed.extxyz: energies or forces that seem to be a model's own.*\(frame 1\)"
    ):
        evaluate(run, tmp_path / "mixed.extxyz", device="cpu")
    part = Subset(read_file(tmp_path / "mixed.extxyz")[0], np.array([1]), "part")
    with pytest.warns(UserWarning, match=r"part: energies or forces that seem to be a model's own.*\(frame 1\)"):
        evaluate(run, part, device="cpu")
    with warnings.catch_warnings(record=True) as said:
        evaluate(run, tmp_path / "reference.extxyz", device="cpu")
    assert not [one for one in said if "model's own" in str(one.message)]


def test_what_cannot_be_evaluated_says_why(tiny: Tiny, tmp_path: Path) -> None:
    run = train(tiny("training.max_steps=1", "data.split={mode: random, train: 4, valid: 2, test: 0}"))
    with pytest.raises(ValueError, match=r"no test split; give a file of structures"):
        evaluate(run)
    with pytest.raises(ValueError, match=r"a model alone, without data: give a file"):
        evaluate(run / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="no such model file"):
        evaluate(tmp_path / "absent")
    (run / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"the run has no model.safetensors yet.*denskit train .* --resume"):
        evaluate(run)
    run = train(tiny("training.max_steps=1", "data.split={mode: random, train: 4, valid: 2, test: 0}", name="other"))
    unlabelled = tmp_path / "bare.extxyz"
    ase.io.write(unlabelled, molecule("CH3CH2OH"))
    with pytest.raises(ValueError, match="no energies, forces or stresses"):
        evaluate(run, unlabelled)
    ase.io.write(unlabelled, molecule("SiH4"))
    with pytest.raises(ValueError, match="Si"):
        predict_file(run, unlabelled, tmp_path / "out.extxyz")


def test_predictions_are_written_with_the_labels_beside_them(tiny: Tiny, tmp_path: Path) -> None:
    run = train(tiny("training.max_steps=1"))
    frames = [molecule("CH3CH2OH"), molecule("CH4")]
    frames[0].info["REF_energy"] = -7.5
    frames[0].arrays["REF_forces"] = np.ones((9, 3))
    frames[1].rattle(0.1, seed=1)
    ase.io.write(tmp_path / "in.extxyz", frames)
    told: list[tuple[float, float]] = []
    count = predict_file(
        run, tmp_path / "in.extxyz", tmp_path / "out.extxyz", batch_size=1,
        progress=lambda done, _, total: told.append((done, total)),
    )  # fmt: skip
    assert count == 2 and told == [(1, 2), (2, 2)]
    written = ase.io.read(tmp_path / "out.extxyz", index=":")
    force_field = load_model(run / "model.safetensors")
    assert force_field.cutoff == 3.0
    for atoms, original in zip(written, frames, strict=True):
        np.testing.assert_allclose(atoms.positions, original.positions, atol=1e-7)
        assert atoms.get_forces().shape == (len(original), 3)
        assert np.isfinite(atoms.get_potential_energy())
    assert written[0].info["REF_energy"] == -7.5
    assert written[0].arrays["REF_forces"].tolist() == np.ones((9, 3)).tolist()
    assert "REF_energy" not in written[1].info
