"""The model file: one safetensors file with the weights, and in its header as JSON all that is needed to use them."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from denskit.models import MODELS, build_force_field
from denskit.models.base import SYMMETRIC_SITES, ForceField
from denskit.models.scaling import Scaling

FORMAT_VERSION = 1
_KEY = "denskit"


def save_model(path: str | Path, force_field: ForceField, metadata: dict[str, Any]) -> None:
    """Write a model file atomically: an interruption or a full disk leaves an earlier file of that name untouched.

    Args:
        path: where to.
        force_field: weights, configuration and scaling are saved.
        metadata: anything JSON can hold, about where the model comes from (data, training, commit).

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(path)
    header = {
        "format_version": FORMAT_VERSION,
        "model": force_field.config.model_dump(mode="json"),
        "heads": force_field.head_irreps,
        "scaling": force_field.scaling.to_dict(),
        "units": {"energy": "eV", "length": "Å", "forces": "eV/Å", "stress": "eV/Å^3 (ASE sign)"},
        "parameters": sum(p.numel() for p in force_field.parameters()),
        "metadata": metadata,
    }
    tensors = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in force_field.state_dict().items()
        if not name.startswith("scaling.")
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata={_KEY: json.dumps(header)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes files private; a model is meant to be shared
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_header(path: str | Path) -> dict[str, Any]:
    """The JSON header of a model file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a Denskit model file, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or it is truncated ({error})") from error
    if _KEY not in metadata:
        raise ValueError(
            f"{path} is a safetensors file without a Denskit header; `denskit import` reads published checkpoints"
        )
    try:
        header: dict[str, Any] = json.loads(metadata[_KEY])
        version = int(header["format_version"])
        complete = isinstance(header["model"], dict) and {"heads", "scaling", "metadata"} <= header.keys()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has a Denskit header that cannot be read ({error!r}); the file is damaged") from None
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, this Denskit reads up to {FORMAT_VERSION}; update Denskit"
        )
    if not complete:
        raise ValueError(f"{path} has an incomplete Denskit header; the file is damaged")
    return header


def load_model(path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> ForceField:
    """A force field, in evaluation mode, from a model file; warns where its norm is unsafe at symmetric sites.

    Args:
        path: the model file.
        device: where the weights go.
        dtype: precision of the weights; default that of the file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a model file, or its weights do not fit its configuration.
    """
    header = read_header(path)
    name = header["model"].get("name")
    if name not in MODELS:
        raise ValueError(f"{path} holds a model '{name}'; this Denskit has {', '.join(MODELS)}")
    try:
        config = MODELS[name].config.model_validate(header["model"])
        scaling = Scaling.from_dict(header["scaling"])
    except (ValidationError, TypeError) as error:
        raise ValueError(f"{path} does not fit this version of Denskit: {error}") from None
    own = {"energy", "forces"}
    extra = {head: irreps for head, irreps in header["heads"].items() if head not in own}
    force_field = build_force_field(config, heads=extra, scaling=scaling)
    with safe_open(path, framework="pt") as file:
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    stored = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    force_field.to(dtype or max(stored, key=lambda kind: kind.itemsize))
    wanted = {key for key in force_field.state_dict() if not key.startswith("scaling.")}
    if wanted != set(state):
        different = sorted(wanted ^ set(state))
        raise ValueError(
            f"{path}: weights do not fit the configuration; {len(different)} names differ, first '{different[0]}'"
        )
    try:
        force_field.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(f"{path}: weights do not fit the configuration: {error}") from error
    if not force_field.backbone.symmetric_sites:
        warnings.warn(f"{path}: {SYMMETRIC_SITES}", stacklevel=2)
    return force_field.to(device).eval()
