"""Traced, folded and compiled models: the same numbers as the model itself."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ase.build import molecule
from torch.fx.experimental.proxy_tensor import make_fx

from contract.variants import build
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.files import locked
from denskit.geometry.neighbors import build_neighbors
from denskit.models.base import ForceField
from denskit.simulation import compiled_library
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
def test_compiled_potential_is_the_potential(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled in this run or in an earlier one."""
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path))
    small = {"channels": (4, 2), "feature_channels": (4, 2), "head_channels": (2, 2), "ffn_channels": (4, 2)}
    model = build("envelope_no_attention", torch.float64, stress="none", num_heads=1, **small)
    plain, compiled = Potential(model), Potential(model, compile=True)
    batch = batch_of([molecule("H2O")])
    for _ in range(3):
        batch = moved(batch, 0.03)
        torch.testing.assert_close(compiled(batch).forces, plain(batch).forces, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(compiled(batch).energy, plain(batch).energy, rtol=1e-12, atol=0)
    assert compiled._compiled is not None and compiled._compiled[0].backend == "inductor"

    (library,) = tmp_path.rglob("step.pt2")
    copied = pickle.loads(pickle.dumps(compiled))
    torch.testing.assert_close(copied(batch).forces, compiled(batch).forces, rtol=0, atol=0)
    assert list(tmp_path.rglob("step.pt2")) == [library]
    whole = bytearray(library.read_bytes())
    whole[len(whole) // 2] ^= 255
    for damaged in (b"", bytes(whole[:-100]), bytes(whole)):
        library.write_bytes(damaged)
        assert not compiled_library._is_whole(library)
    repaired = Potential(model, compile=True)
    torch.testing.assert_close(repaired(batch).forces, compiled(batch).forces, rtol=0, atol=0)
    assert compiled_library._is_whole(library)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    again = Potential(model, compile=True)
    torch.testing.assert_close(again(batch).forces, compiled(batch).forces, rtol=0, atol=0)
    other = Potential(model_with_other_weights(model), compile=True)
    with pytest.warns(UserWarning, match="not compiled"):
        other(batch)


def fails(*args: object, **kwargs: object) -> object:
    raise RuntimeError("no C++ compiler\nfurther lines")


def model_with_other_weights(model: ForceField) -> ForceField:
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.mul_(1.01)
    return other


def test_the_libraries_used_last_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled_library, "KEPT", 2)
    for number, name in enumerate(("a", "b", "c", "d")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (number, number))
    with locked(tmp_path / "a"):  # being made
        os.utime(tmp_path / "a", (0, 0))
        compiled_library._remove_oldest(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no such permissions")
def test_libraries_that_others_can_write_are_not_loaded(tmp_path: Path) -> None:
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert compiled_library._private(mine) == mine
    assert compiled_library._private(shared) is None
    (tmp_path / "a_file").touch()
    assert compiled_library._private(tmp_path / "a_file" / "below") is None


def test_without_a_compiler_the_graph_is_used_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    model = build("envelope_no_attention", torch.float64, stress="none")
    potential = Potential(model, compile=True)
    batch = batch_of([molecule("H2O")])
    with pytest.warns(UserWarning, match="not compiled, and so slower: RuntimeError: no C\\+\\+ compiler"):
        found = potential(batch)
    torch.testing.assert_close(found.forces, Potential(model)(batch).forces)
