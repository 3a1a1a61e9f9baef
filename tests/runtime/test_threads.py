"""How many threads evaluations take."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import ase.build
import pytest
import torch

from denskit.runtime.openmp import wait_briefly
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
@pytest.mark.parametrize(("edges", "threads"), [(0, 1), (72, 1), (2_000, 2), (3_999, 3), (1_000_000, 4)])
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


def test_idle_threads_sleep_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    wait_briefly()
    assert int(os.environ["GOMP_SPINCOUNT"]) <= 10_000


@pytest.mark.parametrize("given", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_the_user_decides_how_long_threads_wait(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    wait_briefly()
    assert os.environ == given


def test_the_program_says_so_before_torch_is_loaded() -> None:
    """PyTorch's OpenMP reads the variable once."""
    script = (
        "import os, sys, typer.testing, denskit.cli as cli\n"
        "cli.wait_briefly = lambda: print('torch' in sys.modules)\n"
        "print(typer.testing.CliRunner().invoke(cli.app, ['doctor']).output)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("False")
