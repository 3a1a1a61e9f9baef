"""EquiformerV2, eSCN and eSEN beside fairchem-core's, EquiformerV3 beside the published code, with its weights.

A step begins with finding neighbours on both sides, since fairchem's models do that themselves.  Training is the
energy's absolute value plus the norms of the forces, backward, AdamW.  fairchem draws the frames of its edges anew
at every call, which sampled activations and heads notice, so the two agree within the peer's own scatter.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.models.importing import import_checkpoint
from denskit.simulation.structures import batch_of
from denskit_bench.contender import Agreement, Meeting, Own
from denskit_bench.job import Job, Side
from denskit_bench.models import build, config_of
from denskit_bench.peers.dynamics import plain
from denskit_bench.peers.process import PeerProcess
from denskit_bench.systems import structures

KNOWN = ("equiformer_v2", "escn", "esen", "esen_gradient")
V3 = ("equiformer_v3", "equiformer_v3_gradient")  # not in fairchem-core, but made for its environment
CHECKOUT = "DENSKIT_EQUIFORMER_V3"  # names a checkout of github.com/atomicarchitects/equiformer_v3
TOLERANCE = 2e-3  # of the rms force and energy: the sampled activations see the peer's random frames
SCATTER = 3  # times what the peer's own calls differ among themselves


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """Ours alone has weights of its own: those of the peer only matter to the comparison."""
    if job.model not in KNOWN + V3 or job.dens:
        raise ValueError(f"fairchem-core 1.10.0 has {', '.join(KNOWN + V3)} without DeNS here: add --no-dens")
    config = config_of(job)
    atoms = structures(job.system, job.batch)
    meeting = Meeting()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "peer.pt"
        if "theirs" in sides:
            assert job.peer_python is not None, "a job checks this"
            sizes = {"layers": config.num_layers, "l_max": config.l_max, "cutoff": config.cutoff}  # type: ignore[attr-defined]
            wanted = {"work": job.work, "model": job.model, "structures": [plain(one) for one in atoms], **sizes}
            where = {"device": job.device, "threads": torch.get_num_threads(), "checkpoint": str(checkpoint)}
            if job.model in V3:
                peer = PeerProcess("equiformer_v3", job.peer_python, wanted | where | {"checkout": _checkout()})
            else:
                peer = PeerProcess("fairchem", job.peer_python, wanted | where)
            meeting.contenders["theirs"] = peer
            meeting.resources.callback(peer.close)
            force_field = import_checkpoint(checkpoint).to(job.device)
            force_field.execution = Execution(kernels=job.our_kernels)
        else:
            device = torch.device(job.device)
            force_field = build(config, dens=False, dtype=torch.float32, device=device, kernels=job.our_kernels)
    batch = batch_of(atoms, job.device).to(dtype=torch.float32)
    ours = _Steps(force_field, job.work == "train", batch)
    edges = config.with_neighbors(batch).num_edges
    meeting.contenders["ours"] = Own(ours.step, torch.device(job.device), force_field)
    meeting.facts |= {"atoms": batch.num_atoms, "edges": edges, "structures": job.batch}
    if "theirs" in sides:
        meeting.agreement = _compare(peer, ours)
    return meeting


def _checkout() -> str:
    folder = os.environ.get(CHECKOUT)
    if not folder or not (Path(folder) / "experimental/models/equiformer_v3").is_dir():
        raise ValueError(f"{CHECKOUT}={folder or ''}: name a checkout of github.com/atomicarchitects/equiformer_v3")
    return str(Path(folder).resolve())


class _Steps:
    """Our side."""

    def __init__(self, force_field: ForceField, training: bool, batch: Batch) -> None:
        self.force_field, self.training, self.batch = force_field.train(training), training, batch
        self.optimizer = torch.optim.AdamW(force_field.parameters(), lr=0.0, fused=True)
        self.energy = self.forces = torch.empty(0)

    def step(self) -> None:
        """Neighbours, forward and, in training, backward and AdamW."""
        with torch.set_grad_enabled(self.training):
            batch = self.force_field.config.with_neighbors(self.batch)
            out = self.force_field(batch, None, ("energy", "forces"))
        if self.training:
            self.optimizer.zero_grad()
            (out["energy"].abs().mean() + torch.linalg.vector_norm(out["forces"], dim=-1).mean()).backward()
            self.optimizer.step()
        self.energy, self.forces = out["energy"].detach(), out["forces"].detach()


def _compare(peer: PeerProcess, ours: _Steps) -> Agreement:
    """Energies and forces of one step of ours and two of the peer.  Raises ValueError where they are too far apart."""

    def theirs() -> dict[str, Tensor]:
        peer.step()
        return {name: torch.tensor(peer.found[name]) for name in ("energy", "forces")}

    first, second = theirs(), theirs()
    ours.step()
    found = {"energy": ours.energy.cpu(), "forces": ours.forces.cpu()}
    differences, tolerance = {}, {}
    for name, value in first.items():
        rms = value.square().mean().sqrt()
        scatter = float((value - second[name]).abs().max() / rms)
        differences[f"{name} (float32, largest)"] = float((found[name] - value).abs().max() / rms)
        tolerance[f"{name} (float32, largest)"] = max(TOLERANCE, SCATTER * scatter)
    agreement = Agreement(differences=differences, tolerance=tolerance)
    agreement.check()
    return agreement
