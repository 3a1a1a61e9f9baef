"""Graphs compiled to libraries by AOTInductor, kept between runs.

Compiling takes a minute, and most simulations use a model that was compiled before.  So a library stays in
``compiled`` in the cache folder, under a digest of all that it was made from: operations, weights, shapes, threads,
processor, version of torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, fx

from denskit.files import atomic_write, cache_folder, is_locked, locked

KEPT = 30  # the libraries used last; each has a few megabytes

_LIBRARY = "step.pt2"
Compiled = Callable[..., tuple[Tensor, ...]]


def library_of(graph: fx.GraphModule, inputs: tuple[Tensor, ...]) -> Compiled:
    """The graph compiled for tensors of these shapes on this processor, or the library that is there.

    A library is code, so only those are loaded that nobody but the user can write.  Where the cache folder cannot be
    written, the library is made for this process alone.
    """
    from torch._inductor import aoti_load_package  # with the whole compiler: a second

    with tempfile.TemporaryDirectory() as temporary:
        root = _private(cache_folder() / "compiled") or Path(temporary)
        folder = root / _digest(graph, inputs)
        with locked(folder, wait=True):  # processes that want the same library compile it once
            path = folder / _LIBRARY
            if not _is_whole(path):
                _compile(graph, inputs, path)
                _remove_oldest(root)
            os.utime(folder)
            library = aoti_load_package(str(path))
    return lambda *given: tuple(library(*given))


def _is_whole(path: Path) -> bool:
    """Whether the library is there and has its checksums: a disk that was full leaves damaged files."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return archive.testzip() is None
    return False


def _compile(graph: fx.GraphModule, inputs: tuple[Tensor, ...], path: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # inside torch
        exported = torch.export.export(graph, inputs)
        with atomic_write(path) as unfinished:
            aoti_compile_and_package(exported, package_path=str(unfinished))


def _digest(graph: fx.GraphModule, inputs: tuple[Tensor, ...]) -> str:
    """16 hexadecimal digits of everything that the library depends on."""
    made_by = (torch.__version__, torch.get_num_threads(), *_processor())
    shapes = [(x.shape, x.stride(), x.dtype, x.device) for x in inputs]
    digest = hashlib.sha256(repr((made_by, shapes, graph.code)).encode())
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            weight = getattr(graph, node.target).detach().cpu().contiguous()
            digest.update(repr((node.target, weight.shape, weight.dtype)).encode())
            digest.update(weight.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _processor() -> tuple[str, ...]:
    """Instructions of this processor: the compiler uses all of them, and folders may be shared by several machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.machine(), torch.backends.cpu.get_cpu_capability(), flags


def _private(folder: Path) -> Path | None:
    """The folder, made where it is missing; None where it cannot be written or others can write into it."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
        mine = not hasattr(os, "getuid") or about.st_uid == os.getuid()
        if mine and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK):
            return folder
    return None


def _remove_oldest(root: Path) -> None:
    folders = sorted((x for x in root.iterdir() if x.is_dir()), key=lambda x: x.stat().st_mtime, reverse=True)
    for folder in folders[KEPT:]:
        if not is_locked(folder):
            shutil.rmtree(folder, ignore_errors=True)
