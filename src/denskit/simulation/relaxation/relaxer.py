"""Relaxation of many structures at once: those that are done leave the batch, new ones take their place.

Every structure is relaxed as if it were alone: forces on fixed atoms are zero, inner products, step lengths and
convergence are its own.  Coordinates and histories are in float64, whatever the model's precision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System, select
from denskit.runtime.memory import out_of_memory
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation.results import Frame, Relaxed, exploded, refused, to_numpy, unevaluated
from denskit.simulation.relaxation.running import Running
from denskit.simulation.relaxation.settings import RelaxationSettings


class EnergyAndForces(Protocol):
    """What a relaxation needs of a potential; :class:`denskit.simulation.potential.Potential` is one."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def stress(self) -> bool:
        """Whether evaluations have stresses."""
        ...

    def __call__(self, batch: Batch) -> Evaluation:
        """Evaluate structures.  ValueError: one of them cannot be evaluated."""
        ...

    def broken(self, batch: Batch) -> Tensor:
        """Which systems [B] cannot be evaluated."""
        ...

    def check_elements(self, system: System) -> None:
        """ValueError: an element that it does not know."""
        ...


class Structures(Protocol):
    """Structures by position: any source of data, or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> System: ...


class Relaxer:
    """Relaxes all structures of a source, as many at a time as ``batch_atoms`` atoms allow (at least one).

    Each :meth:`step` evaluates the structures under way once and moves them once.  Running out of memory halves the
    batch; what had to leave waits with its coordinates and history, and goes on from there.

    Args:
        potential: energies and forces; stress too, where cells relax.
        source: the structures.
        settings: optimizer, convergence, cells.
        batch_atoms: atoms evaluated at once.
        say: told what a user should know while it runs.
        observe: given every evaluated geometry, for trajectories.

    Raises:
        ValueError: Cells are to relax, and the potential has no stress.
    """

    def __init__(
        self,
        potential: EnergyAndForces,
        source: Structures,
        settings: RelaxationSettings,
        *,
        batch_atoms: int = 1000,
        say: Callable[[str], None] = lambda text: None,
        observe: Callable[[Frame], None] | None = None,
    ) -> None:
        if settings.cell is not None and not potential.stress:
            raise ValueError("cells relax by their stress, and this potential gives none: use a model with stress")
        self.potential = potential
        self.source = source
        self.settings = settings
        self.batch_atoms = batch_atoms
        self.say = say
        self.observe = observe
        self.running: Running | None = None
        self.suspended: deque[Running] = deque()  # one structure each, on the CPU
        self.waiting: deque[int] = deque(range(len(source)))

    def restore(self, finished: Collection[int], running: Running | None) -> None:
        """Go on where another run was: without what it finished, and from its coordinates and histories."""
        under_way: set[int] = set()
        if running is not None:
            index = running.geometry.systems["index"]
            kept = running.select(~torch.isin(index, torch.tensor(sorted(finished), dtype=index.dtype)))
            self.suspended = _apart(kept)
            under_way = set(kept.geometry.systems["index"].tolist())
        self.waiting = deque(i for i in range(len(self.source)) if i not in finished and i not in under_way)

    @property
    def done(self) -> bool:
        """Nothing is left to do."""
        return self.running is None and not self.suspended and not self.waiting

    def under_way(self) -> Running | None:
        """All structures that have begun and are not done, on the CPU: what :meth:`restore` takes."""
        parts = [*([] if self.running is None else [self.running.to("cpu")]), *self.suspended]
        return Running.join(parts) if parts else None

    def step(self) -> list[Relaxed]:
        """Evaluate and move all structures under way once; the structures that are done with it."""
        entering, turned_away = self._entering()
        if self.running is None and not entering:
            return turned_away
        try:
            if entering:
                parts = [part.to(self.potential.device) for part in entering]
                self.running = Running.join(parts if self.running is None else [self.running, *parts])
                entering = []
            assert self.running is not None
            return turned_away + self._advance(self.running)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        # outside the handler: the error's traceback, which holds the memory, is gone here
        return turned_away + self._halve(entering)

    def _entering(self) -> tuple[list[Running], list[Relaxed]]:
        """What fills the batch up, from what was suspended, then from the source; and what is refused."""
        atoms = 0 if self.running is None else int(self.running.n_atoms.sum())
        entering: list[Running] = []
        turned_away: list[Relaxed] = []
        while self.suspended or self.waiting:
            candidate = self.suspended[0] if self.suspended else self._begin(self.waiting[0])
            if isinstance(candidate, Running):
                atoms += int(candidate.n_atoms.sum())
                if atoms > self.batch_atoms and (self.running is not None or entering):
                    break
                entering.append(candidate)
            else:
                turned_away.append(candidate)
            (self.suspended or self.waiting).popleft()
        return entering, turned_away

    def _begin(self, index: int) -> Running | Relaxed:
        """A structure before its first move, or why it is not begun."""
        try:
            system = self.source[index]
        except ValueError as error:  # a record that cannot be read is no reason to stop
            return refused(index, None, "refused", str(error))
        with_cell = self.settings.cell is not None
        if with_cell and not system.pbc.all():
            axes = "".join(axis for axis, repeats in zip("xyz", system.pbc, strict=True) if repeats)
            found = f"periodic along {axes} only" if axes else "not periodic"
            message = f"{found}: it has no volume, so its cell cannot relax; relax it without cell"
            return refused(index, system, "refused", message)
        try:
            self.potential.check_elements(system)
        except ValueError as error:
            return refused(index, system, "unknown_element", str(error))
        return Running.begin(system, index, self.settings.optimizer, with_cell=with_cell)

    def _advance(self, running: Running) -> list[Relaxed]:
        batch = running.batch()
        failures = self._failures(batch)
        if failures:
            failed = torch.zeros(running.num_systems, dtype=torch.bool)
            failed[list(failures)] = True
            lost = self._lost(running, failures)
            self.running = _or_none(running.select(~failed.to(batch.positions.device)))
            return lost
        evaluation = self.potential(batch)
        forces = running.forces(batch, evaluation, self.settings.cell)
        longest = running.geometry.longest(forces)
        sound = torch.isfinite(evaluation.energy) & torch.isfinite(longest)
        converged = longest < self.settings.fmax
        done = ~sound | converged | (running.geometry.systems["moves"] >= self.settings.steps)

        kept = running.select(~done) if bool(done.any()) else running
        if kept.num_systems:
            own = (~done)[running.geometry.system]
            move, memory = self.settings.optimizer.step(kept.optimizer, kept.geometry.rows["x"], forces[own])
            kept = kept.moved(move, memory, evaluation.energy[~done])
        # all is computed: from here on nothing can run out of memory half-way
        if self.observe is not None:
            self._show(running, batch, evaluation, sound)
        finished = self._finished(running, batch, evaluation, longest, done)
        self.running = _or_none(kept)
        return finished

    def _failures(self, batch: Batch) -> dict[int, str]:
        """Why systems of a batch, by their place, cannot be evaluated."""
        failures = {}
        for place in self.potential.broken(batch).nonzero()[:, 0].tolist():
            only = torch.arange(batch.num_systems, device=batch.positions.device) == place
            try:
                self.potential(select(batch, only))
                failures[place] = "its atoms are too near each other or too far apart"
            except ValueError as error:
                failures[place] = str(error).removeprefix("System 0 of the batch: ")
        return failures

    def _lost(self, running: Running, failures: dict[int, str]) -> list[Relaxed]:
        """Reports of structures whose present coordinates cannot be evaluated."""
        lost = []
        for place, reason in failures.items():
            only = torch.arange(running.num_systems, device=running.geometry.counts.device) == place
            lost.append(exploded(running.select(only), reason))
        return lost

    def _finished(
        self, running: Running, batch: Batch, evaluation: Evaluation, longest: Tensor, done: Tensor
    ) -> list[Relaxed]:
        results = []
        start, _ = running.positions_and_cell("start")
        for place in done.nonzero()[:, 0].tolist():
            only = torch.arange(running.num_systems, device=done.device) == place
            energy, fmax = float(evaluation.energy[place]), float(longest[place])
            if not (np.isfinite(energy) and np.isfinite(fmax)):
                results.append(exploded(running.select(only), "its energy or forces are not finite numbers"))
                continue
            atoms = only[batch.system_index]
            positions = batch.positions[atoms]
            results.append(
                Relaxed(
                    index=int(running.geometry.systems["index"][place]),
                    status="converged" if fmax < self.settings.fmax else "not_converged",
                    message="",
                    moves=int(running.geometry.systems["moves"][place]),
                    energy=energy,
                    fmax=fmax,
                    positions=to_numpy(positions),
                    cell=to_numpy(batch.cell[place]),
                    forces=to_numpy(evaluation.forces[atoms]),
                    stress=None if evaluation.stress is None else to_numpy(evaluation.stress[place]),
                    moved=float(torch.linalg.vector_norm(positions - start[atoms], dim=-1).max()),
                )
            )
        return results

    def _show(self, running: Running, batch: Batch, evaluation: Evaluation, sound: Tensor) -> None:
        assert self.observe is not None
        sizes = batch.n_atoms.tolist()
        positions = [to_numpy(part) for part in batch.positions.split(sizes)]
        forces = [to_numpy(part) for part in evaluation.forces.split(sizes)]
        cells, energies = to_numpy(batch.cell), evaluation.energy.tolist()
        moves, index = (running.geometry.systems[name].tolist() for name in ("moves", "index"))
        for place in sound.nonzero()[:, 0].tolist():
            self.observe(
                Frame(
                    index=index[place],
                    moves=moves[place],
                    energy=energies[place],
                    forces=forces[place],
                    positions=positions[place],
                    cell=cells[place],
                )
            )

    def _halve(self, entering: list[Running]) -> list[Relaxed]:
        """After memory ran out: all structures wait on the CPU, and batches are half as large from now on."""
        running = [] if self.running is None else list(_apart(self.running.to("cpu")))
        self.running = None
        if self.potential.device.type == "cuda":
            torch.cuda.empty_cache()
        batch = [*running, *entering]
        atoms = sum(int(part.n_atoms.sum()) for part in batch)
        if len(batch) == 1:
            return [unevaluated(batch[0], "x", "out_of_memory", f"out of memory with its {atoms} atoms alone")]
        self.suspended.extendleft(reversed(batch))
        self.batch_atoms = max(atoms // 2, 1)
        self.say(
            f"out of memory with {len(batch)} structures, {atoms} atoms: from now on at most {self.batch_atoms} atoms "
            "at once; nothing is lost"
        )
        return []


def relax(
    potential: EnergyAndForces,
    structures: Structures | Sequence[System],
    settings: RelaxationSettings | None = None,
    *,
    batch_atoms: int = 1000,
) -> list[Relaxed]:
    """Relax structures in memory; the results in the order of the structures.  See :class:`Relaxer`."""
    relaxer = Relaxer(potential, structures, settings or RelaxationSettings(), batch_atoms=batch_atoms)
    results: list[Relaxed] = []
    while not relaxer.done:
        results += relaxer.step()
    return sorted(results, key=lambda relaxed: relaxed.index)


def _apart(running: Running) -> deque[Running]:
    places = torch.arange(running.num_systems)
    return deque(running.select(places == place) for place in range(running.num_systems))


def _or_none(running: Running) -> Running | None:
    return running if running.num_systems else None
