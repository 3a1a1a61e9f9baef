"""Configurations: overrides, presets, molecules, and errors that name key, file and cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from denskit.data import DataConfig
from denskit.models import MODELS
from denskit.models.config import ModelConfig
from denskit.presets import preset_names
from denskit.tasks import DeNSConfig, EnergyForcesConfig
from denskit.training.best_by import require_weight
from denskit.training.fitted_settings import training_for
from denskit.training.load_config import RunConfig, TrainingConfig, load_config
from denskit.training.loader import steps_per_epoch
from denskit.training.schedule import Schedule
from denskit.training.settings import parse_interval

FLAT = ("model.l_max=1", "model.m_max=1")
DIRECT = ("model.forces=direct", "model.stress=direct")


def test_overrides_win_and_are_read_as_yaml(tiny: Callable[..., RunConfig]) -> None:
    config = tiny("training.lr=1e-4", "model.channels=[4,4]", "data.references={H: -13.6, C: -1, O: -2}", "seed=7")
    assert config.training.lr == 1e-4
    assert config.model.channels == (4, 4)
    assert config.data.references == {"H": -13.6, "C": -1.0, "O": -2.0}
    assert config.seed == 7


def test_another_task_keeps_what_both_have(tiny: Callable[..., RunConfig]) -> None:
    config = tiny("task.forces_weight=20", "task.energy_weight=3", "task=energy_forces")
    assert config.task == EnergyForcesConfig(forces_weight=20, energy_weight=3)
    assert isinstance(tiny().task, DeNSConfig)


def test_task_switch_keeps_the_weights_of_the_file(tmp_path: Path, tiny_file: Path) -> None:
    content = yaml.safe_load(tiny_file.read_text())
    content["task"] = {"name": "energy_forces", "forces_weight": 11.0}
    tiny_file.write_text(yaml.safe_dump(content))
    config = load_config(tiny_file, ["task=dens", "task.sigma=0.1"])
    assert isinstance(config.task, DeNSConfig)
    assert config.task.forces_weight == 11.0
    assert config.task.sigma == 0.1


@pytest.mark.parametrize("name", ["esen", "equiformer_v3", "escn", "equiformer_v2"])
def test_another_model_keeps_what_means_the_same_to_both(name: str) -> None:
    """A preset of one model is a beginning for all: forces, neighbours and cutoff stay, its table of sizes goes."""
    config = load_config("equiformer", [f"model={name}", "data.path=a.extxyz", "model.cutoff=4.5"])
    assert config.model.name == name and config.model.cutoff == 4.5 and not config.sizes
    before = load_config("equiformer", ["data.path=a.extxyz", "model.cutoff=4.5"])
    shared = set(ModelConfig.model_fields) - {"name"}
    assert config.model.model_dump(include=shared) == before.model.model_dump(include=shared)
    assert config.model.forces == "gradient" and config.model.max_neighbors is None


def test_models_of_one_family_share_more() -> None:
    config = load_config("equiformer_v2", ["model=escn", "data.path=a.extxyz", "model.l_max=4"])
    before = load_config("equiformer_v2", ["data.path=a.extxyz", "model.l_max=4"])
    assert config.model.model_dump(include={"l_max", "num_layers", "channels"}) == before.model.model_dump(
        include={"l_max", "num_layers", "channels"}
    )


def test_an_entry_of_models_under_another_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "mine", MODELS["esen"])
    with pytest.raises(ValueError, match=r"MODELS\['mine'\]: wanted ModelEntry.* name 'mine', found 'esen'"):
        load_config("demo", [])


def test_an_override_of_max_steps_replaces_epochs(tiny: Callable[..., RunConfig]) -> None:
    config = tiny("training.epochs=3")
    assert (config.training.epochs, config.training.max_steps) == (3, None)
    with pytest.raises(
        ValueError, match="training.epochs and training.budget each set the length of the training; give one"
    ):
        tiny("training.epochs=3", "training.budget=5 minutes")


def test_the_shorter_of_two_lengths_counts(tiny: Callable[..., RunConfig]) -> None:
    training = tiny("training.epochs=3", "training.max_steps=40").training
    assert [Schedule(training, per_epoch).total_steps for per_epoch in (5, 13, 14)] == [15, 39, 40]


def test_few_structures_are_not_trained_on_for_thousands_of_epochs() -> None:
    def steps(structures: int, *settings: str) -> int:
        training = training_for(load_config("equiformer", ["data.path=a.extxyz", *settings]), structures)
        per_epoch = steps_per_epoch(structures, training.batch_size, training.drop_last)
        return Schedule(training, per_epoch).total_steps

    assert (steps(50), steps(500), steps(5000)) == (12_000, 50_000, 50_000)
    assert (steps(50, "training.max_steps=70000"), steps(50, "training.epochs=3000")) == (70_000, 36_000)
    budget = load_config("equiformer", ["data.path=a.extxyz", "training.budget=1 hour"])
    assert training_for(budget, 50).epochs is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.batchsize=4", ["override", "training.batchsize", "training.batch_size"]),
        ("task.sigmaa=0.1", ["override", "task.sigmaa", "task.sigma"]),
        ("model.sigma=0.1", ["model.sigma", "task.sigma"]),
        ("training.sigma=0.1", ["override", "training.sigma", "task.sigma"]),
        ("sede=1", ["override", "sede", "seed"]),
        ("data.split.mod=random", ["override", "data.split.mod", "data.split.mode"]),
        ("model.num_layer=2", ["override", "model.num_layer", "model.num_layers"]),
        ("training.lr=fast", ["override", "training.lr", "fast"]),
        ("data.references={H:-13.6}", ["override", "{H:-13.6}", "a space after a colon"]),
        ("training.evaluate_every=2 fortnights", ["training.evaluate_every", "500 steps"]),
        ("task=densest", ["override", "densest", "dens"]),
        ("model=equiformr", ["override", "equiformr", "equiformer"]),
        ("training.warmup_lr=1e-6", ["warmup_lr", "ignored"]),
        ("task.stress_weight=1", ["stress_weight", "model.stress=strain"]),
        ("seed", ["seed", "key.sub=value"]),
    ],
)
def test_errors_name_the_key_and_the_cure(tiny: Callable[..., RunConfig], override: str, expected: list[str]) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        tiny(override)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [  # kinds of values that pydantic writes into its keys: unions, tuples, tables, classes
        ("data.train=3", "data.train: 3: wanted a text, or a list [VALUE, ...]"),
        ("data.train=[a.xyz, {path: 3}]", "data.train (entry 2).path: 3: wanted a text"),
        ("data.train=[{pth: b.xyz}]", "unknown key data.train (entry 1).pth; did you mean data.train (entry 1).path?"),
        ("data.split=0.9", "data.split: 0.9: wanted a table {KEY: VALUE, ...} with the keys mode, train, valid"),
        ("data.split.train=-1", "data.split.train: -1: wanted a whole number of 0 or more, or a number above 0"),
        ("data.split.mode=wrong", "data.split.mode: 'wrong': wanted random, blocks, group or published"),
        ("data.references={H: low}", "data.references.H: 'low': wanted a number"),
        ("data.references={Q: 1}", "data.references: Q given; wanted element symbols"),
        ("training.scale={energy_scale: 0}", "training.scale.energy_scale: 0: wanted a number above 0"),
        ("training.scale={energy_scale: 1}", "training.scale.force_scale: is missing"),
        ("training.betas=[0.9, 2]", "training.betas (entry 2): 2: wanted a number below 1"),
        ("training.betas=[0.9]", "training.betas (entry 2): is missing"),
        ("model.cutoff={a: 1}", "model.cutoff: {'a': 1}: wanted a number"),
        ("model.name=[esen]", "no model ['esen']; did you mean esen?"),
        ("seed=-1", "seed: -1: wanted a whole number from 0 to 2**63 - 1"),
        (f"seed={2**63}", f"seed: {2**63}: wanted a whole number from 0 to 2**63 - 1"),
        ("data.split.seed=-1", "data.split.seed: -1: wanted a whole number from 0 to 2**63 - 1"),
    ],
)
def test_errors_name_settings_as_users_write_them(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        load_config("equiformer", ["data.train=a.xyz", override])
    message = str(caught.value)
    assert said in message
    assert not any(word in message for word in ("tuple[", "literal[", "dict[", "constrained", "FixedScale", "Part"))
    assert message.count("\n") <= message.count("missing")  # one problem a setting


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=esen", *FLAT, *DIRECT], "; set model.l_max=2 or more, or model.stress=none"),
        (["model=equiformer_v3", *FLAT, *DIRECT], "; set model.l_max=2 or more, or model.stress=none"),
        (["model=esen", *FLAT, "task=cell_dens", "task.stress_encoding=false"], "l_max=2 or more, or task=dens"),
        (["task=cell_dens"], "; give model.channels degrees 0 to 2, or task=dens"),
    ],
)
def test_a_head_of_a_degree_that_the_features_lack_is_refused(
    tiny: Callable[..., RunConfig], overrides: list[str], said: str
) -> None:
    """It ended at the first batch, where no component of degree 2 was there."""
    with pytest.raises(ValueError, match="reads features of degree 2, and .* up to 1") as error:
        tiny(*overrides)
    assert said in str(error.value)


def test_a_key_of_another_task_is_pointed_out(tiny: Callable[..., RunConfig]) -> None:
    with pytest.raises(ValueError, match=r"task\.sigma belongs to task=dens or .*, which is not chosen here"):
        tiny("task=energy_forces", "task.sigma=0.1")


def test_errors_name_the_file(tiny_file: Path) -> None:
    tiny_file.write_text(tiny_file.read_text().replace("batch_size", "batchsize"))
    with pytest.raises(
        ValueError, match=rf"{tiny_file}: unknown key training.batchsize; did you mean training.batch_size"
    ):
        load_config(tiny_file)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent.yaml"):
        load_config(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [1, 2")
    with pytest.raises(ValueError, match="broken.yaml is no valid YAML"):
        load_config(broken)
    with pytest.raises(ValueError, match="no preset 'equiformr'.*equiformer"):
        load_config("equiformr")


def test_molecule_row_comes_before_the_overrides(tiny_file: Path) -> None:
    table = "molecules:\n  ethanol: {training: {lr: 2.e-4}, task.sigma: 0.025}\n  benzene: {training.lr: 1.e-4}\n"
    tiny_file.write_text(tiny_file.read_text() + table)
    row = load_config(tiny_file)
    assert (row.training.lr, row.task.sigma, row.training.batch_size) == (2e-4, 0.025, 4)  # type: ignore[union-attr]
    assert load_config(tiny_file, ["data.molecule=benzene"]).training.lr == 1e-4
    assert load_config(tiny_file, ["training.lr=5e-5"]).training.lr == 5e-5
    with pytest.raises(ValueError, match="benzen.*did you mean benzene"):
        load_config(tiny_file, ["data.molecule=benzen"])


def test_the_document_makes_the_same_configuration(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = tiny("data.split={train: 0.5}", "training.ema_decay=0.9")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.document()))
    again = load_config(path)
    assert again == config
    assert again.data.split.model_fields_set == config.data.split.model_fields_set


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_loads_and_nothing_in_it_is_executed(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    overrides = ["data.molecule=ethanol"] if preset.startswith("md17") else []
    config = load_config(preset, [*overrides, "output=${oc.env:SECRET}"])
    assert config.output == "${oc.env:SECRET}"  # no interpolation: settings are data


def test_a_run_folder_is_its_configuration_wherever_it_lies(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(tiny("seed=5").document()))
    config = load_config(folder)
    assert (config.seed, config.output) == (5, str(folder))


def test_interval() -> None:
    assert parse_interval("500 steps") == (500, "step")
    assert parse_interval("0.5 epochs") == (0.5, "epoch")
    assert parse_interval("10 minutes") == (10, "minute")
    for wrong in ("often", "0 steps", "1.5 steps"):
        with pytest.raises(ValueError, match="interval|whole"):
            parse_interval(wrong)


def test_every_training_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in TrainingConfig.model_fields if f"`training.{name}`" not in page] == []


def test_a_folder_without_a_run_does_not_hide_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "esen").mkdir()
    assert load_config("esen").model.name == "esen"
    (tmp_path / "esen" / "config.yaml").write_text(
        "model: {name: escn}\ndata: {name: embedded}\ntraining: {max_steps: 5}\n"
    )
    assert load_config("esen").model.name == "escn"  # a run
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match=r"mine/config\.yaml: no such file"):
        load_config("mine")


def test_a_file_takes_the_place_of_the_shipped_molecules(tmp_path: Path) -> None:
    file = tmp_path / "molecule.yaml"
    file.write_text("model: {name: escn}\ndata: {name: embedded, molecule: water}\ntraining: {max_steps: 5}\n")
    for given in ({"path": "mine.extxyz"}, {"train": "mine.extxyz", "valid": "other.extxyz"}):
        for preset in ("demo", file):
            data = load_config(preset, {f"data.{key}": value for key, value in given.items()}).data
            assert data == DataConfig(**given)
    for pattern in ("*.extxyz", "*/OUTCAR", "[cd]alc/*.cif"):
        assert load_config("demo", [f"data.path={pattern}"]).data.path == pattern
    parts = load_config("demo", ["data.train=[a.extxyz, b.extxyz]", "data.valid=c.extxyz"]).data.train
    assert isinstance(parts, tuple) and [part.path for part in parts] == ["a.extxyz", "b.extxyz"]
    assert load_config("demo", ["data.valid=mine.extxyz"]).data.name == "embedded"  # whose reader refuses it
    assert load_config(file, ["data=embedded", "data.path=mine.extxyz"]).data.name == "embedded"
    assert load_config("md17/equiformer_l2", ["data.molecule=aspirin", "data.path=x.npz"]).data.name == "md17"


def test_a_training_on_stress_alone_is_told_what_it_lacks(tiny: Callable[..., RunConfig]) -> None:
    """Not to choose by energies, and then by forces again."""
    with pytest.raises(ValueError, match=r"energy_weight=0, so nothing can choose them: give one of the two a weight"):
        tiny("model.stress=strain", "task.stress_weight=1", "task.energy_weight=0", "task.forces_weight=0")
    with pytest.raises(ValueError, match=r"forces_weight=0, so nothing can choose them: give one of the two a weight"):
        require_weight("energy", energy=0, forces=0)
    with pytest.raises(ValueError, match="set training.best_by=energy"):
        require_weight("forces", energy=1, forces=0)
