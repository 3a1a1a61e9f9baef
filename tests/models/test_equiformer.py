"""Equiformer: what it computed when its fixtures were written, its settings, dropout, heads."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from denskit.batch import System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling

from tolerances import EXACT64

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parent / "fixtures"
SMALL: dict[str, Any] = {
    "num_layers": 2, "channels": (4, 3, 2), "feature_channels": (4, 3, 2), "head_channels": (2, 1, 1), "num_heads": 2,
    "ffn_channels": (4, 3, 2), "num_basis": 4, "radial_hidden": (4,), "num_elements": 9,
}  # fmt: skip


def small(heads: dict[str, str] | None = None, **changes: Any) -> ForceField:
    config = EquiformerConfig.model_validate(SMALL | changes)
    return build_force_field(config, heads=heads or {}, scaling=Scaling(elements=[1, 6, 8]))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that wrote the fixtures."""
    spec = importlib.util.spec_from_file_location("fixtures", ROOT / "scripts" / "make_regression_fixtures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.npz")), ids=lambda path: path.stem)
def test_function_is_unchanged(path: Path, script: ModuleType) -> None:
    """If this fails after a change that was to keep the function: it did not.  Old weights must go on working too."""
    config, weights, expected = script.read(path)
    force_field = script.force_field_of(path.stem)
    assert force_field.config == EquiformerConfig.model_validate(config)
    missing, unexpected = force_field.load_state_dict(weights, strict=False)
    assert set(missing) <= {name for name, _ in force_field.named_buffers()} and not unexpected
    outputs = script.evaluate(force_field)
    assert outputs.keys() == expected.keys()
    for name, value in outputs.items():
        scale = np.sqrt((expected[name] ** 2).mean())
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=10 * EXACT64 * scale)


def test_every_family_has_a_fixture(script: ModuleType) -> None:
    files = {path.stem: path.stat().st_size for path in FIXTURES.glob("*.npz")}
    assert files.keys() == script.FAMILIES.keys()
    assert max(files.values()) < 20_000


def test_defaults_are_the_papers() -> None:
    config = EquiformerConfig()
    assert (config.l_max, config.num_layers, config.cutoff, config.num_basis) == (2, 6, 5.0, 32)
    assert config.radial_basis == "exponential_normal" and not config.envelope


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_channels": (4, 2)}, "head_channels has 2 degrees and channels has 3"),
        ({"message_channels": (4, 2)}, "message_channels has 2 degrees and channels has 3"),
        ({"message_channels": ()}, "message_channels has 0 degrees"),
        ({"message_channels": (4, 2, 0)}, "at least 1 channel a degree is wanted"),
        ({"attention": "dot_product"}, "set messages=linear or attention=mlp"),
        ({"attention": "none", "attention_dropout": 0.1}, "attention_dropout would be ignored"),
        ({"channels": (4, 3, 1)}, "at least 2 channels"),
        ({"forces": "direct", "stress": "strain"}, "direct forces cannot go with it"),
        ({"cutoff": 0.0}, "cutoff"),
        ({"radial_basis": "fourier"}, "radial_basis"),
        ({"chanels": (4, 3, 2)}, "chanels"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EquiformerConfig.model_validate(SMALL | changes)


def test_element_without_embedding_is_refused() -> None:
    with pytest.raises(ValueError, match=r"atomic number 29.*num_elements=30"):
        build_force_field(EquiformerConfig.model_validate(SMALL), heads={}, scaling=Scaling(elements=[1, 29]))


def test_unknown_head_is_refused() -> None:
    with pytest.raises(ValueError, match="'0', '1', '0[+]2', not '2'"):
        small({"quadrupole": "2"})


@pytest.mark.parametrize("rate", ["attention_dropout", "projection_dropout", "output_dropout", "stochastic_depth"])
def test_dropout_acts_in_training_only(rate: str, systems: dict[str, System]) -> None:
    with_it, without = small(**{rate: 0.5}), small()
    without.load_state_dict(with_it.state_dict())
    batch = build_neighbors(collate([systems["ethanol"], systems["water"]])[0], 5.0)
    expected = without.eval()(batch)
    for name, value in with_it.eval()(batch).items():
        assert torch.equal(value, expected[name])
    first, second = with_it.train()(batch), with_it(batch)
    assert not torch.equal(first["energy"], second["energy"])
    torch.stack([value.square().sum() for value in first.values()]).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in with_it.parameters() if p.grad is not None)


def test_smoothness_is_promised_with_an_envelope_and_all_neighbours_only() -> None:
    assert small(envelope=True).backbone.smooth
    assert not small(envelope=True, max_neighbors=20).backbone.smooth
    assert not small().backbone.smooth


def test_initial_distributions() -> None:
    """Linear weights have the variance 1 / fan-in, or 1 / (3 fan-in) when uniform; biases start at zero."""
    wide = {"channels": (64, 32, 32), "feature_channels": (64, 32, 32)}
    for kind, factor in (("normal", 1.0), ("uniform", 1 / 3)):
        force_field = small({"noise": "1"}, **wide, initialisation=kind)
        weight = force_field.backbone.blocks[0].attention.merge_source.weights[0]  # type: ignore[union-attr, index]
        assert weight.var().item() == pytest.approx(factor / 64, rel=0.15)
        for name, parameter in force_field.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any()


def test_force_input_scale() -> None:
    """Encoded are forces in units of the training data's spread, or in those of the published MD17 weights."""
    scaling = Scaling(elements=[1, 6, 8], force_scale=0.5)
    for given, expected in ((None, 2.0), (23.06, 23.06)):
        config = EquiformerConfig.model_validate(SMALL | {"force_input_scale": given})
        force_field = build_force_field(config, heads={"noise": "1"}, scaling=scaling)
        assert force_field.backbone.force_encoding.scale == pytest.approx(expected)  # type: ignore[union-attr]
    assert small().backbone.force_encoding is None


def test_weight_decay_leaves_biases_norms_and_the_basis_alone() -> None:
    force_field = small({"noise": "1"}, radial_basis="gaussian")
    kept = force_field.no_decay_parameters()
    names = {name for name, _ in force_field.named_parameters()}
    assert kept <= names
    assert {"backbone.basis.mean", "backbone.basis.std", "backbone.norm.weights.1", "backbone.norm.bias"} <= kept
    assert {name for name in names if name.endswith("bias")} <= kept
    decays = {name for name in names if "attention_vector" in name or name.endswith("offset") or "linear" in name}
    assert decays and not decays & kept


def test_only_what_is_asked_for_is_computed(systems: dict[str, System]) -> None:
    """Evaluating energy and forces does not run the noise head."""
    force_field = small({"noise": "1"}).eval()
    batch = build_neighbors(collate([systems["water"]])[0], 5.0)
    calls: list[str] = []
    force_field.heads["noise"].register_forward_hook(lambda *_: calls.append("noise"))
    force_field.predict(batch)
    assert not calls
    force_field(batch)
    assert calls == ["noise"]
