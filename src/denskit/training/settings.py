"""Settings of a run: model, data, task, training.  :mod:`denskit.training.load_config` loads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    SerializeAsAny,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from denskit.data.config import DataConfig
from denskit.models.config import ModelConfig
from denskit.reading.remote import address_of
from denskit.settings import OnResume, Seed, Settings
from denskit.tasks import LossConfig, build_task
from denskit.training.best_by import require_weight
from denskit.zoo import PREFIX

_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) ?(step|epoch|minute)s?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?) ?lr")
_BUDGET = re.compile(r"(\d+(?:\.\d+)?) (second|minute|hour|day)s?")
_BUDGET_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}


class Interval(NamedTuple):
    """An interval of a repeated event."""

    number: float
    unit: str  # "step", "epoch" or "minute"


def parse_interval(text: str) -> Interval:
    """``"500 steps"``, ``"1 epoch"``, ``"10 minutes"``.  Raises ValueError for anything else, and for zero."""
    match = _INTERVAL.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no interval; write '500 steps', '1 epoch' or '10 minutes'")
    if match[2] == "step" and not float(match[1]).is_integer():
        raise ValueError(f"{text!r}: a number of steps is a whole number")
    return Interval(float(match[1]), match[2])


def parse_budget(text: str) -> float:
    """Seconds of ``"30 minutes"`` or ``"1.5 hours"``.  Raises ValueError for anything else, and for zero."""
    match = _BUDGET.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no time; write '30 minutes' or '1.5 hours'")
    return float(match[1]) * _BUDGET_UNITS[match[2]]


def _interval_text(value: object) -> object:
    """A bare number counts steps; the text is checked here, so that errors come with the key."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value} steps"
    if isinstance(value, str):
        parse_interval(value)
    return value


def rate_of(rate: float | str, lr: float) -> float:
    """The learning rate of a number, or of a share of the largest (``"0.2 lr"``).  Raises ValueError for other text."""
    if not isinstance(rate, str):
        return rate
    match = _SHARE.fullmatch(rate)
    if match is None:
        raise ValueError(f"{rate!r} is no learning rate; write a number, or a share of training.lr such as '0.2 lr'")
    return float(match[1]) * lr


def _rate(value: float | str) -> float | str:
    if rate_of(value, 1.0) < 0:
        raise ValueError("a learning rate is not below 0")
    return value


def _duration(value: float | str) -> float | str:
    if not isinstance(value, str):
        if value < 0:
            raise ValueError("a length is not below 0")
    elif parse_interval(value).unit == "minute":
        raise ValueError(f"{value!r}: give steps or epochs, so that runs are repeatable")
    return value


def _budget_text(value: object) -> object:
    parse_budget(str(value))
    return value


IntervalText = Annotated[str, BeforeValidator(_interval_text)]
Milestone = Annotated[IntervalText, AfterValidator(_duration)]
Rate = Annotated[float | str, AfterValidator(_rate)]
LENGTHS = ("epochs", "max_steps", "budget")  # of which one is given, or the first two
BY_SIZE = ("batch_size", "lr", "ema_decay", "weight_decay", "epochs")  # which may follow the number of structures
Budget = Annotated[str, BeforeValidator(_budget_text)]
Duration = Annotated[float | str, AfterValidator(_duration)]


class FixedScale(Settings):
    """Units of the model that are given, not measured (OC20 and OC22 publish theirs)."""

    energy_shift: float = 0.0
    """Taken off each energy after the references of the elements, eV."""
    energy_scale: float = Field(gt=0)
    """Unit of the model's energies, eV."""
    force_scale: float = Field(gt=0)
    """Unit of the model's forces, eV/Å; equal to energy_scale for gradient forces."""


class TrainingConfig(Settings):
    """How to train.  A step is one update of the weights."""

    batch_size: int = Field(default=8, ge=1)
    """Structures of one step, over all processes and micro-batches; results do not depend on the division."""
    accumulate: int = Field(default=1, ge=1)
    """Micro-batches that each process divides its share of a step into, to save memory."""
    epochs: OnResume[int | None] = Field(default=None, ge=1)
    """Length of the training in passes over the training data; give this, max_steps or budget, or
    epochs and max_steps, of which the shorter counts."""
    max_steps: OnResume[int | None] = Field(default=None, ge=1)
    """Length of the training in steps."""
    budget: Budget | None = None
    """Length of the training as a time on this machine, "30 minutes" or "2 hours": the number of steps
    follows from a trial of a few steps, is corrected by the speed of the training, and is saved with the run."""
    drop_last: bool = True
    """Skip the last, incomplete batch of an epoch, as published; the shuffle changes each epoch."""
    lr: OnResume[float] = Field(default=5e-4, gt=0)
    """Largest learning rate."""
    min_lr: OnResume[Rate] = 1e-6
    """Learning rate at the end of the cosine; also as a share of lr: "0.01 lr"."""
    schedule: Literal["cosine", "multistep", "constant"] = "cosine"
    """Learning rate after the warm-up; "multistep" multiplies it by gamma at each of the milestones."""
    milestones: tuple[Milestone, ...] = ()
    """When "multistep" lowers the learning rate, from the start of the training: ["11.7 epochs", "300000 steps"]."""
    gamma: float = Field(default=0.3, gt=0, lt=1)
    """Factor of "multistep" at each milestone."""
    schedule_unit: Literal["epoch", "step"] = "step"
    """Unit in which learning rate and task progress (the coefficient of DeNS) change: "epoch" as published for MD17."""
    warmup: Duration = 0.0
    """Length of the linear warm-up: "0.1 epochs", "100 steps"; a number counts schedule_units; a number below 1
    is a share of the training."""
    warmup_lr: Rate | None = None
    """Learning rate where the warm-up starts, also as a share of lr: "0.2 lr"; null: min_lr."""
    weight_decay: float = Field(default=1e-6, ge=0)
    """Weight decay of AdamW; none for biases, norms and radial bases."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Betas of AdamW."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Epsilon of AdamW."""
    amsgrad: bool = False
    """AdamW with the largest second moment so far (published for eSCN)."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient of all weights; null: no clipping."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of a running average of the weights, which evaluation and model files use; null: none."""
    ema_warmup: bool = True
    """Average over fewer steps at first, so that short trainings forget the initial weights; false: as published for
    OC20, the same decay from the first step."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of weights and activations."""
    amp: Literal["none", "bf16", "fp16"] = "none"
    """Mixed precision (autocast), for direct forces only; fp16 (as published for OC20) scales the
    loss and skips steps that overflow."""
    tf32: bool = False
    """Float32 matmuls in TF32, on NVIDIA GPUs; no effect elsewhere."""
    kernels: OnResume[Literal["auto", "plain", "fused"]] = "auto"
    """Edge operations of Equiformer: plain PyTorch, fused kernels (CPUs only), or auto: fused on CPUs. Results agree to
    rounding."""
    cuda_graphs: OnResume[bool] = True
    """On one GPU, record the steps of batches of up to 32,768 edges as CUDA graphs: several times as fast. Needs memory
    for up to an eighth more atoms and edges. No effect on CPUs, on several GPUs, with activation_checkpointing,
    edge_chunk or task=anids."""
    activation_checkpointing: OnResume[bool] = False
    """Recompute the activations of each block in the backward pass: less memory, more time."""
    edge_chunk: OnResume[int | None] = Field(default=None, ge=1)
    """Approximate edges per chunk; activations are recomputed: less memory for large systems; null: no chunks."""
    scale: Literal["energy_std", "force_rms", "trained"] | FixedScale = "energy_std"
    """Unit of the model's energies: their standard deviation (published for MD17), the root mean square force, or given
    numbers: {energy_shift: -0.755, energy_scale: 2.887, force_scale: 2.887}; trained: that of init_from's model."""
    evaluate_every: OnResume[IntervalText] = "1 epoch"
    """When to evaluate on the validation split ("500 steps", "1 epoch"); also at the end."""
    evaluate_structures: OnResume[int | None] = Field(default=None, ge=1)
    """Validate on so many structures, evenly spaced over the validation split; null: on all."""
    evaluate_batch_size: OnResume[int] = Field(default=32, ge=1)
    """Structures evaluated at once."""
    log_every: OnResume[int] = Field(default=50, ge=1)
    """Steps between two rows of metrics.csv; each evaluation adds its own row."""
    checkpoint_every: OnResume[IntervalText] = "10 minutes"
    """When to save checkpoints/last.pt ("1000 steps", "1 epoch", "10 minutes"); also at the end and on Ctrl-C."""
    best_by: Literal["forces", "energy"] = "forces"
    """The validation MAE by which a model is the best; the energy's where all forces there are zero by symmetry."""
    final: OnResume[Literal["best", "last"]] = "best"
    """Which weights become model.safetensors: best on validation, or the last (as published for MD17)."""
    init_from: str | None = None
    """Model file, run folder or shipped model (``zoo:NAME``) to start from: its weights, settings, elements, element
    references and scale (fine-tuning)."""
    fresh_heads: tuple[str, ...] = ()
    """Heads that start random instead of from init_from: [energy] as published for EquiformerV3's gradient training."""
    frozen: tuple[str, ...] = ()
    """Parts of the model in init_from that are not trained: [embedding, blocks.0] or [embedding, blocks], ..."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of the learning rate for each block farther from the heads: 0.8 changes the first layers of a trained
    model less than the last."""
    replay: str | None = None
    """File or folder of structures that the model in init_from was trained on, to train on again beside the new ones,
    so that they are not forgotten."""
    replay_share: float = Field(default=0.25, gt=0, lt=1)
    """Share of the structures of an epoch that are replayed."""
    shard: OnResume[bool] = False
    """Divide the optimizer's state and the averaged weights over the processes: 12 bytes a weight become 12 / processes
    on each, and updated weights are exchanged after each step. For models that do not fit otherwise."""
    prefetch: OnResume[int] = Field(default=4, ge=1)
    """Batches prepared ahead, in the background; at least one for each of loader_threads."""
    loader_threads: OnResume[int] = Field(default=1, ge=1)
    """Threads that prepare batches; more than 1 helps where the neighbour list takes longer than a step."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) != 1 and given != ["epochs", "max_steps"]:
            if given:
                found = f"{' and '.join(f'training.{name}' for name in given)} each set the length of the training"
            else:
                found = "the training has no length"
            raise ValueError(f"{found}; give one of {', '.join(f'training.{name}' for name in LENGTHS)}")
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate={self.accumulate} micro-batches of batch_size={self.batch_size} structures")
        if self.warmup == 0 and self.warmup_lr is not None:
            raise ValueError(f"warmup_lr={self.warmup_lr} would be ignored with warmup=0; leave it out or set warmup")
        if self.warmup_lr is not None and rate_of(self.warmup_lr, self.lr) > self.lr:
            raise ValueError(
                f"warmup_lr={self.warmup_lr}, where the rate begins, is above lr={self.lr}, to which it rises"
            )
        if rate_of(self.min_lr, self.lr) > self.lr:
            raise ValueError(f"min_lr={self.min_lr} is above lr={self.lr}")
        if (self.schedule == "multistep") != bool(self.milestones):
            raise ValueError(
                f"schedule={self.schedule} with milestones={list(self.milestones)}: multistep, and only that, needs "
                'milestones, such as ["11.7 epochs", "15 epochs"]'
            )
        if self.amp != "none" and self.dtype == "float64":
            raise ValueError(f"amp={self.amp} with dtype=float64 asks for half and double precision; choose one")
        if self.tf32 and self.dtype == "float64":
            raise ValueError("tf32=true is for products of float32, and dtype=float64 has none; choose one")
        if self.fresh_heads and self.init_from is None:
            raise ValueError(
                f"fresh_heads={', '.join(self.fresh_heads)} would change nothing: without init_from all heads are fresh"
            )
        if self.frozen and self.init_from is None:
            raise ValueError(
                f"frozen={', '.join(self.frozen)} would keep random weights; give init_from, a trained model"
            )
        if self.init_from is None and self.replay is not None:
            raise ValueError(
                f"replay={self.replay} is for fine-tuning; give init_from, or list all files in data.train"
            )
        if self.replay is None and self.replay_share != type(self).model_fields["replay_share"].default:
            raise ValueError(f"replay_share={self.replay_share:g} without replay has no effect; give replay=FILE")
        if parse_interval(self.evaluate_every).unit == "minute":
            raise ValueError(f"evaluate_every={self.evaluate_every}: give steps or epochs, so that runs are repeatable")
        return self


class SizeRow(Settings):
    """Settings by size of the training set; settings given by the user win."""

    up_to: int | None = Field(default=None, ge=1)
    """Largest number of training structures of this row; null: any."""
    min_steps: int | None = Field(default=None, ge=1)
    """Where ``training.budget`` has time for fewer steps, the row above is taken; null: this one always."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of the training: batch_size, lr, ema_decay, weight_decay, and epochs, the most beside max_steps."""

    @model_validator(mode="after")
    def _of_the_training(self) -> SizeRow:
        if wrong := [name for name in self.training if name not in BY_SIZE]:
            raise ValueError(f"sizes sets training.{wrong[0]}; it may set {', '.join(BY_SIZE)}")
        return self


class RunConfig(Settings):
    """Everything that a run depends on."""

    model: SerializeAsAny[InstanceOf[ModelConfig]]
    """Settings of one of ``denskit.models.MODELS``."""
    data: DataConfig
    """Where structures and labels come from."""
    task: SerializeAsAny[InstanceOf[LossConfig]]
    """Training task: energy and forces, DeNS, ..."""
    training: TrainingConfig
    """Optimiser, schedule, length, evaluation, files."""
    sizes: tuple[SizeRow, ...] = ()
    """Settings of model and training by the number of training structures and, with a time budget, of steps; resolved
    when these are known."""
    output: OnResume[str]
    """Run folder, made by the run; on the command line ``runs/PRESET`` where not given."""
    seed: Seed = 0
    """Of initial weights, split, order of the data, corruption and dropout."""
    device: OnResume[str] = "auto"
    """"auto" (a CUDA device if there is one), "cpu", "cuda" or "cuda:1"."""
    deterministic: OnResume[bool] = False
    """Use deterministic algorithms only (slower on CUDA; the CPU always repeats itself bit for bit). In Python this
    holds for all of PyTorch until the session ends."""

    @field_validator("output")
    @classmethod
    def _at_home(cls, output: str) -> str:
        return str(Path(output).expanduser()) if output.startswith("~") else output

    @model_validator(mode="after")
    def _nothing_ignored(self) -> RunConfig:
        if self.task.stress_weight > 0 and self.model.stress == "none":
            raise ValueError(
                f"task.stress_weight={self.task.stress_weight}, but the model predicts no stress; "
                "set model.stress=strain or task.stress_weight=0"
            )
        if self.training.amp != "none" and self.model.forces == "gradient":
            raise ValueError(
                f"training.amp={self.training.amp}, but model.forces=gradient: the derivative of energies rounded to 8 "
                "or 11 bits is mostly rounding, and training would differentiate it once more. Use amp=none, or "
                "model.forces=direct"
            )
        self.model.require_degrees(self.model.heads | build_task(self.task).heads)
        self._check_scale()
        require_weight(self.training.best_by, energy=self.task.energy_weight, forces=self.task.forces_weight)
        return self

    def _check_scale(self) -> None:
        scale, origin = self.training.scale, self.training.init_from
        if origin is None and "trained" in (scale, self.data.references):
            raise ValueError(
                "data.references=trained and training.scale=trained are those of the model in training.init_from; give "
                "it, or choose data.references=fit and training.scale=force_rms"
            )
        if origin is not None and scale in ("energy_std", "force_rms"):
            raise ValueError(
                f"training.scale={scale} would measure new units, and the weights of training.init_from={origin} are "
                "only right in their own; leave it out (training.scale=trained). The loss is weighed by "
                "task.energy_weight and task.forces_weight"
            )
        if not isinstance(scale, FixedScale):
            return
        if self.data.references == "mean":
            raise ValueError(
                "data.references=mean measures the constant that training.scale.energy_shift gives; set "
                "data.references=none (or fit, or energies), or training.scale=energy_std"
            )
        if self.model.forces == "gradient" and scale.energy_scale != scale.force_scale:
            raise ValueError(
                f"training.scale has energy_scale={scale.energy_scale:g} and force_scale={scale.force_scale:g}; with "
                "model.forces=gradient they must be equal, or forces would not be the gradient of the energy"
            )

    @property
    def required_labels(self) -> tuple[str, ...]:
        """Labels that carry weight in the loss, so that their absence is an error."""
        return tuple(name for name in ("energy", "forces", "stress") if getattr(self.task, f"{name}_weight") > 0)

    def document(self) -> dict[str, Any]:
        """The whole configuration as plain data, from which the same run can be made again.

        Of ``data.split`` only what was given: other shares are defaults of the dataset.
        """
        document = self.model_dump(mode="json")
        document["data"]["split"] = self.data.split.model_dump(mode="json", exclude_unset=True)
        data = document["data"]
        for name in ("path", "train", "valid", "test", "oc20_ref"):  # a run folder is used from other places, too
            if isinstance(data.get(name), list):
                data[name] = [part | {"path": _absolute(part["path"])} for part in data[name]]
            elif data.get(name) is not None:
                data[name] = _absolute(data[name])
        for name in ("init_from", "replay"):
            if document["training"][name] is not None:
                document["training"][name] = _absolute(document["training"][name])
        if isinstance(data["references"], str) and Path(data["references"]).suffix:
            data["references"] = _absolute(data["references"])
        return document

    def completed(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A saved document with defaults for settings that it lacks, which were added since."""
        filled = dict(document)
        for section in ("model", "data", "task", "training"):
            fields = type(getattr(self, section)).model_fields
            defaults = {name: field.get_default() for name, field in fields.items() if not field.is_required()}
            filled[section] = to_jsonable_python(defaults) | dict(document.get(section, {}))
        return filled


def _absolute(name: str) -> str:
    """A path from the root; addresses and names of shipped models as they are."""
    elsewhere = address_of(name) is not None or name.startswith(PREFIX)
    return name if elsewhere else str(Path(name).expanduser().resolve())
