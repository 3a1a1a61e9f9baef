"""Relaxation of many structures at once: finished structures leave the batch, waiting ones take their place.

Every structure is relaxed as if it were alone: forces on fixed atoms are zero; inner products, step lengths and
convergence are those of the structure.  Coordinates and histories are float64 for models of any precision.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import ase
import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System, select
from denskit.data.base import Source
from denskit.data.frames import frames_of
from denskit.data.periodicity import MAY_CLOSE, has_vacuum, not_a_crystal
from denskit.models.model_file import Model
from denskit.runtime.memory import out_of_memory
from denskit.runtime.warning import warn
from denskit.simulation.potential import EnergyAndForces, Evaluation, crowding_for, potential_of
from denskit.simulation.relaxation.results import Relaxed, Snapshot, exploded, refused, to_numpy, unevaluated
from denskit.simulation.relaxation.running import Running
from denskit.simulation.relaxation.settings import RelaxationSettings
from denskit.simulation.state import Structures
from denskit.simulation.structures import system_of

MOST_VOLUME = 4.0  # times the first volume, or as much smaller: such a cell has left all that was meant
VACUUM = (
    f"{MAY_CLOSE}. Leave cell out, or relax the strains within a slab alone (xx, yy, xy); not said again for others"
)


class Relaxer:
    """Relaxes all structures of a source, as many at a time as ``batch_atoms`` atoms allow (at least one).

    Each :meth:`step` evaluates the structures under way once and moves them once.  Running out of memory halves the
    batch; the structures that leave it continue later from their coordinates and histories.  ``say`` gets messages for
    the user, ``observe`` every evaluated geometry, for trajectories.

    Raises ValueError where cells are to relax, and the potential has no stress.
    """

    def __init__(
        self,
        potential: EnergyAndForces,
        source: Structures,
        settings: RelaxationSettings,
        *,
        batch_atoms: int = 1000,
        say: Callable[[str], None] = lambda text: None,
        observe: Callable[[Snapshot], None] | None = None,
    ) -> None:
        if settings.cell is not None and not potential.stress:
            raise ValueError("cells relax by their stress, and this potential gives none: use a model with stress")
        self.potential = potential
        self.source = source
        self.settings = settings
        self.batch_atoms = batch_atoms
        self.say = say
        self.observe = observe
        self._vacuum_told = False
        self.running: Running | None = None
        self.suspended: deque[Running] = deque()  # one structure each, on the CPU
        self.waiting: deque[int] = deque(range(len(source)))

    def restore(self, finished: Collection[int], running: Running | None) -> None:
        """Continue another run: skip its finished structures, resume those under way."""
        under_way: set[int] = set()
        if running is not None:
            kept = running.select(~torch.isin(running.index, torch.tensor(sorted(finished), dtype=torch.int64)))
            self.suspended = deque(kept.apart())
            under_way = set(kept.index.tolist())
        self.waiting = deque(i for i in range(len(self.source)) if i not in finished and i not in under_way)

    @property
    def done(self) -> bool:
        """Whether all structures are finished."""
        return self.running is None and not self.suspended and not self.waiting

    def under_way(self) -> Running | None:
        """All structures that have begun and are not finished, on the CPU, as :meth:`restore` takes them."""
        parts = [*([] if self.running is None else [self.running.to("cpu")]), *self.suspended]
        return Running.join(parts) if parts else None

    def run(self) -> list[Relaxed]:
        """Relax all structures that are not finished; results in the order of the source."""
        results: list[Relaxed] = []
        while not self.done:
            results += self.step()
        return sorted(results, key=lambda relaxed: relaxed.index)

    def step(self) -> list[Relaxed]:
        """Evaluate and move all structures under way once; returns the structures that finished."""
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
        # outside the handler: the traceback, which holds the memory, is gone here
        return turned_away + self._halve(entering)

    def _entering(self) -> tuple[list[Running], list[Relaxed]]:
        """Structures that fill up the batch, suspended ones first, and results of refused structures."""
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
                if not self.suspended:
                    self._tell(self.waiting[0])
            else:
                turned_away.append(candidate)
            (self.suspended or self.waiting).popleft()
        return entering, turned_away

    def _begin(self, index: int) -> Running | Relaxed:
        """A structure before its first move, or the reason for refusing it."""
        try:
            system = self.source[index]
        except ValueError as error:  # an unreadable record does not stop the others
            return refused(index, None, "refused", str(error))
        if len(system) == 0:
            return refused(index, system, "refused", "it has no atoms")
        with_cell = self.settings.cell is not None
        if with_cell and (found := not_a_crystal(system.pbc)):
            message = f"{found}: it has no volume, so its cell cannot relax; relax it without cell"
            return refused(index, system, "refused", message)
        try:
            self.potential.check_structure(system)
        except ValueError as error:
            return refused(index, system, "unknown_element", str(error))
        return Running.begin(system, index, self.settings.optimizer, with_cell=with_cell)

    def _tell(self, index: int) -> None:
        """Tell of doubts about a structure that begins."""
        system = self.source[index]
        if cost := crowding_for(self.potential, system):
            self.say(f"structure {index}: {cost}")
        cell = self.settings.cell
        whole = cell is not None and (cell.hydrostatic or {"xx", "yy", "zz"} <= set(cell.strains))
        if whole and not self._vacuum_told and has_vacuum(system):
            self._vacuum_told = True
            self.say(f"structure {index}: {VACUUM}")

    def _advance(self, running: Running) -> list[Relaxed]:
        batch = running.batch()
        broken = self.potential.broken(batch) | (torch.log(_volumes(running, batch)).abs() > math.log(MOST_VOLUME))
        if bool(broken.any()):
            lost = self._lost(running, batch, broken)
            self.running = _or_none(running.select(~broken))
            return lost
        evaluation = self.potential(batch)
        forces = running.forces(batch, evaluation, self.settings.cell)
        longest = running.longest(forces)
        sound = torch.isfinite(evaluation.energy) & torch.isfinite(longest)
        converged = longest < self.settings.fmax
        done = ~sound | converged | (running.moves >= self.settings.steps)

        kept = running.select(~done) if bool(done.any()) else running
        if kept.num_systems:
            optimizer: Any = self.settings.optimizer  # with its own class of memory
            own = (~done)[running.system_index]
            move, memory = optimizer.step(kept.memory, kept.coordinates, forces[own])
            kept = kept.moved(move, memory, evaluation.energy[~done])
        # all is computed: from here on nothing can run out of memory half-way
        if self.observe is not None:
            for place in sound.nonzero()[:, 0].tolist():
                self.observe(_snapshot(running, batch, evaluation, place))
        finished = self._finished(running, batch, evaluation, longest, done)
        self.running = _or_none(kept)
        return finished

    def _lost(self, running: Running, batch: Batch, broken: Tensor) -> list[Relaxed]:
        """Results of the ``broken`` [B] structures, whose present coordinates cannot be evaluated."""
        lost = []
        for place in broken.nonzero()[:, 0].tolist():
            only = torch.arange(batch.num_systems, device=broken.device) == place
            lost.append(exploded(running.select(only), self._why(batch, only, float(_volumes(running, batch)[place]))))
        return lost

    def _why(self, batch: Batch, only: Tensor, volume: float) -> str:
        """Why one structure of a batch cannot be evaluated; ``volume`` relative to the first."""
        if abs(math.log(volume)) > math.log(MOST_VOLUME):  # not evaluated: its neighbours may fill the memory
            pressed = self.settings.cell is not None and self.settings.cell.pressure != 0
            why = "a pressure in another unit (wanted: GPa), " if pressed else ""
            why += "a cell far from any minimum, or a model outside its training data"
            return f"its volume is {volume:.3g} times the first: {why}"
        try:
            self.potential(select(batch, only))
        except ValueError as error:
            return str(error).removeprefix("System 0 of the batch: ")
        return "its atoms are too near each other or too far apart"

    def _finished(
        self, running: Running, batch: Batch, evaluation: Evaluation, longest: Tensor, done: Tensor
    ) -> list[Relaxed]:
        """Results of the structures that are ``done`` [B]; ``longest`` [B] eV/Å are their longest forces."""
        results = []
        farthest = running.farthest()
        for place in done.nonzero()[:, 0].tolist():
            snapshot, fmax = _snapshot(running, batch, evaluation, place), float(longest[place])
            if not (np.isfinite(snapshot.energy) and np.isfinite(fmax)):
                only = torch.arange(running.num_systems, device=done.device) == place
                results.append(exploded(running.select(only), "its energy or forces are not finite numbers"))
                continue
            results.append(
                Relaxed(
                    **vars(snapshot),
                    status="converged" if fmax < self.settings.fmax else "not_converged",
                    fmax=fmax,
                    stress=None if evaluation.stress is None else to_numpy(evaluation.stress[place]),
                    moved=float(farthest[place]),
                )
            )
        return results

    def _halve(self, entering: list[Running]) -> list[Relaxed]:
        """Suspend all structures after memory ran out, and halve the size of batches."""
        running = [] if self.running is None else list(self.running.to("cpu").apart())
        self.running = None
        if self.potential.device.type == "cuda":
            torch.cuda.empty_cache()
        batch = [*running, *entering]
        atoms = sum(int(part.n_atoms.sum()) for part in batch)
        if len(batch) == 1:
            return [unevaluated(batch[0], "out_of_memory", f"out of memory with its {atoms} atoms alone")]
        self.suspended.extendleft(reversed(batch))
        self.batch_atoms = max(atoms // 2, 1)
        self.say(
            f"out of memory with {len(batch)} structures, {atoms} atoms: from now on at most {self.batch_atoms} atoms "
            "at once; nothing is lost"
        )
        return []


def relax(
    potential: EnergyAndForces | Model | Sequence[Model],
    structures: Structures | Iterable[ase.Atoms] | ase.Atoms,
    settings: RelaxationSettings | None = None,
    *,
    batch_atoms: int = 1000,
) -> list[Relaxed]:
    """Relax structures in memory; results in the order of the structures.  See :class:`Relaxer`.

    potential: also model files, run folders or force fields.  Doubts about structures are warnings;
    ``relaxed.atoms(GIVEN)`` has a structure where it ended.  Raises ValueError for no structure, TypeError for other
    settings.
    """
    settings = RelaxationSettings() if settings is None else settings
    if not isinstance(settings, RelaxationSettings):
        raise TypeError(
            f"settings: found {type(settings).__name__}; wanted RelaxationSettings: from denskit.simulation.relaxation "
            "import RelaxationSettings; RelaxationSettings(fmax=0.05)"
        )
    potential = potential_of(potential, stress=settings.cell is not None)
    if not _are_systems(structures):
        frames = frames_of([structures] if isinstance(structures, ase.Atoms) else structures)
        structures = [system_of(atoms, place) for place, atoms in enumerate(frames)]
    relaxer = Relaxer(potential, structures, settings, batch_atoms=batch_atoms, say=warn)  # type: ignore[arg-type]
    return relaxer.run()


def _are_systems(structures: object) -> bool:
    """Whether structures were read already: a source, or a list of them."""
    return isinstance(structures, Source | Sequence) and len(structures) > 0 and isinstance(structures[0], System)


def _snapshot(running: Running, batch: Batch, evaluation: Evaluation, place: int) -> Snapshot:
    atoms = batch.system_index == place
    return Snapshot(
        index=int(running.index[place]),
        moves=int(running.moves[place]),
        energy=float(evaluation.energy[place]),
        forces=to_numpy(evaluation.forces[atoms]),
        positions=to_numpy(batch.positions[atoms]),
        cell=to_numpy(batch.cell[place]),
    )


def _volumes(running: Running, batch: Batch) -> Tensor:
    """Volumes [B] relative to the first; 1 where cells do not relax."""
    if not running.with_cell:
        return running.cell.new_ones(running.num_systems)
    return (batch.cell.double().det() / running.cell.det()).abs().clamp(min=1e-300)


def _or_none(running: Running) -> Running | None:
    return running if running.num_systems else None
