"""Training steps and energies with forces: our model against another formulation of the same function, or alone.

Both sides have the same weights, positions and edges.  They are first compared: in float64, energy, forces, noise and
loss to 1e-10 (training: on two structures, for its memory), then in float32 on the whole batch, forces to 1e-5 of their
root mean square.  Without that agreement there are no times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from denskit.batch import Prepared
from denskit.models.base import ForceField
from denskit.models.config import ModelConfig
from denskit.models.equiformer.published import convert_equiformer
from denskit.models.equiformer.published_settings import MD17_CONFIGS
from denskit.random import keys_for
from denskit.runtime.cuda_graph import Recorded
from denskit.simulation.compiled import CompiledModel
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, Task, total_loss
from denskit.training.optimizer import Gradients
from denskit_bench.contender import Agreement, Meeting, Own
from denskit_bench.job import Job, Side
from denskit_bench.models import build, config_of
from denskit_bench.systems import benchmark_batch

if TYPE_CHECKING:
    from denskit_bench.baseline_e3nn import EquiformerE3NN, JitMode

JIT: dict[str, JitMode] = {"e3nn": "script", "e3nn-eager": "eager"}
DEGREES: dict[str, Literal[2, 3]] = {"equiformer_l2": 2, "equiformer_l3": 3}
TOLERANCE_64 = 1e-10
TOLERANCE_32 = 1e-5
COMPARED_STRUCTURES = 2
TASK_SEED = 5  # draws corrupted structures among the first two of a batch, so that every output is compared


class Contestant:
    """A model with the batch that it works on."""

    def __init__(
        self,
        training: bool,
        module: nn.Module,
        predict: Callable[[Prepared], dict[str, Tensor]],
        task: Task,
        prepared: Prepared,
    ) -> None:
        self.training, self.module, self.predict, self.task, self.prepared = training, module, predict, task, prepared
        self.recorded: Recorded | None = None
        module.train(training)
        # without a learning rate: all of the work, and weights that stay what they are
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, fused=True)

    def step(self) -> None:
        """Do the work once."""
        if self.recorded is not None:
            self.gradients.zero()
            self.recorded(self.prepared.tensors())
            self.optimizer.step()
            return
        out = self.predict(self.prepared)
        if self.training:
            self.optimizer.zero_grad()
            self.loss(out).backward()
            self.optimizer.step()

    def record(self) -> None:
        """Make further training steps replay a CUDA graph of all but the optimizer, as a training does."""
        self.gradients = Gradients(list(self.module.parameters()))

        def backward(now: Sequence[Tensor]) -> list[Tensor]:
            loss = self.loss(self.predict(self.prepared.with_tensors(now)))
            loss.backward()
            return [loss.detach()]

        self.recorded = Recorded(backward, self.prepared.tensors())

    def loss(self, out: dict[str, Tensor]) -> Tensor:
        """The task's loss [] at the start of training."""
        return total_loss(self.task.losses(out, self.prepared, 0.0))


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """The sides that are wanted; where they are both, they are compared."""
    contestants = build_contestants(job, sides, torch.float32)
    device = torch.device(job.device)
    batch = next(iter(contestants.values())).prepared.batch
    agreement = compare(job, contestants) if len(contestants) == 2 and job.work != "dens" else None
    if job.recorded:
        for side in sides if job.work == "dens" else ("ours",):
            contestants[side].record()
    seen = not job.compile  # a library hides its operations, and so does a graph
    meeting = Meeting(
        contenders={
            side: Own(one.step, device, one.module, counts=one.recorded is None and (side == "theirs" or seen))
            for side, one in contestants.items()
        },
        agreement=agreement,
        facts={"atoms": batch.num_atoms, "edges": batch.num_edges, "structures": job.batch},
    )
    return meeting


def build_contestants(
    job: Job, sides: Sequence[Side], dtype: torch.dtype, size: int | None = None
) -> dict[Side, Contestant]:
    """The sides with the same fresh weights, on the first ``size`` structures of the batch (default: all)."""
    config, device = config_of(job), torch.device(job.device)
    if job.work == "dens":
        return {side: _ours(job, config, dtype, size, dens=side == "ours") for side in sides}
    ours = _ours(job, config, dtype, size, dens=job.dens)
    found: dict[Side, Contestant] = {"ours": ours}
    if "theirs" in sides and job.against == "plain":
        found["theirs"] = _ours(replace(job, kernels="plain", compile=False), config, dtype, size, dens=job.dens)
        found["theirs"].module.load_state_dict(ours.module.state_dict())
    elif "theirs" in sides:
        baseline = _baseline(job, dtype).to(device)
        _give_weights(baseline, ours.module, config)  # type: ignore[arg-type]
        found["theirs"] = _theirs(job, baseline, ours)
    return {side: found[side] for side in sides}


def _ours(job: Job, config: ModelConfig, dtype: torch.dtype, size: int | None, *, dens: bool) -> Contestant:
    force_field = build(config, dens=dens, dtype=dtype, device=torch.device(job.device), kernels=job.our_kernels)
    training = job.work in ("train", "dens")
    names = ("energy", "forces", "noise") if dens and training else ("energy", "forces")
    compiled = CompiledModel(force_field.eval().requires_grad_(False), names) if job.compile else None

    def predict(prepared: Prepared) -> dict[str, Tensor]:
        with torch.set_grad_enabled(training):  # forces by gradient switch it on for themselves
            if compiled is not None:
                return compiled(prepared.batch)
            return force_field(prepared.batch, prepared.force_input if dens and training else None, outputs=names)

    task: Task = DeNS(DeNSConfig()) if dens and training else EnergyForces(EnergyForcesConfig())
    return Contestant(training, force_field, predict, task, prepare(job, config, task, dtype, size or job.batch))


def prepare(job: Job, config: ModelConfig, task: Task, dtype: torch.dtype, size: int) -> Prepared:
    """The first ``size`` structures of the job's batch: corrupted where the task says so, then with edges."""
    batch, targets = benchmark_batch(job.system, size)
    prepared = task.prepare(batch, targets, keys_for(TASK_SEED, 0, range(size)), 0.0)
    prepared = replace(prepared, batch=config.with_neighbors(prepared.batch)).to(torch.device(job.device), dtype)
    return replace(prepared, targets=replace(prepared.targets, energy=prepared.targets.energy.to(dtype)))


def _baseline(job: Job, dtype: torch.dtype) -> EquiformerE3NN:
    sizes = (job.layers, job.l_max, job.cutoff, job.max_neighbors)
    if job.model not in DEGREES or any(size is not None for size in sizes):
        raise ValueError(
            f"--against {job.against} knows {' and '.join(DEGREES)} at their published sizes; for {job.model} with "
            "what was asked take another opponent (plain, fairchem or none)"
        )
    if find_spec("e3nn") is None:
        raise ValueError("the opponent needs e3nn, which is not installed: pip install 'denskit[test]'")
    from denskit_bench.baseline_e3nn import EquiformerE3NN, published_config

    torch.manual_seed(0)
    return EquiformerE3NN(published_config(DEGREES[job.model], job.dens), dtype=dtype, jit=JIT[job.against])


def _give_weights(baseline: EquiformerE3NN, force_field: ForceField, config: ModelConfig) -> None:
    """The baseline's weights for ours; both then encode forces as they are."""
    assert config in (MD17_CONFIGS[2], MD17_CONFIGS[3]), config
    state, _ = convert_equiformer(baseline.published_state(), config)  # type: ignore[arg-type]
    scaling = {f"scaling.{name}": value for name, value in force_field.scaling.state_dict().items()}
    force_field.load_state_dict(state | scaling)


def _theirs(job: Job, baseline: EquiformerE3NN, ours: Contestant) -> Contestant:
    training = ours.training

    def predict(prepared: Prepared) -> dict[str, Tensor]:
        forces = prepared.force_input if job.dens and training else None
        return baseline(prepared.batch, forces, noise=job.dens and training, create_graph=training)

    return Contestant(training, baseline, predict, ours.task, ours.prepared)


def compare(job: Job, contestants: dict[Side, Contestant]) -> Agreement:
    """Compare the two sides; ``contestants`` are the float32 ones to be timed.

    Raises:
        ValueError: They are not the same function, so their times mean nothing.
    """
    # the second-order graph of a whole training batch in float64 may not fit into memory
    size = min(job.batch, COMPARED_STRUCTURES) if job.work == "train" else job.batch
    exact = differences(build_contestants(job, ("theirs", "ours"), torch.float64, size))
    found = {f"{name} (float64)": value for name, value in exact.items()}
    found["forces (float32)"] = differences(contestants)["forces"]
    tolerance = {name: TOLERANCE_64 if "64" in name else TOLERANCE_32 for name in found}
    agreement = Agreement(differences=found, tolerance=tolerance)
    agreement.check()
    return agreement


def differences(contestants: dict[Side, Contestant]) -> dict[str, float]:
    """Root mean square of the difference over that of the value, by output; and of the loss of training."""
    out = {side: one.predict(one.prepared) for side, one in contestants.items()}
    for side, one in contestants.items():
        if one.training:
            out[side]["loss"] = one.loss(out[side])
    return {name: _rms(out["ours"][name] - value) / _rms(value) for name, value in out["theirs"].items()}


def _rms(value: Tensor) -> float:
    return float(value.detach().square().mean().sqrt())
