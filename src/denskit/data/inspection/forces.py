"""Forces that are zero, huge, unbalanced, or in another unit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from denskit.data.base import collate, spaced
from denskit.data.config import ENERGY_UNITS, FORCE_UNITS
from denskit.data.inspection.energy_consistency import with_forces
from denskit.data.inspection.geometry import squeezed
from denskit.data.inspection.sample import AGAIN, Finding, Sample
from denskit.geometry.lattice import nearest_image
from denskit.geometry.neighbors import build_neighbors
from denskit.runtime.progress import counted
from denskit.units import HARTREE

LARGE, ABSURD = 50.0, 500.0  # eV/Å
NET, DRIFT = 0.05, 0.01  # net force an atom, of the forces' rms: something is missing; loosely converged
LEAST_DRIFT = 0.004  # eV/Å
ROUNDED = 1e-4  # eV/Å an atom: less is rounding, as in perfect crystals
LARGE_RMS = 8.0  # eV/Å, of half of the structures; molecules at 500 K have about 1, liquids at 3000 K about 2
SYMMETRIC = 0.002  # of the distances' sum: how far an atom may be from a centre of its neighbours
MOST = 1000  # structures that are looked at
# Bonds of H to C, N and O: force constants are 25 to 50 eV/Å^2 in all molecules
STIFFNESS = 33.0  # eV/Å^2
BONDED = 1.3  # Å
FEWEST = 20  # bonds, whose lengths deviate by more than
SPREAD = 0.003  # Å, and go with the force, correlation below
TREND = -0.5
# Bonds that forces of the wrong sign push further apart.  Measured on the 14 files of DFT data at hand with such bonds,
# and on 18,460 draws of 5 to 400 of their frames: no sound one is named; with the sign reversed all those of molecules
# and water are, of adsorbates and crystals a part.  The correlation within frames is then 0.9 or more in molecules and
# water, and at most 0.57 in sound draws; not within frames, up to 0.998 in 25 relaxed crystals.
RISING = 0.8  # correlation of lengths and forces above which the sign is wrong
RATTLED = 0.01  # Å, deviation of the lengths within a frame; 0.02 at room temperature
NATURAL, AROUND = {6: 1.09, 7: 1.01, 8: 0.97}, 0.1  # Å: there a bond has no force; a shared proton has none at 1.2 Å
FINE = 1.7  # times stiffer or softer than STIFFNESS: bonds as they are
SAME = 1.3  # factors that differ by less have one cause
FAR_OFF = 2.2  # times stiffer or softer than any unit explains; kcal/mol and kJ/mol are 4.2 apart
_UNITS = {  # unit of the energies: that of the forces, and the remedy
    "eV": ("eV/Å", "Say data.units=eV"),
    "kcal/mol": ("kcal/mol/Å", "Say data.units=kcal/mol if the energies are in kcal/mol, too"),
    "kJ/mol": ("kJ/mol/Å", "Say data.units=kJ/mol if the energies are in kJ/mol, too"),
    "Hartree": (
        "Hartree/Å or Rydberg/Bohr", "Say data.units=Hartree if the energies are in Hartree and lengths in Å"
    ),
    "Ry": ("Rydberg/Å", "Say data.units=Ry if the energies are in Rydberg, too"),
    "Hartree/Bohr": (
        "Hartree/Bohr",
        "Say data.forces_unit=Hartree/Bohr, and data.units=Hartree if the energies are in Hartree",
    ),
}  # fmt: skip
_FACTORS = {**ENERGY_UNITS, "Hartree/Bohr": FORCE_UNITS["Hartree/Bohr"]}  # to eV/Å


def zero(sample: Sample) -> Iterator[Finding]:
    """All forces of a structure zero, though its atoms are at no symmetric sites."""
    still = np.flatnonzero((sample.force_rms == 0) & (sample.structures.sizes > 1))
    still = still[spaced(len(still), MOST)]
    wrong = np.array([place for place in still.tolist() if not _symmetric(sample, place)], dtype=np.int64)
    if len(wrong):
        found = f"all forces are zero in {len(wrong)} of {len(still)} frames looked at, which have no such symmetry"
        advice = "Remove these frames, or name the right field: data.forces_key=KEY"
        yield sample.finding("problem", found, "forces were not computed, or set to zero", advice, of=wrong)


def _symmetric(sample: Sample, place: int) -> bool:
    """Whether every atom is in the middle of its neighbours, so that symmetry may allow no force."""
    batch, _ = collate([sample.structures[place]], torch.float64)
    try:
        batch = build_neighbors(batch, 5.0)
    except ValueError:  # another check names it
        return True
    source, target = batch.built_edges.index
    vectors = batch.edge_vectors()
    distances = vectors.norm(dim=1)
    near = torch.exp(-distances) * batch.atomic_numbers[source]  # elements make a difference
    sums = torch.zeros_like(batch.positions).index_add(0, target, vectors * near[:, None])
    lengths = sums.new_full((len(sums),), 1e-12).index_add(0, target, distances * near)
    return bool((sums.norm(dim=1) < SYMMETRIC * lengths).all())


def large(sample: Sample) -> Iterator[Finding]:
    """Forces far larger than near equilibrium."""
    largest = np.nan_to_num(sample.largest_force)
    absurd, some = largest > ABSURD, (largest > LARGE) & (largest <= ABSURD)
    means = "exploded structures, or calculations that did not converge"
    found = f"forces up to {largest.max():.3g} eV/Å"
    yield from sample.marked(absurd, "problem", found, means, f"Leave them out: data.filter.max_force={ABSURD:g}")
    found = f"forces up to {largest[some].max(initial=0):.3g} eV/Å"
    means = "structures far from equilibrium, which may dominate the loss"
    yield from sample.marked(some, "note", found, means, f"data.filter.max_force={LARGE:g} leaves them out")


def unbalanced(sample: Sample) -> Iterator[Finding]:
    """Forces that do not add up to zero."""
    structures, has = sample.structures, sample.structures.has["forces"]
    held = structures.fixed & ~structures.forces.any(axis=1)
    zeroed = has & np.logical_or.reduceat(held, structures.starts[:-1])
    found = f"forces on fixed atoms are zero in {counted(zeroed.sum(), 'frame')}"
    means = "constraints were applied to the forces; fixed atoms count in no loss and no metric"
    yield from sample.marked(zeroed, "note", found, means)
    net = np.linalg.norm(np.add.reduceat(structures.forces, structures.starts[:-1]), axis=1) / structures.sizes
    net = np.where(has & ~zeroed & (structures.sizes > 1), net, 0.0)
    rms = np.sqrt(np.mean(sample.force_rms[has] ** 2)) if has.any() else 0.0
    lost, drift = net > max(NET * rms, ROUNDED), net > max(DRIFT * rms, LEAST_DRIFT)
    if lost.any():
        found = f"forces do not add up to zero, up to {net.max():.3g} eV/Å an atom"
        means = "some are missing or were set to zero, or an outer field acts; without one no force field can fit them"
        yield sample.finding("problem", found, means, "Look at how the forces were computed and written", of=lost)
    else:
        found = f"forces do not quite add up to zero, up to {net.max():.3g} eV/Å an atom"
        yield from sample.marked(drift, "note", found, "loosely converged calculations")


def unit(sample: Sample) -> Iterator[Finding]:
    """Unit and sign by bonds to hydrogen, which are as stiff in all molecules; else the unit by the forces' size."""
    stiffness, has = bond_stiffness(sample), sample.structures.has["forces"]
    read_as = sample.structures.unit
    if stiffness is None or not read_as:
        yield from _unit_by_size(sample, has, read_as)
        return
    size, flipped = abs(stiffness), stiffness < 0
    misfits = {name: abs(np.log(size / _FACTORS[read_as] * factor / STIFFNESS)) for name, factor in _FACTORS.items()}
    likely = read_as if misfits[read_as] < np.log(FINE) else min(misfits, key=misfits.__getitem__)
    found = f"bonds to H have a force constant of {stiffness:.3g} eV/Å^2 (20 to 50 in all molecules)"
    if read_as != "eV":
        found += f" if the forces are in {_UNITS[read_as][0]}"
    if misfits[likely] > np.log(FAR_OFF):
        if not flipped:
            advice = "Compare forces and lengths of a frame with the calculation"
            yield sample.finding("problem", found, "no known unit explains it", advice)
        return
    told = []
    if flipped and not _sign_told_by_energies(sample):
        told.append(_reversed(sample))
    if likely != read_as and not _told_by_energies(sample, likely, _FACTORS[likely] / _FACTORS[read_as], flipped):
        other = (f"forces are in {_UNITS[likely][0]}", _UNITS[likely][1])
        told.append((_misread(STIFFNESS / size) or (other[0], AGAIN)) if sample.in_shards else other)
    if told:
        means, advices = zip(*told, strict=True)
        yield sample.finding("problem", found, ", and ".join(means), ". ".join(advices))


def _reversed(sample: Sample) -> tuple[str, str]:
    """Meaning and remedy of forces that push stretched bonds further apart."""
    compared = with_forces(sample)
    both = compared is not None and compared.clear  # with energies, which then are reversed, too
    labels = "energies and forces" if both else "forces"
    advice = f"Multiply the {labels} of the file by -1"
    return f"the {labels} have the wrong sign (gradients?)", f"{advice}. {AGAIN}" if sample.in_shards else advice


def _sign_told_by_energies(sample: Sample) -> bool:
    """Whether the comparison with the energies says that the sign is wrong."""
    compared = with_forces(sample)
    return compared is not None and compared.clear and compared.factor < 0


def _misread(off: float) -> tuple[str, str] | None:
    """In which unit the files were that shards were made of, with forces too small by the factor ``off``, and the
    remedy; None where no unit explains it.  Without unit fields npz files are read in kcal/mol, others in eV."""
    found = [
        (unit, read_as)
        for read_as in ("eV", "kcal/mol")
        for unit, size in ENERGY_UNITS.items()
        if unit != read_as and abs(np.log(off * ENERGY_UNITS[read_as] / size)) < np.log(FINE)
    ]
    if not found:
        return None
    means = ", or ".join(f"in {unit} and were read in {read_as}" for unit, read_as in found)
    units = " or ".join(f"data.units={unit}" for unit, _ in found)
    return f"the files that were converted are {means}", f"{AGAIN} with {units}{', as they are' * (len(found) > 1)}"


def _told_by_energies(sample: Sample, likely: str, forces_off: float, flipped: bool) -> bool:
    """Whether the comparison with the energies names the same mistake, and a remedy that is complete.

    That is so where the energies are right and the forces off by ``forces_off``, and where energies are in Hartree or
    Rydberg and forces in these per Bohr; the sign is wrong by both, or by none.
    """
    compared = with_forces(sample)
    if compared is None or not compared.clear or compared.fine or (compared.factor < 0) != flipped:
        return False
    energies_off = abs(compared.factor) * forces_off
    per_bohr = {"Hartree/Bohr": HARTREE, "Hartree": HARTREE / 2}  # Rydberg/Bohr are nearly Hartree/Å
    wanted = per_bohr.get(likely, 1.0) if sample.structures.unit == "eV" else 1.0
    return min(abs(np.log(energies_off)), abs(np.log(energies_off / wanted))) < np.log(SAME)


def _unit_by_size(sample: Sample, has: np.ndarray, read_as: str) -> Iterator[Finding]:
    usual = has & ~squeezed(sample)  # atoms on top of each other have forces of any size
    median = float(np.median(sample.force_rms[usual])) if 2 * usual.sum() > has.sum() else 0.0
    if median <= LARGE_RMS:
        return
    found = f"half of the frames have forces of more than {median:.3g} eV/Å (rms)"
    if read_as == "eV":
        means, advice = f"forces are in {_UNITS['kcal/mol'][0]}", _UNITS["kcal/mol"][1]
        yield sample.finding("problem", found, means, f"{AGAIN} with data.units" if sample.in_shards else advice)
    else:
        yield sample.finding("problem", found, "they are not in the unit that they were read in", "Look at data.units")


def bond_stiffness(sample: Sample) -> float | None:
    """Force constant (eV/Å^2) of bonds from H to C, N or O, from lengths and forces; None without a clear trend.

    On a hydrogen atom at distance d from the atom that it is bound to, the force along the bond is about -k (d - d0).
    Negative where forces of the wrong sign push stretched bonds further apart, and none of the elements says otherwise.
    """
    structures = sample.structures
    chosen = [place for place in spaced(len(structures), MOST).tolist() if structures.has["forces"][place]]
    tables = [_bonds(sample, place) for place in chosen]
    frame = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    bonds = np.concatenate([np.zeros((0, 3)), *tables])
    slopes: dict[bool, list[tuple[float, int]]] = {False: [], True: []}  # falling, rising: slope, number of bonds
    for element in NATURAL:
        own = bonds[:, 0] == element
        lengths, forces = bonds[own].T[1:]
        if len(lengths) < FEWEST or lengths.std() < SPREAD or forces.std() == 0:
            continue
        correlation = np.corrcoef(lengths, forces)[0, 1]
        rising = correlation > 0
        if correlation < TREND or (rising and _pushed_apart(lengths, forces, frame[own], NATURAL[element])):
            slopes[bool(rising)].append((np.polyfit(lengths, forces, 1)[0], len(lengths)))
    found = slopes[False] or slopes[True]
    if not found:
        return None
    steep, counts = np.array(found).T
    return float(-np.sign(steep[0]) * np.exp(np.average(np.log(np.abs(steep)), weights=counts)))


def _pushed_apart(lengths: np.ndarray, forces: np.ndarray, frame: np.ndarray, natural: float) -> bool:
    """Whether forces [M] grow with the lengths [M] of bonds, as those of the wrong sign do.

    Lengths and forces less their means in each ``frame`` [M]: bonds of two materials may differ in both.
    """
    longer, pushed = (values - _means(values, frame) for values in (lengths, forces))
    if longer.std() < RATTLED or pushed.std() == 0 or np.corrcoef(longer, pushed)[0, 1] < RISING:
        return False
    slope, start = np.polyfit(lengths, forces, 1)
    return bool(abs(-start / slope - natural) < AROUND)


def _means(values: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """The mean of the frame of each of the values [M]."""
    counts = np.maximum(np.bincount(frame), 1)
    return np.asarray((np.bincount(frame, weights=values) / counts)[frame])


def _bonds(sample: Sample, place: int) -> np.ndarray:
    """Bonds [M, 3] of hydrogen in a structure: the other element, length (Å), force on H along the bond (eV/Å)."""
    system = sample.structures[place]
    assert system.forces is not None
    hydrogen = np.flatnonzero(system.atomic_numbers == 1)
    others = np.flatnonzero(np.isin(system.atomic_numbers, (6, 7, 8)))
    if not len(hydrogen) or not len(others):
        return np.zeros((0, 3))
    vectors = system.positions[hydrogen][:, None] - system.positions[others]
    vectors = nearest_image(vectors, system.cell, system.pbc)
    lengths = np.linalg.norm(vectors, axis=2)
    nearest, rows = lengths.argmin(axis=1), np.arange(len(hydrogen))
    length = lengths[rows, nearest]
    along = (system.forces[hydrogen] * vectors[rows, nearest]).sum(axis=1) / np.maximum(length, 1e-3)
    table = np.stack([system.atomic_numbers[others[nearest]], length, along], axis=1)
    return table[(length < BONDED) & (length > 0.5)]
