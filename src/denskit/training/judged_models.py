"""The models that a training keeps, and their errors on the validation split."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from denskit.data.base import Source, evenly
from denskit.models.model_file import read_header, save_model
from denskit.runtime.processes import Processes
from denskit.runtime.progress import counted
from denskit.tasks.metrics import measure
from denskit.training.best_by import BEST_BY, judged_by
from denskit.training.checkpoint import Checkpoint, cannot_write
from denskit.training.run_folder import RunFolder
from denskit.training.settings import TrainingConfig
from denskit.training.weight_update import WeightUpdate

_FEWER = "lower training.evaluate_batch_size"


class JudgedModels:
    """Judges the averaged weights of a training and writes them as model files: the best, the last, and the run's.

    ``valid``: structures to judge on, or None: then the last model is the run's.  ``about``: the metadata of a model
    file, at the time when it is written.
    """

    def __init__(
        self,
        training: TrainingConfig,
        folder: RunFolder,
        update: WeightUpdate,
        valid: Source | None,
        about: Callable[[], dict[str, Any]],
    ) -> None:
        self.training, self.folder, self.update, self.about = training, folder, update, about
        self.valid = None if valid is None else evenly(valid, training.evaluate_structures)
        self.best: float | None = None  # smallest validation MAE (training.best_by)
        self.judged: tuple[int, dict[str, float]] = (0, {})  # step and errors of the last validation
        self.seconds = 0.0  # of the last judgement

    @property
    def _group(self) -> Processes:
        return self.update.group

    def resume(self, checkpoint: Checkpoint, *, same_structures: bool) -> list[str]:
        """Take over what the checkpoint and the folder know of the best; messages."""
        step, self.best = checkpoint.step, checkpoint.best
        self.judged = self.folder.last_judged(step)
        if later := self.folder.best_after(step):  # by the steps that are done again
            self.best = later[judged_by(self.training.best_by, later)]
        if not same_structures:
            self.best = None  # it was an error of other structures
        if self.best is None or self.folder.model.is_file() or self.folder.best_model.is_file():
            return []
        self.best = None
        return [f"note: {self.folder.model} is gone; kept is the best model of the steps from here on"]

    def begin_trained(self) -> None:
        """Keep the model that the training began with, which may be gone when the run is resumed."""
        self.save(self.folder.last_model, {})

    def restore_best(self) -> None:
        """Make the best so far the run's model, which in an earlier process may have been the last."""
        if self.training.final == "best" and self.best is not None and self._group.is_first:
            self.folder.take_best()

    def validate(self, step: int, *, may_be_best: bool = True) -> dict[str, float]:
        """Errors on the validation split after a step; the best weights so far become a model file."""
        assert self.valid is not None
        training = self.training
        with self.update.averaged():
            errors = self.measure(self.valid)
            self.judged = step, errors
            by = judged_by(training.best_by, errors)
            if may_be_best and math.isfinite(errors[by]) and (self.best is None or errors[by] < self.best):
                self.best = errors[by]
                self.save(self.folder.best_model, errors)
                if training.final == "best":
                    self.save(self.folder.model, errors)
        return errors

    def columns(self, step: int, replayed: Source | None) -> dict[str, float]:
        """Columns of metrics.csv with the errors after a step, of replayed structures too."""
        begin = time.monotonic()
        columns: dict[str, float] = {}
        if self.valid is not None:
            columns |= {f"valid_{name}": value for name, value in self.validate(step).items()}
        if replayed is not None:
            with self.update.averaged():
                columns |= {f"replay_{name}": value for name, value in self.measure(replayed).items()}
        self.seconds = time.monotonic() - begin
        return columns

    def measure(self, source: Source) -> dict[str, float]:
        """Errors of the weights, as they are, on the structures of a source."""
        batch_size = self.training.evaluate_batch_size
        force_field = self.update.force_field
        return measure(force_field, source, batch_size=batch_size, processes=self._group, advice=_FEWER).summary()

    def save_last(self, step: int) -> None:
        """Write the weights after a step as the last model, and as the run's where that is the last."""
        judged, errors = self.judged
        errors = errors if judged == step else {}
        with self.update.averaged():
            self.save(self.folder.last_model, errors)
            if self.training.final == "last" or self.valid is None:
                self.save(self.folder.model, errors)

    def save(self, path: Path, errors: dict[str, float]) -> None:
        """Write the weights, as they are, as a model file, on the first process."""
        if not self._group.is_first:
            return
        about = self.about()
        if path == self.folder.model:
            self.folder.forget_results(about["step"])
        try:
            save_model(path, self.update.force_field, {**about, "validation": errors})
        except OSError as error:
            raise cannot_write(path, about["step"], error) from error

    def note_of_measure(self) -> str | None:
        """A message where another error than the one that was asked for decides on the best model."""
        errors, best_by = self.judged[1], self.training.best_by
        if not errors or (by := judged_by(best_by, errors)) == BEST_BY[best_by]:
            return None
        return f"note: all forces of the validation split are zero; best: the smallest {by}"

    def warning_of_no_gain(self, steps: int) -> str | None:
        """A message where no validation was better than that of the trained model before the first step."""
        errors, best_model = self.judged[1], self.folder.best_model
        if not (errors and best_model.is_file()) or read_header(best_model)["metadata"]["step"] != 0:
            return None
        by = judged_by(self.training.best_by, errors)
        kept = "it is the model of this run" if self.training.final == "best" else f"it is in {best_model}"
        return (
            f"warning: no validation was better than that of training.init_from before the first step: {by} "
            f"{self.best:.4g}, after {counted(steps, 'step')} {errors[by]:.4g}; {kept}. Lower training.lr="
            f"{self.training.lr:g}, or train longer"
        )
