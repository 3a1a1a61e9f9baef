"""From OC20's LMDB file to a submission by the program alone: direct forces, DeNS, half precision."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from cli_calls import denskit
from data.published import new_object, pickled, write_lmdb
from denskit.data.readers.lmdb import LmdbFile
from denskit.data.readers.unpickle import load_attributes
from denskit.models.model_file import read_header

SETTINGS = (
    "model={name: equiformer, forces: direct, num_layers: 1, channels: [8, 4], feature_channels: [8, 4], "
    "head_channels: [4, 2], num_heads: 2, ffn_channels: [8, 4], num_basis: 8, radial_hidden: [8], cutoff: 4.0, "
    "max_neighbors: 8, num_elements: 90}",
    "task={name: dens, loss: published_oc20, energy_weight: 2, forces_weight: 100, probability: 0.5, sigma: 0.1, "
    "corruption_ratio: 0.5, coefficient: 10, coefficient_decay: none}",
    "training={max_steps: 4, batch_size: 4, lr: 1.0e-3, min_lr: 0.01 lr, warmup: 0.05 epochs, warmup_lr: 0.2 lr, "
    "ema_decay: 0.999, ema_warmup: false, clip_norm: 100, amp: bf16, log_every: 2, evaluate_every: 4 steps, "
    "evaluate_structures: 3}",
)


@pytest.fixture(scope="module")
def lmdb(data_dir: Path) -> Path:
    return data_dir / "oc20_s2ef_sample.lmdb"


@pytest.fixture(scope="module")
def run(lmdb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps.  Frames are divided at random, so that the model knows the elements of all systems."""
    output = tmp_path_factory.mktemp("runs") / "oc20"
    result = denskit(
        "train", "equiformer", "data.name=oc20", f"data.path={lmdb}", "data.split.mode=random",
        "training.scale=force_rms",
        *(f"{section}.{key}={value}" for text in SETTINGS for section, key, value in _flat(text)),
        f"output={output}", "device=cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return output


def _flat(text: str) -> list[tuple[str, str, str]]:
    section, _, values = text.partition("=")
    return [(section, key, json.dumps(value)) for key, value in yaml.safe_load(values).items()]


def test_several_sets_and_their_mean(run: Path, lmdb: Path) -> None:
    result = denskit("evaluate", run, f"id={lmdb}", f"ood_ads={lmdb}", "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = json.loads((run / "sets.json").read_text(encoding="utf-8"))
    assert list(found) == ["id", "ood_ads", "mean"]
    assert found["id"] == found["mean"]
    for said in ("id", "ood_ads", "mean", "efwt_percent", "forces_cosine"):
        assert said in result.output


def test_a_submission_at_once_and_merged(run: Path, lmdb: Path, tmp_path: Path) -> None:
    sets = [f"id={lmdb}", f"ood_ads={lmdb}"]
    commands: list[list[object]] = [
        ["predict", run, *sets, "--format", "evalai", "-o", tmp_path / "both.npz"],
        ["predict", run, lmdb, "--format", "evalai", "-o", tmp_path / "one.npz"],
        ["submission", "merge", f"id={tmp_path}/one.npz", f"ood_ads={tmp_path}/one.npz", "-o", tmp_path / "m.npz"],
    ]
    for command in commands:
        result = denskit(*command)
        assert result.exit_code == 0, result.output
    with np.load(tmp_path / "both.npz") as both, np.load(tmp_path / "m.npz") as merged:
        assert set(both.files) == set(merged.files)
        assert all(np.array_equal(both[name], merged[name]) for name in both.files)
        assert len(both["id_ids"]) == 150
        assert sorted(both["id_ids"].tolist()) == both["id_ids"].tolist()
        assert np.isfinite(both["id_forces"]).all()


def test_the_model_file_is_plain(run: Path) -> None:
    header = read_header(run / "model.safetensors")
    assert header["metadata"]["averaged_weights"] is True
    assert header["metadata"]["run"]["training"]["amp"] == "bf16"


# --- files with something wrong -----------------------------------------------------------------------------------


class Attack:
    """Pickles as a call of ``os.system``."""

    def __reduce__(self) -> Any:
        return os.system, ("touch attacked",)


def _attributes(lmdb: Path, **changes: Any) -> dict[str, Any]:
    """Those of the first structure, changed; None: without."""
    raw = LmdbFile(lmdb).get("0")
    assert raw is not None
    found = {name: np.array(value) for name, value in load_attributes(raw, "here").items()}
    kept = {name: value for name, value in (found | changes).items() if value is not None}
    return {name: torch.from_numpy(value) for name, value in kept.items()}


def _alone(lmdb: Path) -> bytes:
    """One free atom of the first structure in a cell of 40 Å: nothing is near it."""
    attributes = _attributes(lmdb)
    of_atoms = {name: attributes[name][-1:] for name in ("pos", "atomic_numbers", "tags", "fixed", "force")}
    return pickled(new_object({**attributes, **of_atoms, "cell": 40 * torch.eye(3)[None], "natoms": 1}))


def _bad(lmdb: Path, folder: Path) -> dict[str, Path]:
    sound = pickled(new_object(_attributes(lmdb)))
    flat = pickled(new_object(_attributes(lmdb, cell=np.zeros((1, 3, 3), np.float32))))
    (folder / "cut.lmdb").write_bytes(lmdb.read_bytes()[:100_000])
    return {
        "attack": write_lmdb(folder / "attack.lmdb", [sound, pickle.dumps(Attack())]),
        "cut": folder / "cut.lmdb",
        "flat": write_lmdb(folder / "flat.lmdb", [sound, flat]),
        "without fixed": write_lmdb(folder / "free.lmdb", [pickled(new_object(_attributes(lmdb, fixed=None)))]),
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("attack", r"attack.lmdb, record 1: the pickle asks for posix.system"),
        ("cut", r"cut.lmdb is truncated: it has 100000 bytes"),
        ("flat", r"flat.lmdb, record 1: periodic along directions whose cell vectors are zero or linearly dependent"),
        ("without fixed", r"free.lmdb, record 0 does not say which atoms are fixed"),
    ],
)
def test_bad_files_are_refused_by_name(
    run: Path, lmdb: Path, name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = _bad(lmdb, tmp_path)[name]
    for command in (["evaluate", run, f"id={file}"], ["predict", run, file, "-o", "out.extxyz"]):
        result = denskit(*command, "--device", "cpu")
        assert result.exit_code == 1
        assert message in " ".join(result.output.split())
    assert not (tmp_path / "attacked").exists()


def test_finished_sets_outlast_a_damaged_one(run: Path, lmdb: Path, tmp_path: Path) -> None:
    """Records are read when they are needed, so a damaged one is found after the sets before it."""
    whole = write_lmdb(tmp_path / "whole.lmdb", [pickled(new_object(_attributes(lmdb)))])
    sets = [f"id={whole}", f"ood={_bad(lmdb, tmp_path)['flat']}"]
    result = denskit("evaluate", run, *sets, "-o", tmp_path / "errors", "--device", "cpu")
    said = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "flat.lmdb, record 1: periodic along directions" in said
    assert "errors of id are in" in said and f"judge the others alone, with -o ANOTHER_FOLDER: {sets[1]}" in said
    kept = json.loads((tmp_path / "errors" / "sets.json").read_text(encoding="utf-8"))
    assert list(kept) == ["id"] and "forces_mae_meV_per_A" in kept["id"]

    output = tmp_path / "both.npz"
    result = denskit("predict", run, *sets, "--format", "evalai", "-o", output, "--device", "cpu")
    assert result.exit_code == 1 and not output.exists()
    assert f"merge id={tmp_path / 'both_finished_id.npz'} ood=ood.npz -o {output}" in result.output
    rest = denskit("predict", run, whole, "--format", "evalai", "-o", tmp_path / "ood.npz", "--device", "cpu")
    assert rest.exit_code == 0, rest.output
    merged = [f"id={tmp_path / 'both_finished_id.npz'}", f"ood={tmp_path / 'ood.npz'}"]
    assert denskit("submission", "merge", *merged, "-o", output).exit_code == 0
    with np.load(output) as both:
        assert np.array_equal(both["id_forces"], both["ood_forces"])


def test_one_bad_structure_does_not_stop_a_relaxation(
    run: Path, lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = _bad(lmdb, tmp_path)
    for name in ("attack", "flat"):
        result = denskit("relax", run, bad[name], "-o", tmp_path / name, "--steps", 1, "--fmax", 0, "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert "1 not converged, 1 refused" in result.output
    assert not (tmp_path / "attacked").exists()


def test_which_atoms_are_fixed_may_be_said(run: Path, lmdb: Path, tmp_path: Path) -> None:
    """By their tags, which in OC20 say the same as ``fixed``."""
    whole = write_lmdb(tmp_path / "whole.lmdb", [pickled(new_object(_attributes(lmdb)))])
    commands: list[list[object]] = [
        ["predict", run, whole, "--format", "evalai", "-o", tmp_path / "whole.npz"],
        ["predict", run, _bad(lmdb, tmp_path)["without fixed"], "--format", "evalai", "-o", tmp_path / "tags.npz",
         "data.fixed=tags"],
    ]  # fmt: skip
    for command in commands:
        result = denskit(*command, "--device", "cpu")
        assert result.exit_code == 0, result.output
    with np.load(tmp_path / "whole.npz") as first, np.load(tmp_path / "tags.npz") as second:
        assert all(np.array_equal(first[name], second[name]) for name in first.files)


def test_no_tags_and_no_neighbours_are_no_errors(run: Path, lmdb: Path, tmp_path: Path) -> None:
    untagged = pickled(new_object(_attributes(lmdb, tags=None)))
    file = write_lmdb(tmp_path / "odd.lmdb", [untagged, _alone(lmdb)])
    result = denskit("evaluate", run, f"id={file}", "-o", tmp_path, "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "sets.json").read_text(encoding="utf-8"))["id"]
    assert found and np.isfinite(list(found.values())).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{run}", "id="], "write FILE or NAME=FILE"),
        (["evaluate", "{run}", "id=a", "id=b"], "two sets are called id"),
        (["evaluate", "{run}", "data.test=b"], "give the file alone"),
        (["evaluate", "{run}", "data.0000.lmdb"], "no file data.0000.lmdb"),
        (["evaluate", "{run}", "id=a", "--split", "valid"], "would be ignored"),
        (["evaluate", "{run}", "id=nowhere.lmdb"], "no file nowhere.lmdb"),
        (["predict", "{run}", "-o", "a.npz"], "[NAME=]FILE"),
        (["predict", "{run}", "id=a", "ood=b", "-o", "a.extxyz"], "add --format evalai"),
        (["submission", "merge", "id=nowhere.npz", "-o", "a.npz"], "no file nowhere.npz"),
    ],
)
def test_what_does_not_go_together_is_said(run: Path, arguments: list[str], message: str) -> None:
    result = denskit(*(argument.format(run=run) for argument in arguments))
    assert result.exit_code == (2 if message == "[NAME=]FILE" else 1)  # an argument is missing
    assert message in result.output
