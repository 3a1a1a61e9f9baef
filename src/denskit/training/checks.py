"""Warnings before a training: settings that are probably mistakes.

One function per check: it returns a message, or None.
"""

from __future__ import annotations

import numpy as np

from denskit.data.base import collate
from denskit.data.periodicity import mostly_crystals
from denskit.models import MODELS
from denskit.random import keys_for
from denskit.tasks import CellDeNSConfig, DenoisingConfig, DeNS, DeNSConfig
from denskit.training.fitted_denoising import FEW_EPOCHS, SMALL_BATCH
from denskit.training.planned import PlannedTraining

LARGE_RATE = 0.05  # AdamW: about the change of each weight in a step, and weights are about 0.1
OVERLAP = 0.25  # of the shortest distance: noise that brings two corrupted atoms within half of it in one case of six
RELAXED = 0.05  # eV/Å, root mean square over the free atoms of a structure: the end of a relaxation
STRESS_WEIGHT = 10  # task.stress_weight of docs/crystals.md
STRESS_WEIGHTS = {"equiformer_v3": 5, "esen": 5}  # published
MANY_EPOCHS, FEW_STRUCTURES = 1500, 100  # 50 frames of ethanol: errors rise by 6 % from 1,000 to 2,000 epochs
PUBLISHED_EPOCHS = 1500  # of the paper's runs on MD17
SMALL_DATA = 10_000  # structures; with two million the paper gains within 12 epochs
_RULES = ("corruption_ratio", "partial", "min_atoms", "max_force", "max_corrupted_share")  # of DeNS, for structures
CRYSTAL_EPOCHS = 300  # of 16 cells of bcc metals at 300 K: longer than until DeNS was ahead at 1e-3
COMPARE = "; compare with task=energy_forces: denskit study FILE --question dens"  # which a study leaves out


def _ahead(batch_size: int) -> str:
    """Epochs after which training with DeNS overtook training without it, in words."""
    return f"{FEW_EPOCHS[1]}" if batch_size <= SMALL_BATCH else f"250 to {FEW_EPOCHS[0]}"


def warnings_before(planned: PlannedTraining) -> list[str]:
    """Warnings before the first step."""
    found = (check(planned) for check in CHECKS)
    return [f"warning: {message}" for message in found if message is not None]


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
    if task.probability == 0:
        return (
            f"task={task.name} with task.probability=0 trains without denoising, but at its cost; task=energy_forces "
            "does the same"
        )
    if task.coefficient == 0:
        return (
            f"task={task.name} with task.coefficient=0 predicts no noise, but corrupts structures, and trains on their "
            "labels as they were before; task=energy_forces trains without denoising"
        )
    return _excluded(planned, task)


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
    rms = planned.force_rms
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


def few_epochs(planned: PlannedTraining) -> str | None:
    """DeNS in a training shorter than its break-even point."""
    config, schedule = planned.config, planned.schedule
    size, fewest = len(planned.source), planned.few_epochs
    short, length = planned.epochs < fewest, "1 epoch" if planned.epochs == 1 else f"{planned.epochs:.3g} epochs"
    if short and planned.epochs >= CRYSTAL_EPOCHS and planned.hot_crystals:
        return None  # where it was ahead
    if not (isinstance(config.task, DeNSConfig) and planned.fresh and size <= SMALL_DATA and short):
        return None
    return (
        f"task={config.task.name} for {length} ({schedule.total_steps} steps of "
        f"{config.training.batch_size} structures, "
        f"{size} for training): on 50 frames of ethanol DeNS, without model.parity, was ahead only after "
        f"{_ahead(config.training.batch_size)} epochs, and the published runs on MD17 take {PUBLISHED_EPOCHS}; "
        "train longer, or use task=energy_forces"
    )


def many_epochs(planned: PlannedTraining) -> str | None:
    """Few structures, without denoising, for longer than helped."""
    size, long = len(planned.source), planned.epochs >= MANY_EPOCHS
    if isinstance(planned.config.task, DenoisingConfig) or not planned.fresh or size > FEW_STRUCTURES or not long:
        return None
    remedy = "fewer steps" if planned.parity or mostly_crystals(planned.systems) else "use task=dens, or fewer steps"
    return (
        f"{planned.epochs:,.0f} epochs of {size} structures: on 50 frames of ethanol 2,000 epochs ended worse than "
        "1,000 (34.4 and 32.3 meV/Å, one seed, radial functions from 0 Å, without model.parity); "
        f"{remedy}: training.max_steps={1000 * planned.schedule.steps_per_epoch}"
    )


def unused_stress(planned: PlannedTraining) -> str | None:
    """Stress labels without a stress output."""
    model, task = planned.config.model, planned.config.task
    usable = model.stress == "none" and not isinstance(task, CellDeNSConfig)
    if not usable or task.stress_weight > 0 or all(system.stress is None for system in planned.systems):
        return None
    if model.forces == "direct" and not has_stress_head(model.name):
        return (
            f"the training structures have stresses, which nothing uses: {model.name} has no head of them; "
            f"model.forces=gradient model.stress=strain task.stress_weight={STRESS_WEIGHT} trains on them"
        )
    return (
        "the training structures have stresses, which nothing uses; "
        f"model.stress={'strain' if model.forces == 'gradient' else 'direct'} "
        f"task.stress_weight={STRESS_WEIGHTS.get(model.name, STRESS_WEIGHT)} trains on them"
    )


def has_stress_head(model: str) -> bool:
    """Whether the stress can be a direct output of a model."""
    return "0+2" in MODELS[model].backbone.head_types


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


def milestones(planned: PlannedTraining) -> str | None:
    """Milestones of the learning rate after the end of the training."""
    schedule, training = planned.schedule, planned.config.training
    if not (late := schedule.unreached):
        return None
    last, all_late = schedule.total_steps - 1, len(late) == len(training.milestones)
    return (
        f"{'all' if all_late else 'some'} training.milestones come after the end of the training "
        f"({schedule.total_steps} steps, {planned.epochs:.3g} epochs): {', '.join(late)}. So the learning rate "
        f"{'never falls' if all_late else 'falls less often'}, and ends at {schedule.learning_rate(last):g}; give "
        "earlier ones, or training.schedule=cosine training.milestones=[]"
    )


def length(planned: PlannedTraining) -> str | None:
    """Less than one epoch."""
    steps, epoch = planned.schedule.total_steps, planned.schedule.steps_per_epoch
    if steps >= epoch:
        return None
    return f"{steps} steps are {steps / epoch:.0%} of an epoch: the other training structures are never seen"


CHECKS = (
    learning_rate, noise, idle_denoising, nothing_to_strain, denoising_at_equilibrium,
    denoising_few_crystals, few_epochs, many_epochs, unused_stress, untrained_stress, slow_layers,
    without_effect, milestones, length,
)  # fmt: skip
