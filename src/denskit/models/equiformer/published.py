"""Import of published Equiformer weights (MD17), with and without DeNS.

Equiformer's published layers are e3nn tensor products with flat weights.  Ours hold the same numbers as matrices, with
the paths of a tensor product in another order (:func:`denskit.geometry.so2.paths_to`): an import is a renaming and a
permutation.  One number changes: the scalar bias of the published force embedding acts on every atom at any time and is
added to the bias of the atom embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from denskit.geometry.so2 import CouplingPath, paths_to
from denskit.models.equiformer.config import EquiformerConfig
from denskit.models.published_checkpoint import Converted, PublishedState
from denskit.nn.radial import RADIAL_BASES


def published_paths(l_max: int) -> list[CouplingPath]:
    """All paths in the order of the published radial weights: by l1, then l2, then l3."""
    degrees = range(l_max + 1)
    return [CouplingPath(a, b, c) for a in degrees for b in degrees for c in degrees if abs(a - b) <= c <= a + b]


class _Rows:
    """Permutations of channels from the published order to ours, of all paths and of the paths into each l3."""

    def __init__(self, channels: Sequence[int]) -> None:
        l_max = len(channels) - 1
        theirs, degrees = published_paths(l_max), range(l_max + 1)
        ours = [paths_to(l3, l_max, l_max) for l3 in degrees]
        # within one l3 the published linear layers see the paths in the same order
        self.into = [_channel_positions([p for p in theirs if p.l3 == l3], ours[l3], channels) for l3 in degrees]
        self.all = _channel_positions(theirs, [path for paths in ours for path in paths], channels)


def _channel_positions(
    order: Sequence[CouplingPath], wanted: Sequence[CouplingPath], channels: Sequence[int]
) -> Tensor:
    """Positions, in a list of paths in ``order``, of the channels of the paths ``wanted``."""
    starts, at = {}, 0
    for path in order:
        starts[path] = at
        at += channels[path.l1]
    return torch.cat([torch.arange(channels[path.l1]) + starts[path] for path in wanted])


class _EquiformerImport:
    """Fills our state dict from a published one."""

    def __init__(self, state: Mapping[str, Tensor], config: EquiformerConfig) -> None:
        self.source, self.config, self.out = PublishedState(state), config, dict[str, Tensor]()

    def take(self, name: str, *shape: int) -> Tensor:
        """A published tensor in this shape; e3nn's tensors are flat."""
        tensor = self.source[name]
        if tensor.numel() != prod(shape) or (tensor.dim() > 1 and tensor.shape != shape):
            raise ValueError(
                f"'{name}' has {tensor.numel()} numbers where the configuration wants {prod(shape)} (found "
                f"{tuple(tensor.shape)}, wanted {shape})"
            )
        return tensor.reshape(shape)

    def linear(self, theirs: str, ours: str, c_in: Sequence[int], c_out: Sequence[int], bias: bool = True) -> None:
        """An SO3Linear: flat blocks [C_in, C_out], one a degree."""
        sizes = [a * b for a, b in zip(c_in, c_out, strict=False)]
        flat = self.take(f"{theirs}.tp.weight", sum(sizes))
        for l, (block, a, b) in enumerate(zip(flat.split(sizes), c_in, c_out, strict=False)):
            self.out[f"{ours}.weights.{l}"] = block.reshape(a, b)
        if bias:
            self.out[f"{ours}.bias"] = self.take(f"{theirs}.bias.0", c_out[0])

    def radial(self, theirs: str, ours: str, rows: _Rows) -> None:
        """A radial function: Linear, LayerNorm, SiLU a hidden layer, then the output."""
        sizes = self.config.radial_widths
        for k, (a, b) in enumerate(pairwise(sizes)):
            at, norm = 3 * k, 3 * k + 1
            self.out[f"{ours}.hidden.{at}.weight"] = self.take(f"{theirs}.net.{at}.weight", b, a)
            self.out[f"{ours}.hidden.{at}.bias"] = self.take(f"{theirs}.net.{at}.bias", b)
            self.out[f"{ours}.hidden.{norm}.weight"] = self.take(f"{theirs}.net.{norm}.weight", b)
            self.out[f"{ours}.hidden.{norm}.bias"] = self.take(f"{theirs}.net.{norm}.bias", b)
        width, last = len(rows.all), 3 * (len(sizes) - 1)
        output = self.take(f"{theirs}.net.{last}.weight", width, sizes[-1])
        self.out[f"{ours}.output.weight"] = output[rows.all]
        self.out[f"{ours}.offset"] = self.take(f"{theirs}.offset", width)[rows.all]

    def path_linear(self, theirs: str, ours: str, rows: _Rows, channels_out: Sequence[int]) -> None:
        """The linear layer behind a depthwise tensor product: rows from the published order of paths to ours."""
        sizes = [len(into) * c for into, c in zip(rows.into, channels_out, strict=True)]
        flat = self.take(f"{theirs}.tp.weight", sum(sizes)).split(sizes)
        for l3, (block, into) in enumerate(zip(flat, rows.into, strict=True)):
            self.out[f"{ours}.weights.{l3}"] = block.reshape(len(into), -1)[into]
        self.out[f"{ours}.bias"] = self.take(f"{theirs}.bias.0", channels_out[0])

    def norm(self, theirs: str, ours: str, channels: Sequence[int]) -> None:
        weight = self.take(f"{theirs}.affine_weight", sum(channels))
        for l, part in enumerate(weight.split(list(channels))):
            self.out[f"{ours}.weights.{l}"] = part
        self.out[f"{ours}.bias"] = self.take(f"{theirs}.affine_bias", channels[0])

    def attention(self, theirs: str, ours: str, c_in: Sequence[int], c_out: Sequence[int], kind: str) -> None:
        hidden = self.config.messages_of(c_in)
        rows, values = _Rows(hidden), self.config.value_channels
        self.linear(f"{theirs}.merge_src", f"{ours}.merge_source", c_in, hidden)
        self.linear(f"{theirs}.merge_dst", f"{ours}.merge_target", c_in, hidden, bias=False)
        self.linear(f"{theirs}.proj", f"{ours}.projection", values, c_out, bias=c_out[0] > 0)
        if kind == "dot_product":
            self.linear(f"{theirs}.query", f"{ours}.query", c_in, values)
            self.radial(f"{theirs}.key_value.dtp_rad", f"{ours}.radial", rows)
            self.path_linear(f"{theirs}.key_value.lin", f"{ours}.product", rows, [2 * c for c in values])
            return
        if kind == "mlp":
            vector = self.take(f"{theirs}.alpha_dot", 1, self.config.num_heads, self.config.head_channels[0])
            self.out[f"{ours}.attention_vector"] = vector[0]
        if self.config.messages == "linear":
            self._linear_messages(theirs, ours, rows, values, kind)
        else:
            self._gated_messages(theirs, f"{ours}.messages", rows, hidden, values, kind)

    def _linear_messages(self, theirs: str, ours: str, rows: _Rows, values: Sequence[int], kind: str) -> None:
        self.radial(f"{theirs}.sep.dtp_rad", f"{ours}.radial", rows)
        scalars = 2 * values[0] if kind == "mlp" else values[0]
        self.path_linear(f"{theirs}.sep.lin", f"{ours}.product", rows, (scalars, *values[1:]))
        if kind == "mlp":
            # published: for each head its logits, then its values; ours: all values, then all logits
            order = torch.arange(scalars).reshape(self.config.num_heads, 2, -1)
            order = torch.cat((order[:, 1].flatten(), order[:, 0].flatten()))
            self.out[f"{ours}.product.weights.0"] = self.out[f"{ours}.product.weights.0"][:, order]
            self.out[f"{ours}.product.bias"] = self.out[f"{ours}.product.bias"][order]

    def _gated_messages(
        self, theirs: str, ours: str, rows: _Rows, hidden: Sequence[int], values: Sequence[int], kind: str
    ) -> None:
        self.radial(f"{theirs}.sep_act.dtp_rad", f"{ours}.radial", rows)
        self.path_linear(f"{theirs}.sep_act.lin", f"{ours}.first", rows, (sum(hidden), *hidden[1:]))
        if kind == "mlp":
            into = rows.into[0]
            logits = self.take(f"{theirs}.sep_alpha.tp.weight", len(into), values[0])[into]
            bias = self.take(f"{theirs}.sep_alpha.bias.0", values[0])
            self.out[f"{ours}.first.weights.0"] = torch.cat((self.out[f"{ours}.first.weights.0"], logits), 1)
            self.out[f"{ours}.first.bias"] = torch.cat((self.out[f"{ours}.first.bias"], bias))
        self.path_linear(f"{theirs}.sep_value.lin", f"{ours}.second", rows, values)
        weights = self.take(f"{theirs}.sep_value.dtp.tp.weight", len(rows.all))[rows.all]
        for l3, part in enumerate(weights.split([len(into) for into in rows.into])):
            self.out[f"{ours}.second.path_weights.{l3}"] = part

    def embeddings(self) -> None:
        channels = self.config.channels
        embedding = self.take("atom_embed.atom_type_lin.tp.weight", self.config.num_elements, channels[0])
        self.out["backbone.atom_embedding"] = embedding
        self.out["backbone.atom_bias"] = self.take("atom_embed.atom_type_lin.bias.0", channels[0])
        if "force_embed.tp.weight" in self.source:
            self.linear("force_embed", "backbone.force_encoding.linear", [1] * len(channels), channels)
            bias = self.out.pop("backbone.force_encoding.linear.bias")
            self.out["backbone.atom_bias"] = self.out["backbone.atom_bias"] + bias
        basis = RADIAL_BASES[self.config.radial_basis](self.config.num_basis, self.config.cutoff)
        for name, own in basis.state_dict().items():
            nested = "rbf." if self.config.radial_basis == "bessel" else ""  # the published one lies a module deeper
            self.out[f"backbone.basis.{name}"] = self.take(f"rbf.{nested}{name}", *own.shape)
        degree, rows = "backbone.edge_degree", _Rows(channels)
        self.linear("edge_deg_embed.exp", f"{degree}.constant", [1], [channels[0]])
        self.radial("edge_deg_embed.rad", f"{degree}.radial", rows)
        self.path_linear("edge_deg_embed.proj", f"{degree}.product", rows, channels)

    def blocks_and_heads(self) -> None:
        config = self.config
        channels, has_noise = config.channels, "denoising_pos_head.merge_src.tp.weight" in self.source
        features = config.feature_channels if has_noise else config.feature_channels[:1]
        for k in range(config.num_layers):
            theirs, ours = f"blocks.{k}", f"backbone.blocks.{k}"
            c_out = features if k == config.num_layers - 1 else channels
            attention = "dpa" if config.attention == "dot_product" else "ga"
            if config.norm == "layer":
                self.norm(f"{theirs}.norm_1", f"{ours}.norm_1", channels)
                self.norm(f"{theirs}.norm_2", f"{ours}.norm_2", channels)
            self.attention(f"{theirs}.{attention}", f"{ours}.attention", channels, channels, config.attention)
            gated = (sum(config.ffn_channels), *config.ffn_channels[1:])
            self.linear(f"{theirs}.ffn.fctp_1", f"{ours}.feed_forward.first", channels, gated)
            self.linear(f"{theirs}.ffn.fctp_2", f"{ours}.feed_forward.second", config.ffn_channels, c_out)
            if tuple(c_out) != tuple(channels):
                self.linear(f"{theirs}.ffn_shortcut", f"{ours}.shortcut", channels, c_out)
        self.norm("norm", "backbone.norm", features)
        energy = "energy_head" if "energy_head.0.tp.weight" in self.source else "head"
        self.linear(f"{energy}.0", "heads.energy.hidden", features[:1], features[:1])
        self.linear(f"{energy}.2", "heads.energy.output", features[:1], [1])
        if has_noise:
            kind = "mlp" if config.attention == "none" else config.attention
            self.attention("denoising_pos_head", "heads.noise.attention", features, (0, 1), kind)


def convert_equiformer(state: Mapping[str, Tensor], config: EquiformerConfig) -> Converted:
    """Our state dict from a published Equiformer's (see :class:`denskit.models.published_checkpoint.Importer`).

    Raises ValueError for a tensor that is missing, left over, or of another size.
    """
    importer = _EquiformerImport(state, config)
    importer.embeddings()
    importer.blocks_and_heads()
    importer.source.check_all_read()
    heads = {"noise": "1"} if "denoising_pos_head.merge_src.tp.weight" in state else {}
    return importer.out, heads
