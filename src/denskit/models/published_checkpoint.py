"""Published checkpoint files: weights, hyper-parameters and normalisers, read without executing anything.

Two layouts are known.  Equiformer's (MD17) is a state dict, perhaps under a key.  That of OCP and fairchem (up to
version 1) is a mapping with ``state_dict``, ``config``, ``normalizers`` and, depending on the version, ``ema``,
``elementrefs``, an optimizer and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from denskit.models.config import ModelConfig
from denskit.reading.budget import naming
from denskit.reading.torch_files import read_torch
from denskit.runtime.warning import warn

# entries of state dicts that are not trained: a running average lacks them
_UNTRAINED = re.compile(
    r"(^|\.)(distance_expansion\.offset|sphere_points|sphharm_weights\.\d+|energy_lin_ref|expand_index"
    r"|balance_degree_weight|Jd_\d+|SO3_\w+\..+|so3_(grid|rotation)\..+|mappingReduced\..+)$"
)
_OLD_NAMES = {"target": "energy", "grad_target": "forces"}


@dataclass(frozen=True)
class PublishedCheckpoint:
    """Contents of a published file."""

    state: dict[str, Tensor]  # the weights that evaluation used (the running average where there is one)
    model: dict[str, Any] | None  # the model's published hyper-parameters
    normalizers: dict[str, tuple[float, float]] | None  # "energy", ...: mean, deviation; None: not in the file
    references: Tensor | None  # [Z] eV, energies of elements


# hyper-parameters of all models of OCP and fairchem
_ONE_VALUE: dict[str, Any] = {"use_force_encoding": True}
_WITHOUT_EFFECT = {
    "name", "model", "otf_graph", "use_pbc_single", "activation_checkpoint", "activation_checkpointing",
    "show_timing_info",
}  # fmt: skip

Converted = tuple[dict[str, Tensor], dict[str, str]]  # weights by name, irreps of heads by name


@dataclass(frozen=True)
class Importer:
    """Conversion of the checkpoints of one published model.

    ``config`` raises ValueError for a variant that Denskit does not have.  ``convert``, from the state dict of the
    checkpoint and our configuration, gives our state dict of the force field without its scaling, and the heads beyond
    energy and forces; it converts gradients as it does weights, and raises ValueError for missing tensors.
    """

    mark: str  # name of a tensor that only this model has
    config: Callable[[PublishedCheckpoint], ModelConfig]
    convert: Callable[[Mapping[str, Tensor], Any], Converted]
    force_input_scale: float = 1.0  # Å/eV; all published models encode raw forces, in the unit of their data
    unseen: tuple[str, ...] = ()  # settings that neither weights nor file show: defaults are used


class PublishedState(dict[str, Tensor]):
    """A published state dict that records which entries were read; ValueError for a missing one."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__(state)
        self.unread = {name for name, tensor in state.items() if tensor.numel() > 0}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            raise ValueError(f"the checkpoint has no '{name}': it is not a published model of this configuration")
        self.unread.discard(name)
        return super().__getitem__(name)

    def check_all_read(self, constants: re.Pattern[str] | None = None) -> None:
        """ValueError where an entry was not read that does not match ``constants``."""
        left = sorted(name for name in self.unread if constants is None or not constants.search(name))
        if left:
            raise ValueError(
                f"the checkpoint has {len(left)} tensors that this configuration does not use, first '{left[0]}'"
            )


class PublishedSettings(Mapping[str, Any]):
    """Published hyper-parameters that record which were read."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self.unread = set(settings)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


def from_settings(
    config_of: Callable[[Mapping[str, Any]], ModelConfig],
    *,
    one_value: Mapping[str, Any],
    without_effect: frozenset[str] = frozenset(),
) -> Callable[[PublishedCheckpoint], ModelConfig]:
    """:attr:`Importer.config` from the hyper-parameters in the file.

    Args:
        config_of: reads all others; their defaults are those of the published constructor.
        one_value: hyper-parameters that Denskit has with one value; ValueError for another.
        without_effect: names of those that change no prediction.
    """

    def config(checkpoint: PublishedCheckpoint) -> ModelConfig:
        if checkpoint.model is None:
            raise ValueError("there are none (config); give them with --model")
        settings = PublishedSettings(_backbone(checkpoint.model))
        for name, value in {**_ONE_VALUE, **one_value}.items():
            if settings.get(name, value) != value:
                raise ValueError(f"the checkpoint has {name}={settings[name]}; Denskit has {name}={value} only")
        found = config_of(settings)
        if not settings.get("regress_forces", True) and found.forces == "direct":
            raise ValueError("the checkpoint has regress_forces=False: it has no forces, and no energy that gives them")
        if not settings.get("use_pbc", True):
            warn(
                "the checkpoint has use_pbc=False: it was trained without periodic images.  Denskit takes each "
                "structure's own pbc: set pbc=False in periodic files"
            )
        if unknown := sorted(settings.unread - _WITHOUT_EFFECT - without_effect):
            told = ", ".join(f"{name}={settings[name]}" for name in unknown)
            warn(
                f"the checkpoint has settings that Denskit does not know: {told}.  If one of them changes the model, "
                "predictions are wrong: compare a few energies and forces with the published code"
            )
        return found

    return config


def _backbone(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's hyper-parameters, without those of fairchem's heads.  Raises ValueError for means over atoms."""
    backbone, heads = model.get("backbone", model), model.get("heads", {})
    if not isinstance(backbone, Mapping) or not isinstance(heads, Mapping):
        raise ValueError("backbone and heads are no tables of settings")
    for name, head in heads.items():
        if isinstance(head, Mapping) and head.get("reduce", "sum") != "sum":
            raise ValueError(f"the checkpoint's head {name} has reduce={head['reduce']}; Denskit sums over atoms")
    return backbone


def read_checkpoint(path: str | Path) -> PublishedCheckpoint:
    """Read a published checkpoint; nothing in the file is executed.

    Raises:
        FileNotFoundError: No such file.
        ValueError: The file holds anything but tensors, numbers, text and plain containers, or no state dict.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    loaded = read_torch(path)
    if not isinstance(loaded, dict):
        loaded = {}
    state = next(
        (loaded[k] for k in ("state_dict", "model", "model_state_dict") if isinstance(loaded.get(k), dict)), loaded
    )
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no state dict (a mapping of names to tensors, perhaps under 'state_dict')")
    with naming(path, "is no published checkpoint"):
        # without the prefixes of wrappers (parallel training, torch.compile, fairchem's hydra)
        prefix = r"^((module|_orig_mod)\.)*(backbone\.|output_heads\.\w+\.)?"
        state = {re.sub(prefix, "", name): tensor for name, tensor in state.items()}
        average = loaded.get("ema") if state is not loaded else None
        if isinstance(average, dict) and average.get("shadow_params"):
            state |= _averaged(state, average["shadow_params"])
        settings = loaded.get("config")
        settings = settings if isinstance(settings, dict) else {}
        normalizers = _normalizers(loaded.get("normalizers"), settings)
        return PublishedCheckpoint(
            state, _model_settings(settings), normalizers, _references(loaded, state, normalizers)
        )


def _averaged(state: Mapping[str, Tensor], average: Any) -> dict[str, Tensor]:
    """The running average, a list without names in the order of the trained parameters, by name."""
    if not isinstance(average, list):
        raise ValueError("the running average (ema) is no list of tensors, as OCP and fairchem up to version 1 have it")
    names = [name for name in state if not _UNTRAINED.search(name)]
    shapes = [tuple(state[name].shape) for name in names]
    if shapes != [tuple(tensor.shape) for tensor in average]:
        raise ValueError(
            f"the running average (ema) has {len(average)} tensors that do not match the {len(names)} trained "
            "tensors of the state dict one by one; Denskit cannot tell which is which"
        )
    return dict(zip(names, average, strict=True))


def _model_settings(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The model's hyper-parameters, from where any version of OCP or fairchem puts them."""
    model = settings.get("model")
    if isinstance(model, str):
        model = settings.get("model_attributes")
    return dict(model) if isinstance(model, dict) else None


def _normalizers(stored: Any, settings: Mapping[str, Any]) -> dict[str, tuple[float, float]] | None:
    """Mean and deviation of energies, forces and stresses, from their own entry or else from the configuration."""
    if not isinstance(stored, dict):
        dataset = settings.get("dataset")
        dataset = dataset.get("train", dataset) if isinstance(dataset, dict) else {}
        stored = ((dataset.get("transforms") or {}).get("normalizer") if isinstance(dataset, dict) else None) or None
        if stored is None:
            return None
    found = {}
    for name, entry in stored.items():
        deviation = next((entry[key] for key in ("std", "rmsd", "stdev") if key in entry), 1.0)
        found[_OLD_NAMES.get(name, name)] = (float(entry.get("mean", 0.0)), float(deviation))
    if found.get("forces", (0.0, 1.0))[0] != 0:
        raise ValueError(f"the forces' normaliser has the mean {found['forces'][0]}; only 0 is meaningful")
    return found


def _references(
    loaded: Mapping[str, Any], state: Mapping[str, Tensor], normalizers: Mapping[str, tuple[float, float]] | None
) -> Tensor | None:
    """Energies of elements (eV): stored as such, or by EquiformerV2 in units of the energies' deviation."""
    stored = loaded.get("elementrefs")
    if isinstance(stored, dict) and "energy" in stored:
        references: Tensor = stored["energy"]["element_references"]
        return references.double()
    if "energy_lin_ref" in state:
        deviation = (normalizers or {}).get("energy", (0.0, 1.0))[1]
        return state["energy_lin_ref"].double() * deviation
    return None
