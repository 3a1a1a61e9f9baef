"""How CPU kernels are compiled, and where compiled ones are kept.

The cache lies in ``__pycache__`` beside the kernels, in the user's cache folder where that cannot be written, or in
``$NUMBA_CACHE_DIR``.  numba's own looks at the file of a kernel alone, and its index mixes up signatures that two
processes compile at the same time.  Here each kernel and signature has a file of its own, whose name holds a digest of
all files of this folder: a change of anything that is compiled into kernels compiles them again.
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

# reordering sums and fused multiply-add let loops over channels use vector instructions; NaN and inf stay what they are
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
    """Compiled signatures of one kernel.  Failures only cost time: files may be damaged, disks full."""

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
        except Exception:  # no such file, or a damaged one, which raises what it happens to raise
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
    """Compile a function of flat arrays when it is first called; also what other kernels call."""
    compiled = numba.njit(**COMPILATION)(function)
    with contextlib.suppress(RuntimeError):  # no folder can be written: each process compiles for itself
        compiled._cache = _Cache(function)
    return compiled
