"""Half precision and activation checkpointing: the same training to rounding, and overflow that does no harm."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from denskit.data import load_data
from denskit.runtime.processes import join_processes
from denskit.training.load_config import RunConfig
from denskit.training.optimizer import Precision
from denskit.training.run import train
from denskit.training.trainer import Trainer
from training.same_runs import assert_same_runs
from training.test_trainer import _stop_after

Tiny = Callable[..., RunConfig]
DIRECT = "model.forces=direct"
ROUNDING = {"bf16": 0.05, "fp16": 0.01}  # relative to the norm: 8 and 11 bits, over the layers of the tiny model


def _trainer(config: RunConfig) -> Trainer:
    return Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))


def _gradients(config: RunConfig, loss_scale: float | None = None) -> torch.Tensor:
    """Gradients [P] of the first step, before the weights change."""
    trainer = _trainer(config)
    if loss_scale is not None:
        trainer.update.precision.load_state(trainer.update.precision.state() | {"scale": loss_scale})
    trainer.train_step(trainer.loader.work(0))
    return trainer.update.gradients.flat.clone()


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_gradients_in_half_precision_are_those_of_float32_to_its_rounding(tiny: Tiny, amp: str) -> None:
    """Unscaled, so clipping sees their true norm."""
    exact = _gradients(tiny(DIRECT, "training.accumulate=2"))
    rounded = _gradients(tiny(DIRECT, f"training.amp={amp}", "training.accumulate=2"), 256.0 if amp == "fp16" else None)
    difference = torch.linalg.vector_norm(rounded - exact) / torch.linalg.vector_norm(exact)
    assert 1e-5 < difference < ROUNDING[amp]


def test_clipping_acts_on_the_unscaled_gradient(tiny: Tiny) -> None:
    clipped = _gradients(tiny(DIRECT, "training.amp=fp16", "training.clip_norm=0.5"), 256.0)
    assert torch.linalg.vector_norm(clipped).item() == pytest.approx(0.5, rel=1e-5)


def test_a_step_that_overflows_is_skipped_and_counted(tiny: Tiny) -> None:
    """The loss scale of 65536 is too much for this model at first; training goes on with a smaller one."""
    run = train(tiny(DIRECT, "training.amp=fp16", "training.max_steps=12", "training.log_every=1"))
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    skipped = [int(row["skipped_steps"]) for row in rows]
    assert sum(skipped) > 0
    assert skipped[-1] == 0
    assert all((row["train_loss"] == "") == bool(count) for row, count in zip(rows, skipped, strict=True))
    assert all(math.isfinite(float(row["train_loss"])) for row in rows if row["train_loss"])
    assert "steps skipped: float16 overflowed" in (run / "train.log").read_text()


def test_a_skipped_step_changes_no_weight_and_halves_the_scale(tiny: Tiny) -> None:
    trainer = _trainer(tiny(DIRECT, "training.amp=fp16"))
    before = {name: value.clone() for name, value in trainer.force_field.state_dict().items()}
    trainer.update.precision.load_state(trainer.update.precision.state() | {"scale": 2.0**30})
    trainer.train_step(trainer.loader.work(0))
    assert trainer.step == 1
    assert trainer.totals.skipped == 1
    assert trainer.update.precision.state()["scale"] == 2.0**29
    assert all(torch.equal(value, before[name]) for name, value in trainer.force_field.state_dict().items())


def test_what_is_not_overflow_stops_the_training(tiny: Tiny) -> None:
    """A NaN stays one at any scale; it is skipped until the scale cannot be blamed any more."""
    trainer = _trainer(tiny(DIRECT, "training.amp=fp16", "training.max_steps=60"))
    with torch.no_grad():
        next(trainer.force_field.backbone.parameters()).fill_(math.nan)

    def run() -> None:
        for step in range(60):
            trainer.train_step(trainer.loader.work(step))

    with pytest.raises(ValueError, match="not finite"):
        run()
    assert 20 < trainer.step < 40


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_a_resumed_run_is_the_same_bit_for_bit(tiny: Tiny, amp: str) -> None:
    settings = [DIRECT, f"training.amp={amp}", "training.ema_decay=0.9", "training.ema_warmup=false"]
    whole = train(tiny(*settings, name="whole"))
    config = tiny(*settings, name="parts")
    _stop_after(config, 7)
    assert_same_runs(whole, train(config, resume=True))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.amp=bf16"], "model.forces=gradient: the derivative of energies rounded"),
        ([DIRECT, "training.amp=fp16", "training.dtype=float64"], "half and double precision"),
        (["training.tf32=true", "training.dtype=float64"], "products of float32"),
    ],
)
def test_precision_that_cannot_be_is_refused(tiny: Tiny, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(*overrides)


def test_validation_and_the_model_file_are_in_float32(tiny: Tiny) -> None:
    trainer = _trainer(tiny(DIRECT, "training.amp=bf16"))
    batch = trainer.loader.work(0).parts[0].batch
    one, other = (trainer.force_field.predict(batch)["forces"] for _ in range(2))
    with trainer.update.precision.autocast():
        rounded = trainer.force_field.predict(batch)["forces"]
    assert torch.equal(one, other)
    assert not torch.equal(one, rounded)  # autocast would show
    assert {parameter.dtype for parameter in trainer.force_field.parameters()} == {torch.float32}


def test_without_half_precision_nothing_is_scaled() -> None:
    precision = Precision("none", torch.device("cpu"))
    assert precision.state() == {}
    assert not precision.skips(torch.tensor(math.inf))


@pytest.mark.parametrize("forces", ["direct", "gradient"])
def test_activation_checkpointing_gives_the_same_gradients(tiny: Tiny, forces: str) -> None:
    """With dropout: the second computation must draw the same."""
    settings = [f"model.forces={forces}", "model.num_layers=2", "model.attention_dropout=0.2", "training.dtype=float64"]
    plain, checkpointed = (
        _gradients(tiny(*settings, f"training.activation_checkpointing={flag}")) for flag in ("false", "true")
    )
    assert plain.abs().max() > 0
    torch.testing.assert_close(checkpointed, plain, rtol=1e-12, atol=1e-12)


def test_activation_checkpointing_computes_blocks_twice(tiny: Tiny) -> None:
    calls = []
    for flag in ("false", "true"):
        trainer = _trainer(tiny(DIRECT, f"training.activation_checkpointing={flag}"))
        count: list[int] = []
        for block in trainer.force_field.backbone.blocks:  # type: ignore[union-attr]
            block.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        trainer.train_step(trainer.loader.work(0))
        calls.append(len(count))
    assert calls[1] == 2 * calls[0] > 0


def test_a_batch_that_does_not_fit_is_named(tiny: Tiny) -> None:
    trainer = _trainer(tiny(DIRECT))

    def more_than_there_is(*_: object) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    trainer.force_field.backbone.register_forward_pre_hook(more_than_there_is)
    with pytest.raises(
        ValueError, match=r"out of memory on a batch of 4 structures with 36 atoms and \d+ edges: lower"
    ):
        trainer.train_step(trainer.loader.work(0))
    with pytest.raises(ValueError, match=r"batch of 4 structures.*lower training\.evaluate_batch_size"):
        trainer.models.validate(0)


def test_other_errors_keep_their_name(tiny: Tiny) -> None:
    trainer = _trainer(tiny(DIRECT))

    def broken(*_: object) -> None:
        raise RuntimeError("shapes differ")

    trainer.force_field.backbone.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        trainer.train_step(trainer.loader.work(0))


def test_files(tiny: Tiny, tmp_path: Path) -> None:
    """A run in half precision writes what any run writes, and its precision is in the log."""
    run = train(tiny(DIRECT, "training.amp=bf16", "training.max_steps=2"))
    assert "float32 with bf16 where it does no harm" in (run / "train.log").read_text()
    assert (run / "model.safetensors").is_file()


class _TF32(TorchDispatchMode):
    """What a GPU does in TF32: the numbers that enter matrix products are rounded to 10 bits, sums are in float32."""

    PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in self.PRODUCTS:
            first = len(args) - 2
            args = (*args[:first], *(self.rounded(factor) for factor in args[first:]))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("forces", ["direct", "gradient"])
def test_gradients_in_tf32_are_those_of_float32_to_its_rounding(tiny: Tiny, forces: str) -> None:
    """Also where they are second derivatives: 10 bits through the products alone."""
    config = tiny(f"model.forces={forces}")
    exact = _gradients(config)
    with _TF32():
        rounded = _gradients(config)
    difference = torch.linalg.vector_norm(rounded - exact) / torch.linalg.vector_norm(exact)
    assert 1e-5 < difference < 5e-3


def test_tf32_is_for_training_on_gpus_alone(tiny: Tiny) -> None:
    """The setting of the process is what it was outside, and on the CPU inside, too."""
    before = torch.get_float32_matmul_precision()
    inside = []
    for device in ("cuda", "cpu"):
        with Precision("none", torch.device(device), tf32=True).products():
            inside.append(torch.get_float32_matmul_precision())
    assert inside == ["high", before]
    assert torch.get_float32_matmul_precision() == before
    run = train(tiny("training.tf32=true", "training.max_steps=1"))
    assert "float32 (TF32 is for NVIDIA GPUs)" in (run / "train.log").read_text()
