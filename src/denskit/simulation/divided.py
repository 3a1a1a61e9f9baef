"""A potential whose systems are divided among processes of this machine: replicas on all cores."""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import pickle
import signal
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, select
from denskit.models.model_file import Model
from denskit.runtime.interrupt import STOPPING
from denskit.runtime.threads import cores
from denskit.simulation.neighbor_list import Candidates
from denskit.simulation.potential import Evaluation, Potential

Arrays = dict[str, np.ndarray]  # tensors by field: numpy travels in messages, while torch would open a file for each
_PATIENCE = 5.0  # s that a process has to end
_MOVING = ("positions", "cell")
_LASTING = [item.name for item in fields(Batch) if item.name not in (*_MOVING, "edges")]


class DividedPotential(Potential):
    """A :class:`Potential` that evaluates a share of the systems in each of several processes.

    Results are those of one process to rounding.  This process evaluates the first share; the others are started with
    the potential, keep their neighbour lists, and end with it; a copy or pickle evaluates in one process.  Unless
    OMP_NUM_THREADS is set, torch gets a process's part of the cores as its threads, in this process too.

    ``made``: further arguments of :class:`Potential`.  Raises ValueError as it does, and for fewer than 1 process or
    several that are not on the CPU.
    """

    def __init__(self, models: Model | Sequence[Model], *, processes: int, **made: Any) -> None:
        super().__init__(models, **made)
        if processes < 1 or (processes > 1 and self.device.type != "cpu"):
            raise ValueError(f"processes is {processes} on the device {self.device}; give 1, or more on the CPU")
        self._helpers: list[_Helper] = []
        self._shares: _Shares | None = None
        self._of_all: Candidates | None = None  # for broken(), while evaluations keep those of the own share
        if processes > 1:
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(max(1, cores() // processes))
            threads = torch.get_num_threads()
            content = pickle.dumps(Potential(self.models, **{**made, "device": None, "dtype": None}))
            self._helpers = [_Helper.start(content, threads) for _ in range(processes - 1)]
        self._end = weakref.finalize(self, _end_all, self._helpers)
        atexit.register(self._end)  # before multiprocessing waits for processes that wait for us

    def __call__(self, batch: Batch, *, stress: bool | None = None) -> Evaluation:
        """Evaluate a batch (see :class:`Potential`).  Raises ConnectionError where a process has died."""
        with self.lock:
            return self._divided(batch, stress)

    def _divided(self, batch: Batch, stress: bool | None) -> Evaluation:
        if not self._helpers or batch.num_systems == 1:
            return super().__call__(batch, stress=stress)
        if self._shares is None or not self._shares.are_of(batch):
            self._check(batch)  # here, since the other processes do not warn
            self._shares = _Shares.of(batch, self.processes)
        own, *others = self._shares.moved(batch)
        busy = list(zip(self._helpers, others, strict=False))
        for helper, share in busy:
            helper.ask(share, stress)
        try:
            first: Evaluation | ValueError = super().__call__(own, stress=stress)
        except ValueError as error:
            first = error
        found = [first, *(helper.answer() for helper, _ in busy)]
        sound = [result for result in found if isinstance(result, Evaluation)]
        if len(sound) < len(found):
            return super().__call__(batch, stress=stress)  # raises the error with the number of the system in the batch
        present = _present(sound[0])
        return Evaluation(**{name: torch.cat([getattr(share, name) for share in sound]) for name in present})

    def broken(self, batch: Batch) -> Tensor:
        """Systems [B] that cannot be evaluated (see :class:`Potential`), found in this process."""
        if not self._helpers or batch.num_systems == 1:
            return super().broken(batch)
        with self.lock:
            own, self._candidates = self._candidates, self._of_all
            try:
                return super().broken(batch)
            finally:
                self._of_all, self._candidates = self._candidates, own

    @property
    def processes(self) -> int:
        """Their number, this one included."""
        return 1 + len(self._helpers)

    def forget(self) -> None:
        """Search for neighbours at the next call, in all processes."""
        with self.lock:
            super().forget()
            self._of_all = None
            for helper in self._helpers:
                helper.send(None)

    def close(self) -> None:
        """End the other processes; further calls are evaluated in this one."""
        with self.lock:
            self._end()
            self._helpers = []

    def __getstate__(self) -> dict[str, Any]:
        """Without the other processes: a copy evaluates in its own."""
        return {**super().__getstate__(), "_helpers": [], "_shares": None, "_of_all": None, "_end": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._end = weakref.finalize(self, _end_all, self._helpers)


@dataclass(frozen=True)
class _Shares:
    """A batch divided into contiguous systems, of about equally many atoms."""

    kept: dict[str, Tensor]  # copies of all but positions and cells: the caller may change his own
    parts: tuple[Batch, ...]

    @classmethod
    def of(cls, batch: Batch, count: int) -> Self:
        middle = (batch.n_atoms.cumsum(0) - 0.5 * batch.n_atoms) / batch.n_atoms.sum()
        place = (middle * min(count, batch.num_systems)).long()
        parts = (select(batch, place == number) for number in range(count))
        kept = {name: getattr(batch, name).clone() for name in _LASTING}
        return cls(kept, tuple(part for part in parts if part.num_systems))

    def are_of(self, batch: Batch) -> bool:
        """Whether the batch differs at most in positions and cells."""
        return all(torch.equal(getattr(batch, name), own) for name, own in self.kept.items())

    def moved(self, batch: Batch) -> list[Batch]:
        """The parts with the positions and cells of the batch."""
        positions = batch.positions.detach().split([part.num_atoms for part in self.parts])
        cells = batch.cell.detach().split([part.num_systems for part in self.parts])
        return [
            replace(part, positions=position, cell=cell)
            for part, position, cell in zip(self.parts, positions, cells, strict=True)
        ]


class _Helper:
    """A process that evaluates batches."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process, self.connection = process, connection
        self._known: Tensor | None = None  # atomic numbers of the systems that the process has
        self._asked = 0  # the number of the last question: answers to others were interrupted, and are left out

    @classmethod
    def start(cls, content: bytes, threads: int) -> Self:
        context = mp.get_context("spawn")  # a fork would copy the locks of torch's threads
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, content, threads), daemon=True)
        process.start()
        there.close()
        return cls(process, here)

    def ask(self, batch: Batch, stress: bool | None) -> None:
        known = batch.atomic_numbers is self._known
        names = _MOVING if known else (*_MOVING, *_LASTING)
        self._asked, self._known = self._asked + 1, batch.atomic_numbers
        self.send((self._asked, stress, _arrays(batch, names)))

    def answer(self) -> Evaluation | ValueError:
        number, found = 0, None
        while number != self._asked:
            try:
                number, found = self.connection.recv()
            except (EOFError, OSError) as error:
                raise self._lost() from error
        if isinstance(found, Exception):
            if isinstance(found, ValueError):
                return found
            raise found
        assert found is not None
        return Evaluation(**_tensors(found))

    def send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._lost() from error

    def end(self) -> None:
        self.connection.close()
        self.process.join(_PATIENCE)
        self.process.kill()

    def _lost(self) -> ConnectionError:
        self.process.join(1.0)
        return ConnectionError(
            f"process {self.process.pid}, which evaluated a share of the systems, has ended (exit code "
            f"{self.process.exitcode}): out of memory or killed. Continue with --resume, perhaps with fewer processes"
        )


def _end_all(helpers: Sequence[_Helper]) -> None:
    for helper in helpers:
        helper.end()


def _serve(connection: Connection, content: bytes, threads: int) -> None:
    """Evaluate batches until the other end closes."""
    # all processes of a terminal or a job get these: the first one decides
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", UserWarning)  # the first process says the same
    potential: Potential = pickle.loads(content)  # from the process that started this one
    batch: Batch | None = None
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if message is None:
                potential.forget()
                continue
            number, stress, arrays = message
            given: dict[str, Any] = _tensors(arrays)
            batch = Batch(**given) if batch is None or "n_atoms" in given else replace(batch, **given)
            try:
                answer: Arrays | Exception = _arrays(found := potential(batch, stress=stress), _present(found))
            except Exception as error:
                answer = error
            connection.send((number, answer))


def _present(found: Evaluation) -> list[str]:
    return [item.name for item in fields(Evaluation) if getattr(found, item.name) is not None]


def _arrays(container: Batch | Evaluation, names: Sequence[str]) -> Arrays:
    return {name: getattr(container, name).detach().numpy() for name in names}


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
