"""Errors that mean that a training failed, or learns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from denskit.training.settings import RunConfig

STUCK, STUCK_EPOCHS, STUCK_STEPS = 0.97, 5, 500  # error of training forces to that of none; MPtrj: 0.99 to epoch 13
FLOOR = 20.0  # meV/Å or meV: labels that are smaller on average measure no error


@dataclass(frozen=True)
class Measure:
    """An error that judges a training, relative to a constant prediction for all structures."""

    label: str
    error: str  # its name in a row of metrics.csv, after train_ or valid_
    unit: str
    relative: str
    naive: str  # prediction
    poor: float  # untrained models have 1 to 1.5 (forces) and 1 to 50 (energy)
    failed: float  # diverged models have 10 to 4000


MEASURES = (
    Measure("forces", "forces_mae_meV_per_A", "meV/Å", "forces_mae_relative_to_zero", "no forces", 2.0, 10.0),
    Measure("energy", "energy_mae_meV", "meV", "energy_mae_relative_to_mean", "the mean energy", 50.0, 1000.0),
)


@dataclass(frozen=True)
class Verdict:
    """Judgement of a training by its errors."""

    message: str
    failed: bool  # the model is worse than an untrained one


def verdict_on(row: Mapping[str, float], config: RunConfig) -> Verdict | None:
    """Judge a row of metrics.csv by its validation errors, else by its training errors; None: no problem."""
    split, where = "train", "in training"
    if any(name.startswith("valid_") for name in row):
        split, where = "valid", "on the validation split"
    for measure in MEASURES:
        error, relative = row.get(f"{split}_{measure.error}"), row.get(f"{split}_{measure.relative}")
        if error is None or relative is None or getattr(config.task, f"{measure.label}_weight") == 0:
            continue
        ratio = min(relative, error / FLOOR)
        if not ratio <= measure.poor:  # or NaN
            message = (
                f"the error of {measure.label} {where} is {error:.4g} {measure.unit}, {relative:.3g} times that of "
                f"predicting {measure.naive}"
            )
            return Verdict(message, failed=not ratio <= measure.failed)
    return None


def learns_nothing(row: Mapping[str, float], config: RunConfig) -> str | None:
    """Forces of the training structures that are still as wrong as none, so that the model will hardly learn them."""
    measure = MEASURES[0]
    error, relative = row.get(f"train_{measure.error}", 0.0), row.get(f"train_{measure.relative}", 0.0)
    if row.get("epoch", 0) < STUCK_EPOCHS or row.get("step", 0) < STUCK_STEPS or error < FLOOR or relative < STUCK:
        return None
    if config.task.forces_weight == 0:
        return None
    return (
        f"after {row['epoch']} epochs the forces of the training structures are as wrong as no forces ({error:.4g} "
        f"{measure.unit}): this model may never learn them. Begin again with a lower training.lr, now "
        f"{config.training.lr:g}: 227 structures of MPtrj were learned with 5e-4, and with 1e-3 late or not at all"
    )
