"""Replay: some of the structures that a model was trained on are trained on again, so that fine-tuning keeps them.

Their energies move with the references: where fine-tuning changes the references of the elements by some eV, labels
change by the same, so that one energy head serves both sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from denskit.batch import System
from denskit.data.base import Source, Subset, evenly
from denskit.data.config import FilterConfig
from denskit.data.filters import without_filtered
from denskit.data.loading import read_files
from denskit.data.readers.formats import is_there, path_of, place_of, places_in
from denskit.data.records import joined
from denskit.models.base import ForceField
from denskit.models.model_file import load_model, read_header, run_settings
from denskit.models.scaling import Scaling
from denskit.tasks.metrics import measure
from denskit.training.loader import Mixture
from denskit.training.reading_settings import reading_as_trained
from denskit.training.run_folder import folder_of, model_file
from denskit.training.settings import RunConfig

JUDGED = 200  # old structures, at most, that are held out to measure forgetting
FORGOTTEN = 0.5  # force error relative to predicting zero: a model does better on its own training data


def with_replay(config: RunConfig, new: Source, force_field: ForceField) -> tuple[Mixture, list[str]]:
    """The training structures of a run, and messages.

    Raises ValueError where the old structures would have no effect, or are not those that the model learned.
    """
    training = config.training
    if training.replay is None:
        return Mixture(new, len(new)), []
    trained = model_file(str(training.init_from))
    old, said, recognised = old_structures(config)
    each = round(len(new) * training.replay_share / (1 - training.replay_share))
    held = min(JUDGED, len(old) // 10)
    if not each or not held or len(old) - held < 1:
        raise ValueError(
            f"training.replay={training.replay}: {len(old)} old structures beside {len(new)} new ones at "
            f"training.replay_share={training.replay_share:g} come to {each} an epoch, {held} held out; at least 1 of "
            "each is wanted. Give more old structures, or a larger share"
        )
    if not recognised:
        _require_known(load_model(trained), evenly(old, JUDGED), training.replay, training.evaluate_batch_size)
    before, now = Scaling.from_dict(read_header(trained)["scaling"]), force_field.scaling
    references = (now.references.cpu() - before.references).numpy()
    moved = _Moved(old, references, float(now.energy_shift) - float(before.energy_shift))
    order = np.random.default_rng(config.seed).permutation(len(old))
    chosen = Subset(moved, order[held:], f"{training.replay} (replay)")
    mixture = Mixture(joined([new, chosen]), len(new), each, Subset(moved, np.sort(order[:held]), "old structures"))
    rounds = len(chosen) / each
    said.append(
        f"replay: {each} of {len(chosen)} old structures in each epoch beside {len(new)} new ones, all of them in "
        f"{max(rounds, 1):.3g} epochs; {held} are held out and judged at each evaluation"
    )
    return mixture, said


def _trained_part(trained: Path, file: str, structures: int) -> np.ndarray | None:
    """Indices of the training structures of a file that the model's own run divided; None: another file, all of it."""
    path, own = path_of(file), folder_of(trained).divided()
    if own is None or not is_there(path):
        return None
    if not own.is_of(path) or own.train.max(initial=0) >= structures:
        return None
    return own.train


def old_structures(config: RunConfig) -> tuple[Source, list[str], bool]:
    """The structures of ``training.replay`` that the trained model learned, read as then, and messages.

    The last is whether the file is that of the model's own run, bit for bit.
    Raises ValueError for a file of this run's own data.
    """
    training, trained = config.training, model_file(str(config.training.init_from))
    assert training.replay is not None
    own = [*(part.path for part in config.data.parts), config.data.valid, config.data.test]
    if any(places_in(training.replay) & places_in(name) for name in own if name is not None):
        raise ValueError(
            f"training.replay={training.replay} is, or holds, a file of this run's own data, so nothing old would "
            "be replayed. Give structures that the model of training.init_from was trained on, or leave "
            "training.replay out"
        )
    old: Source
    data = run_settings(trained).get("data", {})
    reading = reading_as_trained(trained, training.replay)
    old, said = read_files(training.replay, reading.model_copy(update={"origin": _origin(data, training.replay)}))
    part = _trained_part(trained, training.replay, len(old))
    if part is None:
        return *_filtered(old, data, said), False
    said.append(f"{training.replay}: the {len(part)} of {len(old)} structures that the model was trained on")
    return Subset(old, part, f"{training.replay} (train)"), said, True


def _filtered(old: Source, data: Mapping[str, Any], said: list[str]) -> tuple[Source, list[str]]:
    """Those that ``data.filter`` of the first run keeps, but for ``max_energy_deviation``, a fit to all its files."""
    rules = FilterConfig.model_validate(data.get("filter", {})).model_copy(update={"max_energy_deviation": None})
    try:
        old, left_out = without_filtered(old, rules)
    except ValueError as error:
        raise ValueError(f"training.replay, by data.filter of the run of training.init_from: {error}") from error
    return old, said + left_out


def _origin(data: Mapping[str, Any], file: str) -> str | None:
    """The origin that a file had among the training data ``data`` of a model, or that of all."""
    files = data.get("train")
    for part in files if isinstance(files, list) else ():
        if place_of(part["path"]) == place_of(file):
            return part.get("origin") or data.get("origin")
    return data.get("origin")


@dataclass(frozen=True)
class _Moved(Source):
    """Structures whose energies follow the references."""

    source: Source
    references: np.ndarray  # [119] eV, changes
    shift: float  # eV, change

    @property
    def name(self) -> str:
        return self.source.name

    @cached_property
    def sizes(self) -> np.ndarray | None:
        return self.source.sizes

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> System:
        system = self.source[index]
        if system.energy is None:
            return system
        moved = float(self.references[system.atomic_numbers].sum()) + self.shift
        return replace(system, energy=system.energy + moved)


def _require_known(trained: ForceField, old: Source, path: str | Path, batch_size: int) -> None:
    """Raise ValueError for unknown elements, and structures that the trained model does not know by its own heads.

    Gradients of an energy that was learned beside direct forces would tell less.
    """
    for system in old:
        trained.scaling.check_elements(system.atomic_numbers, f"{path}, frame {system.index},")
    errors = measure(trained, old, batch_size=batch_size).summary()
    relative = errors.get("forces_mae_relative_to_zero", errors.get("energy_mae_relative_to_mean"))
    if relative is None:
        raise ValueError(f"training.replay={path}: no old structure has labels, so nothing would be learned from them")
    if relative > FORGOTTEN:
        raise ValueError(
            f"training.replay={path}: the model's error is {relative:.2f} of a trivial prediction's on these "
            "structures, so it was not trained on them, or their labels are in another unit or of another method. Give "
            "structures of its training data, or train on these as data.train"
        )
