"""Fetching the public files of MD17 and rMD17.

A file counts as downloaded when it can be read and holds the molecule that was asked for.  The archive of rMD17 is
compared with a published checksum; for MD17 none is published, so the checksum of the download is written beside it.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase.formula import Formula
from ase.symbols import Symbols

from denskit.data.config import DataConfig
from denskit.data.datasets.md17 import FORMULAS, molecule_file
from denskit.data.readers.npz import read_npz
from denskit.files import atomic_write, sha256_of

MD17_URL = "http://www.quantum-machine.org/gdml/data/npz/md17_{name}.npz"
MD17_NAMES = {"benzene": "benzene2017"}  # of the 2017 paper, not of 2018
RMD17_URL = "https://figshare.com/ndownloader/files/23950376"  # one archive of all ten molecules
RMD17_SHA256 = "cddeea2ec2c4"  # first 12 hexadecimal digits, as the load-atoms package lists them
TIMEOUT = 60.0  # s without an answer


def download(name: str, molecule: str, *, say: Callable[[str], None], url: str | None = None) -> Path:
    """Fetch ``molecule`` of ``name`` (md17 or rmd17) into the cache folder, unless it is there already.

    ``url`` replaces the public address (a mirror).  Returns the npz file.  Raises ValueError, leaving nothing behind,
    for an unknown molecule, without a connection, and for a file of other contents.
    """
    path = molecule_file(name, molecule)
    if path.is_file():
        say(f"{path} is there already, sha256 {sha256_of(path)}")
        return path
    with tempfile.TemporaryDirectory() as folder:
        arrived = Path(folder) / ("archive" if name == "rmd17" else path.name)
        address = url or (RMD17_URL if name == "rmd17" else MD17_URL.format(name=MD17_NAMES.get(molecule, molecule)))
        say(f"fetching {address}")
        _fetch(address, arrived)
        if name == "rmd17":
            if not (digest := sha256_of(arrived)).startswith(RMD17_SHA256):
                published = f"the published rMD17 archive has {RMD17_SHA256}..."
                raise ValueError(f"{address} gave a file of sha256 {digest}; {published}")
            arrived = _extract(arrived, path.name, Path(folder), address)
        _require_molecule(arrived, molecule, address)
        with atomic_write(path) as temporary:
            shutil.copyfile(arrived, temporary)
    digest = sha256_of(path)
    path.with_suffix(".sha256").write_text(f"{digest}  {path.name}\n", encoding="utf-8")
    known = "its archive has the published checksum" if name == "rmd17" else "no checksum is published to compare with"
    say(f"{path}, {path.stat().st_size} bytes, sha256 {digest} (noted beside it; {known})")
    return path


def _fetch(url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
            length = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answered {error.code} {error.reason}; fetch it by hand, use data.path=FILE") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"cannot reach {url} ({reason}). Without a connection, fetch the file elsewhere and use data.path=FILE, or "
            "train on the embedded data with data.name=embedded"
        ) from None
    if length is not None and int(length) != path.stat().st_size:
        raise ValueError(f"{url} broke off after {path.stat().st_size} of {length} bytes; try again")


def _extract(archive: Path, name: str, folder: Path, url: str) -> Path:
    """The one member called ``name``; nothing else of the archive is written."""
    try:
        with tarfile.open(archive, "r:bz2") as tar:
            for member in tar:
                if member.isfile() and Path(member.name).name == name:
                    source = tar.extractfile(member)
                    assert source is not None
                    with source, (folder / name).open("wb") as file:
                        shutil.copyfileobj(source, file)
                    return folder / name
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"{url} gave no readable tar.bz2 archive ({error})") from None
    raise ValueError(f"the archive of {url} has no {name}")


def _require_molecule(path: Path, molecule: str, url: str) -> None:
    try:
        frames, _ = read_npz(path, DataConfig())
    except ValueError as error:
        raise ValueError(f"{url} gave something else than an npz file of {molecule}: {error}") from None
    found = Symbols(np.array(frames[0].atomic_numbers)).formula
    if found != Formula(FORMULAS[molecule]):
        raise ValueError(f"{url} gave {found.format('hill')}; wanted {molecule}, {FORMULAS[molecule]}")
