"""The settings that all models have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from denskit.batch import MAX_ATOMIC_NUMBER, Batch
from denskit.geometry.neighbors import build_neighbors


class ModelConfig(BaseModel):
    """What all models have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    cutoff: float = Field(5.0, gt=0, description="Å, radius of the neighbourhood")
    max_neighbors: int | None = Field(
        None, ge=1, description="keep only the nearest neighbours of each atom; not smooth"
    )
    strict_neighbors: bool = Field(
        True, description="with max_neighbors: exactly the nearest ones; false keeps neighbours as near as the next one"
    )
    num_elements: int = Field(
        64, ge=1, le=MAX_ATOMIC_NUMBER + 1, description="atomic numbers 0 .. num_elements - 1 have an embedding"
    )
    forces: Literal["gradient", "direct"] = Field(
        "gradient", description="forces from -dE/dr or from a head of their own"
    )
    stress: Literal["none", "strain"] = Field("none", description="stress of periodic systems by straining the cell")
    force_input_scale: float | None = Field(
        None,
        gt=0,
        description="Å/eV, factor of encoded forces; default 1 / force scale; 23.06 gives the published kcal/mol/Å",
    )

    def with_neighbors(self, batch: Batch) -> Batch:
        """The batch with the edges that this model looks at; see :func:`denskit.geometry.neighbors.build_neighbors`."""
        return build_neighbors(batch, self.cutoff, max_neighbors=self.max_neighbors, strict=self.strict_neighbors)

    @model_validator(mode="after")
    def _stress_needs_gradients(self) -> ModelConfig:
        if self.stress == "strain" and self.forces == "direct":
            raise ValueError(
                "stress=strain differentiates the energy, as forces=gradient does; direct forces cannot go with it"
            )
        return self
