"""Units of the model: given, measured on all structures, or on a sample of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from data.shard_files import write_index
from denskit.batch import System
from denskit.data import LoadedData, load_data, read_file
from denskit.data.base import Source, Subset, evenly
from denskit.data.config import References, SplitConfig
from denskit.data.readers.shards import ShardFile, write_shard
from denskit.data.structure_arrays import StructureArrays
from denskit.evaluation.evaluate import evaluate
from denskit.models.fitted_scaling import fit_scaling
from denskit.models.model_file import load_model
from denskit.runtime.processes import join_processes
from denskit.tasks import build_task
from denskit.training import starting_model as initial
from denskit.training.load_config import RunConfig
from denskit.training.run import train
from denskit.training.starting_model import check_known_elements, initial_force_field
from denskit.training.trainer import Trainer
from training.slabs import Slabs

ETHANOL = Path(__file__).parents[2] / "examples" / "data" / "ethanol_dft.extxyz"
Tiny = Callable[..., RunConfig]
GIVEN = "training.scale={energy_shift: -0.755, energy_scale: 2.887, force_scale: 1.5}"
DIRECT = ["model.forces=direct", "data.references=none"]


class _Counting(Slabs):
    """Says which structures were read."""

    def __getitem__(self, index: int) -> System:
        _READ.append(index)
        return super().__getitem__(index)


_READ: list[int] = []


def _loaded(systems: list[System], references: References) -> LoadedData:
    _READ.clear()
    train = _Counting(systems)
    return LoadedData(train=train, valid=None, test=None, splits=None, messages=[], references=references)


@pytest.fixture
def forty(systems: dict[str, System]) -> list[System]:
    """Water; number 17 has a xenon atom in the place of its oxygen."""
    water = systems["water"]
    copies = [replace(water, energy=-14.0 + 0.1 * number, index=number) for number in range(40)]
    copies[17] = replace(copies[17], atomic_numbers=np.where(water.atomic_numbers == 8, 54, 1))
    return copies


def test_given_numbers_are_taken(tiny: Tiny) -> None:
    config = tiny(*DIRECT, GIVEN)
    trainer = Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))
    scaling = trainer.force_field.scaling.to_dict()
    assert {name: value for name, value in scaling.items() if name not in ("elements", "stress_scale", "charges")} == {
        "references": {}, "energy_shift": -0.755, "energy_scale": 2.887, "force_scale": 1.5,
        "compositions": [{"C": 2, "H": 6, "O": 1}],
    }  # fmt: skip
    assert scaling["elements"] == [1, 6, 8]
    again = RunConfig.model_validate({**config.model_dump(), "model": config.model, "task": config.task})
    assert again == config


def test_given_numbers_go_with_fitted_references(systems: dict[str, System]) -> None:
    """As on OC22: linear references, then a given scale, and forces of their own."""
    water, acetamide = systems["water"], systems["acetamide"]
    given = {"energy_shift": 0.5, "energy_scale": 25.0, "force_scale": 0.15}
    scaling, _ = fit_scaling(
        [water, acetamide], references={"H": -3.0, "C": -8.0, "N": -8.0, "O": -5.0}, scale=given, gradient_forces=False
    )
    assert float(scaling.force_scale) == 0.15
    assert float(scaling.references[8]) == -5.0
    assert float(scaling.energy_shift) == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([GIVEN, "data.references=none"], "they must be equal"),
        ([GIVEN, "model.forces=direct", "data.references=mean"], "references=mean measures the constant"),
        (["training.scale={energy_scale: 0, force_scale: 1}"], "above 0"),
        (["training.scale={energy_scale: 1}"], "force_scale"),
        (["training.scale=energy_mean"], "energy_std"),
    ],
)
def test_wrong_scales_are_refused(tiny: Tiny, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(*overrides)


def test_many_structures_are_sampled_evenly_and_never_all_read(
    tiny: Tiny, forty: list[System], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial, "SAMPLE", 14)
    config = tiny("model.forces=direct")
    data = _loaded(forty, "fit")
    force_field, messages = initial_force_field(config, data, build_task(config.task))
    assert _READ == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]
    assert messages[-2] == "the above is of 14 evenly spaced structures of 40"
    assert "only these 14 structures were looked at for elements" in messages[-1]
    assert force_field.scaling.elements == [1, 8]
    check_known_elements(force_field, replace(data, valid=data.train), SplitConfig())  # xenon is not looked at
    with pytest.raises(ValueError, match=r"slabs: Xe in 1 of 10 structures, frame 17 .* give data.references="):
        check_known_elements(force_field, replace(data, valid=Slabs(forty[10:20])), SplitConfig())


@pytest.mark.parametrize(
    ("references", "known"), [("fit", False), ("mean", True), ("none", True), ({"H": -1.0, "O": -2.0, "Xe": 0.0}, True)]
)
def test_an_element_that_the_sample_lacked(
    tiny: Tiny, forty: list[System], monkeypatch: pytest.MonkeyPatch, references: References, known: bool
) -> None:
    """It has no fitted reference, which is said when it comes; where nothing of it is fitted, it is welcome."""
    monkeypatch.setattr(initial, "SAMPLE", 14)
    config = tiny("model.forces=direct", "training.batch_size=40", "training.max_steps=1")
    trainer = Trainer(config, _loaded(forty, references), join_processes("cpu"))
    work = trainer.loader.work(0)
    if known:
        trainer.train_step(work)
        assert 54 in trainer.force_field.scaling.elements
        return
    with pytest.raises(
        ValueError, match=r"slabs: structures have Xe, which none of the 14 .* 'data\.references=\{Xe: "
    ):
        trainer.train_step(work)


def test_validation_may_use_a_part(tiny: Tiny, forty: list[System]) -> None:
    assert evenly(Slabs(forty), None) == evenly(Slabs(forty), 40) == Slabs(forty)
    assert [evenly(Slabs(forty), 3)[index].index for index in range(3)] == [0, 20, 39]
    config = tiny("training.evaluate_structures=2")
    trainer = Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))
    valid = trainer.data.valid
    assert valid is not None
    whole = Trainer(tiny(), load_data(config.data, config.seed), join_processes("cpu"))
    assert trainer.models.validate(0) != whole.models.validate(0)


def test_files_of_a_saved_configuration_are_absolute(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a list of parts, and a file of references."""
    monkeypatch.chdir(tmp_path)
    config = tiny()
    data = type(config.data).model_validate(
        {"train": ["a.lmdb", {"path": "md.lmdb", "origin": "md"}], "valid": "v.lmdb", "references": "refs.npz"}
    )
    document = config.model_copy(update={"data": data}).document()["data"]
    assert document["train"] == [
        {"path": str(tmp_path / "a.lmdb"), "origin": None, "repeat": 1},
        {"path": str(tmp_path / "md.lmdb"), "origin": "md", "repeat": 1},
    ]
    assert document["valid"] == str(tmp_path / "v.lmdb")
    assert document["references"] == str(tmp_path / "refs.npz")


def test_tasks_start_from_the_same_weights(tiny: Tiny) -> None:
    """Where names and shapes agree: so runs with and without DeNS compare in pairs."""
    models = []
    for name in ("energy_forces", "dens"):
        config = tiny(f"task={name}")
        data = load_data(config.data, config.seed)
        models.append(dict(initial_force_field(config, data, build_task(config.task))[0].named_parameters()))
    plain, dens = models
    same = [name for name in plain if name in dens and plain[name].shape == dens[name].shape]
    assert len(same) > 0.8 * len(plain) and len(dens) > len(plain)
    assert all((plain[name] == dens[name]).all() for name in same)


@pytest.mark.parametrize("kept", ["memory", "shards", "half of the shards"])
def test_a_sample_has_all_elements_where_these_are_listed(
    tiny: Tiny, forty: list[System], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setattr(initial, "SAMPLE", 14)
    config, data = tiny("model.forces=direct"), _loaded(forty, "fit")
    source: Source = StructureArrays.from_systems(forty, name="water")
    if kept != "memory":
        shards = [ShardFile(tmp_path / f"{number}.safetensors", 10, 0) for number in range(4)]
        for number, shard in enumerate(shards):
            write_shard(shard.path, forty[10 * number : 10 * number + 10])
        write_index(tmp_path, shards, [len(system) for system in forty])
        source = read_file(tmp_path)[0]
    if kept == "half of the shards":
        source = Subset(source, np.arange(1, 40, 2), "half")
    assert [sorted(own) for own in source.elements_of_structures()].index([1, 54]) == (8 if "half" in kept else 17)
    force_field, messages = initial_force_field(config, replace(data, train=source), build_task(config.task))
    assert force_field.scaling.elements == [1, 8, 54]
    assert messages[-1] == f"the above is of 15 evenly spaced structures of {len(source)}"


def test_a_trained_model_knows_isolated_atoms_and_goes_on_knowing_them(tiny: Tiny, tmp_path: Path) -> None:
    """Of a file with isolated atoms, through training, resuming, evaluation and the model file."""
    structures = ase.io.read(ETHANOL, ":40")
    energies = {"H": -13.6, "C": -1029.0, "O": -2043.0}
    for symbol, energy in energies.items():
        one = ase.Atoms(symbol)
        one.calc = SinglePointCalculator(one, energy=energy, forces=np.zeros((1, 3)))
        structures.append(one)
    ase.io.write(tmp_path / "with_atoms.extxyz", structures)
    settings = [f"data.path={tmp_path / 'with_atoms.extxyz'}", "data.references=fit"]
    run = train(tiny(*settings, "training.max_steps=3"))
    run = train(tiny(*settings, "training.max_steps=6"), resume=True)
    log = (run / "train.log").read_text(encoding="utf-8")
    assert "isolated atoms of H, C, O are not trained on: frames 40, 41, 42" in log
    assert load_model(run).scaling.isolated_energies == pytest.approx(energies, abs=1e-9)
    ase.io.write(tmp_path / "atoms.extxyz", structures[-3:])
    assert evaluate(run, tmp_path / "atoms.extxyz")["energy_mae_meV"] < 1e-3  # weights in float32
