"""`denskit crystal` with a trained model: files, messages, resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ase.io
import pytest
from ase.build import bulk, molecule
from typer.testing import CliRunner

from cli_calls import denskit
from denskit.analysis.crystal_plots import _names
from denskit.cli import app
from denskit.cli.crystal import _print
from denskit.simulation.crystals.folder import properties_in

from trained import TRAINED


@pytest.fixture
def crystals(tmp_path: Path) -> Path:
    """Copper, gold (which the model does not know) and a molecule."""
    path = tmp_path / "crystals.extxyz"
    water = molecule("H2O", vacuum=5.0)
    ase.io.write(path, [bulk("Cu"), bulk("Au"), water])
    return path


def test_properties_of_copper(tmp_path: Path, crystals: Path) -> None:
    pytest.importorskip("phonopy")
    output = tmp_path / "out"
    arguments = ["crystal", str(TRAINED), str(crystals), "-o", str(output), "--phonons", "--supercell", "6", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    copper, gold, water = properties_in(output)
    assert copper["formula"] == "Cu"
    assert 10 < copper["volume_A3_per_atom"] < 13.5
    assert 80 < copper["bulk_modulus_GPa"] < 200, "EMT, which the model learned: 134 GPa"
    assert copper["elastic_constants_GPa"][0][0] > copper["elastic_constants_GPa"][0][1] > 0
    assert f"C11 {copper['cubic_C11_GPa']:.1f}, C12 " in result.stderr
    assert "was not trained on" in gold["error"]
    assert water["error"].startswith("not periodic, so it has no volume; properties of crystals want")
    assert json.loads(result.stdout)["crystals"][0] == copper
    assert (output / "phonopy_0.yaml").is_file()
    assert (output / "crystals.png").stat().st_size > 10_000

    assert CliRunner().invoke(app, ["report", str(output)]).exit_code == 0
    page = (output / "report.html").read_text()
    assert "1 of 3 crystals measured" in page and f">{copper['bulk_modulus_GPa']:.1f}</td>" in page
    assert "was not trained on" in page and 'src="data:image/png' in page and "Strain of the elastic constants" in page
    assert f"Model: {TRAINED}" in page

    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "continue it with --resume" in again.stderr
    resumed = CliRunner().invoke(app, [*arguments, "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert len(list(properties_in(output))) == 3
    resumed = CliRunner().invoke(app, [*arguments, "--resume", "data.units=kcal/mol"])
    assert resumed.exit_code == 0, "labels are not used"
    assert "crystals.extxyz: no labels; energies in kcal/mol" in resumed.stderr
    other = CliRunner().invoke(app, [*arguments, "--resume", "--strain", "0.01"])
    assert "settings.strain: 0.005 then, 0.01 now" in other.stderr


@pytest.mark.parametrize(
    ("option", "owner"), [("--mesh", "--conductivity"), ("--supercell", "--phonons and --conductivity")]
)
def test_options_of_properties_that_are_not_asked_for_are_refused(
    tmp_path: Path, crystals: Path, option: str, owner: str
) -> None:
    result = denskit("crystal", TRAINED, crystals, "-o", tmp_path / "out", option, 8)
    assert result.exit_code == 1
    assert f"{option} belongs to {owner}" in result.output


def test_an_interrupted_list_continues(tmp_path: Path, crystals: Path) -> None:
    output = tmp_path / "out"
    arguments = ["crystal", str(TRAINED), str(crystals), "-o", str(output)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    lines = (output / "crystals.jsonl").read_text().splitlines(keepends=True)
    (output / "crystals.jsonl").write_text(lines[0] + lines[1][:20])  # as a kill leaves it
    moved = tmp_path / "moved.safetensors"
    shutil.copy(TRAINED, moved)
    assert CliRunner().invoke(app, ["crystal", str(moved), *arguments[2:], "--resume"]).exit_code == 0
    assert (output / "crystals.jsonl").read_text() == "".join(lines)


def test_crystals_of_one_formula_are_told_apart(tmp_path: Path) -> None:
    crystals = [bulk("Cu", a=3.6), bulk("Cu", a=3.7)]
    for number, atoms in enumerate(crystals):
        atoms.info |= {"config_type": "bulk", "name": "copper", "material_id": f"mp-{number}"}
    ase.io.write(tmp_path / "named.extxyz", crystals)
    done = denskit("crystal", TRAINED, tmp_path / "named.extxyz", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert [crystal["name"] for crystal in properties_in(tmp_path / "out")] == ["mp-0", "mp-1"]
    assert "mp-0" in done.stdout and "crystal 1 (mp-1 Cu): C11" in done.stdout


def test_legends_name_crystals_that_look_alike() -> None:
    alike = [{"index": index, "name": "a_$1", "formula": "Cu"} for index in (0, 2)]
    other = {"index": 3, "formula": "Au"}
    assert _names([*alike, other]) == {0: "a_$1 Cu (0)", 2: "a_$1 Cu (2)", 3: "Au"}


def test_a_frequency_of_nothing_has_no_sign(capsys: pytest.CaptureFixture[str]) -> None:
    _print([{"index": 0, "formula": "Cu", "energy_eV_per_atom": 0.0, "bulk_modulus_GPa": 100.0,
             "bulk_modulus_derivative": 5.0, "phonon_smallest_THz": -1e-4, "shear_modulus_GPa": -1e-4}])  # fmt: skip
    assert "-0.0" not in capsys.readouterr().out
