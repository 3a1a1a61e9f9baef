"""Files: atomic writes, locks, hashes, the download cache."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_PARTIAL = ".partial"
_ENDINGS = (  # of files
    ".aselmdb", ".cif", ".csv", ".db", ".extxyz", ".html", ".json", ".lmdb", ".npz", ".pdf", ".png", ".traj", ".txt",
    ".xyz", ".yaml",
)  # fmt: skip
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit of the size of files
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems without locks


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Give an OSError about a full disk the name of the file, which the system leaves out."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file that replaces ``path`` when the block ends, and is removed when the block raises.

    The content is on the disk before the renaming, so a crash leaves the old file or the new one.  A killed process
    leaves the temporary, which the next writer of ``path`` overwrites.  Processes that write the same file take turns.
    The temporary has the suffix of ``path``, from which writers choose their format.
    """
    temporary = path.with_name(f".{path.stem}{_PARTIAL}{path.suffix}")
    with writing(path), _held(temporary, path, wait=True):
        mode = temporary.stat().st_mode & 0o777 if temporary.is_file() else None
        try:
            yield temporary
            if mode is not None:  # some writers make files for the owner alone
                temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file atomically: the columns, then the rows.  Values that a row lacks are empty, others left out."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Make a folder and hold its lock.

    The kernel releases the lock when the process ends, also after a kill.  File systems without locks and Windows lock
    nothing.

    Raises ValueError naming the process that holds the lock (``wait``: waits for it instead), and for a file.
    """
    _require_no_file(folder)
    new = not folder.exists()
    try:
        with _own_lock(folder / LOCK, folder, wait=wait):
            yield
    finally:
        if new:
            with suppress(OSError):  # not empty
                folder.rmdir()


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is being made, ``.NAME.lock`` beside it; otherwise as :func:`locked`."""
    with _own_lock(path.with_name(f".{path.name}{LOCK}"), path):
        yield


@contextmanager
def _own_lock(lock: Path, held: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold ``held`` by a lock file that names this process and is removed."""
    with _held(lock, held, wait=wait, owner=f"process {os.getpid()} on {socket.gethostname()}"):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def is_locked(folder: Path) -> bool:
    """Whether some process holds the lock of a folder; False where the file system locks nothing."""
    path = folder / LOCK
    if fcntl is None:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, perhaps since a moment, or no locks
        return False
    return False


def new_file(path: str | Path, *, inputs: Iterable[str | Path] = (), force: bool | None = None) -> Path:
    """The path of an output file, checked before the work begins.

    inputs: files and folders that are read; neither they nor files in them are replaced.
    force: whether an existing file is replaced; None: never, and the command has no ``--force``.

    Raises ValueError for a file that must not be replaced, and for a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; wanted the name of a file to write")
    if not path.exists():
        return path
    for read in map(Path, inputs):
        if read.exists() and (path.samefile(read) or path.resolve().is_relative_to(read.resolve())):
            raise ValueError(f"{path} belongs to the input {read}; give another name for the output (nothing changed)")
    if not force:
        advice = "" if force is None else ", or replace it with --force (in Python force=True)"
        raise ValueError(f"{path} exists already: give another name{advice} (nothing changed)")
    return path


def new_frames_file(path: str | Path, *, inputs: Iterable[str | Path] = (), force: bool | None = None) -> Path:
    """As :func:`new_file`, of structures, which are written as extxyz.  Raises ValueError for another ending, too."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it, such as {path / 'structures.extxyz'}")
    if path.suffix not in (".xyz", ".extxyz"):
        other = f"; `ase convert FILE.extxyz {path.name}` writes other formats of ASE" if path.suffix else ""
        raise ValueError(f"{path}: structures are written as extxyz; name the file .extxyz or .xyz{other}")
    return new_file(path, inputs=inputs, force=force)


def output_folder(path: str | Path, holds: str = "several files") -> Path:
    """The path of a folder to write to.  Raises ValueError for what is a file, or one by its name."""
    path = Path(path)
    _require_no_file(path)
    if path.suffix in _ENDINGS and not path.exists():
        raise ValueError(f"{path}: a folder is wanted, for {holds}; give {path.with_suffix('')}")
    return path


def _require_no_file(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, wanted a folder: give another name (nothing changed)")


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths, as many parts of each, that tell them apart; whole paths where they are the same."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0)):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def is_empty(folder: Path, *, but_for: Collection[str] = ()) -> bool:
    """Whether a folder is absent, or holds only a lock, temporary files of killed writers and names in ``but_for``."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        path.name in (LOCK, *but_for) or (path.name.startswith(".") and _PARTIAL in path.name)
        for path in folder.iterdir()
    )


@contextmanager
def _held(path: Path, held: Path, *, wait: bool, owner: str = "") -> Iterator[None]:
    """Hold the lock of a file, made where it is absent, with ``owner`` as its content.  Messages name ``held``."""
    if fcntl is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
        return
    handle = _lock(path, wait, held)
    try:
        with writing(path):
            os.ftruncate(handle, 0)
            os.write(handle, owner.encode())
        yield
    finally:
        os.close(handle)


def _lock(path: Path, wait: bool, held: Path) -> int:
    """A handle of the locked file at ``path``."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # the last owner may have removed the empty folder
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(handle, 1000, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise ValueError(f"{held} is in use by {owner}. Wait until it ends, or stop it (nothing changed)") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # the owner has renamed or removed this file


def _opened(path: Path) -> int:
    """A handle of the file at ``path``, made where it is absent; a link, which may lead anywhere, is refused."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a link to {path.readlink()}, which would be overwritten; remove it") from None


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """The folder of downloads: ``$DENSKIT_CACHE``, else ``~/.cache/denskit``."""
    return Path(os.environ.get("DENSKIT_CACHE") or Path.home() / ".cache" / "denskit")
