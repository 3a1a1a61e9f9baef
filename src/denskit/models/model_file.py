"""The model file: a safetensors file with the weights; its header holds configuration, heads and scaling as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from denskit.files import atomic_write
from denskit.models import MODELS
from denskit.models.base import SYMMETRIC_SITES, ForceField
from denskit.models.scaling import Scaling
from denskit.models.weights import with_weights
from denskit.reading.budget import naming
from denskit.reading.documents import check_extent
from denskit.runtime.device import DType, choose_device, dtype_of
from denskit.runtime.run_state import unfinished
from denskit.runtime.warning import warn
from denskit.zoo import file_of

FORMAT_VERSION = 1
IN_RUNS = "model.safetensors"  # name of the model file in a run folder
_KEY = "denskit"
_OF_RUNS = ("model", "data", "task", "training")  # sections of a run's settings

Model = ForceField | str | os.PathLike[str]  # a force field, a run folder, a model file, or a shipped model


def save_model(path: str | Path, force_field: ForceField, metadata: dict[str, Any]) -> None:
    """Write a model file atomically: after an interruption or on a full disk the earlier file of that name remains.

    ``metadata``: JSON values on the origin of the model (data, training, commit).  Raises OSError where the file cannot
    be written.
    """
    path = Path(path)
    header = {
        "format_version": FORMAT_VERSION,
        "model": force_field.config.model_dump(mode="json"),
        "heads": force_field.head_irreps,
        "scaling": force_field.scaling.to_dict(),
        "units": {"energy": "eV", "length": "Å", "forces": "eV/Å", "stress": "eV/Å^3 (ASE sign)"},
        "parameters": sum(p.numel() for name, p in force_field.named_parameters() if not name.startswith("companion.")),
        "metadata": metadata,
    }
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous()  # tied weights share memory: safetensors refuses it
        for name, tensor in force_field.state_dict().items()
        if not name.startswith(("scaling.", "companion."))
    }
    try:
        with atomic_write(path) as temporary:
            save_file(tensors, temporary, metadata={_KEY: json.dumps(header)})
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def models_of(given: object) -> list[Model]:
    """One model, or several, as a list.

    Raises ValueError for none, and for something that is neither a force field nor the path of a model or run.
    """
    alone = isinstance(given, ForceField | str | os.PathLike) or not isinstance(given, Iterable)
    models: list[Any] = [given] if alone else list(given)  # type: ignore[call-overload]
    for model in models:
        if not isinstance(model, ForceField | str | os.PathLike):
            raise ValueError(
                f"found {type(model).__name__}; wanted a model: a force field, the path of a model file or of a run, "
                "or several of these"
            )
    if not models:
        raise ValueError("at least one model is needed; none was given")
    return models


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON header of a model file, or of the model in a run folder.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a Denskit model file, or of a newer format.
    """
    path = _file(path)
    with naming(path, "is not a safetensors file, or it is truncated"), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    if _KEY not in metadata:
        raise ValueError(
            f"{path} is a safetensors file without a Denskit header; `denskit import` reads published checkpoints"
        )
    with naming(path, "has a Denskit header that cannot be read; the file is damaged"):
        header: dict[str, Any] = json.loads(metadata[_KEY])
        version = int(header["format_version"])
        complete = all(isinstance(header.get(name), dict) for name in ("model", "heads", "scaling", "metadata"))
        run = header["metadata"].get("run", {}) if complete else {}
        complete = complete and isinstance(run, dict) and all(isinstance(run.get(name, {}), dict) for name in _OF_RUNS)
        check_extent(header, len(metadata[_KEY]), path)
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, this Denskit reads up to {FORMAT_VERSION}; update Denskit"
        )
    if not complete:
        raise ValueError(f"{path} has an incomplete Denskit header; the file is damaged")
    return header


def run_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Settings of the training of a model, by section; empty where it was imported.  Raises as :func:`read_header`."""
    found: dict[str, Any] = read_header(path)["metadata"].get("run", {})
    return found


def _file(path: str | os.PathLike[str]) -> Path:
    """The model file, the model of a run folder, or a shipped one (``zoo:NAME``)."""
    path = file_of(path)
    if path.is_dir():
        path = path / IN_RUNS
    if not path.is_file():
        raise FileNotFoundError(f"no model file at {path}")
    return path


def load_model(path: str | os.PathLike[str], device: str | torch.device = "cpu", dtype: DType = None) -> ForceField:
    """A force field in evaluation mode from a model file.

    Warns where its norm is unsafe at symmetric sites, and where it is the model of a run that has not finished.

    Args:
        path: the model file, a run folder, or the name of a shipped model (``zoo:ethanol-xtb``).
        device: of the weights; "auto" is the GPU where there is one.
        dtype: of the weights, "float32", "float64" or torch's; default that of the file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a model file, an unknown dtype, weights that are not finite or do not fit the configuration.
    """
    path, wanted = _file(path), dtype_of(dtype)
    header = read_header(path)
    name = header["model"].get("name")
    if not isinstance(name, str) or name not in MODELS:
        raise ValueError(f"{path}: {MODELS.absent(name)}")
    with naming(path, "does not fit this version of Denskit, or is damaged"):
        config = MODELS[name].config.model_validate(header["model"])
        scaling = Scaling.from_dict(header["scaling"])
        extra = {head: irreps for head, irreps in header["heads"].items() if head not in ("energy", "forces")}
        with safe_open(path, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        stored = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
        kind = wanted or max(stored, key=lambda kind: kind.itemsize)
    force_field = with_weights(state, config=config, heads=extra, scaling=scaling, path=path, dtype=kind)
    for key, tensor in force_field.state_dict().items():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            raise ValueError(
                f"{path}: {bad} of the {tensor.numel()} numbers of {key} are NaN or infinite; the training diverged, "
                "or the file is damaged. Use another checkpoint"
            )
    if not force_field.backbone.symmetric_sites:
        warn(f"{path}: {SYMMETRIC_SITES}")
    if path.name == IN_RUNS and (why := unfinished(path.parent)):
        warn(why)
    return force_field.to(choose_device(device) if device == "auto" else device)
