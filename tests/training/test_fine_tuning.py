"""Runs that start from a trained model: what is kept, what is fitted to the new data, what is said and refused."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.formula import Formula

from denskit.analysis.report.summary import training_in_words
from denskit.analysis.run_results import RunResults
from denskit.batch import System
from denskit.data import DataConfig, LoadedData, load_data
from denskit.data.config import References, SplitConfig
from denskit.evaluation.evaluate import evaluate
from denskit.models.base import ForceField
from denskit.models.composition_span import counts_of
from denskit.models.fitted_scaling import Statistics
from denskit.models.model_file import load_model, read_header, save_model
from denskit.models.prediction import batches
from denskit.models.scaling import Scaling
from denskit.runtime.processes import join_processes
from denskit.training.energy_constants import EnergyConstants, right_compositions
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train
from denskit.training.trained_weights import element_tables, similar_element
from denskit.training.trainer import Trainer
from training.slabs import Slabs

Tiny = Callable[..., RunConfig]
EV = 1e-4  # a tiny model in float32


@pytest.fixture
def trained(tiny: Tiny) -> Path:
    """A run on ethanol: H, C, O; its references are fitted."""
    return train(tiny("training.max_steps=2", "data.references=fit", "training.scale=force_rms", name="trained"))


def _frames(molecule: str, count: int = 8) -> Slabs:
    data = load_data(DataConfig(name="embedded", molecule=molecule, split=SplitConfig(mode="random", train=count)), 0)
    return Slabs([data.train[index] for index in range(count)])


def _predict(force_field: ForceField, source: Slabs) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies [B] and forces [N, 3]."""
    with torch.no_grad():
        (_, batch, _), *_ = batches(force_field, source, len(source))
        predicted = force_field.predict(batch)
    return predicted["energy"], predicted["forces"]


def _start(config: RunConfig, data: LoadedData | None = None) -> Trainer:
    return Trainer(config, data or load_data(config.data, config.seed), join_processes("cpu"))


def _said(trainer: Trainer) -> str:
    return "\n".join(trainer.messages)


def test_before_the_first_step_old_structures_are_predicted_as_before(tiny: Tiny, trained: Path) -> None:
    trainer = _start(tiny("data.molecule=acetamide", f"training.init_from={trained}"))
    before, ethanol = load_model(trained / "model.safetensors"), _frames("ethanol")
    for now, then in zip(_predict(trainer.force_field, ethanol), _predict(before, ethanol), strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=EV)
    was, now = before.scaling.to_dict(), trainer.force_field.scaling.to_dict()
    assert now["elements"] == [1, 6, 7, 8]
    assert {symbol: now["references"][symbol] for symbol in "HCO"} == was["references"]
    assert all(was[name] == now[name] for name in ("energy_shift", "energy_scale", "force_scale", "stress_scale"))


def test_new_elements_get_what_is_left_and_are_named(tiny: Tiny, trained: Path) -> None:
    trainer = _start(tiny("data.molecule=acetamide", f"training.init_from={trained}"))
    energies, _ = _predict(trainer.force_field, _frames("acetamide"))
    labels = torch.tensor([system.energy for system in _frames("acetamide")], dtype=torch.float64)
    assert abs(float((labels - energies).mean())) < 1.0, "of 300 eV, and 70 eV of nitrogen"
    said = _said(trainer)
    assert "elements new to the model, whose embeddings start untrained: N random" in said
    scaling = trainer.force_field.scaling
    assert f"references of new elements, fitted to the residuals: N {float(scaling.references[7]):.4f} eV" in said
    assert f"shift and scale as in {trained}: energies of earlier structures stay as it predicts them" in said
    assert f"scale of energies {float(scaling.energy_scale):.6g} eV" in said


def test_the_fine_tuned_model_still_knows_its_old_elements(tiny: Tiny, trained: Path) -> None:
    """The new data lack carbon."""
    no_carbon = Slabs([_without(system, 6) for system in _frames("ethanol").systems])
    data = LoadedData(train=no_carbon, valid=None, test=None, splits=None, messages=[], references="trained")
    trainer = _start(tiny(f"training.init_from={trained}"), data)
    assert trainer.force_field.scaling.elements == [1, 6, 8]
    assert float(trainer.force_field.scaling.references[6]) != 0


def _without(system: System, z: int) -> System:
    kept = system.atomic_numbers != z
    assert system.forces is not None
    fields = ("positions", "atomic_numbers", "fixed", "tags", "forces")
    return replace(system, **{name: getattr(system, name)[kept] for name in fields})


def test_a_run_from_another_goes_on_and_judges_old_data(tiny: Tiny, trained: Path) -> None:
    settings = ["data.molecule=acetamide", f"training.init_from={trained}"]
    run = train(tiny(*settings, "training.max_steps=1"))
    header = read_header(run / "model.safetensors")["scaling"]
    run = train(tiny(*settings, "training.max_steps=2"), resume=True)
    assert read_header(run / "model.safetensors")["scaling"] == header
    assert evaluate(run, _frames("ethanol"))["energy_mae_meV"] < 5000, "of 310 eV, after two steps"


@pytest.mark.parametrize(("lr", "final"), [(0.5, "best"), (0.5, "last"), (1e-4, "best")])
def test_the_start_is_judged_and_may_stay_the_best(tiny: Tiny, tmp_path: Path, lr: float, final: str) -> None:
    """Forty steps train a model, two with a rate that wrecks it follow, or two with a small one."""
    begun = train(tiny("training.max_steps=40", "training.lr=5e-3", name="begun"))
    split = f"data.split.file={begun / 'splits.json'}"
    settings = ["training.max_steps=2", "training.warmup=0", f"training.lr={lr}", f"training.final={final}"]
    run = train(tiny(*settings, f"training.init_from={begun}", split, name="tuned"))
    said = (run / "train.log").read_text(encoding="utf-8")
    assert "before the first step: valid MAE energy" in said and "forces" in said
    steps = {
        name: read_header(run / name)["metadata"]["step"]
        for name in ("model.safetensors", "checkpoints/best.safetensors")
    }
    assert steps["checkpoints/best.safetensors"] == (0 if lr > 0.1 else 2)
    assert steps["model.safetensors"] == (0 if lr > 0.1 and final == "best" else 2)
    rows = (run / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert rows[1].startswith("0,0,") and [row.split(",")[0] for row in rows[1:]].count("0") == 1
    told = training_in_words(RunResults(run))
    assert ("forces were best before the first step: " in told) == (lr > 0.1)
    warned = "warning: no validation was better than that of training.init_from before the first step" in said
    assert warned == (lr > 0.1)
    assert ("forgets what the model knows; a third to a tenth is usual, such as training.lr=0.001" in said) == (
        lr > 0.1
    )
    if lr > 0.1:
        start, kept = (
            load_model(place).state_dict()
            for place in (begun / "model.safetensors", run / "checkpoints" / "best.safetensors")
        )
        assert all(torch.equal(value, kept[name]) for name, value in start.items())


def _shifted(offset: float) -> LoadedData:
    """Ethanol, each energy moved by ``offset`` eV an atom."""
    moved = Slabs([replace(s, energy=s.energy + offset * len(s)) for s in _frames("ethanol", 20).systems])  # type: ignore[operator]
    return LoadedData(train=moved, valid=None, test=None, splits=None, messages=[], references="trained")


@pytest.mark.parametrize(("offset", "warned"), [(0.0, False), (-1.0, True)])
def test_another_level_of_theory_is_noticed(tiny: Tiny, trained: Path, offset: float, warned: bool) -> None:
    said = _said(_start(tiny(f"training.init_from={trained}"), _shifted(offset)))
    assert ("warning: the data's energies lie 1." in said or "lie 0.9" in said) == warned
    assert ("data.references=fit corrects the references" in said) == warned
    assert "before training: labels minus predictions" in said


def test_total_energies_of_another_kind_are_corrected(tiny: Tiny, trained: Path) -> None:
    said = _said(_start(tiny(f"training.init_from={trained}"), _shifted(-30.0)))
    assert "labels lie more than 2 eV an atom from the model's energies" in said
    assert "corrections of the references, fitted to the residuals" in said
    assert "warning: the data's energies lie" not in said


def test_one_wrong_label_is_no_other_kind_of_energy(tiny: Tiny, trained: Path) -> None:
    data = load_data(tiny().data, 0)
    systems = [data.train[index] for index in range(len(data.train))]
    systems[3] = replace(systems[3], energy=(systems[3].energy or 0.0) + 900.0)
    said = _said(
        _start(tiny(f"training.init_from={trained}"), replace(data, train=Slabs(systems), references="trained"))
    )
    assert "total energies of another kind" not in said
    assert "warning: the data's energies lie" in said


def test_a_constant_of_each_structure_becomes_one_of_each_atom(tiny: Tiny) -> None:
    """Where references are fitted, else structures of other sizes would have wrong energies."""
    measured = tiny("training.max_steps=1", "data.references=mean", "model.average_atoms=null", name="measured")
    first = train(measured)
    shift, known = float(load_model(first / "model.safetensors").scaling.energy_shift), [1, 6, 8]
    start = _start(tiny("data.references=fit", f"training.init_from={first}", name="tuned"))
    assert abs(shift) > 100
    assert float(start.force_field.scaling.energy_shift) == 0.0
    before = load_model(first / "model.safetensors").scaling.references[known]
    moved = start.force_field.scaling.references[known] - before
    assert moved.tolist() == pytest.approx([shift / 9] * 3, abs=0.5)
    assert f"becomes {shift / 9:.4f} eV an atom (it was trained on 9 a structure)" in _said(start)


def test_a_constant_means_nothing_to_structures_of_other_elements(tiny: Tiny) -> None:
    first = train(tiny("training.max_steps=1", "data.references=mean", name="first"))
    shift = float(load_model(first / "model.safetensors").scaling.energy_shift)
    data = load_data(tiny().data, 0)

    def other(source: Slabs) -> Slabs:
        return Slabs([replace(source[i], atomic_numbers=np.full(9, 29)) for i in range(6)])

    start = _start(
        tiny(f"training.init_from={first}"), replace(data, train=other(data.train), valid=None, references="trained")
    )
    assert float(start.force_field.scaling.energy_shift) == 0.0
    assert f"constant of {shift:.4f} eV a structure is left out" in _said(start)


@pytest.mark.parametrize(
    ("molecule", "references", "kept"),
    [("ethanol", "trained", True), ("acetamide", "trained", False), ("acetamide", "mean", True)],
)
def test_the_composition_is_that_of_all_structures_of_the_constant(
    tiny: Tiny, molecule: str, references: str, kept: bool
) -> None:
    first = train(tiny("training.max_steps=1", "data.references=mean", name="first"))
    config = tiny("training.scale=trained", f"training.init_from={first}", f"data.references={references}")
    frames = _frames(molecule).systems  # of acetamide with O for N, which the model does not know
    known = [replace(x, atomic_numbers=np.where(x.atomic_numbers == 7, 8, x.atomic_numbers)) for x in frames]
    data = replace(load_data(tiny().data, 0), train=Slabs(known), references=references)
    scaling = _start(config, data).force_field.scaling
    own = {"ethanol": {"H": 6, "C": 2, "O": 1}, "acetamide": {"H": 5, "C": 2, "O": 2}}
    assert load_model(first).scaling.compositions == [own["ethanol"]]
    assert scaling.compositions == ([own[molecule]] if kept else [])


@pytest.mark.parametrize(
    ("references", "away", "wanted"),
    [("trained", 0.0, ["ethanol", "acetamide"]), ("fit", 0.0, ["ethanol", "acetamide"]), ("fit", 5.0, ["acetamide"]),
     ({"H": -13.6, "C": -1030.0, "O": -2040.0}, 0.0, [])],
)  # fmt: skip
def test_references_stay_right_for_combinations_of_earlier_and_new_structures(
    tiny: Tiny, trained: Path, references: References, away: float, wanted: list[str]
) -> None:
    """They were fitted to ethanol: unmoved they stay right for it, corrected for the new structures alone."""
    own = {"ethanol": {"H": 6, "C": 2, "O": 1}, "acetamide": {"H": 5, "C": 2, "O": 2}}
    before = load_model(trained / "model.safetensors")
    assert before.scaling.compositions == [own["ethanol"]]
    frames = _frames("acetamide").systems  # with O for N, which the model does not know
    known = [replace(x, atomic_numbers=np.where(x.atomic_numbers == 7, 8, x.atomic_numbers)) for x in frames]
    predicted = _predict(before, Slabs(known))[0]
    known = [replace(x, energy=float(energy) + away) for x, energy in zip(known, predicted, strict=True)]
    config = tiny(f"training.init_from={trained}")
    scaling = _start(config, replace(load_data(config.data, 0), train=Slabs(known), references=references))
    found = scaling.force_field.scaling.compositions
    assert sorted(map(str, found)) == sorted(str(own[name]) for name in wanted)


@pytest.mark.parametrize(("references", "named"), [("trained", 0), ("fit", 1)])
def test_references_fitted_again_to_one_composition_are_right_for_it_alone(references: str, named: int) -> None:
    """Though those of the trained model were right for all."""
    elements = [1, 6, 8]
    trained = Scaling(elements=elements, references={"H": -13.0, "C": -1000.0, "O": -2000.0})
    found = Statistics(Slabs(_frames("ethanol").systems))
    assert len(right_compositions(trained, trained, found, references, counts_of([]))) == named  # type: ignore[arg-type]


def test_asked_for_references_are_corrected_by_what_predictions_leave(tiny: Tiny, trained: Path) -> None:
    data = replace(_shifted(-3.0), references="fit")
    trainer = _start(tiny(f"training.init_from={trained}", "data.references=fit"), data)
    before = load_model(trained / "model.safetensors")
    (now, forces), (then, old_forces) = (_predict(f, _frames("ethanol")) for f in (trainer.force_field, before))
    torch.testing.assert_close(forces, old_forces, rtol=0, atol=EV)
    moved = float((now - then).mean())
    assert moved == pytest.approx(-27, abs=3)
    said = _said(trainer)
    assert (
        f"energies of earlier structures move by H {moved / 9:.4f}, C {moved / 9:.4f}, O {moved / 9:.4f} eV an atom"
        in said
    )
    assert "training structures 0.0 meV an atom on average" in said
    assert "warning: the data's energies" not in said


@pytest.mark.parametrize(
    ("references", "said"),
    [
        ("mean", "energies of earlier structures move by -"),
        ("none", " eV an atom"),
        ("{H: -16.0, C: -50.0, N: -70.0, O: -110.0}", "the mean residual per atom of the given ones, added"),
    ],
)
def test_other_references_are_obeyed_and_said(tiny: Tiny, trained: Path, references: str, said: str) -> None:
    """What the log says is by how much energies of ethanol move."""
    settings = ["data.molecule=acetamide", f"training.init_from={trained}", f"data.references={references}"]
    trainer, before = _start(tiny(*settings)), load_model(trained / "model.safetensors")
    assert said in _said(trainer)
    table, old = (f.scaling.to_dict() for f in (trainer.force_field, before))
    (now, _), (then, _) = (_predict(f, _frames("ethanol")) for f in (trainer.force_field, before))
    moved = sum(
        count * (table["references"].get(symbol, 0.0) - old["references"].get(symbol, 0.0))
        for symbol, count in (("H", 6), ("C", 2), ("O", 1))
    )
    assert (now - then).tolist() == pytest.approx([moved + table["energy_shift"] - old["energy_shift"]] * 8, abs=EV)
    if references != "none":
        assert "training structures 0.0 meV an atom on average" in _said(trainer)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.scale=force_rms"], "would measure new units, and the weights of training.init_from="),
        (["training.scale=energy_std"], "leave it out"),
        (
            ["training.scale={energy_scale: 2, force_scale: 2}"],
            "are only right in units of .* set training.scale=trained",
        ),
        (["data.references={H: -1, C: -2}"], "references has no energy for O"),
    ],
)
def test_what_cannot_be_meant_is_refused(tiny: Tiny, trained: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _start(tiny(f"training.init_from={trained}", *overrides))


@pytest.mark.parametrize("override", ["data.references=trained", "training.scale=trained"])
def test_nothing_is_kept_of_no_model(tiny: Tiny, override: str) -> None:
    with pytest.raises(ValueError, match="those of the model in training.init_from; give it"):
        tiny(override)


def test_two_units_of_a_direct_model_are_no_gradient(tiny: Tiny) -> None:
    first = train(tiny("training.max_steps=1", "model.forces=direct", name="first"))
    with pytest.raises(ValueError, match=r"has forces of a head, .*Set model.forces=direct"):
        _start(tiny(f"training.init_from={first}"))


def test_given_units_that_are_those_of_the_model_may_move_the_shift(tiny: Tiny, trained: Path) -> None:
    scale = read_header(trained / "model.safetensors")["scaling"]["energy_scale"]
    given = f"training.scale={{energy_shift: 0.5, energy_scale: {scale!r}, force_scale: {scale!r}}}"
    trainer = _start(tiny(f"training.init_from={trained}", given))
    assert "energies of earlier structures move by 0.5000 eV a structure" in _said(trainer)


def test_tensors_that_are_fresh_or_not_used_are_named(tiny: Tiny, trained: Path) -> None:
    """A model trained with DeNS has a head for noise and degrees for it to read; one without has not."""
    plain = ["task=energy_forces", "model.feature_channels=[24,8]"]
    dens = train(tiny("training.max_steps=1", plain[1], name="dens"))
    said = _said(_start(tiny(f"training.init_from={dens}", *plain)))
    assert "of its own not used, since nothing here reads them:" in said
    assert "heads.noise (" in said
    run = train(tiny("training.max_steps=1", *plain, name="plain"))
    said = _said(_start(tiny(f"training.init_from={run}", plain[1])))
    assert "fresh, since it has no such heads or degrees:" in said
    assert "heads.noise (" in said


def test_marks_may_begin_and_end_with_fine_tuning(tiny: Tiny, trained: Path) -> None:
    """Of a model without, which becomes one with, and back: everything else is the trained model's."""
    plain = train(tiny("training.max_steps=1", "task=dens", "model.mark_corrupted=false", name="plain"))
    marked = _start(tiny(f"training.init_from={plain}", "task=dens", "model.mark_corrupted=true"))
    found, before = marked.force_field.state_dict(), load_model(plain / "model.safetensors").state_dict()
    assert found.keys() - before.keys() == {"backbone.force_encoding.linear.bias"}
    assert all(torch.equal(found[name], before[name]) for name in before if name.startswith("backbone."))
    run = train(tiny(f"training.init_from={plain}", "model.mark_corrupted=true", "training.max_steps=1", name="marked"))
    back = _start(tiny(f"training.init_from={run}", "task=dens", "model.mark_corrupted=false"))
    assert "backbone.force_encoding.linear.bias" not in back.force_field.state_dict()


def test_a_resumed_run_needs_the_first_model_no_more(tiny: Tiny, trained: Path) -> None:
    settings = ["data.molecule=acetamide", f"training.init_from={trained}", "training.frozen=[blocks.0]",
                "task=energy_forces"]  # fmt: skip
    frozen = [*settings, "training.schedule=constant", "training.max_steps=4"]
    whole = train(tiny(*frozen, name="whole"))
    half = train(tiny(*frozen[:-1], "training.max_steps=2", name="half"))
    shutil.rmtree(trained)
    train(load_config(half, ["training.max_steps=4"]), resume=True)
    expected, found = (load_model(run / "model.safetensors").state_dict() for run in (whole, half))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (half / "train.log").read_text().count("weights are trained") == 2


def test_a_new_element_of_a_known_group_starts_as_a_copy(tiny: Tiny, trained: Path) -> None:
    """Sulphur as oxygen; the model may embed more elements than the trained one does."""
    sulphur = Slabs(
        [replace(s, atomic_numbers=np.where(s.atomic_numbers == 8, 16, s.atomic_numbers)) for s in _frames("ethanol")]
    )
    data = LoadedData(train=sulphur, valid=None, test=None, splits=None, messages=[], references="trained")
    trainer = _start(tiny(f"training.init_from={trained}", "model.num_elements=80"), data)
    assert "S as a copy of O" in _said(trainer)
    (table,) = element_tables(trainer.force_field).values()
    (old,) = element_tables(load_model(trained / "model.safetensors")).values()
    assert torch.equal(table[16], table[8])
    rest = [z for z in range(64) if z != 16]
    assert torch.equal(table[rest], old[rest])
    assert table.shape[0] == 80
    with pytest.raises(ValueError, match="model.num_elements is 64 there, 20 here"):
        _start(tiny(f"training.init_from={trained}", "model.num_elements=20"), data)


@pytest.mark.parametrize(
    ("z", "known", "similar"),
    [(74, [41, 42, 73], 42), (11, [1, 3, 19], 3), (34, [8, 16, 52], 16), (7, [1, 6, 8], None), (60, [39, 57, 92], 57)],
)
def test_similar_elements(z: int, known: Sequence[int], similar: int | None) -> None:
    assert similar_element(z, known) == similar


def test_settings_of_the_model_are_the_trained_ones(tiny: Tiny, trained: Path, tmp_path: Path) -> None:
    """The preset's size is for fresh models; overrides and the file that says init_from are wishes."""
    before = read_header(trained / "model.safetensors")["model"]
    origin = ["data.path=x.xyz", f"training.init_from={trained}"]
    config = load_config("equiformer", [*origin, "model.stress=strain"])
    as_before = type(config.model).model_validate
    assert config.model == as_before({**before, "num_elements": 119, "stress": "strain"}), "elements as in the preset"
    assert config.sizes == ()
    assert load_config("equiformer", [*origin, "model.num_layers=2"]).model.num_layers == 2  # type: ignore[attr-defined]
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"model: {{cutoff: 3.5}}\ndata: {{path: x}}\ntraining: {{max_steps: 1, init_from: {trained}}}\n")
    assert load_config(mine).model == as_before({**before, "cutoff": 3.5})
    asked = tmp_path / "asked.yaml"
    asked.write_text("model: {cutoff: 3.5}\ndata: {path: x}\ntraining: {max_steps: 1}\n")
    assert load_config(asked, origin).model == as_before({**before, "cutoff": 3.5}), "a user's file is no preset"
    assert load_config(mine, ["training.init_from=elsewhere"]).model.cutoff == 3.5, "that of the command line counts"
    assert load_config(mine, ["training.init_from=null"]).data.references is None
    with pytest.raises(ValueError, match="is of the model equiformer, and this training of esen; begin with a preset"):
        load_config("esen", origin)


def test_what_a_preset_measures_is_no_wish(tmp_path: Path) -> None:
    """References and scale of a preset are for fresh models; an override, numbers, or the file with init_from ask."""
    origin = ["training.init_from=other"]
    for preset in ("equiformer", "demo", "oc20/equiformer_v2_2m"):
        overrides = ["data.train=x.lmdb", "data.valid=y.lmdb"] if preset.startswith("oc20") else ["data.path=x.xyz"]
        if preset == "demo":
            overrides = []
        config = load_config(preset, [*overrides, *origin])
        assert config.data.references == "trained"
        assert config.training.scale == "trained"
    assert load_config("equiformer", ["data.path=x", *origin, "data.references=fit"]).data.references == "fit"
    assert load_config("equiformer", ["data.path=x"]).data.references == "fit"
    mine = tmp_path / "mine.yaml"
    mine.write_text("data: {path: x, references: isolated}\ntraining: {max_steps: 1, init_from: other}\n")
    config = load_config(mine)
    assert (config.data.references, config.training.scale) == ("isolated", "trained")
    assert load_config(mine, ["training.init_from=another"]).data.references == "isolated"


def test_references_are_fitted_jointly_where_all_structures_have_new_elements() -> None:
    """W and Be of compounds alone: Be's reference cannot be told from an error of W's otherwise."""
    constants = EnergyConstants(Scaling(elements=[4, 74]))
    counts, generator = np.zeros((30, 119)), np.random.default_rng(0)
    counts[:, [4, 74]] = generator.integers(1, 6, (30, 2))
    constants.counts, constants.left = counts, counts[:, 4] * -3.0 + counts[:, 74] * 2.0
    table, *_ = constants.correct("fit", [4, 74], [4], "trained")
    assert "corrections of the references" in table
    np.testing.assert_allclose(constants.left, 0, atol=1e-6)
    constants.typical = np.ones(30, dtype=bool)
    assert "data.references=fit" not in " ".join(constants.compare([4], "fit"))


def test_an_error_of_a_part_of_the_elements_is_told_per_atom_of_all() -> None:
    constants = EnergyConstants(Scaling(elements=[4, 74]))
    counts = np.zeros((3, 119))
    counts[:, 4], counts[:, 74] = 1, 3
    constants.counts, constants.left = counts, np.array([4.0, 4.4, 3.6])
    _, about, *_ = constants.correct("trained", [4, 74], [4], "trained")
    assert "81.65 meV an atom are left (rms of 3 structures)" in about


def test_references_that_one_composition_does_not_tell_apart_stay() -> None:
    constants = EnergyConstants(Scaling(elements=[4, 74]))
    counts = np.zeros((9, 119))
    counts[:, 4], counts[:, 74] = 1, 2
    constants.counts, constants.left = counts, np.full(9, -100.0)
    constants.correct("fit", [4, 74], [4], "trained")
    found = constants.scaling.references
    assert found[4] == pytest.approx(-100) and found[74] == 0


def test_isolated_atoms_are_no_residuals_of_bound_ones(tiny: Tiny, trained: Path) -> None:
    """Isolated atoms, whose energies the model does not know, change no reference of elements in other structures."""
    bound = _frames("ethanol")
    atoms = [
        replace(
            bound[0], positions=np.zeros((1, 3)), atomic_numbers=np.array([z]), forces=np.zeros((1, 3)),
            fixed=np.zeros(1, dtype=bool), tags=np.zeros(1, dtype=int), energy=-5.0 * z,
        )
        for z in (1, 6, 8)
    ]  # fmt: skip
    config = tiny("data.references=fit", f"training.init_from={trained}", "training.max_steps=1", name="tuned")
    data = load_data(config.data, 0)
    found = [
        _start(config, replace(data, train=source)).force_field.scaling.references
        for source in (bound, Slabs([*(bound[index] for index in range(len(bound))), *atoms]))
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("references", ["trained", "fit"])
def test_isolated_atoms_move_with_the_references(tiny: Tiny, trained: Path, tmp_path: Path, references: str) -> None:
    """Those of the trained model stay as far from them; those of the new data replace them, where they are some."""
    model = load_model(trained / "model.safetensors")
    before = model.scaling.references.tolist()
    model.scaling.set_binding({"H": 3.0, "C": 4.0})
    save_model(tmp_path / "model.safetensors", model, {})
    settings = [f"training.init_from={tmp_path / 'model.safetensors'}", f"data.references={references}"]
    data = replace(_shifted(-1.0), references=references)  # type: ignore[arg-type]
    scaling = _start(tiny(*settings), data).force_field.scaling
    assert (float(scaling.references[1]) == before[1]) == (references == "trained")
    assert scaling.binding_energies == {"H": 3.0, "C": 4.0}
    new = {"C": float(scaling.references[6]) + 5.0}
    scaling = _start(tiny(*settings), replace(data, isolated=new)).force_field.scaling
    assert scaling.binding_energies == pytest.approx({"H": 3.0, "C": 5.0}, abs=1e-9)
    trainer = _start(tiny(*settings), replace(data, isolated={"H": -13.0, "C": 0.0, "O": -2000.0}))
    assert trainer.force_field.scaling.binding_energies == {"H": 3.0, "C": 4.0}
    assert "does not take the energies of isolated atoms: they lie H" in _said(trainer)
    assert "data.references=isolated takes the references from them" in _said(trainer)


def test_isolated_atoms_may_give_the_references_of_a_trained_model(tiny: Tiny, trained: Path) -> None:
    """Of one composition, whose references mean nothing by themselves: the start is as good, broken bonds tame."""
    frames = _frames("ethanol")
    count = {"H": 6, "C": 2, "O": 1}
    atoms = {"H": -13.6, "C": -38.0 * 27.2, "O": 0.0}
    atoms["O"] = float(np.mean([s.energy for s in frames.systems])) - sum(count[n] * e for n, e in atoms.items()) + 30.0  # type: ignore[misc]
    settings = [f"training.init_from={trained}"]
    plain, given = LoadedData(train=frames, valid=None, test=None, splits=None, messages=[], references="trained"), {}
    for references in ("trained", atoms):
        data = replace(plain, references=references, isolated=atoms)
        given[str(references)] = _start(tiny(*settings), data).force_field
    wanted, alone = _start(tiny(*settings), plain).force_field, given[str(atoms)]
    assert given["trained"].scaling.binding_energies == {} and float(alone.scaling.energy_shift) == 0
    assert alone.scaling.isolated_energies == pytest.approx(atoms, abs=1e-9)
    assert all(0 < energy < 10 for energy in alone.scaling.binding_energies.values())
    for found in given.values():
        energies, forces = (a - b for a, b in zip(_predict(found, frames), _predict(wanted, frames), strict=True))
        assert float(energies.std()) < 0.05 and float(forces.abs().max()) < 0.2


@pytest.mark.parametrize("given", [True, False])
def test_isolated_atoms_of_another_level_move_all(tiny: Tiny, trained: Path, tmp_path: Path, given: bool) -> None:
    """Of a model that knows isolated atoms; what the log says of the residuals is true."""
    model = load_model(trained / "model.safetensors")
    model.scaling.set_binding({"H": 3.0, "C": 4.0, "O": 5.0})
    save_model(tmp_path / "model.safetensors", model, {})
    moved = {"H": 300.0, "C": 900.0, "O": 5000.0}
    atoms = {name: energy + moved[name] for name, energy in model.scaling.isolated_energies.items()}
    level = sum(count * moved[name] for name, count in {"H": 6, "C": 2, "O": 1}.items())
    frames = Slabs([replace(s, energy=s.energy + level) for s in _frames("ethanol", 20).systems])  # type: ignore[operator]
    references: References = atoms if given else "trained"  # which becomes fit
    data = LoadedData(
        train=frames, valid=None, test=None, splits=None, messages=[], references=references, isolated=atoms
    )
    trainer = _start(tiny(f"training.init_from={tmp_path / 'model.safetensors'}"), data)
    scaling = trainer.force_field.scaling
    assert scaling.isolated_energies == pytest.approx(atoms, abs=1e-9)
    if not given:  # atoms of each element are bound as before
        assert scaling.binding_energies == pytest.approx({"H": 3.0, "C": 4.0, "O": 5.0}, abs=0.5)
    labels = torch.tensor([system.energy for system in frames], dtype=torch.float64)
    error = float((labels - _predict(trainer.force_field, frames)[0]).mean()) / 9
    assert f"structures {round(1000 * error, 1) + 0.0} meV an atom on average" in _said(trainer)


def _with_rare_silicon(tmp_path: Path, energy: float | None) -> LoadedData:
    frames = list(_frames("ethanol", 40).systems)
    other = replace(frames[17], atomic_numbers=np.where(frames[17].atomic_numbers == 8, 14, frames[17].atomic_numbers))
    frames[17] = replace(other, energy=energy)
    return LoadedData(train=Slabs(frames), valid=None, test=None, splits=None, messages=[], references="trained")


def test_a_rare_new_element_has_a_reference(
    tiny: Tiny, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none of the structures that are predicted by chance has it; without an energy, it is said."""
    monkeypatch.setattr("denskit.training.fine_tuning.FITTED", 5)
    trainer = _start(tiny(f"training.init_from={trained}"), _with_rare_silicon(tmp_path, -8000.0))
    assert float(trainer.force_field.scaling.references[14]) < -7000
    unlabelled = _start(tiny(f"training.init_from={trained}", name="other"), _with_rare_silicon(tmp_path, None))
    assert "warning: no training structure with Si has an energy" in _said(unlabelled)


def test_a_rare_new_element_moves_no_mean(
    tiny: Tiny, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structures that are taken for their element alone are not typical of the others."""
    monkeypatch.setattr("denskit.training.fine_tuning.COMPARED", 5)
    monkeypatch.setattr("denskit.training.fine_tuning.FITTED", 5)
    data = replace(_with_rare_silicon(tmp_path, -8000.0), references="mean")
    trainer = _start(tiny(f"training.init_from={trained}", "data.references=mean"), data)
    shift = float(trainer.force_field.scaling.energy_shift)
    assert abs(shift - float(load_model(trained / "model.safetensors").scaling.energy_shift)) < 1.0, "eV, of 7,700"


def test_a_run_names_its_first_model_from_anywhere(tiny: Tiny, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parent)
    config = tiny(f"training.init_from={trained.name}", "data.path=s3://bucket/frames.extxyz", "data.name=file",
                  "data.molecule=null")  # fmt: skip
    written = config.document()
    assert written["training"]["init_from"] == str(trained) and written["data"]["path"] == "s3://bucket/frames.extxyz"
    shipped = tiny("training.init_from=zoo:ethanol-xtb", name="shipped").document()
    assert shipped["training"]["init_from"] == "zoo:ethanol-xtb"


def _counts(*formulas: str) -> np.ndarray:
    return counts_of([Formula(formula).count() for formula in formulas])


@pytest.mark.parametrize(
    ("replayed", "new", "warned"),
    [
        (["CH4"], ["H2O"], ""),
        (["CH4", "C2H6"], ["H2O"], ""),  # oxygen makes up for hydrogen
        (["CH4", "C2H6", "C2H6O"], ["H2O"], "CH4, C2H6, C2H6O"),  # these four contradict each other
        (["CH4"], ["H2O", "CH2O"], ""),
        (["CH4"], ["CH4", "H2O"], "CH4"),  # new structures say otherwise
        (["CH4"], ["H2O", "H", "C", "O"], "CH4"),  # as do their isolated atoms
    ],
)
def test_replayed_energies_stay_where_new_ones_let_them(replayed: list[str], new: list[str], warned: str) -> None:
    trained = Scaling(elements=[1, 6, 8], references={"H": -13.0, "C": -1000.0, "O": -2000.0})
    constants = EnergyConstants(copy.deepcopy(trained))
    constants.scaling.references[[1, 6, 8]] -= 1000.0  # as a fit of one common value
    before = _counts(*new) @ constants.scaling.references.numpy()
    said = constants.keep(_counts(*replayed), _counts(*new), trained)
    after = constants.scaling.references.numpy()
    np.testing.assert_allclose(_counts(*new) @ after, before, atol=1e-6)
    moved = np.abs(_counts(*replayed) @ (after - trained.references.numpy()))
    assert (moved.max() > 1e-4) == bool(warned) == said[0].startswith("warning: ")
    assert len(said) == 1 and warned in said[0]
    if warned:
        np.testing.assert_array_equal(after[[1, 6, 8]], [-1013.0, -2000.0, -3000.0])  # as fitted
