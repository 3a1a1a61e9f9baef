"""EquiformerV3 and eSEN against stored outputs of their published implementations: cases ``v3_*`` and ``esen_*``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from denskit.geometry.edge_frame import EdgeFrames
from denskit.models import MODELS, build_force_field
from denskit.models.published_checkpoint import PublishedCheckpoint
from denskit.models.scaling import Scaling
from denskit.tasks import build_task
from denskit.training.load_config import load_config
from reference.open_catalyst import Case, assert_gradients, assert_near, cases, model_of

from tolerances import REFERENCE64, REFERENCE_GRADIENT32

MODEL_OF = {"v3": "equiformer_v3", "esen": "esen"}
SINK64 = (
    1e-8  # forces and stress of v3_grad: attn_eps = 1e-8 there belongs to logits less their largest, here to logits
)


@dataclass(frozen=True)
class CrystalCase(Case):
    """A case with labels of stress; names of tensors are without the prefixes of fairchem's wrappers."""

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Hyper-parameters of the backbone."""
        given: Mapping[str, Any] = self.about["hyper_parameters"]
        return given.get("backbone", given)  # type: ignore[no-any-return]

    @property
    def gradient(self) -> bool:
        return self.force_field.config.forces == "gradient"

    def published_frames(self, name: str) -> EdgeFrames | None:
        """None for gradient forces, which need the derivative of the frames."""
        return None if self.gradient else self.frames(name)

    def input_of(self, name: str) -> Tensor | None:
        """Forces of corrupted atoms; V3 adds a bias to corrupted atoms, those without a force included."""
        given = self.force_input(name)
        if given is None or self.force_field.config.name != "equiformer_v3":
            return given
        alone = self.corrupted(name) & (given == 0).all(-1)
        return torch.where(alone[:, None], given.new_tensor([0.0, 1e-100, 0.0]), given)

    def denoised(self, name: str) -> Tensor:
        """Structures [B] bool whose published stress is zero: those that DeNS corrupted."""
        none = torch.zeros(len(self.arrays["in/natoms"]), dtype=torch.bool)
        return self.arrays.get(f"{name}/in/dens_batch_mask", none | (name == "caseC"))


def _plain(name: str) -> str:
    return re.sub(r"^(backbone\.|output_heads\.\w+\.)", "", name)


def load(folder: Path, name: str) -> CrystalCase:
    about = json.loads((folder / f"{name}.json").read_text())
    given = about["hyper_parameters"]
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
    state = {_plain(key.removeprefix("param/")): value.double() for key, value in arrays.items() if "param/" in key}
    importer = MODELS[MODEL_OF[name.partition("_")[0]]].importer
    assert importer is not None and importer.mark in state
    config = importer.config(PublishedCheckpoint(state, dict(given), None, None))
    given["lmax_list"] = [given.get("backbone", given)["lmax"]]
    ours, heads = importer.convert(state, config)
    heads = {key: value for key, value in heads.items() if key != "stress"}  # that one belongs to the configuration
    return CrystalCase(arrays, about, importer, model_of(config, ours, heads))


@pytest.fixture(scope="module", params=[*cases("v3_"), *cases("esen_")] or [None])
def case(request: pytest.FixtureRequest, reference_dir: Path) -> CrystalCase:
    if request.param is None:
        pytest.skip(f"no v3_*.npz and esen_*.npz in {reference_dir}")
    return load(reference_dir, request.param)


@pytest.mark.parametrize("name", ["caseA", "caseB", "caseC"])
def test_outputs(case: CrystalCase, name: str) -> None:
    """Energy, forces or noise, and stress, in the published edge frames where these are given."""
    if not case.has(f"{name}/out"):
        pytest.skip("not stored")
    corrupted = case.corrupted(name)
    out = case.force_field(case.batch(name), case.input_of(name), edge_frames=case.published_frames(name))
    vectors = torch.where(corrupted[:, None], out["noise"], out["forces"]) if corrupted.any() else out["forces"]
    expected = {key.rpartition("/")[2]: value for key, value in case.named(f"{name}/out/").items()}
    silent = case.gradient and corrupted.any() and case.force_field.config.name == "esen"
    if silent:  # published: energy, forces and stress of such a batch are multiplied by zero
        assert_near(vectors[corrupted], expected["forces"][corrupted], SINK64)
        return
    assert_near(out["energy"], expected["energy"])
    assert_near(vectors, expected["forces"], SINK64 if case.gradient else REFERENCE64)
    if "stress" in out:
        stress = torch.where(case.denoised(name)[:, None], 0, out["stress"].flatten(1))
        scale = float(out["stress"].detach().square().mean().sqrt())
        assert float((stress - expected["stress"]).detach().abs().max()) <= SINK64 * scale


def test_training_loss_and_its_gradient(case: CrystalCase) -> None:
    """The published loss, and its gradient in every parameter: for gradient forces a second derivative."""
    name = "caseB" if case.has("caseB/grad") else "caseA"
    if not case.has(f"{name}/grad") or case.has("param/output_heads.stress"):
        pytest.skip("no gradients of what Denskit has")
    case.force_field.train(case.gradient)
    case.force_field.zero_grad()
    loss = _published_loss(case, name)
    terms = len(case.about["checks"]["loss"]["functions"])  # the total follows them
    assert_near(loss, case.arrays[f"{name}/loss/components"][terms], SINK64)
    loss.backward()
    case.force_field.eval()
    published = {_plain(key): value.double() for key, value in case.named(f"{name}/grad/").items()}
    for key, value in case.named("param/").items():  # parameters that the loss does not reach
        published.setdefault(_plain(key), torch.zeros(value.shape, dtype=torch.float64))
    if case.force_field.config.name == "esen" and "force_embedding.bias" in published:
        published["force_embedding.bias"] = torch.zeros_like(published["force_embedding.bias"])  # folded
    expected, _ = case.importer.convert(published, case.force_field.config)
    assert_gradients(case.force_field, expected, REFERENCE_GRADIENT32)


def _published_loss(case: CrystalCase, name: str) -> Tensor:
    """The total [] as checks.loss.definition of the case has it."""
    settings, arrays, batch = case.about["checks"]["loss"], case.arrays, case.batch(name)
    functions, units, corrupted = settings["functions"], settings["rmsd"], case.corrupted(name)
    out = case.force_field(batch, case.input_of(name), edge_frames=case.published_frames(name))
    if case.gradient and corrupted.any() and case.force_field.config.name == "esen":
        # published: energy, forces and stress of such a batch are multiplied by zero, so only the noise is learned, as
        # with task.energy_on_corrupted=false task.forces_on_corrupted=false
        out = {key: value if key == "noise" else 0 * value for key, value in out.items()}
    energy = (out["energy"] - arrays["in/energy_label"] / units["energy"]).abs()
    per_atom = energy / arrays["in/natoms"] if functions["energy"]["fn"] == "per_atom_mae" else energy
    vectors = functions["forces"]["coefficient"] * (out["forces"] - arrays["in/forces_label"] / units["forces"])
    if corrupted.any():
        noise = out["noise"] - arrays[f"{name}/in/noise_vec"] / settings["sigma"]
        vectors = torch.where(corrupted[:, None], settings["lambda_DeNS"] * noise, vectors)
    loss = functions["energy"]["coefficient"] * per_atom.mean() + vectors.norm(dim=-1)[~batch.fixed].mean()
    if "stress" in functions:
        stress = torch.where(case.denoised(name)[:, None], 0, out["stress"].flatten(1))
        error = (stress - arrays["in/stress_label"] / units["stress"]).abs().mean()
        loss = loss + functions["stress"]["coefficient"] * error
    return loss


def test_the_frames_do_not_matter(case: CrystalCase) -> None:
    """Released configurations are exact: our frames give the outputs of the published random ones."""
    if not case.force_field.backbone.gauge_exact:
        pytest.skip("a SiLU at points of the sphere")
    out = case.force_field(case.batch("caseA"))
    for key in ("energy", "forces"):
        assert_near(out[key], case.arrays[f"caseA/out/{key}"], SINK64)


def test_a_memory_saving_activation_is_the_same_function(case: CrystalCase) -> None:
    """The released gradient model for MPtrj has it in the attention alone."""
    if case.force_field.config.name != "equiformer_v3" or not case.force_field.backbone.gauge_exact:
        pytest.skip("no such activation")
    given = {
        **case.sizes,
        "attn_activation": "sep-merge_gates2_swiglu_mem",
        "ffn_activation": "sep-merge_gates2_swiglu",
    }
    assert case.importer.config(PublishedCheckpoint({}, given, None, None)) == case.force_field.config


@pytest.mark.parametrize(
    ("preset", "published"),
    [
        ("oc20/equiformer_v3_2m", 91_390_274),
        ("crystals/equiformer_v3_mptrj_direct_dens", 34_859_044),
        ("crystals/equiformer_v3_mptrj_gradient", 30_278_113),
        ("crystals/equiformer_v3_omat24_direct_dens", 34_928_164),
        ("crystals/equiformer_v3_omat24_direct_dens_l6", 57_077_924),
        ("crystals/equiformer_v3_omat24_gradient", 30_333_409),
        ("crystals/equiformer_v3_omat24_gradient_l6", 48_841_313),
        ("crystals/equiformer_v3_oam_gradient", 30_333_409),
        ("crystals/esen_30m_mptrj_gradient", 30_085_121),
        ("crystals/esen_30m_omat24_gradient", 30_161_153),
        ("crystals/esen_30m_oam_gradient", 30_161_153),
        # without the bias and the matrix of degree 0 of each vector head, the bias of the force embedding, and with a
        # linear stress head of 4 * 128 + 1 parameters in place of the published one, which is not equivariant
        ("crystals/esen_30m_mptrj_direct_dens", 30_086_275 - 2 * 129 - 128 + 513),
    ],
)
def test_number_of_parameters_of_the_released_configurations(preset: str, published: int) -> None:
    config = load_config(preset)
    heads, scaling = build_task(config.task).heads, Scaling(elements=[1, 6, 8])
    with torch.device("meta"):
        force_field = build_force_field(config.model, heads=heads, scaling=scaling)
    assert sum(parameter.numel() for parameter in force_field.parameters()) == published
