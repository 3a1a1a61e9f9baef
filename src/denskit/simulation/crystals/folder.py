"""Properties of all crystals of a file, in a folder: one line of JSON a crystal, kept as soon as it is known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ase
import numpy as np

from denskit.batch import System
from denskit.data.periodicity import MAY_CLOSE, has_vacuum
from denskit.data.writing import names_of, plain
from denskit.files import sha256_of, write_json
from denskit.reading.documents import read_json
from denskit.runtime.memory import out_of_memory
from denskit.runtime.progress import Report, counted, unreported
from denskit.runtime.warning import first_line
from denskit.runtime.work_folder import WorkFolder, append_line, whole_lines
from denskit.simulation.crystals.conductivity import (
    Conductivity,
    Tell,
    conductivity,
    conductivity_errors,
    phono3py_class,
    require_comparable,
    space_group,
)
from denskit.simulation.crystals.elastic import cubic_constants, elastic_constants, nearly_cubic
from denskit.simulation.crystals.equation_of_state import equation_of_state
from denskit.simulation.crystals.ground_state import CrystalSettings, relaxed_crystal
from denskit.simulation.crystals.phonons import phonons, phonopy_class, spglib_error
from denskit.simulation.potential import EnergyAndForces, crowding_for
from denskit.simulation.state import Structures
from denskit.simulation.structures import has_own_masses, masses_of, note_of_masses

MARKER, PROPERTIES, HEAT = "crystals.json", "crystals.jsonl", "conductivity_{}.npz"
CUBIC = ("cubic_C11_GPa", "cubic_C12_GPa", "cubic_C44_GPa")
OF_REFERENCE = {"mesh", "supercell", "triplet_supercell"}  # settings that a reference has, too
OUT_OF_MEMORY = (
    "out of memory with crystal {}. Continue with --resume (in Python resume=True), which tries it again, with more "
    "free memory; or without it, with smaller supercells. (The system said: {})"
)
SLAB = f"warning: {MAY_CLOSE}, and volume and moduli mean little"


def measure_into(
    folder: Path,
    potential: EnergyAndForces,
    source: Structures,
    settings: CrystalSettings,
    *,
    moduli: bool = True,
    vibrations: bool = False,
    heat: bool = False,
    reference: Path | None = None,
    origin: dict[str, Any] | None = None,
    original: Callable[[System], ase.Atoms] = plain,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Report = unreported,
) -> list[dict[str, Any]] | None:
    """Measure all crystals by a potential that has stress; their properties in order, or None where ``stop`` ended it.

    ``moduli`` are the equation of state and the elastic constants, ``vibrations`` the phonons, ``heat`` is the thermal
    conductivity.  The folder gets ``crystals.jsonl``, ``phonopy_INDEX.yaml`` with the force constants, and
    ``conductivity_INDEX.npz``; such files in ``reference``, of the same crystals, give mesh and supercells, too.

    ``origin``: plain JSON about model and file, kept with the settings; on resume all but "models" must be the same, as
    must the references.  ``original`` gives each crystal, in ascending order, with the fields that may name it and its
    masses.  ``stop`` is asked before each crystal, ``progress`` called after each crystal and supercell.

    A crystal with a property that cannot be measured has an "error" in its line, beside those found before.  Raises
    ValueError for a folder with other work, FileNotFoundError for a crystal without a reference, and ValueError for a
    reference without modes or a mass that is not positive, ModuleNotFoundError without phonopy or phono3py, all before
    the first crystal; ValueError, after the others, for crystals that ran out of memory.
    """
    _require_inputs(reference, len(source), vibrations=vibrations, heat=heat)
    names, masses = _names_and_masses(source, original, say, vibrating=vibrations or heat)
    work = WorkFolder(folder, "set of crystals", MARKER)
    record = {
        "settings": settings.model_dump(),
        "phonons": vibrations,
        "conductivity": heat,
        "crystals": len(source),
        **({} if moduli else {"moduli": False}),
        **(_compared(reference, len(source), settings) if heat and reference is not None else {}),
        **(origin or {}),
    }
    with work.opened(resume=resume) as continues:
        if continues:
            work.require_same(read_json(work.marker), record, may_change=["models"])
        else:
            write_json(work.marker, record)
        done, too_large = {found["index"] for found in properties_in(folder)}, list[str]()
        for index in sorted(set(range(len(source))) - done):
            if stop():
                return None
            found: dict[str, Any] = {}
            try:
                given, own = source[index], masses[index]
                for told in _looked_at(potential, given):
                    say(f"crystal {index}: {told}")
                potential.check_structure(given)
                crystal = relaxed_crystal(potential, given, settings)
                for part in _moduli(potential, crystal, settings) if moduli else [_cell(crystal)]:
                    found |= part
                if vibrations:
                    found |= _vibrations(potential, crystal, settings, own, folder / f"phonopy_{index}.yaml")
                if heat:
                    tell = _tell(progress, index, len(source))
                    for part in _heat(potential, given, crystal, settings, own, index, folder, reference, tell):
                        found |= part
            except (ValueError, RuntimeError, ArithmeticError, MemoryError, spglib_error()) as error:  # phonopy's, too
                if out_of_memory(error):  # without a line, so that the crystal is tried again
                    too_large.append(OUT_OF_MEMORY.format(index, first_line(error)))
                    continue
                found["error"] = str(error)
            append_line(folder / PROPERTIES, {**_head(source, index, names[index]), **found})
            progress(index + 1, f"{index + 1} of {len(source)} crystals", len(source))
    if too_large:
        raise ValueError("\n".join(too_large))
    return list(properties_in(folder))


def _looked_at(potential: EnergyAndForces, given: System) -> Iterator[str]:
    """Doubts about a crystal, and changes to it."""
    if cost := crowding_for(potential, given):
        yield cost
    if has_vacuum(given):
        yield SLAB
    if held := int(given.fixed.sum()):
        yield f"note: {counted(held, 'fixed atom')} may move: properties are those of a crystal with free atoms"


def require_conductivities(folder: Path, source: Structures, settings: CrystalSettings) -> None:
    """Raises FileNotFoundError and ValueError where a folder lacks a conductivity that can be compared with that of a
    crystal, and ModuleNotFoundError without phono3py."""
    _require_references(folder, len(source))
    for index in range(len(source)):
        file, crystal = folder / HEAT.format(index), source[index]
        try:
            require_comparable(Conductivity.load(file), crystal, settings)
        except (ValueError, RuntimeError) as error:  # phono3py raises these
            raise ValueError(f"{file}: {error}") from None


def _tell(progress: Report, index: int, crystals: int) -> Tell:
    """Progress within a conductivity."""

    def told(done: int, total: int) -> None:
        text = f"{index} of {crystals} crystals; of the next {done} of {total} supercells"
        progress(index + done / (total + 1), text, crystals)

    return told


def _require_inputs(reference: Path | None, crystals: int, *, vibrations: bool, heat: bool) -> None:
    """Raise where a program or a reference is missing, before the first crystal."""
    if vibrations:
        phonopy_class()
    if heat:
        phono3py_class()
        if reference is not None:
            _require_references(reference, crystals)


def _require_references(folder: Path, crystals: int) -> None:
    files = [folder / HEAT.format(index) for index in range(crystals)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"no {missing[0]} in the folder of references {folder}")
    for file in files:
        Conductivity.load(file)


def _compared(reference: Path, crystals: int, settings: CrystalSettings) -> dict[str, Any]:
    """The content of the references, and the settings that were given: they are used in the place of the reference's
    own, also where they equal the defaults."""
    content = "".join(sha256_of(reference / HEAT.format(index)) for index in range(crystals))
    given = sorted(OF_REFERENCE & settings.model_fields_set)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return {"references_sha256": digest, **({"given": ", ".join(given)} if given else {})}


def properties_in(folder: Path) -> Iterator[dict[str, Any]]:
    """The properties that a folder holds so far."""
    if (folder / PROPERTIES).is_file():
        yield from (found for _, found in whole_lines(folder / PROPERTIES))


def _names_and_masses(
    source: Structures, original: Callable[[System], ase.Atoms], say: Callable[[str], None], *, vibrating: bool
) -> tuple[list[str], list[np.ndarray | None]]:
    """The name of each crystal, and its masses [n] (amu) where it is ``vibrating`` with others than the standard ones.

    Says of how many.  Raises ValueError for a mass that is not positive.
    """
    fields: list[dict[str, Any]] = []
    masses: list[np.ndarray | None] = []
    for index in range(len(source)):
        try:
            atoms = original(source[index])
        except ValueError:  # an unreadable record
            atoms = ase.Atoms()
        fields.append(atoms.info)
        masses.append(masses_of(atoms, index) if vibrating and has_own_masses(atoms) else None)
    if heavy := sum(own is not None for own in masses):
        say(note_of_masses(heavy))
    return names_of(fields), masses


def _head(source: Structures, index: int, name: str) -> dict[str, Any]:
    head = {"index": index, **({"name": name} if name else {}), "formula": ""}
    with suppress(ValueError):  # an unreadable record, whose error stands beside
        head["formula"] = str(plain(source[index]).get_chemical_formula(empirical=True))
    return head


def _cell(crystal: System) -> dict[str, Any]:
    """Energy and cell of a relaxed crystal as plain JSON; units are in the names."""
    lengths = np.linalg.norm(crystal.cell, axis=1)
    return {
        "atoms": len(crystal),
        "energy_eV_per_atom": (crystal.energy or 0.0) / len(crystal),
        "volume_A3_per_atom": abs(float(np.linalg.det(crystal.cell))) / len(crystal),
        "cell_lengths_A": lengths.tolist(),
    }


def _moduli(potential: EnergyAndForces, crystal: System, settings: CrystalSettings) -> Iterator[dict[str, Any]]:
    """Cell with equation of state, then elastic constants and moduli, as plain JSON."""
    state = equation_of_state(potential, crystal, settings)
    yield {
        **_cell(crystal),
        "bulk_modulus_GPa": state.bulk_modulus,
        "bulk_modulus_derivative": state.derivative,
        "eos_residual_meV_per_atom": 1000 * state.residual,
        "eos_volumes_A3_per_atom": state.volumes.tolist(),
        "eos_energies_eV_per_atom": state.energies.tolist(),
    }
    elastic = elastic_constants(potential, crystal, settings)
    cubic = cubic_constants(elastic.constants, crystal) or (None, None, None)
    yield {
        "elastic_constants_GPa": elastic.constants.tolist(),
        **dict(zip(CUBIC, cubic, strict=True)),
        **({"nearly_cubic": nearly} if (nearly := nearly_cubic(crystal)) else {}),
        "elastic_bulk_modulus_GPa": elastic.bulk_modulus,
        "shear_modulus_GPa": elastic.shear_modulus,
        "youngs_modulus_GPa": elastic.youngs_modulus,
        "poisson_ratio": elastic.poisson_ratio,
        "elastically_stable": elastic.stable,
    }


def _vibrations(
    potential: EnergyAndForces, crystal: System, settings: CrystalSettings, masses: np.ndarray | None, file: Path
) -> dict[str, Any]:
    """Phonons as plain JSON."""
    modes = phonons(potential, crystal, settings, masses=masses)
    modes.phonopy.save(file, settings={"force_constants": True})
    return {
        "phonon_smallest_THz": modes.smallest,
        "phonon_largest_THz": modes.largest,
        "dynamically_stable": modes.stable,
        "heat_capacity_300K_J_per_K_mol": modes.heat_capacity,
        "vibrational_free_energy_300K_kJ_per_mol": modes.free_energy,
        "phonon_frequencies_THz": modes.frequencies.tolist(),
        "phonon_density_per_THz": modes.density.tolist(),
        "supercell_atoms": modes.atoms,
    }


def _heat(
    potential: EnergyAndForces, given: System, crystal: System, settings: CrystalSettings, masses: np.ndarray | None,
    index: int, folder: Path, reference: Path | None, tell: Tell,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The thermal conductivity as plain JSON, saved with its modes; then its errors where there is a reference."""
    wanted = None if reference is None else Conductivity.load(reference / HEAT.format(index))
    kept = space_group(given) == space_group(crystal)
    found = conductivity(potential, crystal, settings, reference=wanted, masses=masses, tell=tell)
    found.save(folder / HEAT.format(index))
    stable = not np.isnan(found.mean)
    yield {
        "conductivity_300K_W_per_m_K": found.mean if stable else None,
        "conductivity_tensor_W_per_m_K": found.kappa.tolist() if stable else None,
        "conductivity_of_coherences_W_per_m_K": found.coherence if stable else None,
        "phonon_smallest_of_mesh_THz": float(found.frequencies.min()),
        "symmetry_kept": kept,
    }
    if wanted is not None:
        yield conductivity_errors(found, wanted, symmetric=kept)
