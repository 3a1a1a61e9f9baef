from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.io import write

from denskit.data import DataConfig, load_data
from denskit.models.equiformer import EquiformerConfig
from denskit.training.fitted_settings import fit_model_to_data, training_for
from denskit.training.load_config import load_config
from denskit.training.run import train

SIZES = """
model: {name: equiformer, average_degree: null, average_atoms: null}
sizes:
  - up_to: 6
    model: {num_layers: 1, channels: [8, 4], feature_channels: [8, 4], head_channels: [4, 2], ffn_channels: [8, 4]}
    training: {batch_size: 2}
  - {model: {num_layers: 3}}
training: {max_steps: 1}
"""


@pytest.fixture
def water(tmp_path: Path) -> Path:
    frames = []
    for seed in range(10):
        atoms = molecule("H2O")
        atoms.rattle(0.02, seed=seed)
        atoms.calc = EMT()
        atoms.get_forces()
        frames.append(atoms)
    write(tmp_path / "water.extxyz", frames)
    return tmp_path / "water.extxyz"


def _config(tmp_path: Path, data: Path, *overrides: str):
    (tmp_path / "sizes.yaml").write_text(SIZES)
    return load_config(tmp_path / "sizes.yaml", [f"data.path={data}", f"output={tmp_path / 'run'}", *overrides])


@pytest.mark.parametrize(("train", "layers"), [(6, 1), (7, 3)])
def test_the_row_for_so_many_structures_is_taken(tmp_path: Path, water: Path, train: int, layers: int) -> None:
    config = _config(tmp_path, water, f"data.split.train={train}", "data.split.valid=1", "data.split.test=1")
    fitted, said = fit_model_to_data(config, load_data(config.data, 0))
    assert isinstance(fitted.model, EquiformerConfig)
    assert fitted.model.num_layers == layers
    assert fitted.sizes == ()
    assert any(f"sized for {train} training structures" in line for line in said)
    assert fitted.training.batch_size == (2 if train == 6 else 8)
    assert any("training.batch_size=2" in line for line in said) == (train == 6)


def test_a_cutoff_below_all_distances_is_refused(tmp_path: Path, water: Path) -> None:
    config = _config(tmp_path, water, "model.cutoff=0.5")
    with pytest.raises(ValueError, match=r"no atom of \d+ training structures of .*within model.cutoff=0.5 Å"):
        fit_model_to_data(config, load_data(config.data, 0))


def test_what_the_user_gives_wins_over_the_table(tmp_path: Path, water: Path) -> None:
    config = _config(tmp_path, water, "model.num_layers=2", "data.split.train=6")
    fitted, _ = fit_model_to_data(config, load_data(config.data, 0))
    assert isinstance(fitted.model, EquiformerConfig)
    assert fitted.model.num_layers == 2
    assert fitted.model.channels == (8, 4)
    assert fitted.training.batch_size == 2


def test_a_batch_size_of_the_user_wins_over_the_table(tmp_path: Path, water: Path) -> None:
    config = _config(tmp_path, water, "training.batch_size=3", "data.split.train=6")
    fitted, said = fit_model_to_data(config, load_data(config.data, 0))
    assert fitted.training.batch_size == training_for(config, 6).batch_size == 3
    assert not any("batch_size" in line for line in said)


def test_a_training_goes_on_with_the_batches_that_it_began_with(tmp_path: Path, water: Path) -> None:
    split = ("data.split.train=6", "data.split.valid=2", "data.split.test=2")
    train(_config(tmp_path, water, *split, "training.max_steps=2", "training.batch_size=3"))
    train(_config(tmp_path, water, *split, "training.max_steps=4"), resume=True)  # as if the table were newer
    assert load_config(tmp_path / "run").training.batch_size == 3
    with pytest.raises(ValueError, match=r"training.batch_size.*3.*4"):
        train(_config(tmp_path, water, *split, "training.max_steps=6", "training.batch_size=4"), resume=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{batch_sise: 2}", "sizes sets training.batch_sise; it may set batch_size, lr"),
        ("{max_steps: 2}", "sizes sets training.max_steps"),
        ("[2]", "a list of rows is wanted"),
    ],
)
def test_a_row_has_settings_of_the_training_other_than_its_length(
    tmp_path: Path, water: Path, row: str, message: str
) -> None:
    (tmp_path / "wrong.yaml").write_text(SIZES.replace("{batch_size: 2}", row))
    with pytest.raises(ValueError, match=message):
        load_config(tmp_path / "wrong.yaml", [f"data.path={water}"])


def test_a_row_that_does_not_go_with_the_rest_is_named(tmp_path: Path, water: Path) -> None:
    config = _config(tmp_path, water, "training.accumulate=3", "data.split.train=6")
    with pytest.raises(
        ValueError,
        match=r"sized for 6 structures, training.batch_size=2: .*accumulate=3 micro-batches.*given stays",
    ):
        fit_model_to_data(config, load_data(config.data, 0))


def test_neighbours_and_atoms_are_measured(tmp_path: Path, water: Path) -> None:
    config = _config(tmp_path, water)
    fitted, said = fit_model_to_data(config, load_data(config.data, 0))
    assert isinstance(fitted.model, EquiformerConfig)
    assert fitted.model.average_degree == 2.0
    assert fitted.model.average_atoms == 3.0
    assert any("2.0 neighbours an atom, 3.0 atoms a structure" in line for line in said)


def test_neighbours_are_counted_through_the_cell(tmp_path: Path) -> None:
    copper = bulk("Cu", cubic=True)
    copper.calc = EMT()
    copper.get_forces()
    write(tmp_path / "copper.extxyz", [copper] * 4)
    config = _config(tmp_path, tmp_path / "copper.extxyz", "model.cutoff=3.0")
    fitted, _ = fit_model_to_data(config, load_data(DataConfig(path=str(tmp_path / "copper.extxyz")), 0))
    assert isinstance(fitted.model, EquiformerConfig)
    assert fitted.model.average_degree == 12.0  # face-centred cubic
    assert np.isclose(fitted.model.average_atoms or 0, 4)


def test_settings_that_do_not_go_together_are_named(tmp_path: Path, water: Path) -> None:
    config = _config(tmp_path, water, "model.channels=[8,4,2]", "model.feature_channels=[8,4,2]",
                     "model.head_channels=[4,2,2]", "model.ffn_channels=[8,4,2]", "data.split.train=6")  # fmt: skip
    config = config.model_copy(update={"sizes": (config.sizes[0].model_copy(update={"model": {"channels": [8, 4]}}),)})
    with pytest.raises(ValueError, match="sized for 6 training structures: feature_channels has 3 degrees"):
        fit_model_to_data(config, load_data(config.data, 0))
