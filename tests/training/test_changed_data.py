from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.io import read, write
from typer.testing import CliRunner

from denskit.cli import app
from denskit.data import load_data, read_file
from denskit.data.base import Lazy
from denskit.data.splits import Splits, identity_of
from denskit.evaluation.evaluate import evaluate
from denskit.evaluation.judged_structures import run_data
from denskit.evaluation.unseen import warnings_for_file, warnings_for_split
from denskit.models.model_file import load_model, read_header, save_model
from denskit.training.load_config import load_config
from denskit.training.run import train
from denskit.training.seen import _learned, seen_before

SMALL = [
    "model.num_layers=1", "model.channels=[4,2]", "model.feature_channels=[4,2]", "model.head_channels=[2,2]",
    "model.ffn_channels=[4,2]", "model.num_heads=1", "model.num_basis=4", "model.radial_hidden=[4]",
    "training.batch_size=2", "training.evaluate_every=1", "data.name=file",
]  # fmt: skip


def _write(path: Path, shift: float) -> None:
    frames = []
    for seed in range(6):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        atoms.calc = EMT()
        atoms.info["REF_energy"] = atoms.get_potential_energy() + shift * seed
        atoms.arrays["REF_forces"] = atoms.get_forces()
        frames.append(atoms)
    write(path, frames)


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """The same number of frames with other labels is another training."""
    data, run = tmp_path / "mine.extxyz", tmp_path / "run"
    _write(data, 0.0)
    settings = [f"data.path={data}", f"output={run}", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=1"]))
    splits = (run / "splits.json").read_bytes()

    _write(data, 1.0)
    longer = load_config("demo", [*settings, "training.max_steps=2"])
    with pytest.raises(ValueError, match=r"the content of data\.path has changed since this run started"):
        train(longer, resume=True)
    assert (run / "splits.json").read_bytes() == splits

    _write(data, 0.0)
    train(longer, resume=True)


def test_files_of_a_run_may_move(tmp_path: Path) -> None:
    """From a cluster to a laptop: the split and its check hold there."""
    data, new, other, run = (tmp_path / name for name in ("mine.extxyz", "moved.extxyz", "other.extxyz", "run"))
    _write(data, 0.0)
    _write(other, 1.0)
    settings = [f"output={run}", *SMALL]
    train(load_config("demo", [f"data.path={data}", *settings, "training.max_steps=1", "data.split.test=1"]))
    errors = evaluate(run)
    data.rename(new)
    with pytest.raises(FileNotFoundError, match=r"denskit evaluate \S*run data\.path=NEW_PLACE, .*config\.yaml"):
        evaluate(run)
    assert evaluate(run, data={"path": str(new)}) == errors
    with pytest.raises(ValueError, match=r"other file or has changed .* Bring the file back, or .*denskit evaluate"):
        evaluate(run, data={"path": str(other)})
    with pytest.raises(ValueError, match=r"data\.test would be ignored for the run's own data; it names data\.path"):
        evaluate(run, data={"test": str(new)})
    called = CliRunner().invoke(app, ["evaluate", str(run), f"data.path={new}", "--json", "--device", "cpu"])
    assert json.loads(called.stdout)["errors"]["test"] == pytest.approx(errors)
    assert "denoise" in CliRunner().invoke(app, ["evaluate", str(run), "--denoise", f"data.path={new}"]).output

    train(load_config(run, [f"data.path={new}", "training.max_steps=2"]), resume=True)
    assert load_config(run).data.path == str(new)
    evaluate(run)


def test_a_test_file_that_is_gone_is_named(tmp_path: Path) -> None:
    data, test, run = (tmp_path / name for name in ("mine.extxyz", "test.extxyz", "run"))
    _write(data, 0.0)
    _write(test, 1.0)
    train(load_config("demo", [f"data.path={data}", f"data.test={test}", f"output={run}", *SMALL, "training.epochs=1"]))
    test.rename(tmp_path / "new.extxyz")
    with pytest.raises(FileNotFoundError, match=r"data\.test=NEW_PLACE"):
        evaluate(run)
    assert evaluate(run, split="valid") and evaluate(run, data={"test": str(tmp_path / "new.extxyz")})


def test_the_result_of_a_run_is_of_its_own_test_file(tmp_path: Path) -> None:
    """Another file is refused, and so is a moved one where the content is not on record, as of a file at an address."""
    names = ("mine", "valid", "test", "moved", "other")
    data, valid, test, moved, other = (tmp_path / f"{name}.extxyz" for name in names)
    for shift, file in enumerate((data, valid, test, other)):
        _write(file, shift)
    run = tmp_path / "run"
    settings = [f"data.train={data}", f"data.valid={valid}", f"data.test={test}", f"output={run}", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=1"]))
    errors = evaluate(run)
    test.rename(moved)
    for key in ("test", "valid"):
        with pytest.raises(ValueError, match=rf"data\.{key}=\S*other.extxyz is another file .* evaluate \S*run FILE"):
            evaluate(run, split=key, data={"test": str(moved)} | {key: str(other)})
    told = CliRunner().invoke(app, ["evaluate", str(run), f"data.test={other}", "--device", "cpu"])
    assert told.exit_code == 1 and not (run / "test.json").exists()
    told = CliRunner().invoke(app, ["evaluate", str(run), f"data.test={moved}", "--device", "cpu"])
    assert json.loads((run / "test.json").read_text()) == pytest.approx(errors)
    longer = ["training.max_steps=2", f"data.test={other}"]
    with pytest.raises(ValueError, match=r"the content of data\.test has changed"):
        train(load_config(run, longer), resume=True)
    train(load_config(run, ["training.max_steps=2", f"data.test={moved}"]), resume=True)

    header, state = read_header(run / "model.safetensors"), load_model(run / "model.safetensors")
    del header["metadata"]["contents"]
    save_model(run / "model.safetensors", state, header["metadata"])
    (run / "test.json").unlink(missing_ok=True)
    told = CliRunner().invoke(app, ["evaluate", str(run), f"data.test={other}", "--device", "cpu"])
    assert told.exit_code == 1 and not (run / "test.json").exists()
    assert "content is not known" in told.output and f"{run} FILE" in "".join(told.output.splitlines())
    assert CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu"]).exit_code == 0
    assert (run / "test.json").is_file()


def test_several_files_of_a_run_may_move(tmp_path: Path) -> None:
    """A list, as on the command line of a training; the test file is judged without them."""
    for shift, name in enumerate(("a", "b", "valid", "test")):
        _write(tmp_path / f"{name}.extxyz", shift)
    files = "data.train=[{0}/a.extxyz, {0}/b.extxyz]"
    run, new = tmp_path / "run", tmp_path / "new"
    others = [f"data.{part}={tmp_path / part}.extxyz" for part in ("valid", "test")]
    train(load_config("demo", [files.format(tmp_path), *others, f"output={run}", *SMALL, "training.max_steps=1"]))
    errors = {part: evaluate(run, split=part) for part in ("train", "test")}
    new.mkdir()
    for name in ("a", "b"):
        (tmp_path / f"{name}.extxyz").rename(new / f"{name}.extxyz")
    with pytest.raises(FileNotFoundError, match=r"run 'data\.train=\[NEW_PLACE, \.\.\.\]', all of them"):
        evaluate(run, split="train")
    assert evaluate(run) == errors["test"]
    moved = ["evaluate", str(run), files.format(new), "--split", "train", "--json", "--device", "cpu"]
    assert json.loads(CliRunner().invoke(app, moved).stdout)["errors"]["train"] == pytest.approx(errors["train"])
    train(load_config(run, [files.format(new), "training.max_steps=2"]), resume=True)
    assert [part.path for part in load_config(run).data.parts] == [str(new / f"{name}.extxyz") for name in ("a", "b")]


def test_a_run_goes_on_with_its_split(tmp_path: Path) -> None:
    """Also where a split of the same settings would be drawn otherwise today."""
    data, run = tmp_path / "mine.extxyz", tmp_path / "run"
    _write(data, 0.0)
    settings = [f"data.path={data}", f"output={run}", "data.split.train=3", "data.split.valid=2", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=1"]))
    drawn = Splits.read(run / "splits.json")
    other = replace(drawn, train=drawn.train[::-1].copy(), test=drawn.valid[:1], valid=drawn.valid[1:])
    other.save(run / "splits.json")

    train(load_config("demo", [*settings, "training.max_steps=2"]), resume=True)
    kept = Splits.read(run / "splits.json")
    assert [kept.train.tolist(), kept.valid.tolist()] == [other.train.tolist(), other.valid.tolist()]


def test_a_run_does_not_go_on_backwards(tmp_path: Path) -> None:
    data, run = tmp_path / "mine.extxyz", tmp_path / "run"
    _write(data, 0.0)
    settings = [f"data.path={data}", f"output={run}", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=2"]))
    with pytest.raises(ValueError, match="is at step 2, but the training is to end at step 1"):
        train(load_config("demo", [*settings, "training.max_steps=1"]), resume=True)


def test_a_plain_model_can_be_fine_tuned_with_dens(tmp_path: Path) -> None:
    data = tmp_path / "mine.extxyz"
    _write(data, 0.0)
    settings = [f"data.path={data}", "training.max_steps=1", *SMALL]
    plain = train(load_config("demo", [*settings, f"output={tmp_path / 'plain'}"]))
    dens = [*settings, "task=dens", f"training.init_from={plain}", f"output={tmp_path / 'dens'}"]
    assert (train(load_config("demo", dens)) / "model.safetensors").is_file()


def test_best_by_a_label_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training.best_by=energy"):
        load_config("demo", ["task.forces_weight=0"])
    with pytest.raises(ValueError, match=r"training.best_by=forces"):
        load_config("demo", ["task.energy_weight=0", "training.best_by=energy"])


def test_a_run_does_not_go_on_with_other_files_of_its_parts(tmp_path: Path) -> None:
    """Also where training and validation structures are in files of their own."""
    files, run = {part: tmp_path / f"{part}.extxyz" for part in ("train", "valid")}, tmp_path / "run"
    for file in files.values():
        _write(file, 0.0)
        file.write_text(file.read_text() + file.read_text() * (file == files["valid"]))  # other files
    settings = [*(f"data.{part}={file}" for part, file in files.items()), f"output={run}", *SMALL]
    train(load_config("demo", [*settings, "training.max_steps=1"]))
    longer = load_config("demo", [*settings, "training.max_steps=2"])
    before = files["train"].read_text()
    _write(files["train"], 1.0)
    with pytest.raises(ValueError, match=r"the content of data\.train has changed since this run started"):
        train(longer, resume=True)
    files["train"].write_text(before)
    train(longer, resume=True)


def test_structures_that_the_starting_model_learned_are_named(tmp_path: Path) -> None:
    data, first = tmp_path / "mine.extxyz", tmp_path / "first"
    _write(data, 0.0)
    parts = [f"data.path={data}", "data.split.train=2", "data.split.valid=2", "data.split.test=2", *SMALL]
    train(load_config("demo", [*parts, f"output={first}", "training.max_steps=1"]))
    splits = Splits.load(first / "splits.json", of=data)
    assert warnings_for_split([first], "test", run_data(first).test) == []

    other = replace(splits, train=splits.test, valid=splits.train, test=splits.valid)
    other.save(tmp_path / "other.json")
    config = load_config(
        "demo",
        [f"data.path={data}", f"data.split.file={tmp_path / 'other.json'}", *SMALL, f"training.init_from={first}",
         f"output={tmp_path / 'second'}", "training.max_steps=1"],
    )  # fmt: skip
    (warning,) = seen_before(config, other, load_data(config.data, 0).judged)
    assert "has trained on 2 of the 2 valid structures and 2 of the 2 test structures" in warning
    assert f"data.split.file={first / 'splits.json'}" in warning
    run = train(config)
    assert warning in (run / "train.log").read_text()
    with pytest.warns(UserWarning, match="2 of the 2 test structures"):
        evaluate(run)
    kept = [f"data.path={data}", f"data.split.file={first / 'splits.json'}", *SMALL, f"training.init_from={first}"]
    same = load_config("demo", [*kept, "training.max_steps=1"])
    assert seen_before(same, splits, load_data(same.data, 0).judged) == []


def test_structures_of_a_file_that_has_grown_are_recognized(tmp_path: Path) -> None:
    """As in active learning, which adds frames to the file that the first model has divided."""
    data, first, grown = tmp_path / "mine.extxyz", tmp_path / "first", tmp_path / "grown.extxyz"
    _write(data, 0.0)
    split = ["data.split.train=2", "data.split.valid=2", "data.split.test=2", "training.max_steps=1", *SMALL]
    train(load_config("demo", [f"data.path={data}", *split, f"output={first}"]))
    later = read(data, ":")
    new = later[0].copy()
    new.rattle(0.1, seed=9)
    new.arrays["REF_forces"] = later[0].arrays["REF_forces"]
    write(grown, [*later, new])
    old = Splits.read(first / "splits.json")
    both = Splits(train=old.test, valid=old.train[:1], test=np.array([old.train[1], old.valid[0], 6]))
    about = dict(zip(("size", "sha256"), identity_of(grown), strict=True))
    replace(both, file=grown.name, **about).save(tmp_path / "new.json")
    second = load_config(
        "demo",
        [f"data.path={grown}", f"data.split.file={tmp_path / 'new.json'}", *SMALL, "training.max_steps=1",
         f"training.init_from={first}", f"output={tmp_path / 'second'}"],
    )  # fmt: skip
    run = train(second)
    told = "has trained on 1 of the 1 valid structures and 2 of the 3 test structures (or was chosen by them)"
    assert told in (run / "train.log").read_text() and "data.valid, data.test" in (run / "train.log").read_text()
    with pytest.warns(UserWarning, match="has trained on 2 of the 3 test structures"):
        evaluate(run)
    data.unlink()
    _learned.cache_clear()
    assert seen_before(second, both, load_data(second.data, 0).judged) == [], "cannot be told"


def test_copies_in_a_test_file_are_found_where_one_file_was_divided_twice(tmp_path: Path) -> None:
    """The split of the fine-tuning has no test part; its test file has a copy of a frame that the first run learned."""
    data, test, first = (tmp_path / name for name in ("mine.extxyz", "test.extxyz", "first"))
    _write(data, 0.0)
    settings = [f"data.path={data}", "training.max_steps=1", *SMALL]
    train(load_config("demo", [*settings, "data.split={train: 3, valid: 3, test: 0}", f"output={first}"]))
    old, frames = Splits.read(first / "splits.json"), read(data, ":")
    other = frames[0].copy()
    other.rattle(0.1, seed=9)
    other.arrays["REF_forces"] = frames[0].arrays["REF_forces"]
    write(test, [frames[old.train[0]], other])
    given = [f"data.test={test}", f"data.split.file={first / 'splits.json'}", f"training.init_from={first}"]
    config = load_config("demo", [*settings, *given])
    loaded = load_data(config.data, 0)
    assert loaded.splits is not None and isinstance(loaded.test, Lazy)
    with pytest.warns(UserWarning, match="1 of 2 structures with the geometry of a structure"):
        judged = loaded.test.opened
    (warning,) = seen_before(config, loaded.splits, {"test": judged})
    assert "has trained on 1 of the 2 test structures" in warning


def test_structures_added_to_the_file_of_a_run_are_not_its_own(tmp_path: Path) -> None:
    """Its model has not seen them, whatever its settings name."""
    data, valid, new = (tmp_path / f"{name}.extxyz" for name in ("mine", "valid", "new"))
    _write(data, 0.0)
    frames = read(data, ":")
    write(data, frames[:3])
    write(valid, frames[3])
    settings = [f"data.train={data}", f"data.valid={valid}", "training.max_steps=1", *SMALL]
    run = train(load_config("demo", [*settings, f"output={tmp_path / 'run'}"]))
    write(new, frames[2:])
    said = warnings_for_file([run], new, read_file(new)[0])
    assert len(said) == 1 and "has trained on copies of 1 of the 4 structures" in said[0]
    write(data, [*frames[:3], *frames[4:]])
    _learned.cache_clear()
    assert warnings_for_file([run], new, read_file(new)[0]) == []
    (run / "config.yaml").write_text("training: {oldkey: 1}\n")  # of another version
    _learned.cache_clear()
    assert warnings_for_file([run], new, read_file(new)[0]) == []
