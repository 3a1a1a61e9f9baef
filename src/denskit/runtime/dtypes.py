"""Floating-point types of models, by name."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import DTypeLike

DTYPES = {"float32": torch.float32, "float64": torch.float64}
DType = str | torch.dtype | DTypeLike | None  # None: as the model is


def dtype_of(dtype: DType) -> torch.dtype | None:
    """The type of a name ("float32", "float64"), a NumPy or a torch type; None stays None.

    Raises ValueError for any other.
    """
    if dtype is None or dtype in DTYPES.values():
        return dtype  # type: ignore[return-value]
    try:
        return DTYPES[np.dtype(dtype).name]  # type: ignore[arg-type]
    except (TypeError, KeyError):
        raise ValueError(f"dtype is {dtype!r}; give {' or '.join(DTYPES)}") from None
