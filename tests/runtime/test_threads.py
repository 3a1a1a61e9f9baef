"""How many threads evaluations take."""

from __future__ import annotations

from contextlib import suppress

import ase.build
import pytest
import torch

from denskit.runtime.threads import few_threads, threads_evaluating
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

from trained import trained

CPU = torch.device("cpu")


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> object:
    """Torch with four threads, as on a machine where nothing is set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(("edges", "threads"), [(0, 1), (72, 1), (4_000, 2), (7_999, 3), (1_000_000, 4)])
def test_few_edges_take_few_threads(edges: int, threads: int) -> None:
    assert threads_evaluating(edges, CPU) == threads
    with few_threads(edges, CPU):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_an_error_leaves_torch_as_it_was() -> None:
    with suppress(KeyError), few_threads(72, CPU):
        raise KeyError
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_the_user_decides_where_he_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_evaluating(72, CPU) == 4


@pytest.mark.usefixtures("four_threads")
def test_a_molecule_is_evaluated_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    potential, seen = Potential(trained()), []
    forward = type(potential.models[0]).forward

    def watched(*args: object, **named: object) -> object:
        seen.append(torch.get_num_threads())
        return forward(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(type(potential.models[0]), "forward", watched)
    potential(batch_of([ase.build.molecule("CH3CH2OH")]))
    assert seen == [1] and torch.get_num_threads() == 4
