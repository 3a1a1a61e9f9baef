"""All that a report needs of one run, read or measured when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from denskit.analysis.judged import Judged, judge
from denskit.data.base import Source, evenly
from denskit.data.loading import read_file
from denskit.data.readers.formats import is_read_by_ase
from denskit.data.writing import Originals
from denskit.evaluation.denoising import Corrupted, Recovery, corrupt, denoise
from denskit.evaluation.evaluate import load_force_field
from denskit.evaluation.judged_structures import reading, run_data
from denskit.files import sha256_of
from denskit.models.model_file import read_header
from denskit.reading.documents import read_json
from denskit.runtime.run_state import lines_of
from denskit.tasks import denoises
from denskit.training.inputs import contents
from denskit.training.load_config import load_config
from denskit.training.overview import errors_of, metrics_of
from denskit.training.run_folder import RunFolder
from denskit.training.settings import RunConfig

PREDICTIONS = "predictions.npz"  # in the run folder, so that a second report is fast
MOST_DENOISED = 100  # structures on which the recovery of noise is measured
MOST_VALUES = 12  # of a field that groups structures
_OF_WORK = ("step ", "finished: ", "stopped")  # begin lines after those of the start


class RunResults:
    """One run folder, with a name for reports.  Raises FileNotFoundError where ``path`` is no run folder."""

    def __init__(self, path: Path, *, name: str = "", device: str = "auto") -> None:
        self.path, self.folder, self.device = path, RunFolder(path), device
        self.name = name or path.resolve().name
        if not self.folder.config.is_file():
            raise FileNotFoundError(f"{path}: no config.yaml in it; give a run folder made by `denskit train`")

    @cached_property
    def config(self) -> RunConfig:
        """The settings."""
        return load_config(self.path)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv; only "step", empty, where nothing is logged yet."""
        try:
            return metrics_of(self.folder)
        except (FileNotFoundError, ValueError):
            return {"step": np.zeros(0)}

    @cached_property
    def messages(self) -> list[str]:
        """The lines of train.log without their times, each once.

        Of a training that went on after it was resumed, those before it are gone, but for findings about the data.
        """
        lines = lines_of(self.folder.path)
        last_step = max((place for place, line in enumerate(lines) if line.startswith("step ")), default=-1)
        resumed = [place for place, line in enumerate(lines[:last_step]) if line.startswith("resumed after step")]
        if resumed:
            worked = (place for place, line in enumerate(lines[: resumed[-1]]) if line.startswith(_OF_WORK))
            begin = max(worked, default=-1) + 1
            lines = [line for line in lines[:begin] if line.startswith("training data:")] + lines[begin:]
        return list(dict.fromkeys(lines))

    @cached_property
    def header(self) -> dict[str, Any]:
        """The header of the model file; empty where there is no model yet."""
        return read_header(self.folder.model) if self.folder.model.is_file() else {}

    @cached_property
    def errors(self) -> dict[str, dict[str, float]]:
        """Errors that a study or ``denskit evaluate`` wrote, by test."""
        return errors_of(self.folder)

    @cached_property
    def judged(self) -> Judged | str:
        """Predictions for the test split, else for the validation split; or why there are none."""
        if not self.header:
            return "The run has no model yet."
        # of files that are gone, the content that they had for the run
        content = self.header["metadata"].get("contents", {}) | contents(self.config)
        key = f"{sha256_of(self.folder.model)} {sorted(content.items())}"
        found = Judged.load(self.path / PREDICTIONS, key)
        if found is not None:
            return found
        try:
            data, force_field = run_data(self.path), load_force_field(self.path, None, self.device)
            source = data.valid if data.test is None else data.test
            if source is None:
                return "The run has neither a test nor a validation split."
            found = judge(force_field, source, data.train, part="validation" if data.test is None else "test")
        except (OSError, ValueError) as error:
            return f"Nothing was predicted: {error}"
        found.save(self.path / PREDICTIONS, key)
        return found

    @cached_property
    def groups(self) -> dict[str, np.ndarray]:
        """Fields of the file with few values, such as config_type, and the composition: name -> value [B] (text)."""
        if isinstance(self.judged, str):
            return {}
        judged = self.judged
        found: dict[str, list[str]] = {}
        for info in self._fields(judged):
            for name, value in info.items():
                if isinstance(value, str | bool | int | np.integer | np.bool_):
                    found.setdefault(name, []).append(str(value))
        found["composition"] = [judged.formula(place) for place in range(len(judged))]
        divisions = {
            name: np.array(values)
            for name, values in found.items()
            if len(values) == len(judged) and 1 < len(set(values)) <= MOST_VALUES
        }
        different: dict[tuple[int, ...], str] = {}  # two fields that divide alike are shown once
        for name, values in divisions.items():
            different.setdefault(tuple(np.unique(values, return_inverse=True)[1]), name)
        return {name: divisions[name] for name in different.values()}

    def _fields(self, judged: Judged) -> list[dict[str, Any]]:
        """The ``info`` of each judged structure, where ASE reads the file."""
        data = self.config.data
        own = data.test if judged.part == "test" else data.valid
        name = own or (data.parts[0].path if len(data.parts) == 1 else None)  # that is divided
        if data.name != "file" or name is None or not is_read_by_ase(Path(name).expanduser()):
            return []
        source = read_file(name, reading(self.path, name))[0]
        original = Originals(name, source)
        return [original(source[int(index)]).info for index in judged.index]

    @cached_property
    def denoises(self) -> bool:
        """Whether the run was trained to predict noise."""
        return denoises(self.config.task)

    @cached_property
    def unseen(self) -> Source | None:
        """Structures that noise is added to, of the test or validation split; None: no noise is predicted for them."""
        if not self.denoises or isinstance(self.judged, str):
            return None
        try:
            data = run_data(self.path)
        except (OSError, ValueError):  # the data have moved, but predictions are there
            return None
        source = data.valid if data.test is None else data.test
        return None if source is None else evenly(source, MOST_DENOISED)

    @cached_property
    def recovered(self) -> Sequence[Recovery]:
        """Recovery of noise at half, once and twice the run's own sigma; empty where it cannot be measured."""
        stored = self.path / "denoising.json"
        if stored.is_file():
            return [Recovery(**cell) for cell in read_json(stored)]
        if self.unseen is None:
            return []
        try:
            return denoise(self.path, self.unseen, device=self.device)
        except ValueError:  # no atom may be corrupted
            return []

    @cached_property
    def corrupted(self) -> list[Corrupted]:
        """One structure at four sigmas; empty where none of its atoms may be corrupted."""
        if self.unseen is None:
            return []
        try:
            return corrupt(self.path, self.unseen[0], device=self.device)
        except ValueError:
            return []

    @cached_property
    def yaml(self) -> str:
        """The settings as text."""
        return self.folder.config.read_text(encoding="utf-8")
