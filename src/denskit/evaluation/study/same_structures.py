"""Whether variants were judged on the same structures: else their difference is also one of the structures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from denskit.data.readers.formats import is_there
from denskit.data.splits import content_in_words
from denskit.evaluation.study.results import Found
from denskit.training.load_config import load_config
from denskit.training.run_folder import RunFolder

_JUDGED = {"test": "tested on different structures (test)", "valid": "validated on different structures"}


def of_other_structures(found: Sequence[Found], part: Literal["test", "valid"]) -> str:
    """A warning where variants were judged on different structures; empty where not, or not known.

    The seeds of a variant may be: with those of another they are compared seed by seed, if they have one in common.
    """
    judged: dict[str, dict[int, str]] = {}
    contents: dict[str, str] = {}  # of files, which may be large, and the same for many runs
    for run in found:
        given = getattr(load_config(run.folder).data, part)
        if given is not None:
            if given not in contents:
                contents[given] = content_in_words(Path(given)) if is_there(Path(given)) else given
            judged.setdefault(run.variant, {})[run.seed] = contents[given]
        elif (splits := RunFolder(run.folder).divided()) is not None:
            structures = [splits.sha256, getattr(splits, part).tolist()]
            judged.setdefault(run.variant, {})[run.seed] = json.dumps(structures)
    for one, other in itertools.combinations(judged.values(), 2):
        common = one.keys() & other.keys()
        unlike = any(one[seed] != other[seed] for seed in common)
        if unlike or (not common and not set(one.values()) & set(other.values())):
            return f"{_JUDGED[part]}: their differences there say little"
    return ""
