"""How CPU kernels are compiled, and where compiled ones are kept.

numba's cache lies in ``__pycache__`` beside the kernels, in the user's cache folder where that cannot be written, or in
``$NUMBA_CACHE_DIR``.  Numba looks at the file of a kernel alone; here the names of its cache files hold a digest of all
files of this folder, so that a change of anything compiled into a kernel compiles it again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

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


class _Files(CompileResultCacheImpl):
    """Cache files of one kernel."""

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{super().get_filename_base(fullname, abiflags)}-{DIGEST}"


class _Cache(FunctionCache):
    """A cache whose failures only cost time: files may be damaged, disks full."""

    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle raises what it happens to raise
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


def kernel(function: Callable[..., None]) -> Any:
    """Compile a function of flat arrays when it is first called; also what other kernels call."""
    compiled = numba.njit(**COMPILATION)(function)
    with contextlib.suppress(RuntimeError):  # no folder can be written: each process compiles for itself
        compiled._cache = _Cache(function)
    return compiled
