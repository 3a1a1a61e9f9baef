"""kappa_SRME of an evaluation: a potential with a formula against a deeper one, killed and continued; the program."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk

from cli_calls import denskit
from denskit.data.frames import structures_of
from denskit.evaluation.conductivities import KnownConductivities
from denskit.evaluation.discovery import Materials, discover_into
from denskit.simulation.crystals import Conductivity, CrystalSettings, conductivity, relaxed_crystal
from denskit.simulation.crystals.folder import properties_in
from denskit.simulation.crystals.published_conductivities import references_in
from denskit.simulation.potential import Potential
from simulation.morse import Morse

from trained import TRAINED

COARSE = CrystalSettings(supercell=3.0, triplet_supercell=2.0, mesh=6.0)
CRYSTALS = [bulk("Cu", "fcc", a=2.65), bulk("Ag", "fcc", a=2.7), bulk("Bi", "fcc", a=2.65)]  # Morse does not know Bi


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conductivities by a deeper potential."""
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")
    folder, deep = tmp_path_factory.mktemp("references"), Morse(depth=0.4, stress=True)
    source, _ = structures_of(CRYSTALS[:2])
    for index, system in enumerate(source):
        conductivity(deep, relaxed_crystal(deep, system, COARSE), COARSE).save(folder / f"conductivity_{index}.npz")
    shutil.copy(folder / "conductivity_0.npz", folder / "conductivity_2.npz")
    return folder


def _file(path: Path, crystals: list[ase.Atoms]) -> Path:
    ase.io.write(path, crystals)
    return path


def _known(tmp_path: Path, references: Path, potential: Morse) -> KnownConductivities:
    file = _file(tmp_path / "heat.extxyz", CRYSTALS)
    return KnownConductivities(structures_of(CRYSTALS)[0], file, references, potential, origin={"model": "Morse"})


def _materials(tmp_path: Path) -> Materials:
    crystals = [bulk("Cu", "fcc", a=2.7)]
    return Materials(structures_of(crystals)[0], _file(tmp_path / "wbm.extxyz", crystals))


def _by_hand(found: Conductivity, reference: Conductivity) -> float:
    difference = np.abs(found.mode_kappa - reference.mode_kappa).sum() / found.weights.sum()
    return float(2 * difference / (found.kappa[:3].mean() + reference.kappa[:3].mean()))


def test_errors_of_all_crystals_stand_beside_the_other_metrics(tmp_path: Path, references: Path) -> None:
    """A crystal that the potential does not know counts as the worst."""
    said: list[str] = []
    told: list[tuple[float, str]] = []
    potential = Morse(stress=True)
    found = discover_into(
        tmp_path / "out", potential, _materials(tmp_path), conductivities=_known(tmp_path, references, potential),
        say=said.append, progress=lambda done, text, total: told.append((done, text)),
    )  # fmt: skip
    assert found is not None and found["converged"] == 1
    errors = []
    for index in (0, 1):
        own, reference = (
            Conductivity.load(f / f"conductivity_{index}.npz") for f in (tmp_path / "out/kappa", references)
        )
        errors.append(_by_hand(own, reference))
    assert min(errors) > 0.01 and max(errors) < 1
    assert found["kappa_SRME"] == pytest.approx((sum(errors) + 2) / 3, rel=1e-9)
    assert found["reference_conductivities"] == 3 and found["conductivities_counted_as_worst"] == 1
    assert json.loads((tmp_path / "out" / "discovery.json").read_text()) == found
    assert any("no conductivity of crystal 2 (Bi)" in text for text in said)
    assert any("1 of 3 crystals; of the next 1 of" in text for _, text in told)
    moved = [done for done, text in told if "crystals" in text]
    assert moved == sorted(moved) and moved[-1] == 3


def test_a_killed_evaluation_computes_nothing_twice(tmp_path: Path, references: Path) -> None:
    finished = tmp_path / "out" / "kappa" / "crystals.jsonl"
    whole = Morse(stress=True)
    known = _known(tmp_path, references, whole)
    expected = discover_into(tmp_path / "whole", whole, _materials(tmp_path), conductivities=known)
    first, rest = Morse(stress=True), Morse(stress=True)
    stopped = discover_into(
        tmp_path / "out", first, _materials(tmp_path), conductivities=_known(tmp_path, references, first),
        stop=lambda: finished.is_file(),
    )  # fmt: skip
    assert stopped is None and len(list(properties_in(finished.parent))) == 1
    assert "kappa_SRME" not in json.loads((tmp_path / "out" / "discovery.json").read_text())
    finished.write_text(finished.read_text() + '{"index": 1, "form')  # as a kill leaves it
    known = _known(tmp_path, references, rest)
    found = discover_into(tmp_path / "out", rest, _materials(tmp_path), conductivities=known, resume=True)
    assert found == expected
    assert first.calls + rest.calls == whole.calls, "not one evaluation more"

    other = tmp_path / "others"
    shutil.copytree(references, other)
    shutil.copy(references / "conductivity_0.npz", other / "conductivity_1.npz")
    known = _known(tmp_path, other, rest)
    with pytest.raises(ValueError, match="references_sha256: sha256 .* then, sha256 .* now"):
        discover_into(tmp_path / "out", rest, _materials(tmp_path), conductivities=known, resume=True)


def test_an_evaluation_gets_conductivities_later(tmp_path: Path, references: Path) -> None:
    potential = Morse(stress=True)
    assert discover_into(tmp_path / "out", potential, _materials(tmp_path)) is not None
    known = KnownConductivities(
        structures_of(CRYSTALS[:1])[0], _file(tmp_path / "heat.extxyz", CRYSTALS[:1]), references, potential
    )
    found = discover_into(tmp_path / "out", potential, _materials(tmp_path), conductivities=known, resume=True)
    assert found is not None and found["reference_conductivities"] == 1 and 0 < found["kappa_SRME"] < 1
    assert discover_into(tmp_path / "out", potential, _materials(tmp_path), resume=True) == found, "they are kept"


def test_the_program_prints_one_table(tmp_path: Path) -> None:
    """The model is judged by itself, with the mesh and the supercells of the reference: no error."""
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")
    import torch

    settings = COARSE.model_copy(update={"supercell": 4.0, "triplet_supercell": 4.0})
    model, (system,) = Potential(TRAINED, dtype=torch.float64, stress=True), structures_of([bulk("Cu", a=3.6)])[0]
    reference = conductivity(model, relaxed_crystal(model, system, CrystalSettings()), settings)
    (tmp_path / "dft").mkdir()
    reference.save(tmp_path / "dft" / "conductivity_0.npz")
    wbm = _file(tmp_path / "wbm.extxyz", [bulk("Cu", a=3.5)])
    heat = _file(tmp_path / "heat.extxyz", [bulk("Cu", a=3.6)])
    given = ["--discovery", wbm, "--kappa", heat, "--reference", tmp_path / "dft", "-o", tmp_path / "out"]
    result = denskit("evaluate", TRAINED, *given)
    assert result.exit_code == 0, result.stderr
    assert "kappa_SRME" in result.stdout and "converged" in result.stdout
    found = json.loads((tmp_path / "out" / "discovery.json").read_text())
    assert found["kappa_SRME"] == pytest.approx(0, abs=1e-6) and found["conductivities_counted_as_worst"] == 0
    again = denskit("evaluate", TRAINED, *given, "--resume", "--json")
    assert again.exit_code == 0 and json.loads(again.stdout)["discovery"] == found
    report = denskit("report", tmp_path / "out" / "kappa")
    assert report.exit_code == 0, report.stderr


def test_mistakes_are_told_before_the_first_move(
    tmp_path: Path, references: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wbm, heat = _file(tmp_path / "wbm.extxyz", [bulk("Cu")]), _file(tmp_path / "heat.extxyz", [bulk("Cu")] * 2)

    def said(*arguments: object) -> str:
        result = denskit("evaluate", TRAINED, *arguments)
        assert result.exit_code == 1
        return " ".join(result.stderr.split())

    common = ["--discovery", wbm, "-o", tmp_path / "out"]
    assert "--kappa and --reference belong to --discovery" in said("--kappa", heat, "--reference", references)
    assert "--kappa FILE (crystals) and --reference FOLDER (conductivities) go together" in said(
        *common, "--kappa", heat
    )
    assert "go together" in said(*common, "--reference", references)
    (tmp_path / "empty").mkdir()
    given = [*common, "--kappa", heat, "--reference"]
    assert "no conductivity_0.npz in the folder of references" in said(*given, tmp_path / "empty")
    shutil.copy(references / "conductivity_0.npz", tmp_path / "empty")
    assert "no conductivity_1.npz in the folder of references" in said(*given, tmp_path / "empty")
    ase.io.write(heat, [bulk("Cu"), bulk("Ti", "hcp")])
    assert "conductivity_1.npz: the reference is of another crystal or mesh" in said(*given, references)
    monkeypatch.setitem(sys.modules, "phono3py", None)
    assert "needs phono3py: pip install 'denskit[conductivity]'" in said(*given, references)
    assert not (tmp_path / "out").exists()


def _published(references: Path, *, columns: bool = False, axes: str = "voigt", **changed: object) -> bytes:
    """The references as Matbench Discovery publishes conductivities, with directions as ``axes`` says."""
    tensor = {"none": np.array(1.0), "three": np.ones(3), "voigt": np.array([1.0] * 3 + [5.0] * 3), "matrix": np.eye(3)}
    records = []
    for index in (0, 1):
        known = Conductivity.load(references / f"conductivity_{index}.npz")
        record = {
            "material_id": f"mp-{index}",
            "temperatures": [300],
            "kappa_tot_rta": np.multiply.outer([known.mean], tensor[axes]).tolist(),
            "mode_kappa_tot_rta": np.multiply.outer(known.mode_kappa[None], tensor[axes]).tolist(),
            "mode_weights": known.weights.tolist(),
            "ph_freqs": known.frequencies.tolist(),
        }
        records.append({name: value for name, value in (record | changed).items() if value is not None})
    table = {name: {str(i): record[name] for i, record in enumerate(records)} for name in records[0]}
    return gzip.compress(json.dumps(table if columns else records).encode())


def _named_crystals(references: Path, **changed: object) -> list[ase.Atoms]:
    crystals = [crystal.copy() for crystal in CRYSTALS[:2]]
    for index, crystal in enumerate(crystals):
        known = Conductivity.load(references / f"conductivity_{index}.npz")
        assert known.mesh is not None and known.repeats is not None
        second, third = (np.diag(counts) for counts in known.repeats)
        crystal.info |= {"material_id": f"mp-{index}", "q_point_mesh": known.mesh, "fc2_supercell": second}
        crystal.info |= {"fc3_supercell": third, "name": "Cu", **changed}
    return crystals


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("axes", ["none", "three", "voigt", "matrix"])
def test_published_files_are_references(tmp_path: Path, references: Path, columns: bool, axes: str) -> None:
    """The order of the crystals may be another; mesh and supercells come with the crystals."""
    file = tmp_path / "kappas.json.gz"
    file.write_bytes(_published(references, columns=columns, axes=axes))
    crystals = _named_crystals(references)[::-1]
    with references_in(file, lambda: [crystal.info for crystal in crystals]) as folder:
        for place, index in enumerate((1, 0)):
            found = Conductivity.load(folder / f"conductivity_{place}.npz")
            wanted = Conductivity.load(references / f"conductivity_{index}.npz")
            assert found.mean == pytest.approx(wanted.mean, rel=1e-12)
            for name in ("mode_kappa", "weights", "frequencies", "mesh", "repeats"):
                np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12, err_msg=name)
    assert not folder.exists()
    with references_in(references, list) as folder:
        assert folder == references
    with pytest.raises(FileNotFoundError, match="absent: a folder with conductivity_0.npz"):
        references_in(tmp_path / "absent", list).__enter__()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"material_id": "mp-7"}, "has no conductivity of crystal 0, mp-0"),
        ({"material_id": None}, "no record has a field material_id or mp_id"),
        ({"mode_weights": None}, "mp-0: its conductivity cannot be read .none of mode_weights, weights is there"),
        ({"temperatures": [500]}, r"mp-0: .*values at 300 K are wanted; found shape \(1, .*for \[500\] K"),
        ({"kappa_tot_avg": [1e4]}, r"mp-0: .*its modes sum to .* W/\(m K\), and it is 1e\+04"),
        ({"mode_kappa_tot_rta": "many"}, "mp-0: its conductivity cannot be read"),
    ],
)
def test_published_files_that_do_not_fit_are_refused(
    tmp_path: Path, references: Path, changed: dict[str, object], message: str
) -> None:
    file = tmp_path / "kappas.json.gz"
    file.write_bytes(_published(references, **changed))
    fields = [crystal.info for crystal in _named_crystals(references)]
    with pytest.raises(ValueError, match=message), references_in(file, lambda: fields):
        pass


def test_damaged_files_and_turned_supercells_are_refused(tmp_path: Path, references: Path) -> None:
    file = tmp_path / "kappas.json.gz"
    whole = _published(references)
    turned = [crystal.info for crystal in _named_crystals(references, fc2_supercell=np.ones((3, 3)))]
    unnamed = [crystal.info for crystal in _named_crystals(references, material_id=None)]
    for content, fields, message in (
        (whole[:-20], turned, "kappas.json.gz is damaged"),
        (gzip.compress(b"3"), turned, "a list of records is wanted, or columns; found int"),
        (whole, turned, "supercells along the axes of the cell are wanted"),
        (whole, unnamed, "crystal 0 has no material_id or mp_id"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message), references_in(file, lambda fields=fields: fields):
            pass


def test_the_program_reads_published_files(tmp_path: Path, references: Path) -> None:
    import torch

    model, crystals = Potential(TRAINED, dtype=torch.float64, stress=True), [bulk("Cu", a=3.6), bulk("Cu", a=3.7)]
    settings = COARSE.model_copy(update={"supercell": 4.0, "triplet_supercell": 4.0})
    (tmp_path / "dft").mkdir()
    for index, system in enumerate(structures_of(crystals)[0]):
        known = conductivity(model, relaxed_crystal(model, system, CrystalSettings()), settings)
        known.save(tmp_path / "dft" / f"conductivity_{index}.npz")
        assert known.mesh is not None and known.repeats is not None
        second, third = (np.diag(counts) for counts in known.repeats)
        crystals[index].info |= {"material_id": f"mp-{index}", "q_point_mesh": known.mesh}
        crystals[index].info |= {"fc2_supercell": second, "fc3_supercell": third}
    (tmp_path / "kappas.json.gz").write_bytes(_published(tmp_path / "dft"))
    wbm, heat = _file(tmp_path / "wbm.extxyz", [bulk("Cu", a=3.5)]), _file(tmp_path / "heat.extxyz", crystals)
    given = ["--discovery", wbm, "--kappa", heat, "--reference", tmp_path / "kappas.json.gz", "-o", tmp_path / "out"]
    result = denskit("evaluate", TRAINED, *given, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["discovery"]["kappa_SRME"] == pytest.approx(0, abs=1e-6)
    again = denskit("evaluate", TRAINED, *given, "--json", "--resume")
    assert json.loads(again.stdout) == json.loads(result.stdout)
    given = ["--conductivity", "--reference", tmp_path / "kappas.json.gz", "-o", tmp_path / "crystals", "--json"]
    result = denskit("crystal", TRAINED, heat, *given)
    assert result.exit_code == 0, result.stderr
    assert [one["kappa_SRME"] for one in json.loads(result.stdout)["crystals"]] == pytest.approx([0, 0], abs=1e-6)
