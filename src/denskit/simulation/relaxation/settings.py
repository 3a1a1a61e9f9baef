"""Settings of a relaxation, and the published protocols."""

from __future__ import annotations

from pydantic import Field

from denskit.settings import Settings
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS, Optimizer


class RelaxationSettings(Settings):
    """Optimizer, convergence and cells of a relaxation."""

    optimizer: Optimizer = Field(default_factory=LBFGS)
    fmax: float = Field(default=0.05, ge=0)
    """Converged when the forces on all atoms are smaller than this, in eV/Å; 0: never."""
    steps: int = Field(default=500, ge=0)
    """Maximum number of moves of a structure."""
    cell: CellRelaxation | None = None
    """None: cells are fixed."""


# Published for relaxed energies of OC20: the first in papers until 2024 (300 evaluations are 299 moves), the second in
# OCP since May 2024.  The third is that of Matbench Discovery, with ASE's FIRE and FrechetCellFilter.
PROTOCOLS = {
    "oc20-2021": RelaxationSettings(
        optimizer=LBFGS(memory=50, maxstep=0.04, damping=1.0, alpha=70.0), fmax=0.0, steps=299
    ),
    "oc20-2024": RelaxationSettings(
        optimizer=LBFGS(memory=50, maxstep=0.2, damping=1.2, alpha=80.0), fmax=0.02, steps=300
    ),
    "matbench-discovery": RelaxationSettings(optimizer=FIRE(), fmax=0.02, steps=500, cell=CellRelaxation()),
}
