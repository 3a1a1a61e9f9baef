"""A training on crystals takes the settings of DeNS for them, except those that are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.batch import System
from denskit.tasks import FOR_CRYSTALS, DeNSConfig
from denskit.training.fitted_denoising import fit_dens_to_crystals
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train
from training.conftest import DEGREE_2

Tiny = Callable[..., RunConfig]


class _Frames(list[System]):
    name, sizes = "frames", None


def _on_springs(atoms: ase.Atoms, count: int) -> list[ase.Atoms]:
    """Displaced copies, labelled."""
    generator, frames = np.random.default_rng(0), []
    for _ in range(count):
        frame, moved = atoms.copy(), generator.normal(scale=0.05, size=(len(atoms), 3))
        frame.positions += moved
        frame.calc = SinglePointCalculator(frame, energy=2.5 * float((moved**2).sum()), forces=-5.0 * moved)
        frames.append(frame)
    return frames


def _small(folder: Path, name: str, task: str, settings: dict[str, object]) -> RunConfig:
    """A training on ``name``.extxyz into the folder ``name``."""
    sizes = {"channels": [8, 4], "feature_channels": [8, 4], "head_channels": [4, 2], "ffn_channels": [8, 4]}
    model = {f"model.{key}": value for key, value in {"num_layers": 1, **sizes}.items()}
    files = {"data.path": folder / f"{name}.extxyz", "output": folder / name}
    return load_config("equiformer", {"task": task, **files, **model, **settings})


def _dens(config: RunConfig, frames: list[System]) -> tuple[DeNSConfig, list[str]]:
    fitted, said = fit_dens_to_crystals(config, _Frames(frames))
    assert isinstance(fitted.task, DeNSConfig)
    return fitted.task, said


@pytest.mark.parametrize("task", ["dens", "cell_dens"])
def test_what_is_not_given_is_for_crystals(tiny: Tiny, systems: dict[str, System], task: str) -> None:
    found, (said,) = _dens(tiny(*DEGREE_2, f"task={task}", "task.sigma=auto"), [systems["copper"]] * 3)
    assert (found.sigma, found.coefficient) == ("auto", 4.0), "the command line and the file have them"
    rest = {name: value for name, value in FOR_CRYSTALS.items() if name not in ("sigma", "coefficient")}
    assert {name: getattr(found, name) for name in rest} == rest
    assert "task.corruption_ratio=0.5 task.max_force=2.5 task.max_corrupted_share=0.75" in said


def test_auto_undoes_a_given_weight_of_the_noise(tiny: Tiny, systems: dict[str, System]) -> None:
    config = tiny("task.sigma=auto", "task.coefficient=auto")  # the file has 4
    assert isinstance(config.task, DeNSConfig) and config.task.coefficient == DeNSConfig().coefficient
    assert _dens(config, [systems["copper"]])[0].coefficient == FOR_CRYSTALS["coefficient"]
    with pytest.raises(ValueError, match="coefficient"):
        tiny("task.coefficient=automatic")


def test_molecules_and_other_tasks_keep_theirs(tiny: Tiny, systems: dict[str, System]) -> None:
    copper, ethanol = systems["copper"], systems["ethanol"]
    slab = replace(copper, fixed=np.ones(len(copper), bool))
    config = tiny()
    for frames in ([ethanol], [copper, ethanol], [slab]):
        assert fit_dens_to_crystals(config, _Frames(frames)) == (config, [])
    plain = tiny("task=energy_forces")
    assert fit_dens_to_crystals(plain, _Frames([copper])) == (plain, [])
    given = tiny(*(f"task.{name}={value}" for name, value in FOR_CRYSTALS.items()))
    assert fit_dens_to_crystals(given, _Frames([copper])) == (given, [])


def test_ratio_and_largest_share_belong_together(tiny: Tiny, systems: dict[str, System]) -> None:
    """A share below a given ratio would exclude nearly every structure."""
    for given in ("corruption_ratio=1.0", "max_corrupted_share=0.5"):
        found, _ = _dens(tiny(f"task.{given}"), [systems["copper"]])
        assert (found.corruption_ratio, found.max_corrupted_share) in ((1.0, None), (0.25, 0.5))
        assert found.sigma == 0.025


def test_liquids_of_molecules_are_no_crystals(tiny: Tiny, systems: dict[str, System]) -> None:
    water = systems["water"]
    liquid = replace(water, cell=3.1 * np.eye(3), pbc=np.ones(3, bool))
    assert _dens(tiny(), [liquid]) == (tiny().task, [])


def test_a_run_that_began_with_others_keeps_them(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "crystals.extxyz", _on_springs(bulk("Cu", cubic=True), 12))
    config = _small(tmp_path, "crystals", "dens", {"task.sigma": 0.07, "training.max_steps": 1})
    train(config)
    train(_small(tmp_path, "crystals", "dens", {"training.max_steps": 2}), resume=True)
    saved = load_config(tmp_path / "crystals").task
    assert isinstance(saved, DeNSConfig) and saved.sigma == 0.07
    assert "changed on resume: task" not in (tmp_path / "crystals" / "train.log").read_text()


def test_no_limit_that_excludes_most_structures(tiny: Tiny, systems: dict[str, System]) -> None:
    copper = systems["copper"]
    hot = replace(copper, forces=np.full_like(copper.positions, 2.0))  # of length 3.5 eV/Å
    assert _dens(tiny(), [hot, hot, copper])[0].max_force is None
    assert _dens(tiny(), [hot, copper, copper])[0].max_force == 2.5
    assert _dens(tiny(), [replace(copper, forces=None)])[0].max_force == 2.5


def test_all_atoms_corrupted_stay_so(tiny: Tiny, systems: dict[str, System]) -> None:
    found, _ = _dens(tiny("task.partial=false"), [systems["copper"]])
    assert found.max_corrupted_share is None and found.sigma == 0.025
    DeNSConfig.model_validate(found.model_dump())  # which may not have both


def test_the_run_has_them(tmp_path: Path) -> None:
    for name, atoms in (("crystals", bulk("Cu", cubic=True)), ("molecules", molecule("H2O"))):
        ase.io.write(tmp_path / f"{name}.extxyz", _on_springs(atoms, 12))
        run = _small(tmp_path, name, "dens", {"training.max_steps": 2})
        train(run)
        saved = load_config(tmp_path / name).task
        assert isinstance(saved, DeNSConfig)
        assert (saved.sigma, saved.max_corrupted_share) == ((0.025, 0.75) if name == "crystals" else (0.05, None))
        said = (
            "most training structures are crystals, so DeNS takes task.sigma=0.025"
            in (tmp_path / name / "train.log").read_text()
        )
        assert said == (name == "crystals")
        train(run.model_copy(update={"training": run.training.model_copy(update={"max_steps": 3})}), resume=True)
        assert "changed on resume: task" not in (tmp_path / name / "train.log").read_text()
