"""Warnings: settings that are probably mistakes, and errors that mean that a training failed; hints.

One function per check: it returns a message, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from denskit.batch import System
from denskit.data.base import Source, collate, evenly
from denskit.data.crowding import REACH
from denskit.data.inspection.nearest import nearest_distances
from denskit.data.periodicity import mostly_crystals
from denskit.models.model_file import read_header
from denskit.random import keys_for
from denskit.tasks import CellDeNSConfig, DenoisingConfig, DeNS, DeNSConfig
from denskit.training.fitted_denoising import FEW_EPOCHS, MOLECULAR, SMALL_BATCH, few_epochs_of, paying_epochs
from denskit.training.run_folder import model_file
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig

SAMPLE = 64  # training structures that are checked
LARGE_RATE = 0.05  # AdamW: about the change of each weight in a step, and weights are about 0.1
OVERLAP = 0.25  # of the shortest distance: noise that brings two corrupted atoms within half of it in one case of six
RELAXED = 0.05  # eV/Å, root mean square over the free atoms of a structure: the end of a relaxation
MANY_EPOCHS, FEW_STRUCTURES = 1500, 100  # 50 frames of ethanol: errors rise by 6 % from 1,000 to 2,000 epochs
FEW_MOLECULES = 200  # structures of molecules up to which DeNS was measured to pay: 25 to 200 of ethanol
MEASURED_RATE = 1e-3  # learning rate of the studies in which DeNS was seen to pay
SLOW_EPOCHS = 1000  # 50 of ethanol, weight 20, so many epochs: half of that rate was as good; 2,140: better by 8 %
GAINING_EPOCHS = 1667  # 100 frames of ethanol: twice 833, which gains another 10 % with DeNS
PUBLISHED_EPOCHS = 1500  # of the paper's runs on MD17
OVERFITTED = 3.0  # validation to training error of the forces: 3 to 91 where DeNS gained, 1.8 to 2.7 where not
SMALL_DATA = 10_000  # structures; with two million the paper gains within 12 epochs
_RULES = ("corruption_ratio", "partial", "min_atoms", "max_force", "max_corrupted_share")  # of DeNS, for structures
STUCK, STUCK_EPOCHS, STUCK_STEPS = 0.97, 5, 500  # error of training forces to that of none; MPtrj: 0.99 to epoch 13
SAME = 0.01  # Å between the nearest distances of atoms of one element; 0.18 in bcc metals at 300 K
CRYSTAL_EPOCHS = 300  # of 16 cells of bcc metals at 300 K: longer than until DeNS was ahead at 1e-3
COMPARE = "; compare with task=energy_forces: denskit study FILE --question dens"  # which a study leaves out
FLOOR = 20.0  # meV/Å or meV: labels that are smaller on average measure no error


@dataclass(frozen=True)
class PlannedTraining:
    """A training before its first step."""

    config: RunConfig
    schedule: Schedule
    source: Source  # training structures
    valid: int = 0  # validation structures

    @property
    def epochs(self) -> float:
        """Length of the training."""
        return self.schedule.total_steps / self.schedule.steps_per_epoch

    @property
    def fresh(self) -> bool:
        """Whether it starts from random weights."""
        return self.config.training.init_from is None

    @cached_property
    def systems(self) -> list[System]:
        """Evenly spaced training structures."""
        return list(evenly(self.source, SAMPLE))

    @cached_property
    def on_sites(self) -> bool:
        """Whether the atoms of most structures are on the sites of a lattice."""
        return 2 * sum(map(on_lattice_sites, self.systems)) > len(self.systems)

    @property
    def hot_crystals(self) -> bool:
        """Whether most structures are crystals, and the atoms of most displaced from the sites of a lattice."""
        return mostly_crystals(self.systems) and not self.on_sites and self.shortest_distance > MOLECULAR

    @cached_property
    def shortest_distance(self) -> float:
        """Between two atoms of these structures, Å; the cutoff where none are nearer."""
        shortest = self.config.model.cutoff
        for system in self.systems:
            vectors = self.config.model.with_neighbors(collate([system], torch.float64)[0]).edge_vectors()
            shortest = min([shortest, *torch.linalg.vector_norm(vectors, dim=-1).tolist()])
        return shortest


def on_lattice_sites(system: System) -> bool:
    """Whether the atoms of each element are equally far from their nearest neighbours, as on the sites of a lattice."""
    try:
        distance, _ = nearest_distances(system, REACH)
    except ValueError:  # a cell that is no crystal's
        return False
    numbers = system.atomic_numbers
    return bool(np.isfinite(distance).all()) and all(np.ptp(distance[numbers == z]) < SAME for z in np.unique(numbers))


def _few(planned: PlannedTraining) -> int:
    return few_epochs_of(planned.config.training.batch_size)


def _ahead(batch_size: int) -> str:
    """Epochs after which training with DeNS overtook training without it, in words."""
    return f"{FEW_EPOCHS[1]}" if batch_size <= SMALL_BATCH else f"250 to {FEW_EPOCHS[0]}"


def warnings_before(planned: PlannedTraining) -> list[str]:
    """Warnings before the first step."""
    found = (check(planned) for check in CHECKS)
    return [f"warning: {message}" for message in found if message is not None]


def hints_before(planned: PlannedTraining) -> list[str]:
    """Hints before the first step: settings that were measured to be better."""
    checks = (
        gentler_on_trained, denoising_pays, gentler_on_crystals, denoising_longer, denoising_faster,
        long_validations,
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
    if isinstance(config.task, DenoisingConfig) or not planned.fresh or size > FEW_MOLECULES:
        return None
    if any(system.pbc.any() for system in planned.systems):  # no periodic data are known where it paid so
        return None
    paying = paying_epochs(config.training.batch_size)
    if not paying <= planned.epochs < MANY_EPOCHS or (_force_rms(planned) < RELAXED).any():
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
    if not planned.hot_crystals or (_force_rms(planned) < RELAXED).any():
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


def denoising_longer(planned: PlannedTraining) -> str | None:
    """DeNS on few molecules for a length at which it was still gaining."""
    size = len(planned.source)
    few = FEW_STRUCTURES <= size <= 2 * FEW_STRUCTURES and _few(planned) <= planned.epochs < GAINING_EPOCHS
    if not (few and _dens_of_molecules(planned)):
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
    if lr >= MEASURED_RATE or len(planned.source) > FEW_MOLECULES:
        return None
    if not (_few(planned) <= planned.epochs < SLOW_EPOCHS and _dens_of_molecules(planned)):
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
    """After the last step of a training without denoising, where its model overfits.

    ``row``: the last of metrics.csv.  Where DeNS was measured to pay, validation errors were three times the training
    errors or more.
    """
    config, size = planned.config, len(planned.source)
    trained, valid = (row.get(f"{part}_forces_mae_meV_per_A", math.nan) for part in ("train", "valid"))
    denoises = isinstance(config.task, DenoisingConfig)
    if denoises or not planned.fresh or size > SMALL_DATA or not valid >= OVERFITTED * trained > 0:
        return None
    if np.mean(_force_rms(planned) < RELAXED) > 0.5:
        return None  # small errors of forces that are zero are no sign of overfitting
    return (
        f"the forces of validation structures have {valid / trained:.0f} times the error of training structures: more "
        "structures help, and so may task=dens: on 100 structures of ethanol, with 8 times, it lowered the force error "
        "by 8 % (three seeds); on 50 structures of alloys, with 1.8 to 2.7 times, it did not. On your data: denskit "
        "study FILE --question dens. The mean of two or three models of other seeds gains, too (denskit evaluate "
        "--committee)"
    )


def learning_rate(planned: PlannedTraining) -> str | None:
    """Learning rate above the size of the weights."""
    lr = planned.config.training.lr
    if lr <= LARGE_RATE:
        return None
    return f"training.lr={lr:g} is about the change of every weight in each step; usual are 1e-4 to 5e-3"


def noise(planned: PlannedTraining) -> str | None:
    """Noise that makes atoms overlap."""
    task = planned.config.task
    if not isinstance(task, DenoisingConfig):
        return None
    batch = collate(planned.systems)[0]
    sigma = max(float(task.sigma_of(batch, progress).max()) for progress in (0.0, 1.0))
    shortest = planned.shortest_distance
    if sigma <= OVERLAP * shortest:
        return None
    return (
        f"task.sigma={sigma:g} Å, but atoms of the training structures are only {shortest:.2f} Å apart: corruption "
        "puts atoms on each other; usual are 0.02 to 0.2 Å"
    )


def idle_denoising(planned: PlannedTraining) -> str | None:
    """DeNS with zero probability or weight, or with rules that exclude every structure."""
    task = planned.config.task
    if not isinstance(task, DeNSConfig) or (isinstance(task, CellDeNSConfig) and task.strain_probability > 0):
        return None
    if task.probability > 0 and task.coefficient > 0:
        return _excluded(planned, task)
    name = "probability" if task.probability == 0 else "coefficient"
    return (
        f"task={task.name} with task.{name}=0 trains without denoising, but at its cost; task=energy_forces does the "
        "same"
    )


def _excluded(planned: PlannedTraining, task: DeNSConfig) -> str | None:
    """Rules that leave no structure of the sample to corrupt, in eight tries of each."""
    batch, targets = collate(planned.systems)
    always = DeNS(task.model_copy(update={"probability": 1.0}))
    places = list(range(len(planned.systems)))
    if any(bool(always.drawn_atoms(batch, targets, keys_for(0, epoch, places)).any()) for epoch in range(8)):
        return None
    rules = ", ".join(f"task.{name}={value}" for name in _RULES if (value := getattr(task, name)) is not None)
    return (
        f"task={task.name}, but none of the {len(planned.systems)} training structures looked at can be corrupted "
        f"({rules}; structures that lack a force are left out too): this trains without denoising, at its cost"
    )


def nothing_to_strain(planned: PlannedTraining) -> str | None:
    """Cell DeNS on structures without volume or stress."""
    if not isinstance(planned.config.task, CellDeNSConfig):
        return None
    if any(system.stress is not None and system.pbc.all() for system in planned.systems):
        return None
    return (
        "task=cell_dens strains crystals that have a stress, and no training structure is one; task=dens does the same "
        "here"
    )


def denoising_at_equilibrium(planned: PlannedTraining) -> str | None:
    """DeNS on structures without forces."""
    if not isinstance(planned.config.task, DeNSConfig):
        return None
    rms = _force_rms(planned)
    if np.mean(rms < RELAXED) <= 0.5:
        return None
    return (
        f"task={planned.config.task.name}, but {np.mean(rms < RELAXED):.0%} of the training structures are relaxed or "
        "have no forces (root "
        f"mean square below {RELAXED} eV/Å, median {np.median(rms):.2g}): DeNS tells structures by their forces; "
        "without them it is ordinary denoising, task.force_encoding=false. On 50 strained W-Be crystals, 76 % of them "
        "without forces, it raised the test errors of forces, energies and stress by 7, 19 and 21 % (one seed)"
    )


def denoising_few_crystals(planned: PlannedTraining) -> str | None:
    """DeNS on few crystals, where it was measured to do harm."""
    config, size = planned.config, len(planned.source)
    if not (isinstance(config.task, DeNSConfig) and planned.fresh and size <= FEW_STRUCTURES):
        return None
    if not mostly_crystals(planned.systems) or not planned.on_sites:
        return None
    return (
        f"task={config.task.name} for {size} crystals, most with atoms on the sites of a lattice, where positions "
        "alone tell the noise: on 50 structures of Mo-Nb and Ta-W alloys (333 epochs) it changed the errors of "
        "gradient forces by +18 % [-13, +50], of the stress by +22 % [-68, +111], of energies by -15 % [-28, -2] "
        f"(three seeds, settings for crystals){COMPARE}"
    )


def _force_rms(planned: PlannedTraining) -> np.ndarray:
    """Root mean square force (eV/Å) over the free atoms of each structure of the sample."""
    forces = [np.zeros(3) if s.forces is None else s.forces[~s.fixed] for s in planned.systems]
    return np.array([np.sqrt((f**2).sum(-1).mean()) if f.size else 0.0 for f in forces])


def few_epochs(planned: PlannedTraining) -> str | None:
    """DeNS in a training shorter than its break-even point."""
    config, schedule = planned.config, planned.schedule
    size, fewest = len(planned.source), _few(planned)
    short = planned.epochs < fewest
    if short and planned.epochs >= CRYSTAL_EPOCHS and planned.hot_crystals:
        return None  # where it was ahead
    if not (isinstance(config.task, DeNSConfig) and planned.fresh and size <= SMALL_DATA and short):
        return None
    return (
        f"task={config.task.name} for {planned.epochs:.3g} epochs ({schedule.total_steps} steps of "
        f"{config.training.batch_size} structures, "
        f"{size} for training): on 50 frames of ethanol DeNS was ahead only after {_ahead(config.training.batch_size)} "
        f"epochs, and the published runs on MD17 take {PUBLISHED_EPOCHS}; train longer, or use task=energy_forces"
    )


def many_epochs(planned: PlannedTraining) -> str | None:
    """Few structures, without denoising, for longer than helped."""
    size, long = len(planned.source), planned.epochs >= MANY_EPOCHS
    if isinstance(planned.config.task, DenoisingConfig) or not planned.fresh or size > FEW_STRUCTURES or not long:
        return None
    return (
        f"{planned.epochs:,.0f} epochs of {size} structures: on 50 frames of ethanol 2,000 epochs ended worse than "
        "1,000 (34.4 and 32.3 meV/Å, one seed, radial functions from 0 Å); use task=dens, or fewer steps: "
        f"training.max_steps={1000 * planned.schedule.steps_per_epoch}"
    )


def unused_stress(planned: PlannedTraining) -> str | None:
    """Stress labels without a stress output."""
    model, task = planned.config.model, planned.config.task
    usable = model.stress == "none" and not isinstance(task, CellDeNSConfig)
    if not usable or task.stress_weight > 0 or all(system.stress is None for system in planned.systems):
        return None
    return (
        "the training structures have stresses, which nothing uses; "
        f"model.stress={'strain' if model.forces == 'gradient' else 'direct'} task.stress_weight=10 trains on them"
    )


def untrained_stress(planned: PlannedTraining) -> str | None:
    """A stress output without a weight in the loss."""
    model, task = planned.config.model, planned.config.task
    if model.stress == "none" or task.stress_weight > 0:
        return None
    return (
        f"model.stress={model.stress} costs time and memory in every step, but task.stress_weight=0: no stress is "
        "trained; set a weight, or model.stress=none"
    )


def slow_layers(planned: PlannedTraining) -> str | None:
    """Lower rates of the first layers, in a training from random weights."""
    training = planned.config.training
    if training.layer_decay == 1 or not planned.fresh:
        return None
    return (
        f"training.layer_decay={training.layer_decay:g} slows the training of the first layers, which is for "
        "fine-tuning; here they are random, and training.init_from is not given"
    )


def without_effect(planned: PlannedTraining) -> str | None:
    """Settings that were changed, and that others make idle."""
    config = planned.config
    model, task, training = config.model, config.task, config.training
    marks = isinstance(task, DenoisingConfig) and getattr(task, "force_encoding", True)
    idle = (  # setting, what it is for, whether that is missing
        ("training.ema_warmup", "training.ema_decay", training.ema_decay is None),
        ("training.gamma", "training.schedule=multistep", training.schedule != "multistep"),
        ("training.min_lr", "a cosine or a warm-up", training.schedule != "cosine" and planned.schedule.warmup == 0),
        ("task.stress_loss", "a task.stress_weight above 0", task.stress_weight == 0),
        ("task.corruption_ratio", "task.partial=true", getattr(task, "partial", True) is False),
        ("model.mark_corrupted", "DeNS with encoded forces", model.mark_corrupted and not marks),
    )
    found = []
    for setting, purpose, missing in idle:
        section, _, name = setting.partition(".")
        values = getattr(config, section)
        if missing and getattr(values, name) != type(values).model_fields[name].default:
            found.append(f"{setting}={getattr(values, name)} (for {purpose})")
    return f"settings without effect: {', '.join(found)}" if found else None


def length(planned: PlannedTraining) -> str | None:
    """Less than one epoch."""
    steps, epoch = planned.schedule.total_steps, planned.schedule.steps_per_epoch
    if steps >= epoch:
        return None
    return f"{steps} steps are {steps / epoch:.0%} of an epoch: the other training structures are never seen"


CHECKS = (
    learning_rate, noise, idle_denoising, nothing_to_strain, denoising_at_equilibrium,
    denoising_few_crystals, few_epochs, many_epochs, unused_stress, untrained_stress, slow_layers,
    without_effect, length,
)  # fmt: skip


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
