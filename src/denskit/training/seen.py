"""Whether the model that a training starts from has trained on structures that the run is judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from denskit.data.splits import Splits
from denskit.models.model_file import run_settings
from denskit.training.run_folder import folder_of, model_file
from denskit.training.settings import RunConfig

_FIRST = 20  # models of a chain of fine-tunings that are looked at


def seen_before(config: RunConfig, splits: Splits | None) -> list[str]:
    """A warning where the model that fine-tuning starts from has trained on structures that the run is judged by.

    Looks at the models that it was fine-tuned from in turn, too; other copies of a file are not recognized.
    """
    origin, first = config.training.init_from, ""
    seen: dict[str, set[int]] = {"valid": set(), "test": set()}  # by the part of the run that is judged
    for _ in range(_FIRST if splits is not None else 0):
        if origin is None or not Path(origin).exists():
            break
        folder = folder_of(origin)
        own = folder.divided()
        if splits is not None and own is not None and own.sha256 == splits.sha256:
            seen["valid"].update(own.train.tolist())
            seen["test"].update(own.train.tolist(), own.valid.tolist())  # by which it was chosen
            first = first or str(folder.splits)
        try:
            origin = run_settings(model_file(origin)).get("training", {}).get("init_from")
        except (FileNotFoundError, ValueError):
            break
    shared = [(part, getattr(splits, part, np.zeros(0, dtype=int)), numbers) for part, numbers in seen.items()]
    counts = [(part, len(own), len(numbers & set(own.tolist()))) for part, own, numbers in shared]
    listed = " and ".join(f"{count} of the {of} {part} structures" for part, of, count in counts if count)
    if not listed:
        return []
    return [
        f"warning: the model of training.init_from={config.training.init_from} has trained on {listed} (or was chosen "
        f"by them), so errors on them will be too low; data.split.file={first} divides the file as there"
    ]
