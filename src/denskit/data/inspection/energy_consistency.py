"""Energies against forces and stress: between near structures their changes must agree, in sign and in unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from denskit.data.base import spaced
from denskit.data.config import STRESS_UNITS
from denskit.data.inspection.meanings import FORCES_MEAN, STRESS_MEANS, Meanings, meaning
from denskit.data.inspection.pairs import UNSTRAINED, Pairs
from denskit.data.inspection.sample import Finding, Sample

FEWEST = 6  # pairs for a comparison
MOST = 300  # pairs for a comparison
CLOSE = 0.3  # Å: up to here the trapezoid rule holds to a few per cent
ENOUGH = 30  # pairs that close; only with fewer are others taken
SLACK = 0.2  # of the prediction and of its blur: sound pairs agree within this
ROUNDING = 1e-3  # eV
LEFT = 0.25  # of the energies' deviation: the largest residual of a fit of forces and stress together
CERTAIN = 8.0  # standard errors of a fitted factor
SAME_CAUSE = 1.2  # two factors that differ by less have one cause
SHARE = 0.7  # of the pairs agree where one factor explains them
CORRELATED = 0.7
FINE, ROUGHLY = (0.72, 1.38), (0.3, 3.0)  # predicted over found in sound data: near structures, others
ERRORS = 3.0  # standard errors, within which a few structures may differ from many
NEAR = 0.35  # Å, of half of the pairs; at 0.37 to 0.4 sound draws of 25 structures of ethanol disagree
TELLING = 0.5  # of two predictions: pairs for which they differ by more tell which is right
ODD = 0.08  # of the pairs, at least, are not explained where stresses of two kinds are mixed
NAMED = 0.75  # of these, and a standard error more, a mixture explains; rough labels of sound files 0.4 to 0.7
FEW = 3  # structures of the other kind, at least
NO_FORCE = 1e-5  # eV/Å: rounding of forces that are zero by symmetry
WRONG_SIGN = "the stress has the wrong sign (ASE's is positive under tension)"
VASP_ORDER = "the stress is in VASP's order xx yy zz xy yz zx"
PER_ATOM = "the energies are per atom, not total", "Multiply the energies of the file by the numbers of atoms"


@dataclass(frozen=True)
class Comparison:
    """Changes of the energy over pairs of near structures, against the predicted ones."""

    pairs: Pairs
    factor: float  # predicted over found, robust against wrong pairs
    correlation: float
    agree: np.ndarray  # [P] bool: pairs that this factor explains
    vasp_order: bool = False  # of the shears, with which it does

    @property
    def clear(self) -> bool:
        """One factor explains the pairs."""
        return bool(self.agree.mean() >= SHARE and abs(self.correlation) >= CORRELATED)

    @property
    def fine(self) -> bool:
        """That factor is 1, within the accuracy of pairs at this distance and of so few structures."""
        lowest, highest = FINE if self.near else ROUGHLY
        beyond = np.exp(ERRORS * np.sqrt(1 / self.correlation**2 - 1) / np.sqrt(self.independent))  # of a fitted slope
        return self.clear and not self.vasp_order and lowest / beyond < self.factor < highest * beyond

    @property
    def independent(self) -> int:
        """Pairs that no others follow from: of few structures there are many pairs, but they tell no more."""
        return max(len(np.union1d(self.pairs.first, self.pairs.second)) - 3, 1)

    @property
    def contradicted(self) -> bool:
        """No factor explains the pairs, and this is no accident of few near structures (Fisher's z)."""
        likely = np.tanh(np.arctanh(min(abs(self.correlation), 1 - 1e-9)) + ERRORS / np.sqrt(self.independent))
        return self.near and not self.clear and bool(likely < CORRELATED or self.agree.mean() < SHARE)

    @property
    def near(self) -> bool:
        """The pairs are so near that sound ones agree."""
        return bool(np.median(self.pairs.distance) < NEAR)

    @property
    def told(self) -> str:
        """In words."""
        return f"{len(self.agree)} pairs of near frames, correlation {self.correlation:.2f}"


def compare(pairs: Pairs, rise: np.ndarray, work: np.ndarray, blur: np.ndarray) -> Comparison | None:
    """Compare changes ``rise`` [P] of the energy with predictions ``work`` [P], both eV; ``blur`` [P]: scale of their
    errors.  None for too few pairs, and where nothing is predicted or found."""
    usable = np.isfinite(rise + work + blur) & (np.abs(work) > 1e-9)
    pairs, rise, work, blur = pairs.take(usable), rise[usable], work[usable], blur[usable]
    if len(rise) < FEWEST or rise.std() == 0:
        return None
    ratio, weight = rise / work, np.abs(work) / (np.abs(work) + blur)
    order = np.argsort(ratio)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    slope = float(ratio[order][half])  # the weighted median: nearly half of the pairs may be wrong
    if slope == 0:
        return None
    agree = np.abs(rise - slope * work) <= abs(slope) * (SLACK * (np.abs(work) + blur) + ROUNDING)
    return Comparison(pairs, 1 / slope, float(np.corrcoef(rise, work)[0, 1]), agree)


def with_forces(sample: Sample) -> Comparison | None:
    """Energies with forces, over pairs with the same cell; without such pairs, together with the stress."""
    pairs = sample.pairs
    pairs = pairs.take((pairs.strain < UNSTRAINED) & (np.abs(pairs.by_forces) > 1e-6))
    order = np.argsort(pairs.distance)
    close = int((pairs.distance < CLOSE).sum())
    order = order[: max(close, ENOUGH)]
    pairs = pairs.take(order[spaced(len(order), MOST)])
    return compare(pairs, pairs.rise, pairs.by_forces, pairs.forces_blur) or _together(_strained(sample))[0]


def with_stress(sample: Sample, forces: Comparison | None) -> Comparison | None:
    """Energies with stress, over pairs in different cells, less the work of ``forces`` (:func:`with_forces`).

    The shears are taken in VASP's order where that explains the energies, and the order as read does not.
    """
    pairs = _strained(sample)
    turned = replace(pairs, pulls=pairs.vasp_pulls)
    found, other = _less_forces(pairs, forces), _less_forces(turned, forces)
    if other is None or not other.clear:
        return found
    sizes = np.abs(pairs.by_stress) + np.abs(turned.by_stress)
    tell = np.abs(pairs.by_stress - turned.by_stress) > TELLING * sizes
    if tell.sum() < FEWEST or _explained(turned, forces, other.factor)[tell].mean() < SHARE:
        return found
    if found is not None and _explained(pairs, forces, found.factor)[tell].mean() > 1 - SHARE:
        return found
    return replace(other, vasp_order=True)


def _less_forces(pairs: Pairs, forces: Comparison | None) -> Comparison | None:
    if forces is None or not forces.clear or (forces.pairs.strain > UNSTRAINED).any():
        return _together(pairs)[1]
    by_forces = pairs.by_forces / forces.factor
    return compare(pairs, pairs.rise - by_forces, pairs.by_stress, pairs.stress_blur + np.abs(by_forces))


def _explained(pairs: Pairs, forces: Comparison | None, factor: float = 1.0) -> np.ndarray:
    """Pairs [P] whose energies change as forces say and ``factor`` times less than the stress does."""
    by_forces = pairs.by_forces / (forces.factor if forces is not None and forces.clear else 1.0)
    left = np.abs(pairs.rise - by_forces - pairs.by_stress / factor)
    sizes = (np.abs(pairs.by_stress) + pairs.stress_blur) / abs(factor) + np.abs(by_forces) + pairs.forces_blur
    explained: np.ndarray = left <= SLACK * sizes + ROUNDING
    return explained


def _strained(sample: Sample) -> Pairs:
    pairs = sample.pairs
    finite = np.isfinite(pairs.rise + pairs.by_forces + pairs.by_stress)
    return pairs.take((pairs.strain > 10 * UNSTRAINED) & (pairs.distance < CLOSE) & finite)


def _together(pairs: Pairs) -> tuple[Comparison | None, Comparison | None]:
    """Energies with forces and stress at once, by least squares; None where the energies do not show one of them."""
    work = np.stack([pairs.by_forces, pairs.by_stress], axis=1)
    sizes = np.sqrt((work**2).mean(axis=0)) if len(work) >= 2 * FEWEST else np.zeros(2)
    shown = sizes > 1e-6
    if not shown.any() or pairs.rise.std() == 0:
        return None, None
    scaled = work[:, shown] / sizes[shown]
    slopes = np.zeros(2)
    slopes[shown] = np.linalg.lstsq(scaled, pairs.rise, rcond=None)[0] / sizes[shown]
    left = pairs.rise - work @ slopes
    if left.std() > LEFT * pairs.rise.std():
        if shown.all():
            return None, None
        by_forces = compare(pairs, pairs.rise, pairs.by_forces, pairs.forces_blur) if shown[0] else None
        return by_forces, compare(pairs, pairs.rise, pairs.by_stress, pairs.stress_blur) if shown[1] else None
    errors = np.full(2, np.inf)
    errors[shown] = left.std() * np.sqrt(np.diag(np.linalg.pinv(scaled.T @ scaled))) / sizes[shown]
    found: list[Comparison | None] = [None, None]
    for one in np.flatnonzero(np.abs(slopes) > CERTAIN * errors):
        correlation = float(np.corrcoef(left + work[:, one] * slopes[one], work[:, one])[0, 1])
        found[one] = Comparison(pairs, 1 / slopes[one], correlation, agree=np.ones(len(left), dtype=bool))
    return found[0], found[1]


def energies_and_forces(sample: Sample) -> Iterator[Finding]:
    """The energy must change by -F.dx between near structures: signs, units and single wrong labels."""
    found = with_forces(sample)
    if found is None:
        return
    if found.contradicted:
        off = np.median(np.abs(found.pairs.rise - found.pairs.by_forces)[~found.agree])
        yield sample.finding(
            "problem",
            f"energies do not change as forces say, by {off:.3g} eV (median) in {(~found.agree).sum()} of {found.told}",
            "energies and forces of different structures, methods or units",
            "Compare the labels of these frames with the calculations",
            of=_disagreeing(found),
        )
    elif found.clear and not found.fine:
        per_atom = _per_atom(sample, found, found.pairs.by_forces, found.pairs.forces_blur)
        wrong_sign = "the forces have the wrong sign (gradients?)"
        means, advice = meaning(found.factor, {**FORCES_MEAN, **per_atom}, "forces", wrong_sign)
        yield sample.finding("problem", f"-F.dx is {found.factor:.3g} times dE over {found.told}", means, advice)
    elif found.near and len(wrong := _disagreeing(found)):
        told = "energies do not change as forces say between these and near frames"
        means = "energies or forces of other structures, methods or units, or not converged"
        yield sample.finding("problem", told, means, "Remove these frames, or compute them again", of=wrong)


def energies_and_stress(sample: Sample) -> Iterator[Finding]:
    """The energy must change by V s : e between near structures in different cells: sign, unit and order of the stress,
    and those of some structures alone."""
    forces = with_forces(sample)
    found = with_stress(sample, forces)
    if found is None or not found.clear or found.fine:
        yield from _mixed_stresses(sample, forces)
        return
    if forces is not None and not forces.fine and 1 / SAME_CAUSE < found.factor / forces.factor < SAME_CAUSE:
        return  # the energies are wrong, which the forces have shown already
    volume = float(np.median(found.pairs.volume))
    virial = ("it is a virial, not divided by the volume", "Give it a name with virial in it, or divide it")
    per_atom = _per_atom(sample, found, found.pairs.by_stress, found.pairs.stress_blur)
    means, advice = meaning(found.factor, {**STRESS_MEANS, volume: virial, **per_atom}, "stress", WRONG_SIGN)
    if found.vasp_order:
        means = ", and ".join(filter(None, (means, VASP_ORDER)))
        advice = ". ".join(filter(None, ("Write it as xx yy zz yz xz xy, or as nine numbers", advice)))
    told = f"V stress : strain is {found.factor:.3g} times dE over {found.told}, in different cells"
    yield sample.finding("problem", told, means, advice)


def _mixed_stresses(sample: Sample, forces: Comparison | None) -> Iterator[Finding]:
    """Stresses of which some are in another unit, or have another sign or order than the others."""
    pairs = _strained(sample)
    odd = ~_explained(pairs, forces)
    if odd.sum() < max(FEWEST, ODD * len(odd)):
        return
    share = f"{odd.sum()} of {len(odd)} pairs of near frames"
    whole = replace(pairs, rise=pairs.rise * sample.structures.sizes[pairs.first])
    if _explained(whole, None)[odd].mean() >= NAMED:  # sound files: at most 0.18
        found = f"energies do not change as forces and stress say in {share}, those times the numbers of atoms do"
        yield sample.finding("problem", found, *PER_ATOM)
        return
    ends = np.array([(0, 1), (1, 0), (1, 1)])  # of a pair: which of its stresses is of the other kind
    best, named, wrong = 0.0, "", np.zeros(0, dtype=np.int64)
    for name, factor, pulls in _other_kinds(pairs):
        mixed = [replace(pairs, pulls=np.where(end, pulls / factor, pairs.pulls)) for end in ends]
        explained = np.stack([_explained(one, forces) for one in mixed])[:, odd]  # [3, odd]
        if (solved := explained.any(axis=0).mean()) > best:
            best, named, wrong = solved, name, _of_the_other_kind(pairs, odd, explained, ends)
    if best < NAMED + 0.5 / np.sqrt(odd.sum()) or len(wrong) < FEW:
        return
    yield sample.finding(
        "problem",
        f"energies do not change as the stress says in {share}, in different cells",
        f"in some of the frames {named}, in others not",
        "Write all stresses in one unit, sign and order; data.stress_unit and data.stress_sign hold for a whole file",
        of=wrong,
    )


def _other_kinds(pairs: Pairs) -> Iterator[tuple[str, float, np.ndarray]]:
    """Possible mistakes in stresses: words, the factor by which they are then too large, their predictions [P, 2]."""
    yield WRONG_SIGN, -1.0, pairs.pulls
    yield VASP_ORDER, 1.0, pairs.vasp_pulls
    for unit, size in STRESS_UNITS.items():
        yield f"the stress is in {unit}", 1 / size, pairs.pulls
        yield f"{WRONG_SIGN}, and the stress is in {unit}", -1 / size, pairs.pulls


def _of_the_other_kind(pairs: Pairs, odd: np.ndarray, explained: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Structures [W] that are of the other kind, as most of their pairs say.

    odd: [P] bool, pairs that labels as read do not explain.  explained: [3, odd] bool, whether stresses of the other
    kind at ``ends`` [3, 2] do.
    """
    votes = np.full((len(odd), 2), -1)
    possible = [(explained[:, :, None] & (ends == kind)[:, None]).any(axis=0) for kind in (1, 0)]  # [odd, 2]
    votes[odd] = possible[0].astype(int) - possible[1]
    total = np.zeros(max(pairs.first.max(), pairs.second.max()) + 1)
    np.add.at(total, pairs.first, votes[:, 0])
    np.add.at(total, pairs.second, votes[:, 1])
    return np.flatnonzero(total > 0)


def nothing_compared(sample: Sample) -> Iterator[Finding]:
    """Without near structures that agree, signs and units of forces and stress are not checked; where the stress alone
    was compared, those of the forces are not.

    None of 32 files of DFT data has pairs that neither agree nor are a problem; some draws of 5 to 25 frames have.
    """
    labelled = sample.structures.has["energy"] & sample.structures.has["forces"]
    forces, stress = with_forces(sample), with_stress(sample, None)
    if labelled.sum() < 2 or (forces is not None and forces.clear):
        return
    if any(energies_and_forces(sample)) or any(energies_and_stress(sample)):
        return
    if not np.nan_to_num(sample.force_rms).max() > NO_FORCE:
        return
    compared, labels = [one for one in (forces, stress) if one is not None], "forces or stress"
    found = "no frames are near enough, or none agree well enough, to compare energies with forces"
    if stress is not None and stress.clear:
        compared, labels = [forces] if forces is not None else [], "forces"
        found = "near frames differ by their cells, so energies were compared with the stress alone"
    if compared:
        found = f"{compared[0].told}: too few, or too far apart, to compare energies with {labels}"
    of = "signs and units of the forces" if labels == "forces" else "signs and units"
    yield sample.finding("note", found, f"{of} were judged by sizes, and by bonds to H, alone")


def _disagreeing(found: Comparison) -> np.ndarray:
    """Structures [W] of two pairs or more, none of which agrees."""
    both = np.concatenate([found.pairs.first, found.pairs.second])
    places, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    good = np.bincount(inverse, weights=np.tile(found.agree, 2))
    return places[(good == 0) & (counts >= 2)]


def _per_atom(sample: Sample, found: Comparison, work: np.ndarray, blur: np.ndarray) -> Meanings:
    """The factor of energies per atom: the number of atoms where it is one, else the factor that is left when energies
    times the numbers of atoms agree with ``work`` [P]."""
    pairs = found.pairs
    sizes = sample.structures.sizes[pairs.first]
    if (sizes == sizes[0]).all():
        return {float(sizes[0]): PER_ATOM} if sizes[0] > 1 else {}
    total = compare(pairs, pairs.rise * sizes, work, blur)
    return {} if total is None or not total.clear else {abs(found.factor / total.factor): PER_ATOM}
