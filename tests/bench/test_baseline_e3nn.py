"""The e3nn baseline is the published Equiformer: its outputs, its loss and all weight gradients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, Edges

from tolerances import REFERENCE64

pytest.importorskip("e3nn", reason="the benchmark's baseline needs e3nn: pip install denskit[test]")

from denskit_bench.baseline_e3nn import BaselineConfig, EquiformerE3NN
from denskit_bench.baseline_layers import ExponentialNormalBasis


@dataclass(frozen=True)
class Case:
    """One file of reference numbers."""

    arrays: dict[str, np.ndarray]
    info: dict[str, Any]
    model: EquiformerE3NN

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])

    def group(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): self.tensor(name) for name in self.arrays if name.startswith(prefix)}

    def batch(self, positions: str) -> Batch:
        """Complete graphs within the cutoff, by the plain definition."""
        system, place = self.tensor("in/batch"), self.tensor(positions)
        count, atoms = int(system.max()) + 1, len(system)
        near = (torch.cdist(place, place) < self.info["hyper_parameters"]["max_radius"]) & (system[:, None] == system)
        index = (near & ~torch.eye(atoms, dtype=torch.bool)).nonzero().T.contiguous()
        return Batch(
            positions=place,
            atomic_numbers=self.tensor("in/atomic_numbers"),
            cell=torch.zeros(count, 3, 3, dtype=place.dtype),
            pbc=torch.zeros(count, 3, dtype=torch.bool),
            system_index=system,
            n_atoms=torch.bincount(system),
            fixed=torch.zeros(atoms, dtype=torch.bool),
            tags=torch.zeros(atoms, dtype=torch.int64),
            denoise=torch.ones(count, dtype=torch.bool),
            edges=Edges(index=index, shift=index.new_zeros(index.shape[1], 3)),
        )


def published_model(arrays: dict[str, np.ndarray], h: dict[str, Any]) -> EquiformerE3NN:
    config = BaselineConfig(
        node=h["irreps_node_embedding"],
        feature=h["irreps_feature"],
        head=h["irreps_head"],
        feed_forward=h["irreps_mlp_mid"],
        l_max=h["irreps_sh"].count("+"),
        layers=h["num_layers"],
        heads=h["num_heads"],
        basis=h["number_of_basis"],
        radial=tuple(h["fc_neurons"]),
        cutoff=h["max_radius"],
        dens="param/force_embed.tp.weight" in arrays,
    )
    model = EquiformerE3NN(config, dtype=torch.float64, jit="eager")
    parameters = {name[6:]: torch.from_numpy(array) for name, array in arrays.items() if name.startswith("param/")}
    model.load_published(parameters)
    return model


def covered(info: dict[str, Any]) -> bool:
    """The baseline is the benchmarked architecture: attention, non-linear messages, exponential-normal basis."""
    h, patched = info["hyper_parameters"], info.get("patched", {})
    return (
        info["title"].startswith("v1_")
        and bool(h.get("nonlinear_message"))
        and h["basis_type"] == "exp"
        and h["norm_layer"] == "layer"
        and not any(patched.values())
    )


@pytest.fixture(scope="module")
def cases(reference_dir: Path) -> list[Case]:
    found = []
    for path in sorted(reference_dir.glob("v1_*.json")):
        info = json.loads(path.read_text())
        if covered(info):
            with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
                found.append(Case(dict(arrays), info, published_model(arrays, info["hyper_parameters"])))
    assert found, f"no reference case of the benchmarked architecture in {reference_dir}"
    return found


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = expected.square().mean().sqrt().clamp(min=1e-30)
    error = float((found.detach().reshape(expected.shape) - expected).abs().max() / scale)
    assert error < REFERENCE64, f"{what}: relative error {error:.1e}"


def test_energies_and_forces_are_the_published_ones(cases: list[Case]) -> None:
    for case in cases:
        out = case.model(case.batch("in/pos_clean"))
        assert_close(out["energy"], case.tensor("caseA/out/energy"), f"{case.info['title']} energy")
        assert_close(out["forces"], case.tensor("caseA/out/forces"), f"{case.info['title']} forces")


@pytest.mark.parametrize("name", ["caseB", "caseC"])
def test_forces_and_noise_of_corrupted_structures_are_the_published_ones(cases: list[Case], name: str) -> None:
    for case in [case for case in cases if f"{name}/out/dy" in case.arrays]:
        out = case.model(case.batch(f"{name}/in/pos"), case.tensor(f"{name}/in/force_input"), noise=True)
        mixed = torch.where(case.tensor(f"{name}/in/noise_mask")[:, None], out["noise"], out["forces"])
        assert_close(out["energy"], case.tensor(f"{name}/out/energy"), f"{case.info['title']} energy")
        assert_close(mixed, case.tensor(f"{name}/out/dy"), f"{case.info['title']} forces and noise")


def test_loss_and_its_gradients_are_the_published_ones(cases: list[Case]) -> None:
    for case in [case for case in cases if "caseB/loss/components" in case.arrays]:
        constants, model = case.info["checks"]["loss"], case.model
        mask, std = case.tensor("caseB/in/noise_mask"), constants["std"]
        out = model(case.batch("caseB/in/pos"), case.tensor("caseB/in/force_input"), noise=True, create_graph=True)
        energy = (out["energy"] - case.tensor("caseB/loss/energy_label").squeeze(-1) / std).abs().mean()
        forces = (out["forces"] - case.tensor("caseB/in/forces_label") / std).norm(dim=1)[~mask].mean()
        noise = (out["noise"] - case.tensor("caseB/in/noise_vec") / constants["sigma"]).norm(dim=1)[mask].mean()
        total = constants["lambda_E"] * energy + constants["lambda_F"] * forces + constants["lambda_DeNS"] * noise
        found = torch.stack([energy, forces, noise, total])
        assert_close(found, case.tensor("caseB/loss/components"), f"{case.info['title']} loss")

        model.zero_grad()
        total.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        expected = case.group("caseB/grad/")
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            assert_close(gradient, expected[name], f"{case.info['title']} gradient of {name}")


TINY = BaselineConfig(
    node="4x0e+2x1e+2x2e",
    feature="4x0e+2x1e+2x2e",
    head="2x0e+2x1e+2x2e",
    feed_forward="4x0e+2x1e+2x2e",
    l_max=2,
    layers=1,
)


def test_torchscript_computes_the_same(cases: list[Case]) -> None:
    batch = cases[0].batch("in/pos_clean")
    eager = EquiformerE3NN(TINY, dtype=torch.float64, jit="eager")
    script = EquiformerE3NN(TINY, dtype=torch.float64, jit="script")
    script.load_published(eager.published_state())
    assert_close(script(batch)["forces"], eager(batch)["forces"], "forces")


def test_an_edge_beyond_the_cutoff_has_no_basis() -> None:
    basis = ExponentialNormalBasis(8, 5.0)(torch.tensor([4.9, 5.0, 5.01]))
    assert (basis[0] > 0).any()
    assert not basis[1:].any()


def test_default_dtype_and_jit_mode_are_left_as_they_were() -> None:
    import e3nn

    before = e3nn.get_optimization_defaults(), torch.get_default_dtype()
    model = EquiformerE3NN(TINY)
    assert (e3nn.get_optimization_defaults(), torch.get_default_dtype()) == before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_loss_of_forces_can_be_differentiated_without_noise(cases: list[Case]) -> None:
    model = EquiformerE3NN(TINY, dtype=torch.float64, jit="eager")
    model(cases[0].batch("in/pos_clean"), create_graph=True)["forces"].square().sum().backward()
    gradient = model.blocks[0].ga.alpha_dot.grad
    assert gradient is not None and gradient.abs().sum() > 0


def test_weights_with_a_name_missing_are_refused() -> None:
    model = EquiformerE3NN(TINY, jit="eager")
    weights = model.published_state()
    weights.pop("norm.affine_weight")
    with pytest.raises(ValueError, match="norm.affine_weight"):
        model.load_published(weights)
