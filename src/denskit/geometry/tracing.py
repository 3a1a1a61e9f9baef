"""Whether operations are recorded for a compiler or an exported program instead of computed."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def traced() -> bool:
    """Whether operations are traced, so that nothing may depend on values, nor loops on the number of rows."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None
