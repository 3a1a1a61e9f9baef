"""Equiformer against stored outputs of its published implementation: every case ``v1_*`` of the reference folder.

Energies, forces and noise of plain, partly and wholly corrupted structures, the training loss through our tasks, and
its gradient in every parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, Prepared, Targets
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField
from denskit.models.equiformer import EquiformerConfig
from denskit.models.equiformer.published import convert_equiformer
from denskit.models.equiformer.published_settings import config_of_equiformer
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, total_loss
from reference.open_catalyst import FOLDER, assert_gradients, assert_near, model_of

from tolerances import REFERENCE64

CASES = sorted(path.stem for path in FOLDER.glob("v1_*.npz"))


def config_of(about: Mapping[str, Any], state: Mapping[str, Tensor]) -> EquiformerConfig:
    """Our configuration of a published model from its hyper-parameters."""
    update = {
        "average_degree": about["conventions"]["avg_degree"],
        "average_atoms": about["conventions"]["avg_num_nodes"],
        "force_input_scale": 1.0,
    }
    return config_of_equiformer(about["hyper_parameters"], state).model_copy(update=update)


@dataclass(frozen=True)
class Case:
    """One published model with what it said."""

    arrays: Mapping[str, Tensor]
    about: Mapping[str, Any]
    force_field: ForceField

    def batch(self, positions: str) -> Batch:
        index, numbers = self.arrays["in/batch"], self.arrays["in/atomic_numbers"]
        systems, atoms = int(index.max()) + 1, len(index)
        batch = Batch(
            positions=self.arrays[positions],
            atomic_numbers=numbers,
            cell=torch.zeros(systems, 3, 3, dtype=torch.float64),
            pbc=torch.zeros(systems, 3, dtype=torch.bool),
            system_index=index,
            n_atoms=torch.bincount(index),
            fixed=torch.zeros(atoms, dtype=torch.bool),
            tags=torch.zeros(atoms, dtype=torch.int64),
            denoise=torch.ones(systems, dtype=torch.bool),
        )
        return build_neighbors(batch, self.force_field.cutoff)

    def has(self, name: str) -> bool:
        return any(key.startswith(name) for key in self.arrays)

    def parameters(self, prefix: str) -> dict[str, Tensor]:
        """Arrays named prefix/..., by what follows."""
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}


@pytest.fixture(scope="module", params=CASES or [None])
def case(request: pytest.FixtureRequest, reference_dir: Path) -> Case:
    if request.param is None:
        pytest.skip(f"no v1_*.npz in {reference_dir}")
    about = json.loads((reference_dir / f"{request.param}.json").read_text())
    with np.load(reference_dir / f"{request.param}.npz", allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    state = {key.removeprefix("param/"): value for key, value in arrays.items() if key.startswith("param/")}
    config = config_of(about, state)
    return Case(arrays, about, model_of(config, *convert_equiformer(state, config)))


def test_energy_and_forces(case: Case) -> None:
    out = case.force_field.eval()(case.batch("in/pos_clean"), None, ("energy", "forces"))
    assert_near(out["energy"], case.arrays["caseA/out/energy"][:, 0])
    assert_near(out["forces"], case.arrays["caseA/out/forces"])


def test_corrupted_structures(case: Case) -> None:
    """B: some atoms of some structures, C: all; the published output holds noise at corrupted atoms, else forces."""
    stored = [name for name in ("caseB", "caseC") if case.has(name)]
    assert bool(stored) == ("noise" in case.force_field.heads)  # plain models have neither
    for name in stored:
        out = case.force_field.eval()(case.batch(f"{name}/in/pos"), case.arrays[f"{name}/in/force_input"])
        corrupted = case.arrays[f"{name}/in/noise_mask"][:, None]
        assert_near(out["energy"], case.arrays[f"{name}/out/energy"][:, 0])
        assert_near(torch.where(corrupted, out["noise"], out["forces"]), case.arrays[f"{name}/out/dy"])
        if case.has(f"{name}/mid/noise_head_raw"):
            assert_near(out["noise"], case.arrays[f"{name}/mid/noise_head_raw"])


def prepared(case: Case, prefix: str, positions: str) -> Prepared:
    """The stored training batch as our tasks make it; labels are already scaled."""
    arrays, settings = case.arrays, case.about["checks"]["loss"]
    batch, zeros = case.batch(positions), torch.zeros_like(case.arrays["in/pos_clean"])
    systems, atoms = batch.num_systems, batch.num_atoms
    targets = Targets(
        energy=(arrays[f"{prefix}/loss/energy_label"][:, 0] - settings["mean"]) / settings["std"],
        forces=arrays[f"{prefix}/in/forces_label"] / settings["std"],
        stress=torch.zeros(systems, 3, 3, dtype=torch.float64),
        energy_mask=torch.ones(systems, dtype=torch.bool),
        forces_mask=torch.ones(atoms, dtype=torch.bool),
        stress_mask=torch.zeros(systems, dtype=torch.bool),
    )
    corrupted = case.has(f"{prefix}/in/noise_mask")
    return Prepared(
        batch=batch,
        targets=targets,
        force_input=arrays[f"{prefix}/in/force_input"] if corrupted else zeros,
        noise=arrays[f"{prefix}/in/noise_vec"] / settings["sigma"] if corrupted else zeros,
        noise_mask=arrays[f"{prefix}/in/noise_mask"] if corrupted else torch.zeros(atoms, dtype=torch.bool),
    )


def test_training_loss_and_its_gradient(case: Case) -> None:
    """L_E + 80 L_F + 5 L_DeNS as our task computes it; gradients are converted like parameters (it is linear)."""
    settings, dens = case.about["checks"]["loss"], "noise" in case.force_field.heads
    prefix, positions = ("caseB", "caseB/in/pos") if dens else ("caseA", "in/pos_clean")
    if not case.has(f"{prefix}/loss"):
        pytest.skip("no loss stored")
    weights = {"energy_weight": settings["lambda_E"], "forces_weight": settings["lambda_F"]}
    task = (
        DeNS(DeNSConfig(**weights, coefficient=settings["lambda_DeNS"], sigma=settings["sigma"]))
        if dens
        else EnergyForces(EnergyForcesConfig(**weights))
    )
    batch = prepared(case, prefix, positions)
    force_field = case.force_field.train()  # its dropout rates are 0
    out = force_field(batch.batch, batch.force_input if dens else None)
    terms = task.losses(out, batch, 0.0)
    # stored are the means, of noise too, and their weighted sum
    stored = case.arrays[f"{prefix}/loss/components"]
    components = torch.stack([term.mean for term in terms.values()] + [total_loss(terms)])
    assert_near(components, stored)
    assert float((components.detach() - stored).abs().max()) <= REFERENCE64 * float(stored.abs().min())

    force_field.zero_grad()
    total_loss(terms).backward()
    check_gradients(case, case.parameters(f"{prefix}/grad/"))


def check_gradients(case: Case, published: dict[str, Tensor]) -> None:
    """Our gradients against the published ones, relative to the rms over all parameters' own scale."""
    for name, value in case.parameters("param/").items():
        published.setdefault(name, torch.zeros_like(value))  # buffers, and what the published loss does not reach
    # the bias of the force embedding is folded into that of the atom embedding: both have one and the same gradient
    bias = published.get("force_embed.bias.0")
    if bias is not None:
        assert_near(bias, published["atom_embed.atom_type_lin.bias.0"])
        published["force_embed.bias.0"] = torch.zeros_like(bias)
    expected, _ = convert_equiformer(published, case.force_field.config)  # type: ignore[arg-type]
    assert_gradients(case.force_field, expected, REFERENCE64)


def test_number_of_parameters_of_the_cases(case: Case) -> None:
    count = sum(parameter.numel() for parameter in case.force_field.parameters())
    folded = case.force_field.config.channels[0] if "noise" in case.force_field.heads else 0  # type: ignore[attr-defined]
    assert count == case.about["n_params"] - folded
