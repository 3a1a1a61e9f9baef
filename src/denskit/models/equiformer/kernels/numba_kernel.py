"""Compilation and cache of CPU kernels.

The cache is in ``__pycache__`` beside the kernels, in the user's cache folder where that is not writable, or in
``$NUMBA_CACHE_DIR``.  numba's own cache checks only the file of a kernel, and its index mixes up signatures that two
processes compile at the same time.  Here each kernel and signature has its own file, named with a digest of all files
of this folder: a change in any of them recompiles the kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

# reordered sums and fused multiply-add allow vector instructions over channels; NaN and inf are respected
FAST = {"contract", "reassoc", "nsz", "arcp"}

# without numba's reference counts (_nrt): kernels allocate nothing, and every array they touch is held by the caller
COMPILATION: dict[str, Any] = dict(fastmath=FAST, nogil=True, error_model="numpy", boundscheck=False, _nrt=False)


def sources_digest(folder: Path) -> str:
    """12 hexadecimal digits that change with any Python file of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


DIGEST = sources_digest(Path(__file__).parent)


class _Cache(FunctionCache):
    """Compiled signatures of one kernel.  A damaged file or a full disk only costs time."""

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        self._folder = Path(self.cache_path)
        module = function.__module__.rpartition(".")[2]
        self._stem = f"{module}.{function.__name__}.{sys.implementation.cache_tag}-"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        try:
            payload = pickle.loads(self._file(sig, target_context.codegen()).read_bytes())
            return self._impl.rebuild(target_context, payload)
        except Exception:  # no such file, or a damaged one, which raises any exception
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if not self._impl.check_cachable(data):
            return
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{self._stem}*"):
                if DIGEST not in path.name:
                    path.unlink()
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=f"{self._stem}{DIGEST}", delete=False) as file:
                file.write(dumps(self._impl.reduce(data)))
            os.replace(file.name, self._file(sig, data.codegen))

    def _file(self, sig: Any, codegen: Any) -> Path:
        key = repr((sig, codegen.magic_tuple(), numba.__version__))  # types, processor
        return self._folder / f"{self._stem}{DIGEST}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.nbc"


def kernel(function: Callable[..., None]) -> Any:
    """Compile a function of flat arrays at its first call; kernels may call each other."""
    compiled = numba.njit(**COMPILATION)(function)
    with contextlib.suppress(RuntimeError):  # no writable folder: each process compiles for itself
        compiled._cache = _Cache(function)
    return compiled
