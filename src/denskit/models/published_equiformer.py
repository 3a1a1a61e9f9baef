"""Published Equiformer weights (MD17), with and without DeNS: their names, orders and conventions as ours.

Equiformer's published layers are e3nn tensor products with flat weights.  Ours hold the same numbers as matrices, with
the paths of a tensor product in another order (:func:`denskit.geometry.so2.paths_to`), so an import is a renaming and a
permutation; no number changes, apart from the scalar bias of the published force embedding, which acts on every atom at
every time and is therefore added to the atom embedding's bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from denskit.geometry.so2 import Path as TensorPath
from denskit.geometry.so2 import paths_to
from denskit.models.equiformer import EquiformerConfig
from denskit.nn.radial import RADIAL_BASES

MD17_CONFIGS = {
    2: EquiformerConfig(),
    3: EquiformerConfig(
        channels=(128, 64, 64, 32),
        feature_channels=(512, 256, 256, 128),
        head_channels=(32, 16, 16, 8),
        ffn_channels=(384, 192, 192, 96),
    ),
}


class _Source:
    """A published state dict that knows which of its entries were used."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.state

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self.state:
            raise ValueError(f"the checkpoint has no '{name}': it is not a published Equiformer of this configuration")
        tensor = self.state[name]
        self.used.add(name)
        expected = 1
        for size in shape:
            expected *= size
        if tensor.numel() != expected:
            raise ValueError(
                f"'{name}' has {tensor.numel()} numbers where the configuration wants {expected} ({shape})"
            )
        return tensor.reshape(shape)

    def unused(self) -> list[str]:
        return sorted(name for name in self.state if name not in self.used and self.state[name].numel() > 0)


def _published_paths(l_max: int) -> list[TensorPath]:
    """All paths in the order of the published radial weights: by l1, then l2, then l3."""
    degrees = range(l_max + 1)
    return [TensorPath(a, b, c) for a in degrees for b in degrees for c in degrees if abs(a - b) <= c <= a + b]


def _channel_positions(order: Sequence[TensorPath], wanted: Sequence[TensorPath], channels: Sequence[int]) -> Tensor:
    """Positions, in a list of paths in ``order``, of the channels of the paths ``wanted``."""
    starts, at = {}, 0
    for path in order:
        starts[path] = at
        at += channels[path.l1]
    return torch.cat([torch.arange(channels[path.l1]) + starts[path] for path in wanted])


class _EquiformerImport:
    """Fills our state dict, piece by piece, from a published one."""

    def __init__(self, state: Mapping[str, Tensor], config: EquiformerConfig) -> None:
        self.source, self.config, self.out = _Source(state), config, dict[str, Tensor]()
        self.l_max = config.l_max
        self.published = _published_paths(self.l_max)
        # within one l3 the published linear layers see the paths in the same order
        self.published_to = [[p for p in self.published if p.l3 == l3] for l3 in range(self.l_max + 1)]
        self.ours_to = [paths_to(l3, self.l_max, self.l_max) for l3 in range(self.l_max + 1)]
        self.rows = [
            _channel_positions(theirs, ours, config.channels)
            for theirs, ours in zip(self.published_to, self.ours_to, strict=True)
        ]
        ours_all = [path for paths in self.ours_to for path in paths]
        self.radial_rows = _channel_positions(self.published, ours_all, config.channels)

    def linear(self, theirs: str, ours: str, c_in: Sequence[int], c_out: Sequence[int], bias: bool = True) -> None:
        """An SO3Linear: flat blocks [C_in, C_out], one a degree."""
        sizes = [a * b for a, b in zip(c_in, c_out, strict=False)]
        flat = self.source.take(f"{theirs}.tp.weight", sum(sizes))
        for l, (block, a, b) in enumerate(zip(flat.split(sizes), c_in, c_out, strict=False)):
            self.out[f"{ours}.weights.{l}"] = block.reshape(a, b)
        if bias:
            self.out[f"{ours}.bias"] = self.source.take(f"{theirs}.bias.0", c_out[0])

    def radial(self, theirs: str, ours: str) -> None:
        """A radial function: Linear, LayerNorm, SiLU a hidden layer, then the output."""
        sizes = (self.config.num_basis, *self.config.radial_hidden)
        for k, (a, b) in enumerate(pairwise(sizes)):
            at, norm = 3 * k, 3 * k + 1
            self.out[f"{ours}.hidden.{at}.weight"] = self.source.take(f"{theirs}.net.{at}.weight", b, a)
            self.out[f"{ours}.hidden.{at}.bias"] = self.source.take(f"{theirs}.net.{at}.bias", b)
            self.out[f"{ours}.hidden.{norm}.weight"] = self.source.take(f"{theirs}.net.{norm}.weight", b)
            self.out[f"{ours}.hidden.{norm}.bias"] = self.source.take(f"{theirs}.net.{norm}.bias", b)
        width, last = len(self.radial_rows), 3 * (len(sizes) - 1)
        self.out[f"{ours}.output.weight"] = self.source.take(f"{theirs}.net.{last}.weight", width, sizes[-1])[
            self.radial_rows
        ]
        self.out[f"{ours}.offset"] = self.source.take(f"{theirs}.offset", width)[self.radial_rows]

    def path_linear(self, theirs: str, ours: str, channels_out: Sequence[int]) -> list[Tensor]:
        """The linear layer behind a depthwise tensor product: rows from the published order of paths to ours."""
        sizes = [len(rows) * c for rows, c in zip(self.rows, channels_out, strict=True)]
        flat = self.source.take(f"{theirs}.tp.weight", sum(sizes)).split(sizes)
        weights = [block.reshape(len(rows), -1)[rows] for block, rows in zip(flat, self.rows, strict=True)]
        for l3, weight in enumerate(weights):
            self.out[f"{ours}.weights.{l3}"] = weight
        self.out[f"{ours}.bias"] = self.source.take(f"{theirs}.bias.0", channels_out[0])
        return weights

    def norm(self, theirs: str, ours: str, channels: Sequence[int]) -> None:
        weight = self.source.take(f"{theirs}.affine_weight", sum(channels))
        for l, part in enumerate(weight.split(list(channels))):
            self.out[f"{ours}.weights.{l}"] = part
        self.out[f"{ours}.bias"] = self.source.take(f"{theirs}.affine_bias", channels[0])

    def attention(self, theirs: str, ours: str, c_in: Sequence[int], c_out: Sequence[int], kind: str) -> None:
        hidden = self.config.channels
        values = [self.config.num_heads * c for c in self.config.head_channels]
        self.linear(f"{theirs}.merge_src", f"{ours}.merge_source", c_in, hidden)
        self.linear(f"{theirs}.merge_dst", f"{ours}.merge_target", c_in, hidden, bias=False)
        self.linear(f"{theirs}.proj", f"{ours}.projection", values, c_out, bias=c_out[0] > 0)
        if kind == "dot_product":
            self.linear(f"{theirs}.query", f"{ours}.query", c_in, values)
            self.radial(f"{theirs}.key_value.dtp_rad", f"{ours}.radial")
            self.path_linear(f"{theirs}.key_value.lin", f"{ours}.product", [2 * c for c in values])
            return
        if kind == "mlp":
            vector = self.source.take(f"{theirs}.alpha_dot", 1, self.config.num_heads, self.config.head_channels[0])
            self.out[f"{ours}.attention_vector"] = vector[0]
        if self.config.messages == "linear":
            self._linear_messages(theirs, ours, values, kind)
        else:
            self._gated_messages(theirs, f"{ours}.messages", hidden, values, kind)

    def _linear_messages(self, theirs: str, ours: str, values: Sequence[int], kind: str) -> None:
        self.radial(f"{theirs}.sep.dtp_rad", f"{ours}.radial")
        scalars = 2 * values[0] if kind == "mlp" else values[0]
        self.path_linear(f"{theirs}.sep.lin", f"{ours}.product", (scalars, *values[1:]))
        if kind == "mlp":
            # published: for each head its logits, then its values; ours: all values, then all logits
            order = torch.arange(scalars).reshape(self.config.num_heads, 2, -1)
            order = torch.cat((order[:, 1].flatten(), order[:, 0].flatten()))
            self.out[f"{ours}.product.weights.0"] = self.out[f"{ours}.product.weights.0"][:, order]
            self.out[f"{ours}.product.bias"] = self.out[f"{ours}.product.bias"][order]

    def _gated_messages(self, theirs: str, ours: str, hidden: Sequence[int], values: Sequence[int], kind: str) -> None:
        self.radial(f"{theirs}.sep_act.dtp_rad", f"{ours}.radial")
        self.path_linear(f"{theirs}.sep_act.lin", f"{ours}.first", (hidden[0] + sum(hidden[1:]), *hidden[1:]))
        if kind == "mlp":
            logits = self.source.take(f"{theirs}.sep_alpha.tp.weight", len(self.rows[0]), values[0])[self.rows[0]]
            bias = self.source.take(f"{theirs}.sep_alpha.bias.0", values[0])
            self.out[f"{ours}.first.weights.0"] = torch.cat((self.out[f"{ours}.first.weights.0"], logits), 1)
            self.out[f"{ours}.first.bias"] = torch.cat((self.out[f"{ours}.first.bias"], bias))
        self.path_linear(f"{theirs}.sep_value.lin", f"{ours}.second", values)
        weights = self.source.take(f"{theirs}.sep_value.dtp.tp.weight", len(self.radial_rows))[self.radial_rows]
        for l3, part in enumerate(weights.split([len(rows) for rows in self.rows])):
            self.out[f"{ours}.second.path_weights.{l3}"] = part

    def embeddings(self) -> None:
        channels = self.config.channels
        embedding = self.source.take("atom_embed.atom_type_lin.tp.weight", self.config.num_elements, channels[0])
        self.out["backbone.atom_embedding"] = embedding
        self.out["backbone.atom_bias"] = self.source.take("atom_embed.atom_type_lin.bias.0", channels[0])
        if "force_embed.tp.weight" in self.source:
            self.linear("force_embed", "backbone.force_encoding.linear", [1] * len(channels), channels)
            # this bias acts on all atoms, always: it belongs to the atom embedding
            bias = self.out.pop("backbone.force_encoding.linear.bias")
            self.out["backbone.atom_bias"] = self.out["backbone.atom_bias"] + bias
        basis = RADIAL_BASES[self.config.radial_basis](self.config.num_basis, self.config.cutoff)
        for name, own in basis.state_dict().items():
            nested = "rbf." if self.config.radial_basis == "bessel" else ""  # the published one lies a module deeper
            self.out[f"backbone.basis.{name}"] = self.source.take(f"rbf.{nested}{name}", *own.shape)
        degree = "backbone.edge_degree"
        self.linear("edge_deg_embed.exp", f"{degree}.constant", [1], [channels[0]])
        self.radial("edge_deg_embed.rad", f"{degree}.radial")
        self.path_linear("edge_deg_embed.proj", f"{degree}.product", channels)

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
            gated = (config.ffn_channels[0] + sum(config.ffn_channels[1:]), *config.ffn_channels[1:])
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


def convert_equiformer(
    state: Mapping[str, Tensor], config: EquiformerConfig
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A published Equiformer state dict as ours.

    Args:
        state: name -> tensor, names as published (without a "module." prefix).
        config: the architecture, with ``num_elements`` rows in the atom embedding.

    Returns:
        Our state dict of the force field without its scaling, and the heads beyond energy and forces.

    Raises:
        ValueError: A tensor is missing, left over, or of another size.
    """
    importer = _EquiformerImport(state, config)
    importer.embeddings()
    importer.blocks_and_heads()
    left = importer.source.unused()
    if left:
        raise ValueError(
            f"the checkpoint has {len(left)} tensors that this configuration does not use, first '{left[0]}'"
        )
    heads = {"noise": "1"} if "denoising_pos_head.merge_src.tp.weight" in state else {}
    return importer.out, heads


def detect_equiformer(state: Mapping[str, Tensor]) -> EquiformerConfig:
    """The configuration of a published MD17 Equiformer (L_max 2 or 3, any attention and basis), from its tensors.

    Raises:
        ValueError: Not a published Equiformer, or one of other sizes (then a configuration must be given).
    """
    kind = "dpa" if "blocks.0.dpa.query.tp.weight" in state else "ga"
    merge, radial = f"blocks.0.{kind}.merge_src.tp.weight", "edge_deg_embed.rad.net.0.weight"
    for name, dimensions in (("atom_embed.atom_type_lin.tp.weight", 1), (merge, 1), (radial, 2)):
        if name not in state or state[name].dim() != dimensions:
            raise ValueError(f"no {name} as published among {len(state)} tensors: not a published Equiformer")
    width = state[merge].numel()
    sizes = {sum(c * c for c in config.channels): config for config in MD17_CONFIGS.values()}
    if width not in sizes:
        raise ValueError(
            f"the blocks' linear layers have {width} weights; known are {sorted(sizes)} (L_max 2, 3): give the "
            "configuration as YAML"
        )
    layers = {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
    attention = "dot_product" if kind == "dpa" else ("mlp" if "blocks.0.ga.alpha_dot" in state else "none")
    basis = "exponential_normal" if "rbf.means" in state else ("gaussian" if "rbf.mean" in state else "bessel")
    update = {
        "num_layers": len(layers),
        "num_basis": state[radial].shape[1],
        "num_elements": state["atom_embed.atom_type_lin.tp.weight"].numel() // sizes[width].channels[0],
        "attention": attention,
        "messages": "nonlinear" if "blocks.0.ga.sep_act.lin.tp.weight" in state else "linear",
        "norm": "layer" if "blocks.0.norm_1.affine_weight" in state else "none",
        "radial_basis": basis,
    }
    return EquiformerConfig.model_validate(sizes[width].model_dump() | update)
