"""Downloads, from a server on this machine: what arrives whole and right is kept, all else leaves nothing."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ase.data import atomic_numbers
from ase.symbols import string2symbols

from denskit.data import load_data
from denskit.data.config import DataConfig, SplitConfig
from denskit.data.datasets import download as downloads
from denskit.data.datasets.download import MD17_URL, download
from denskit.data.datasets.md17 import FORMULAS, MOLECULES


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if "broken" not in self.path:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"too short")


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and no proxy on the way to this machine."""
    monkeypatch.setenv("DENSKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", folder
        running.shutdown()
        thread.join()


def _npz(formula: str, rmd17: bool = False) -> bytes:
    numbers = np.array([atomic_numbers[symbol] for symbol in string2symbols(formula)], dtype=np.uint8)
    shape = (2, len(numbers), 3)
    positions = np.random.default_rng(0).normal(size=shape) * 5
    names = ("coords", "energies", "forces", "nuclear_charges") if rmd17 else ("R", "E", "F", "z")
    buffer = io.BytesIO()
    np.savez(buffer, **dict(zip(names, (positions, np.zeros(2), np.zeros(shape), numbers), strict=True)))
    return buffer.getvalue()


def _nothing_left(tmp_path: Path) -> bool:
    return not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_good_file_is_kept_with_its_checksum(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    content = _npz("C2H6O")
    (folder / "good.npz").write_bytes(content)
    said: list[str] = []
    path = download("md17", "ethanol", say=said.append, url=f"{address}/good.npz")
    assert path == tmp_path / "cache" / "md17" / "md17_ethanol.npz"
    assert path.read_bytes() == content
    digest = hashlib.sha256(content).hexdigest()
    assert path.with_suffix(".sha256").read_text().startswith(digest)
    assert digest in said[-1]
    assert "no checksum is published" in said[-1]
    (folder / "good.npz").unlink()
    assert download("md17", "ethanol", say=said.append, url=f"{address}/good.npz") == path
    assert "is there already" in said[-1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"<html>moved</html>", "gave something else than an npz file of ethanol"),
        (_npz("C6H6"), "gave C6H6; wanted ethanol, C2H6O"),
        (None, "answered 404"),
    ],
)
def test_a_wrong_answer_leaves_nothing(
    server: tuple[str, Path], tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    address, folder = server
    if content is not None:
        (folder / "file.npz").write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        download("md17", "ethanol", say=print, url=f"{address}/file.npz")
    assert _nothing_left(tmp_path)


def test_an_answer_that_breaks_off_leaves_nothing(server: tuple[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broke off after 9 of 1000 bytes"):
        download("md17", "ethanol", say=print, url=f"{server[0]}/broken")
    assert _nothing_left(tmp_path)


def test_without_a_connection_the_way_out_is_named(tmp_path: Path) -> None:
    with socket.socket() as deaf:  # a port that is taken, and nobody listens
        deaf.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"cannot reach {address}.*data.path=FILE.*data.name=embedded"):
            download("md17", "ethanol", say=print, url=f"{address}/file.npz")
    assert _nothing_left(tmp_path)


def test_the_molecule_is_taken_out_of_rmd17s_archive(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    archive = folder / "rmd17.tar.bz2"
    with tarfile.open(archive, "w:bz2") as tar:
        for name, content in (
            ("rmd17/readme.txt", b"hello"),
            ("../outside.txt", b"bad"),
            ("rmd17/npz_data/rmd17_uracil.npz", _npz(FORMULAS["uracil"], rmd17=True)),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match=r"sha256 [0-9a-f]{64}; the published rMD17 archive has cddeea2ec2c4"):
        download("rmd17", "uracil", say=print, url=f"{address}/rmd17.tar.bz2")
    monkeypatch.setattr(downloads, "RMD17_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest()[:12])
    path = download("rmd17", "uracil", say=print, url=f"{address}/rmd17.tar.bz2")
    assert path.name == "rmd17_uracil.npz"
    assert not list(tmp_path.rglob("outside.txt"))
    with pytest.raises(ValueError, match="has no rmd17_toluene.npz"):
        download("rmd17", "toluene", say=print, url=f"{address}/rmd17.tar.bz2")


def test_every_molecule_has_a_formula() -> None:
    assert set(FORMULAS) == set(MOLECULES["md17"]) | set(MOLECULES["rmd17"])
    assert MD17_URL.format(name="ethanol").endswith("/md17_ethanol.npz")
    with pytest.raises(ValueError, match="'ethanal' is not in md17"):
        download("md17", "ethanal", say=print)


def test_the_file_of_another_molecule_is_refused(tmp_path: Path) -> None:
    """Its settings differ; a molecule that has none may take those of another."""
    for formula in ("C2H6O", "C3H8"):
        (tmp_path / f"{formula}.npz").write_bytes(_npz(formula))
    split = SplitConfig(train=1, valid=1, mode="random")

    def said(formula: str, molecule: str) -> list[str]:
        path = str(tmp_path / f"{formula}.npz")
        return load_data(DataConfig(name="md17", path=path, molecule=molecule, split=split), seed=0).messages

    assert not [text for text in said("C2H6O", "ethanol") if "WARNING" in text]
    with pytest.raises(ValueError, match=r"are C2H6O; data.molecule=aspirin is C9H8O4: say data.molecule=ethanol, or"):
        said("C2H6O", "aspirin")
    assert (
        "WARNING: the training structures are C3H8; data.molecule=aspirin is C9H8O4, so" in said("C3H8", "aspirin")[-1]
    )
