"""A step of molecular dynamics: all replicas move once.

Against ``plain-ase``, ``one-process`` and alone it is our own loop, which moves all replicas in one batch.  The plain
loop is what one would write first: a calculator of ASE that makes a batch, looks for neighbours and calls
``ForceField.predict`` at every step, one replica after the other.  Against MACE and NequIP all sides are calculators in
the same loop of ASE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ase
import ase.units
import numpy as np
import torch
from ase.calculators.calculator import Calculator, all_changes

from denskit.geometry.neighbors import build_neighbors
from denskit.models.base import ForceField
from denskit.models.equiformer import EquiformerConfig
from denskit.models.execution import KernelName
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.divided import DividedPotential
from denskit.simulation.dynamics import Dynamics, DynamicsSettings
from denskit.simulation.structures import batch_of
from denskit.units import AMU
from denskit_bench.contender import Agreement, Meeting, Own
from denskit_bench.job import ELSEWHERE, Job, Side
from denskit_bench.models import build, config_of
from denskit_bench.peers.dynamics import plain, verlet
from denskit_bench.peers.process import PeerProcess
from denskit_bench.systems import structures

TIMESTEP = 0.5  # fs
SHORT = 0.1  # fs, beside other models: forces of random weights may be large
TURN = 20  # steps in a row of several processes, which are slower after a break
TEMPERATURE = 300.0  # K, of the start
TOLERANCE = 5e-5  # of the rms force, float32: sides round positions each in their way, and large cells have large ones


class PlainCalculator(Calculator):
    """A batch, its neighbours and a prediction, at every step anew."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 (as in ASE)

    def __init__(self, model: ForceField) -> None:
        super().__init__()
        self.model = model
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device

    def calculate(
        self,
        atoms: ase.Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Predict."""
        super().calculate(atoms, list(properties), list(system_changes))
        assert isinstance(self.atoms, ase.Atoms), "set by ASE"
        batch = batch_of([self.atoms]).to(self.device, self.dtype)
        found = self.model.predict(self.model.config.with_neighbors(batch))
        self.results = {"energy": float(found["energy"]), "forces": found["forces"].cpu().numpy()}


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """The sides that are wanted; forces of those that are the same function are compared."""
    atoms = structures(job.system, job.batch)
    generator = np.random.default_rng(0)
    for one in atoms:
        widths = np.sqrt(one.get_masses() * ase.units.kB * TEMPERATURE)
        one.set_momenta(generator.normal(size=(len(one), 3)) * widths[:, None])
    config = config_of(job)
    edges = build_neighbors(batch_of(atoms), config.cutoff).num_edges
    facts = {"atoms": sum(map(len, atoms)), "edges": edges, "structures": job.batch}
    meeting = Meeting(facts=facts)
    if job.against in ELSEWHERE:
        _among_calculators(job, sides, atoms, meeting)
        return meeting
    device = torch.device(job.device)
    forces: dict[Side, np.ndarray] = {}
    for side in sides:
        slow = side == "theirs" and job.against != "one-process"
        model = _model(job, "plain" if slow else job.our_kernels)
        begin = time.perf_counter()
        if side == "theirs" and job.against == "plain-ase":
            step, forces[side] = _plain_loop(model, atoms)
        else:
            potential = _potential(job, side, model)
            meeting.resources.callback(potential.close)
            step, forces[side] = _our_loop(potential, job, atoms)
        if side == "ours" and job.compile:
            meeting.facts["compile_s"] = time.perf_counter() - begin
        counts = not job.compile and job.processes == 1
        meeting.contenders[side] = Own(step, device, model, counts=counts, turn=1 if job.processes == 1 else TURN)
    if len(sides) == 2:
        rms = float(np.sqrt(np.mean(forces["theirs"] ** 2)))
        difference = float(np.sqrt(np.mean((forces["ours"] - forces["theirs"]) ** 2))) / rms
        meeting.agreement = Agreement(
            differences={"forces (float32)": difference}, tolerance={"forces (float32)": TOLERANCE}
        )
        meeting.agreement.check()
    return meeting


def _model(job: Job, kernels: KernelName) -> ForceField:
    device = torch.device(job.device)
    return build(config_of(job), dens=False, dtype=torch.float32, device=device, kernels=kernels).eval()


def _potential(job: Job, side: Side, model: ForceField) -> DividedPotential:
    threads = torch.get_num_threads()
    processes = job.processes if side == "ours" else 1
    potential = DividedPotential(model, processes=processes, compile=job.compile, kernels=model.execution.kernels)
    torch.set_num_threads(threads)  # of both sides
    return potential


def _our_loop(potential: DividedPotential, job: Job, atoms: list[ase.Atoms]) -> tuple[Callable[[], None], np.ndarray]:
    """A step of all replicas, and the forces that they start with."""
    dynamics = Dynamics(potential, DynamicsSettings(ensemble="nve", timestep=TIMESTEP))
    momenta = np.concatenate([one.get_momenta() for one in atoms]) * AMU * ase.units.fs
    state = dynamics.start(batch_of(atoms, job.device), momenta=torch.from_numpy(momenta))
    start = state.forces.cpu().numpy()

    def step() -> None:
        nonlocal state
        state = dynamics.step(state)

    return step, start


def _plain_loop(model: ForceField, atoms: list[ase.Atoms]) -> tuple[Callable[[], None], np.ndarray]:
    """A step of one replica after the other, and the forces that they start with."""
    steps = [verlet({"structures": [plain(one)], "timestep": TIMESTEP}, PlainCalculator(model)) for one in atoms]
    start = np.concatenate([_forces(one, PlainCalculator(model)) for one in atoms])

    def step() -> None:
        for one in steps:
            one()

    return step, start


def _forces(atoms: ase.Atoms, calculator: Calculator) -> np.ndarray:
    atoms = atoms.copy()
    atoms.calc = calculator
    return atoms.get_forces()


def _among_calculators(job: Job, sides: Sequence[Side], atoms: list[ase.Atoms], meeting: Meeting) -> None:
    """Ours and the peer's in the same loop of ASE, with equal degrees, channels of l = 0, cutoff and structure."""
    config = config_of(job)
    if not isinstance(config, EquiformerConfig) or job.batch != 1:
        raise ValueError(
            f"--against {job.against} wants an Equiformer, to have the same degrees and channels (equiformer_wide), "
            "and --batch 1: a loop of ASE moves one structure"
        )
    numbers = sorted({int(number) for number in atoms[0].numbers})
    wanted: dict[str, Any] = {
        "structures": [plain(atoms[0])], "elements": numbers, "cutoff": config.cutoff, "l_max": config.l_max,
        "channels": config.channels[0], "layers": config.num_layers, "device": job.device,
        "threads": torch.get_num_threads(), "timestep": SHORT, "compile": job.against.endswith("-compiled"),
    }  # fmt: skip
    if "theirs" in sides:
        assert job.peer_python is not None, "a job checks this"
        peer = PeerProcess(job.against.removesuffix("-compiled"), job.peer_python, wanted)
        meeting.contenders["theirs"] = peer
        meeting.resources.callback(peer.close)
    if "ours" in sides:
        model = _model(job, job.our_kernels)
        choices: dict[str, Any] = {"compile": job.compile, "kernels": job.our_kernels, "edge_chunk": job.edge_chunk}
        calculator = DenskitCalculator(model, device=job.device, **choices)
        meeting.contenders["ours"] = Own(
            verlet(wanted, calculator), torch.device(job.device), model, counts=not job.compile and not job.edge_chunk
        )
