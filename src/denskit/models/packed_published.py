"""Published weights of EquiformerV2, EquiformerV3 and eSEN as ours: the names and tensors that they share."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from denskit.models.published_checkpoint import Converted
from denskit.runtime.warning import warn

Renaming = tuple[tuple[str, str], ...]  # (pattern, ours), applied one after the other to a published name

LAYERS: Renaming = (
    (r"\.sphere_embedding\.weight$", ".atom_embedding"),
    (r"\.distance_expansion\.", ".basis."),
    (r"^backbone\.(source|target)_embedding\.", r"backbone.\1_pairs."),
    (r"\.edge_degree_embedding\.", ".edge_degree."),
    (r"\.edge_degree\.(source|target)_embedding\.", r".edge_degree.radial.\1."),
    (r"\.(source|target)_embedding\.", r".radial.\1."),
    (r"\.(so2_conv_1\.)?rad_func\.", ".radial."),
    (r"\.radial\.net\.0\.", ".radial.first."),
    (r"\.radial\.net\.1\.", ".radial.first_norm."),
    (r"\.radial\.net\.3\.", ".radial.second."),
    (r"\.radial\.net\.4\.", ".radial.second_norm."),
    (r"\.radial\.net\.6\.", ".radial.output."),
    (r"\.ga\.", ".attention."),
    (r"\.edge_wise\.", ".edgewise."),
    (r"\.atom_wise\.", ".atomwise."),
    (r"\.ffn\.", ".feed_forward."),
    (r"\.so[23]_(conv|linear)_1\.", ".first."),
    (r"\.so[23]_(conv|linear)_2\.", ".second."),
    (r"\.fc_m0\.weight$", ".weight_0"),
    (r"\.fc_m0\.bias$", ".bias"),
    (r"\.so2_m_(conv|linear)\.(\d+)\.fc\.weight$", r".weights.\2"),
    (r"\.alpha_norm\.", ".logit_norm."),
    (r"\.alpha_dot$", ".attention_vector"),
    (r"\.proj\.", ".projection."),
    (r"\.affine_(weight|bias)$", r".\1"),
)
BUFFERS = re.compile(  # without weights
    r"(^|\.)(SO3_\w+\..*|so3_(?!linear)\w+\..*|mappingReduced\..*|coefficient_index|expand_index|balance_degree_weight"
    r"|energy_lin_ref|Jd_\d)$"
)
_STRESS = re.compile(r"sphharm_norm|xedge_layer_norm|block\.(scalar|irrep2)_MLP")  # the head that is not equivariant


def without_stress_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict without fairchem's head for the stress, of which it warns."""
    left = {name: tensor for name, tensor in state.items() if not _STRESS.search(name)}
    if len(left) < len(state):
        warn(
            "the checkpoint's head for the stress is left out: its linear layer with a bias and SiLU act on components "
            "of degree 2, so its stress does not turn with the crystal; train with model.stress=strain"
        )
    return left


def rename(
    state: Mapping[str, Tensor], model: str, heads: Renaming, layers: Renaming, *, bias_on_all: bool
) -> Converted:
    """A published state dict by our names, and its heads beyond energy and forces.

    Names of ``state`` are those of ``read_checkpoint``, without prefixes like "module.".  ``heads`` renames tensors of
    heads, all others are the backbone's; ``layers`` follows :data:`LAYERS`.
    ``bias_on_all``: the bias of the published force embedding acts on every atom at any time, so it is added to the
    atom embedding.  The two weights of a separable layer norm, of scalars and of higher degrees, become one.
    Raises ValueError, naming the ``model``, for another one's state dict.
    """
    patterns = (*heads, (r"^(?!heads\.)", "backbone."), *LAYERS, *layers)
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not BUFFERS.search(name):
            for pattern, ours in patterns:
                name = re.sub(pattern, ours, name)
            out[name] = tensor
    if "backbone.atom_embedding" not in out:
        raise ValueError(f"the checkpoint has no 'sphere_embedding.weight': it is not a published {model}")
    for name in [name for name in out if name.endswith(".norm_l0.bias")]:  # published: scalars apart
        norm = name.removesuffix(".norm_l0.bias")
        out[f"{norm}.bias"] = out.pop(name)
        out[f"{norm}.weight"] = torch.cat((out.pop(f"{norm}.norm_l0.weight")[None], out[f"{norm}.weight"]))
    if "backbone.force_embedding.weight" in out:
        for l, part in enumerate(out.pop("backbone.force_embedding.weight")):
            out[f"backbone.force_encoding.linear.weights.{l}"] = part.T
        bias = out.pop("backbone.force_embedding.bias").flatten()
        if bias_on_all:  # added before it is rounded again
            out["backbone.atom_embedding"] = out["backbone.atom_embedding"] + bias.double()
        else:
            out["backbone.force_encoding.linear.bias"] = bias
    found = {name.split(".")[1] for name in out if name.startswith("heads.")}
    return out, {name: irreps for name, irreps in (("noise", "1"), ("stress", "0+2")) if name in found}
