from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import molecule
from safetensors.torch import load_file, save_file

from denskit.models import build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.model_file import load_model, read_header, save_model
from denskit.models.scaling import Scaling
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

SMALL = EquiformerConfig(
    num_layers=1, channels=(4, 2), feature_channels=(4, 2), head_channels=(2, 2), num_heads=1, ffn_channels=(4, 2),
    num_basis=4, radial_hidden=(4,),
)  # fmt: skip


def _saved(path: Path) -> Path:
    scaling = Scaling(elements=[1, 8], references={"O": -432.123456789012}, energy_scale=0.7, force_scale=0.7)
    save_model(path, build_force_field(SMALL, heads={"noise": "1"}, scaling=scaling), {"about": "a test"})
    return path


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    path = _saved(tmp_path / "model.safetensors")
    first, second = load_model(path), load_model(path)
    assert first.config == SMALL
    assert float(first.scaling.references[8]) == -432.123456789012
    assert first.scaling.references.dtype == torch.float64
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not first.training
    assert read_header(path)["metadata"] == {"about": "a test"}


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    tied = build_force_field(SMALL, heads={}, scaling=Scaling(elements=[1, 8]))
    tied.backbone.again = tied.heads["energy"]
    save_model(tmp_path / "model.safetensors", tied, {})
    kept = load_file(tmp_path / "model.safetensors")
    for name, weight in tied.heads["energy"].state_dict().items():
        assert torch.equal(kept[f"backbone.again.{name}"], weight)
        assert torch.equal(kept[f"heads.energy.{name}"], weight)


def test_a_run_folder_stands_for_its_model(tmp_path: Path) -> None:
    _saved(tmp_path / "model.safetensors")
    assert load_model(tmp_path).config == SMALL
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no model file at .*empty/model.safetensors"):
        load_model(tmp_path / "empty")


def test_predictions_need_no_neighbours_built_before(tmp_path: Path) -> None:
    force_field = load_model(_saved(tmp_path / "model.safetensors"), dtype=torch.float64)
    batch = batch_of([molecule("H2O")], "cpu").to(dtype=torch.float64)
    found = force_field.predict(batch)["forces"]
    assert torch.equal(found, force_field.predict(SMALL.with_neighbors(batch))["forces"])


def test_precision_by_name(tmp_path: Path) -> None:
    path = _saved(tmp_path / "model.safetensors")
    for dtype in ("float64", torch.float64, np.float64):
        assert next(load_model(path, dtype=dtype).parameters()).dtype == torch.float64
        assert Potential(path, dtype=dtype).dtype == torch.float64
    with pytest.raises(ValueError, match="dtype is 'double precision'; give float32 or float64"):
        load_model(path, dtype="double precision")


_HEADER = {"format_version": 1, "model": {}, "heads": {}, "scaling": {}}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "without a Denskit header"),
        ("no json", "cannot be read"),
        ("[1]", "cannot be read"),
        (json.dumps({"format_version": 1}), "incomplete"),
        (json.dumps({"format_version": 1, "model": {}}), "incomplete"),
        *((json.dumps(_HEADER | {"metadata": wrong}), "incomplete") for wrong in ([1], 3, {"run": 5})),
        (json.dumps(_HEADER | {"metadata": {"run": {"data": "x"}}}), "incomplete"),
        (json.dumps({"format_version": 99, "model": {}}), "format version 99"),
    ],
)
def test_foreign_and_damaged_headers_are_named(tmp_path: Path, header: str | None, message: str) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata=None if header is None else {"denskit": header})
    with pytest.raises(ValueError, match=f"foreign.safetensors.*{message}"):
        read_header(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = _saved(tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="model.safetensors is not a safetensors file, or it is truncated"):
        load_model(path)


def test_a_failed_save_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _saved(tmp_path / "model.safetensors")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        _saved(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "model.safetensors"
    force_field = build_force_field(SMALL, heads={}, scaling=Scaling(elements=[1, 8]))
    name, weights = next(iter(force_field.named_parameters()))
    weights.data.view(-1)[0] = value
    save_model(path, force_field, {})
    with pytest.raises(ValueError, match=rf"model.safetensors: 1 of the \d+ numbers of {name} are NaN or infinite"):
        load_model(path)
