"""EquiformerV2, eSCN and eSEN of fairchem-core 1.10.0; runs in its environment, eagerly: it has no other way."""

from __future__ import annotations

from typing import Any

import torch

from .dynamics import atoms_of
from .serving import Step

EQUIFORMER_V2 = {
    "sphere_channels": 128, "attn_hidden_channels": 64, "num_heads": 8, "attn_alpha_channels": 64,
    "attn_value_channels": 16, "ffn_hidden_channels": 128, "norm_type": "layer_norm_sh", "mmax_list": [2],
    "grid_resolution": 18, "num_sphere_samples": 128, "edge_channels": 128,
    "use_atom_edge_embedding": True, "share_atom_edge_embedding": False, "use_m_share_rad": False,
    "distance_function": "gaussian", "num_distance_basis": 512, "attn_activation": "silu", "use_s2_act_attn": False,
    "use_attn_renorm": True, "ffn_activation": "silu", "use_gate_act": False, "use_grid_mlp": True,
    "use_sep_s2_act": True, "alpha_drop": 0.0, "drop_path_rate": 0.0, "proj_drop": 0.0, "weight_init": "uniform",
    "max_neighbors": 20, "max_num_elements": 90, "otf_graph": True, "use_pbc": True,
    "regress_forces": True, "enforce_max_neighbors_strictly": True,
}  # fmt: skip
ESCN = {
    "sphere_channels": 128, "hidden_channels": 256, "edge_channels": 128, "num_sphere_samples": 128,
    "mmax_list": [2], "distance_function": "gaussian", "basis_width_scalar": 2.0,
    "max_neighbors": 20, "max_num_elements": 90, "otf_graph": True, "use_pbc": True, "regress_forces": True,
}  # fmt: skip
ESEN = {  # the 30M model for MPtrj
    "sphere_channels": 128, "hidden_channels": 128, "edge_channels": 128, "mmax": 2, "num_distance_basis": 10,
    "distance_function": "gaussian", "norm_type": "rms_norm_sh", "act_type": "gate", "mlp_type": "spectral",
    "use_envelope": True, "max_neighbors": 300, "max_num_elements": 100, "otf_graph": True, "use_pbc": True,
    "regress_forces": True, "regress_stress": False,
}  # fmt: skip


def build(job: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
    """The published model; its weights go to ``job["checkpoint"]`` first, for ours to read."""
    sizes = {"num_layers": job["layers"], "lmax_list": [job["l_max"]]}
    model: Any
    if job["model"].startswith("esen"):
        direct = job["model"] == "esen"
        attributes = {**ESEN, "num_layers": job["layers"], "lmax": job["l_max"], "cutoff": job["cutoff"]}
        attributes["direct_forces"] = direct
        model = _esen(attributes, direct=direct)
        backbone = {"model": "esen_backbone", **attributes}
        return saved(model, {"model": {"name": "hydra", "backbone": backbone}}, job)
    if job["model"] == "equiformer_v2":
        from fairchem.core.models.equiformer_v2.equiformer_v2_deprecated import EquiformerV2

        attributes = {**EQUIFORMER_V2, **sizes, "max_radius": job["cutoff"]}
        model = EquiformerV2(**attributes)
    else:
        from fairchem.core.models.escn.escn import eSCN

        attributes = {**ESCN, **sizes, "cutoff": job["cutoff"]}
        model = eSCN(**attributes)
    return saved(model, {"model": job["model"], "model_attributes": attributes}, job)


def _esen(attributes: dict[str, Any], *, direct: bool) -> torch.nn.Module:
    from fairchem.core.models.esen.esen import Linear_Force_Head, MLP_EFS_Head, MLP_Energy_Head, eSEN_Backbone

    class ESENModel(torch.nn.Module):
        """As fairchem's HydraModel, without its registry."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = eSEN_Backbone(**attributes)
            heads = {"energy": MLP_Energy_Head, "forces": Linear_Force_Head} if direct else {"efs": MLP_EFS_Head}
            self.output_heads = torch.nn.ModuleDict({name: head(self.backbone) for name, head in heads.items()})

        def forward(self, data: Any) -> dict[str, torch.Tensor]:
            features = self.backbone(data)
            return {name: value for head in self.output_heads.values() for name, value in head(data, features).items()}

    return ESENModel()


def saved(model: Any, config: dict[str, Any], job: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
    """Steps of a model that takes fairchem's batches, once its weights are in ``job["checkpoint"]``."""
    unit = {"mean": torch.tensor(0.0), "std": torch.tensor(1.0)}
    normalizers = {"target": unit, "grad_target": unit}
    torch.save({"state_dict": model.state_dict(), "config": config, "normalizers": normalizers}, job["checkpoint"])
    model.to(job["device"]).train(job["work"] == "train")
    batch = _batch(job["structures"]).to(job["device"])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return _step(model, batch, job["work"]), {"parameters": sum(parameter.numel() for parameter in parameters)}


def _step(model: torch.nn.Module, batch: Any, work: str) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)  # all the work, the same weights

    def step() -> dict[str, Any]:
        with torch.set_grad_enabled(work == "train"):
            out = model(batch)
            energy, forces = out["energy"].reshape(-1), out["forces"]
        if work == "train":
            optimizer.zero_grad()
            (energy.abs().mean() + torch.linalg.vector_norm(forces, dim=-1).mean()).backward()
            optimizer.step()
        return {"energy": energy.tolist(), "forces": forces.tolist()}

    return step


def _batch(structures: list[dict[str, Any]]) -> Any:
    from torch_geometric.data import Batch, Data

    return Batch.from_data_list(
        [
            Data(
                pos=torch.tensor(atoms.positions, dtype=torch.float32),
                atomic_numbers=torch.tensor(atoms.numbers, dtype=torch.float32),
                cell=torch.tensor(atoms.cell.array, dtype=torch.float32)[None],
                natoms=len(atoms),
                tags=torch.zeros(len(atoms)),
                fixed=torch.zeros(len(atoms)),
                pbc=torch.ones(1, 3, dtype=torch.bool),
            )
            for atoms in map(atoms_of, structures)
        ]
    )
