"""Linear references with the published files' arbitrary rows, and OC20's reference energies of systems."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denskit.data.references import linear_references, system_references


def _published(path: Path) -> Path:
    """As configs/oc22/linref/oc22_linfit_coeffs.npz: sane for most elements, arbitrary up to 5.8e10, zeros."""
    coefficients = np.linspace(-2.0, -12.0, 100)
    arbitrary = [5.8e10, -3e9, 4.1e7, 2e4, 1e3, 101.0, -5e8, 1e9, 7e9, 3e5, np.nan]
    coefficients[[0, 2, 5, 9, 10, 15, 16, 17, 18, 35, 36]] = arbitrary
    coefficients[[57, *range(59, 71), *range(84, 100)]] = 0.0
    np.savez(path, coeff=coefficients)
    return path


def test_arbitrary_rows_are_left_out_and_named(tmp_path: Path) -> None:
    references, (said,) = linear_references(_published(tmp_path / "linref.npz"))
    assert len(references) == 60
    assert references["H"] == np.linspace(-2.0, -12.0, 100)[1]
    assert not set("He B F Ne P S Cl Ar Br Kr La Pr Yb Po".split()) & set(references)
    assert "references of 60 elements" in said
    assert "not used: He B F Ne P S Cl Ar Br Kr" in said
    assert "La" not in said.split("not used:")[1]


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"H": -3.5, "O": -7}))
    assert linear_references(path) == ({"H": -3.5, "O": -7.0}, [])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", {"other": np.zeros(3)}, r"wanted the array coeff.*\['other'\]"),
        ("a.npz", {"coeff": np.zeros((3, 3))}, "wanted the array coeff"),
        ("a.npz", b"text", "is truncated or no npz file"),
        ("a.json", b"{", "no JSON"),
        ("a.json", b"[1]", "holds a list"),
        ("a.json", b'{"H": "x"}', "'H' is 'x'; wanted an energy"),
        ("a.json", b'{"H": NaN}', "'H' is nan; wanted an energy"),
    ],
)
def test_what_is_no_table_of_references(name: str, content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    with pytest.raises(ValueError, match=message):
        linear_references(path)


def test_references_of_systems(tmp_path: Path) -> None:
    path = tmp_path / "oc20_ref.pkl"
    path.write_bytes(pickle.dumps({"random7": -12.5, "random8": np.float64(-3.0)}))
    assert system_references(path) == {"7": -12.5, "8": -3.0}
    (tmp_path / "ref.json").write_text('{"random7": -12.5, "8": -3.0}')
    assert system_references(tmp_path / "ref.json") == {"7": -12.5, "8": -3.0}
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ValueError, match="holds a list; wanted a dict"):
        system_references(path)
    for odd in ({("random", 7): 1.0}, {"random7": [1.0]}, {"random7": "1"}):
        path.write_bytes(pickle.dumps(odd))
        with pytest.raises(ValueError, match="oc20_ref.pkl.*(wanted|key of a dict that is a tuple)"):
            system_references(path)
    path.write_bytes(pickle.dumps({"random7": eval}))
    with pytest.raises(ValueError, match="asks for builtins.eval"):
        system_references(path)
    with pytest.raises(FileNotFoundError, match="data.oc20_ref"):
        system_references(tmp_path / "none.pkl")
