"""Models of OC20 against stored outputs of their published implementations: what the cases hold, and the tests.

Energies, forces and noise of plain, partly and wholly corrupted structures in the published edge frames and in ours,
the training loss through our tasks, and its gradient in every parameter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from denskit.batch import Batch, Edges, Prepared, Targets
from denskit.geometry.edge_frame import EdgeFrames, m_major, wigner_d
from denskit.models import MODELS, ForceField, ModelConfig, build_force_field
from denskit.models.published_checkpoint import Importer, PublishedCheckpoint
from denskit.models.scaling import Scaling
from denskit.tasks import DeNS, DeNSConfig, total_loss

from tolerances import REFERENCE64, REFERENCE_GRADIENT32

FOLDER = Path(os.environ.get("DENSKIT_REFERENCE", Path(__file__).resolve().parents[3] / "shared" / "reference"))
STRUCTURES = ("caseA", "caseB", "caseC")  # as they are, some atoms corrupted, all atoms corrupted
GAUGE_SPREAD = 3.0  # our gauge may differ from the published mean by so many times the largest published deviation


def cases(prefix: str) -> list[str]:
    """Names of the stored models that start so."""
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}*.json") if "hyper_parameters" in path.read_text())


@dataclass(frozen=True)
class Case:
    """One published model with what it said."""

    arrays: Mapping[str, Tensor]
    about: Mapping[str, Any]
    importer: Importer
    force_field: ForceField

    def has(self, prefix: str) -> bool:
        return any(key.startswith(prefix) for key in self.arrays)

    def named(self, prefix: str) -> dict[str, Tensor]:
        """Arrays whose names start so, by the rest of their names."""
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}

    def batch(self, name: str) -> Batch:
        """The structures with the stored edges."""
        arrays = self.arrays
        positions = arrays.get(f"{name}/in/pos", arrays["in/pos"])
        index, (source, target) = arrays["in/batch"], arrays[f"{name}/mid/edge_index"]
        systems = len(arrays["in/natoms"])
        offsets = arrays[f"{name}/mid/edge_vec"] - (positions[source] - positions[target])
        shift = (offsets[:, None] @ torch.linalg.inv(arrays["in/cell"])[index[target]])[:, 0].round()
        return Batch(
            positions=positions,
            atomic_numbers=arrays["in/atomic_numbers"],
            cell=arrays["in/cell"],
            pbc=torch.ones(systems, 3, dtype=torch.bool),
            system_index=index,
            n_atoms=arrays["in/natoms"],
            fixed=arrays["in/fixed"].bool(),
            tags=arrays["in/tags"],
            denoise=torch.ones(systems, dtype=torch.bool),
            edges=Edges(index=torch.stack((source, target)), shift=shift.long()),
        )

    def frames(self, name: str) -> EdgeFrames:
        """The published edge frames, whose second axis was drawn at random."""
        vectors = self.arrays[f"{name}/mid/edge_vec"]
        length = vectors.norm(dim=-1)
        l_max = max(self.about["hyper_parameters"]["lmax_list"])
        blocks = wigner_d(self.arrays[f"{name}/mid/edge_rot_mat"], l_max)
        ordered = tuple(block[:, list(m_major(l))] for l, block in enumerate(blocks))
        return EdgeFrames(length=length, direction=vectors / length[:, None], wigner=ordered)

    def corrupted(self, name: str) -> Tensor:
        """Atoms [N] bool; the published models also encode forces of fixed atoms, and call them corrupted."""
        mask = torch.full(self.arrays["in/batch"].shape, name == "caseC")
        return self.arrays.get(f"{name}/in/noise_mask", mask)

    def force_input(self, name: str) -> Tensor | None:
        mask = self.corrupted(name)
        return self.arrays["in/forces_label"] * mask[:, None] if mask.any() else None

    def prepared(self) -> Prepared:
        """The stored training batch as our tasks make it; labels are scaled, noise counts on free atoms only."""
        arrays, settings = self.arrays, self.about["checks"]["loss"]
        batch, corrupted, given = self.batch("caseB"), self.corrupted("caseB"), self.force_input("caseB")
        assert given is not None
        scored = corrupted & ~batch.fixed
        targets = Targets(
            energy=(arrays["in/energy_label"] - settings["energy_mean"]) / settings["energy_std"],
            forces=arrays["in/forces_label"] / settings["force_std"],
            stress=torch.zeros(batch.num_systems, 3, 3, dtype=torch.float64),
            energy_mask=torch.ones(batch.num_systems, dtype=torch.bool),
            forces_mask=torch.ones(batch.num_atoms, dtype=torch.bool),
            stress_mask=torch.zeros(batch.num_systems, dtype=torch.bool),
        )
        noise = arrays["caseB/in/noise_vec"] / settings["sigma"] * scored[:, None]
        return Prepared(batch=batch, targets=targets, force_input=given, noise=noise, noise_mask=scored)


def load_case(folder: Path, name: str, model: str) -> Case:
    """A stored model, imported as one of the published checkpoints' importers does it."""
    about = json.loads((folder / f"{name}.json").read_text())
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
    state = {key.removeprefix("param/"): value.double() for key, value in arrays.items() if key.startswith("param/")}
    (importer,) = (entry.importer for entry in MODELS.values() if entry.importer and entry.importer.mark in state)
    assert importer is MODELS[model].importer
    config = importer.config(PublishedCheckpoint(state, about["hyper_parameters"], None, None))
    return Case(arrays, about, importer, model_of(config, *importer.convert(state, config)))


def model_of(config: ModelConfig, weights: dict[str, Tensor], heads: dict[str, str]) -> ForceField:
    """Our model with converted weights, in evaluation mode."""
    scaling = Scaling(elements=range(1, config.num_elements))
    force_field = build_force_field(config, heads=heads, scaling=scaling).double()
    missing, unexpected = force_field.load_state_dict(weights, strict=False)
    assert all(key.startswith("scaling.") for key in missing) and not unexpected
    return force_field.eval()


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = REFERENCE64) -> None:
    scale = float(expected.detach().square().mean().sqrt())
    difference = float((actual - expected).detach().abs().max())
    assert difference <= tolerance * scale, f"differs by {difference:.1e} where rms is {scale:.1e}"


def check_gradients(case: Case) -> None:
    """Each gradient against the published one, which is stored in float32, relative to its rms."""
    published = {key: value.double() for key, value in case.named("caseB/grad/").items()}
    for key, value in case.named("param/").items():  # what the published loss does not reach
        published.setdefault(key, torch.zeros(value.shape, dtype=torch.float64))
    # the bias of the force embedding is folded into the atom embedding: its gradient is the sum over all elements
    bias = published["force_embedding.bias"]
    assert_near(published["sphere_embedding.weight"].sum(0), bias, REFERENCE_GRADIENT32)
    published["force_embedding.bias"] = torch.zeros_like(bias)
    expected, _ = case.importer.convert(published, case.force_field.config)
    assert_gradients(case.force_field, expected, REFERENCE_GRADIENT32)


def assert_gradients(force_field: ForceField, expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Each gradient is the expected one, relative to its own rms or a thousandth of that of all."""
    parameters = dict(force_field.named_parameters())
    scale = float(torch.cat([expected[key].flatten() for key in parameters]).square().mean().sqrt())
    compared = 0
    for key, parameter in parameters.items():
        if not parameter.numel():
            continue
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        own = float(expected[key].square().mean().sqrt())
        difference = float((gradient - expected[key]).abs().max())
        assert difference <= tolerance * max(own, 1e-3 * scale), f"{key}: {difference:.1e} where rms is {own:.1e}"
        compared += bool(own)
    assert compared > 50


class AgainstPublished:
    """The tests; a model's file gives the fixture ``case``."""

    @pytest.mark.parametrize("name", STRUCTURES)
    def test_outputs_in_the_published_frames(self, case: Case, name: str) -> None:
        if not case.has(f"{name}/out"):
            assert "noise" not in case.force_field.heads and name != "caseA"  # plain models have caseA only
            pytest.skip("not stored")
        out = case.force_field(case.batch(name), case.force_input(name), edge_frames=case.frames(name))
        assert_near(out["energy"], case.arrays[f"{name}/out/energy"])
        vectors = out["forces"]
        if name != "caseA":  # the published output holds noise at corrupted atoms, else forces
            vectors = torch.where(case.corrupted(name)[:, None], out["noise"], vectors)
        assert_near(vectors, case.arrays[f"{name}/out/forces"])

    def test_outputs_in_our_frames_lie_within_the_published_spread(self, case: Case) -> None:
        """The published models draw their frames anew at each call; with grids, outputs depend on them a little."""
        out = case.force_field(case.batch("caseA"))
        for name in ("energy", "forces"):
            stored = case.arrays[f"caseA/gauge/{name}"]
            spread = float((stored - stored.mean(0)).abs().max())
            rounding = REFERENCE64 * float(stored.square().mean().sqrt())
            difference = float((out[name].detach() - stored.mean(0)).abs().max())
            assert difference <= GAUGE_SPREAD * spread + rounding, f"{name}: {difference:.1e}, spread {spread:.1e}"

    def test_training_loss_and_its_gradient(self, case: Case) -> None:
        """Twice L_E plus the mean over free atoms of 100 force errors or 10 noise errors, as our task computes it."""
        if not case.has("caseB/loss"):
            pytest.skip("no loss stored")
        settings = case.about["checks"]["loss"]
        config = DeNSConfig(
            loss="published_oc20",
            energy_weight=settings["lambda_E"],
            forces_weight=settings["lambda_F"],
            coefficient=settings["lambda_DeNS"],
            coefficient_decay="none",
            sigma=settings["sigma"],
        )
        batch = case.prepared()
        case.force_field.zero_grad()  # in evaluation mode: its dropout rates may not be 0
        out = case.force_field(batch.batch, batch.force_input, edge_frames=case.frames("caseB"))
        terms = DeNS(config).losses(out, batch, 0.0)
        total = total_loss(terms)
        energy = terms["energy"].mean
        components = torch.stack((energy, total - settings["lambda_E"] * energy, total))
        assert_near(components, case.arrays["caseB/loss/components"])
        total.backward()
        check_gradients(case)

    def test_gradients_are_seen_to_differ(self, case: Case) -> None:
        """The comparison would notice another loss."""
        if not case.has("caseB/grad"):
            pytest.skip("no gradients stored")
        batch = replace(case.prepared(), noise=torch.zeros_like(case.arrays["in/pos"]))
        case.force_field.zero_grad()
        out = case.force_field(batch.batch, batch.force_input, edge_frames=case.frames("caseB"))
        total_loss(DeNS(DeNSConfig(loss="published_oc20")).losses(out, batch, 0.0)).backward()
        with pytest.raises(AssertionError):
            check_gradients(case)
