"""How to relax, and the published protocols."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.optimizers import LBFGS, Optimizer


class RelaxationSettings(BaseModel):
    """How to relax: the optimizer, when to stop, and whether cells relax."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Optimizer = Field(default_factory=LBFGS)
    fmax: float = Field(0.05, ge=0, description="eV/Å: converged when no atom's force is this long; 0: never")
    steps: int = Field(500, ge=0, description="largest number of moves of a structure")
    cell: CellRelaxation | None = Field(None, description="None: cells stay as they are")


# As published for relaxed energies of OC20: the first in papers until 2024, the second in OCP since May 2024.  The
# first counts 300 evaluations, which are 299 moves.
PROTOCOLS = {
    "oc20-2021": RelaxationSettings(
        optimizer=LBFGS(memory=50, maxstep=0.04, damping=1.0, alpha=70.0), fmax=0.0, steps=299
    ),
    "oc20-2024": RelaxationSettings(
        optimizer=LBFGS(memory=50, maxstep=0.2, damping=1.2, alpha=80.0), fmax=0.02, steps=300
    ),
}
