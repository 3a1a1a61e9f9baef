"""npz and npy files: plain arrays, whole or refused before anything is allocated."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from denskit.reading.arrays import read_mapped, read_npz


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_as_numpy_reads_them(save: object, tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6).reshape(2, 3)), "c": np.array("text"),
        "d": np.array([b"x", b"yz"]), "e": np.zeros((0, 3), np.float32), "f": np.array([True]),
        "g/h": np.array(2, ">i4"),
    }  # fmt: skip
    save(tmp_path / "a.npz", **arrays)  # type: ignore[operator]
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def _packed(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("R.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy(np.arange(5))[:-1], "array R is damaged.*int64 of shape .5,. in 39 bytes"),
        (_npy(np.arange(5)).replace(b"(5,)", b"(5_0_000_000_000,)"[:4]), "array R is damaged"),
        (_npy(np.array([{}], dtype=object)), "array R is damaged.*Python objects"),
        (
            _npy(np.array(["ab"])).replace(b"b\0\0\0", b"\xff\xff\xff\xff"),
            "array R is damaged.*letters that do not exist",
        ),
        (b"\x93NUMPY\x09\x00", "array R is damaged"),
        (b"", "array R is damaged"),
    ],
)
def test_damaged_members_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"a.npz: {message}"):
        read_npz(_packed(tmp_path / "a.npz", content))


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _packed(tmp_path / "a.npz", _npy(np.zeros(2**20)), zipfile.ZIP_DEFLATED)
    assert read_npz(path)["R"].shape == (2**20,)
    monkeypatch.setenv("DENSKIT_MAX_EXPANSION", "4")
    with pytest.raises(ValueError, match="a.npz has .* bytes and would take over 4,194,304 in memory"):
        read_npz(path)


def test_other_compressions_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a.npz: member R.npy is compressed in another way"):
        read_npz(_packed(tmp_path / "a.npz", _npy(np.zeros(3)), zipfile.ZIP_LZMA))
    (tmp_path / "a.npz").write_bytes(b"text")
    with pytest.raises(ValueError, match="a.npz is truncated or no npz file"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "absent.npz")


def test_a_mapped_array(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(_npy(np.arange(5)))
    assert isinstance(found := read_mapped(path), np.memmap) and found.tolist() == [0, 1, 2, 3, 4]
    for wrong in (b"", b"text", _npy(np.arange(5))[:-3], _npy(np.array([{}], dtype=object))):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="a.npy is truncated or no npy file"):
            read_mapped(path)
