"""Properties of all crystals of a file, in a folder: one line of JSON a crystal, kept as soon as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from denskit.batch import System
from denskit.data.crowding import crowding
from denskit.data.writing import plain
from denskit.files import write_json
from denskit.reading.documents import read_json
from denskit.runtime.progress import Report, unreported
from denskit.runtime.work_folder import WorkFolder, append_line, whole_lines
from denskit.simulation.crystals.elastic import elastic_constants
from denskit.simulation.crystals.equation_of_state import equation_of_state
from denskit.simulation.crystals.ground_state import CrystalSettings, relaxed_crystal
from denskit.simulation.crystals.phonons import phonons
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.state import Structures

MARKER, PROPERTIES = "crystals.json", "crystals.jsonl"


def measure_into(
    folder: Path,
    potential: EnergyAndForces,
    source: Structures,
    settings: CrystalSettings,
    *,
    vibrations: bool = False,
    origin: dict[str, Any] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Report = unreported,
) -> list[dict[str, Any]] | None:
    """Measure all crystals of a source; their properties in order, or None where ``stop`` ended the work.

    Args:
        folder: gets ``crystals.jsonl``, and ``phonopy_INDEX.yaml`` with the force constants.
        potential: with stress.
        source: the crystals.
        settings: strains, displacements, convergence.
        vibrations: measure phonons, too.
        origin: plain JSON about model and file, kept with the settings.
        resume: continue the work in the folder.
        say: gets messages for the user.
        stop: asked before each crystal.
        progress: called after each crystal.

    A crystal that cannot be measured has an "error" in its line.  Raises ValueError for a folder with other work.
    """
    work = WorkFolder(folder, "set of crystals", MARKER)
    record = {"settings": settings.model_dump(), "phonons": vibrations, "crystals": len(source), **(origin or {})}
    with work.opened(resume=resume) as continues:
        if continues:
            work.require_same(read_json(work.marker), record)
        else:
            write_json(work.marker, record)
        done = {found["index"] for found in properties_in(folder)}
        for index in range(len(source)):
            if index in done:
                continue
            if stop():
                return None
            try:
                crystal = source[index]
                if cost := crowding(crystal):
                    say(f"crystal {index}: {cost}")
                file = folder / f"phonopy_{index}.yaml" if vibrations else None
                found = _measured(potential, crystal, settings, file)
            except ValueError as error:
                found = {"error": str(error)}
            append_line(folder / PROPERTIES, {"index": index, "formula": _formula(source, index), **found})
            progress(index + 1, f"{index + 1} of {len(source)} crystals", len(source))
    return list(properties_in(folder))


def properties_in(folder: Path) -> Iterator[dict[str, Any]]:
    """The properties that a folder holds so far."""
    if (folder / PROPERTIES).is_file():
        yield from (found for _, found in whole_lines(folder / PROPERTIES))


def _formula(source: Structures, index: int) -> str:
    try:
        return str(plain(source[index]).get_chemical_formula(empirical=True))
    except ValueError:  # an unreadable record, whose error stands beside
        return ""


def _measured(
    potential: EnergyAndForces, system: System, settings: CrystalSettings, file: Path | None
) -> dict[str, Any]:
    """Properties of one crystal as plain JSON; units are in the names."""
    potential.check_elements(system)
    crystal = relaxed_crystal(potential, system, settings)
    state = equation_of_state(potential, crystal, settings)
    elastic = elastic_constants(potential, crystal, settings)
    lengths = np.linalg.norm(crystal.cell, axis=1)
    found = {
        "atoms": len(crystal),
        "energy_eV_per_atom": (crystal.energy or 0.0) / len(crystal),
        "volume_A3_per_atom": abs(float(np.linalg.det(crystal.cell))) / len(crystal),
        "cell_lengths_A": lengths.tolist(),
        "bulk_modulus_GPa": state.bulk_modulus,
        "bulk_modulus_derivative": state.derivative,
        "eos_residual_meV_per_atom": 1000 * state.residual,
        "eos_volumes_A3_per_atom": state.volumes.tolist(),
        "eos_energies_eV_per_atom": state.energies.tolist(),
        "elastic_constants_GPa": elastic.constants.tolist(),
        "shear_modulus_GPa": elastic.shear_modulus,
        "youngs_modulus_GPa": elastic.youngs_modulus,
        "poisson_ratio": elastic.poisson_ratio,
        "elastically_stable": elastic.stable,
    }
    if file is None:
        return found
    modes = phonons(potential, crystal, settings)
    modes.phonopy.save(file, settings={"force_constants": True})
    return found | {
        "phonon_smallest_THz": modes.smallest,
        "phonon_largest_THz": modes.largest,
        "dynamically_stable": modes.stable,
        "heat_capacity_300K_J_per_K_mol": modes.heat_capacity,
        "vibrational_free_energy_300K_kJ_per_mol": modes.free_energy,
        "phonon_frequencies_THz": modes.frequencies.tolist(),
        "phonon_density_per_THz": modes.density.tolist(),
        "supercell_atoms": modes.atoms,
    }
