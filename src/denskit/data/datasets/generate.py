"""Make a dataset: molecular dynamics with GFN2-xTB, the frames labelled by the same method.

GFN2-xTB: Bannwarth, Ehlert, Grimme, J. Chem. Theory Comput. 15, 1652 (2019), through the ``tblite`` library (the
``xtb`` extra).  The dynamics is Langevin's; frames are written in eV, eV/Å.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
from ase import units
from ase.build import molecule as named_molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.collections import g2
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import Stationary, ZeroRotation
from ase.optimize import BFGS

from denskit.data.base import ELECTRONS, electrons_in
from denskit.data.electrons import ElectronSettings
from denskit.data.readers.ase_files import ase_options
from denskit.files import atomic_write

METHOD = "GFN2-xTB"
NAMES = {"ethanol": "CH3CH2OH", "acetamide": "CH3CONH2", "benzene": "C6H6", "water": "H2O"}
FRICTION = 0.01  # 1/fs
ACCURACY = 0.01  # of tblite's self-consistency; forces then repeat to 3e-6 eV/Å (2e-4 with its default of 1)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Frames of one molecule in time order, in eV and Å."""

    atoms: ase.Atoms  # the molecule (its positions are the relaxed ones)
    positions: np.ndarray  # [T, n, 3] Å
    energies: np.ndarray  # [T] eV
    forces: np.ndarray  # [T, n, 3] eV/Å
    recipe: str  # the method, versions and settings, one line


def generate(
    molecule: str,
    *,
    frames: int,
    temperature: float = 500.0,
    every: float = 10.0,
    timestep: float = 0.5,
    equilibration: float = 1000.0,
    seed: int = 0,
) -> Trajectory:
    """Relax ``molecule``, equilibrate it and sample Langevin dynamics with GFN2-xTB.

    ``molecule``: a name (``ethanol``, or one of ASE's G2 set such as ``CH3CONH2``) or a file that ASE reads.
    ``temperature`` in K; ``every`` (between frames), ``timestep`` and ``equilibration`` in fs.
    Fields of a file such as ``charge`` and ``multiplicity`` are those of the calculation.
    Ctrl-C ends with the frames that are made.
    Raises ValueError without tblite, for an unknown or a periodic molecule, and for fields that contradict each other.
    """
    if frames < 1:
        raise ValueError(f"generate makes at least 1 frame, {frames} asked")
    if not (timestep > 0 and temperature >= 0):
        raise ValueError(f"a timestep above 0 fs and 0 K or more are wanted, found {timestep} fs and {temperature} K")
    stride = round(every / timestep)
    if stride < 1 or abs(stride * timestep - every) > 1e-9:
        raise ValueError(f"frames every {every} fs are not a whole number of steps of {timestep} fs")
    atoms = _molecule(molecule)
    atoms.calc = xtb_calculator()
    try:
        ElectronSettings(atoms.calc).set_for(atoms)
    except ValueError as error:
        raise ValueError(f"{molecule}: {error}") from None
    rng = np.random.default_rng(seed)
    BFGS(atoms, logfile=None).run(fmax=0.02, steps=500)
    deviations = np.sqrt(atoms.get_masses() * temperature * units.kB)  # of momenta: Maxwell and Boltzmann
    atoms.set_momenta(rng.standard_normal((len(atoms), 3)) * deviations[:, None])
    Stationary(atoms)
    ZeroRotation(atoms)
    relaxed = atoms.copy()
    dynamics = Langevin(
        atoms, timestep * units.fs, temperature_K=temperature, friction=FRICTION / units.fs, fixcm=False, rng=rng
    )
    dynamics.run(round(equilibration / timestep))
    positions = np.empty((frames, len(atoms), 3))
    energies, forces = np.empty(frames), np.empty((frames, len(atoms), 3))
    made = 0
    try:
        for frame in range(frames):
            dynamics.run(stride)
            positions[frame] = atoms.positions - atoms.get_center_of_mass()  # it diffuses; nothing depends on where
            energies[frame], forces[frame] = atoms.get_potential_energy(), atoms.get_forces()
            made = frame + 1
    except KeyboardInterrupt:
        if not made:
            raise
    electrons = "".join(f"{name} {value:g}, " for name, value in electrons_in(atoms.info))
    recipe = (
        f"{METHOD}, {electrons}tblite {version('tblite')} (accuracy {ACCURACY:g}), ase {ase.__version__}; "
        f"Langevin {temperature:g} K, friction {FRICTION:g}/fs, step {timestep:g} fs, "
        f"equilibration {equilibration:g} fs, a frame every {every:g} fs, seed {seed}"
    )
    done = slice(made)
    return Trajectory(
        atoms=relaxed, positions=positions[done], energies=energies[done], forces=forces[done], recipe=recipe
    )


def write(trajectory: Trajectory, path: str | Path, *, name: str) -> None:
    """Write ``.npz`` (sGDML form, positions and forces in float32, energies in float64) or a format of ASE."""
    path = Path(path)
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {
            "type": "d",
            "name": name,
            "theory": METHOD,
            "recipe": trajectory.recipe,
            "r_unit": "Ang",
            "e_unit": "eV",
            "z": trajectory.atoms.numbers.astype(np.uint8),
            "R": trajectory.positions.astype(np.float32),
            "E": trajectory.energies[:, None],
            "F": trajectory.forces.astype(np.float32),
        }
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        return
    frames = []
    for positions, energy, forces in zip(trajectory.positions, trajectory.energies, trajectory.forces, strict=True):
        atoms = ase.Atoms(trajectory.atoms.numbers, positions)
        atoms.info |= {name: value for name, value in trajectory.atoms.info.items() if name in ELECTRONS}
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        frames.append(atoms)
    with atomic_write(path) as temporary:
        ase.io.write(temporary, frames)


def _molecule(name: str) -> ase.Atoms:
    formula = NAMES.get(name, name)
    if formula in g2.names:
        return named_molecule(formula)
    if not Path(name).is_file():
        raise ValueError(f"{name!r} is neither a file nor a known molecule: {', '.join(NAMES)}, or of ASE's G2 set")
    atoms = ase.io.read(name, **ase_options(Path(name)))
    assert isinstance(atoms, ase.Atoms)
    if atoms.pbc.any():
        raise ValueError(f"{name} is periodic; generate makes data for molecules only")
    return atoms


def xtb_calculator() -> Any:
    """A calculator of GFN2-xTB for ASE.  Raises ValueError without tblite."""
    try:
        from tblite.ase import TBLite  # an optional dependency: imported where it is used
    except ModuleNotFoundError as error:
        raise ValueError("GFN2-xTB needs tblite, which is not installed: pip install 'denskit[xtb]'") from error
    return TBLite(method=METHOD, verbosity=0, accuracy=ACCURACY)
