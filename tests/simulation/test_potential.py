"""The potential: the same numbers as predict with fresh neighbours, whatever the list's age."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import pytest
import torch
from ase.build import bulk, molecule

from contract.variants import build
from denskit import DenskitCalculator, evaluate, predict, relax
from denskit.batch import Batch, System
from denskit.data.base import collate, evenly
from denskit.data.datasets.embedded import FOLDER
from denskit.data.loading import read
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField, build_force_field
from denskit.models.committee import Committee
from denskit.models.fitted_scaling import fit_scaling
from denskit.models.model_file import load_model, save_model
from denskit.models.scaling import Scaling
from denskit.simulation.divided import DividedPotential
from denskit.simulation.neighbor_list import Candidates
from denskit.simulation.potential import Potential
from denskit.simulation.structures import atoms_of, batch_of

from tolerances import EXACT64, ORACLE64
from trained import TRAINED, nearly_free

NAMES = ("ethanol", "copper", "slab", "triclinic")


@pytest.fixture
def batch(systems: dict[str, System]) -> Batch:
    return collate([systems[name] for name in NAMES], torch.float64)[0]


def predicted(model: ForceField, batch: Batch, outputs: tuple[str, ...] | None = None) -> dict[str, torch.Tensor]:
    config = model.config
    fresh = build_neighbors(batch, model.cutoff, max_neighbors=config.max_neighbors, strict=config.strict_neighbors)
    return model.predict(fresh, outputs)


def moved(batch: Batch, by: float, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(batch.positions.shape, generator=generator, dtype=torch.float64)
    return replace(batch, positions=batch.positions + by * steps / steps.norm(dim=-1).max())


@pytest.mark.parametrize("name", ["nonlinear", "envelope", "direct"])
@pytest.mark.parametrize("max_neighbors", [None, 6])
@pytest.mark.parametrize("strict", [True, False])
def test_same_numbers_as_predict_while_atoms_move(
    batch: Batch, name: str, max_neighbors: int | None, strict: bool
) -> None:
    model = build(name, torch.float64, max_neighbors=max_neighbors, strict_neighbors=strict)
    potential = Potential(model, skin=1.0)
    for step in range(5):
        batch = moved(batch, 0.12, step)
        found, wanted = potential(batch), predicted(model, batch, ("energy", "energies", "forces"))
        torch.testing.assert_close(found.energy, wanted["energy"], rtol=EXACT64, atol=0)
        torch.testing.assert_close(found.energies, wanted["energies"], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.forces, wanted["forces"], rtol=1e-10, atol=1e-11)
    # 0.12 Å a step at most: the first list holds for at least 5 steps of up to 0.1 Å together, never for all
    assert 1 <= potential.rebuilds < 5


@pytest.mark.parametrize("name", ["v3", "esen", "v3_gradient", "envelope"])
def test_the_stress_is_that_of_predict(systems: dict[str, System], name: str) -> None:
    """Of a head of its own (v3, esen), or a derivative of the energy."""
    model = build(name, torch.float64)
    crystal = collate([systems["copper"]], torch.float64)[0]
    found = Potential(model, stress=True)(crystal)
    assert found.stress is not None
    torch.testing.assert_close(found.stress, predicted(model, crystal, ("stress",))["stress"], rtol=1e-9, atol=1e-12)
    assert found.stress.abs().max() > 1e-9


def test_edges_come_and_go_without_a_new_list(systems: dict[str, System]) -> None:
    """Across the cutoff and back: the list has the pair, and leaves it out while it is too far."""
    model = build("nonlinear", torch.float64)
    potential = Potential(model, skin=0.5)
    for distance in (model.cutoff - 0.05, model.cutoff + 0.05, model.cutoff - 0.02):
        batch = batch_of([ase.Atoms("OH2", positions=[[0, 0, 0], [0, 0.9, 0.1], [0, 0, distance]])])
        torch.testing.assert_close(potential(batch).energy, predicted(model, batch)["energy"], rtol=EXACT64, atol=0)
    assert potential.rebuilds == 1


@pytest.mark.parametrize("k", [10, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_choose_among_equal_distances(k: int, dtype: torch.dtype) -> None:
    """In perfect crystals, turned and moved: shells of 12, 6 and 24 atoms, or 8, 6 and 12, are cut."""
    for atoms in (bulk("Cu", "fcc", 3.61, cubic=True), bulk("W", "bcc", 3.165, cubic=True), bulk("Ti")):
        atoms.rotate(17, (1, 2, 3), rotate_cell=True)
        atoms.positions += 0.137
        found = batch_of([atoms])
        wanted = build_neighbors(found.to(dtype=dtype), 8.0, max_neighbors=k).built_edges
        candidates = Candidates.find(found, 8.0, 0.5)
        keep = candidates.within(candidates.squared_distances(found.positions), 8.0, k, strict=True)
        edges = candidates.batch.built_edges
        assert torch.equal(edges.index[:, keep], wanted.index)
        assert torch.equal(edges.shift[keep], wanted.shift)


def test_a_new_list_when_it_must(batch: Batch) -> None:
    model = build("envelope", torch.float64)
    potential = Potential(model, skin=0.4)
    positions = batch.positions.clone()
    positions[3, 0] += 0.21  # one atom by more than half of the skin
    wider = batch.cell.clone()
    wider[1] *= 1.01
    closed = replace(batch, pbc=torch.zeros_like(batch.pbc))
    for changed in (replace(batch, positions=positions), replace(batch, cell=wider), closed):
        potential(batch)
        before = potential.rebuilds
        found = potential(changed)
        assert potential.rebuilds == before + 1
        torch.testing.assert_close(found.forces, predicted(model, changed)["forces"], rtol=1e-9, atol=1e-10)


def test_a_cell_changed_in_place_is_noticed(systems: dict[str, System]) -> None:
    model = build("envelope", torch.float64)
    batch = collate([systems["copper"]], torch.float64)[0]
    potential = Potential(model)
    potential(batch)
    batch.cell.mul_(1.02)
    torch.testing.assert_close(potential(batch).energy, predicted(model, batch)["energy"], rtol=EXACT64, atol=0)


def test_periodicity_and_elements_changed_in_place_are_noticed(systems: dict[str, System]) -> None:
    """In a share of another process, too."""
    model = build("envelope", torch.float64)
    for potential in (Potential(model), DividedPotential(model, processes=2)):
        batch = collate([systems["copper"], systems["copper"]], torch.float64)[0]
        before = potential(batch).energy
        batch.pbc[:] = False
        found = potential(batch).energy
        torch.testing.assert_close(found, predicted(model, batch)["energy"], rtol=EXACT64, atol=0)
        assert float((found - before).abs().min()) > 1e-3
        batch.atomic_numbers[0] = 26
        with pytest.raises(ValueError, match="has Fe, which this model was not trained on"):
            potential(batch)


def test_atoms_divided_otherwise_are_checked_again() -> None:
    """A pair of molecules in one system is another composition than each alone."""
    model = build("envelope", torch.float64)
    model.scaling.references.zero_()
    checked: list[int] = []
    potential = Potential(model)
    for own in potential.models:
        own.scaling.check = lambda batch: checked.append(batch.num_systems)  # type: ignore[method-assign]
    water = molecule("H2O")
    far = water.copy()
    far.positions += 3.0
    for structures in ([water, far], [water, far], [water + far]):
        potential(batch_of(structures))
    assert checked == [2, 1]


def test_stress_is_that_of_predict_and_refused_without_a_volume(systems: dict[str, System]) -> None:
    model = build("envelope", torch.float64)
    batch = collate([systems["copper"], systems["triclinic"]], torch.float64)[0]
    found = Potential(model, stress=True)(batch)
    wanted = predicted(model, batch)["stress"]
    assert found.stress is not None
    torch.testing.assert_close(found.stress, wanted, rtol=1e-9, atol=1e-12)
    potential = Potential(model)  # made without, asked for it
    torch.testing.assert_close(potential(batch, stress=True).stress, wanted, rtol=1e-9, atol=1e-12)
    assert potential(batch).stress is None and potential.rebuilds == 1
    with pytest.raises(ValueError, match="forces=direct"):
        Potential(build("direct", torch.float64))(batch, stress=True)
    with pytest.raises(ValueError, match="periodic along"):
        Potential(model, stress=True)(collate([systems["slab"]], torch.float64)[0])
    with pytest.raises(ValueError, match="forces=direct"):
        Potential(build("direct", torch.float64), stress=True)


@pytest.mark.parametrize("made", [Potential, Committee])
@pytest.mark.parametrize(
    ("other", "differ"),
    [({"references": {"H": -16.0}}, "2.4"), ({"energy_shift": -400.0}, "400"), ({"energy_shift": -1.0}, "")],
)
def test_members_of_other_methods_are_warned_of(
    made: Callable[[list[ForceField]], object], other: dict[str, Any], differ: str
) -> None:
    """References of the elements, or mean energies, tell; means of other structures of one method are near."""
    own = {"references": {"H": -13.6}} if "references" in other else {}
    models = [nearly_free(), nearly_free()]
    for model, values in zip(models, (own, other), strict=True):
        model.scaling = Scaling(elements=[1, 6, 8], **values)
    if differ:
        with pytest.warns(UserWarning, match=f"differ by up to {differ} eV: perhaps .* different methods") as warned:
            made(models)
        assert warned[0].filename == __file__, "the user's line"
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(models)


ETHANOL = [{"C": 2, "H": 6, "O": 1}]
FITTED = {"H": -13.6, "C": -38.0, "O": -76.0}  # to many compositions; of C2H6O -233.6 eV


@pytest.mark.parametrize("made", [Potential, Committee])
@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("zoo:ethanol-rmd17", "zoo:ethanol-xtb", r"count energies of C2H6O from -4209\.63 and -309\.59 eV: perhaps"),
        ({"references": dict.fromkeys("HCO", -26.0), "compositions": ETHANOL}, {"references": FITTED}, ""),
        ({"references": FITTED}, {"energy_shift": -233.0, "compositions": ETHANOL}, ""),
        ({"references": FITTED}, {"energy_shift": -310.0, "compositions": ETHANOL}, r"-233\.60 and -310\.00 eV"),
        (
            {"references": dict.fromkeys("HCO", -26.0), "compositions": ETHANOL},
            {"references": FITTED, "compositions": [{"C": 1, "H": 4}, {"C": 1, "H": 2, "O": 1}]},
            "",  # ethanol is CH4 + CH2O: of other elements' energies, one zero
        ),
        ({"references": FITTED}, {"energy_shift": -310.0}, ""),  # a mean over compositions is right for none of them
    ],
)
def test_zeros_of_one_composition_are_compared(
    made: Callable[[list[ForceField]], object], first: str | dict[str, Any], second: str | dict[str, Any], words: str
) -> None:
    """Whatever their references: fitted to one composition or many, or none and a mean energy."""
    models = []
    for given in (first, second):
        models.append(load_model(given) if isinstance(given, str) else nearly_free())
        if not isinstance(given, str):
            models[-1].scaling = Scaling(elements=[1, 6, 8], **given)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made(models)
    said = [str(one.message) for one in warned if "members of the committee" in str(one.message)]
    assert len(said) == bool(words) and all(re.search(words, line) for line in said)


def test_other_references_of_one_file_are_one_method() -> None:
    """Fitted, given, or none and the mean energy: the zero is the same."""
    structures, models = list(evenly(read(FOLDER / "ethanol.npz"), 50)), []
    for references in ("fit", "mean", {"H": -13.6, "C": -1030.0, "O": -2040.0}):
        models.append(nearly_free())
        models[-1].scaling, _ = fit_scaling(structures, references=references, scale="energy_std", gradient_forces=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Committee(models)


@pytest.mark.parametrize("made", [Potential, Committee])
def test_the_same_model_twice_is_no_committee(made: Callable[[list[ForceField]], object]) -> None:
    """By its weights: also a copy at another place, or in another precision."""
    with pytest.raises(ValueError, match=r"member 0 and member 2 are the same model.*other seeds"):
        made([nearly_free(), build("envelope", torch.float64), nearly_free()])
    with pytest.raises(ValueError, match="same model"), pytest.warns(UserWarning, match="several precisions"):
        made([nearly_free(torch.float32), nearly_free(torch.float32).double()])
    with pytest.raises(ValueError, match=rf"{TRAINED} and {TRAINED} are the same model"):
        Potential([TRAINED, TRAINED])


@pytest.mark.parametrize("made", [Potential, Committee])
def test_models_of_several_precisions_are_computed_in_the_highest(
    batch: Batch, made: Callable[[list[ForceField]], Potential | Committee]
) -> None:
    low, high = build("nonlinear", torch.float32), build("envelope", torch.float64)
    with pytest.warns(UserWarning, match="several precisions: member 0 computed in float64 as the others"):
        committee = made([low, high])
    assert next(low.parameters()).dtype == torch.float32, "the user's model is left as it is"
    found = committee(batch).forces if isinstance(committee, Potential) else committee.predict(batch)["forces"]
    assert found.dtype == torch.float64
    expected = torch.stack([predicted(model.double(), batch)["forces"] for model in (low, high)]).mean(0)
    torch.testing.assert_close(found, expected)


def test_members_of_a_committee_have_their_own_neighbours(batch: Batch) -> None:
    """The mean is that of each model alone, with the edges of the first member and without any."""
    models = [build("envelope", torch.float64), build("nonlinear", torch.float64, cutoff=4.5, max_neighbors=6)]
    expected = torch.stack([predicted(model, batch)["forces"] for model in models])
    for given in (batch, models[0].config.with_neighbors(batch)):
        found = Committee(models).predict(given)
        torch.testing.assert_close(found["forces"], expected.mean(0))
        torch.testing.assert_close(found["forces_std"], expected.std(0))
    torch.testing.assert_close(Potential(models)(batch).forces, expected.mean(0))


def test_a_member_without_stress_is_named() -> None:
    models = [build("envelope", torch.float64, stress=stress) for stress in ("strain", "none")]
    with pytest.warns(UserWarning, match="^member 1: trained without stress, so the mean of these models has none"):
        committee = Committee(models)
    assert "stress" not in committee.physical_outputs()


def test_a_committee_gives_mean_and_deviation(batch: Batch) -> None:
    models = [build("envelope", torch.float64), build("nonlinear", torch.float64), build("direct", torch.float64)]
    committee = Potential(models)
    found = committee(batch)
    single = [predicted(model, batch, ("energy", "forces")) for model in models]
    energy = torch.stack([one["energy"] for one in single])
    forces = torch.stack([one["forces"] for one in single])
    assert found.energy_std is not None and found.forces_std is not None
    torch.testing.assert_close(found.energy, energy.mean(0))
    torch.testing.assert_close(found.energy_std, energy.std(0))
    torch.testing.assert_close(found.forces, forces.mean(0))
    torch.testing.assert_close(found.forces_std, forces.std(0))
    assert committee.direct_forces and not committee.smooth


def test_float32_models_lose_nothing_far_from_the_origin(systems: dict[str, System]) -> None:
    """A molecule that has drifted 5 km/s for a nanosecond: rounding its positions as they are would cost 1e-3 Å."""
    model = build("envelope", torch.float32)
    batch = collate([systems["ethanol"]], torch.float64)[0]
    away = replace(batch, positions=batch.positions + 5e4)
    potential = Potential(model)
    near = potential(batch).forces
    assert (potential(away).forces - near).abs().max() < 1e-4 * near.square().mean().sqrt()


def test_broken_systems_are_named(systems: dict[str, System]) -> None:
    model = build("envelope", torch.float64)
    potential = Potential(model)
    batch = collate([systems["water"]] * 5, torch.float64)[0]
    positions = batch.positions.clone()
    positions[3] = torch.nan  # system 1
    positions[8] += 1e5  # system 2
    positions[12] = positions[13]  # system 4
    broken = replace(batch, positions=positions)
    for first in (None, batch):  # with and without an older list
        if first is not None:
            potential(first)
        assert potential.broken(broken).tolist() == [False, True, True, False, True]
        with pytest.raises(ValueError, match="System"):
            potential(broken)
    assert not potential.broken(batch).any()
    torch.testing.assert_close(potential(batch).energy, predicted(model, batch)["energy"], rtol=EXACT64, atol=0)


def test_any_cell_of_a_lattice_will_do(systems: dict[str, System]) -> None:
    """Long lattice vectors at sharp angles: the same crystal, found in the time of a compact cell."""
    batch = batch_of([atoms_of(collate([systems["copper"]], torch.float64)[0])[0]])
    skewed = replace(batch, cell=torch.tensor([[1.0, 0, 0], [700, 1, 0], [-300, 900, 1]]).double() @ batch.cell)
    potential = Potential(build("envelope", torch.float64))
    assert not bool(potential.broken(skewed))
    found, wanted = potential(skewed), potential(batch)
    torch.testing.assert_close(found.energies, wanted.energies, rtol=ORACLE64, atol=0)
    scale = float(wanted.forces.square().mean().sqrt())
    torch.testing.assert_close(found.forces, wanted.forces, rtol=0, atol=1e-8 * scale)


def test_two_atoms_that_meet_within_the_skin_are_noticed() -> None:
    potential = Potential(build("envelope", torch.float64), skin=1.0)
    atoms = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 0.3]])
    potential(batch_of([atoms]))
    atoms.positions[1, 2] = 1e-6
    with pytest.raises(ValueError, match="one place"):
        potential(batch_of([atoms]))
    assert potential.broken(batch_of([atoms])).tolist() == [True]


def test_training_may_go_on_with_the_model(batch: Batch) -> None:
    model = build("envelope", torch.float64).train()
    potential = Potential(model)
    before = potential(batch).energy
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(potential(batch).energy, before, rtol=0, atol=0)


def test_unknown_elements_and_wrong_arguments() -> None:
    model = build("envelope", torch.float64)
    with pytest.raises(ValueError, match="has Fe, which this model was not trained on"):
        Potential(model)(batch_of([ase.Atoms("FeH", positions=[[0, 0, 0], [0, 0, 1.5]])]))
    with pytest.raises(ValueError, match="at least one model"):
        Potential([])
    with pytest.raises(ValueError, match="skin"):
        Potential(model, skin=-0.1)


def test_structures_survive_the_way_there_and_back(systems: dict[str, System]) -> None:
    batch = collate([systems[name] for name in NAMES], torch.float64)[0]
    back = batch_of(atoms_of(batch))
    for name in ("positions", "cell", "pbc", "atomic_numbers", "fixed", "tags", "system_index", "n_atoms"):
        assert torch.equal(getattr(back, name), getattr(batch, name)), name
    atoms = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]], constraint=ase.constraints.FixBondLength(0, 1))
    with pytest.raises(ValueError, match="FixBondLength"):
        batch_of([atoms])
    with pytest.raises(ValueError, match="no atoms"):
        batch_of([ase.Atoms()])


@pytest.mark.parametrize(
    ("stress", "weight", "learned"), [("none", 0.0, False), ("strain", 0.0, False), ("strain", 10.0, True)]
)
def test_whether_stress_was_learned(tmp_path: Path, stress: str, weight: float, learned: bool) -> None:
    """By the model file: a stress that counted in no loss is not learned, nor is a committee's with such a model."""
    plain, file = build("envelope", torch.float64), tmp_path / "model.safetensors"
    config = plain.config.model_copy(update={"stress": stress})
    model = build_force_field(config, heads={}, scaling=plain.scaling)
    save_model(file, model, {"run": {"task": {"stress_weight": weight}}})
    other = build_force_field(config, heads={}, scaling=plain.scaling)  # of other random weights
    save_model(tmp_path / "other.safetensors", other, {})
    assert Potential(file).learned_stress == learned
    assert Potential([tmp_path / "other.safetensors", file]).learned_stress == learned
    assert Potential(tmp_path / "other.safetensors").learned_stress == (stress != "none"), "it does not tell"


@pytest.mark.parametrize("wrong", [None, 3, [None]])
def test_something_else_than_models_or_structures_is_named(wrong: Any) -> None:
    water = molecule("H2O")
    for call in (
        lambda: DenskitCalculator(wrong), lambda: Potential(wrong), lambda: predict(wrong, water),
        lambda: relax(wrong, water), lambda: evaluate(wrong, [water]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"found (NoneType|int); wanted a model: a force field, the path"):
            call()
    for function in (predict, relax):
        with pytest.raises(ValueError, match=r"the given atoms.*: found (NoneType|int); wanted .*ase.Atoms"):
            function(TRAINED, wrong)
        with pytest.raises(ValueError, match="no atoms were given"):
            function(TRAINED, [])


def test_the_inference_mode_of_torch_is_allowed(batch: Batch) -> None:
    """Of a model, a batch and a calculator that are made in it, and of later calls outside."""
    model = build("envelope", torch.float64)
    wanted, tensors = Potential(model)(batch).forces, batch.tensors()
    with torch.inference_mode():
        potential, copy = Potential(build("envelope", torch.float64)), batch.with_tensors(map(torch.clone, tensors))
        assert not potential.broken(copy).any()
        found = potential(copy).forces
        atoms = molecule("H2O")
        atoms.calc = DenskitCalculator(model)
        atoms.get_forces()
    torch.testing.assert_close(found, wanted, rtol=0, atol=EXACT64)
    torch.testing.assert_close(potential(copy).forces, wanted, rtol=0, atol=EXACT64)
