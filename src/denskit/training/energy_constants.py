"""Element references and shift of a trained model, adapted to new data.

Fits are to the residuals, labels minus predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from scipy.linalg import null_space

from denskit.batch import MAX_ATOMIC_NUMBER, System
from denskit.data.base import Source, Subset, spaced
from denskit.data.config import References
from denskit.models.base import ForceField
from denskit.models.composition_span import Composition, formula, independent
from denskit.models.config import ModelConfig
from denskit.models.fitted_scaling import Statistics, mean_of_given, rows_to_fit
from denskit.models.prediction import batches
from denskit.models.reference_fit import fit_references
from denskit.models.scaling import Scaling, listed
from denskit.runtime.memory import memory_named
from denskit.training.settings import FixedScale, RunConfig

OFFSET = 0.1  # eV an atom between labels and predictions that is worth a warning
ELSEWHERE = 2.0  # eV an atom: total energies of another kind, which no training of the weights can bridge
_SAME_ENERGY = 1e-4  # eV of a structure
_NOTHING = 1e-9  # of an energy of one eV for each element
_NAMED = 3  # compositions in a message


def compositions_in(structures: Iterable[System]) -> np.ndarray:
    """Different compositions [C, 119] of structures but isolated atoms, atoms by atomic number."""
    bound = [system.atomic_numbers for system in structures if not system.is_isolated]
    counts = [np.bincount(numbers, minlength=MAX_ATOMIC_NUMBER + 1) for numbers in bound]
    return np.unique(np.array(counts).reshape(len(counts), MAX_ATOMIC_NUMBER + 1), axis=0)


def right_compositions(
    trained: Scaling, scaling: Scaling, found: Statistics, references: References, earlier: np.ndarray
) -> list[Composition]:
    """Compositions for whose combinations alone energies are known to be right; none: for all, or unknown.

    ``earlier`` [C, 119]: compositions for which the trained model's were.
    """
    if float(scaling.energy_shift) and (references == "mean" or len(trained.compositions) < 2):
        one = [found.composition] if found.composition is not None else []
        return one if references == "mean" or one == trained.compositions else []
    if references == "none" or isinstance(references, dict) or (references != "fit" and not trained.compositions):
        return []
    if references == "fit":  # it is right for the new structures, and where it moves no energy
        moved = [_energy_of(scaling, row) - _energy_of(trained, row) for row in earlier]
        earlier = earlier[np.abs(np.array(moved)) < _SAME_ENERGY]
    return independent(np.concatenate([earlier, found.fitted]), len(scaling.elements))


def _energy_of(scaling: Scaling, counts: np.ndarray) -> float:
    """Energy (eV) of references and shift for atoms by atomic number [119]."""
    return float(counts @ scaling.references.cpu().numpy()) + float(scaling.energy_shift)


def moved_energies(before: Mapping[str, Any], after: Mapping[str, Any], origin: str) -> list[str]:
    """Message: the change of the trained model's energies by new references and shift."""
    symbols = [chemical_symbols[z] for z in before["elements"]]
    old, new = before["references"], after["references"]
    moved = {symbol: new.get(symbol, 0.0) - old.get(symbol, 0.0) for symbol in symbols}
    moved = {symbol: energy for symbol, energy in moved.items() if energy != 0}
    shift = after["energy_shift"] - before["energy_shift"]
    if not moved and not shift:
        return [f"references, shift and scale as in {origin}: energies of earlier structures stay as it predicts them"]
    parts = [f"{listed(moved)} eV an atom"] * bool(moved) + [f"{shift:.4f} eV a structure"] * bool(shift)
    return [f"scale as in {origin}, references not: energies of earlier structures move by {' and '.join(parts)}"]


class EnergyConstants:
    """References and shift of a force field while they are adapted to new data."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self.counts = np.zeros((0, MAX_ATOMIC_NUMBER + 1))  # [S, 119] atoms of the structures that were predicted
        self.left = np.zeros(0)  # [S] eV, labels minus predictions
        self.typical = np.zeros(0, dtype=bool)  # [S] False: chosen for its rare elements, which say nothing of a mean

    def take(self, references: References, found: Statistics, scale: FixedScale | str) -> None:
        """Given numbers.  Raises ValueError where given references lack an element of the training structures."""
        if isinstance(references, dict):
            for symbol, energy in found.references(references, []).items():
                self.scaling.references[atomic_numbers[symbol]] = energy
            self.scaling.energy_shift.zero_()  # so that energies of all sizes add up
        elif references == "none":
            self.scaling.references.zero_()
            self.scaling.energy_shift.zero_()
        if isinstance(scale, FixedScale):
            self.scaling.energy_shift.fill_(scale.energy_shift)

    def start_from_atoms(self, found: Statistics) -> None:
        """Move references as the energies of isolated atoms moved, where both are known of all elements of the data."""
        symbols, binding = [chemical_symbols[z] for z in found.elements], self.scaling.binding_energies
        if all(symbol in found.atoms and symbol in binding for symbol in symbols):
            for z, symbol in zip(found.elements, symbols, strict=True):
                self.scaling.references[z] = found.atoms[symbol] - binding[symbol]

    def share_shift(self, references: References, known: list[int], new: list[int], config: ModelConfig) -> list[str]:
        """Turn a constant of each structure into one of each known atom, where references are to be fitted.

        With the constant they would be right for structures of one size alone.  Energies of structures with as many
        atoms as the model was trained on do not change.
        """
        shift = float(self.scaling.energy_shift)
        if shift == 0.0 or not (references == "fit" or (new and references == "trained")):
            return []
        said = f"the model's constant of {shift:.4f} eV a structure"
        atoms = getattr(config, "average_atoms", None)
        if atoms is not None and atoms != type(config).model_fields["average_atoms"].default:  # so it was measured
            said += f" becomes {shift / atoms:.4f} eV an atom (it was trained on {atoms:g} a structure)"
            self._add(known, np.full(len(known), shift / atoms))
        elif not self.counts[:, known].any():
            said += " is left out, since no structure has an element that it knows"
        else:
            return [
                f"warning: {said} is right for structures of the size that it was trained on; energies of other sizes "
                "will not add up"
            ]
        self.scaling.energy_shift.zero_()
        self.left = self.left + shift
        return [f"{said}, so that energies of all sizes add up"]

    def are_elsewhere(self, new: list[int]) -> bool:
        """Whether structures of known elements have energies that are far from the predicted ones."""
        old = self._without(new)
        per_atom = self.left[old] / self.counts[old].sum(axis=1)
        return bool(old.any()) and float(np.median(np.abs(per_atom))) > ELSEWHERE  # a wrong label decides nothing

    def predict(
        self, force_field: ForceField, source: Source, most: int, rare: Iterable[int], config: RunConfig
    ) -> None:
        """Predict structures that have an energy, without isolated atoms of elements in the others.

        At most ``most`` evenly spaced ones of the source, and those at the places ``rare``.
        """
        places = spaced(len(source), most)
        extra = np.array(sorted({*rare} - {*places.tolist()}), dtype=np.int64)
        typical = np.arange(len(places) + len(extra)) < len(places)
        chosen = Subset(source, np.concatenate([places, extra]), source.name)
        left: list[float] = []
        labelled: list[System] = []
        has: list[bool] = []
        with torch.no_grad():
            for systems, batch, targets in batches(force_field, chosen, config.training.evaluate_batch_size):
                with memory_named(batch, "lower training.evaluate_batch_size"):
                    energies = force_field.predict(batch, ("energy",))["energy"]
                left += (targets.energy - energies)[targets.energy_mask].tolist()
                has += [system.energy is not None for system in systems]
                labelled += [system for system in systems if system.energy is not None]
        counts = [np.bincount(system.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1) for system in labelled]
        table = np.array(counts).reshape(len(left), MAX_ATOMIC_NUMBER + 1)
        kept = rows_to_fit(table, np.array([system.is_isolated for system in labelled], dtype=bool))
        self.counts, self.left, self.typical = table[kept], np.array(left)[kept], typical[np.array(has, bool)][kept]
        if not self.typical.any():  # none of the evenly spaced ones has an energy
            self.typical[:] = True

    def correct(
        self, references: References, elements: list[int], new: list[int], scale: FixedScale | str
    ) -> list[str]:
        """Correct references and shift by the residuals; messages for the log."""
        if not len(self.left):
            if references in ("fit", "mean"):
                raise ValueError(
                    f"no training structure has an energy; references={references!r} cannot be fitted. Keep those of "
                    "the trained model: data.references=trained"
                )
            return []
        messages: list[str] = []
        old = self._without(new)
        all_new = references == "fit" and not old.any()
        # where the compositions tell the energies of the elements apart
        jointly = all_new and fit_references(self.counts[:, elements].astype(float), self.left).determined.all()
        if jointly:
            messages += self._fit("corrections of the references, fitted to the residuals", ~old, elements)
        elif references == "fit" and old.any():  # structures without new elements tell most about the old ones
            known = [z for z in elements if z not in new]
            messages += self._fit("corrections of the references, fitted to the residuals", old, known)
        if not old.all() and not jointly and references in ("trained", "fit"):
            messages += self._fit("references of new elements, fitted to the residuals", ~old, new)
        lacking = [z for z in new if not self.counts[:, z].any()]
        if lacking and references in ("trained", "fit"):
            symbols = " ".join(chemical_symbols[z] for z in lacking)
            messages.append(
                f"warning: no training structure with {symbols} has an energy, so its reference is 0 eV and energies "
                "with it will be wrong; give data.references={H: ..., ...}"
            )
        if isinstance(scale, FixedScale):
            return messages
        if references == "mean":
            shift = float(self.left[self.typical].mean())
            self.scaling.energy_shift += shift
            self.left = self.left - shift
        elif isinstance(references, dict):
            mean = float((self.left / self.counts.sum(axis=1))[self.typical].mean())
            self._add([atomic_numbers[symbol] for symbol in references], np.full(len(references), mean))
            messages.append(mean_of_given(mean))
        return messages

    def keep(self, replayed: np.ndarray, new: np.ndarray, trained: Scaling) -> list[str]:
        """Of all references that are as right for the new structures take those that move no energy of replayed ones.

        Compositions [C, 119] of these, and of the new structures with isolated atoms.  Where no references keep all of
        the replayed ones, nothing changes, and a warning tells how far they move.
        """
        moved = np.array([_energy_of(self.scaling, row) - _energy_of(trained, row) for row in replayed])
        if not np.abs(moved).max(initial=0.0) > _SAME_ENERGY:
            return []
        elements = np.flatnonzero(replayed.any(axis=0) | new.any(axis=0))
        free = null_space(np.unique(new, axis=0)[:, elements])  # [K, free], changes that no new energy sees
        effect = replayed[:, elements] @ free
        effect[np.abs(effect) < _NOTHING] = 0.0  # rounding, which a solution would divide by
        change = free @ np.linalg.lstsq(effect, -moved, rcond=_NOTHING)[0]
        names = ", ".join(formula(row) for row in replayed[:_NAMED]) + ", ..." * (len(replayed) > _NAMED)
        if np.abs(moved + replayed[:, elements] @ change).max() > _SAME_ENERGY:
            return [
                f"warning: energies of the replayed {names} move with the references, by up to "
                f"{np.abs(moved).max():.4g} eV, and so do their labels"
            ]
        self._add(elements.tolist(), change)
        return [
            f"references that the new compositions leave free are those with which energies of {names} stay; new and "
            "replayed structures are taken to be of one method"
        ]

    def _fit(self, name: str, rows: np.ndarray, elements: list[int]) -> list[str]:
        fit = fit_references(self.counts[rows][:, elements].astype(np.float64), self.left[rows])
        self._add(elements, fit.references)
        symbols = [chemical_symbols[z] for z in elements]
        found, whole = (
            dict(zip(symbols, energies.tolist(), strict=True))
            for energies in (fit.references, self.scaling.references[elements])
        )
        table, (about, *warnings) = f"{name}: {listed(found)} eV", fit.messages(whole)
        if self.counts[rows].sum() > self.counts[rows][:, elements].sum():  # then it is no fit per atom of all
            left = self.left[rows] / self.counts[rows].sum(axis=1)
            about = f"{1000 * (left**2).mean() ** 0.5:.4g} meV an atom are left (rms of {rows.sum()} structures)"
        return [table, about, *warnings]

    def _without(self, elements: list[int]) -> np.ndarray:
        """Which of the structures [S] have none of some elements."""
        return np.asarray(~self.counts[:, elements].any(axis=1))

    def _add(self, elements: list[int], energies: np.ndarray) -> None:
        self.scaling.references[elements] += torch.from_numpy(energies).to(self.scaling.references.device)
        self.left = self.left - self.counts[:, elements] @ energies

    def compare(self, new: list[int], references: References) -> list[str]:
        """Mean and spread of the residuals, and a warning where they exceed a model's error."""
        if not len(self.left):
            return []
        per_atom = (self.left / self.counts.sum(axis=1))[self.typical]
        old = self._without(new)[self.typical]
        said = (
            f"before training: labels minus predictions of {len(per_atom)} training structures "
            f"{round(1000 * per_atom.mean(), 1) + 0.0} meV an atom on average, {1000 * per_atom.std():.1f} about that"
        )
        offset = float((per_atom[old if old.any() else ...] ** 2).mean() ** 0.5)
        if offset < OFFSET:
            return [said]
        advice = (
            ". data.references=fit corrects the references of the elements (energies of earlier structures move along)"
        )
        return [
            said,
            f"warning: the data's energies lie {offset:.3f} eV an atom (root mean square) from the trained model's: "
            f"another level of theory, or structures unlike those that it knows{'' if references == 'fit' else advice}",
        ]
