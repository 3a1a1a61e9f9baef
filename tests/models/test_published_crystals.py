"""Import of EquiformerV3 and eSEN from files in the layout of fairchem 1, built from the reference folder.

The files are as the published trainers write them: names of torch.compile, of parallel training or of hydra, buffers,
raw weights beside their running average, normalisers, references of the elements.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.data import chemical_symbols
from torch import Tensor
from typer.testing import CliRunner

from denskit.cli import app
from denskit.models.equiformer_v3.config import EquiformerV3Config
from denskit.models.esen.config import ESENConfig
from denskit.models.importing import import_checkpoint
from denskit.models.model_file import load_model, read_header
from denskit.training.load_config import load_config
from denskit.training.run import train
from reference.open_catalyst import assert_near
from reference.test_crystal_models import CrystalCase, load
from training.strained import crystals

RMSD = 0.8124567446457275  # MPtrj's, of energies, forces and stresses
CASES = ("v3_dens_L3M2", "v3_grad_L3M2", "esen_dens_L3M2", "esen_grad_L3M2")
WRITTEN = 1e-5  # numbers of a model file are in float32, the centres of the Gaussians included; found: 2e-6


def _buffers(model: str) -> dict[str, Tensor]:
    """What state dicts hold beside the weights, under the published names."""
    if model == "esen":
        of_blocks = ("norm_1.expand_index", "norm_1.balance_degree_weight", "atom_wise.so3_linear_1.expand_index")
        names = [*(f"backbone.Jd_{l}" for l in range(4)), *(f"backbone.blocks.0.{name}" for name in of_blocks)]
    else:
        rotation = ("so3_rotation.wigner_index_to_m_array", "so3_rotation.wigner_inv_rescale")
        of_blocks = ("ffn.so3_grid.to_grid_mat", "ffn.so3_linear_1.expand_index", "norm_1.balance_degree_weight")
        users = ("", "edge_degree_embedding.", "blocks.0.ga.")
        names = [f"{user}{name}" for user in users for name in rotation]
        names += [f"blocks.0.{name}" for name in of_blocks]
    return {name: torch.ones(3, 3) for name in names}


def _references(case: CrystalCase) -> Tensor:
    """Energies of elements [119] eV; 0 for those that the data did not have."""
    table = torch.zeros(119, dtype=torch.float64)
    found = case.arrays["in/atomic_numbers"].unique()
    table[found] = -0.5 * found.double() - 1.25
    return table


def _file(
    path: Path,
    case: CrystalCase,
    deviations: Mapping[str, float] | None = None,
    changes: Mapping[str, Any] = types.MappingProxyType({}),
) -> Path:
    """A file of the training; only the running average has the weights of the case.

    ``changes``: other hyper-parameters; None leaves one out.
    """
    compiled = case.force_field.config.name == "equiformer_v3" and not case.gradient
    prefix = "_orig_mod.module." if compiled else "module."
    weights = {name: value.float() for name, value in case.named("param/").items()}
    trained = [name for name in weights if not name.endswith("distance_expansion.offset")]
    raw = {name: torch.randn_like(value) if name in trained else value for name, value in weights.items()}
    state = _buffers(case.force_field.config.name) | raw
    given: dict[str, Any] = dict(case.about["hyper_parameters"])
    del given["lmax_list"]
    kept = {**given.get("backbone", given), **changes}
    kept = {name: value for name, value in kept.items() if name not in changes or value is not None}
    given = {**given, "backbone": kept} if "backbone" in given else kept
    deviations = deviations or {"energy": RMSD, "forces": RMSD, "stress": RMSD}
    content = {
        "state_dict": {f"{prefix}{name}": value for name, value in state.items()},
        "normalizers": {
            name: {"mean": torch.tensor(0.0), "rmsd": torch.tensor(value, dtype=torch.float64)}
            for name, value in deviations.items()
        },
        "elementrefs": {"energy": {"element_references": _references(case)}},
        "config": {"model": {"name": "hydra" if "backbone" in given else "equiformer_v3_dens", **given}},
        "val_metrics": {"forces_mae": {"metric": np.float64(0.03)}},
        "amp": None, "epoch": 69.9, "step": 214_000,
        "optimizer": {"state": {}, "param_groups": [{"lr": 2e-6}]},
        "ema": {"decay": 0.999, "num_updates": None, "shadow_params": [weights[n] for n in trained],
                "collected_params": []},
    }  # fmt: skip
    torch.save(content, path)
    return path


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, reference_dir: Path) -> CrystalCase:
    return load(reference_dir, request.param)


def test_the_command_gives_a_model_with_the_published_outputs(case: CrystalCase, tmp_path: Path) -> None:
    path, output = _file(tmp_path / "checkpoint.pt", case), tmp_path / "model.safetensors"
    result = CliRunner().invoke(app, ["import", str(path), "-o", str(output)])
    assert result.exit_code == 0, result.output
    elements = case.arrays["in/atomic_numbers"].unique().tolist()
    assert f"{len(elements)} elements" in result.output
    force_field = load_model(output, dtype=torch.float64)
    assert force_field.config.name == case.force_field.config.name
    assert force_field.scaling.elements == elements
    batch = replace(case.batch("caseA"), edges=None)  # neighbours are ours, too
    actual = force_field.predict(batch)
    added = batch.sum_over_atoms(_references(case)[batch.atomic_numbers])
    assert_near((actual["energy"] - added) / RMSD, case.arrays["caseA/out/energy"], WRITTEN)
    assert_near(actual["forces"] / RMSD, case.arrays["caseA/out/forces"], WRITTEN)
    if "stress" in actual:
        assert_near(actual["stress"].flatten(1) / RMSD, case.arrays["caseA/out/stress"], WRITTEN)


def test_settings_left_out_are_those_of_the_published_constructors(reference_dir: Path, tmp_path: Path) -> None:
    path, case = tmp_path / "checkpoint.pt", load(reference_dir, "v3_dens_L3M2")
    config = import_checkpoint(_file(path, case, changes={"avg_num_nodes": None, "avg_degree": 61.9})).config
    assert isinstance(config, EquiformerV3Config)
    assert (config.average_atoms, config.average_degree) == (77.81317, 61.9)
    case = load(reference_dir, "esen_dens_L3M2")
    config = import_checkpoint(_file(path, case, changes={"use_envelope": None})).config
    assert isinstance(config, ESENConfig) and not config.envelope
    for changes, said in (
        ({"act_type": None}, "act_type=s2; Denskit's eSEN has gate only"),
        ({"mlp_type": "grid", "grid_resolution": 20}, "grid_resolution=20"),
    ):
        with pytest.raises(ValueError, match=said):
            import_checkpoint(_file(path, case, changes=changes))


def test_heads_that_take_means_are_refused(reference_dir: Path, tmp_path: Path) -> None:
    case = load(reference_dir, "esen_dens_L3M2")
    case.about["hyper_parameters"]["heads"] = {"energy": {"module": "esen_mlp_energy_head", "reduce": "mean"}}
    with pytest.raises(ValueError, match="head energy has reduce=mean; Denskit sums over atoms"):
        import_checkpoint(_file(tmp_path / "checkpoint.pt", case))


def test_no_published_setting_is_unknown(case: CrystalCase, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not know")
        import_checkpoint(_file(tmp_path / "checkpoint.pt", case))


def test_direct_stresses_have_a_unit_of_their_own(reference_dir: Path, tmp_path: Path) -> None:
    case = load(reference_dir, "v3_dens_L3M2")
    deviations = {"energy": RMSD, "forces": 0.5, "stress": 0.1}
    force_field = import_checkpoint(_file(tmp_path / "a.pt", case, deviations))
    scaling = force_field.scaling.to_dict()
    assert (scaling["energy_scale"], scaling["force_scale"], scaling["stress_scale"]) == (RMSD, 0.5, 0.1)
    stress = force_field.double().predict(case.batch("caseA"))["stress"]
    assert_near(stress.flatten(1) / 0.1, case.arrays["caseA/out/stress"], WRITTEN)
    del deviations["stress"]
    plain = import_checkpoint(_file(tmp_path / "b.pt", case, deviations))
    assert float(plain.scaling.stress_scale) == 1.0, "published predictions without a normaliser stay as they are"


def test_a_reference_that_is_nan_is_told(reference_dir: Path, tmp_path: Path) -> None:
    case = load(reference_dir, "v3_grad_L3M2")
    path = _file(tmp_path / "a.pt", case)
    content = torch.load(path, weights_only=False)
    references = content["elementrefs"]["energy"]["element_references"]
    lost = int(references.nonzero()[0])
    references[lost] = torch.nan
    torch.save(content, path)
    with pytest.warns(UserWarning, match=rf"reference energy of {chemical_symbols[lost]} is NaN"):
        force_field = import_checkpoint(path)
    assert lost not in force_field.scaling.elements


def test_tensors_of_another_shape_are_named(reference_dir: Path, tmp_path: Path) -> None:
    case = load(reference_dir, "v3_grad_L3M2")
    path = _file(tmp_path / "a.pt", case)
    content = torch.load(path, weights_only=False)
    content["config"]["model"]["edge_channels"] *= 2
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"tensors have another shape, first 'backbone.*': \[.*\], and \[.*\] by the"):
        import_checkpoint(path)


def test_equal_units_may_differ_in_their_rounding(reference_dir: Path, tmp_path: Path) -> None:
    case = load(reference_dir, "v3_grad_L3M2")
    rounded = float(torch.tensor(RMSD, dtype=torch.float32))
    assert rounded != RMSD
    import_checkpoint(_file(tmp_path / "a.pt", case, {"energy": rounded, "forces": RMSD, "stress": RMSD}))


@pytest.mark.parametrize("wrong", [-1.0, 0.0, float("nan")])
def test_a_normaliser_that_is_no_unit_is_named(reference_dir: Path, tmp_path: Path, wrong: float) -> None:
    path = _file(tmp_path / "a.pt", load(reference_dir, "v3_grad_L3M2"), {"energy": RMSD, "forces": wrong})
    with pytest.raises(ValueError, match="the normaliser of forces has the mean 0 and the deviation"):
        import_checkpoint(path)


@pytest.mark.parametrize("name", ["v3_grad_L3M2", "esen_grad_L3M2"])
@pytest.mark.parametrize("other", ["forces", "stress"])
def test_derivatives_in_another_unit_than_the_energy_are_refused(
    reference_dir: Path, tmp_path: Path, name: str, other: str
) -> None:
    deviations = {"energy": RMSD, "forces": RMSD, "stress": RMSD, other: 0.1}
    path = _file(tmp_path / "a.pt", load(reference_dir, name), deviations)
    with pytest.raises(ValueError, match="would not be derivatives of the energy"):
        import_checkpoint(path)


def test_a_stress_with_a_mean_is_refused(reference_dir: Path, tmp_path: Path) -> None:
    path = _file(tmp_path / "a.pt", load(reference_dir, "v3_dens_L3M2"))
    content = torch.load(path, weights_only=False)
    content["normalizers"]["stress"]["mean"] = torch.tensor(-0.003)
    torch.save(content, path)
    with pytest.raises(ValueError, match="normaliser has the mean -0.003"):
        import_checkpoint(path)


def test_rows_beyond_the_last_element_are_no_elements(reference_dir: Path, tmp_path: Path) -> None:
    """The released EquiformerV3 has 128 rows; there are 118 elements."""
    path = _file(tmp_path / "a.pt", load(reference_dir, "v3_grad_L3M2"))
    content = torch.load(path, weights_only=False)
    names = [name for name in content["state_dict"] if "distance_expansion" not in name]
    trained = [name for name in names if "so3_" not in name or "so3_linear" in name]
    trained = [name for name in trained if not name.endswith(("expand_index", "balance_degree_weight"))]
    longer = {
        n: torch.zeros(128, v.shape[1]) for n, v in content["state_dict"].items() if n.endswith("embedding.weight")
    }
    average = dict(zip(trained, content["ema"]["shadow_params"], strict=True)) | longer
    content["state_dict"] |= longer
    content["ema"]["shadow_params"] = list(average.values())
    content["config"]["model"]["max_num_elements"] = 128
    del content["elementrefs"]
    torch.save(content, path)
    force_field = import_checkpoint(path)
    assert force_field.config.num_elements == 128
    assert force_field.scaling.elements == list(range(1, 119))
    with pytest.raises(ValueError, match="was not trained on"):
        force_field.scaling.check_elements(np.array([0]), "a ghost atom")


@pytest.mark.parametrize(
    ("name", "preset"),
    [("v3_dens_L3M2", "equiformer_v3_mptrj_gradient"), ("v3_grad_L3M2", "equiformer_v3_mptrj_gradient"),
     ("esen_dens_L3M2", "esen_30m_mptrj_gradient"), ("esen_grad_L3M2", "esen_30m_mptrj_gradient")],
)  # fmt: skip
def test_an_imported_model_is_tuned_with_gradient_forces(
    reference_dir: Path, tmp_path: Path, name: str, preset: str
) -> None:
    """The published second stage on an imported file, as its preset says."""
    case = load(reference_dir, name)
    deviations = {"energy": RMSD, "forces": RMSD, "stress": 0.1 if name == "v3_dens_L3M2" else RMSD}
    path, output = _file(tmp_path / "a.pt", case, deviations), tmp_path / "model.safetensors"
    assert CliRunner().invoke(app, ["import", str(path), "-o", str(output)]).exit_code == 0
    elements = case.arrays["in/atomic_numbers"].unique().tolist()
    data = {key: crystals(tmp_path / f"{key}.extxyz", elements, count) for key, count in (("train", 4), ("valid", 2))}
    config = load_config(
        f"crystals/{preset}",
        [*(f"data.{key}={path}" for key, path in data.items()), f"training.init_from={output}", "training.epochs=1",
         "training.batch_size=2", f"output={tmp_path / 'run'}", "device=cpu"],
    )  # fmt: skip
    run = train(config)
    imported, tuned = load_model(output), load_model(run)
    assert (tuned.config.forces, tuned.config.stress) == ("gradient", "strain")
    assert set(tuned.heads) == {"energy"}
    scaling = tuned.scaling.to_dict()
    assert scaling["energy_scale"] == scaling["force_scale"] == scaling["stress_scale"] == RMSD
    assert {chemical_symbols[z] for z in elements} == scaling["references"].keys()
    before, after = imported.state_dict(), tuned.state_dict()
    weights = [name for name, _ in tuned.named_parameters()]
    moved = {name: float((after[name][: len(before[name])] - before[name]).abs().max()) for name in weights}
    assert 0 < max(moved.values()) < 1e-3, "two small steps from the imported weights"
    assert read_header(run)["metadata"]["run"]["training"]["init_from"] == str(output)
