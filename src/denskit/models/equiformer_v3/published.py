"""Published EquiformerV3 weights and hyper-parameters as ours: an import is a renaming."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from denskit.models.equiformer_v3.config import EquiformerV3Config
from denskit.models.packed_published import rename
from denskit.models.published_checkpoint import Converted, Importer, from_settings

NORMS = {
    "merge_layer_norm": "merged_layer_norm",
    "merge_rms_norm": "merged_rms_norm",
    "sep_layer_norm": "separable_layer_norm",
}
ACTIVATIONS = {
    "sep-merge_gates2_swiglu": "swiglu_s2",
    "sep-merge_gates2_swiglu_mem": "swiglu_s2",
    "sep-merge_s2_swiglu": "silu_swiglu_s2",
    "sep_s2": "separable_s2",
}

_ONE_VALUE = dict.fromkeys(
    ("use_atom_edge_embedding", "use_rad_l_parametrization", "use_grid_mlp", "use_attn_renorm"), True
)
_WITHOUT_EFFECT = frozenset(  # on predictions: dropout that Denskit's EquiformerV3 does not have, and its memory
    {"alpha_drop", "attn_mask_rate", "value_drop", "proj_drop", "ffn_drop", "use_head_reg",
     "gradient_checkpointing_block_list"}
)  # fmt: skip
_HEADS = (
    (r"^energy_block\.linear_1\.", "heads.energy.first."),
    (r"^energy_block\.linear_2\.", "heads.energy.second."),
    (r"^force_block\.", "heads.forces.attention."),
    (r"^dens_block\.", "heads.noise.attention."),
    (r"^stress_block\.gating_linear\.", "heads.stress.gates."),
    (r"^stress_block\.", "heads.stress."),
)
_LAYERS = (
    (r"\.scalar_mlp\.0\.(linear\.)?", ".scalars."),
    (r"\.grid_mlp\.gating_linear\.", ".gates."),
    (r"\.grid_mlp\.(grid_linear_1|0\.linear|0)\.", ".grid_first."),
    (r"\.grid_mlp\.3\.", ".grid_inner."),
    (r"\.grid_mlp\.(grid_linear_2|2|6)\.", ".grid_last."),
)


def convert_equiformer_v3(state: Mapping[str, Tensor], config: EquiformerV3Config) -> Converted:
    """A published EquiformerV3 state dict as ours: see :class:`Importer`."""
    out, heads = rename(state, "EquiformerV3", _HEADS, _LAYERS, bias_on_all=False)
    for name in out:
        if re.search(r"\.(projection|first|second)\.bias$", name):  # published: [1, 1, C]
            out[name] = out[name].flatten()
    return out, heads


def config_of_equiformer_v3(model: Mapping[str, Any]) -> EquiformerV3Config:
    """Our configuration from the published hyper-parameters (section ``model`` of a checkpoint's configuration).

    Raises ValueError for a variant that Denskit does not have.
    """
    activation, other = model["attn_activation"], model.get("ffn_activation")
    if activation not in ACTIVATIONS or other not in ACTIVATIONS or ACTIVATIONS[other] != ACTIVATIONS[activation]:
        raise ValueError(
            f"the checkpoint has attn_activation={activation} and ffn_activation={other}; "
            f"Denskit has {', '.join(ACTIVATIONS)}, the same for both"
        )
    if model["norm_type"] not in NORMS:
        raise ValueError(f"the checkpoint has norm_type={model['norm_type']}; Denskit has {', '.join(NORMS)}")
    direct = model.get("direct_prediction", True)
    return EquiformerV3Config(
        cutoff=model["max_radius"],
        max_neighbors=model["max_neighbors"],
        strict_neighbors=model.get("enforce_max_neighbors_strictly", True),
        num_elements=model.get("max_num_elements", 128),
        forces="direct" if direct else "gradient",
        stress=("direct" if direct else "strain") if model.get("regress_stress") else "none",
        force_input_scale=1.0,  # published: raw forces in eV/Å
        num_layers=model["num_layers"],
        l_max=model["lmax"],
        m_max=model["mmax"],
        channels=model["num_channels"],
        hidden_channels=model["attn_hidden_channels"],
        num_heads=model["num_heads"],
        alpha_channels=model["attn_alpha_channels"],
        value_channels=model["attn_value_channels"],
        ffn_channels=model["ffn_hidden_channels"],
        edge_channels=model["edge_channels"],
        num_basis=model["num_radial_basis"],
        norm=NORMS[model["norm_type"]],  # type: ignore[arg-type]
        activation=ACTIVATIONS[activation],  # type: ignore[arg-type]
        attention_grid=tuple(model["attn_grid_resolution_list"]),
        ffn_grid=tuple(model["ffn_grid_resolution_list"]),
        gate_force_head=model.get("use_gate_force_head", True),
        add_ends=model.get("use_add_merge", False),
        softcap=model.get("softcap"),
        attention_epsilon=model.get("attn_eps", 1e-16),
        envelope=model.get("use_envelope", True),
        attention_dropout=model.get("attn_weights_drop", 0.1),
        stochastic_depth=model.get("drop_path_rate", 0.05),
        average_atoms=model.get("avg_num_nodes", 77.81317),
        average_degree=model.get("avg_degree", 23.395238876342773),
    )


IMPORTER = Importer(
    "blocks.0.ga.so2_linear_1.fc_m0.weight",
    from_settings(config_of_equiformer_v3, one_value=_ONE_VALUE, without_effect=_WITHOUT_EFFECT),
    convert_equiformer_v3,
)
