"""Published EquiformerV2 weights and hyper-parameters, with and without DeNS, as ours.

An import is a renaming, but for separable layer norms and the bias of the force embedding, see :func:`rename`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from denskit.models.equiformer_v2.config import EquiformerV2Config
from denskit.models.packed_published import rename, without_stress_head
from denskit.models.published_checkpoint import Converted, Importer, from_settings

NORMS = {"layer_norm": "layer_norm", "layer_norm_sh": "separable_layer_norm", "rms_norm_sh": "rms_norm"}

_ONE_VALUE = dict.fromkeys(
    ("use_m_share_rad", "use_s2_act_attn", "use_noise_schedule_sigma_encoding", "use_tp_reparam"), False
) | {"distance_function": "gaussian"}
_WITHOUT_EFFECT = frozenset(  # the published code has 600 Gaussians and SiLU, whatever these say
    {"num_distance_basis", "num_sphere_samples", "attn_activation", "ffn_activation", "use_energy_lin_ref",
     "load_energy_lin_ref", "use_denoising_energy", "use_denoising_stress", "regress_stress"}
)  # fmt: skip
_HEADS = (
    (r"^energy_block\.", "heads.energy.feed_forward."),
    (r"^force_block\.", "heads.forces.attention."),
    (r"^denoising_pos_block\.", "heads.noise.attention."),
)
_LAYERS = (
    (r"\.(scalar_mlp\.0|gating_linear)\.", ".scalars."),
    (r"\.grid_mlp\.0\.", ".activation.first."),
    (r"\.grid_mlp\.2\.", ".activation.inner."),
    (r"\.grid_mlp\.4\.", ".activation.last."),
)


def convert_equiformer_v2(state: Mapping[str, Tensor], config: EquiformerV2Config) -> Converted:
    """A published EquiformerV2 state dict as ours (see :class:`Importer`), without the stress' head."""
    return rename(without_stress_head(state), "EquiformerV2", _HEADS, _LAYERS, bias_on_all=True)


def config_of_equiformer_v2(model: Mapping[str, Any]) -> EquiformerV2Config:
    """Our configuration from the published hyper-parameters (section ``model`` of a checkpoint's configuration).

    Raises ValueError for a variant that Denskit does not have.
    """
    gate, separable = model.get("use_gate_act", False), model.get("use_sep_s2_act", True)
    grid_mlp = model.get("use_grid_mlp", False)
    if gate and grid_mlp and not separable:
        raise ValueError("the checkpoint has gates, a grid MLP and no separable S2 activation; Denskit has none such")
    norm = model.get("norm_type", "rms_norm_sh")
    if norm not in NORMS:
        raise ValueError(f"the checkpoint has norm_type={norm}; Denskit has {', '.join(NORMS)}")
    averages = {"average_atoms": model.get("avg_num_nodes"), "average_degree": model.get("avg_degree")}
    pairs = "none"
    if model.get("use_atom_edge_embedding", True):
        pairs = "shared" if model.get("share_atom_edge_embedding", False) else "own"
    return EquiformerV2Config(
        cutoff=model["max_radius"],
        max_neighbors=model["max_neighbors"],
        strict_neighbors=model.get("enforce_max_neighbors_strictly", True),
        num_elements=model.get("max_num_elements", 90),
        forces="direct",
        force_input_scale=1.0,  # published: raw forces in eV/Å
        num_layers=model["num_layers"],
        l_max=max(model["lmax_list"]),
        m_max=max(model["mmax_list"]),
        channels=model["sphere_channels"],
        hidden_channels=model["attn_hidden_channels"],
        num_heads=model["num_heads"],
        alpha_channels=model["attn_alpha_channels"],
        value_channels=model["attn_value_channels"],
        ffn_channels=model["ffn_hidden_channels"],
        edge_channels=model["edge_channels"],
        atom_pairs=pairs,  # type: ignore[arg-type]
        norm=NORMS[norm],  # type: ignore[arg-type]
        activation="gate" if gate else ("separable_s2" if separable else "s2"),
        grid_mlp=grid_mlp,
        grid_resolution=model["grid_resolution"],
        attention_renormalisation=model.get("use_attn_renorm", True),
        initialisation=model.get("weight_init", "normal"),
        attention_dropout=model.get("alpha_drop", 0.1),
        projection_dropout=model.get("proj_drop", 0.0),
        stochastic_depth=model.get("drop_path_rate", 0.05),
        **{name: value for name, value in averages.items() if value},  # published: else those of OC20
    )


IMPORTER = Importer(
    "blocks.0.ga.so2_conv_1.fc_m0.weight",
    from_settings(config_of_equiformer_v2, one_value=_ONE_VALUE, without_effect=_WITHOUT_EFFECT),
    convert_equiformer_v2,
)
