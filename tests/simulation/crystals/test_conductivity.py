"""Thermal conductivity of a two-atom cell of a formula, against phono3py's own total and against itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from denskit.batch import System
from denskit.data.frames import structures_of
from denskit.data.writing import plain
from denskit.simulation.crystals import Conductivity, CrystalSettings, conductivity_errors, relaxed_crystal
from denskit.simulation.crystals.conductivity import conductivity, require_comparable, space_group
from denskit.simulation.crystals.folder import measure_into
from simulation.morse import Morse

MORSE = Morse(stress=True)
SETTINGS = CrystalSettings(fmax=1e-5, supercell=5.0, triplet_supercell=4.0, mesh=12.0)


def _modes(mode_kappa: list[list[float]], weights: list[int]) -> Conductivity:
    modes, counts = np.array(mode_kappa), np.array(weights)
    mean = modes.sum() / counts.sum()
    return Conductivity(
        kappa=np.array([mean] * 3 + [0.0] * 3), coherence=0.0, mode_kappa=modes, weights=counts,
        frequencies=np.ones_like(modes),
    )  # fmt: skip


def test_errors_by_hand() -> None:
    one, other = _modes([[4.0, 8.0], [12.0, 0.0]], [1, 3]), _modes([[8.0, 4.0], [12.0, 16.0]], [1, 3])
    assert (one.mean, other.mean) == (6.0, 10.0)
    found = conductivity_errors(one, other)
    assert found["kappa_SRE"] == pytest.approx(2 * 4 / 16)
    assert found["kappa_SRME"] == pytest.approx(2 * (4 + 4 + 16) / 4 / 16), "errors of modes do not cancel"
    assert conductivity_errors(one, one) == {"kappa_SRE": 0.0, "kappa_SRME": 0.0}
    assert conductivity_errors(one, other, symmetric=False)["kappa_SRME"] == 2.0
    unstable = replace(one, kappa=np.full(6, np.nan))
    assert conductivity_errors(unstable, other) == {"kappa_SRE": 2.0, "kappa_SRME": 2.0}
    with pytest.raises(ValueError, match="the reference has no conductivity"):
        conductivity_errors(one, unstable)
    with pytest.raises(ValueError, match=r"modes of \(2, 2\) are compared with \(1, 2\)"):
        conductivity_errors(one, _modes([[1.0, 1.0]], [1]))
    broken = conductivity_errors(one, _modes([[1.0, 1.0]], [1]), symmetric=False)
    assert broken == {"kappa_SRE": pytest.approx(2 * 4 / 8), "kappa_SRME": 2.0}, "a lower symmetry has more modes"


def test_a_hexagonal_crystal(tmp_path: Path) -> None:
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")
    source, _ = structures_of([bulk("Ti", "hcp", a=2.1, c=3.43)])
    crystal = relaxed_crystal(MORSE, source[0], SETTINGS)
    assert space_group(crystal) == "P6_3/mmc (194)"
    found = conductivity(MORSE, crystal, SETTINGS)
    assert found.kappa[0] == pytest.approx(found.kappa[1], rel=1e-6)
    assert found.kappa[0] > 0 and found.kappa[2] > 0
    assert found.kappa[3:] == pytest.approx(0, abs=1e-6)
    assert found.mode_kappa.sum() / found.weights.sum() == pytest.approx(found.mean, rel=1e-9)
    assert found.mode_kappa.shape[1] == found.frequencies.shape[1] == 6
    assert 0 < found.coherence < found.mean

    found.save(tmp_path / "conductivity_0.npz")
    assert conductivity_errors(Conductivity.load(tmp_path / "conductivity_0.npz"), found)["kappa_SRME"] == 0
    deeper = Morse(depth=0.33, stress=True)
    (measured,) = measure_into(tmp_path / "out", deeper, source, SETTINGS, heat=True, reference=tmp_path) or [{}]
    assert measured["symmetry_kept"] is True
    assert 0 < measured["kappa_SRE"] <= measured["kappa_SRME"] < 1
    coarse = SETTINGS.model_copy(update={"mesh": 8.0})
    (other,) = measure_into(tmp_path / "coarse", MORSE, source, coarse, heat=True, reference=tmp_path) or [{}]
    assert "of the reference: the meshes or the crystals differ" in other["error"]
    assert other["bulk_modulus_GPa"] > 0 and other["conductivity_300K_W_per_m_K"] > 0, "other results are kept"
    assert Conductivity.load(tmp_path / "out" / "conductivity_0.npz").mean == measured["conductivity_300K_W_per_m_K"]


def test_missing_references_are_told_before_the_first_crystal(tmp_path: Path) -> None:
    source, _ = structures_of([bulk("Ti", "hcp", a=2.1, c=3.43)])
    with pytest.raises(FileNotFoundError, match=r"no conductivity_0.npz in the folder of references .*nowhere"):
        measure_into(tmp_path / "out", MORSE, source, SETTINGS, heat=True, reference=tmp_path / "nowhere")
    np.savez(tmp_path / "conductivity_0.npz", kappa=np.ones(6))
    with pytest.raises(ValueError, match="holds no conductivity: mode_kappa, weights are absent"):
        measure_into(tmp_path / "out", MORSE, source, SETTINGS, heat=True, reference=tmp_path)
    assert not (tmp_path / "out").exists()


def test_other_references_are_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also none, and a mesh that was given, though it is the default."""
    monkeypatch.setattr("denskit.simulation.crystals.folder._heat", lambda *given: [{}])
    source, _ = structures_of([bulk("Ti", "hcp", a=2.1, c=3.43)])
    for name, modes in (("one", 1.0), ("other", 2.0)):
        (tmp_path / name).mkdir()
        _modes([[modes]], [1]).save(tmp_path / name / "conductivity_0.npz")

    def measure(reference: str | None, **given: float) -> None:
        settings = CrystalSettings(fmax=1e-5, **given)
        place = None if reference is None else tmp_path / reference
        measure_into(tmp_path / "out", MORSE, source, settings, moduli=False, heat=True, reference=place, resume=True)

    measure("one")
    measure("one")
    for other in ("other", None):
        with pytest.raises(ValueError, match="references_sha256: sha256 .* then, .* now"):
            measure(other)
    with pytest.raises(ValueError, match="given: None then, mesh now"):
        measure("one", mesh=CrystalSettings().mesh)


def test_mesh_and_supercells_are_those_of_the_reference(tmp_path: Path) -> None:
    """By its lengths a smaller crystal has another mesh, and then other modes."""
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")
    (small, wide), _ = structures_of([bulk("Cu", "fcc", a=2.65), bulk("Cu", "fcc", a=2.8)])
    coarse = CrystalSettings(supercell=4.0, triplet_supercell=3.0, mesh=5.6)
    reference = conductivity(MORSE, wide, coarse)
    reference.save(tmp_path / "conductivity_0.npz")
    reference = Conductivity.load(tmp_path / "conductivity_0.npz")
    assert reference.mesh is not None and reference.repeats is not None
    assert reference.mesh.tolist() == [3, 3, 3] and reference.repeats.tolist() == [[3, 3, 3], [2, 2, 2]]
    own, given = CrystalSettings(), CrystalSettings(mesh=8.0)
    require_comparable(reference, wide, own)
    found = conductivity(MORSE, small, own, reference=reference)
    assert found.mesh is not None and found.mesh.tolist() == [3, 3, 3]
    assert 0 < conductivity_errors(found, reference)["kappa_SRME"] < 2
    with pytest.raises(ValueError, match="of another crystal or mesh"):
        require_comparable(reference, wide, given)


def test_references_that_cannot_be_compared_are_told(tmp_path: Path) -> None:
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")
    (copper, titanium), _ = structures_of([bulk("Cu", "fcc", a=2.65), bulk("Ti", "hcp", a=2.1, c=3.43)])
    three = _modes([[1.0, 2.0, 3.0]] * 4, [1, 8, 6, 12])
    with pytest.raises(ValueError, match="does not say its mesh; write it again"):
        require_comparable(three, copper, CrystalSettings())
    known = replace(three, mesh=np.array([3, 3, 3]), repeats=np.full((2, 3), 1))
    require_comparable(known, copper, CrystalSettings())
    with pytest.raises(
        ValueError, match=r"has modes of \(4, 3\) .* the crystal has \(\d+, 6\) for a mesh of 3 x 3 x 3"
    ):
        require_comparable(known, titanium, CrystalSettings())
    with pytest.raises(ValueError, match="has 24 points of q, and its mesh of 3 x 3 x 3 has 27"):
        require_comparable(replace(known, weights=np.full(4, 6)), copper, CrystalSettings())
    with pytest.raises(ValueError, match="its crystal has imaginary modes"):
        require_comparable(replace(known, kappa=np.full(6, np.nan)), copper, CrystalSettings())
    with pytest.raises(ValueError, match="the structure is none: periodic along xy only"):
        require_comparable(known, replace(copper, pbc=np.array([True, True, False])), CrystalSettings())
    np.savez(tmp_path / "a.npz", **{**vars(known), "mesh": np.array([3, 3, 0])})
    with pytest.raises(ValueError, match=r"mesh is \[3, 3, 0\]; wanted are whole numbers above 0 of shape \(3,\) or"):
        Conductivity.load(tmp_path / "a.npz")


def test_the_mesh_of_a_body_centred_crystal_is_a_matrix(tmp_path: Path) -> None:
    """Three numbers would break its symmetry."""
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")
    edges = np.diag([1.85, 1.85, 2.71])
    (crystal,), _ = structures_of([Atoms("Cu", cell=(np.full((3, 3), 0.5) - np.eye(3)) @ edges, pbc=True)])
    found = conductivity(MORSE, crystal, CrystalSettings(supercell=4.0, triplet_supercell=3.0, mesh=5.0))
    assert found.mesh is not None and found.mesh.tolist() == [[0, 3, 3], [3, 0, 3], [2, 2, 0]]
    found.save(tmp_path / "a.npz")
    reference = Conductivity.load(tmp_path / "a.npz")
    require_comparable(reference, crystal, CrystalSettings())
    again = conductivity(MORSE, crystal, CrystalSettings(), reference=reference)
    assert conductivity_errors(again, reference)["kappa_SRME"] == pytest.approx(0, abs=1e-9)


def test_masses_of_the_file_are_those_of_the_conductivity(tmp_path: Path) -> None:
    pytest.importorskip("phono3py", reason="phono3py (extra conductivity) is not installed")

    def light(system: System) -> Atoms:
        atoms = plain(system)
        atoms.set_masses(atoms.get_masses() / 4)
        return atoms

    source, _ = structures_of([bulk("Cu", "fcc", a=2.65)])
    coarse = CrystalSettings(supercell=4.0, triplet_supercell=3.0, mesh=5.6)
    for name, original in (("usual", plain), ("light", light)):
        measure_into(tmp_path / name, MORSE, source, coarse, moduli=False, heat=True, original=original)
    found, usual = (Conductivity.load(tmp_path / name / "conductivity_0.npz") for name in ("light", "usual"))
    np.testing.assert_allclose(found.frequencies, 2 * usual.frequencies, rtol=1e-4, atol=1e-3)


def test_files_without_modes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", kappa=np.ones(6))
    with pytest.raises(ValueError, match="a.npz holds no conductivity: mode_kappa, weights are absent"):
        Conductivity.load(tmp_path / "a.npz")
