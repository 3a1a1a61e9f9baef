"""Our Equiformer against the e3nn formulation: the same weights, positions and edges, timed turn by turn.

The two are first compared: in float64, energy, forces, noise and loss to 1e-10 (training: on two structures, for its
memory), then in float32 on the whole batch, forces to 1e-5 of their root mean square.  Without that agreement there are
no times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from denskit.batch import Prepared
from denskit.bench.baseline_e3nn import EquiformerE3NN, JitMode, published_config
from denskit.bench.systems import SystemName, benchmark_batch
from denskit.geometry.neighbors import build_neighbors
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.published_equiformer import MD17_CONFIGS, convert_equiformer
from denskit.models.scaling import Scaling
from denskit.random import keys_for
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, Task, total_loss

Work = Literal["train", "energy_forces"]
ModelName = Literal["equiformer_l2", "equiformer_l3"]
Opponent = Literal["e3nn", "e3nn-eager"]
Side = Literal["ours", "theirs"]

JIT: dict[Opponent, JitMode] = {"e3nn": "script", "e3nn-eager": "eager"}
DEGREES: dict[ModelName, Literal[2, 3]] = {"equiformer_l2": 2, "equiformer_l3": 3}
TOLERANCE_64 = 1e-10
TOLERANCE_32 = 1e-5
COMPARED_STRUCTURES = 2
TASK_SEED = 5  # draws corrupted structures among the first two of a batch, so that every output is compared


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is measured.

    work: ``train`` is the whole step of the published DeNS training (or, without ``dens``, of energies and forces):
        forward, forces by gradient, loss, backward through both, AdamW.  ``energy_forces`` is what a simulation asks.
    """

    work: Work
    model: ModelName
    system: SystemName
    batch: int = 8
    against: Opponent = "e3nn"
    dens: bool = True


class Contestant:
    """A model that can do the work of a contest, again and again."""

    def __init__(
        self, work: Work, module: nn.Module, predict: Callable[[Prepared], dict[str, Tensor]], task: Task
    ) -> None:
        self.work, self.module, self.predict, self.task = work, module, predict, task
        module.train(work == "train")
        # a tiny learning rate: the weights must stay ordinary numbers over any number of steps
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-6, fused=True)

    def step(self, prepared: Prepared) -> None:
        """Do the work once."""
        out = self.predict(prepared)
        if self.work == "train":
            self.optimizer.zero_grad()
            self.loss(out, prepared).backward()
            self.optimizer.step()

    def loss(self, out: dict[str, Tensor], prepared: Prepared) -> Tensor:
        """The task's loss [] at the start of training."""
        return total_loss(self.task.losses(out, prepared, 0.0))

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def matmul_gflop(self, prepared: Prepared) -> float:
        """10^9 floating-point operations of all matrix products of one step, counted."""
        with FlopCounterMode(display=False) as counter:
            self.step(prepared)
        return counter.get_total_flops() / 1e9


def build_contestants(contest: Contest, dtype: torch.dtype) -> dict[Side, Contestant]:
    """Both models with the same fresh weights (seed 0)."""
    torch.manual_seed(0)
    degree, training = DEGREES[contest.model], contest.work == "train"
    baseline = EquiformerE3NN(published_config(degree, contest.dens), dtype=dtype, jit=JIT[contest.against])
    force_field = _ours(baseline, degree, dtype)
    wanted = ("energy", "forces", "noise") if contest.dens and training else ("energy", "forces")
    task = _task(contest)

    def force_input(prepared: Prepared) -> Tensor | None:
        return prepared.force_input if contest.dens and training else None

    return {
        "theirs": Contestant(
            contest.work,
            baseline,
            lambda p: baseline(p.batch, force_input(p), noise="noise" in wanted, create_graph=training),
            task,
        ),
        "ours": Contestant(
            contest.work, force_field, lambda p: force_field(p.batch, force_input(p), outputs=wanted), task
        ),
    }


def _ours(baseline: EquiformerE3NN, degree: Literal[2, 3], dtype: torch.dtype) -> ForceField:
    config = MD17_CONFIGS[degree].model_copy(update={"force_input_scale": 1.0})
    state, heads = convert_equiformer(baseline.published_state(), config)
    force_field = build_force_field(config, heads=heads, scaling=Scaling(elements=(1, 6, 8))).to(dtype)
    scaling = {f"scaling.{name}": value for name, value in force_field.scaling.state_dict().items()}
    force_field.load_state_dict(state | scaling)
    return force_field


def _task(contest: Contest) -> Task:
    corrupts = contest.dens and contest.work == "train"
    return DeNS(DeNSConfig()) if corrupts else EnergyForces(EnergyForcesConfig())


def prepare_batch(contest: Contest, dtype: torch.dtype, size: int) -> Prepared:
    """The first ``size`` structures of the contest's batch: corrupted where the task says so, then with edges."""
    batch, targets = benchmark_batch(contest.system, size)
    prepared = _task(contest).prepare(batch, targets, keys_for(TASK_SEED, 0, range(size)), 0.0)
    moved = build_neighbors(prepared.batch, MD17_CONFIGS[2].cutoff)
    prepared = replace(prepared, batch=moved).to(dtype=dtype)
    return replace(prepared, targets=replace(prepared.targets, energy=prepared.targets.energy.to(dtype)))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Root mean square of the difference over that of the value, by output."""

    float64: dict[str, float]
    float32: dict[str, float]


def compare(contest: Contest, contestants: dict[Side, Contestant], prepared: Prepared) -> Agreement:
    """Compare the two models; ``contestants`` and ``prepared`` are the float32 ones to be timed.

    Raises:
        ValueError: They are not the same function, so their times mean nothing.
    """
    # the second-order graph of a whole training batch in float64 may not fit into memory
    size = min(contest.batch, COMPARED_STRUCTURES) if contest.work == "train" else contest.batch
    exact = differences(build_contestants(contest, torch.float64), prepare_batch(contest, torch.float64, size))
    agreement = Agreement(float64=exact, float32=differences(contestants, prepared))
    check_agreement(agreement)
    return agreement


def check_agreement(agreement: Agreement) -> None:
    """Raise ValueError, naming the outputs, where two models differ by more than the tolerances."""
    wrong = {f"{name} (float64)": value for name, value in agreement.float64.items() if not value <= TOLERANCE_64}
    if not agreement.float32["forces"] <= TOLERANCE_32:
        wrong["forces (float32)"] = agreement.float32["forces"]
    if wrong:
        raise ValueError(
            f"the two models disagree, so nothing was timed: relative difference {wrong}; wanted at most "
            f"{TOLERANCE_64} in float64 and {TOLERANCE_32} for float32 forces"
        )


def differences(contestants: dict[Side, Contestant], prepared: Prepared) -> dict[str, float]:
    """Relative difference of every output, and of the loss where the work is training."""
    ours, theirs = contestants["ours"].predict(prepared), contestants["theirs"].predict(prepared)
    if contestants["ours"].work == "train":
        ours["loss"] = contestants["ours"].loss(ours, prepared)
        theirs["loss"] = contestants["theirs"].loss(theirs, prepared)
    return {name: _rms(ours[name] - value) / _rms(value) for name, value in theirs.items()}


def _rms(value: Tensor) -> float:
    return float(value.detach().square().mean().sqrt())
