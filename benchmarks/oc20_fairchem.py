"""fairchem's EquiformerV2 as a model of Denskit, for ``oc20_folds.py --network fairchem``.

The network, its neighbours and its initial weights are those of fairchem-core 1.10.0; data, batches, loss, optimiser
and judging are Denskit's.  So a training that fails with Denskit's EquiformerV2 and not with this one would be the
fault of Denskit's network.  Runs in the environment of fairchem-core (docs/benchmarks.md) with Denskit beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from denskit.batch import Batch
from denskit.geometry.edge_frame import EdgeFrames
from denskit.models import MODELS, ModelEntry
from denskit.models.base import Backbone, Features
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.execution import DEFAULT, Execution

NAME = "fairchem_equiformer_v2"
BASIS = 600  # Gaussians, a constant of the published network
GRAPH: Any = None  # the published network makes its own


class FairchemConfig(EquiformerV2Config):
    """The settings of Denskit's EquiformerV2, read for fairchem's."""

    name: Literal["fairchem_equiformer_v2"] = "fairchem_equiformer_v2"  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class Outputs(Features):
    """What the published network gives."""

    energy: Tensor  # [B]
    forces: Tensor  # [N, 3]


class Energy(nn.Module):
    """The energy of a structure, in equal parts at its atoms."""

    def __init__(self, config: FairchemConfig) -> None:
        super().__init__()

    def forward(self, features: Outputs) -> Tensor:
        """[N, 1]."""
        batch = features.batch
        return (features.energy / batch.n_atoms)[batch.system_index][:, None]


class Forces(nn.Module):
    """The forces on the atoms."""

    def __init__(self, config: FairchemConfig) -> None:
        super().__init__()

    def forward(self, features: Outputs) -> Tensor:
        """[N, 3]."""
        return features.forces


class FairchemEquiformerV2(Backbone):
    """``EquiformerV2`` of fairchem-core."""

    symmetry = "SO(3)"
    gauge_exact = False
    symmetric_sites = False
    head_types: ClassVar = {"0": Energy, "1": Forces}
    config: FairchemConfig

    def __init__(self, config: FairchemConfig, heads: dict[str, str], force_input_scale: float) -> None:
        from fairchem.core.models.equiformer_v2 import equiformer_v2_deprecated as published

        super().__init__(config)
        if heads.keys() != {"energy", "forces"}:
            raise ValueError(
                f"fairchem's EquiformerV2 has energy and forces, not {', '.join(heads)}: task=energy_forces"
            )
        if config.num_basis != BASIS:
            raise ValueError(f"fairchem's EquiformerV2 has {BASIS} Gaussians: set model.num_basis={BASIS}")
        published._AVG_DEGREE, published._AVG_NUM_NODES = config.average_degree, config.average_atoms
        self.network = published.EquiformerV2(**attributes_of(config))

    def forward(
        self,
        batch: Batch,
        force_input: Tensor | None = None,
        frames: EdgeFrames | None = None,
        l_out: int | None = None,
        execution: Execution = DEFAULT,
    ) -> Outputs:
        """Energies and forces of a batch."""
        from torch_geometric.data import Data

        found = self.network(
            Data(
                pos=batch.positions,
                atomic_numbers=batch.atomic_numbers,
                cell=batch.cell,
                natoms=batch.n_atoms,
                batch=batch.system_index,
                pbc=batch.pbc,
                tags=batch.tags,
                fixed=batch.fixed,
            )
        )
        energy = found["energy"].reshape(-1)
        return Outputs(nodes=[], graph=GRAPH, batch=batch, energy=energy, forces=found["forces"])


def attributes_of(config: FairchemConfig) -> dict[str, Any]:
    """The arguments of the published network."""
    return {
        "num_layers": config.num_layers,
        "sphere_channels": config.channels,
        "attn_hidden_channels": config.hidden_channels,
        "num_heads": config.num_heads,
        "attn_alpha_channels": config.alpha_channels,
        "attn_value_channels": config.value_channels,
        "ffn_hidden_channels": config.ffn_channels,
        "norm_type": "layer_norm_sh",
        "lmax_list": [config.l_max],
        "mmax_list": [config.m_max],
        "grid_resolution": config.grid_resolution,
        "edge_channels": config.edge_channels,
        "use_atom_edge_embedding": True,
        "share_atom_edge_embedding": config.atom_pairs == "shared",
        "distance_function": "gaussian",
        "use_grid_mlp": config.grid_mlp,
        "use_sep_s2_act": config.activation == "separable_s2",
        "alpha_drop": config.attention_dropout,
        "drop_path_rate": config.stochastic_depth,
        "proj_drop": config.projection_dropout,
        "weight_init": config.initialisation,
        "max_radius": config.cutoff,
        "max_neighbors": config.max_neighbors,
        "enforce_max_neighbors_strictly": config.strict_neighbors,
        "max_num_elements": config.num_elements,
        "otf_graph": True,
        "use_pbc": True,
        "regress_forces": True,
    }


def register() -> None:
    """Let Denskit know the model."""
    MODELS[NAME] = ModelEntry(FairchemConfig, FairchemEquiformerV2)
