"""Units of the model: element references, a shift and scales, fitted on training data and stored with the model.

    energy in model units = (E - sum_atoms references[Z] - energy_shift) / energy_scale
    forces in model units = F / force_scale,  stress in model units = stress / stress_scale

With gradient forces the three scales are equal: forces and stress are derivatives of the energy.  Constants are fitted
per atom and stored in the references, so that cells of any size agree; only ``mean`` fits a shift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from torch import Tensor, nn

from denskit.batch import MAX_ATOMIC_NUMBER, Batch, System, Targets
from denskit.data.base import spaced, total_charge
from denskit.data.config import References
from denskit.models.composition_span import Composition, checked, counts_of, formula, formulas, independent, inside
from denskit.models.reference_fit import fit_references
from denskit.runtime.warning import warn

Scale = Literal["energy_std", "force_rms"]
BINDING = (-1.0, 15.0)  # eV an atom: energies of isolated atoms above those of bound ones; 9 in tungsten
UNBOUND = 20.0  # eV an atom between energies and given references: atoms are bound by at most 9
_CHARGES = 20  # total charges of a file at most; more are sums of partial ones
_REFUSED = "warning: the model does not take the energies of isolated atoms"


class Scaling(nn.Module):
    """Conversion of labels to model units and of predictions back.  Buffers stay float64 in a model of any dtype.

    ``references``: {element symbol: eV}; ``energy_shift``: eV per structure; ``energy_scale``: eV; ``force_scale``:
    eV/Å; ``stress_scale``: eV/Å^3, default the energy scale; ``elements``: the atomic numbers of the training data;
    ``compositions``: {symbol: atoms} of each; where there are any, references are known to be right for combinations of
    these alone, and with a shift one composition for itself alone.  ``charges``: total charges (e) of the training
    structures that say one, which no model sees; None: unknown.  ``binding``: {symbol: eV}, energies of
    isolated atoms above the references (:mod:`denskit.nn.separation`), for a scaling without a shift.
    """

    references: Tensor  # [119] eV, by atomic number
    energy_shift: Tensor  # []
    energy_scale: Tensor  # []
    force_scale: Tensor  # []
    stress_scale: Tensor  # []
    binding: Tensor  # [119] eV, by atomic number; NaN where not known

    def __init__(
        self,
        *,
        elements: Iterable[int],
        references: dict[str, float] | None = None,
        energy_shift: float = 0.0,
        energy_scale: float = 1.0,
        force_scale: float = 1.0,
        stress_scale: float | None = None,
        compositions: Sequence[Composition] = (),
        charges: Iterable[float] | None = None,
        binding: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.elements = sorted(set(elements))
        self.compositions = checked(compositions)
        self.charges = None if charges is None else sorted({float(one) for one in charges if np.isfinite(one)})
        self._has_warned = self._has_told_charge = False
        table = torch.zeros(MAX_ATOMIC_NUMBER + 1, dtype=torch.float64)
        for symbol, energy in (references or {}).items():
            table[atomic_numbers[symbol]] = energy
        self.register_buffer("references", table)
        unknown = torch.full_like(table, torch.nan)
        self.register_buffer("binding", unknown, persistent=False)  # no tensor that files of earlier versions lack
        self.set_binding(binding or {})
        stress_scale = energy_scale if stress_scale is None else stress_scale
        scales = {"energy_scale": energy_scale, "force_scale": force_scale, "stress_scale": stress_scale}
        for name, scale in scales.items():
            if not (scale > 0 and np.isfinite(scale)):
                raise ValueError(f"{name} is {scale}; wanted a positive number")
        for name, value in {"energy_shift": energy_shift, **scales}.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to a device, keep float64: references in float32 would lose meV."""
        kept = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, moved in self._buffers.items():
            if moved is not None and moved.dtype != torch.float64:
                buffer = kept[name]
                assert buffer is not None
                self._buffers[name] = buffer.to(moved.device)
        return self

    def reference_energy(self, batch: Batch) -> Tensor:
        """Sum of the atoms' references and the shift [B] (eV, float64), which is subtracted from energies."""
        return batch.sum_over_atoms(self.references[batch.atomic_numbers]) + self.energy_shift

    def take_isolated(self, energies: Mapping[str, float]) -> str:
        """Take the energies of isolated atoms, {symbol: eV}, where that is right; a message either way.

        Wanted are no constant of each structure, and references that are right for bound atoms: where compositions do
        not determine them, they tell no binding energies.
        """
        table = self.references.tolist()
        binding = {symbol: energy - table[atomic_numbers[symbol]] for symbol, energy in energies.items()}
        if strange := no_binding(binding):
            return strange
        if float(self.energy_shift):
            return f"{_REFUSED}: the model adds a constant of {float(self.energy_shift):.4f} eV to every structure"
        self.set_binding(binding)
        return f"energies of isolated atoms: {listed(energies)} eV, exact for atoms without neighbours"

    def set_binding(self, energies: Mapping[str, float]) -> None:
        """Energies of isolated atoms above the references, {symbol: eV}; those of other elements are not known.

        They stay when references change: isolated atoms move along.
        """
        self.binding_energies = dict(energies)
        self.binding.fill_(torch.nan)
        for symbol, energy in energies.items():
            self.binding[atomic_numbers[symbol]] = energy

    @property
    def isolated_energies(self) -> dict[str, float]:
        """Energies of isolated atoms, where these are known, {symbol: eV}."""
        table = self.references.tolist()
        return {symbol: table[atomic_numbers[symbol]] + energy for symbol, energy in self.binding_energies.items()}

    def isolated_in_model_units(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Energies [N] of isolated atoms of these atomic numbers; NaN where not known."""
        return (self.binding[numbers] / self.energy_scale).to(dtype)

    def zero_of(self, composition: Mapping[str, int]) -> float:
        """As :meth:`reference_energy`, of one structure with so many atoms of each element."""
        of_atoms = sum(atoms * float(self.references[atomic_numbers[symbol]]) for symbol, atoms in composition.items())
        return of_atoms + float(self.energy_shift)

    def scale_targets(self, batch: Batch, targets: Targets) -> Targets:
        """Labels in model units and the dtype of the positions; masked labels stay 0.

        References are subtracted in float64.
        """
        dtype = batch.positions.dtype
        energy = (targets.energy.double() - self.reference_energy(batch)) / self.energy_scale
        return replace(
            targets,
            energy=torch.where(targets.energy_mask, energy, 0.0).to(dtype),
            forces=(targets.forces / self.force_scale).to(dtype),
            stress=(targets.stress / self.stress_scale).to(dtype),
        )

    def unscale(self, batch: Batch, prediction: dict[str, Tensor]) -> dict[str, Tensor]:
        """Predictions in eV (float64), eV/Å and eV/Å^3 (in their dtype), without other entries.

        Each of the "energies" [N] has its element's reference and an equal part of the shift: their sum is "energy".
        """
        physical = {}
        if "energy" in prediction:
            physical["energy"] = prediction["energy"].double() * self.energy_scale + self.reference_energy(batch)
        if "energies" in prediction:
            shift = self.references[batch.atomic_numbers] + (self.energy_shift / batch.n_atoms)[batch.system_index]
            physical["energies"] = prediction["energies"].double() * self.energy_scale + shift
        for name, scale in (("forces", self.force_scale), ("stress", self.stress_scale)):
            if name in prediction:
                physical[name] = prediction[name] * scale.to(prediction[name].dtype)
        return physical

    def check_elements(self, numbers: Tensor | np.ndarray, name: str = "the structure") -> None:
        """Raise ValueError for atomic numbers [N] (on the CPU) with an element outside the training data."""
        unknown = sorted(set(np.unique(np.asarray(numbers)).tolist()) - set(self.elements))
        if unknown:
            known = " ".join(chemical_symbols[z] for z in self.elements)
            raise ValueError(
                f"{name} has {' '.join(chemical_symbols[z] for z in unknown)}, which this model was not trained on (it "
                f"knows {known}). Train with data that have this element"
            )

    def check_structure(self, system: System, name: str = "the structure") -> None:
        """Raise ValueError for unknown elements; warn, once, of a total charge that no training structure had."""
        self.check_elements(system.atomic_numbers, name)
        charge = total_charge(system)
        if self._has_told_charge or self.charges is None or charge is None or charge in (self.charges or [0.0]):
            return
        self._has_told_charge = True
        known = ", ".join(f"{one:g}" for one in self.charges)
        told = f"a total charge of {known}" if known else "no total charge, as far as their files say"
        warn(
            f"{name} has a total charge of {charge:g}, and no model sees one: energies and forces will be those of "
            f"structures like the training's, which have {told}. Others are not named"
        )

    def check(self, batch: Batch) -> None:
        """Raise ValueError for unknown elements in a batch; warn, once, of energies that are known to be wrong."""
        self.check_elements(batch.atomic_numbers.cpu())
        if not self.compositions or self._has_warned:
            return
        counts = batch.count_elements().cpu().numpy()
        others = np.flatnonzero(~self.covers(counts))
        if not len(others):
            return
        self._has_warned = True
        shift, several = float(self.energy_shift), len(self.compositions) > 1
        adds = f"adds one constant of {shift:.4f} eV to every structure" if shift else "has energies of the elements"
        which = (
            ", which do not determine all elements," if several else ", the only composition that it was trained on,"
        )
        warn(
            f"energies will be wrong: this model {adds}, right for {'combinations of ' if several else ''}"
            f"{formulas(self.compositions)}{which} and not for {formula(counts[others[0]])}. Forces, and "
            "differences between structures of one composition, do not depend on it. Energies of others need a "
            "training with data.references={H: ..., ...} given, with an isolated atom of each element among the "
            "structures, or on compositions that determine all elements. Further compositions are not named"
        )

    def covers(self, counts: np.ndarray) -> np.ndarray:
        """Which structures [B] of so many atoms by atomic number [B, 119] shift and references may be right for."""
        if not self.compositions:
            return np.ones(len(counts), dtype=bool)
        if len(self.compositions) == 1 and float(self.energy_shift):  # without, twice as many atoms are right, too
            return np.asarray((counts == counts_of(self.compositions)).all(axis=1))
        return inside(self.compositions, counts)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for the model file; floats in JSON round-trip exactly."""
        return {
            "elements": list(self.elements),
            "references": {
                chemical_symbols[z]: float(energy) for z, energy in enumerate(self.references.tolist()) if energy != 0.0
            },
            **{
                name: float(self.get_buffer(name))
                for name in ("energy_shift", "energy_scale", "force_scale", "stress_scale")
            },
            **({"compositions": self.compositions} if self.compositions else {}),
            **({} if self.charges is None else {"charges": self.charges}),
            **({"binding": self.binding_energies} if self.binding_energies else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The scaling that ``to_dict`` wrote, also where earlier versions did, with one ``composition``."""
        values = dict(values)
        if "composition" in values:
            values["compositions"] = [values.pop("composition")]
        return cls(**values)


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


def no_binding(energies: Mapping[str, float]) -> str:
    """A warning where energies of isolated atoms above the references, {symbol: eV}, are no binding energies."""
    strange = {symbol: energy for symbol, energy in energies.items() if not BINDING[0] < energy < BINDING[1]}
    if not strange:
        return ""
    return (
        f"{_REFUSED}: they lie {listed(strange)} eV above the references of bound atoms, and binding energies lie "
        f"between {BINDING[0]:g} and {BINDING[1]:g} eV"
    )


def listed(energies: Mapping[str, float]) -> str:
    """Elements with energies in eV: "H -3.1234, O -7.2345"."""
    return ", ".join(f"{symbol} {energy:.4f}" for symbol, energy in energies.items())


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
