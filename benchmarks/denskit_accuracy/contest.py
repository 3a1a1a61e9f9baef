"""One training within a budget of processor time: a timed trial, the training, and its errors on the test frames."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denskit.files import write_json
from denskit.training.run_folder import environment
from denskit_accuracy.clock import Point, pace, points_of, run_and_note, training_seconds
from denskit_accuracy.frames import SETS, labels_of, write_frames
from denskit_accuracy.programs import ENVIRONMENTS, Program, Training, steps_per_epoch

TRIAL_STEPS = 40  # between two of a trial's three validations
VALIDATIONS = 24  # of a training
MILLI = 1000.0
_FEWEST = 5


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A program, by name, on a set of frames within ``minutes`` of processor time; all files are in ``folder``."""

    folder: Path
    data: Path
    set_name: str
    program_name: str
    program: Program
    minutes: float

    @property
    def frames(self) -> Path:
        """Folder of the set's frames."""
        return self.folder / "frames" / self.set_name

    @property
    def run_folder(self) -> Path:
        """Folder of the training."""
        return self.folder / "runs" / f"{self.set_name}_{self.program_name}_{self.minutes:g}min"

    @property
    def result(self) -> Path:
        """Errors and times; the file exists once the training is finished and judged."""
        return self.run_folder / "result.json"

    def run(self) -> dict[str, Any]:
        """What is missing of trial, training and judgement.  Raises ValueError where the program fails."""
        if not self.result.exists():
            write_frames(SETS[self.set_name], self.data, self.frames)
            self.run_folder.mkdir(parents=True, exist_ok=True)
            training = self._training()
            if not (self.run_folder / "trained").exists():
                self._train(training)
                (self.run_folder / "trained").touch()
            write_json(self.result, self._judged(training))
        return json.loads(self.result.read_text(encoding="utf-8"))

    def _train(self, training: Training) -> list[Point]:
        """Begin or resume a training; its validations.  A program may end quietly when it is told to stop."""
        log = training.folder / "output.log"
        run_and_note(self.program.command(training), log, self.program.environment)
        points = self._points(training)
        if not points or points[-1].at < training.length:
            raise ValueError(f"{log}: the training ended before {training.length} {self.program.unit}s; run it again")
        return points

    def _points(self, training: Training) -> list[Point]:
        return points_of(training.folder / "output.log", self.program.line, first=self.program.first)

    def _training(self) -> Training:
        """The training whose length fits into the budget, by a trial that is made once."""
        file = self.run_folder / "length.json"
        if not file.exists():
            write_json(file, {"length": int(60 * self.minutes / self._trial())})
        length = json.loads(file.read_text(encoding="utf-8"))["length"]
        if length < _FEWEST:
            raise ValueError(
                f"{self.minutes:g} minutes are enough for {length} {self.program.unit}s of {self.program_name} on "
                f"{self.set_name}, and {_FEWEST} are the fewest; remove {file} and give more"
            )
        interval = max(1, length // VALIDATIONS)
        return self._of(self.run_folder, length // interval * interval, interval)

    def _trial(self) -> float:
        """Processor seconds of an epoch or step."""
        folder = self.run_folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        per_epoch = steps_per_epoch(type(self.program), SETS[self.set_name].train)
        interval = max(1, TRIAL_STEPS // per_epoch)
        return pace(self._train(self._of(folder, 3 * interval, interval)))

    def _of(self, folder: Path, length: int, interval: int) -> Training:
        return Training(
            frames=self.frames.absolute(), folder=folder.absolute(), settings=SETS[self.set_name].settings,
            stress=SETS[self.set_name].stress, minutes=self.minutes, length=length, interval=interval,
        )  # fmt: skip

    def _judged(self, training: Training) -> dict[str, Any]:
        points = self._points(training)
        seconds = training_seconds(points)
        return {
            "set": self.set_name, "program": self.program_name, "minutes": self.minutes,
            "used_minutes": seconds[-1] / 60,
            "start_seconds": points[0].cpu - seconds[0],
            "length": training.length, "unit": self.program.unit, "version": self._version(),
            "commit": environment()["commit"],
            **errors_of(self._predictions(), self.frames / "test.extxyz"),
            "curve": [[spent / 60, point.force_mae] for spent, point in zip(seconds, points, strict=True)],
        }  # fmt: skip

    def _predictions(self) -> Path:
        file = self.run_folder / "predictions.npz"
        subprocess.run(
            [
                self.program.python, str(ENVIRONMENTS / "judge.py"), self.program.kind,
                str(self.program.model(self.run_folder).absolute()), str(self.frames / "test.extxyz"), str(file),
            ],
            check=True,
            env=os.environ | self.program.environment,
        )  # fmt: skip
        return file

    def _version(self) -> str:
        program = f"from importlib.metadata import version; print(version({self.program.package!r}))"
        return subprocess.run(
            [self.program.python, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()


def errors_of(predictions: Path, frames: Path) -> dict[str, float]:
    """Mean absolute errors of energies (meV a structure), force components (meV/Å) and, where frames have it, of the
    components of the stress (meV/Å^3); and the rms error of the forces.
    """
    energies, forces, stresses = labels_of(frames)
    with np.load(predictions) as found:
        energy = found["energies"] - energies
        force = found["forces"] - np.concatenate(forces)
        stress = (
            {} if stresses is None else {"stress_mae_meV_per_A3": MILLI * _stress_mae(found["stresses"] - stresses)}
        )
    return {
        "energy_mae_meV": float(MILLI * np.abs(energy).mean()),
        "forces_mae_meV_per_A": float(MILLI * np.abs(force).mean()),
        "forces_rmse_meV_per_A": float(MILLI * np.sqrt(np.square(force).mean())),
        **stress,
    }


def _stress_mae(errors: np.ndarray) -> float:
    """Over the nine components, of which ``errors`` [frames, 6] has those off the diagonal once."""
    return float((np.abs(errors) * [1, 1, 1, 2, 2, 2]).sum(1).mean() / 9)
