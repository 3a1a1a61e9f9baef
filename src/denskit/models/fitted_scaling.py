"""Element references, a shift and scales, fitted on training structures (:mod:`denskit.models.scaling`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from ase.data import chemical_symbols

from denskit.batch import MAX_ATOMIC_NUMBER, System
from denskit.data.base import spaced, total_charge
from denskit.data.config import References
from denskit.models.composition_span import Composition, independent
from denskit.models.reference_fit import fit_references
from denskit.models.scaling import Scaling, listed, no_binding

Scale = Literal["energy_std", "force_rms"]
UNBOUND = 20.0  # eV an atom between energies and given references: atoms are bound by at most 9
_CHARGES = 20  # total charges of a file at most; more are sums of partial ones


def fit_scaling(
    source: Iterable[System],
    *,
    references: References,
    scale: Scale | Mapping[str, float],
    gradient_forces: bool,
    more_elements: Iterable[int] = (),
    isolated: Mapping[str, float] | None = None,
) -> tuple[Scaling, list[str]]:
    """Fit references, shift and scales on training structures.

    ``references``: ``fit`` by :func:`denskit.models.reference_fit.fit_references`, starting from isolated atoms where
    one of each element is known; a dict in eV, to which the mean residual per atom is added; ``mean``: no references
    but a shift, the mean energy of a structure; ``none``.  ``isolated``: {symbol: eV} of isolated atoms, beside those
    among the structures; see :meth:`Scaling.take_isolated`.  ``scale``: ``energy_std``, the unbiased standard
    deviation of the residuals; ``force_rms`` over components of free atoms; or numbers ``energy_shift``,
    ``energy_scale`` and ``force_scale``, and only references are fitted.  ``gradient_forces``: one scale for energy and
    forces; otherwise forces have their own rms.  ``more_elements``: further atomic numbers of the scaling (structures
    may be a sample).

    Returns the scaling and messages about the fit.  Raises ValueError where no structure has an energy, or an element
    has no reference.
    """
    data = Statistics(source, isolated)
    if not len(data.energies) and references != "none":
        raise ValueError(
            f"no training structure has an energy; references={references!r} cannot be fitted. To train on forces "
            "alone, give data.references=none"
        )
    messages: list[str] = []
    more = list(more_elements)
    table = data.references(references, messages)
    residuals = data.residuals(table)
    shift = 0.0
    if not isinstance(scale, str):
        shift, energy_scale, force_scale = scale["energy_shift"], scale["energy_scale"], scale["force_scale"]
    else:
        if references == "mean":
            shift = float(residuals.mean())
            messages += data.warn_of_extensive(residuals)
        elif isinstance(references, dict):
            table = data.centred(table, residuals, messages)
            residuals = data.residuals(table)
        bound = rows_to_fit(data.counts, data.isolated)  # bonds, not atoms, are what a model has to tell apart
        energy_scale = data.energy_scale(scale, residuals[bound], messages)
        force_scale = energy_scale if gradient_forces else data.force_rms or energy_scale
    compositions: list[Composition] = []
    if set(more) <= set(data.elements):
        if shift and data.composition is not None:
            compositions = [data.composition]
        elif references == "fit" and not data.starts_from_atoms:
            compositions = independent(data.fitted, len(data.elements))
    scaling = Scaling(
        elements=[*data.elements, *more],
        references=table,
        energy_shift=shift,
        energy_scale=energy_scale,
        force_scale=force_scale,
        compositions=compositions,
        charges=data.total_charges,
    )
    if data.atoms and (isolated or data.starts_from_atoms):
        messages.append(scaling.take_isolated(data.atoms))
    return scaling, [*messages, describe(scaling, references if isinstance(references, str) else "given")]


def describe(scaling: Scaling, origin: str) -> str:
    """One line with references, shift and scales; ``origin`` of the references."""
    values = scaling.to_dict()
    table = f"{listed(values['references'])} eV" if values["references"] else "none"
    return (
        f"references ({origin}): {table}; shift {values['energy_shift']:.4f} eV a structure; scale of energies "
        f"{values['energy_scale']:.6g} eV, of forces {values['force_scale']:.6g} eV/Å"
    )


def mean_of_given(mean: float) -> str:
    """Message: given references miss the energies by ``mean`` (eV an atom), which is added to each."""
    said = f"references: {mean:.4f} eV, the mean residual per atom of the given ones, added to each"
    if abs(mean) <= UNBOUND:
        return said
    return f"warning: {said}. No bond is as strong: they are in another unit, or of another method or pseudopotential"


class Statistics:
    """Statistics of training structures, from one pass.

    ``elements`` [K] are atomic numbers.  Of the structures with an energy: ``counts`` [B, K] atoms of each element,
    ``energies`` [B] in eV, ``isolated`` [B] single atoms without near images, ``places`` [B] in the source.
    ``force_rms`` in eV/Å is over free atoms, 0 without labels.  ``atoms``: the lowest
    energy of an isolated atom of each element, of these structures and of those given, {symbol: eV}.
    """

    def __init__(self, source: Iterable[System], atoms: Mapping[str, float] | None = None) -> None:
        energies: list[float] = []
        isolated: list[bool] = []
        compositions: list[np.ndarray] = []
        seen = np.zeros(MAX_ATOMIC_NUMBER + 1, dtype=bool)
        square = count = 0.0
        places: list[int] = []
        self._charges = set[float | None]()
        for place, system in enumerate(source):
            composition = np.bincount(system.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1)
            seen |= composition > 0
            self._charges.add(total_charge(system))
            if system.energy is not None:
                places.append(place)
                energies.append(system.energy)
                isolated.append(system.is_isolated)
                compositions.append(composition.astype(np.int32))
            if system.forces is not None:
                free = system.forces[~system.fixed]
                square, count = square + float((free**2).sum()), count + free.size
        self.elements = np.flatnonzero(seen).tolist()
        self.symbols = [chemical_symbols[z] for z in self.elements]
        self.energies, self.isolated = np.array(energies), np.array(isolated, dtype=bool)
        self.places = np.array(places, dtype=np.int64)
        table = np.array(compositions, dtype=np.int32).reshape(len(compositions), len(seen))
        self.counts = table[:, self.elements]
        self.force_rms = float(np.sqrt(square / count)) if count else 0.0
        self.atoms = dict(atoms or {})
        for row in np.flatnonzero(self.isolated).tolist():
            symbol, energy = self.symbols[int(self.counts[row].argmax())], float(self.energies[row])
            self.atoms[symbol] = min(energy, self.atoms.get(symbol, energy))

    @property
    def total_charges(self) -> list[float] | None:
        """Total charges, e; where some structures say one the others are neutral.  None where they are many."""
        said = {charge or 0.0 for charge in self._charges} if self._charges - {None} else set()
        return sorted(said) if len(said) <= _CHARGES else None

    def holders(self, element: int, most: int) -> np.ndarray:
        """Places in the source of at most ``most`` structures with an energy and atoms of an element, evenly spaced."""
        places = self.places[self.counts[:, self.elements.index(element)] > 0]
        return places[spaced(len(places), most)] if len(places) else places

    @property
    def composition(self) -> dict[str, int] | None:
        """Atoms of each element, where all structures with an energy are of one composition."""
        if not len(self.counts) or (self.counts != self.counts[0]).any():
            return None
        return {symbol: int(atoms) for symbol, atoms in zip(self.symbols, self.counts[0], strict=True) if atoms}

    @property
    def starts_from_atoms(self) -> bool:
        """Whether an isolated atom of each element is known, and there are other structures."""
        return bool((~self.isolated).any() and self.atoms.keys() >= {*self.symbols})

    @property
    def fitted(self) -> np.ndarray:
        """Atoms by atomic number [S, 119] of the structures that references are fitted to."""
        rows = rows_to_fit(self.counts, self.isolated)
        counts = np.zeros((int(rows.sum()), MAX_ATOMIC_NUMBER + 1), dtype=np.int32)
        counts[:, self.elements] = self.counts[rows]
        return counts

    def references(self, how: References, messages: list[str]) -> dict[str, float]:
        """References in eV; given ones are not yet centred."""
        if isinstance(how, dict):
            lacking = [symbol for symbol in self.symbols if symbol not in how]
            if lacking:
                raise ValueError(f"references has no energy for {', '.join(lacking)}, which the training data contain")
            return {symbol: float(energy) for symbol, energy in how.items()}
        return self._fit(messages) if how == "fit" else {}

    def _fit(self, messages: list[str]) -> dict[str, float]:
        """Ridge regression per atom, starting from isolated atoms where there is one of each element."""
        start, from_atoms = np.zeros(len(self.symbols)), self.starts_from_atoms
        rows = ~self.isolated if from_atoms else rows_to_fit(self.counts, self.isolated)
        if from_atoms:
            start = np.array([self.atoms[symbol] for symbol in self.symbols])
        counts, energies = self.counts[rows].astype(np.float64), self.energies[rows]
        fit = fit_references(counts, energies - counts @ start)
        binding = dict(zip(self.symbols, (-fit.references).tolist(), strict=True))
        if from_atoms and (strange := no_binding(binding)):  # placeholders, or of another method
            messages.append(strange)
            self.atoms = {}
            return self._fit(messages)
        if from_atoms:
            messages.append("references: fitted to the energies less those of the isolated atoms, one of each element")
        table = dict(zip(self.symbols, (start + fit.references).tolist(), strict=True))
        messages += fit.messages(table, from_atoms=from_atoms)
        return table

    def residuals(self, table: Mapping[str, float]) -> np.ndarray:
        """Energies less references [B]."""
        return np.asarray(self.energies - self.counts @ np.array([table.get(symbol, 0.0) for symbol in self.symbols]))

    def centred(self, table: dict[str, float], residuals: np.ndarray, messages: list[str]) -> dict[str, float]:
        """References plus the mean residual per atom."""
        mean = float((residuals / self.counts.sum(axis=1)).mean())
        messages.append(mean_of_given(mean))
        return {symbol: energy + mean for symbol, energy in table.items()}

    def warn_of_extensive(self, residuals: np.ndarray) -> list[str]:
        """A warning where the energies grow with the number of atoms, so that one shift is wrong."""
        atoms = self.counts.sum(axis=1)
        per_atom = self.energies - atoms * (self.energies / atoms).mean()
        if per_atom.std() >= 0.5 * residuals.std():
            return []
        return [
            f"warning: energies grow with the number of atoms ({atoms.min()} to {atoms.max()}), but "
            "data.references=mean takes the same off each structure; data.references=fit takes energies of elements off"
        ]

    def energy_scale(self, how: Scale, residuals: np.ndarray, messages: list[str]) -> float:
        """The scale ``how``, or with a warning the other one where the data have no labels or do not vary."""
        deviation = float(residuals.std(ddof=1)) if len(residuals) > 1 else 0.0
        scales = {"energy_std": deviation, "force_rms": self.force_rms}
        other = "force_rms" if how == "energy_std" else "energy_std"
        for name in (how, other):
            if scales[name] > 1e-8:  # below this, eV or eV/Å, only rounding is left
                if name != how:
                    messages.append(f"warning: {how} of the training data is zero or unknown; scaled by {name} instead")
                return scales[name]
        messages.append("warning: training energies and forces do not vary or are absent; nothing is scaled")
        return 1.0


def rows_to_fit(counts: np.ndarray, isolated: np.ndarray) -> np.ndarray:
    """Structures [S] bool that references are fitted to, of atoms by element [S, Z] and ``isolated`` [S] bool.

    An isolated atom is unlike a bound one: it counts only for elements that are in no other structure.
    """
    bound = ~isolated
    return np.asarray(bound | ~counts[:, counts[bound].any(axis=0)].any(axis=1))
