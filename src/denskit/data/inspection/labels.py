"""Labels that are absent, constant, or fall into groups that the structures do not explain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

import numpy as np

from denskit.data.base import spaced
from denskit.data.inspection.energy_consistency import with_forces, with_stress
from denskit.data.inspection.energy_sums import fewest, fit_energies
from denskit.data.inspection.geometry import squeezed
from denskit.data.inspection.sample import Finding, Sample, Severity
from denskit.data.readers.ase_files import NAMES, RESULTS
from denskit.data.structure_arrays import LABELS, WITHOUT
from denskit.units import HARTREE, KCAL_PER_MOL, KJ_PER_MOL

SCATTER = 3.0  # eV an atom, around a sum over the elements: cohesion varies by less
FAR, BEYOND = 3.0, 10.0  # eV an atom from that sum: possible for free atoms; more than any cohesion
DEVIATIONS = 12.0  # robust ones, at least
SIZES = 1.5  # largest / smallest structure, whose energies then tell whether they are by the atom:
UNEXPLAINED, EXPLAINED = 1.5, 0.25  # what a sum over the elements leaves of them (of totals 0.003 to 0.12), and of them
# times the number of atoms (of totals 0.35 to 0.5)
MOST = 10_000  # structures of that comparison
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LABEL = {"energy", "energies", "force", "forces", "gradient", "gradients"}
_STRESS = {"stress", "virial", "virials"}
_OTHER = {"unit", "units", "cutoff", "field", "tol", "tolerance", "threshold", "std", "input", "free", "kinetic", "n",
          "max", "rms", "bond", "weight", "weights"}  # fmt: skip
_PLACEHOLDER = ("a placeholder, no label", "Look at how the file was written")
OF_MODEL = (
    "energies or forces that seem to be a model's own, by their calculator or the fields beside them (of_model, "
    "max_forces_std, or time_ps, step and replica)"
)
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_LISTED = 20  # names of fields
_OF_CRYSTALS = {"spacegroup", "spacegroup_kinds", "unit_cell", "occupancy"}  # of CIF
_MASK = "Remove these frames, or let the label count in no loss: data.missing=mask"


def absent(sample: Sample) -> Iterator[Finding]:
    """Labels that some or all structures lack."""
    structures, has = sample.structures, sample.structures.has
    seen = f"; fields of the file: {_named(structures.keys)}" if structures.keys else ""
    if not (has["energy"].any() or has["forces"].any()):
        name = "If one of these fields is a label, name it: data.energy_key=KEY data.forces_key=KEY" if seen else ""
        severity: Severity = "problem" if likely_labels(structures.keys) else "note"
        yield sample.finding(severity, f"no frame has energy or forces{seen}", "nothing to train on", name)
        return
    for label in ("energy", "forces"):
        lacking = ~has[label] & ~sample.not_finite[label]
        if lacking.all():
            advice = f"Name the field with data.{label}_key=KEY, or train without: {WITHOUT[label]}"
            if label in sample.required:
                yield sample.finding("problem", f"no frame has {label}{seen}", "training wants both", advice)
        else:
            if label == "forces":
                lacking &= ~structures.isolated  # which need none
            found = f"{label} absent in {lacking.sum()} of {len(structures)} frames"
            yield from _unusable(sample, lacking, found, "training refuses them")
    unstressed = ~has["stress"] & ~structures.isolated
    if has["stress"].any() and unstressed.any():
        found = f"stress absent in {unstressed.sum()} of {len(structures)} frames"
        masked = "data.missing=mask lets them count in no loss of the stress"
        refused = "training on the stress (task.stress_weight) refuses them"
        means, advice = (masked, "") if sample.missing == "mask" else (refused, masked)
        yield sample.finding("note", found, means, advice)


def _named(keys: Sequence[str]) -> str:
    """Names of fields, without those that are words and numbers of a comment line."""
    names = [key for key in keys if not _NUMBER.fullmatch(key) and key not in _OF_CRYSTALS]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more if names else "only numbers without names"


def likely_labels(keys: Sequence[str], labels: Set[str] = _LABEL) -> list[str]:
    """Names of fields that are probably ``labels``: energies or forces."""
    words = {key: {word.lower() for word in _WORDS.findall(key)} for key in keys}
    return [key for key in keys if words[key] & labels and not words[key] & _OTHER]


def unread(sample: Sample) -> Iterator[Finding]:
    """Fields that look like labels beside those that are read, as of another method."""
    structures, read = sample.structures, {*sum(NAMES.values(), ()), *RESULTS, *sample.structures.label_keys}
    if fields := [key for key in likely_labels(structures.keys, _LABEL | _STRESS) if key not in read]:
        advice = "To train on one, name it: data.energy_key=KEY, data.forces_key=KEY, data.stress_key=KEY"
        yield sample.finding("note", f"fields that may be labels and are not read: {_named(fields)}", "", advice)


def not_finite(sample: Sample) -> Iterator[Finding]:
    """Labels that are NaN or infinite; the sample counts them as absent."""
    for label in LABELS:
        found = f"{label} is NaN or infinite"
        yield from _unusable(sample, sample.not_finite[label], found, "a calculation that failed")


def _unusable(sample: Sample, mask: np.ndarray, found: str, means: str) -> Iterator[Finding]:
    """A finding about labels that cannot be used: a note where the settings let them count in no loss."""
    if sample.missing == "mask":
        yield from sample.marked(mask, "note", found, "they count in no loss (data.missing=mask)")
    else:
        yield from sample.marked(mask, "problem", found, means, _MASK)


def constant(sample: Sample) -> Iterator[Finding]:
    """One value as the label of all structures."""
    structures = sample.structures
    energy, stress = structures.energy[structures.has["energy"]], structures.stress[structures.has["stress"]]
    if len(energy) > 2 and np.ptp(energy) == 0:
        yield sample.finding("problem", f"all energies are {energy[0]:g} eV", *_PLACEHOLDER)
    if len(stress) > 2 and not stress.any():
        yield sample.finding("problem", "all stresses are zero", *_PLACEHOLDER)
        return
    empty = structures.has["stress"] & ~structures.stress.reshape(len(structures), -1).any(1)
    yield from sample.marked(empty & (sample.largest_force > 0), "problem", "a stress of exactly zero", *_PLACEHOLDER)


def of_model(sample: Sample) -> Iterator[Finding]:
    """Results of a model in place of labels."""
    if frames := sample.by_mark.get("of_model"):
        yield Finding(
            severity="problem",
            found=OF_MODEL,
            means="results of a DenskitCalculator, frames of denskit md, select or predict, "
            "without labels: a training on them learns the model's errors",
            advice="Label them: denskit label FILE -o OUT --with METHOD. Where these are labels of a reference method, "
            "name them REF_energy and REF_forces, or remove the other fields",
            frames=frames,
        )


def unconverged(sample: Sample) -> Iterator[Finding]:
    """Labels of electrons that did not converge, as VASP's output tells."""
    if frames := sample.by_mark.get("unconverged"):
        yield Finding(
            severity="problem",
            found="the electrons did not converge, since VASP did not reach EDIFF",
            means="energies and forces may be far off",
            advice="Leave these frames out, or compute them again with more steps (NELM) or another ALGO",
            frames=frames,
        )


def electrons(sample: Sample) -> Iterator[Finding]:
    """Total charges and spins that differ: no model sees them."""
    of_frames = [dict(pairs) for pairs in sample.structures.electrons]
    told = []
    for name in dict.fromkeys(name for own in of_frames for name in own):
        seen = {own[name] for own in of_frames if name in own}
        absent = ["absent"] if any(name not in own for own in of_frames) and seen != {0.0} else []
        if len(listed := [f"{value:g}" for value in sorted(seen)[:_LISTED]] + absent) > 1:
            told.append(f"{name} is {', '.join(listed)}")
    if told:
        means = "no model sees them, so labels of structures that differ in them alone contradict each other"
        yield sample.finding("note", f"{' and '.join(told)} in different frames", means, "Train on frames of one kind")


def energy_groups(sample: Sample) -> Iterator[Finding]:
    """Energies of one composition in two groups, though the structures of both are alike, or too far apart for any."""
    forces = with_forces(sample)
    for compared in (forces, with_stress(sample, forces)):
        if compared is not None and compared.clear and not compared.fine and abs(np.log(abs(compared.factor))) > 0.5:
            return  # all energies are on another scale: another finding
    if not sample.splits:
        return
    energy = sample.structures.energy
    medians = np.array([[np.median(energy[few]), np.median(energy[many])] for few, many in sample.splits])
    yield sample.finding(
        "problem",
        f"energies of one composition fall into two groups {np.abs(np.diff(medians)).max():.4g} eV apart, which the "
        "geometries do not explain",
        _mixture(float(np.median(medians[:, 0] / medians[:, 1]))) or "labels of two methods, or wrong ones",
        "Remove these frames or the others, or correct their energies",
        of=np.concatenate([few for few, _ in sample.splits]),
    )


def _mixture(ratio: float) -> str:
    """The unit that explains the factor between two groups of labels; empty where none does."""
    for name, unit in {"kcal/mol": KCAL_PER_MOL, "kJ/mol": KJ_PER_MOL, "Hartree": HARTREE}.items():
        if ratio > 0 and abs(abs(np.log(ratio)) - abs(np.log(unit))) < np.log(1.1):
            return f"some of them in {name}, the others in eV"
    return ""


def by_the_atom(sample: Sample) -> Iterator[Finding]:
    """Energies that are a sum over the elements only when they are multiplied by the number of atoms."""
    structures = sample.structures
    has = np.flatnonzero(structures.has["energy"])
    has = has[spaced(len(has), MOST)]
    elements, places = np.unique(structures.atomic_numbers, return_inverse=True)
    if len(has) < fewest(len(elements)):
        return
    sizes, energy = structures.sizes[has], structures.energy[has]
    if sizes.max() < SIZES * sizes.min() or np.ptp(energy) == 0:
        return
    counts = np.array(
        [np.bincount(places[slice(*structures.starts[at : at + 2])], minlength=len(elements)) for at in has]
    )
    if _left(counts, energy) > UNEXPLAINED and _left(counts, energy * sizes) < EXPLAINED:
        means = "energies by the atom, where those of whole structures are wanted (or adsorption energies of one size)"
        advice = "Multiply them by the number of atoms"
        yield sample.finding("problem", "energies do not grow with the number of atoms", means, advice)


def _left(counts: np.ndarray, energy: np.ndarray) -> float:
    """Root mean square of the residuals of a sum over the elements, over the standard deviation of the energies."""
    left = energy - counts @ np.linalg.lstsq(counts, energy, rcond=None)[0]
    return float(np.sqrt(np.mean(left**2)) / energy.std())


def energy_sums(sample: Sample) -> Iterator[Finding]:
    """Energies far from a sum over the elements (a robust linear fit), as of other methods and units."""
    structures = sample.structures
    has = np.flatnonzero(structures.has["energy"] & ~squeezed(sample))  # compressed structures have any energy
    enough = max(fewest(len(np.unique(structures.atomic_numbers))), 0.5 * structures.has["energy"].sum())
    if len(has) < enough or len(sample.groups) < 2:
        return
    starts = structures.starts
    numbers = [structures.atomic_numbers[starts[place] : starts[place + 1]] for place in has]
    fit = fit_energies(numbers, structures.energy[has])
    left = np.array([fit.residual(*one) for one in zip(numbers, structures.energy[has], strict=True)])
    deviation = fit.deviation
    if deviation > SCATTER:
        yield sample.finding(
            "problem",
            f"energies scatter by {deviation:.3g} eV an atom around a sum over the elements",
            "they are not in eV, or of two methods or units",
            "Look at the energies per atom of each source of the file; data.units=kcal/mol for a file in kcal/mol",
        )
        return
    most = max(FAR, DEVIATIONS * deviation)
    far = np.abs(left) > most
    largest = np.abs(left).max()
    found = f"energies up to {largest:.3g} eV an atom from a sum over the elements (others {deviation:.2g})"
    if far.any() and largest > BEYOND:
        means = "wrong labels, or another method or unit"
        advice = f"Correct their energies, or leave them out: data.filter.max_energy_deviation={most:.3g}"
        yield sample.finding("problem", found, means, advice, of=has[far])
    elif far.any():
        yield sample.finding("note", found, "free atoms and torn bonds, or wrong labels", of=has[far])
