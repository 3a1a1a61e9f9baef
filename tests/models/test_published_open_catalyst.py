"""Import of checkpoints in the layout of OCP and fairchem, built from the published models of the reference folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from denskit.batch import Batch, System
from denskit.cli import app
from denskit.data.base import collate
from denskit.models.config import PackedModelConfig
from denskit.models.importing import OC20_ELEMENTS, import_checkpoint
from denskit.models.model_file import load_model
from denskit.models.published_checkpoint import read_checkpoint

State = dict[str, Tensor]
CASES = ("v2_dens_L3M2", "v2_plain_L3M2_rms_gate", "escn_dens_L3M2")
NORMALIZERS = {"energy": {"mean": -0.7554450631141663, "std": 2.887317180633545}, "forces": {"mean": 0.0, "std": 2.5}}


def published(reference_dir: Path, case: str) -> tuple[State, dict[str, Any]]:
    """The weights and the section ``model`` of a published model's configuration."""
    about = json.loads((reference_dir / f"{case}.json").read_text())
    with np.load(reference_dir / f"{case}.npz", allow_pickle=False) as stored:
        state = {name[6:]: torch.from_numpy(stored[name]) for name in stored.files if name.startswith("param/")}
    return state, {"name": "escn_dens" if "escn" in case else "equiformer_v2_dens", **about["hyper_parameters"]}


def checkpoint(state: State, model: dict[str, Any], prefix: str = "module.", **changes: Any) -> dict[str, Any]:
    """What OCP's trainer saves while training goes on."""
    content = {
        "epoch": 11.9,
        "step": 374_000,
        "state_dict": {f"{prefix}{name}": value for name, value in state.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-5, "params": [0, 1]}]},
        "scheduler": {"last_epoch": 3, "lr_lambdas": [None]},
        "normalizers": {
            key: {name: torch.tensor(value, dtype=torch.float64) for name, value in entry.items()}
            for key, entry in NORMALIZERS.items()
        },
        "config": {"task": {"strict_load": True}, "trainer": "denoising_forces", "model": model, "amp": True},
        "val_metrics": {"forces_mae": {"metric": np.float64(0.0189), "total": np.float32(3.5), "numel": 1200}},
        "ema": None,
        "amp": {"scale": 65536.0},
        "best_val_metric": np.float64(0.0189),
        "primary_metric": "forces_mae",
    }
    return content | changes


def slab() -> Batch:
    """A few atoms of elements that OC20 has."""
    cell = np.diag([4.0, 4.3, 9.0])
    system = System(
        positions=np.array([[0.0, 0, 0], [2, 2, 0.2], [0.2, 1.9, 2.1], [0.1, 2, 3.2]]),
        atomic_numbers=np.array([29, 78, 6, 8]), cell=cell, pbc=np.ones(3, dtype=bool),
        fixed=np.array([True, False, False, False]), tags=np.array([0, 1, 2, 2]),
    )  # fmt: skip
    return collate([system], torch.float64)[0]


def predicted(path: Path) -> dict[str, Tensor]:
    force_field = import_checkpoint(path).double()
    return force_field.predict(force_field.config.with_neighbors(slab()))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_units_and_weights_come_from_the_file(reference_dir: Path, tmp_path: Path, case: str) -> None:
    state, model = published(reference_dir, case)
    force_field = import_checkpoint(saved(tmp_path / "a.pt", checkpoint(state, model)))
    assert not force_field.training and set(force_field.heads) >= {"energy", "forces"}
    assert ("noise" in force_field.heads) == ("dens" in case)
    scaling = force_field.scaling
    assert float(scaling.energy_shift) == NORMALIZERS["energy"]["mean"]
    assert float(scaling.energy_scale) == NORMALIZERS["energy"]["std"]
    assert float(scaling.force_scale) == NORMALIZERS["forces"]["std"]
    assert tuple(scaling.elements) == tuple(sorted(OC20_ELEMENTS))
    if "noise" in force_field.heads:
        assert force_field.backbone.force_encoding.scale == 1.0  # type: ignore[union-attr]
    embedding = state["sphere_embedding.weight"] + state.get("force_embedding.bias", 0)
    assert any(torch.equal(value, embedding) for value in force_field.state_dict().values())


@pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
def test_wrappers_do_not_matter(reference_dir: Path, tmp_path: Path, prefix: str) -> None:
    for case in CASES:
        state, model = published(reference_dir, case)
        loaded = read_checkpoint(saved(tmp_path / "a.pt", checkpoint(state, model, prefix)))
        assert loaded.state.keys() == state.keys() and loaded.model == model


def test_layouts_of_all_versions_give_the_same_model(reference_dir: Path, tmp_path: Path, case: str) -> None:
    """The model's settings beside its name or in it, or of a backbone with heads; old names; only a configuration."""
    state, model = published(reference_dir, case)
    expected = predicted(saved(tmp_path / "new.pt", checkpoint(state, model)))
    plain = checkpoint(state, model)
    settings = {name: value for name, value in model.items() if name != "name"}
    old_names = {"target": plain["normalizers"]["energy"], "grad_target": plain["normalizers"]["forces"]}
    new_names = {key: {"mean": entry["mean"], "rmsd": entry["std"]} for key, entry in plain["normalizers"].items()}
    in_config = {
        "energy": {"mean": NORMALIZERS["energy"]["mean"], "stdev": NORMALIZERS["energy"]["std"]},
        "forces": {"mean": 0.0, "stdev": NORMALIZERS["forces"]["std"]},
    }
    head = "energy_block|force_block|denoising_pos_block".split("|")
    hydra = {
        (f"output_heads.{name.split('_')[0]}.{name}" if name.startswith(tuple(head)) else f"backbone.{name}"): value
        for name, value in state.items()
    }
    versions = {
        "attributes": plain | {"config": {"model": model["name"], "model_attributes": settings}},
        "old_normalizers": plain | {"normalizers": old_names},
        "new_normalizers": plain | {"normalizers": new_names},
        "dataset": {k: v for k, v in plain.items() if k != "normalizers"}
        | {"config": {"model": model, "dataset": {"transforms": {"normalizer": in_config}}}},
        "hydra": checkpoint(hydra, {"name": "hydra", "backbone": settings, "heads": {}}),
    }
    for name, content in versions.items():
        actual = predicted(saved(tmp_path / f"{name}.pt", content))
        for key, value in expected.items():
            assert torch.equal(actual[key], value), f"{name}: {key}"


def test_averages_of_other_data_are_taken_over(reference_dir: Path, tmp_path: Path, case: str) -> None:
    """Configurations for crystals divide by 1 instead of OC20's number of atoms, and by their own degree."""
    state, model = published(reference_dir, case)
    if "avg_num_nodes" in model or not case.startswith("v2"):
        pytest.skip("for EquiformerV2 with OC20's averages")
    usual = predicted(saved(tmp_path / "oc20.pt", checkpoint(state, model)))["energy"]
    for own, factor in (({"avg_num_nodes": 38.906585}, 2.0), ({"avg_num_nodes": None, "avg_degree": None}, 1.0)):
        found = predicted(saved(tmp_path / "own.pt", checkpoint(state, {**model, **own})))["energy"]
        mean = NORMALIZERS["energy"]["mean"]
        torch.testing.assert_close(found - mean, factor * (usual - mean), rtol=1e-5, atol=1e-6)
    own = import_checkpoint(saved(tmp_path / "own.pt", checkpoint(state, {**model, "avg_degree": 61.9}))).config
    assert isinstance(own, PackedModelConfig) and own.average_degree == 61.9


def test_a_head_of_stress_is_left_out(reference_dir: Path, tmp_path: Path, case: str) -> None:
    state, model = published(reference_dir, case)
    if not case.startswith("v2"):
        pytest.skip("fairchem's EquiformerV2")
    more = state | {"output_heads.stress.block.irrep2_MLP.0.weight": torch.zeros(2, 2)}
    with pytest.warns(UserWarning, match="head for the stress is left out"):
        found = predicted(saved(tmp_path / "stress.pt", checkpoint(more, model)))
    torch.testing.assert_close(found["energy"], predicted(saved(tmp_path / "a.pt", checkpoint(state, model)))["energy"])


def test_the_running_average_is_what_counts(reference_dir: Path, tmp_path: Path, case: str) -> None:
    """A list without names, of trained parameters only, in their order."""
    state, model = published(reference_dir, case)
    constant = ("offset", "sphere_points", "sphharm_weights.0", "to_grid_mat", "from_grid_mat", "expand_index")
    trained = [name for name in state if not name.endswith(constant)]
    average = [state[name] for name in trained]
    raw = {name: torch.randn_like(value) if name in trained else value for name, value in state.items()}
    ema = {"decay": 0.999, "num_updates": None, "shadow_params": average, "collected_params": []}
    with_average = predicted(saved(tmp_path / "a.pt", checkpoint(raw, model, ema=ema)))
    expected = predicted(saved(tmp_path / "b.pt", checkpoint(state, model)))
    for key, value in expected.items():
        assert torch.equal(with_average[key], value)
    ema = {**ema, "shadow_params": average[:-1]}
    with pytest.raises(ValueError, match=r"running average \(ema\) has \d+ tensors that do not match the \d+"):
        read_checkpoint(saved(tmp_path / "c.pt", checkpoint(raw, model, ema=ema)))


@pytest.mark.parametrize("where", ["elementrefs", "energy_lin_ref"])
def test_linear_references(reference_dir: Path, tmp_path: Path, where: str) -> None:
    """In eV or in units of the deviation; elements that the fit did not see have none, however large their number."""
    state, model = published(reference_dir, "v2_dens_L3M2")
    energies = torch.zeros(90)
    energies[[1, 6, 8, 29, 78]] = torch.tensor([-3.5, -7.0, -5.25, -1.75, -6.5])
    energies[[2, 18]] = torch.tensor([5.8e10, -2e6])
    content = checkpoint(state, model)
    if where == "elementrefs":
        content["elementrefs"] = {"energy": {"element_references": energies}}
    else:
        content["state_dict"]["module.energy_lin_ref"] = energies / NORMALIZERS["energy"]["std"]
    path = saved(tmp_path / "a.pt", content)
    force_field = import_checkpoint(path)
    assert force_field.scaling.elements == [1, 6, 8, 29, 78]
    shift = predicted(path)["energy"] - predicted(saved(tmp_path / "b.pt", checkpoint(state, model)))["energy"]
    torch.testing.assert_close(shift, shift.new_tensor([-3.5 * 0 - 7.0 - 5.25 - 1.75 - 6.5]), rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("default:.*near symmetric sites:UserWarning")
def test_command_writes_a_working_model_file(reference_dir: Path, tmp_path: Path, case: str) -> None:
    state, model = published(reference_dir, case)
    path, output = saved(tmp_path / "eq2.pt", checkpoint(state, model)), tmp_path / "model.safetensors"
    result = CliRunner().invoke(app, ["import", str(path), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "heads energy, forces" in result.output and "56 elements" in result.output
    force_field = load_model(output).double()
    assert (f"Warning: {output}: " in result.stderr) != force_field.backbone.symmetric_sites
    assert ".partial" not in result.stderr
    actual = force_field.predict(force_field.config.with_neighbors(slab()))
    for key, value in predicted(path).items():
        assert torch.equal(actual[key], value)


def test_references_and_elements_by_hand(reference_dir: Path, tmp_path: Path) -> None:
    """OC22's checkpoints were trained on energies less references that lie in a file of their own."""
    state, model = published(reference_dir, "v2_dens_L3M2")
    path, output = saved(tmp_path / "oc22.pt", checkpoint(state, model)), tmp_path / "model.safetensors"
    coefficients = np.zeros(100)
    coefficients[[8, 29]], coefficients[36] = [-5.0, -2.0], 3e8
    np.savez(tmp_path / "lin_ref.npz", coeff=coefficients)
    arguments = ["import", str(path), "-o", str(output), "--references", str(tmp_path / "lin_ref.npz")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert load_model(output).scaling.to_dict()["references"] == {"O": -5.0, "Cu": -2.0}
    assert load_model(output).scaling.elements == [8, 29]
    assert CliRunner().invoke(app, [*arguments, "--elements", "O,Cu,H", "--force"]).exit_code == 0
    assert load_model(output).scaling.elements == [1, 8, 29]


def test_numbers_in_kcal_are_not_for_files_in_ev(reference_dir: Path, tmp_path: Path) -> None:
    state, model = published(reference_dir, "escn_dens_L3M2")
    given = ["--mean", "0", "--std", "2", "--elements", "H,O", "-o", str(tmp_path / "model.safetensors")]
    file = saved(tmp_path / "whole.pt", checkpoint(state, model))
    refused = CliRunner().invoke(app, ["import", str(file), *given])
    assert refused.exit_code == 1
    assert "--data, --mean and --std are for Equiformer files of MD17" in refused.stderr
    assert not (tmp_path / "model.safetensors").exists()
    wrong = CliRunner().invoke(app, ["import", str(file), "--elements", "H,X"])
    assert "'X' is no element" in wrong.stderr


def test_settings_may_be_given(reference_dir: Path, tmp_path: Path) -> None:
    """A file with weights and normalisers and nothing else."""
    state, model = published(reference_dir, "escn_dens_L3M2")
    whole = saved(tmp_path / "whole.pt", checkpoint(state, model))
    bare = saved(tmp_path / "bare.pt", checkpoint(state, model, config={}))
    with pytest.raises(ValueError, match=r"bare\.pt does not say its settings.* give them with --model"):
        import_checkpoint(bare)
    config = import_checkpoint(whole).config
    (tmp_path / "model.yaml").write_text(json.dumps({"model": config.model_dump(mode="json")}), encoding="utf-8")
    arguments = ["import", str(bare), "-o", str(tmp_path / "m.safetensors"), "--model", str(tmp_path / "model.yaml")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert load_model(tmp_path / "m.safetensors").config == config


def test_settings_of_a_larger_model_are_named(reference_dir: Path, tmp_path: Path) -> None:
    """Not the memory that it would take.  Presets of molecules need none named, their model is one."""
    state, model = published(reference_dir, "v2_dens_L3M2")
    whole = saved(tmp_path / "whole.pt", checkpoint(state, model))
    bare = saved(tmp_path / "bare.pt", checkpoint(state, model, config={}))
    for file, preset, said in (
        (
            whole,
            "oc20/equiformer_v2_2m_dens",
            "whole.pt does not fit the settings given: cutoff=12.0 (6.0 in the file)",
        ),
        (whole, "oc20/equiformer_v2_2m_dens", "num_layers=12 (2 in the file)"),
        (bare, "oc20/equiformer_v2_2m_dens", "bare.pt does not fit its settings: it has 155 tensors of"),
        (whole, "md17/equiformer_l2_dens", "holds equiformer_v2; the settings given are those of equiformer"),
    ):
        result = CliRunner().invoke(
            app, ["import", str(file), "-o", str(tmp_path / "m.safetensors"), "--model", preset]
        )
        assert result.exit_code == 1
        assert said in result.output


def drop(name: str) -> Callable[[State, dict[str, Any]], None]:
    def change(state: State, _: dict[str, Any]) -> None:
        del state[next(key for key in state if key.endswith(name))]

    return change


def extra(state: State, _: dict[str, Any]) -> None:
    state["another.weight"] = torch.zeros(2)


def fewer_layers(_: State, model: dict[str, Any]) -> None:
    model["num_layers"] -= 1


def wider(_: State, model: dict[str, Any]) -> None:
    model["edge_channels"] += 1


@pytest.mark.parametrize("change", [drop("sphere_embedding.weight"), extra, fewer_layers, wider])
def test_what_does_not_fit_is_refused(
    reference_dir: Path, tmp_path: Path, case: str, change: Callable[[State, dict[str, Any]], None]
) -> None:
    state, model = published(reference_dir, case)
    change(state, model)
    with pytest.raises(ValueError, match=r"the checkpoint has|does not fit its settings"):
        import_checkpoint(saved(tmp_path / "a.pt", checkpoint(state, model)))


def test_other_models_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", checkpoint({"gemnet.weight": torch.zeros(2)}, {"name": "gemnet_oc"}))
    with pytest.raises(
        ValueError,
        match="none of the models that Denskit imports: equiformer, .*esen, escn",
    ):
        import_checkpoint(path)


def test_variants_that_we_do_not_have_are_refused(reference_dir: Path, tmp_path: Path) -> None:
    state, model = published(reference_dir, "escn_dens_L3M2")
    for change, said in (
        ({"distance_function": "silu"}, "Denskit has distance_function=gaussian only"),
        ({"regress_forces": False}, "regress_forces=False: it has no forces"),
        ({"lmax_list": [3, 4], "mmax_list": [2, 2]}, "Denskit's eSCN has one"),
    ):
        with pytest.raises(ValueError, match=said):
            import_checkpoint(saved(tmp_path / "a.pt", checkpoint(state, model | change)))
    forces = {**NORMALIZERS, "forces": {"mean": 1.0, "std": 2.0}}
    with pytest.raises(ValueError, match="forces' normaliser has the mean"):
        import_checkpoint(saved(tmp_path / "a.pt", checkpoint(state, model, normalizers=forces)))


def test_settings_that_are_not_known_are_told(reference_dir: Path, tmp_path: Path, case: str) -> None:
    """A setting that changes the published function must not be dropped in silence."""
    state, model = published(reference_dir, case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_checkpoint(saved(tmp_path / "a.pt", checkpoint(state, model)))
    path = saved(tmp_path / "b.pt", checkpoint(state, model | {"use_charges": True, "spin": 2}))
    with pytest.warns(UserWarning, match="Denskit does not know: spin=2, use_charges=True"):
        import_checkpoint(path)
    path = saved(tmp_path / "c.pt", checkpoint(state, model | {"use_pbc": False}))
    with pytest.warns(UserWarning, match="trained without periodic images"):
        import_checkpoint(path)
