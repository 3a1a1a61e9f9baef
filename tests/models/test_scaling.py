"""Scaling: what is fitted, what goes there and back, what survives dtypes and files."""

from __future__ import annotations

import copy
import json
import re
import warnings
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
from denskit.models.fitted_scaling import fit_scaling
from denskit.models.scaling import Scaling
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


def test_references_that_one_composition_does_not_determine() -> None:
    """All elements get the mean energy per atom, which keeps the digits of the energies; the warning names the key."""
    energies = [-17617.6359, -17617.6354, -17617.6361]
    systems = [_system("C2H6O", energy, seed=i) for i, energy in enumerate(energies)]
    scaling, messages = fit_scaling(systems, references="fit", scale="energy_std", gradient_forces=True)
    assert list(_table(scaling).values()) == pytest.approx([np.mean(energies) / 9] * 3, rel=1e-12)
    batch, targets = collate(systems, torch.float64)
    residuals = scaling.scale_targets(batch, targets).energy * scaling.energy_scale
    assert residuals.tolist() == pytest.approx(np.subtract(energies, np.mean(energies)).tolist(), abs=1e-10)
    assert float(residuals.mean()) == pytest.approx(0, abs=1e-10)
    (warning,) = [message for message in messages if message.startswith("warning")]
    assert "do not determine the references of H C O," in warning
    assert "'data.references={H: -1957.5, C: -1957.5, ...}'" in warning


def test_the_fit_says_how_well_it_predicts() -> None:
    systems = [_system(formula, seed=i) for i, formula in enumerate(["H2O", "CH4", "CO2", "C2H6O", "H2O2", "CO"])]
    systems = [replace(s, energy=s.energy + 0.1 * (-1) ** i * len(s)) for i, s in enumerate(systems)]  # type: ignore[operator]
    _, messages = fit_scaling(systems, references="fit", scale="energy_std", gradient_forces=True)
    assert "fitted per atom to 6 compositions; rms error" in messages[0]
    assert re.search(
        r"rms error [\d.]+ meV an atom, [\d.]+ on a structure left out, [\d.]+ on a composition", messages[0]
    )


def test_where_each_composition_has_an_element_of_its_own_nothing_tells_of_others() -> None:
    systems = [_system(formula, seed=i) for i, formula in enumerate(["H2O", "H2O", "CH4", "CH4"])]
    _, messages = fit_scaling(systems, references="fit", scale="energy_std", gradient_forces=True)
    assert "on a structure left out; on other compositions unknown, and probably larger" in messages[0]


def test_cells_of_different_sizes_get_the_same_energy_per_atom() -> None:
    """Energies per atom alternate about a trend: no constant per structure may come out of it."""
    systems = [
        _system("H2O" * size, size * (2 * TRUE["H"] + TRUE["O"] - 9 + 3 * (-1) ** index), seed=index)
        for index, size in enumerate((1, 1, 8, 8, 30, 30))
    ]
    isolated = {symbol: energy for symbol, energy in TRUE.items() if symbol != "C"}
    for references in ("fit", isolated):
        scaling = _fit(systems, references=references)
        assert float(scaling.energy_shift) == 0
        batch, targets = collate(systems, torch.float64)
        residuals = scaling.scale_targets(batch, targets).energy * scaling.energy_scale / batch.n_atoms
        assert residuals.tolist() == pytest.approx([1, -1] * 3, abs=1e-9)


def test_one_shift_for_energies_that_grow_with_the_size_is_warned_of() -> None:
    grown = [_system("H2O" * size, -2070.0 * size, seed=size) for size in (1, 4, 9)]
    adsorbed = [_system("H2O" * size, energy, seed=size) for size, energy in ((20, -1.0), (25, 2.0), (30, -3.0))]
    for systems, warned in ((grown, True), (adsorbed, False), (grown[:1], False)):
        _, messages = fit_scaling(systems, references="mean", scale="energy_std", gradient_forces=True)
        assert any("grow with the number of atoms" in message for message in messages) == warned


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


def test_given_references_take_up_the_mean_of_what_they_leave() -> None:
    systems = [_system("H2O", 2 * -13.0 - 2000.0 + rest) for rest in (1.0, 2.0, 3.0)]
    scaling, messages = fit_scaling(
        systems, references={"H": -13.0, "O": -2000.0, "Fe": -1.0}, scale="energy_std", gradient_forces=True
    )
    assert scaling.to_dict()["references"] == pytest.approx({"H": -13 + 2 / 3, "O": -2000 + 2 / 3, "Fe": -1 + 2 / 3})
    assert float(scaling.energy_shift) == 0
    assert float(scaling.energy_scale) == pytest.approx(1.0)
    assert "0.6667 eV, the mean residual per atom of the given ones, added to each" in messages[0]
    with pytest.raises(ValueError, match="references has no energy for O, which the training data contain"):
        _fit(systems, references={"H": -13.0})


def test_references_fitted_to_one_composition_warn_of_others() -> None:
    """They are right for twice the atoms, too; one element, or atoms alone beside, determine them."""
    ethanol = [_system("C2H6O", energy, seed=seed) for seed, energy in enumerate((-4209.0, -4210.0))]
    scaling = Scaling.from_dict(json.loads(json.dumps(_fit(ethanol).to_dict())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.check(collate([*ethanol, _system("C4H12O2")], torch.float64)[0])
        for other in (_fit([_system("H2", -1.0), _system("H2", -2.0)]), _fit([*ethanol, *map(_atom, "CHO")])):
            other.check(collate([_system("H4")], torch.float64)[0])
    with pytest.warns(UserWarning, match=r"energies of the elements, right for C2H6O, .* not for H2O\. Forces"):
        scaling.check(collate([_system("C4H12O2"), _system("H2O")], torch.float64)[0])


def _from_file(scaling: Scaling) -> Scaling:
    return Scaling.from_dict(json.loads(json.dumps(scaling.to_dict())))


def test_references_fitted_to_two_compositions_warn_outside_of_their_combinations() -> None:
    """Three elements: C2H6O and C9H8O4 tell of C7H2O3, their difference, and not of CO2."""
    two = [_system(formula, seed=seed) for seed, formula in enumerate(["C2H6O", "C9H8O4", "C18H16O8"])]
    scaling = _from_file(_fit(two))
    assert scaling.compositions == [{"H": 6, "C": 2, "O": 1}, {"H": 8, "C": 9, "O": 4}]
    inside = [*two, *(_system(formula) for formula in ("C4H12O2", "C11H14O5", "C7H2O3"))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.check(collate(inside, torch.float64)[0])
        batch, targets = collate(inside, torch.float64)
        assert scaling.scale_targets(batch, targets).energy.abs().max() < 1e-6
    words = r"right for combinations of C2H6O, C9H8O4, which .* not for CO2\. Forces.*data\.references=\{H: .* isolated"
    with pytest.warns(UserWarning, match=words):
        scaling.check(collate([*inside, _system("CO2"), _system("H2")], torch.float64)[0])
    for formula in ("CH4", "H2O", "H2", "C2H4O", "C2H6O" * 40 + "H"):
        with pytest.warns(UserWarning, match="energies will be wrong"):
            _from_file(scaling).check(collate([_system(formula)], torch.float64)[0])


@pytest.mark.parametrize("third", ["H2O", "CH4", "C2H6O" * 30 + "O"])
def test_compositions_that_determine_the_references_are_not_kept(third: str) -> None:
    """As many independent compositions as elements, given references, or an atom of each: right for all structures."""
    two = [_system("C2H6O"), _system("C9H8O4")]
    for determined in (
        _fit([*two, _system(third)]),
        _fit(two, TRUE),
        _fit([*two, *map(_atom, "CHO")]),
        _fit(two, "none"),
    ):
        assert determined.compositions == [] and "compositions" not in determined.to_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            determined.check(collate([_system("CO2"), _system("H2")], torch.float64)[0])


def test_cells_of_one_ratio_in_several_sizes_do_not_determine_the_elements() -> None:
    cells = [_system("SiO2" * size, -20.0 * size, seed=size) for size in (4, 2, 8)]
    assert _fit(cells).compositions == [{"O": 4, "Si": 2}]
    assert _fit([*cells, _system("SiO2", -21.0), _system("SiO", -14.0)]).compositions == []


def test_an_element_without_energies_is_not_determined() -> None:
    """Nor are elements whose isolated atoms are some of the training's: the fit leaves these out."""
    scaling = _fit([_system("H2"), _system("O2"), replace(_system("CO2"), energy=None)])
    assert scaling.compositions == [{"H": 2}, {"O": 2}]
    assert _fit([_system("C2H6O"), _system("C2H6O", seed=1), _atom("H")]).compositions == [{"H": 6, "C": 2, "O": 1}]


def test_scalings_of_earlier_files_have_one_composition() -> None:
    fitted = _fit([_system("C2H6O", energy, seed=seed) for seed, energy in enumerate((-4209.0, -4210.0))])
    values = fitted.to_dict()
    values["composition"] = values.pop("compositions")[0]
    assert Scaling.from_dict(values).to_dict() == fitted.to_dict()
    assert "composition" in values, "the caller's own"


def _atom(symbol: str, **changes: Any) -> System:
    return replace(_system(symbol), **changes)


def test_isolated_atoms_of_all_elements_are_what_the_fit_starts_from() -> None:
    """One composition determines nothing; with the atoms' energies only the binding is shared."""
    bound = 2 * TRUE["H"] + TRUE["O"] - 9.0
    systems = [*(_system("H2O", bound + x, seed=i) for i, x in enumerate((-1, 1))), _atom("H"), _atom("O")]
    scaling = _fit(systems)
    assert _table(scaling) == pytest.approx({"H": TRUE["H"] - 3, "O": TRUE["O"] - 3, "C": 0.0}, abs=1e-9)
    box = {"cell": np.eye(3) * 15.0, "pbc": np.ones(3, dtype=bool)}
    assert _table(_fit([*systems[:2], _atom("H", **box), _atom("O", **box)])) == _table(scaling)
    crystal = {"cell": np.ones((3, 3)) * 1.6 - np.eye(3) * 1.6, "pbc": np.ones(3, dtype=bool)}
    assert _table(_fit([*systems[:2], _atom("H", **crystal), _atom("O", **crystal)])) != _table(scaling)


def test_isolated_atoms_keep_their_energies() -> None:
    """Of the structures and of those given, the lowest; in the model file, and not where each structure has a shift."""
    bound = [_system("H2O", 2 * TRUE["H"] + TRUE["O"] + x, seed=i) for i, x in enumerate((-9.1, -8.9))]
    given = {"H": TRUE["H"], "O": TRUE["O"] + 1.0}
    for systems, isolated in ((bound, given), ([*bound, _atom("H"), _atom("O", energy=given["O"])], {})):
        scaling, messages = fit_scaling(
            systems, references="fit", scale="energy_std", gradient_forces=True, isolated=isolated
        )
        assert scaling.isolated_energies == pytest.approx(given, abs=1e-9) and scaling.compositions == []
        assert any("fitted to the energies less those of the isolated atoms" in line for line in messages)
        assert any("H O are bound only together, so each gets the common -3.33 eV" in line for line in messages)
        assert not any("data.references=" in line for line in messages), "they are known"
        assert any("energies of isolated atoms: H -13.2500, O -2040.7500 eV" in line for line in messages)
        again = Scaling.from_dict(scaling.to_dict())
        assert again.to_dict() == scaling.to_dict() and again.binding.dtype == torch.float64
        assert "binding" not in scaling.state_dict(), "files of earlier versions have no such tensor"
        in_units = scaling.half().isolated_in_model_units(torch.tensor([1, 8, 6]), torch.float64)
        wanted = [(given[name] - float(scaling.references[atomic_numbers[name]])) for name in ("H", "O")]
        assert (in_units * scaling.energy_scale).tolist()[:2] == pytest.approx(wanted, abs=1e-9)
        assert in_units[2].isnan()
    lower = fit_scaling([*bound, _atom("H", energy=-14.0)], references="fit", scale="energy_std", gradient_forces=True,
                        isolated=given)[0]  # fmt: skip
    assert lower.isolated_energies == pytest.approx({**given, "H": -14.0}, abs=1e-9)
    assert _fit([*bound, _atom("H")], references="mean").isolated_energies == {}
    assert _fit([*bound, _atom("H")]).isolated_energies == {}, "the references of one composition are no bound atoms'"
    assert _fit(bound).isolated_energies == {} and "binding" not in _fit(bound).to_dict()


def test_isolated_atoms_that_are_none_are_not_taken() -> None:
    """Zeros that stand for energies, and models that add a constant to each structure."""
    bound = [_system("H2O", 2 * TRUE["H"] + TRUE["O"] + x, seed=i) for i, x in enumerate((-9.1, -8.9))]
    zeros = {"H": 0.0, "O": 0.0}
    scaling, messages = fit_scaling(bound, references="fit", scale="energy_std", gradient_forces=True, isolated=zeros)
    assert scaling.isolated_energies == {}
    assert any("does not take the energies of isolated atoms: they lie H 692.4" in line for line in messages)
    assert scaling.compositions == [{"H": 2, "O": 1}] and not any("beside its isolated atom" in m for m in messages)
    given = {"energy_shift": -1.0, "energy_scale": 1.0, "force_scale": 1.0}
    atoms = {name: TRUE[name] for name in "HO"}
    scaling, messages = fit_scaling(bound, references="fit", scale=given, gradient_forces=True, isolated=atoms)
    assert scaling.isolated_energies == {}
    assert any("adds a constant of -1.0000 eV to every structure" in line for line in messages)


def test_isolated_atoms_of_some_elements_do_not_pull_at_the_fit() -> None:
    """Such an atom lies eV above its compounds; one of an element that is in no other structure counts."""
    compounds = [_system(formula, seed=i) for i, formula in enumerate(["H2O", "CH4", "CO2", "C2H6O", "H2", "CO"])]
    scaling = _fit(
        [*compounds, _atom("H", energy=TRUE["H"] + 5.0), replace(_system("H", -77.0), atomic_numbers=np.array([54]))]
    )
    assert _table(scaling) == pytest.approx(TRUE, abs=1e-9)
    assert float(scaling.references[54]) == pytest.approx(-77.0, abs=1e-9)
    atoms = _fit([_atom("H"), _atom("O")])
    assert _table(atoms) == pytest.approx({"H": TRUE["H"], "O": TRUE["O"], "C": 0.0}, abs=1e-9)


def test_isolated_atoms_are_not_in_the_unit_of_energies() -> None:
    """They lie eV from what fits the bound ones."""
    bound = [_system("H2O", 2 * TRUE["H"] + TRUE["O"] + x, seed=i) for i, x in enumerate((-0.1, 0.0, 0.1))]
    alone, beside = _fit(bound), _fit([*bound, _atom("H", energy=TRUE["H"] + 40.0)])
    assert float(beside.energy_scale) == pytest.approx(float(alone.energy_scale), rel=1e-9) == pytest.approx(0.1)


def test_separate_scales_for_direct_forces() -> None:
    systems = [_system("CH4", energy, seed=i) for i, energy in enumerate((-100.0, -104.0, -105.0))]
    fixed = systems[0].fixed.copy()
    fixed[0] = True
    systems[0] = replace(systems[0], fixed=fixed)
    scaling = _fit(systems, references="mean", gradient=False)
    free = np.concatenate([system.forces[~system.fixed] for system in systems])  # type: ignore[index]
    assert float(scaling.force_scale) == pytest.approx(np.sqrt((free**2).mean()))
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
    return Scaling(elements=[1, 6, 8], references=TRUE, energy_shift=-3.25, energy_scale=0.2, force_scale=0.5)


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
    torch.testing.assert_close(scaled.stress, targets.stress * 5)
    again = scaling.unscale(batch, {"energy": scaled.energy, "forces": scaled.forces, "stress": scaled.stress})
    assert again["energy"].dtype == torch.float64
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(again["energy"], targets.energy, atol=tolerance, rtol=0)
    torch.testing.assert_close(again["forces"], targets.forces)
    torch.testing.assert_close(again["stress"], targets.stress)
    assert "noise" not in scaling.unscale(batch, {"noise": scaled.forces})


def test_masked_energies_stay_zero() -> None:
    batch, targets = collate([replace(_system("H2O"), energy=None), _system("H2O")], torch.float64)
    scaling = _scaling()
    assert float(scaling.scale_targets(batch, targets).energy[0]) == 0


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
    scaling, messages = fit_scaling(loaded.train, references="fit", scale="force_rms", gradient_forces=True)  # type: ignore[arg-type]
    references = [scaling.references[z].item() for z in scaling.elements]
    assert len(references) > 80
    assert -20 < min(references) < max(references) < 2, "PBE energies of solids, eV an atom"
    assert float(scaling.energy_shift) == 0
    assert [message for message in messages if message.startswith("warning")] == []


def test_a_shift_fitted_to_one_composition_warns_of_others_once() -> None:
    """The composition survives the model's dict; adsorption energies, of many compositions, warn of nothing."""
    ethanol = [_system("C2H6O", energy, seed=seed) for seed, energy in enumerate((-4209.0, -4210.0))]
    fitted = _fit(ethanol, references="mean")
    scaling = Scaling.from_dict(json.loads(json.dumps(fitted.to_dict())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.check(collate([*ethanol, _system("OH6C2")], torch.float64)[0])  # isomers have one composition
    for damaged in ({"Q": 1}, {"C": "2"}, ["C"], {"C": 0}):
        with pytest.raises(ValueError, match="a table of elements and their numbers of atoms is wanted"):
            Scaling.from_dict({**fitted.to_dict(), "compositions": [damaged]})
    with pytest.raises(ValueError, match="a list is wanted"):
        Scaling.from_dict({**fitted.to_dict(), "compositions": {"C": 1}})
    smaller, _ = collate([ethanol[0], _system("CH4O")], torch.float64)
    with pytest.warns(UserWarning, match=r"constant of -4209.5000 eV .* right for C2H6O, .* not for CH4O\. Forces"):
        scaling.check(smaller)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.check(smaller)
        adsorbed = [_system("H2O" * size, energy, seed=size) for size, energy in ((20, -1.0), (25, 2.0), (30, -3.0))]
        for other in (
            _fit(adsorbed, references="mean"),
            _fit([*ethanol, _system("CH4O"), _system("CO2")]),
            _fit(ethanol, "none"),
        ):
            assert "compositions" not in other.to_dict()
            other.check(collate([_system("H2O"), _system("H4O2")], torch.float64)[0])


def test_charges_that_were_not_trained_on_are_told_once(systems: dict[str, System]) -> None:
    """A model of anions knows theirs; structures that say none are told nothing."""
    silent = replace(systems["water"], energy=-1.0)
    neutral = replace(silent, electrons=(("charge", 0.0),))
    anion = replace(silent, electrons=(("total_charge", -1.0 + 1e-7), ("spin", 1.0)))
    fitted = {}
    for name, frames in {"silent": [silent], "anions": [anion], "both": [anion, silent]}.items():
        fitted[name], _ = fit_scaling(frames, references="fit", scale="energy_std", gradient_forces=True)
    assert fitted["silent"].to_dict()["charges"] == [] and fitted["both"].to_dict()["charges"] == [-1.0, 0.0]
    again = Scaling.from_dict(fitted["anions"].to_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        earlier = Scaling(elements=[1, 8])  # of a version that did not look
        told_nothing = [(fitted["silent"], neutral), (again, anion), (again, silent), (fitted["both"], anion)]
        for scaling, structure in [*told_nothing, (earlier, anion)]:
            scaling.check_structure(structure)
    with pytest.warns(UserWarning, match=r"ions.xyz, frame 3, has a total charge of -1, and no .* no total charge, as"):
        fitted["silent"].check_structure(anion, "ions.xyz, frame 3,")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted["silent"].check_structure(anion, "ions.xyz, frame 4,")
    with pytest.warns(UserWarning, match=r"a total charge of 0, .*which have a total charge of -1\."):
        again.check_structure(neutral)


def test_sums_of_partial_charges_are_no_total_charges(systems: dict[str, System]) -> None:
    frames = [replace(systems["water"], energy=-1.0, electrons=(("charge", 0.1 * n),)) for n in range(30)]
    scaling, _ = fit_scaling(frames, references="fit", scale="energy_std", gradient_forces=True)
    assert scaling.charges is None and "charges" not in scaling.to_dict()


def test_given_references_far_from_the_energies_are_warned_of() -> None:
    """Of another unit or method: no bond explains them."""
    frames = [_system("H2O", seed=seed) for seed in range(3)]
    for factor, warned in ((1.0, False), (23.06, True)):
        given = {symbol: energy * factor + 1.0 for symbol, energy in TRUE.items()}
        _, messages = fit_scaling(frames, references=given, scale="energy_std", gradient_forces=True)
        (said,) = (line for line in messages if "the mean residual per atom of the given ones" in line)
        assert said.startswith("warning: ") == said.endswith("of another method or pseudopotential") == warned
