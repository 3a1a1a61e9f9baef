"""The published Equiformer with all of its attentions, written with e3nn: what :mod:`denskit.models.equiformer` must
compute.

Only the attentions are written here, straight from their definition, edge by edge and head by head; the rest is the
benchmark's e3nn baseline, which reproduces stored outputs of the published code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import e3nn
import torch
from e3nn.math import normalize2mom
from e3nn.o3 import Irreps
from torch import Tensor, nn

from denskit.batch import Batch
from denskit_bench import baseline_e3nn
from denskit_bench.baseline_e3nn import AVERAGE_DEGREE, BaselineConfig, Edges
from denskit_bench.baseline_layers import DepthwiseProduct, Gate, PlainLinear, RadialProfile


class _Product(nn.Module):
    """Depthwise tensor product and linear layer, published names; weights by radius unless shared."""

    def __init__(self, pre: Irreps, harmonics: Irreps, out: Irreps, radial: Sequence[int] | None) -> None:
        super().__init__()
        self.dtp = DepthwiseProduct(pre, harmonics, internal_weights=radial is None)
        self.dtp_rad = None if radial is None else RadialProfile([*radial, self.dtp.tp.weight_numel])
        self.lin = PlainLinear(self.dtp.irreps_out, out)

    def coupled(self, x: Tensor, edges: Edges) -> Tensor:
        return self.dtp(x, edges.harmonics, None if self.dtp_rad is None else self.dtp_rad(edges.basis))

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        return self.lin(self.coupled(x, edges))


class OracleAttention(nn.Module):
    """One attention: ``kind`` "mlp" or "dot_product"; the published settings say the rest."""

    def __init__(self, settings: Mapping[str, Any], kind: str, irreps_in: Irreps, out: Irreps) -> None:
        super().__init__()
        harmonics = Irreps(settings["irreps_sh"])
        pre = Irreps(settings["irreps_pre_attn"] or irreps_in)
        radial = [settings["number_of_basis"], *settings["fc_neurons"]]
        self.kind, self.heads, self.head = kind, settings["num_heads"], Irreps(settings["irreps_head"])
        self.rescale, self.nonlinear = settings["rescale_degree"], settings["nonlinear_message"] and kind == "mlp"
        values = Irreps([(mul * self.heads, ir) for mul, ir in self.head])
        self.scalars = self.head.count("0e")
        logits = Irreps([(self.scalars * self.heads, "0e")])
        self.merge_src, self.merge_dst = PlainLinear(irreps_in, pre), PlainLinear(irreps_in, pre, bias=False)
        self.proj = PlainLinear(values, out)
        if kind == "dot_product":
            self.query = PlainLinear(irreps_in, values)
            self.key_value = _Product(pre, harmonics, Irreps([(2 * mul, ir) for mul, ir in values]), radial)
            return
        self.alpha_dot = nn.Parameter(torch.empty(1, self.heads, self.scalars))
        self.alpha_act = normalize2mom(lambda x: 0.6 * x + 0.4 * x * (2 * torch.sigmoid(x) - 1))
        if self.nonlinear:
            gate = Gate(pre)
            self.sep_act = _Product(pre, harmonics, gate.irreps_in, radial)
            self.sep_alpha = PlainLinear(self.sep_act.dtp.irreps_out, logits)
            self.sep_value = _Product(pre, harmonics, values, None)
            self.gate = gate
        else:
            self.sep = _Product(pre, harmonics, (logits + values).simplify(), radial)

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        """Features [N, D] to [N, D_out]."""
        message = self.merge_src(x)[edges.source] + self.merge_dst(x)[edges.target]
        if self.kind == "dot_product":
            keys, values = _heads(self.key_value(message, edges), self.head, 2 * self.heads).chunk(2, 1)
            query = torch.cat(
                [part / (ir.dim * self.head.num_irreps) ** 0.5 for part, (_, ir) in self._parts(self.query(x))], -1
            )
            scores = (query[edges.target] * keys).sum(-1)
        else:
            logits, values = self._logits_and_values(message, edges)
            scores = (self.alpha_act(logits) * self.alpha_dot).sum(-1)
        out = []
        for atom in range(len(x)):  # by the definition: nothing is scattered
            mine = edges.target == atom
            alpha = torch.softmax(scores[mine], 0).unsqueeze(-1)
            summed = (alpha * values[mine]).sum(0)
            if self.rescale:
                degree = int(mine.sum())
                summed = summed * (degree / AVERAGE_DEGREE if self.kind == "dot_product" else degree)
            out.append(torch.cat([part.flatten() for part in summed.split([m.dim for m in self.head], -1)]))
        return self.proj(torch.stack(out))

    def _logits_and_values(self, message: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        if self.nonlinear:
            coupled = self.sep_act.coupled(message, edges)
            logits = self.sep_alpha(coupled).reshape(len(message), self.heads, -1)
            value = self.sep_value(self.gate(self.sep_act.lin(coupled)), edges)
            return logits, _heads(value, self.head, self.heads)
        both = (Irreps([(self.scalars, "0e")]) + self.head).simplify()
        mixed = _heads(self.sep(message, edges), both, self.heads)
        return mixed[..., : self.scalars], mixed[..., self.scalars :]

    def _parts(self, x: Tensor) -> list[tuple[Tensor, Any]]:
        """Features split by degree, [N, H, mul * dim], with their irreps."""
        return list(zip(_heads(x, self.head, self.heads).split([m.dim for m in self.head], -1), self.head, strict=True))


def _heads(x: Tensor, head: Irreps, count: int) -> Tensor:
    """Features [E, D] to [E, count, D of one head]: each degree is divided among the heads."""
    parts = x.split([mul * ir.dim * count for mul, ir in head], -1)
    return torch.cat([part.reshape(len(x), count, -1) for part in parts], -1)


class Oracle(nn.Module):
    """A published model with random weights."""

    def __init__(self, settings: Mapping[str, Any], kind: str, dens: bool, seed: int) -> None:
        super().__init__()
        l_max = Irreps(settings["irreps_node_embedding"]).lmax
        config = BaselineConfig(
            node=settings["irreps_node_embedding"], feature=settings["irreps_feature"], head=settings["irreps_head"],
            feed_forward=settings["irreps_mlp_mid"], l_max=l_max, layers=settings["num_layers"],
            heads=settings["num_heads"], basis=settings["number_of_basis"], radial=tuple(settings["fc_neurons"]),
            cutoff=settings["max_radius"], dens=dens,
        )  # fmt: skip
        self.kind = kind

        def attention(_: BaselineConfig, irreps: Irreps, out: Irreps) -> OracleAttention:
            return OracleAttention(settings, kind, irreps, out)

        before = e3nn.get_optimization_defaults()["optimize_einsums"]
        e3nn.set_optimization_defaults(optimize_einsums=False)  # builds in a third of the time
        with mock.patch.object(baseline_e3nn, "GraphAttention", attention):
            self.model = baseline_e3nn.EquiformerE3NN(config, dtype=torch.float64, jit="eager")
        e3nn.set_optimization_defaults(optimize_einsums=before)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                fan_in = parameter.shape[-1] if parameter.dim() == 2 else parameter.numel() ** 0.5
                norm = name.endswith(("affine_weight", "net.1.weight", "net.4.weight"))
                parameter.copy_(1 + 0.1 * random if norm else random * fan_in**-0.5)

    def forward(self, batch: Batch, force_input: Tensor | None = None, noise: bool = False) -> dict[str, Tensor]:
        return self.model(batch, force_input, noise=noise, create_graph=True)

    def published(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters, or their gradients, by published names."""
        renamed = {}
        for name, value in tensors.items():
            name = name.removeprefix("model.").replace(".ga.", ".dpa." if self.kind == "dot_product" else ".ga.")
            renamed[name] = value
        return renamed

    def state(self) -> dict[str, Tensor]:
        """As a checkpoint holds it."""
        kept = self.model.published_state()
        return self.published({name: value.clone() for name, value in kept.items()})
