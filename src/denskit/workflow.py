"""Denskit from Python: train on files or on atoms in memory, and hold a run as one object."""

from __future__ import annotations

import html
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ase
import numpy as np

from denskit.data.frames import frames_of
from denskit.evaluation.evaluate import Predictions, evaluate, load_force_field, predict
from denskit.files import write_json
from denskit.models.base import ForceField
from denskit.runtime.run_state import RunState, state_of
from denskit.training.load_config import load_config
from denskit.training.overview import errors_of, messages_of, metrics_of, overview_of, rows_of, run_folder
from denskit.training.run import train as train_run
from denskit.training.run_folder import model_file
from denskit.training.run_log import OnRow
from denskit.training.settings import RunConfig


class Run(os.PathLike[str]):
    """A run folder: a training and its results.

    Functions that take the path of a run or of a model take a ``Run``, too.  It can be pickled, and shows a summary in
    a terminal and in a notebook.

    Raises FileNotFoundError where the folder holds no run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._folder = run_folder(self.path)
        self._model: tuple[tuple[int, int], ForceField] | None = None

    @property
    def config(self) -> RunConfig:
        """All settings."""
        return load_config(self.path)

    @property
    def state(self) -> RunState:
        """ "running", "finished", "failed" or "interrupted"."""
        return state_of(self._folder.path)

    @property
    def messages(self) -> list[str]:
        """Decisions and warnings of the log, without its lines of numbers, which are in :attr:`curves`."""
        return messages_of(self._folder)

    @property
    def curves(self) -> dict[str, np.ndarray]:
        """Columns of metrics.csv [rows] float64: "step", "train_loss", "valid_forces_mae_meV_per_A", ...; NaN: none.

        Empty before the first logged step.
        """
        return metrics_of(self._folder) if rows_of(self._folder) else {}

    @property
    def errors(self) -> dict[str, float]:
        """Errors on the test split as :func:`denskit.evaluate` measures them, once; kept in the folder.

        Raises ValueError where the run has no test split.
        """
        found = errors_of(self._folder).get("test")
        if found is None:
            found = evaluate(self.path)
            write_json(self.path / "test.json", found)
        return found

    @property
    def model(self) -> ForceField:
        """The resulting force field, in evaluation mode; loaded when first asked for, and after it has changed."""
        file = model_file(self.path).stat()
        written = (file.st_mtime_ns, file.st_size)
        if self._model is None or self._model[0] != written:
            self._model = written, load_force_field(self.path, None, "auto")
        return self._model[1]

    def predict(self, structures: Sequence[ase.Atoms] | ase.Atoms | str | os.PathLike[str]) -> Predictions:
        """Energies, forces and stress of structures: see :func:`denskit.predict`."""
        return predict(self.model, structures)

    def report(self) -> Path:
        """Write report.html into the folder, and return its path."""
        from denskit.analysis.report import report

        return report(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.path.resolve() == other.path.resolve()

    def __hash__(self) -> int:
        return hash(self.path.resolve())

    def __reduce__(self) -> tuple[type[Run], tuple[Path]]:
        return Run, (self.path,)

    def __repr__(self) -> str:
        return "\n".join(
            [f"Run({str(self.path)!r})", *(f"  {name:11} {value}" for name, value in self._rows().items())]
        )

    def _repr_html_(self) -> str:
        cells = ((html.escape(name), html.escape(value)) for name, value in self._rows().items())
        rows = "".join(f"<tr><td>{name}</td><td style='text-align: left'>{value}</td></tr>" for name, value in cells)
        return f"<table><caption>{html.escape(str(self.path))}</caption>{rows}</table>"

    def _rows(self) -> dict[str, str]:
        """The state, settings and known errors in words; computes nothing."""
        found = overview_of(self.path)
        steps = f"{found.step} of {found.steps} steps" if found.steps else "no step yet"
        rows = {
            "state": f"{found.state}, {steps}",
            "model": f"{found.model}, task {found.task}",
            "data": found.data,
            "validation": in_words(found.validation),
            "test": in_words(found.test),
        }
        return {name: value for name, value in rows.items() if value}


def in_words(errors: Mapping[str, float]) -> str:
    """The errors that one looks at first, with their units: ``forces 12.0 meV/Å, energy 1.3 meV/atom``."""
    shown = {
        "forces": ("forces_mae_meV_per_A", "meV/Å"),
        "energy": ("energy_mae_meV_per_atom", "meV/atom"),
        "stress": ("stress_mae_meV_per_A3", "meV/Å^3"),
    }
    return ", ".join(f"{what} {errors[key]:.3g} {unit}" for what, (key, unit) in shown.items() if key in errors)


def train(
    config: RunConfig | str | os.PathLike[str],
    atoms: Iterable[ase.Atoms] | None = None,
    *,
    valid: Iterable[ase.Atoms] | None = None,
    test: Iterable[ase.Atoms] | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = False,
    on_row: OnRow | None = None,
    **more: Any,
) -> Run:
    """Train a model; the run with its errors, curves and model.

        run = train("equiformer", frames, task="dens", output="runs/mine", settings={"training.max_steps": 2000})
        run = train("equiformer", data="embedded", output="runs/shipped")
        run = train("runs/mine", resume=True)

    Args:
        config: a preset, a YAML file, a run folder, or a configuration of :func:`denskit.load_config`.
        atoms: labelled structures, divided by ``data.split`` where no ``valid`` or ``test`` is given; their energies,
            forces and stresses are found as those of a file.  They are written into the run folder, with all digits.
        valid, test: labelled structures for validation and for the final test.
        settings: overrides as :func:`denskit.load_config` takes them; ``more``: the same, as keywords.
        resume: continue the run in the output folder, if there is one.
        progress: show the log and a progress bar; the log is in ``run.messages`` in any case.
        on_row: called with each row of metrics.csv, {"step": 500, "train_loss": ..., ...}: for a logger of your own.

    Raises ValueError for settings, structures (naming the frame) and folders that cannot be used, and for a training
    that failed; FileNotFoundError; KeyboardInterrupt after Ctrl-C, when the state is saved.
    """
    changes = {**(settings or {}), **more}
    if isinstance(config, RunConfig):
        if changes:
            raise ValueError(f"a whole configuration is given, and {next(iter(changes))} too; give it to load_config")
    elif isinstance(config, str | os.PathLike):
        config = load_config(config, changes)
    else:
        raise ValueError(
            f"found {type(config).__name__} in the place of the settings; wanted a preset, a YAML file or a run folder "
            'first, then the structures: train("equiformer", frames)'
        )
    parts = {"train": atoms, "valid": valid, "test": test}
    frames = {part: frames_of(given) for part, given in parts.items() if given is not None}
    if frames and atoms is None:
        raise ValueError(f"{' and '.join(frames)} structures are given, but none to train on")
    try:
        return Run(train_run(config, resume=resume, frames=frames or None, progress=progress, on_row=on_row))
    except SystemExit as stopped:  # which would end a notebook's kernel
        if stopped.code != 128 + signal.SIGINT:
            raise
        if state_of(Path(config.output)) == "finished":  # it came during the last validation
            raise KeyboardInterrupt(f"the training has finished; its run is Run({config.output!r})") from None
        raise KeyboardInterrupt(f"the state is saved; continue with train({config.output!r}, resume=True)") from None
