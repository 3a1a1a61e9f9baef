"""From OC20's LMDB file to a submission by the program alone: direct forces, DeNS, half precision."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from denskit.cli import app
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


def denskit(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


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
        f"output={output}", "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return output


def _flat(text: str) -> list[tuple[str, str, str]]:
    section, _, values = text.partition("=")
    return [(section, key, json.dumps(value)) for key, value in yaml.safe_load(values).items()]


def test_several_sets_and_their_mean(run: Path, lmdb: Path) -> None:
    result = denskit("evaluate", run, "--data", f"id={lmdb}", "--data", f"ood_ads={lmdb}", "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = json.loads((run / "sets.json").read_text(encoding="utf-8"))
    assert list(found) == ["id", "ood_ads", "mean"]
    assert found["id"] == found["mean"]
    for said in ("id", "ood_ads", "mean", "efwt_percent", "forces_cosine"):
        assert said in result.output


def test_a_submission_at_once_and_merged(run: Path, lmdb: Path, tmp_path: Path) -> None:
    sets = [word for name in ("id", "ood_ads") for word in ("--data", f"{name}={lmdb}")]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{run}", "--data", "id"], "write NAME=PATH"),
        (["evaluate", "{run}", "--data", "id=a", "--data", "id=b"], "given twice"),
        (["evaluate", "{run}", "--data", "id=a", "data.test=b"], "not both"),
        (["evaluate", "{run}", "--data", "id=a", "--split", "valid"], "would be ignored"),
        (["evaluate", "{run}", "--data", "id=nowhere.lmdb"], "no file nowhere.lmdb"),
        (["predict", "{run}", "-o", "a.npz"], "give one file of structures, or --data"),
        (["predict", "{run}", "--data", "id=a", "-o", "a.extxyz"], "add --format evalai"),
        (["submission", "merge", "id=nowhere.npz", "-o", "a.npz"], "no file nowhere.npz"),
    ],
)
def test_what_does_not_go_together_is_said(run: Path, arguments: list[str], message: str) -> None:
    result = denskit(*(argument.format(run=run) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.output
