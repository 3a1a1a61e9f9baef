"""Shipped models: whole, honest cards, taken by name everywhere."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule
from typer.testing import CliRunner

import denskit.zoo
from denskit import DenskitCalculator, evaluate, load_config, load_model, train
from denskit.cli import app
from denskit.data import DataConfig, load_data
from denskit.models.model_file import read_header
from denskit.zoo import card_of, cards, file_of

NAMES = [f"zoo:{name}" for name in cards()]
MOST_BYTES = 1_000_000  # of all models together, so that the wheel stays small


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def strings(value: object) -> list[str]:
    """All strings in a JSON document."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    return [text for item in value for text in strings(item)] if isinstance(value, list) else [str(value)]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_what_its_card_says(name: str) -> None:
    card, header = card_of(name), read_header(name)
    model = load_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == card.parameters
    assert model.backbone.smooth and model.backbone.symmetry == "O(3)" and model.config.forces == "gradient"
    assert header["metadata"]["zoo"] == card.name and header["metadata"]["data"] == card.data
    assert [text for text in strings(header) if text.startswith("/")] == []  # paths of the machine of the training
    assert card.errors["forces_mae_relative_to_zero"] < 0.1
    assert {"train", "valid", "test"} == set(card.split)


def test_all_are_small() -> None:
    assert sum(file_of(name).stat().st_size for name in NAMES) < MOST_BYTES


def test_the_errors_of_the_card_are_measured() -> None:
    """On the test split of the embedded data, which training left out."""
    test = load_data(DataConfig(name="embedded"), seed=0).test
    assert test is not None
    card = card_of("ethanol-xtb")
    assert len(test) == card.split["test"]
    found = evaluate("zoo:ethanol-xtb", test)
    assert {name: found[name] for name in card.errors} == pytest.approx(card.errors, rel=1e-2)


def test_an_unknown_or_changed_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"no shipped model zoo:ethanol-xbt; did you mean zoo:ethanol-xtb\?"):
        load_model("zoo:ethanol-xbt")
    listed = json.loads(denskit.zoo.CARDS.read_text("utf-8"))
    (tmp_path / "cards.json").write_text(json.dumps(listed))
    content = card_of("ethanol-xtb").path.read_bytes()
    monkeypatch.setattr(denskit.zoo, "FOLDER", tmp_path)
    (tmp_path / "ethanol-xtb.safetensors").write_bytes(content)
    assert file_of("zoo:ethanol-xtb") == tmp_path / "ethanol-xtb.safetensors"
    (tmp_path / "ethanol-xtb.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="has changed since it was shipped: install Denskit again"):
        load_model("zoo:ethanol-xtb")


def test_the_name_is_taken_everywhere(tmp_path: Path) -> None:
    atoms = molecule("CH3CH2OH")
    ase.io.write(tmp_path / "ethanol.xyz", atoms)
    atoms.calc = DenskitCalculator("zoo:ethanol-xtb")
    invoke("predict", "zoo:ethanol-xtb", str(tmp_path / "ethanol.xyz"), "-o", str(tmp_path / "out.extxyz"))
    predicted = ase.io.read(tmp_path / "out.extxyz")
    assert predicted.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-3)
    file = str(tmp_path / "ethanol.xyz")
    invoke("md", "zoo:ethanol-xtb", file, "--steps", "2", "-o", str(tmp_path / "md"))
    invoke("relax", "zoo:ethanol-xtb", file, "--steps", "2", "-o", str(tmp_path / "relaxed"))
    assert "zoo:ethanol-xtb" in invoke("info", "zoo:ethanol-xtb")
    labelled = ["zoo:ethanol-xtb", str(tmp_path / "out.extxyz"), "-o", str(tmp_path / "errors")]
    assert "forces_mae_meV_per_A" in invoke("evaluate", *labelled)


def test_a_training_starts_from_it(tmp_path: Path) -> None:
    """Before the first step the errors are those of the shipped model, far below those of random weights."""
    changes = ["task=dens", "training.init_from=zoo:ethanol-xtb", "data.split.train=20", "data.split.valid=20"]
    changes += ["training.max_steps=2", "training.lr=1e-6", f"output={tmp_path / 'tuned'}"]
    train(load_config("demo", changes))
    errors = read_header(tmp_path / "tuned")["metadata"]["validation"]
    assert errors["forces_mae_relative_to_zero"] < 0.1
    log = (tmp_path / "tuned" / "train.log").read_text()
    assert "zoo:ethanol-xtb" in log


def test_the_program_lists_and_shows() -> None:
    listed = invoke("models")
    assert all(name in listed for name in NAMES)
    shown = invoke("models", "show", "ethanol-xtb").replace("\n", " ")
    for field in (
        "GFN2-xTB",
        "licence",
        "1,400 train",
        "forces_mae_meV_per_A",
        f"sha256: {card_of('ethanol-xtb').sha256}",
    ):
        assert field in shown, field
    wrong = CliRunner().invoke(app, ["models", "show", "ethane"])
    assert wrong.exit_code == 1 and "there are ethanol-xtb" in wrong.output.replace("\n", " ")


def test_energies_of_other_molecules_are_warned_of(tmp_path: Path) -> None:
    """Once by every verb, and not for the molecule that the model was trained on."""
    ase.io.write(tmp_path / "methanol.xyz", molecule("CH3OH"))
    ase.io.write(tmp_path / "ethanol.xyz", molecule("CH3CH2OH"))
    labelled = molecule("CH3OH")
    labelled.calc = DenskitCalculator("zoo:ethanol-xtb")
    with pytest.warns(UserWarning, match="right for C2H6O, .* and not for CH4O"):
        labelled.get_potential_energy()
    ase.io.write(tmp_path / "labelled.extxyz", labelled)
    verbs = {
        "predict": ("methanol.xyz", "-o", "out.extxyz"), "md": ("methanol.xyz", "--steps", "2", "-o", "md"),
        "relax": ("methanol.xyz", "--steps", "2", "-o", "relaxed"), "evaluate": ("labelled.extxyz", "-o", "errors"),
    }  # fmt: skip
    for verb, (file, *options, output) in verbs.items():
        with warnings.catch_warnings():  # else Python shows none that it has shown for another verb
            said = invoke(verb, "zoo:ethanol-xtb", str(tmp_path / file), *options, str(tmp_path / output))
        assert said.count("Warning: energies will be wrong") == 1, verb
    same = str(tmp_path / "ethanol.xyz")
    assert "Warning" not in invoke("predict", "zoo:ethanol-xtb", same, "-o", str(tmp_path / "same.extxyz"))
