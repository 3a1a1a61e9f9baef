"""Data at an address (s3://, gs://, https://, file://): copied into the cache folder when first needed.

A file is copied whole.  Of a folder of Denskit's shards the index comes first, and every shard when a structure of it
is first read.  With ``$DENSKIT_CACHE`` on a disk of the node, this is also the local cache of data on a shared file
system (``file:///shared/omat24``).
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from denskit.files import atomic_write, cache_folder, locked, sha256_of, write_json
from denskit.reading.documents import read_json

ORIGIN = "denskit_origin.json"  # in the folder of a copy: where it comes from
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)")  # two letters or more: C:/ is a disk of Windows
_VERSION = (  # what file systems tell of a file, each by its own names
    "size", "ETag", "etag", "Content-MD5", "mtime", "updated", "last_modified", "LastModified", "Last-Modified",
    "generation",
)  # fmt: skip
_LOG = logging.getLogger(__name__)


class _Remote(NamedTuple):
    address: str
    system: Any  # of fsspec
    path: str


def address_of(path: str | Path) -> str | None:
    """The address that a setting or an argument names, None for a path of this machine.

    ``Path`` leaves one slash of two: ``s3:/bucket/file`` is an address, too.
    """
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        return None
    protocol, rest = found.groups()
    return f"{protocol}://{'/' if protocol in ('file', 'local') else ''}{rest}"


def local(path: str | Path, index: Sequence[str]) -> Path:
    """The path itself; for an address its copy on this machine.

    ``index``: the files that make a folder one of shards; such a folder is copied without its other files, see
    :func:`fetch_missing`.  A copy whose origin has changed is replaced; without a connection it is used as it is.

    Raises ValueError for an unknown protocol, one whose package is not installed, and an address with neither a file
    nor a folder of shards.
    """
    address = address_of(path)
    if address is None:
        return Path(path).expanduser()
    folder = cache_folder() / "remote" / hashlib.sha256(address.encode()).hexdigest()[:16]
    copy = folder / _name(address)
    with locked(folder, wait=True):  # processes that share the cache copy it once
        remote = _at(address)
        try:
            files = _versions(remote, index)
        except Exception as error:  # each file system has its own types, some call every failure a missing file
            if not (folder / ORIGIN).is_file():
                raise ValueError(
                    f"{address} cannot be reached ({error}), or is neither a file nor a folder of shards "
                    "(`denskit data convert` makes shards of any other folder)"
                ) from None
            _LOG.warning("%s cannot be reached (%s); its copy %s is used", address, error, copy)
            return copy
        origin = {"address": address, "files": files}
        if not (folder / ORIGIN).is_file() or read_json(folder / ORIGIN) != origin:
            _replace(folder, copy, remote, origin)
    return copy


def fetch_missing(path: Path, sha256: str) -> None:
    """Fetch a file of a copied folder, unless it is there.  Raises ValueError where its contents are others."""
    origin = path.parent.parent / ORIGIN
    if path.is_file() or not origin.is_file():
        return
    with locked(path.parent / f".fetching_{path.name}", wait=True):
        if not path.is_file():
            address = read_json(origin)["address"].rstrip("/") + f"/{path.name}"
            with atomic_write(path) as temporary:
                with _naming(address):
                    remote = _at(address)
                    remote.system.get_file(remote.path, str(temporary))
                if sha256_of(temporary) != sha256:
                    raise ValueError(
                        f"{address} has other contents than the index of its folder says; convert it again"
                    )


def is_copy(folder: Path) -> bool:
    """Whether a folder is the copy of one elsewhere, whose files arrive when they are read."""
    return (folder.parent / ORIGIN).is_file()


def _at(address: str) -> _Remote:
    import fsspec  # type: ignore[import-untyped]  # torch needs it, too

    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise ValueError(f"{address}: {error}. pip install 'denskit[cloud]' brings s3, gs and https") from None
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from None
    return _Remote(address, system, path)


def _versions(remote: _Remote, index: Sequence[str]) -> dict[str, dict[str, str]]:
    """Version of the file ("" its name), or of the files of the index; it changes with their contents."""
    folder = remote.path.rstrip("/")
    whole, parts = {"": remote.path}, {name: f"{folder}/{name}" for name in index}
    # a server of the web answers for a folder, too, with a page that lists it
    for files in (whole, parts) if Path(folder).suffix else (parts, whole):
        with suppress(FileNotFoundError, NotADirectoryError):
            return {name: _version(remote, path) for name, path in files.items()}
    raise FileNotFoundError(f"no {' or '.join([remote.path, *parts.values()])}")


def _version(remote: _Remote, path: str) -> dict[str, str]:
    about = remote.system.info(path)
    if about.get("type") == "directory":
        raise FileNotFoundError(path)
    return {key: str(about[key]) for key in _VERSION if about.get(key) is not None}


def _name(address: str) -> str:
    """The last part of an address; its ending says the format."""
    name = re.sub(r"[^\w.+-]", "_", address.rstrip("/").rpartition("/")[2])
    return name if name.strip(".") else "data"


def _replace(folder: Path, copy: Path, remote: _Remote, origin: dict[str, Any]) -> None:
    if copy.is_dir():
        shutil.rmtree(copy)
    copy.unlink(missing_ok=True)
    (folder / ORIGIN).unlink(missing_ok=True)
    _LOG.info("copying %s to %s", remote.address, copy)
    with _naming(remote.address):
        if "" not in origin["files"]:
            copy.mkdir()
        for name in origin["files"]:
            with atomic_write(copy / name) as temporary:  # "": the copy itself
                path = f"{remote.path.rstrip('/')}/{name}" if name else remote.path
                remote.system.get_file(path, str(temporary))
    write_json(folder / ORIGIN, origin)


@contextmanager
def _naming(address: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system has its own types
        raise ValueError(f"{address} cannot be fetched ({type(error).__name__}: {error})") from error
