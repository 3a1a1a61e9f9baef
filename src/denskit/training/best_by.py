"""The validation error by which a model is the best."""

from __future__ import annotations

from collections.abc import Mapping

from denskit.batch import System
from denskit.data.base import Source

BEST_BY = {"forces": "forces_mae_meV_per_A", "energy": "energy_mae_meV"}


def require_weight(best_by: str, *, energy: float, forces: float) -> None:
    """Raise ValueError where the label that decides on the best model has no weight in the loss."""
    if {"energy": energy, "forces": forces}[best_by] > 0:
        return
    other = "energy" if best_by == "forces" else "forces"
    cure = f"set training.best_by={other}"
    if energy == forces == 0:
        cure = f"and task.{other}_weight=0, so nothing can choose them: give one of the two a weight, if a small one"
    by = "energies" if best_by == "energy" else best_by
    raise ValueError(
        f"task.{best_by}_weight=0, but training.best_by={best_by} chooses the best weights by {by}; {cure}"
    )


def require_label(best_by: str, valid: Source) -> None:
    """Raise ValueError where no validation structure has the label, on free atoms, that decides on the best model."""

    def judges(system: System) -> bool:
        return getattr(system, best_by) is not None and (best_by != "forces" or not system.fixed.all())

    if not any(judges(system) for system in valid):
        label = "forces on free atoms" if best_by == "forces" else "label for it"
        raise ValueError(
            f"training.best_by={best_by}, but {valid.name} has no {label}; choose the other of forces and energy"
        )


def judged_by(best_by: str, errors: Mapping[str, object]) -> str:
    """The error (of ``errors``) by which a model is the best: that of ``training.best_by``.

    That of the energy where all forces are zero and tell nothing.  Raises ValueError where there is none.
    """
    if BEST_BY[best_by] not in errors:  # the label is there, on fixed atoms alone
        raise ValueError(f"training.best_by={best_by}, but no free atom is judged by it; choose the other")
    tells_nothing = best_by == "forces" and "forces_mae_relative_to_zero" not in errors
    return BEST_BY["energy" if tells_nothing and BEST_BY["energy"] in errors else best_by]
