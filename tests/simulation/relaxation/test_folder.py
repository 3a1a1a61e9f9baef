"""A relaxation of a file can be stopped at any place and goes on as if nothing had happened."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk

from denskit.batch import Batch, System
from denskit.simulation.potential import Evaluation
from denskit.simulation.relaxation import RelaxationSettings, relax
from denskit.simulation.relaxation.cells import CellRelaxation
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into
from denskit.simulation.relaxation.optimizers import FIRE, LBFGS
from simulation.morse import Morse, cluster, system_of

from tolerances import SAME_PATH64

SIZES = (4, 6, 2, 5, 3)
SETTINGS = RelaxationSettings(fmax=0.02, steps=30)


def structures() -> list[System]:
    return [system_of(cluster(n, n)) for n in SIZES]


class Breaks(Morse):
    """Raises an error at its so-manieth call: a run that ends in the middle."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def __call__(self, batch: Batch) -> Evaluation:
        if len(self.calls) == self.at:
            raise KeyboardInterrupt
        return super().__call__(batch)


def assert_same_results(one: RelaxationFolder, other: RelaxationFolder) -> None:
    assert one.structures.read_text() == other.structures.read_text()
    assert one.table.read_text() == other.table.read_text()
    for found, expected in zip(one.results(), other.results(), strict=True):
        np.testing.assert_array_equal(found.positions, expected.positions)


def test_results_are_those_of_the_relaxer(tmp_path: Path) -> None:
    folder = RelaxationFolder(tmp_path / "out")
    summary = relax_into(folder, Morse(), structures(), SETTINGS, batch_atoms=9)
    expected = relax(Morse(), structures(), SETTINGS)
    assert summary == json.loads(folder.summary.read_text())
    assert summary is not None and summary["structures"] == len(SIZES)
    frames = ase.io.read(folder.structures, ":")
    with folder.table.open() as table:
        rows = list(csv.DictReader(table))
    for result, relaxed, atoms, row in zip(folder.results(), expected, frames, rows, strict=True):
        np.testing.assert_allclose(result.positions, relaxed.positions, rtol=0, atol=SAME_PATH64)
        np.testing.assert_allclose(atoms.positions, result.positions, atol=1e-8)
        assert atoms.info["status"] == row["status"] == relaxed.status
        assert atoms.get_potential_energy() == pytest.approx(relaxed.energy)
        assert float(row["energy_eV"]) == pytest.approx(relaxed.energy)
        assert [c.index.tolist() for c in atoms.constraints] == [[len(atoms) - 1]]
        assert int(row["moves"]) == relaxed.moves
    assert not folder.running.exists()


@pytest.mark.parametrize("at", [1, 12, 33])
@pytest.mark.parametrize("optimizer", [FIRE(), LBFGS()], ids=["fire", "lbfgs"])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, at: int, optimizer: LBFGS | FIRE) -> None:
    settings = RelaxationSettings(optimizer=optimizer, fmax=0.02, steps=30)
    whole, killed = RelaxationFolder(tmp_path / "whole"), RelaxationFolder(tmp_path / "killed")
    undisturbed, first, second = Morse(), Breaks(at), Morse()
    options: dict[str, Any] = {"batch_atoms": 9, "trajectories": True}
    relax_into(whole, undisturbed, structures(), settings, **options)
    with pytest.raises(KeyboardInterrupt):
        relax_into(killed, first, structures(), settings, **options)
    relax_into(killed, second, structures(), settings, resume=True, **options)
    assert_same_results(killed, whole)
    assert sum(first.calls) + sum(second.calls) == sum(undisturbed.calls)  # nothing was computed twice
    for index in range(len(SIZES)):
        assert killed.trajectory(index).read_text() == whole.trajectory(index).read_text()


def test_a_run_killed_long_after_its_last_save_goes_on(tmp_path: Path) -> None:
    """As after SIGKILL: the saved state is old, the last line cut off, trajectories are ahead."""
    whole, killed = RelaxationFolder(tmp_path / "whole"), RelaxationFolder(tmp_path / "killed")
    options: dict[str, Any] = {"batch_atoms": 9, "trajectories": True}
    relax_into(whole, Morse(), structures(), SETTINGS, **options)
    with pytest.raises(KeyboardInterrupt):
        relax_into(killed, Breaks(6), structures(), SETTINGS, **options)
    old = killed.running.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        relax_into(killed, Breaks(60), structures(), SETTINGS, resume=True, **options)
    killed.running.write_bytes(old)
    lines = killed.finished.read_bytes()
    assert lines.count(b"\n") >= 2
    killed.finished.write_bytes(lines[:-40])
    relax_into(killed, Morse(), structures(), SETTINGS, resume=True, **options)
    assert_same_results(killed, whole)
    for index in range(len(SIZES)):
        assert killed.trajectory(index).read_text() == whole.trajectory(index).read_text()


def test_cells_resume_too(tmp_path: Path) -> None:
    crystals = [bulk("Cu", cubic=True, a=a) for a in (2.8, 3.0)]
    for seed, atoms in enumerate(crystals):
        atoms.rattle(0.1, seed=seed)
    settings = RelaxationSettings(fmax=0.01, steps=20, cell=CellRelaxation())
    source = [system_of(atoms) for atoms in crystals]
    whole, stopped = RelaxationFolder(tmp_path / "whole"), RelaxationFolder(tmp_path / "stopped")
    relax_into(whole, Morse(stress=True), source, settings)
    steps = iter(range(100))
    assert relax_into(stopped, Morse(stress=True), source, settings, stop=lambda: next(steps) == 7) is None
    assert relax_into(stopped, Morse(stress=True), source, settings, resume=True) is not None
    assert_same_results(stopped, whole)
    relaxed = ase.io.read(whole.structures, 0)
    assert np.abs(relaxed.cell - crystals[0].cell).max() > 0.01
    assert relaxed.get_stress().shape == (6,)


def test_a_finished_run_repeats_nothing(tmp_path: Path) -> None:
    folder = RelaxationFolder(tmp_path)
    relax_into(folder, Morse(), structures(), SETTINGS)
    again = Morse()
    relax_into(folder, again, structures(), SETTINGS, resume=True)
    assert again.calls == []


def test_trajectories_hold_every_geometry(tmp_path: Path) -> None:
    folder = RelaxationFolder(tmp_path / "out")
    given = [replace(system, sid='of "two"\nlines') for system in structures()]
    relax_into(folder, Morse(), given, SETTINGS, trajectories=True)
    for index, (system, result) in enumerate(zip(given, folder.results(), strict=True)):
        frames = ase.io.read(folder.trajectory(index), ":")
        assert [frame.info["moves"] for frame in frames] == list(range(result.moves + 1))
        assert {frame.info["sid"] for frame in frames} == {'of "two" lines'}
        np.testing.assert_allclose(frames[0].positions, system.positions, atol=1e-8)
        assert frames[-1].get_potential_energy() == pytest.approx(result.energy)


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    folder = RelaxationFolder(tmp_path)
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not empty and holds no relaxation"):
        relax_into(folder, Morse(), structures(), SETTINGS)
    (tmp_path / "mine.txt").unlink()
    relax_into(folder, Morse(), structures(), SETTINGS)
    with pytest.raises(ValueError, match="--resume"):
        relax_into(folder, Morse(), structures(), SETTINGS)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    folder = RelaxationFolder(tmp_path)
    relax_into(folder, Morse(), structures(), SETTINGS, origin={"file": "a.extxyz"})
    with pytest.raises(ValueError, match="file: a.extxyz then, b.extxyz now"):
        relax_into(folder, Morse(), structures(), SETTINGS, origin={"file": "b.extxyz"}, resume=True)
    with pytest.raises(ValueError, match="settings"):
        relax_into(folder, Morse(), structures(), RelaxationSettings(), origin={"file": "a.extxyz"}, resume=True)


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    folder = RelaxationFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        relax_into(folder, Breaks(2), structures(), SETTINGS)
    folder.running.write_bytes(folder.running.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"running.safetensors is damaged.*remove it"):
        relax_into(folder, Morse(), structures(), SETTINGS, resume=True)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[float, str, float]] = []
    bad = structures()
    bad[2] = system_of(ase.Atoms("U2", [[0, 0, 0], [0, 0, 2]]))
    relax_into(RelaxationFolder(tmp_path), Morse(), bad, SETTINGS, progress=lambda *now: told.append(now))
    finished = [done for done, _, _ in told]
    assert finished == sorted(finished)
    assert told[-1] == (5, "5 of 5 relaxed, 0 under way, 1 without a result", 5)
