"""``import denskit`` gives the names that a user types, and imports nothing heavy before they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import denskit

ETHANOL = Path(denskit.__file__).parent / "data/embedded/ethanol.npz"
HEAVY = "import denskit, sys; print(sorted({'torch', 'numpy', 'ase', 'pydantic'} & set(sys.modules)))"

PREDICTION = """
import sys
from ase.build import molecule
from denskit import DenskitCalculator
atoms = molecule("CH3CH2OH")
atoms.calc = DenskitCalculator("zoo:ethanol-xtb")
print(atoms.get_forces().shape, sorted({"torch._dynamo", "matplotlib", "scipy.stats"} & set(sys.modules)))
"""


def test_importing_the_package_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_prediction_loads_no_compiler() -> None:
    """Nor what draws; together they take longer than the forces."""
    done = subprocess.run([sys.executable, "-c", PREDICTION], capture_output=True, text=True, check=True)
    assert done.stdout == "(9, 3) []\n"


def test_every_name_is_there_and_listed() -> None:
    assert set(denskit.__all__) <= set(dir(denskit))
    found = {name: getattr(denskit, name) for name in denskit.__all__}
    assert all(callable(value) for value in found.values())
    assert found["load_model"].__module__ == "denskit.models.model_file"
    assert found["dynamics"].__name__ == "molecular_dynamics"


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = denskit.trian


def test_read_gives_systems() -> None:
    structures = denskit.read(ETHANOL)
    assert isinstance(structures[0], denskit.System)
    assert structures[0].forces is not None
    with pytest.raises(FileNotFoundError):
        denskit.read(ETHANOL.with_name("absent.npz"))
