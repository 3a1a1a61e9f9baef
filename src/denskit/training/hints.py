"""Hints: settings that were measured to be better.

One function per hint: it returns a message, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from denskit.models.model_file import read_header
from denskit.runtime.progress import counted
from denskit.tasks import DenoisingConfig, DeNSConfig
from denskit.training.checks import CRYSTAL_EPOCHS, FEW_STRUCTURES, MANY_EPOCHS, RELAXED, SMALL_DATA
from denskit.training.fitted_denoising import SMALL_BATCH, paying_epochs
from denskit.training.planned import PlannedTraining
from denskit.training.run_folder import model_file

FEW_MOLECULES = 200  # structures of molecules up to which DeNS was measured to pay: 25 to 200 of ethanol
MEASURED_RATE = 1e-3  # learning rate of the studies in which DeNS was seen to pay
SLOW_EPOCHS = 1000  # 50 of ethanol, weight 20, so many epochs: half of that rate was as good; 2,140: better by 8 %
GAINING_EPOCHS = 1667  # 100 frames of ethanol: twice 833, which gains another 10 % with DeNS
SHORT_STEPS, UNTAUGHT = 1000, 0.3  # error of forces to that of none: 0.12 after 300 steps of 4 of 50 of ethanol
OVERFITTED = 3.0  # validation to training error of the forces: 3 to 91 where DeNS gained, 1.8 to 2.7 where not


def hints_before(planned: PlannedTraining) -> list[str]:
    """Hints before the first step: settings that were measured to be better."""
    checks = (
        gentler_on_trained, denoising_pays, denoising_with_parity, gentler_on_crystals, denoising_longer,
        denoising_faster, long_validations,
    )  # fmt: skip
    found = (check(planned) for check in checks)
    return [f"hint: {message}" for message in found if message is not None]


def gentler_on_trained(planned: PlannedTraining) -> str | None:
    """A trained model that goes on at the learning rate of its own training."""
    training = planned.config.training
    if training.init_from is None:
        return None
    try:
        about = read_header(model_file(training.init_from))["metadata"]
    except (FileNotFoundError, ValueError):  # it may be gone when the run is resumed
        return None
    rate = about.get("run", {}).get("training", {}).get("lr", 0.0)
    if not rate or training.lr < rate:
        return None
    return (
        f"training.lr={training.lr:g} is the rate of a fresh training ({training.init_from} had {rate:g}), and forgets "
        f"what the model knows; a third to a tenth is usual, such as training.lr={rate / 5:.1g}"
    )


def denoising_pays(planned: PlannedTraining) -> str | None:
    """Few structures with forces, trained for long without denoising."""
    config, size = planned.config, len(planned.source)
    if isinstance(config.task, DenoisingConfig) or not planned.fresh or size > FEW_MOLECULES or planned.parity:
        return None
    if any(system.pbc.any() for system in planned.systems):  # no periodic data are known where it paid so
        return None
    paying = paying_epochs(config.training.batch_size)
    if not paying <= planned.epochs < MANY_EPOCHS or (planned.force_rms < RELAXED).any():
        return None
    small = "; on 50 of ethanol in batches of 4 by 10 % [8, 12], at 5e-4 in equal time by 15 % (one seed)"
    small *= config.training.batch_size <= SMALL_BATCH
    return (
        f"{planned.epochs:,.0f} epochs of {size} structures: at such lengths task=dens training.lr=1e-3 lowered the "
        "force error in 16 of 18 pairs of trainings (25 to 200 structures of ethanol, 50 of aspirin and of 3BPA, "
        f"batches of 8; by 7 % on average{small}; a step takes a fifth longer). At 5e-4, the better rate there without "
        "it, 25 of ethanol gained nothing, and structures unlike the training's gain less, or lose. On your data: "
        "denskit study FILE --question dens, with tests.hot=FILE for such structures"
    )


def gentler_on_crystals(planned: PlannedTraining) -> str | None:
    """Few crystals with displaced atoms at a learning rate at which such ended worse, with DeNS and without."""
    model, lr, size = planned.config.model, planned.config.training.lr, len(planned.source)
    if model.name != "equiformer" or model.forces != "gradient":  # others were not measured
        return None
    if lr < MEASURED_RATE or not planned.fresh or size > FEW_STRUCTURES or planned.epochs < CRYSTAL_EPOCHS:
        return None
    if not planned.hot_crystals or (planned.force_rms < RELAXED).any():
        return None
    return (
        f"training.lr={lr:g} for {planned.epochs:,.0f} epochs of {size} crystals with displaced atoms: 16 cells of bcc "
        "metals at 300 K ended with a force error of 23.0 meV/Å at 5e-4 and 25.4 at 1e-3, at 1,000 and 2,000 K with "
        "314 and 364; task=dens lowered it at 1e-3, and no further at 5e-4 (equiformer, one seed of both rates); "
        "training.lr=5e-4"
    )


def _dens_of_molecules(planned: PlannedTraining) -> bool:
    """Whether a new model is trained with DeNS on molecules."""
    dens = isinstance(planned.config.task, DeNSConfig) and planned.fresh
    return dens and not any(system.pbc.any() for system in planned.systems)


def denoising_with_parity(planned: PlannedTraining) -> str | None:
    """DeNS on few molecules with a model that gives mirror images one energy."""
    if not planned.parity or len(planned.source) > FEW_MOLECULES or not _dens_of_molecules(planned):
        return None
    if planned.config.model.name != "equiformer" or planned.config.model.forces != "gradient":
        return None  # others were not measured
    return (
        "DeNS with model.parity=true lowered the force errors of 25 structures of ethanol by 9 % [5, 13] (five seeds, "
        "1,333 epochs), of 50 by 3 % [-1, 7] (three seeds, 1,000 epochs), of 50 of aspirin and "
        "of 3BPA by 8 % (two, one). Other data were not measured: denskit study FILE --question dens"
    )


def denoising_longer(planned: PlannedTraining) -> str | None:
    """DeNS on few molecules for a length at which it was still gaining."""
    size = len(planned.source)
    few = FEW_STRUCTURES <= size <= 2 * FEW_STRUCTURES and planned.few_epochs <= planned.epochs < GAINING_EPOCHS
    if not (few and _dens_of_molecules(planned)) or planned.parity:
        return None
    return (
        f"{planned.epochs:,.0f} epochs of {size} structures with DeNS: on 100 structures of ethanol 1,667 epochs "
        "instead of 833 lowered the force error from 18.8 to 17.0 meV/Å with DeNS, and from 20.5 to 19.6 without "
        "(three seeds, radial functions from 0 Å); "
        f"training.max_steps={GAINING_EPOCHS * planned.schedule.steps_per_epoch}"
    )


def denoising_faster(planned: PlannedTraining) -> str | None:
    """DeNS on few molecules at a learning rate below the measured ones, for no more epochs than these had."""
    lr = planned.config.training.lr
    if lr >= MEASURED_RATE or len(planned.source) > FEW_MOLECULES or planned.parity:
        return None
    if not (planned.few_epochs <= planned.epochs < SLOW_EPOCHS and _dens_of_molecules(planned)):
        return None
    return (
        f"training.lr={lr:g} for {planned.epochs:,.0f} epochs with DeNS, which was measured to pay at 1e-3: 844 epochs "
        "of 50 structures of aspirin left a force error of 54.8 meV/Å at 5e-4, 50.1 at 1e-3 (one seed); "
        "training.lr=1e-3"
    )


def long_validations(planned: PlannedTraining) -> str | None:
    """Validations that judge more structures than the steps train on, each of which takes about half the time."""
    training, count = planned.config.training, planned.schedule.validations()
    judged = min(planned.valid, training.evaluate_structures or planned.valid)
    trained = planned.schedule.total_steps * training.batch_size
    fewer = max(10, trained // (8 * max(count, 1)))
    ways = [f"training.evaluate_structures={fewer} judges fewer"] if fewer < judged else []
    if count > 1:
        ways.append(f"a longer training.evaluate_every (now {training.evaluate_every}) judges less often")
    if not (count * judged > trained and ways):
        return None
    return (
        f"the structures that validations judge ({count:,} times {judged:,}) are more than the steps train on "
        f"({trained:,}), and may take most of the time; {', '.join(ways)}"
    )


def hint_after(row: Mapping[str, float], planned: PlannedTraining) -> str | None:
    """A hint after the last step; ``row``: the last of metrics.csv."""
    return _overfitted(row, planned) or _ended_early(row, planned)


def _ended_early(row: Mapping[str, float], planned: PlannedTraining) -> str | None:
    """Few steps, after which the forces of training structures were not learned yet."""
    error, steps = row.get("train_forces_mae_relative_to_zero", 0.0), planned.schedule.total_steps
    if not planned.fresh or steps >= SHORT_STEPS or not error > UNTAUGHT or planned.config.task.forces_weight == 0:
        return None
    if np.mean(planned.force_rms < RELAXED) > 0.5:
        return None  # errors of forces that are nearly zero say nothing of what was learned
    return (
        f"{counted(steps, 'step')} are too few for a new model: the forces of training structures still have "
        f"{error:.2f} of the error of predicting none. 50 structures of ethanol (equiformer, batches of 4) had 0.63 "
        "after 50 steps, 0.12 after 300, and took 12,000 to the lowest error; train for longer (training.budget, "
        "training.max_steps, training.epochs), or begin with a trained model (training.init_from)"
    )


def _overfitted(row: Mapping[str, float], planned: PlannedTraining) -> str | None:
    """A training without denoising whose model overfits.

    Where DeNS was measured to pay, validation errors were three times the training errors or more.
    """
    config, size = planned.config, len(planned.source)
    trained, valid = (row.get(f"{part}_forces_mae_meV_per_A", math.nan) for part in ("train", "valid"))
    denoises = isinstance(config.task, DenoisingConfig)
    if denoises or not planned.fresh or size > SMALL_DATA or not valid >= OVERFITTED * trained > 0:
        return None
    if np.mean(planned.force_rms < RELAXED) > 0.5:
        return None  # small errors of forces that are zero are no sign of overfitting
    without = (
        "on 100 structures of ethanol, with 8 times, it lowered the force error by 8 % (three seeds); on 50 structures "
        "of alloys, with 1.8 to 2.7 times, it did not"
    )
    with_parity = (
        "with model.parity=true it lowered the force errors of 25 structures of ethanol by 9 % [5, 13] (five seeds), "
        "of 50 by 3 % [-1, 7] (three), of 50 of aspirin and of 3BPA by 8 % (two, one)"
    )
    measured = with_parity if planned.parity else without
    return (
        f"the forces of validation structures have {valid / trained:.0f} times the error of training structures: more "
        f"structures help, and so may task=dens: {measured}. On your data: denskit study FILE --question dens. The "
        "mean of two or three models of other seeds gains, too (denskit evaluate --committee)"
    )
