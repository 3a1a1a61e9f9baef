"""Published eSCN weights and hyper-parameters, with and without DeNS, as ours; some tensors are concatenated.

The bias of the published force embedding acts on every atom at any time: it is added to the atom embedding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from denskit.models.escn.config import ESCNConfig
from denskit.models.published_checkpoint import Converted, Importer, PublishedState, from_settings

_EDGE = {
    "distance": ("fc1_dist", ("weight", "bias")),
    "source": ("source_embedding", ("weight",)),
    "target": ("target_embedding", ("weight",)),
    "hidden": ("fc1_edge_attr", ("weight", "bias")),
}
_UPDATE = {"first": "fc1_sphere", "second": "fc2_sphere", "third": "fc3_sphere"}
_CONSTANTS = re.compile(r"(^|\.)(SO3_\w+\..+|edge_block\.distance_expansion\.offset)$")  # computed, or copies
_HEADS = {"energy": "energy_block", "forces": "force_block", "noise": "denoising_pos_block"}
_HEAD = {"first": ("fc1", ("weight", "bias")), "second": ("fc2", ("weight", "bias")), "third": ("fc3", ("weight",))}


def _convolution(state: Mapping[str, Tensor], block: str, ours: str, m_max: int) -> dict[str, Tensor]:
    """Source and target blocks of one layer as one convolution."""
    ends = [f"{block}.so2_block_{end}" for end in ("source", "target")]
    factors = {0: "fc1_dist0"} | {m: f"so2_conv.{m - 1}.fc1_dist" for m in range(1, m_max + 1)}
    out = {}
    for kind in ("weight", "bias"):
        parts = [state[f"{end}.{name}.{kind}"] for name in factors.values() for end in ends]
        out[f"{ours}.factors.{kind}"] = torch.cat(parts)
    out[f"{ours}.inner.0"] = torch.stack([state[f"{end}.fc1_m0.weight"] for end in ends])
    out[f"{ours}.outer.0"] = torch.cat([state[f"{end}.fc2_m0.weight"] for end in ends], 1)
    for m in range(1, m_max + 1):
        orders = [f"{end}.so2_conv.{m - 1}" for end in ends]
        pairs = [torch.cat([state[f"{order}.fc1_{part}.weight"] for part in "ri"]) for order in orders]
        out[f"{ours}.inner.{m}"] = torch.stack(pairs)
        out[f"{ours}.outer.{m}"] = torch.cat([state[f"{o}.fc2_{part}.weight"] for part in "ri" for o in orders], 1)
    return out


def convert_escn(state: Mapping[str, Tensor], config: ESCNConfig) -> Converted:
    """A published eSCN state dict as ours (see :class:`Importer`).  Raises ValueError for a tensor left over, too."""
    state = PublishedState(state)
    out = {
        "backbone.atom_embedding.weight": state["sphere_embedding.weight"],
        "backbone.basis.offset": state["distance_expansion.offset"],
        "backbone.sphere_points": state["sphere_points"],
        "backbone.sphere_harmonics": state["sphharm_weights.0"],
    }
    if "force_embedding.weight" in state:
        for l, weight in enumerate(state["force_embedding.weight"]):
            out[f"backbone.force_encoding.linear.weights.{l}"] = weight.T
        out["backbone.atom_embedding.weight"] = out["backbone.atom_embedding.weight"] + state["force_embedding.bias"]
    for k in range(config.num_layers):
        theirs, ours = f"layer_blocks.{k}", f"backbone.layers.{k}"
        for name, (published, kinds) in _EDGE.items():
            for kind in kinds:
                entry = state[f"{theirs}.message_block.edge_block.{published}.{kind}"]
                out[f"{ours}.edge_embedding.{name}.{kind}"] = entry
        out |= _convolution(state, f"{theirs}.message_block", f"{ours}.convolution", config.m_max)
        for name, published in _UPDATE.items():
            out[f"{ours}.update.{name}.weight"] = state[f"{theirs}.{published}.weight"]
    heads = {"noise": "1"} if "denoising_pos_block.fc1.weight" in state else {}
    for head in ("energy", "forces", *heads):
        for name, (published, kinds) in _HEAD.items():
            for kind in kinds:
                out[f"heads.{head}.{name}.{kind}"] = state[f"{_HEADS[head]}.{published}.{kind}"]
    state.check_all_read(_CONSTANTS)
    return out, heads


def config_of_escn(model: Mapping[str, Any]) -> ESCNConfig:
    """Our configuration from the published hyper-parameters (section ``model`` of a checkpoint's configuration).

    Raises ValueError for a variant that Denskit does not have.
    """
    degrees, orders = model.get("lmax_list", [6]), model.get("mmax_list", [2])
    if len(degrees) != 1 or len(orders) != 1:
        raise ValueError(f"the checkpoint has resolutions {degrees}; Denskit's eSCN has one")
    cutoff = model.get("cutoff", 8.0)
    return ESCNConfig(
        cutoff=cutoff,
        max_neighbors=model.get("max_neighbors", 40),
        strict_neighbors=model.get("enforce_max_neighbors_strictly", True),
        num_elements=model.get("max_num_elements", 90),
        force_input_scale=1.0,  # published: raw forces in eV/Å
        num_layers=model.get("num_layers", 8),
        l_max=degrees[0],
        m_max=orders[0],
        channels=model.get("sphere_channels", 128),
        hidden_channels=model.get("hidden_channels", 256),
        edge_channels=model.get("edge_channels", 128),
        num_basis=int(cutoff / model.get("distance_resolution", 0.02)),
        basis_width=model.get("basis_width_scalar", 1.0),
        num_sphere_samples=model.get("num_sphere_samples", 128),
    )


IMPORTER = Importer(
    "layer_blocks.0.message_block.so2_block_source.fc1_m0.weight",
    from_settings(config_of_escn, one_value={"distance_function": "gaussian", "resolution": None}),
    convert_escn,
)
