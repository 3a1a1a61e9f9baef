"""A small run with DeNS on a file with a field that groups its frames."""

from __future__ import annotations

from pathlib import Path

import ase.io
import pytest

from denskit.data.datasets.embedded import FOLDER
from denskit.data.loading import read
from denskit.data.writing import plain, predicted
from denskit.training.load_config import load_config
from denskit.training.run import train

TINY = Path(__file__).parent.parent / "training" / "tiny.yaml"


def labelled_file(path: Path, count: int) -> Path:
    """Frames of ethanol, alternately of config_type "first" and "other"."""
    frames = []
    for system in list(read(FOLDER / "ethanol.npz"))[:count]:
        labels = {"energy": system.energy, "forces": system.forces}
        atoms = predicted(plain(system), system, labels)
        atoms.info["config_type"] = "other" if system.index % 2 else "first"
        frames.append(atoms)
    ase.io.write(path, frames)
    return path


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one training, with the same split."""
    folder = tmp_path_factory.mktemp("runs")
    file = labelled_file(folder / "mine.extxyz", 40)
    made = []
    for seed in (0, 1):
        overrides = [
            "data.name=file", "data.molecule=null", f"data.path={file}", f"output={folder / f'seed{seed}'}",
            f"seed={seed}",
            "data.split={mode: blocks, train: 20, valid: 4, test: 16}", "device=cpu",
        ]  # fmt: skip
        made.append(train(load_config(TINY, overrides)))
    return made
