"""Recorded training steps: padded batches, one recording for a shape, the same weights as without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from denskit.data import load_data
from denskit.geometry.neighbors import build_neighbors
from denskit.geometry.padding import padded_shape
from denskit.runtime.cuda_graph import WARM_UPS, Function, Recorded
from denskit.runtime.processes import join_processes
from denskit.training import recorded as module
from denskit.training.checkpoint import load_checkpoint
from denskit.training.forecast import settled
from denskit.training.load_config import load_config
from denskit.training.recorded import RecordedBackward, may_record
from denskit.training.run import train
from denskit.training.trainer import Trainer

from tolerances import REFERENCE64, SAME_GRADIENT64

ON_GPU = 1e-5  # of weights after a few steps of 5e-4
SETTINGS = [
    "demo", "task=dens", "data.split={train: 20, valid: 4, test: 4}", "training.batch_size=4", "training.max_steps=6",
    "training.dtype=float64", "training.ema_decay=0.9", "training.drop_last=false",
]  # fmt: skip


class OnTheCPU:
    """Stands in for a recording where there is no GPU: calls the function on tensors of its own."""

    made = 0
    pool = None

    def __init__(self, function: Function, inputs: Sequence[Tensor], pool: Any = None) -> None:
        type(self).made += 1
        self.function, self.inputs = function, [tensor.clone() for tensor in inputs]
        for _ in range(WARM_UPS):
            function(self.inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)  # raises for other shapes
        return self.function(self.inputs)


def weights_after(folder: Path, *settings: str, resume: bool = False) -> dict[str, Tensor]:
    """Weights at the end of a training."""
    first, *rest = SETTINGS
    train(load_config(first, [*rest, *settings, f"output={folder}"]), resume=resume)
    return load_checkpoint(folder / "checkpoints" / "last.pt").weights


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = REFERENCE64) -> None:
    assert found.keys() == expected.keys()
    far = {name: float((found[name] - value).abs().max()) for name, value in expected.items() if value.numel()}
    assert max(far.values()) < tolerance, far


@pytest.mark.parametrize("setting", ["training.accumulate=1", "training.accumulate=2", "task.coefficient_decay=none"])
def test_weights_are_those_without_recording(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = weights_after(tmp_path / "plain", "device=cpu", "training.kernels=plain", setting)
    monkeypatch.setattr(module, "Recorded", OnTheCPU)
    monkeypatch.setattr("denskit.training.weight_update.may_record", lambda *arguments: True)
    OnTheCPU.made = 0
    assert_same(weights_after(tmp_path / "recorded", "device=cpu", "training.kernels=plain", setting), expected)
    assert 0 < OnTheCPU.made <= 3


def trainer_in(folder: Path, *settings: str, device: str = "cpu") -> Trainer:
    first, *rest = SETTINGS
    config = load_config(first, [*rest, *settings, f"device={device}", f"output={folder}"])
    group = join_processes(config.device)
    data = load_data(config.data, config.seed, config.required_labels)
    config, _ = settled(config, data, group, None, lambda line: None)
    return Trainer(config, data, group)


def test_what_changes_with_the_step_is_read_from_tensors(tmp_path: Path) -> None:
    """A recording keeps all other numbers of the step in which it was made."""
    trainer = trainer_in(tmp_path)
    first, later = trainer.loader.work(0), trainer.loader.work(4)
    assert first.weights[-1] > later.weights[-1] > 0, "the coefficient of DeNS decays"
    found = []
    for step in (0, 4):
        trainer.update.progress = trainer.schedule.progress(step)
        trainer.update.gradients.zero()
        trainer.update.eager_backward(first.parts[0], first.counts, later.weights)
        found.append(trainer.update.gradients.flat.clone())
    assert torch.equal(*found)
    trainer.update.gradients.zero()
    trainer.update.eager_backward(first.parts[0], first.counts, first.weights)
    assert not torch.equal(trainer.update.gradients.flat, found[0])


def test_shapes_beyond_the_limit_run_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_in(tmp_path)
    monkeypatch.setattr(module, "Recorded", OnTheCPU)
    monkeypatch.setattr(module, "MOST", 0)
    recorded = RecordedBackward(trainer.update.eager_backward, trainer.update.gradients, torch.device("cpu"))
    work = trainer.loader.work(0)
    errors = recorded(work.parts[0], work.counts, work.weights)
    assert not recorded.recordings
    torch.testing.assert_close(errors, trainer.update.eager_backward(work.parts[0], work.counts, work.weights))


def test_shapes_beyond_the_limit_are_padded_to_a_recorded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of a smaller cutoff, in the recording of the first: the same gradients and errors."""
    replays = []

    class Counted(OnTheCPU):
        def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
            replays.append(len(inputs))
            return super().__call__(inputs)

    trainer = trainer_in(tmp_path)
    monkeypatch.setattr(module, "Recorded", Counted)
    monkeypatch.setattr(module, "MOST", 1)
    recorded = RecordedBackward(trainer.update.eager_backward, trainer.update.gradients, torch.device("cpu"))
    work = trainer.loader.work(0)
    recorded(work.parts[0], work.counts, work.weights)
    fewer = replace(work.parts[0], batch=build_neighbors(work.parts[0].batch, 2.5))
    assert padded_shape(fewer.batch)[2] < padded_shape(work.parts[0].batch)[2]
    monkeypatch.setattr(module, "WASTE", 10.0)
    trainer.update.gradients.zero()
    errors = recorded(fewer, work.counts, work.weights)
    found = trainer.update.gradients.flat.clone()
    assert len(recorded.recordings) == 1 and len(replays) == 2
    trainer.update.gradients.zero()
    expected = recorded.backward(fewer, work.counts, work.weights)
    torch.testing.assert_close(errors, expected)
    assert (found - trainer.update.gradients.flat).abs().max() < SAME_GRADIENT64 * found.square().mean().sqrt()


def test_a_failed_recording_is_told_and_leaves_the_gradients_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(OnTheCPU):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    trainer = trainer_in(tmp_path)
    work = trainer.loader.work(0)
    trainer.update.eager_backward(work.parts[0], work.counts, work.weights)
    expected = trainer.update.gradients.flat.clone()
    trainer.update.gradients.zero()
    monkeypatch.setattr(module, "Recorded", Failing)
    recorded = RecordedBackward(trainer.update.eager_backward, trainer.update.gradients, torch.device("cpu"))
    with pytest.warns(UserWarning, match="not recorded, and so slower: operation not permitted when stream is capt"):
        recorded(work.parts[0], work.counts, work.weights)
    torch.testing.assert_close(trainer.update.gradients.flat, expected)
    assert recorded.failed


@pytest.mark.parametrize(
    "setting", ["training.activation_checkpointing=true", "training.edge_chunk=100", "training.cuda_graphs=false"]
)
def test_what_cannot_be_recorded(setting: str, tmp_path: Path) -> None:
    for settings, expected in (([], True), ([setting], False)):
        trainer = trainer_in(tmp_path, *settings)
        assert not may_record(trainer.config.training, trainer.force_field, trainer.group), "a CPU"
        gpu = replace(trainer.group, device=torch.device("cuda", 0))
        assert may_record(trainer.config.training, trainer.force_field, gpu) is expected
        assert not may_record(trainer.config.training, trainer.force_field, replace(gpu, count=2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("setting", ["task.sigma=0.05", "model.forces=direct"])
def test_a_gpu_finds_the_gradients_by_recordings(setting: str, tmp_path: Path) -> None:
    plain, recorded = (trainer_in(tmp_path, setting, f"training.cuda_graphs={on}", device="cuda") for on in (0, 1))
    assert isinstance(recorded.update.backward, RecordedBackward)
    for step in range(4):
        work = plain.loader.work(step)
        counts, weights = work.counts.cuda(), work.weights.cuda()
        found = []
        for trainer in (plain, recorded):
            trainer.force_field.train()
            trainer.update.gradients.zero()
            errors = trainer.update.backward(work.parts[0], counts, weights)
            found.append((errors.clone(), trainer.update.gradients.flat.clone()))
        (errors, gradient), (errors_too, gradient_too) = found
        torch.testing.assert_close(errors_too, errors, rtol=SAME_GRADIENT64, atol=SAME_GRADIENT64)
        assert (gradient_too - gradient).abs().max() < SAME_GRADIENT64 * gradient.square().mean().sqrt()
    assert recorded.update.backward.recordings and not recorded.update.backward.failed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("setting", ["training.accumulate=1", "training.accumulate=2", "training.amsgrad=true"])
def test_a_gpu_learns_by_recordings_and_resumes(setting: str, tmp_path: Path) -> None:
    """Sums of a GPU have no fixed order, and Adam makes rounding errors of vanishing gradients larger."""
    expected = weights_after(tmp_path / "plain", "device=cuda", "training.cuda_graphs=false", setting)
    found = weights_after(tmp_path / "recorded", "device=cuda", setting)
    assert_same(found, expected, ON_GPU)
    assert "recorded as CUDA graphs" in (tmp_path / "recorded" / "train.log").read_text()
    settings = ("device=cuda", setting, "training.schedule=constant", "task.coefficient_decay=none")
    weights_after(tmp_path / "resumed", *settings, "training.max_steps=3")
    resumed = weights_after(tmp_path / "resumed", *settings, resume=True)
    assert_same(resumed, weights_after(tmp_path / "at_once", *settings), ON_GPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_recording_replays_for_other_values() -> None:
    total = torch.zeros(3, device="cuda")

    def function(inputs: Sequence[Tensor]) -> list[Tensor]:
        total.add_(inputs[0])
        return [inputs[0] * inputs[1]]

    recorded = Recorded(function, [torch.ones(3, device="cuda"), torch.full((3,), 2.0, device="cuda")])
    total.zero_()
    (product,) = recorded([torch.full((3,), 3.0), torch.full((3,), 5.0)])
    assert product.tolist() == [15.0] * 3
    assert total.tolist() == [3.0] * 3
