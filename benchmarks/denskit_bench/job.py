"""What one benchmark measures: a kind of work, a model, a system, an opponent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from denskit.models.execution import KernelName

Work = Literal["train", "energy_forces", "md", "loader", "neighbors", "dens"]
Side = Literal["ours", "theirs"]

MAY_MEET: dict[Work, tuple[str, ...]] = {
    "train": ("e3nn", "e3nn-eager", "plain", "fairchem", "none"),
    "energy_forces": ("e3nn", "e3nn-eager", "plain", "fairchem", "none"),
    "md": ("plain-ase", "plain", "one-process", "mace", "mace-compiled", "nequip", "nequip-compiled", "none"),
    "loader": ("ase", "none"),
    "neighbors": ("ase", "none"),
    "dens": ("without",),
}
PEERS = {
    "e3nn": "an e3nn formulation of Equiformer, with TorchScript",
    "e3nn-eager": "the same in e3nn's default mode for torch >= 2.10",
    "plain": "our own model on plain kernels",
    "one-process": "our own loop in one process",
    "plain-ase": "a plain ASE loop with our model, one structure after the other",
    "fairchem": "fairchem-core 1.10.0, in an environment of its own",
    "mace": "MACE, in an environment of its own, eager",
    "mace-compiled": "the same through torch.compile",
    "nequip": "NequIP, in an environment of its own, eager",
    "nequip-compiled": "the same through AOTInductor",
    "ase": "ASE's reader and neighbour list",
    "without": "the same model without DeNS",
    "none": "nobody: only ours is timed",
}
ELSEWHERE = ("fairchem", "mace", "mace-compiled", "nequip", "nequip-compiled")  # run in a Python of their own


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is measured; every field is a choice that the record repeats.

    work: ``train`` is a whole training step (forward, forces, loss, backward, AdamW), ``energy_forces`` what an
        evaluation asks, ``md`` a step of all replicas, ``loader`` making a batch ready from a file, ``neighbors`` the
        neighbour list alone, ``dens`` a training step with DeNS beside one without.
    """

    work: Work
    model: str
    system: str
    batch: int = 8
    against: str = "none"
    dens: bool = False
    kernels: KernelName | None = None  # None: auto
    layers: int | None = None  # None: the model's own number, as with the two below
    l_max: int | None = None
    cutoff: float | None = None  # Å
    max_neighbors: int | None = None
    compile: bool = False  # molecular dynamics, energies and forces
    edge_chunk: int | None = None  # of our side, molecular dynamics beside MACE and NequIP
    recorded: bool = False  # training steps of our side as a CUDA graph
    processes: int = 1  # of our side, molecular dynamics only
    device: str = "cpu"
    peer_python: str | None = None
    data: str | None = None  # loader: a file of structures

    def __post_init__(self) -> None:
        known = MAY_MEET[self.work]
        if self.against not in known:
            listed = "; ".join(f"{name} ({PEERS[name]})" for name in known)
            raise ValueError(f"{self.work} has no opponent {self.against!r}; known are {listed}")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: at least 1 structure is wanted")
        if self.edge_chunk is not None and (self.against not in ELSEWHERE or self.compile):
            raise ValueError("--edge-chunk is for large systems beside mace and nequip, without --compile")
        if self.recorded and not self.device.startswith("cuda"):
            raise ValueError(f"device={self.device}: CUDA graphs are for GPUs; leave out --recorded")
        if self.against in ELSEWHERE and self.peer_python is None:
            raise ValueError(
                f"--against {self.against} runs in an environment of its own: name its Python with --peer-python "
                "(docs/benchmarks.md says how to make it)"
            )

    @property
    def sides(self) -> Sequence[Side]:
        """Who takes steps, in turn."""
        return ("ours",) if self.against == "none" else ("theirs", "ours")

    @property
    def our_kernels(self) -> KernelName:
        """How our side computes: against the plain kernels the fused ones, unless something else was asked."""
        return self.kernels or ("fused" if self.against == "plain" else "auto")

    @property
    def names(self) -> dict[Side, str]:
        """What the sides are called."""
        if self.work == "dens":
            return {"ours": "with DeNS", "theirs": "without"}
        ours = "denskit" if self.our_kernels == "auto" else f"denskit {self.our_kernels}"
        ours += f", {self.processes} processes" if self.processes > 1 else ""
        ours += f", edge_chunk {self.edge_chunk}" if self.edge_chunk else ""
        ours += ", CUDA graph" if self.recorded else ""
        published = self.against == "fairchem" and self.model.startswith("equiformer_v3")
        theirs = "published code" if published else self.against
        return {"ours": ours} if self.against == "none" else {"ours": ours, "theirs": theirs}
