"""Traced, folded and compiled models: the same numbers as the model itself."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from ase.build import molecule
from torch.fx.experimental.proxy_tensor import make_fx

from contract.variants import build
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.simulation.compiled import CompiledModel, fold
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of


def moved(batch: Batch, by: float) -> Batch:
    return replace(batch, positions=batch.positions + by * torch.randn(batch.positions.shape, dtype=torch.float64))


@pytest.mark.parametrize("name", ["direct", "envelope_no_attention"])
def test_the_traced_graph_is_the_model(systems: dict[str, System], name: str) -> None:
    """Also after atoms have moved, with other numbers of edges: more than there was room for, too."""
    model = build(name, torch.float64).requires_grad_(False)
    outputs = ("energies", "forces", "stress") if name.startswith("envelope") else ("energies", "forces")
    compiled = CompiledModel(model, outputs, backend="eager")
    batch = collate([systems["triclinic"], systems["copper"]], torch.float64)[0]
    for cutoff in (3.2, 3.1, model.cutoff):  # the second fits into the first graph
        batch = build_neighbors(moved(batch, 0.05), cutoff)
        found, wanted = compiled(batch), model(batch, outputs=outputs)
        for output in outputs:
            torch.testing.assert_close(found[output], wanted[output].detach(), rtol=1e-10, atol=1e-11)


def test_folding_leaves_what_is_written_to() -> None:
    def counts(x: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(3, dtype=torch.float64)
        sums[:2] += x[:2]
        return sums * (torch.arange(3, dtype=torch.float64) + 1).sqrt()

    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    graph = fold(make_fx(counts)(x))
    for _ in range(3):
        torch.testing.assert_close(graph(x), counts(x))
    targets = [str(node.target) for node in graph.graph.nodes]
    assert not any("sqrt" in target or "arange" in target for target in targets)
    assert any("zeros" in target for target in targets)


def test_weights_are_folded() -> None:
    """What is made of weights alone is not made again at every step."""
    model = build("envelope", torch.float64).requires_grad_(False)
    batch = build_neighbors(batch_of([molecule("H2O")]), model.cutoff)
    inputs = (batch.positions,)

    def energies(positions: torch.Tensor) -> torch.Tensor:
        return model(replace(batch, positions=positions), outputs=("energies",))["energies"]

    graph = make_fx(energies)(*inputs)
    before = len(graph.graph.nodes)
    assert len(fold(graph).graph.nodes) < 0.9 * before


@pytest.mark.one_thread
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_potential_is_the_potential() -> None:
    small = {"channels": (4, 2), "feature_channels": (4, 2), "head_channels": (2, 2), "ffn_channels": (4, 2)}
    model = build("envelope_no_attention", torch.float64, stress="none", num_heads=1, **small)
    plain, compiled = Potential(model), Potential(model, compile=True)
    batch = batch_of([molecule("H2O")])
    for _ in range(3):
        batch = moved(batch, 0.03)
        torch.testing.assert_close(compiled(batch).forces, plain(batch).forces, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(compiled(batch).energy, plain(batch).energy, rtol=1e-12, atol=0)
    assert compiled._compiled is not None and compiled._compiled[0].backend == "inductor"


def test_without_a_compiler_the_graph_is_used_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no C++ compiler\nfurther lines")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    model = build("envelope_no_attention", torch.float64, stress="none")
    potential = Potential(model, compile=True)
    batch = batch_of([molecule("H2O")])
    with pytest.warns(UserWarning, match="not compiled, and so slower: RuntimeError: no C\\+\\+ compiler"):
        found = potential(batch)
    torch.testing.assert_close(found.forces, Potential(model)(batch).forces)
