"""The simulation study: bookkeeping over replicas, stop and resume, what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import ase
import numpy as np
import pytest
import torch
from ase.build import molecule

from denskit.batch import System
from denskit.simulation.distributions import h_of_r_error, histogram_of
from denskit.simulation.potential import Potential
from denskit.simulation.stability.protocol import Reference, StudySettings
from denskit.simulation.stability.results import Study
from denskit.simulation.stability.study import STATE_FILE, run_study

from trained import nearly_free

# 40 steps of 1 fs at 1,000 K: nothing holds the molecules together
HOT = StudySettings(length=0.04, seeds=3, temperature=1000.0, timestep=1.0, every=5, relaxation_time=1000.0, nve=0.02)


@dataclass(frozen=True)
class Frames:
    structures: list[ase.Atoms]
    name: str = "frames.xyz"

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> System:
        atoms, n = self.structures[index], len(self.structures[index])
        return System(
            positions=atoms.positions, atomic_numbers=atoms.numbers, cell=atoms.cell.array, pbc=atoms.pbc,
            fixed=np.zeros(n, dtype=bool), tags=np.zeros(n, dtype=np.int64),
        )  # fmt: skip


@pytest.fixture(scope="module")
def potential() -> Potential:
    return Potential(nearly_free())


@pytest.fixture(scope="module")
def reference() -> Reference:
    generator = np.random.default_rng(0)
    frames = [molecule("H2O") for _ in range(10)]
    for frame in frames[1:]:
        frame.positions += generator.normal(scale=0.05, size=(3, 3))
    return Reference.of(Frames(frames))


@pytest.fixture(scope="module")
def whole(potential: Potential, reference: Reference) -> Study:
    """The study that nothing interrupted."""
    return run_study(potential, reference, HOT)


def test_simulations_fall_apart_one_by_one(whole: Study) -> None:
    study = whole
    assert 0 < len(study.failures) <= 3
    for failure in study.failures:
        assert failure.check == "bonds" and failure.reason.startswith("bond ")
        assert failure.step % HOT.every == 0
        assert study.stability[failure.replica] == failure.time == failure.step / 1000
    steps = study.series.histogram.counts.sum(1) // 3  # three pairs a frame
    for replica, stable in enumerate(study.stability):
        ended = any(failure.replica == replica for failure in study.failures)
        assert steps[replica] == round(stable * 1000 / HOT.every) + (0 if ended else 1)
        temperatures = np.array(study.series.temperature)[:, replica]
        assert np.isfinite(temperatures).sum() == steps[replica]
    assert json.loads(json.dumps(study.summary()))["stability_ps"]["mean"] == pytest.approx(np.mean(study.stability))


def test_h_of_r_is_that_of_the_frames_before_the_instability(potential: Potential, reference: Reference) -> None:
    settings = HOT.model_copy(update={"seeds": 1, "length": 0.005, "nve": 0.0})
    study = run_study(potential, reference, settings)
    # frames 0 and 5; frame 0 is the reference's first
    first = histogram_of(reference.positions[:1])
    last = study.series.histogram.counts[0] - first.counts[0]
    assert last.sum() == 3 and not torch.equal(last, first.counts[0])
    wanted = h_of_r_error(study.series.histogram.h_of_r(), histogram_of(reference.positions).h_of_r())
    assert study.h_of_r_errors() == [wanted]
    assert study.conservation is None and "nve_score" not in study.summary()


def test_replicas_do_what_each_does_alone(potential: Potential, reference: Reference, whole: Study) -> None:
    three = whole
    one = run_study(potential, reference, HOT.model_copy(update={"seeds": 1}))
    assert one.stability == three.stability[:1]
    assert one.conservation is not None and three.conservation is not None
    assert one.conservation.drift == pytest.approx(three.conservation.drift[:1], rel=1e-6)
    found = [row[0] for row in three.series.temperature]
    alone = [row[0] for row in one.series.temperature]
    assert alone == pytest.approx(found[: len(alone)], rel=1e-9, nan_ok=True)


def test_a_stopped_study_goes_on_and_a_finished_one_can_be_made_longer(
    potential: Potential, reference: Reference, whole: Study, tmp_path: Path
) -> None:
    asked = iter(range(100))
    stopped = run_study(potential, reference, HOT, folder=tmp_path, resume=True, stop=lambda: next(asked) >= 13)
    assert stopped.simulated == 0.013
    told: list[tuple[float, str, float]] = []
    again = run_study(potential, reference, HOT, folder=tmp_path, resume=True, progress=lambda *now: told.append(now))
    assert again.summary() == whole.summary()
    assert np.array_equal(again.series.temperature, whole.series.temperature, equal_nan=True)
    assert told[0] == (0.015, "stability, 0.01 ps", 0.04) and told[-1][1].startswith("energy drift")
    longer = HOT.model_copy(update={"length": 0.045})
    assert run_study(potential, reference, longer, folder=tmp_path, resume=True).stability[0] >= whole.stability[0]


@pytest.mark.parametrize("stop_at", [0, 10])
def test_a_study_stopped_at_a_frame_counts_it_once(
    potential: Potential, reference: Reference, whole: Study, tmp_path: Path, stop_at: int
) -> None:
    asked = iter(range(100))
    run_study(potential, reference, HOT, folder=tmp_path, resume=True, stop=lambda: next(asked) >= stop_at)
    again = run_study(potential, reference, HOT, folder=tmp_path, resume=True)
    assert again.series.time == whole.series.time
    assert torch.equal(again.series.histogram.counts, whole.series.histogram.counts)


def test_failures_are_told_once_however_often_a_study_is_saved(
    potential: Potential, reference: Reference, whole: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole.failures[0].step < HOT.steps(HOT.length)
    monkeypatch.setattr("denskit.simulation.stability.study.CHUNK", 5)
    assert run_study(potential, reference, HOT, folder=tmp_path, resume=True).summary() == whole.summary()
    assert run_study(potential, reference, HOT, folder=tmp_path, resume=True).summary() == whole.summary()


def test_another_study_in_the_folder_is_refused(potential: Potential, reference: Reference, tmp_path: Path) -> None:
    short = HOT.model_copy(update={"length": 0.002, "nve": 0.0})
    run_study(potential, reference, short, folder=tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds another study:\n  protocol.seed: 0 then, 1 now"):
        run_study(potential, reference, short.model_copy(update={"seed": 1}), folder=tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds another study:\n  dtype: float64 then, float32 now"):
        run_study(Potential(potential.models, dtype=torch.float32), reference, short, folder=tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds a study; continue it with --resume"):
        run_study(potential, reference, short, folder=tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"no state")
    with pytest.raises(ValueError, match="is damaged, or no saved state"):
        run_study(potential, reference, short, folder=tmp_path, resume=True)


def test_references_that_cannot_be_used() -> None:
    with pytest.raises(ValueError, match="frames.xyz has no structures"):
        Reference.of(Frames([]))
    with pytest.raises(ValueError, match="frames.xyz: structure 1 is another molecule"):
        Reference.of(Frames([molecule("H2O"), molecule("CH4")]))
    with pytest.raises(ValueError, match="frames.xyz is periodic"):
        Reference.of(Frames([ase.Atoms("H2", cell=[5, 5, 5], pbc=True)]))


def test_the_energy_drift_is_that_of_the_protocol_when_a_study_is_made_longer(
    potential: Potential, reference: Reference, tmp_path: Path
) -> None:
    """Measured over 5 steps at first (shorter than the interval between energies), then over all 20."""
    mild = HOT.model_copy(update={"seeds": 1, "temperature": 50.0, "length": 0.005})
    first = run_study(potential, reference, mild, folder=tmp_path, resume=True)
    longer = mild.model_copy(update={"length": 0.02})
    again = run_study(potential, reference, longer, folder=tmp_path, resume=True)
    assert first.conservation is not None and again.conservation is not None
    drift = again.conservation.drift
    assert len(first.conservation.drift) == len(drift) == 1 and first.conservation.drift != drift
    assert run_study(potential, reference, longer).conservation == again.conservation


def test_a_study_is_at_least_one_step_long() -> None:
    with pytest.raises(ValueError, match=r"length 0.0002 ps is less than a time step of 0.5 fs"):
        StudySettings(length=0.0002)
