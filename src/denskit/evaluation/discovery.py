"""Stability of crystals from structures that are not relaxed, by the protocol of Matbench Discovery.

Structures are relaxed with their cells (FIRE, 0.02 eV/Å, at most 500 moves); their energies are compared with the
convex hull of known phases, and with references where there are any.  Thermal conductivities are of other crystals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ase
import numpy as np

from denskit.data.base import Source
from denskit.data.writing import Originals, plain, relaxed_at
from denskit.evaluation.conductivities import MEANS, KnownConductivities, judge_conductivities
from denskit.evaluation.convex_hull import ConvexHull
from denskit.evaluation.stability_metrics import STABLE, stability_metrics
from denskit.files import write_json, write_rows
from denskit.reading.documents import read_json
from denskit.runtime.progress import Report, unreported
from denskit.simulation.potential import EnergyAndForces
from denskit.simulation.relaxation import PROTOCOLS
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into
from denskit.simulation.relaxation.results import Relaxed

PROTOCOL = PROTOCOLS["matbench-discovery"]
UNMATCHED = 1.0  # RMSD of structures that do not match, as on the leaderboard: the tolerance of the comparison
TABLE, RESULT, KAPPA = "discovery.csv", "discovery.json", "kappa"
NAME, HULL, ENERGY = "material_id", "e_above_hull", "relaxed_energy"  # fields of the files


@dataclass(frozen=True)
class Reference:
    """A material's relaxed structure and energies, where they are known."""

    energy: float | None = None  # eV/atom
    above_hull: float | None = None  # eV/atom
    atoms: ase.Atoms | None = None


@dataclass(frozen=True)
class Materials:
    """Structures to relax, the hull, and references by name."""

    source: Source
    file: Path
    hull: ConvexHull | None = None
    relaxed: tuple[Source, Path] | None = None  # reference structures with energies

    @cached_property
    def references(self) -> dict[str, Reference]:
        """Of each structure, by name: its ``material_id``, its ``sid``, or its place in the file.

        Raises ValueError for a name that occurs twice in a file, and for a relaxed structure of another composition.
        """
        named = _by_name(self.source, self.file)
        known = {} if self.relaxed is None else _by_name(*self.relaxed)
        if self.relaxed is not None and not known.keys() & named.keys():
            raise ValueError(
                f"{self.relaxed[1]}: none of its structures has the {NAME} of one of {self.file}: it has "
                f"{', '.join(list(known)[:3])}, ... there, {', '.join(list(named)[:3])}, ... here"
            )
        for name in [name for name in named if name in known]:
            own, relaxed = (atoms.get_chemical_formula(empirical=True) for atoms in (named[name], known[name]))
            if own != relaxed and self.relaxed is not None:
                raise ValueError(
                    f"{name} is {own} in {self.file} and {relaxed} in {self.relaxed[1]}. Structures without a {NAME} "
                    f"or a sid are matched by their places: give both files one order, or each structure a {NAME}"
                )
        return {name: _reference(own, known.get(name)) for name, own in named.items()}

    @cached_property
    def names(self) -> list[str]:
        """Of each structure."""
        return list(self.references)

    def hull_energies(self) -> np.ndarray:
        """The hull at each structure's composition [B], eV/atom; NaN without a hull.

        Raises ValueError, naming the structure, where the phases of the hull do not make it up.
        """
        if self.hull is None:
            return np.full(len(self.source), np.nan)
        energies = np.zeros(len(self.source))
        for place, system in enumerate(self.source):
            try:
                energies[place] = self.hull.energy(system.atomic_numbers)
            except ValueError as error:
                raise ValueError(f"{self.file}, record {place} ({self.names[place]}): {error}") from None
        return energies


def discover_into(
    folder: str | Path,
    potential: EnergyAndForces,
    materials: Materials,
    *,
    conductivities: KnownConductivities | None = None,
    origin: dict[str, Any] | None = None,
    judged_by: dict[str, Any] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Report = unreported,
) -> dict[str, Any] | None:
    """Relax all materials into a folder and judge them; returns the metrics, or None where ``stop`` ended the run.

    Writes ``discovery.csv`` (a line a material), ``discovery.json`` (the metrics), and the files of a relaxation; with
    ``conductivities`` also their mean errors, and the folder ``kappa`` with a line a crystal.

    ``judged_by``: plain JSON about hull and references, for ``discovery.json``; a resumed run may have others.  Other
    arguments, and errors, as
    :func:`denskit.simulation.relaxation.folder.relax_into`; those of :class:`Materials` and of
    :meth:`KnownConductivities.require_comparable` come before the first move.
    """
    if conductivities is not None:
        conductivities.require_comparable()
    hull, references = materials.hull_energies(), materials.references
    if lacking := _lacking(materials):
        say(lacking)
    work = RelaxationFolder(folder)
    original = Originals(materials.file, materials.source, moved=True)
    summary = relax_into(
        work, potential, materials.source, PROTOCOL,
        origin=origin, original=original, resume=resume, say=say, stop=stop, progress=progress,
    )  # fmt: skip
    if summary is None:
        return None
    distance = rmsd_function() if any(reference.atoms is not None for reference in references.values()) else None
    rows = [_row(materials, relaxed, hull[relaxed.index], distance) for relaxed in work.results()]
    write_rows(work.path / TABLE, list(rows[0]), rows)
    found = {"materials": len(rows), **summary["status"], **_metrics(rows)}
    found |= {"judged_by": judged_by} if judged_by else {}
    if conductivities is None:
        found |= _judged_before(work.path / RESULT)
    _write(work.path / RESULT, found)
    if conductivities is None:
        return found
    errors = judge_conductivities(
        work.path / KAPPA, conductivities, resume=resume, say=say, stop=stop, progress=progress
    )
    if errors is None:
        return None
    _write(work.path / RESULT, found | errors)
    return found | errors


def _judged_before(file: Path) -> dict[str, Any]:
    """Errors of conductivities that the file holds, of an evaluation that is repeated without them."""
    known = read_json(file) if file.is_file() else {}
    return {name: known[name] for name in MEANS if known.get(name) is not None}


def _write(file: Path, found: dict[str, Any]) -> None:
    undefined = {name for name, value in found.items() if isinstance(value, float) and not math.isfinite(value)}
    write_json(file, {**found, **dict.fromkeys(undefined)})


def _lacking(materials: Materials) -> str | None:
    """What is needed for the energies above the hull and is not given."""
    known = materials.references.values()
    if materials.hull is not None or any(one.energy is not None and one.above_hull is not None for one in known):
        return None
    above, energies = sum(one.above_hull is not None for one in known), sum(one.energy is not None for one in known)
    return (
        f"no energies above the hull: of {len(known)} materials {above} have {HULL} and {energies} a reference energy, "
        f"none both; give the phases of the hull (--hull), relaxed structures with energies (--relaxed), or the field "
        f"{ENERGY} (eV, of the whole structure)"
    )


def rmsd_function() -> Callable[[ase.Atoms, ase.Atoms], float | None] | None:
    """The distance of two structures as in the leaderboard: pymatgen's, in units of (volume / atom)^(1/3); None
    without pymatgen.  It gives None for structures that do not match."""
    try:
        from pymatgen.core import Structure
        from pymatgen.core.structure_matcher import StructureMatcher
    except ModuleNotFoundError:
        return None
    matcher = StructureMatcher(stol=1.0, scale=False)

    def rmsd(one: ase.Atoms, other: ase.Atoms) -> float | None:
        given = [Structure(a.cell.array, a.numbers, a.positions, coords_are_cartesian=True) for a in (one, other)]
        found = matcher.get_rms_dist(*given)
        return None if found is None else float(found[0])

    return rmsd


def _by_name(source: Source, file: Path) -> dict[str, ase.Atoms]:
    """Atoms by name, with fields of the file and the energy label.  Raises ValueError for a name that occurs twice."""
    original, named = Originals(file, source), dict[str, ase.Atoms]()
    for place, system in enumerate(source):
        info = original(system).info
        given = info.get(NAME)
        name = str((system.sid or place) if given is None or given == "" else given)  # 0 is a name
        if name in named:
            raise ValueError(f"{file}: two structures have the {NAME} {name}; results would be mixed up")
        named[name] = plain(system)
        named[name].info = {HULL: info.get(HULL), ENERGY: info.get(ENERGY), "label": system.energy}
    return named


def _reference(own: ase.Atoms, relaxed: ase.Atoms | None) -> Reference:
    energy = own.info[ENERGY] if relaxed is None else relaxed.info["label"]
    above = own.info[HULL] if relaxed is None or relaxed.info[HULL] is None else relaxed.info[HULL]
    atoms = len(own if relaxed is None else relaxed)
    return Reference(
        None if energy is None else float(energy) / atoms, None if above is None else float(above), relaxed
    )


def _row(
    materials: Materials, relaxed: Relaxed, hull: float, distance: Callable[[ase.Atoms, ase.Atoms], float | None] | None
) -> dict[str, Any]:
    """A line of the table; None where a value is not known."""
    system, name = materials.source[relaxed.index], materials.names[relaxed.index]
    reference = materials.references[name]
    energy = relaxed.energy / len(system) if relaxed.sound and relaxed.energy is not None else None
    known, above = reference.energy, reference.above_hull
    if not math.isnan(hull):
        predicted = None if energy is None else energy - hull
        above = above if known is None else known - hull
    else:
        predicted = None if energy is None or known is None or above is None else above + energy - known
    row = {
        NAME: name,
        "formula": plain(system).get_chemical_formula(empirical=True),
        "atoms": len(system),
        "status": relaxed.status,
        "moves": relaxed.moves,
        "energy_eV_per_atom": energy,
        "reference_energy_eV_per_atom": known,
        "e_above_hull_eV_per_atom": predicted,
        "reference_e_above_hull_eV_per_atom": above,
    }
    if distance is not None:
        atoms = relaxed_at(plain(system), relaxed.positions, relaxed.cell, {})
        row["reference_structure"] = reference.atoms is not None
        row["rmsd"] = None if energy is None or reference.atoms is None else distance(atoms, reference.atoms)
    return row


def _metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Metrics of the materials with references."""
    columns = {
        name: np.array([math.nan if row[name] is None else row[name] for row in rows], float)
        for name in _NUMBERS
        if name in rows[0]
    }
    energy, known = columns["energy_eV_per_atom"], columns["reference_energy_eV_per_atom"]
    predicted, reference = columns["e_above_hull_eV_per_atom"], columns["reference_e_above_hull_eV_per_atom"]
    found: dict[str, float] = {}
    if np.isfinite(predicted).any():
        found["predicted_stable"] = int((predicted <= STABLE).sum())
    if np.isfinite(error := energy - known).any():
        found["energy_MAE_eV_per_atom"] = float(np.nanmean(np.abs(error)))
    if (judged := np.isfinite(reference)).any() and np.isfinite(predicted).any():
        found |= stability_metrics(reference[judged], predicted[judged])
    if "rmsd" in columns:
        wanted = np.array([row["reference_structure"] for row in rows])
        distances, matched = columns["rmsd"][wanted], int(np.isfinite(columns["rmsd"]).sum())
        found |= {"rmsd": float(np.nan_to_num(distances, nan=UNMATCHED).mean()), "matched": matched}
        found["reference_structures"] = int(wanted.sum())
    return found


_NUMBERS = (
    "energy_eV_per_atom", "reference_energy_eV_per_atom", "e_above_hull_eV_per_atom",
    "reference_e_above_hull_eV_per_atom", "rmsd",
)  # fmt: skip
