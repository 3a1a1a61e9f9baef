"""The settings that models share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from denskit.batch import MAX_ATOMIC_NUMBER, Batch
from denskit.geometry.neighbors import build_neighbors
from denskit.settings import OnFineTuning, Settings

MEASURED = ("average_degree", "average_atoms")  # settings that training measures where they are null


class ModelConfig(Settings):
    """Settings of all models."""

    name: str
    cutoff: float = Field(default=5.0, gt=0)
    """Å, radius of the neighbourhood."""
    max_neighbors: int | None = Field(default=None, ge=1)
    """Keep only the nearest neighbours of each atom; not smooth."""
    strict_neighbors: bool = True
    """With max_neighbors: exactly the nearest ones (squared distances are equal to within 0.001 Å^2); false keeps
    neighbours as near as the next one."""
    num_elements: int = Field(default=64, ge=1, le=MAX_ATOMIC_NUMBER + 1)
    """Atomic numbers 0 .. num_elements - 1 have an embedding."""
    forces: OnFineTuning[Literal["gradient", "direct"]] = "gradient"
    """Forces from -dE/dr or from a head of their own."""
    stress: OnFineTuning[Literal["none", "strain", "direct"]] = "none"
    """Stress of periodic systems by straining the cell, or from a head of its own."""
    force_input_scale: float | None = Field(default=None, gt=0)
    """Å/eV, factor of encoded forces; default 1 / force scale; 23.06 gives the published kcal/mol/Å."""
    mark_corrupted: OnFineTuning[bool] = False
    """Atoms with an encoded force other than zero get a learned vector, too, which tells them from ordinary atoms even
    where the force is small."""

    def with_neighbors(self, batch: Batch) -> Batch:
        """The batch with the model's edges; see :func:`denskit.geometry.neighbors.build_neighbors`."""
        return build_neighbors(batch, self.cutoff, max_neighbors=self.max_neighbors, strict=self.strict_neighbors)

    @property
    def neighborhood(self) -> tuple[float, int | None, bool]:
        """The settings that decide which neighbours the model sees."""
        return self.cutoff, self.max_neighbors, self.strict_neighbors

    @property
    def heads(self) -> dict[str, str]:
        """The model's own heads, as name -> irreps."""
        forces = {"forces": "1"} if self.forces == "direct" else {}
        return {"energy": "0"} | forces | ({"stress": "0+2"} if self.stress == "direct" else {})

    def require_degrees(self, heads: Mapping[str, str]) -> None:
        """Raise ValueError for heads (name -> irreps) of a degree that the features lack."""
        highest: int | None = getattr(self, "l_max", None)
        for name, irreps in heads.items():
            if highest is None or (wanted := int(irreps[-1])) <= highest:
                continue
            by_number = "l_max" in type(self).model_fields
            remedy = f"set model.l_max={wanted} or more" if by_number else f"give model.channels degrees 0 to {wanted}"
            instead = {"stress": ", or model.stress=none", "strain": ", or task=dens"}.get(name, "")
            raise ValueError(
                f"the head for {name} reads features of degree {wanted}, and those of this model have degrees up to "
                f"{highest}; {remedy}{instead}"
            )

    @model_validator(mode="after")
    def _stress_needs_gradients(self) -> ModelConfig:
        if self.stress == "strain" and self.forces == "direct":
            raise ValueError(
                "stress=strain differentiates the energy, as forces=gradient does; direct forces cannot go with it"
            )
        if self.stress == "direct" and self.forces == "gradient":
            raise ValueError("stress=direct comes from a head, as forces=direct does; with forces=gradient use strain")
        return self


class RadialOrigin(Settings):
    """Where radial functions begin, for models that have those of Equiformer."""

    radial_basis: str
    basis_origin: Literal["zero", "covalent_radii"] = "zero"
    """Where the functions of radial_basis=exponential_normal begin: at 0, as published, or 1.07 Å (that of C-H) below
    the sum of the covalent radii of both atoms, so that all pairs of elements are resolved alike."""

    @model_validator(mode="after")
    def _origins_have_their_functions(self) -> RadialOrigin:
        if self.basis_origin != "zero" and self.radial_basis != "exponential_normal":
            raise ValueError(
                f"basis_origin={self.basis_origin} is for radial_basis=exponential_normal, found {self.radial_basis}; "
                "set basis_origin=zero"
            )
        return self


class SO2ModelConfig(ModelConfig):
    """Settings of models with SO(2) convolutions of degrees up to l_max; the defaults are those for OC20."""

    cutoff: float = Field(default=12.0, gt=0)
    """Å, radius of the neighbourhood."""
    max_neighbors: int | None = Field(default=20, ge=1)
    """Keep only the nearest neighbours of each atom; not smooth."""
    num_elements: int = Field(default=90, ge=1, le=MAX_ATOMIC_NUMBER + 1)
    """Atomic numbers 0 .. num_elements - 1 have an embedding."""
    forces: OnFineTuning[Literal["gradient", "direct"]] = "direct"
    """Forces from -dE/dr or from a head of their own."""
    num_layers: int = Field(default=12, ge=1)
    """Message-passing layers."""
    l_max: int = Field(default=6, ge=1, le=6)
    """Highest degree of the features."""
    m_max: int = Field(default=2, ge=0)
    """Highest order kept in the edge frame."""
    channels: int = Field(default=128, ge=1)
    """Channels of each degree between the layers."""
    edge_channels: int = Field(default=128, ge=1)
    """Channels of the invariant features of an edge."""
    num_basis: int = Field(default=600, ge=2)
    """Gaussians between 0 and the cutoff that a distance is expanded in."""

    @model_validator(mode="after")
    def _orders_of_degrees(self) -> SO2ModelConfig:
        if self.m_max > self.l_max:
            raise ValueError(f"m_max={self.m_max} is above l_max={self.l_max}: no degree has such an order")
        return self


class PackedModelConfig(SO2ModelConfig):
    """Settings of the models in :mod:`denskit.models.packed`."""

    m_max: int = Field(default=2, ge=1)
    """Highest order kept in the edge frame."""
    channels: int = Field(default=128, ge=2)
    """Channels of each degree between the layers."""
    atom_pairs: Literal["own", "shared", "none"] = "own"
    """Element embeddings in the radial functions: own for each function, shared by all, or none."""
    envelope: bool = False
    """Smooth at the cutoff (the published EquiformerV2 is not)."""
    parity: bool = False
    """Equal energies and mirrored forces of mirror images (E(3)): the SO(2) layers have no imaginary part. Those of the
    published models have one, and tell left from right (SE(3))."""
    average_degree: float | None = Field(default=23.395238876342773, gt=0)
    """Usual number of neighbours; published: IS2RE's; null: measured."""
