"""Units of the model: element references, a shift and scales, stored with the model.

    energy in model units = (E - sum_atoms references[Z] - energy_shift) / energy_scale
    forces in model units = F / force_scale,  stress in model units = stress / stress_scale

With gradient forces the three scales are equal: forces and stress are derivatives of the energy.  Constants are fitted
per atom and stored in the references, so that cells of any size agree; only ``mean`` fits a shift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from torch import Tensor, nn

from denskit.batch import MAX_ATOMIC_NUMBER, Batch, System, Targets
from denskit.data.base import total_charge
from denskit.models.composition_span import Composition, checked, counts_of, formula, formulas, inside
from denskit.runtime.warning import warn

BINDING = (-1.0, 15.0)  # eV an atom: energies of isolated atoms above those of bound ones; 9 in tungsten
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
