"""``denskit info`` names exploded frames instead of hanging or dying; in a child process, since it did die."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.build import fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator

SECONDS = 120  # of the processor


def exploded() -> dict[str, ase.Atoms]:
    """Structures by what is wrong with them."""
    slab = fcc111("Cu", (2, 2, 2), vacuum=6.0)
    far, wire, gone = slab.copy(), molecule("H2"), molecule("H2")
    far.positions[3, 2] = 1e5
    wire.set_cell([0, 0, 4.0])
    wire.pbc = [False, False, True]
    wire.positions[1, 0] = 3e4
    gone.positions[1, 0] = 1e150
    dust = molecule("H2")
    dust.positions[1, 0] = 1e6
    flat = ase.Atoms("Cu2", [[0, 0, 0], [0.7, 0.7, 0]], cell=[[2, 0, 0], [0, 2, 0], [2, 2, 1e-3]], pbc=True)
    return {"fine": molecule("H2"), "slab": far, "wire": wire, "molecule": dust, "infinity": gone, "flat": flat}


def inspect(path: Path) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    command = [sys.executable, "-m", "denskit", "info", str(path)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """All of them, labelled."""
    frames = list(exploded().values())
    for number, atoms in enumerate(frames):
        atoms.info.clear()
        forces = np.random.default_rng(number).normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0 - number, forces=forces - forces.mean(axis=0))
    ase.io.write(tmp_path / "exploded.traj", frames)
    return tmp_path / "exploded.traj"


def test_exploded_frames_are_named(file: Path) -> None:
    result = inspect(file)
    assert result.returncode == 1, f"killed by a signal, or nothing found: {result.stderr}"
    names, said = list(exploded()), " ".join((result.stdout + result.stderr).split())
    far, beyond, flat = names.index("slab"), names.index("molecule"), names.index("flat")
    assert f"parts of structures are up to 9.999e+04 Å apart (frames {far}, {names.index('wire')})" in said, said
    assert f"as of an exploded simulation (frames {beyond}, {names.index('infinity')})" in said, said
    assert re.search(rf"atoms only 0\.0\d+ Å apart \(frame {flat}\)", said), said  # such distances are ties
