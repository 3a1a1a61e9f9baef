"""
11 A new model
==============

A model is a network from a batch to features of atoms, with heads that read them. Energies, forces, stress, units,
training and simulation come from Denskit. The model here knows distances alone, as SchNet does.
"""

# %%
# The model
# ---------

from typing import Literal

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from denskit import train
from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames, edge_frames
from denskit.models import MODELS, ModelEntry
from denskit.models.base import Backbone, Features
from denskit.models.config import ModelConfig
from denskit.models.execution import DEFAULT, Execution
from denskit.models.graph import EdgeGraph
from denskit.nn.cutoff import PolynomialEnvelope
from denskit.nn.radial import BesselBasis


class DistancesConfig(ModelConfig):
    """Settings of :class:`Distances`."""

    name: Literal["distances"] = "distances"
    width: int = 64
    num_layers: int = 3


class Layer(nn.Module):
    """Atoms hear from their neighbours through a filter that depends on the distance."""

    def __init__(self, channels: int, num_basis: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(num_basis, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.update = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))

    def forward(self, x: Tensor, graph: EdgeGraph) -> Tensor:
        """Features [N, C] of the next layer."""
        messages = self.filter(graph.basis) * x[graph.source] * graph.weight[:, None]  # [E, C]
        return x + self.update(graph.sum_over_edges(messages[:, None])[:, 0])


class EnergyHead(nn.Module):
    """The energy of an atom, [N, 1]."""

    def __init__(self, config: DistancesConfig) -> None:
        super().__init__()
        self.output = nn.Sequential(nn.Linear(config.width, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, features: Features) -> Tensor:
        """Energies of atoms."""
        return self.output(features.nodes[0][:, 0])


class Distances(Backbone):
    """Scalars of atoms from elements and distances."""

    symmetry = "O(3)"
    gauge_exact = True
    head_types = {"0": EnergyHead}  # noqa: RUF012

    def __init__(self, config: DistancesConfig, heads: dict[str, str], force_input_scale: float) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.num_elements, config.width)
        self.basis = BesselBasis(16, config.cutoff)
        self.envelope = PolynomialEnvelope(config.cutoff)
        self.layers = nn.ModuleList(Layer(config.width, 16) for _ in range(config.num_layers))

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> Features:
        """Features of a batch with edges."""
        frames = frames or edge_frames(self.edge_vectors(batch), l_max=0)
        graph = EdgeGraph(**self.edge_fields(batch, frames, self.basis(frames.length), execution))
        x = self.embedding(batch.atomic_numbers)
        for layer in self.layers:
            x = layer(x, graph)
        return Features(nodes=[x[:, None]], graph=graph, batch=batch)


# %%
# Register and train
# ------------------
# In Denskit's sources this line stands in ``denskit/models/__init__.py``, and a package of yours names its model as an
# entry point: :doc:`/adding_a_model`. Here it holds for this process only.

MODELS["distances"] = ModelEntry(DistancesConfig, Distances)

import tempfile

folder = tempfile.mkdtemp()
settings = {"data.split": {"train": 400, "valid": 50, "test": 200}, "training.max_steps": 100}
runs = {
    "distances": train("demo", settings=settings, model={"name": "distances"}, output=f"{folder}/distances"),
    "equiformer": train("demo", settings=settings, output=f"{folder}/equiformer"),
}
for name, run in runs.items():
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    print(f"{name:10} {parameters:6,} parameters, forces {run.errors['forces_mae_meV_per_A']:.0f} meV/Å")

# %%
# All that the others can do
# --------------------------
# Forces are gradients, the calculator and dynamics work. Rotations leave the energy as it is, which the contract
# tests would check (``tests/contract``).

from ase.build import molecule

from denskit import DenskitCalculator

atoms = molecule("CH3CH2OH")
atoms.calc = DenskitCalculator(runs["distances"], dtype="float64")
angles = range(0, 360, 10)
energies = []
for angle in angles:
    atoms.set_dihedral(0, 1, 2, 3, angle, indices=[3])
    energies.append(atoms.get_potential_energy())
before = energies[0]
atoms.rotate(70, "x")
atoms.set_dihedral(0, 1, 2, 3, 0, indices=[3])
print(f"energy after a rotation: {atoms.get_potential_energy() - before:+.1e} eV")

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
axes.plot(angles, 1000 * (torch.tensor(energies) - min(energies)))
axes.set(xlabel="angle of the O-H bond around C-O (degrees)", ylabel="energy (meV)")
plt.show()
