"""Scaling: what is fitted, what goes there and back, what survives dtypes and files."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.data import atomic_numbers
from ase.symbols import string2symbols

from denskit.batch import System
from denskit.data import DataConfig, load_data
from denskit.data.base import collate
from denskit.models.scaling import Scaling, fit_scaling
from denskit.units import KCAL_PER_MOL

TRUE = {"H": -13.25, "C": -1027.5, "O": -2041.75}


def _system(formula: str, energy: float | None = None, seed: int = 0, **labels: Any) -> System:
    symbols = string2symbols(formula)
    rng = np.random.default_rng(seed)
    n = len(symbols)
    return System(
        positions=rng.normal(size=(n, 3)) * 3,
        atomic_numbers=np.array([atomic_numbers[symbol] for symbol in symbols]),
        cell=np.zeros((3, 3)),
        pbc=np.zeros(3, dtype=bool),
        fixed=np.zeros(n, dtype=bool),
        tags=np.zeros(n, dtype=np.int64),
        energy=sum(TRUE[symbol] for symbol in symbols) if energy is None else energy,
        **{"forces": rng.normal(size=(n, 3)), **labels},
    )


def _fit(
    systems: Sequence[System], references: Any = "fit", scale: Any = "energy_std", gradient: bool = True
) -> Scaling:
    return fit_scaling(systems, references=references, scale=scale, gradient_forces=gradient)[0]


def _table(scaling: Scaling) -> dict[str, float]:
    return {symbol: float(scaling.references[atomic_numbers[symbol]]) for symbol in TRUE}


def test_references_that_compositions_determine_are_found() -> None:
    systems = [_system(formula, seed=i) for i, formula in enumerate(["H2O", "CH4", "CO2", "C2H6O", "H2", "CO"])]
    scaling, messages = fit_scaling(systems, references="fit", scale="force_rms", gradient_forces=True)
    assert _table(scaling) == pytest.approx(TRUE, abs=1e-9)
    assert float(scaling.energy_shift) == pytest.approx(0, abs=1e-9)
    assert not [message for message in messages if message.startswith("warning")]
    assert scaling.elements == [1, 6, 8]


def test_undetermined_references_are_the_smallest_and_warned_of() -> None:
    energies = [-100.0, -101.0, -102.0]
    systems = [_system("C2H6O", energy, seed=i) for i, energy in enumerate(energies)]
    scaling, messages = fit_scaling(systems, references="fit", scale="energy_std", gradient_forces=True)
    counts = np.array([6, 2, 1])
    smallest = -101.0 * counts / (counts @ counts)  # along the one composition there is
    assert list(_table(scaling).values()) == pytest.approx(smallest.tolist(), abs=1e-9)
    assert "determine only 1 of 3" in messages[0]
    assert messages[0].startswith("warning")


def test_references_are_fitted_with_minimum_norm_in_rank_two() -> None:
    """CH4 and H2O leave one direction free; least squares by the pseudo-inverse is the judge."""
    systems = [_system("CH4"), _system("H2O", seed=1)]
    counts = np.array([[4, 1, 0], [2, 0, 1]])
    expected = np.linalg.pinv(counts) @ np.array([system.energy for system in systems])
    assert list(_table(_fit(systems, scale="force_rms")).values()) == pytest.approx(expected.tolist(), abs=1e-8)


def test_mean_is_one_constant_and_the_unbiased_deviation() -> None:
    energies = np.array([-100.0, -101.5, -102.0, -99.0])
    scaling = _fit([_system("CH4", energy) for energy in energies], references="mean")
    assert not scaling.references.any()
    assert float(scaling.energy_shift) == pytest.approx(energies.mean(), abs=1e-12)
    assert float(scaling.energy_scale) == pytest.approx(energies.std(ddof=1), abs=1e-12)
    assert scaling.force_scale == scaling.energy_scale == scaling.stress_scale


def test_none_takes_nothing_off() -> None:
    scaling = _fit([_system("CH4", energy) for energy in (-100.0, -102.0)], references="none")
    assert not scaling.references.any()
    assert float(scaling.energy_shift) == 0
    assert float(scaling.energy_scale) == pytest.approx(np.sqrt(2))


def test_given_references_leave_their_mean_to_the_shift() -> None:
    systems = [_system("H2O", 2 * -13.0 - 2000.0 + rest) for rest in (1.0, 2.0, 3.0)]
    scaling = _fit(systems, references={"H": -13.0, "O": -2000.0, "Fe": -1.0})
    assert float(scaling.energy_shift) == pytest.approx(2.0)
    assert float(scaling.energy_scale) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="references has no energy for O, which the training data contain"):
        _fit(systems, references={"H": -13.0})


def test_isolated_atoms() -> None:
    systems = [_system("H"), _system("O", seed=1), *(_system("H2O", 2 * TRUE["H"] + TRUE["O"] - 9 - x) for x in (0, 2))]
    scaling = _fit(systems, references="isolated")
    assert _table(scaling) == {"H": TRUE["H"], "C": 0.0, "O": TRUE["O"]}
    assert float(scaling.energy_shift) == pytest.approx(-10.0)  # of the molecules alone
    with pytest.raises(ValueError, match="none for O"):
        _fit([systems[0], systems[2]], references="isolated")


def test_separate_scales_for_direct_forces() -> None:
    stress = np.full((3, 3), 0.25)
    systems = [_system("CH4", energy, seed=i, stress=stress) for i, energy in enumerate((-100.0, -104.0, -105.0))]
    fixed = systems[0].fixed.copy()
    fixed[0] = True
    systems[0] = replace(systems[0], fixed=fixed)
    scaling = _fit(systems, references="mean", gradient=False)
    free = np.concatenate([system.forces[~system.fixed] for system in systems])  # type: ignore[index]
    assert float(scaling.force_scale) == pytest.approx(np.sqrt((free**2).mean()))
    assert float(scaling.stress_scale) == pytest.approx(0.25)
    assert float(scaling.energy_scale) == pytest.approx(np.std([-100, -104, -105], ddof=1))
    one = _fit(systems, references="mean", scale="force_rms")
    assert float(one.energy_scale) == pytest.approx(np.sqrt((free**2).mean()))
    assert one.energy_scale == one.force_scale


def test_labels_that_are_absent_count_for_nothing() -> None:
    systems = [_system("CH4", energy) for energy in (-100.0, -102.0)]
    holes = [replace(systems[0], energy=None), replace(systems[1], forces=None)]
    for gradient in (True, False):
        full, same = (_fit(s, references="mean", gradient=gradient) for s in (systems, [*systems, *holes[:1]]))
        assert full.energy_shift == same.energy_shift
        assert full.energy_scale == same.energy_scale
    with pytest.raises(ValueError, match="no training structure has an energy"):
        _fit(holes[:1], references="mean")


def test_data_that_do_not_vary_fall_back_with_a_warning() -> None:
    scaling, messages = fit_scaling([_system("CH4", -1.0)], references="mean", scale="energy_std", gradient_forces=True)
    assert float(scaling.energy_scale) == pytest.approx(np.sqrt((_system("CH4").forces ** 2).mean()))  # type: ignore[operator]
    assert "scaled by force_rms instead" in messages[0]
    still = _system("CH4", -1.0, forces=np.zeros((5, 3)))
    scaling, messages = fit_scaling([still], references="mean", scale="energy_std", gradient_forces=True)
    assert float(scaling.energy_scale) == 1.0
    assert "nothing is scaled" in messages[0]


def _scaling() -> Scaling:
    return Scaling(
        elements=[1, 6, 8], references=TRUE, energy_shift=-3.25, energy_scale=0.2, force_scale=0.5, stress_scale=0.01
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_there_and_back(dtype: torch.dtype) -> None:
    systems = [_system("C2H6O", -3120.123456), _system("H2O", -2070.7, stress=np.eye(3) * 0.02)]
    scaling = _scaling()
    batch, targets = collate(systems, dtype)
    scaled = scaling.scale_targets(batch, targets)
    assert scaled.energy.dtype == scaled.forces.dtype == scaled.stress.dtype == dtype
    expected = (-3120.123456 - (6 * TRUE["H"] + 2 * TRUE["C"] + TRUE["O"]) + 3.25) / 0.2
    assert float(scaled.energy[0]) == pytest.approx(expected, rel=1e-6 if dtype == torch.float32 else 1e-12)
    torch.testing.assert_close(scaled.forces, targets.forces * 2)
    torch.testing.assert_close(scaled.stress, targets.stress * 100)
    again = scaling.unscale(batch, {"energy": scaled.energy, "forces": scaled.forces, "stress": scaled.stress})
    assert again["energy"].dtype == torch.float64
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(again["energy"], targets.energy, atol=tolerance, rtol=0)
    torch.testing.assert_close(again["forces"], targets.forces)
    torch.testing.assert_close(again["stress"], targets.stress)
    assert "noise" not in scaling.unscale(batch, {"noise": scaled.forces})


def test_masked_energies_stay_zero_and_padding_weighs_nothing() -> None:
    batch, targets = collate([replace(_system("H2O"), energy=None), _system("H2O")], torch.float64)
    scaling = _scaling()
    assert float(scaling.scale_targets(batch, targets).energy[0]) == 0
    padded = replace(batch, atom_mask=torch.tensor([True] * 5 + [False]))
    lighter = scaling.reference_energy(padded) - scaling.reference_energy(batch)
    assert lighter.tolist() == pytest.approx([0.0, -TRUE["O" if batch.atomic_numbers[5] == 8 else "H"]])


def test_total_energies_keep_their_meV_in_float32() -> None:
    """A total energy of -17,600 eV has a float32 spacing of 2 meV; less its references it has none worth a name."""
    energies = [-17617.6359, -17617.6354, -17617.6361]
    systems = [_system("C9H8O4", energy, seed=i) for i, energy in enumerate(energies)]
    scaling = _fit(systems, references="mean").to(torch.float32)
    batch, targets = collate(systems, torch.float32)
    again = scaling.unscale(batch, {"energy": scaling.scale_targets(batch, targets).energy})
    torch.testing.assert_close(again["energy"], torch.tensor(energies, dtype=torch.float64), atol=1e-9, rtol=0)


def test_moving_the_model_never_rounds_the_scaling() -> None:
    scaling = _scaling()
    before = copy.deepcopy(scaling.state_dict())
    moved = torch.nn.Sequential(scaling, torch.nn.Linear(1, 1)).to(torch.float32).half().double().float()[0]
    assert isinstance(moved, Scaling)
    for name, value in moved.state_dict().items():
        assert value.dtype == torch.float64
        assert torch.equal(value, before[name])


def test_the_model_file_keeps_every_digit() -> None:
    scaling = _fit([_system("C2H6O", -100 - 1 / (3 + i), seed=i) for i in range(4)])
    again = Scaling.from_dict(json.loads(json.dumps(scaling.to_dict())))
    assert again.elements == scaling.elements
    for name, value in scaling.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_unknown_elements_and_useless_scales_are_named() -> None:
    with pytest.raises(ValueError, match=r"mine.xyz has N, which this model was not trained on \(it knows H C O\)"):
        _scaling().check_elements(np.array([1, 7, 8]), "mine.xyz")
    _scaling().check_elements(torch.tensor([1, 6]))
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="wanted a positive number"):
            Scaling(elements=[1], energy_scale=scale)


def test_published_md17_scaling(data_dir: Path) -> None:
    """Mean and unbiased deviation of the 950 training energies; forces by the energies' deviation."""
    loaded = load_data(DataConfig(name="md17", path=str(data_dir / "md17_ethanol.npz")), seed=0)
    raw = np.load(data_dir / "md17_ethanol.npz")
    energies = raw["E"][np.random.default_rng(1).permutation(1500)[:950], 0] * KCAL_PER_MOL
    scaling = _fit(list(loaded.train), references="mean")  # type: ignore[call-overload]
    assert float(scaling.energy_shift) == pytest.approx(energies.mean(), rel=1e-12)
    assert float(scaling.force_scale) == pytest.approx(energies.std(ddof=1), rel=1e-9)


def test_references_of_85_elements(data_dir: Path) -> None:
    loaded = load_data(DataConfig(path=str(data_dir / "mptrj_850.extxyz")), seed=0)
    systems = list(loaded.train)  # type: ignore[call-overload]
    fitted, bare = _fit(systems, references="fit"), _fit(systems, references="mean")
    assert len(fitted.elements) > 80
    assert float(fitted.energy_scale) < 0.25 * float(bare.energy_scale)
