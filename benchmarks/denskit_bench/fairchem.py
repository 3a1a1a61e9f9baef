"""EquiformerV2, eSCN and eSEN beside fairchem-core's, with its weights.

A step begins with finding neighbours on both sides, since fairchem's models do that themselves.  Training is the
energy's absolute value plus the norms of the forces, backward, AdamW.  fairchem draws the frames of its edges anew
at every call, which sampled activations and heads notice, so the two agree within the peer's own scatter.
"""

from __future__ import annotations

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
TOLERANCE = 2e-3  # of the rms force: the sampled activations see the peer's random frames
SCATTER = 3  # times what the peer's own calls differ among themselves


def assemble(job: Job, sides: Sequence[Side]) -> Meeting:
    """Ours alone has weights of its own: those of the peer only matter to the comparison."""
    if job.model not in KNOWN or job.dens:
        raise ValueError(f"fairchem-core 1.10.0 has {', '.join(KNOWN)} without DeNS here: add --no-dens")
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


class _Steps:
    """Our side."""

    def __init__(self, force_field: ForceField, training: bool, batch: Batch) -> None:
        self.force_field, self.training, self.batch = force_field.train(training), training, batch
        self.optimizer = torch.optim.AdamW(force_field.parameters(), lr=0.0, fused=True)
        self.forces = torch.empty(0)

    def step(self) -> None:
        """Neighbours, forward and, in training, backward and AdamW."""
        with torch.set_grad_enabled(self.training):
            batch = self.force_field.config.with_neighbors(self.batch)
            out = self.force_field(batch, None, ("energy", "forces"))
        if self.training:
            self.optimizer.zero_grad()
            (out["energy"].abs().mean() + torch.linalg.vector_norm(out["forces"], dim=-1).mean()).backward()
            self.optimizer.step()
        self.forces = out["forces"].detach()


def _compare(peer: PeerProcess, ours: _Steps) -> Agreement:
    """Forces of one step of ours and two of the peer.  Raises ValueError where they are too far apart."""

    def theirs() -> Tensor:
        peer.step()
        return torch.tensor(peer.found["forces"])

    first, second = theirs(), theirs()
    ours.step()
    rms = first.square().mean().sqrt()
    scatter = float((first - second).abs().max() / rms)
    agreement = Agreement(
        differences={"forces (float32, largest)": float((ours.forces.cpu() - first).abs().max() / rms)},
        tolerance={"forces (float32, largest)": max(TOLERANCE, SCATTER * scatter)},
    )
    agreement.check()
    return agreement
