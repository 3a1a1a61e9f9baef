"""The checks for authors of models and sources find what they are there to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import denskit
from contract.variants import VARIANTS, build
from denskit.batch import Batch, System
from denskit.data.base import Source, collate
from denskit.data.structure_arrays import StructureArrays
from denskit.models import ForceField, build_force_field
from denskit.models.scaling import Scaling
from denskit.testing import check_model, check_smoothness, check_source, example_systems

Change = Callable[[Batch, dict[str, Any]], dict[str, Any]]


def spoilt(change: Change) -> ForceField:
    """A sound model whose outputs are changed."""
    force_field = build("envelope", torch.float64)
    sound = force_field.forward
    force_field.forward = lambda batch, *given: change(batch, sound(batch, *given))  # type: ignore[method-assign]
    return force_field


def plus(name: str, term: Callable[[Batch], torch.Tensor]) -> Change:
    return lambda batch, out: {**out, name: out[name] + term(batch)} if name in out else out


def _radial(batch: Batch) -> torch.Tensor:
    """Vectors [N, 3] that turn with the structure, but belong to no energy."""
    return torch.zeros_like(batch.positions).index_add(0, batch.built_edges.index[1], batch.edge_vectors())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_ignores_the_encoded_forces_is_named(dtype: torch.dtype) -> None:
    """Without them DeNS does harm, and nothing else would say that a backbone forgot them."""
    force_field = build("envelope", dtype)
    check_model(force_field)
    sound = force_field.backbone.forward
    force_field.backbone.forward = lambda batch, given, *rest: sound(batch, None, *rest)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="does not depend on force_input"):
        check_model(force_field)


@pytest.mark.parametrize("shape", [(1,), (), (3, 1)], ids=["one number", "no component", "a column"])
def test_a_head_of_another_shape_is_named(shape: tuple[int, ...]) -> None:
    """[N, 1] less [N, 3] would train without a word."""
    force_field = build("envelope", torch.float64)
    head = force_field.heads["noise"]
    head.forward = lambda features: features.nodes[1].new_zeros(len(features.nodes[1]), *shape)  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"head 'noise' \('1'\) of Equiformer gave .*; \[atoms, 3\] is wanted"):
        check_model(force_field)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sound_model_passes(dtype: torch.dtype) -> None:
    check_model(build("envelope", dtype))


@pytest.mark.parametrize("heads", [{"charge": "0"}, {"dipole": "1"}, {"noise": "1", "strain": "0+2"}], ids=str)
def test_heads_of_further_tasks_pass(heads: dict[str, str]) -> None:
    """Scalars, vectors and matrices of a task of one's own; a mirror image has the same scalars and matrices."""
    config = VARIANTS["parity"].config
    force_field = build_force_field(config, heads=heads, scaling=Scaling(elements=(1, 6, 8))).double()
    with torch.no_grad():
        for parameter in force_field.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    check_model(force_field.eval())


def test_weights_in_half_precision_are_refused() -> None:
    force_field = build("envelope", torch.float32).half()
    with pytest.raises(ValueError, match=r"weights are in torch.float16; models predict in float32 and float64"):
        force_field.predict(collate(example_systems(force_field), torch.float16)[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (plus("energy", lambda batch: batch.sum_over_atoms(batch.positions[:, 0].square())), "energy rotated"),
        (plus("forces", lambda batch: batch.positions), "forces translated"),
        (plus("energy", lambda batch: batch.atomic_numbers[0].double()), "energy (permuted|in a batch)"),
        (plus("forces", _radial), "forces by finite differences"),
    ],
    ids=["rotation", "translation", "permutation", "gradient"],
)
def test_a_broken_promise_is_named(change: Change, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_model(spoilt(change))


def test_a_jump_at_the_cutoff_is_found() -> None:
    with pytest.raises(AssertionError, match="crosses the cutoff"):
        check_smoothness(build("nonlinear", torch.float64))


class Spoilt(Source):
    """A source whose structures are changed by ``change``."""

    name = "spoilt"
    sizes = None

    def __init__(self, systems: list[System], change: dict[str, Any]) -> None:
        self.systems, self.change = systems, change

    def __len__(self) -> int:
        return len(self.systems)

    def __getitem__(self, index: int) -> System:
        if not 0 <= index < len(self.systems):
            raise IndexError(index)
        return replace(self.systems[index], index=index, **self.change)


def test_an_unsound_source_is_named() -> None:
    systems = example_systems(build("envelope", torch.float64))
    check_source(StructureArrays.from_systems([replace(s, index=i) for i, s in enumerate(systems)], name="here"))
    check_source(Spoilt(systems, {}))
    with pytest.raises(AssertionError, match="energy is not finite"):
        check_source(Spoilt(systems, {"energy": np.nan}))
    with pytest.raises(AssertionError, match="positions is float32"):
        check_source(Spoilt(systems[:1], {"positions": systems[0].positions.astype(np.float32)}))


def test_the_shipped_data_are_sound() -> None:
    path = denskit.__path__[0] + "/data/embedded/ethanol.npz"
    check_source(denskit.read(path))
