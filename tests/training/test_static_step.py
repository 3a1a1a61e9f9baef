"""Steps in fixed shapes: the same training as the eager loop, whatever the sizes of the structures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase.build
import ase.io
import numpy as np
import pytest
import torch
from ase.calculators.singlepoint import SinglePointCalculator
from torch.utils._python_dispatch import TorchDispatchMode

from denskit.data import load_data
from denskit.training.checkpoint import load_checkpoint
from denskit.training.config import RunConfig
from denskit.training.distributed import join_processes
from denskit.training.trainer import Trainer, train
from training.test_trainer import _assert_same_state, _rows, _stop_after

Tiny = Callable[..., RunConfig]
STEPS = 6
DOUBLE = ("training.dtype=float64", "training.step=traced")
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero"}

RUNS = {
    "everything": ("training.clip_norm=0.5", "training.ema_decay=0.9", "task.sigma_end=0.1", "training.warmup=2"),
    "last batch": ("training.drop_last=false", "data.split.train=18", "training.amsgrad=true"),
    "direct forces": ("model.forces=direct", "task.loss=paper", "task.energy_loss=mae_per_atom"),
    "no denoising": ("task=energy_forces", "model.envelope=true"),
}


def _trainer(config: RunConfig) -> Trainer:
    return Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))


def _trained(config: RunConfig, steps: int = STEPS) -> Trainer:
    trainer = _trainer(config)
    for step in range(steps):
        trainer.train_step(trainer.loader.work(step))
    trainer._catch_up()
    return trainer


def _assert_same_training(one: Trainer, other: Trainer, tolerance: float) -> None:
    """Weights, moments, averages and what was summed up for the log."""
    pairs = list(zip(one.force_field.parameters(), other.force_field.parameters(), strict=True))
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for key, state in one.optimizer.state_dict()["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(
                value, other.optimizer.state_dict()["state"][key][name], rtol=tolerance, atol=tolerance
            )
    if one.average is not None:
        torch.testing.assert_close(one.average.average, other.average.average, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.window.terms, other.window.terms, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.window.metrics.state, other.window.metrics.state, rtol=tolerance, atol=tolerance)
    assert one.window.steps == other.window.steps


@pytest.mark.parametrize("case", RUNS)
def test_static_steps_are_the_eager_ones(tiny: Tiny, case: str) -> None:
    settings = (*DOUBLE, "training.max_steps=8", *RUNS[case])
    eager, static = (_trained(tiny(*settings, f"training.step={mode}")) for mode in ("eager", "traced"))
    assert static.static is not None and eager.static is None
    start = torch.cat([p.detach().flatten() for p in _trainer(tiny(*settings)).force_field.parameters()])
    end = torch.cat([p.detach().flatten() for p in static.force_field.parameters()])
    assert float((start - end).abs().max()) > 1e-4
    _assert_same_training(eager, static, 1e-9)


def _file(path: Path, molecules: bool) -> Path:
    """Structures of different sizes with invented labels: molecules, or strained crystals."""
    generator = np.random.default_rng(0)
    frames = []
    for number in range(24):
        if molecules:
            frame = ase.build.molecule(("H2O", "CH3OH", "CH3CH2OH", "C6H6")[number % 4])
        else:
            frame = ase.build.bulk("Cu", cubic=True).repeat((1 + number % 2, 1, 1))
            frame.set_cell(frame.cell @ (np.eye(3) + 0.02 * generator.normal(size=(3, 3))), scale_atoms=True)
        frame.rattle(0.05, seed=number)
        labels = {"energy": generator.normal(), "forces": generator.normal(size=(len(frame), 3))}
        if not molecules:
            labels["stress"] = 0.01 * generator.normal(size=6)
        frame.calc = SinglePointCalculator(frame, **labels)
        frames.append(frame)
    ase.io.write(path, frames)
    return path


@pytest.mark.parametrize("kind", ["molecules", "crystals"])
def test_structures_of_different_sizes(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    """Molecules have their edges made in the step, crystals bring them; both fall into several buckets."""
    path = _file(tmp_path / "frames.xyz", kind == "molecules")
    settings = [
        *DOUBLE,
        "data.name=file",
        "data.molecule=null",
        f"data.path={path}",
        "data.references=none",
        "data.split.train=16",
    ]
    settings += ["training.accumulate=2", "training.drop_last=false", "training.batch_size=6", "model.num_elements=32"]
    settings += ["task.probability=0.5", "training.clip_norm=1.0"]
    if kind == "crystals":
        settings += ["model.stress=strain", "task.stress_weight=1", "model.max_neighbors=14"]
    eager, static = (_trained(tiny(*settings, f"training.step={mode}"), steps=3) for mode in ("eager", "traced"))
    assert static.static is not None
    buckets = list(static.static._pieces)
    assert {bucket.molecule for bucket in buckets} == ({12} if kind == "molecules" else {None})
    assert len(buckets) > 1
    _assert_same_training(eager, static, 1e-9)


def test_float32_differs_by_its_rounding_alone(tiny: Tiny) -> None:
    eager, static = (_trained(tiny(f"training.step={mode}"), steps=2) for mode in ("eager", "traced"))
    for a, b in zip(eager.gradients.flat.split(1000), static.gradients.flat.split(1000), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(eager.gradients.flat.abs().max()))


def test_a_resumed_run_is_the_same_bit_for_bit(tiny: Tiny) -> None:
    settings = ("training.step=traced", "training.ema_decay=0.9", "training.clip_norm=1.0")
    whole = train(tiny(*settings, name="whole"))
    config = tiny(*settings, name="parts")
    _stop_after(config, 7)
    parts = train(config, resume=True)
    _assert_same_state(whole, parts)
    timings = {"step_ms", "samples_per_s", "seconds", "memory_MiB"}
    last = [{key: value for key, value in _rows(run)[-1].items() if key not in timings} for run in (whole, parts)]
    assert last[0] == last[1]
    assert "tracing the step for 4 structures, 36 atoms, 288 edges" in (parts / "train.log").read_text()


class _NoWaiting(TorchDispatchMode):
    """Refuses what would wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name not in WAITING, name
        return func(*args, **(kwargs or {}))


def test_a_step_never_waits(tiny: Tiny) -> None:
    """Clipping, optimizer and average included; at these operations the host would wait for a GPU."""
    trainer = _trained(
        tiny(*DOUBLE, "training.clip_norm=1.0", "training.ema_decay=0.9", "training.amsgrad=true"), steps=1
    )
    work = trainer.loader.work(1)
    with _NoWaiting():
        trainer.train_step(work)
    assert trainer.step == 2
    eager = _trainer(tiny())
    with pytest.raises(AssertionError, match="_local_scalar_dense"), _NoWaiting():
        eager.train_step(eager.loader.work(0))


def _poisoned(trainer: Trainer) -> Iterator[Any]:
    """Work in which the third step has a label that is not a number."""
    for step in range(6):
        work = trainer.loader.work(step)
        if step == 2:
            (work.static[0].content if work.static else work.parts[0]).targets.forces[0, 0] = math.nan
        yield work


def test_nothing_of_a_step_that_is_not_finite_is_applied(tiny: Tiny) -> None:
    """Nor of a later one; the error names the step and its frames as eager training does."""
    settings = (*DOUBLE, "training.ema_decay=0.9", "task=energy_forces")
    messages, states = [], []
    for mode in ("eager", "traced"):
        trainer = _trainer(tiny(*settings, f"training.step={mode}"))

        def steps(trainer: Trainer = trainer) -> None:
            for work in _poisoned(trainer):
                trainer.train_step(work)
            trainer._catch_up()

        with pytest.raises(ValueError, match=r"step 2: the loss or its gradient is not finite.*forces nan") as error:
            steps()
        messages.append(str(error.value))
        states.append(trainer)
    assert messages[0] == messages[1]
    assert states[0].step == 2 and states[1].step == 6
    for name in ("weights", "average"):
        eager, static = (
            list(t.force_field.parameters()) if name == "weights" else t.average.average  # type: ignore[union-attr]
            for t in states
        )
        torch.testing.assert_close(eager, static, rtol=1e-9, atol=1e-9)
    steps_of = [t.optimizer.state_dict()["state"][0]["step"].item() for t in states]
    assert steps_of == [2.0, 2.0]


def test_a_failed_run_saves_no_checkpoint(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("training.step=traced", "training.checkpoint_every=1 steps", "training.log_every=100")
    original = Trainer.train_step

    def step(self: Trainer, work: Any) -> bool:
        if self.step == 1:
            work.static[0].content.targets.forces.fill_(math.inf)
        return original(self, work)

    monkeypatch.setattr(Trainer, "train_step", step)
    with pytest.raises(ValueError, match=r"(?s)step 1: the loss.*last checkpoint is kept"):
        train(config)
    assert load_checkpoint(Path(config.output) / "checkpoints" / "last.pt").step == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.attention_dropout=0.1"], "would not be drawn"),
        (["model.forces=direct", "training.amp=fp16"], "asks the host"),
        (["training.activation_checkpointing=true"], "choose one"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tiny: Tiny, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny("training.step=cuda_graph", *overrides)


def test_without_a_gpu_cuda_graphs_are_eager_steps(tiny: Tiny) -> None:
    run = train(tiny("training.step=cuda_graph", "training.max_steps=1"))
    assert (
        "training.step=cuda_graph needs a CUDA device, and this is cpu: eager steps" in (run / "train.log").read_text()
    )
