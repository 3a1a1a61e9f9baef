"""Published eSEN weights and hyper-parameters as ours.

The bias of the published force embedding acts on every atom at every time, and is added to the atom embedding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from denskit.models.esen.config import ESENConfig
from denskit.models.published_checkpoint import Importer, from_settings

_RENAMED = (  # (pattern, ours), applied one after the other to the published name
    (r"^backbone\.", ""),
    (r"^output_heads\.\w+\.", ""),
    (r"^energy_block\.", "heads.energy.mlp."),
    (r"^linear\.", "heads.forces.linear."),
    (r"^denoising_linear\.", "heads.noise.linear."),
    (r"^(?!heads\.)", "backbone."),
    (r"\.sphere_embedding\.weight$", ".atom_embedding"),
    (r"\.distance_expansion\.", ".basis."),
    (r"^backbone\.(source|target)_embedding\.", r"backbone.\1_pairs."),
    (r"\.edge_degree_embedding\.rad_func\.", ".edge_degree.radial."),
    (r"\.edge_wise\.so2_conv_1\.rad_func\.", ".edgewise.radial."),
    (r"\.radial\.net\.0\.", ".radial.first."),
    (r"\.radial\.net\.1\.", ".radial.first_norm."),
    (r"\.radial\.net\.3\.", ".radial.second."),
    (r"\.radial\.net\.4\.", ".radial.second_norm."),
    (r"\.radial\.net\.6\.", ".radial.output."),
    (r"\.edge_wise\.so2_conv_1\.", ".edgewise.first."),
    (r"\.edge_wise\.so2_conv_2\.", ".edgewise.second."),
    (r"\.fc_m0\.weight$", ".weight_0"),
    (r"\.fc_m0\.bias$", ".bias"),
    (r"\.so2_m_conv\.(\d+)\.fc\.weight$", r".weights.\1"),
    (r"\.atom_wise\.scalar_mlp\.0\.", ".atomwise.gates."),
    (r"\.atom_wise\.so3_linear_1\.", ".atomwise.first."),
    (r"\.atom_wise\.so3_linear_2\.", ".atomwise.second."),
    (r"\.atom_wise\.grid_mlp\.0\.", ".atomwise.first."),
    (r"\.atom_wise\.grid_mlp\.2\.", ".atomwise.inner."),
    (r"\.atom_wise\.grid_mlp\.4\.", ".atomwise.last."),
    (r"\.affine_(weight|bias)$", r".\1"),
)
_LEFT_OUT = re.compile(  # buffers, and the published stress head, which is not equivariant
    r"(SO3_grid|SO3_rotation|mappingReduced|coefficient_index|expand_index|balance_degree_weight|sphharm_norm"
    r"|xedge_layer_norm|block\.(scalar|irrep2)_MLP|Jd_\d)"
)


def _our_name(published: str) -> str:
    for pattern, ours in _RENAMED:
        published = re.sub(pattern, ours, published)
    return published


def convert_esen(state: Mapping[str, Tensor], config: ESENConfig) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A published eSEN state dict as ours.

    Args:
        state: name -> tensor, names as published (without a "module." prefix); gradients convert in the same way.
        config: the architecture.

    Returns:
        Our state dict of the force field without its scaling, and the heads beyond energy and forces.

    Raises:
        ValueError: Tensors of the architecture are missing.
    """
    out = {_our_name(name): tensor for name, tensor in state.items() if not _LEFT_OUT.search(name)}
    if "backbone.atom_embedding" not in out:
        raise ValueError("the checkpoint has no 'sphere_embedding.weight': it is not a published eSEN")
    for head in ("forces", "noise"):  # published: one matrix for each degree and a bias, of which only degree 1 acts
        if f"heads.{head}.linear.weight" in out:
            out[f"heads.{head}.linear.weight"] = out[f"heads.{head}.linear.weight"][1]
            del out[f"heads.{head}.linear.bias"]
    if "backbone.force_embedding.weight" in out:
        for l, part in enumerate(out.pop("backbone.force_embedding.weight")):
            out[f"backbone.force_encoding.linear.weights.{l}"] = part.T
        bias = out.pop("backbone.force_embedding.bias").double()
        out["backbone.atom_embedding"] = out["backbone.atom_embedding"] + bias
    noise = any(name.startswith("heads.noise.") for name in out)
    return out, {"noise": "1"} if noise else {}


def config_of_esen(model: Mapping[str, Any]) -> ESENConfig:
    """Our configuration from the published hyper-parameters (section ``model`` of a checkpoint's configuration).

    Raises:
        ValueError: A variant that no published weights use and that Denskit does not have.
    """
    model = model.get("backbone", model)
    for name, wanted in (("norm_type", "rms_norm_sh"), ("act_type", "gate")):
        if model.get(name, wanted) != wanted:
            raise ValueError(f"the checkpoint has {name}={model[name]}, a variant of eSEN that Denskit does not have")
    direct = model.get("direct_forces", True)
    return ESENConfig(
        cutoff=model["cutoff"],
        max_neighbors=model["max_neighbors"],
        num_elements=model.get("max_num_elements", 100),
        forces="direct" if direct else "gradient",
        stress="strain" if model.get("regress_stress") and not direct else "none",
        force_input_scale=1.0,  # published: raw forces in eV/Å
        num_layers=model["num_layers"],
        l_max=model["lmax"],
        m_max=model["mmax"],
        channels=model["sphere_channels"],
        hidden_channels=model["hidden_channels"],
        edge_channels=model["edge_channels"],
        num_basis=model["num_distance_basis"],
        radial_basis=model.get("distance_function", "gaussian"),
        atomwise=model.get("mlp_type", "spectral"),
        envelope=model.get("use_envelope", True),
    )


IMPORTER = Importer("blocks.0.edge_wise.so2_conv_1.fc_m0.weight", from_settings(config_of_esen), convert_esen)
