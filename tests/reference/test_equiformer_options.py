"""Published options of Equiformer that no stored case has, against an e3nn formulation of the published attentions.

Energies, forces, noise, and the gradient of a DeNS loss in every parameter, in float64 with random weights; the
configuration comes from the published settings, as in an import.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ase
import pytest
import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField
from denskit.models.equiformer.published import convert_equiformer
from denskit.models.equiformer.published_settings import config_of_equiformer
from denskit.simulation.structures import batch_of

from tolerances import ORACLE64

pytest.importorskip("e3nn", reason="the oracle needs e3nn: pip install denskit[test]")

from reference.open_catalyst import assert_gradients, assert_near, model_of
from reference.oracle_equiformer import Oracle

SETTINGS: dict[str, Any] = {
    "irreps_in": "64x0e", "irreps_node_embedding": "8x0e+4x1e+3x2e", "num_layers": 2, "irreps_node_attr": "1x0e",
    "irreps_sh": "1x0e+1x1e+1x2e", "max_radius": 3.0, "number_of_basis": 6, "basis_type": "exp", "fc_neurons": [5, 5],
    "irreps_feature": "9x0e+5x1e+2x2e", "irreps_head": "3x0e+2x1e+1x2e", "num_heads": 2, "irreps_pre_attn": None,
    "rescale_degree": False, "nonlinear_message": True, "irreps_mlp_mid": "7x0e+3x1e+2x2e", "norm_layer": "layer",
    "alpha_drop": 0.0, "proj_drop": 0.0, "out_drop": 0.0, "drop_path_rate": 0.0,
}  # fmt: skip
L3 = {
    "irreps_node_embedding": "8x0e+4x1e+3x2e+2x3e", "irreps_sh": "1x0e+1x1e+1x2e+1x3e",
    "irreps_feature": "9x0e+5x1e+2x2e+2x3e", "irreps_head": "3x0e+2x1e+1x2e+1x3e",
    "irreps_mlp_mid": "7x0e+3x1e+2x2e+1x3e", "irreps_pre_attn": "6x0e+5x1e+4x2e+3x3e", "rescale_degree": True,
}  # fmt: skip
ATTENTIONS = {"nonlinear": ("mlp", True), "linear": ("mlp", False), "dot_product": ("dot_product", False)}
OPTIONS: dict[str, dict[str, Any]] = {
    "neither": {},
    "pre_attn": {"irreps_pre_attn": "6x0e+5x1e+4x2e"},
    "rescale_degree": {"irreps_pre_attn": "8x0e+4x1e+3x2e", "rescale_degree": True},
    "both": {"irreps_pre_attn": "10x0e+2x1e+1x2e", "rescale_degree": True},
}
CASES = [(a, o, d, SETTINGS | OPTIONS[o]) for a, o, d in itertools.product(ATTENTIONS, OPTIONS, (True, False))]
CASES += [("nonlinear", "L3", True, SETTINGS | L3), ("dot_product", "L3", True, SETTINGS | L3)]


def molecules() -> Batch:
    """Two clusters, whose atoms have from 1 to 8 neighbours, and a lone atom."""
    batch = batch_of([ase.Atoms(numbers=numbers) for numbers in ([1, 6, 7, 8, 1, 6, 7, 8, 1], [6, 7, 8, 1, 6, 7], [8])])
    generator = torch.Generator().manual_seed(4)
    positions = 4.0 * torch.rand(batch.num_atoms, 3, generator=generator, dtype=torch.float64)
    return build_neighbors(replace(batch, positions=positions), SETTINGS["max_radius"])


def imported(oracle: Oracle, settings: dict[str, Any]) -> ForceField:
    """Our model with the oracle's weights."""
    state = oracle.state()
    config = config_of_equiformer(settings, state).model_copy(update={"force_input_scale": 1.0})
    return model_of(config, *convert_equiformer(state, config))


def dens_loss(out: dict[str, Tensor], corrupted: Tensor) -> Tensor:
    """|E| + 80 |F| + 5 |noise|, of differences to random labels; forces and noise as norms of vectors."""
    generator = torch.Generator().manual_seed(5)
    labels = {name: torch.randn(value.shape, generator=generator).double() for name, value in out.items()}
    loss = (out["energy"] - labels["energy"]).abs().mean()
    loss = loss + 80 * (out["forces"] - labels["forces"])[~corrupted].norm(dim=1).mean()
    if "noise" in out:
        loss = loss + 5 * (out["noise"] - labels["noise"])[corrupted].norm(dim=1).mean()
    return loss


@pytest.mark.parametrize(
    ("attention", "option", "dens", "settings"), CASES, ids=[f"{a}-{o}-{d}" for a, o, d, _ in CASES]
)
def test_is_the_published_function(attention: str, option: str, dens: bool, settings: dict[str, Any]) -> None:
    kind, nonlinear = ATTENTIONS[attention]
    settings = settings | {"nonlinear_message": nonlinear}
    if not dens:
        settings["irreps_feature"] = "9x0e"
    oracle = Oracle(settings, kind, dens, seed=len(option))
    force_field = imported(oracle, settings).train()  # for the gradient of the forces; dropout rates are 0
    batch, generator = molecules(), torch.Generator().manual_seed(6)
    corrupted = torch.rand(batch.num_atoms, generator=generator) < 0.4
    force_input = torch.randn(batch.num_atoms, 3, generator=generator).double() * corrupted[:, None]
    expected = oracle(batch, force_input if dens else None, noise=dens)
    actual = force_field(batch, force_input if dens else None)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert_near(actual[name], value, ORACLE64)

    dens_loss(expected, corrupted).backward()
    dens_loss(actual, corrupted).backward()
    compare_gradients(force_field, oracle)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (force_field, oracle)]
    assert counts[0] == counts[1] - 8 * dens  # our force embedding has no bias


def compare_gradients(force_field: ForceField, oracle: Oracle) -> None:
    """Gradients convert as parameters do; the bias of the force embedding is part of another one of ours."""
    gradients = oracle.state()
    for name, parameter in oracle.published(dict(oracle.named_parameters())).items():
        gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    if "force_embed.bias.0" in gradients:
        gradients["force_embed.bias.0"] = torch.zeros_like(gradients["force_embed.bias.0"])
    expected, _ = convert_equiformer(gradients, force_field.config)  # type: ignore[arg-type]
    assert_gradients(force_field, expected, ORACLE64)


def test_degree_is_the_number_of_edges_into_an_atom() -> None:
    """The oracle's cases would prove little if all atoms had as many neighbours."""
    batch = molecules()
    degrees = torch.bincount(batch.built_edges.index[1], minlength=batch.num_atoms)
    assert degrees.unique().tolist() == sorted(set(degrees.tolist())) and len(degrees.unique()) >= 5
    assert int(degrees[-1]) == 0
