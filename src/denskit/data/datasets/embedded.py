"""The dataset ``embedded``: molecular dynamics that ships with Denskit (``embedded/README.md`` says how it is made)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from denskit.data.config import DataConfig, SplitConfig
from denskit.data.loading import WEIGHTED, LoadedData, load_files

FOLDER = Path(__file__).parents[1] / "embedded"
MOLECULES = ("ethanol", "acetamide")
# Time blocks of the 2,000 frames; 20 frames (0.2 ps) between blocks are used for nothing.
BLOCKS = SplitConfig(mode="blocks", train=1400, valid=200, test=360, gap=20)


def load_embedded(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """``data.molecule`` ethanol (the default) or acetamide, in blocks of time unless ``data.split`` says otherwise.

    Raises ValueError for another molecule, and for files given besides.
    """
    given = [field for field in ("path", "train", "valid") if getattr(config, field) is not None]
    if given:
        raise ValueError(f"data.name=embedded needs no file: data.{given[0]} is for your own, with data.name=file")
    molecule = config.molecule or MOLECULES[0]
    if molecule not in MOLECULES:
        raise ValueError(f"{molecule!r} is not embedded; data.molecule is one of {', '.join(MOLECULES)}")
    split = config.split
    if split.mode is None and split.file is None:
        shares = split.model_fields_set & {"train", "valid", "test"}
        kept = {field: getattr(split, field) for field in split.model_fields_set}
        kept |= {"mode": "random", "gap": 0} if split.seed is not None else {}
        split = BLOCKS.model_copy(update=kept if not shares else {"train": None, "valid": None, "test": None, **kept})
    if config.test is not None:
        split = split.model_copy(update={"test": None})
    update = {"path": None, "train": str(FOLDER / f"{molecule}.npz"), "split": split}
    if config.references is None:
        update["references"] = "mean"  # one molecule, whose elements' energies nothing tells apart
    return load_files(config.model_copy(update=update), seed, required)
