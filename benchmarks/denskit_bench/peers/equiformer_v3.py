"""The published EquiformerV3, from a checkout of its repository; runs in the environment of fairchem, eagerly."""

from __future__ import annotations

import sys
from typing import Any

from .fairchem import saved
from .serving import Step

MPTRJ = {  # the models for MPtrj without stress, dropout and DeNS
    "num_radial_basis": 10, "max_neighbors": 300, "max_num_elements": 128, "num_channels": 128,
    "attn_hidden_channels": 32, "num_heads": 8, "attn_alpha_channels": 64, "attn_value_channels": 16,
    "ffn_hidden_channels": 512, "norm_type": "merge_layer_norm", "mmax": 2, "edge_channels": 128,
    "use_atom_edge_embedding": True, "use_envelope": True, "use_attn_renorm": True, "use_add_merge": False,
    "use_rad_l_parametrization": True, "softcap": None, "use_grid_mlp": True, "use_gate_force_head": True,
    "alpha_drop": 0.0, "attn_mask_rate": 0.0, "attn_weights_drop": 0.0, "value_drop": 0.0, "drop_path_rate": 0.0,
    "proj_drop": 0.0, "ffn_drop": 0.0, "avg_num_nodes": 1, "use_pbc": True, "use_pbc_single": True, "otf_graph": True,
    "regress_forces": True, "regress_stress": False, "enforce_max_neighbors_strictly": True,
}  # fmt: skip
ACTIVATION = "sep-merge_gates2_swiglu"  # of the attention: with "_mem" where forces are by gradient, as published


def build(job: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
    """The model of ``job["checkout"]``; its weights go to ``job["checkpoint"]`` first, for ours to read."""
    sys.path.append(job["checkout"])
    from experimental.models.equiformer_v3.equiformer_v3 import EquiformerV3_OC

    direct = job["model"] == "equiformer_v3"
    latitudes = 3 * job["l_max"] + 1 + (3 * job["l_max"] + 1) % 2  # published for 4 and 6
    attributes = {
        **MPTRJ, "num_layers": job["layers"], "lmax": job["l_max"], "max_radius": job["cutoff"],
        "direct_prediction": direct, "attn_activation": ACTIVATION if direct else f"{ACTIVATION}_mem",
        "ffn_activation": ACTIVATION,
        "attn_grid_resolution_list": [latitudes, 8], "ffn_grid_resolution_list": [latitudes, latitudes],
    }  # fmt: skip
    return saved(EquiformerV3_OC(**attributes), {"model": {"name": "equiformer_v3", **attributes}}, job)
