"""The configuration of a published Equiformer, from its published settings or from the shapes of its tensors.

Every option of the published constructors is used or refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from denskit.models.config import ModelConfig
from denskit.models.equiformer.config import EquiformerConfig
from denskit.models.equiformer.published import convert_equiformer, published_paths
from denskit.models.published_checkpoint import Importer, PublishedCheckpoint
from denskit.units import KCAL_PER_MOL

MD17_CONFIGS = {
    2: EquiformerConfig(),
    3: EquiformerConfig(
        channels=(128, 64, 64, 32),
        feature_channels=(512, 256, 256, 128),
        head_channels=(32, 16, 16, 8),
        ffn_channels=(384, 192, 192, 96),
    ),
}
BASES = {"exp": "exponential_normal", "gaussian": "gaussian", "bessel": "bessel"}
NORMS = ("layer", "fast_layer")  # one function, written twice
_TERM = re.compile(r"\s*(?:(\d+)x)?(\d+)e\s*")  # of irreps: "64x1e"
_ONE_VALUE = {  # published options that Denskit has with one value only
    "irreps_node_attr": "1x0e",
    "use_attn_head": False,
    "use_force_encoding": True,
    "scale": None,
    "atomref": None,
}
_WITHOUT_EFFECT = {"name", "irreps_in", "mean", "std"}  # on the published function
_TAKEN = {
    "irreps_node_embedding", "irreps_feature", "irreps_head", "irreps_mlp_mid", "irreps_pre_attn", "irreps_sh",
    "irreps_equivariant_inputs", "num_layers", "num_heads", "max_radius", "number_of_basis", "basis_type",
    "fc_neurons", "rescale_degree", "nonlinear_message", "norm_layer", "alpha_drop", "proj_drop", "out_drop",
    "drop_path_rate",
}  # fmt: skip
_REFUSED = {  # tensors of options that Denskit does not have
    "head.merge_src.tp.weight": "use_attn_head=True, an attention as energy head",
    "blocks.0.norm_1.mean_shift": "norm_layer=graph",
    "tag_embed.atom_type_lin.tp.weight": "tags of OC20's atoms",
}


def config_of_equiformer(settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> EquiformerConfig:
    """Our configuration from the published settings, the arguments of the published model's constructor.

    Args:
        settings: as in the section ``model`` of the published YAML files.
        state: the published tensors; they show the kind of attention, DeNS and the number of elements.

    Raises:
        KeyError: A setting is missing.
        ValueError: A setting that Denskit does not have, or a value of it.
    """
    _check_options(settings, state)
    channels = _channels(settings, "irreps_node_embedding")
    degrees = len(channels)
    dens = _has_noise_head(state)
    features = _channels(settings, "irreps_feature", degrees if dens else 1)
    for key in ("irreps_sh", "irreps_equivariant_inputs"):
        if key in settings and _channels(settings, key, degrees) != (1,) * degrees:
            raise ValueError(f"the published settings have {key}={settings[key]!r}; wanted is each degree once")
    attention = _attention(state)
    messages: Sequence[int] | str | None = "input"
    if settings["irreps_pre_attn"] is not None:
        messages = _channels(settings, "irreps_pre_attn", degrees)
    if messages == channels or (messages == "input" and not dens):
        messages = None
    return EquiformerConfig.model_validate(
        {
            "cutoff": settings["max_radius"],
            "num_layers": settings["num_layers"],
            "num_elements": _num_elements(state, channels[0]),
            "channels": channels,
            "feature_channels": features if dens else features + channels[1:],  # scalars are all that is used
            "head_channels": _channels(settings, "irreps_head", degrees),
            "num_heads": settings["num_heads"],
            "ffn_channels": _channels(settings, "irreps_mlp_mid", degrees),
            "message_channels": messages,
            "rescale_degree": settings["rescale_degree"],
            "radial_basis": BASES[settings["basis_type"]],
            "num_basis": settings["number_of_basis"],
            "radial_hidden": settings["fc_neurons"],
            "attention": attention,
            "messages": "nonlinear" if settings["nonlinear_message"] and attention != "dot_product" else "linear",
            "norm": _norm(state),
            "attention_dropout": 0.0 if attention == "none" else settings.get("alpha_drop", 0.0),
            "projection_dropout": settings.get("proj_drop", 0.0),
            "output_dropout": settings.get("out_drop", 0.0),
            "stochastic_depth": settings.get("drop_path_rate", 0.0),
        }
    )


def detect_equiformer(state: Mapping[str, Tensor]) -> EquiformerConfig:
    """The configuration of a published MD17 Equiformer (L_max 2 or 3, any attention and basis), from its tensors.

    Three settings are not visible in the tensors and get these values: ``rescale_degree`` off, the cutoff of Gaussian
    and Bessel bases 5 Å, and 4 heads of the dot-product attention.

    Raises ValueError for another model, and for one of other sizes (then a configuration must be given).
    """
    _check_tensors(state)
    kind = "dpa" if "blocks.0.dpa.query.tp.weight" in state else "ga"
    merge, radial = f"blocks.0.{kind}.merge_src.tp.weight", "edge_deg_embed.rad.net.0.weight"
    width = "edge_deg_embed.rad.offset"
    for name, dimensions in (("atom_embed.atom_type_lin.tp.weight", 1), (merge, 1), (radial, 2), (width, 1)):
        if name not in state or state[name].dim() != dimensions:
            raise ValueError(f"no {name} as published among {len(state)} tensors: not a published Equiformer")
    sizes = {sum(config.channels[path.l1] for path in published_paths(l)): config for l, config in MD17_CONFIGS.items()}
    if len(state[width]) not in sizes:
        raise ValueError(
            f"the tensor products have {len(state[width])} weights an edge; known are {sorted(sizes)} (L_max 2, 3): "
            "give the configuration as YAML"
        )
    config = sizes[len(state[width])]
    layers = {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
    basis = "exponential_normal" if "rbf.means" in state else ("gaussian" if "rbf.mean" in state else "bessel")
    update = {
        "cutoff": _cutoff(state, config.cutoff),
        "num_layers": len(layers),
        "num_basis": state[radial].shape[1],
        "num_elements": _num_elements(state, config.channels[0]),
        "attention": _attention(state),
        "messages": "nonlinear" if "blocks.0.ga.sep_act.lin.tp.weight" in state else "linear",
        "message_channels": _messages(state, config, f"blocks.0.{kind}"),
        "norm": _norm(state),
        "radial_basis": basis,
    }
    return EquiformerConfig.model_validate(config.model_dump() | update)


def _check_options(settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """ValueError for options that Denskit does not have."""
    unknown = sorted(settings.keys() - _TAKEN - _ONE_VALUE.keys() - _WITHOUT_EFFECT)
    if unknown:
        raise ValueError(f"the published settings have {unknown[0]!r}, which Denskit's Equiformer does not have")
    for key, value in _ONE_VALUE.items():
        if settings.get(key, value) != value:
            raise ValueError(f"the published settings have {key}={settings[key]!r}; Denskit's Equiformer has {value!r}")
    for key, known in (("norm_layer", NORMS), ("basis_type", tuple(BASES))):
        if settings[key] not in known:
            raise ValueError(f"the published settings have {key}={settings[key]!r}; known are {', '.join(known)}")
    _check_tensors(state)


def _check_tensors(state: Mapping[str, Tensor]) -> None:
    for name, option in _REFUSED.items():
        if name in state:
            raise ValueError(f"the checkpoint has {option} ('{name}'), which Denskit's Equiformer does not have")


def _channels(settings: Mapping[str, Any], key: str, degrees: int | None = None) -> tuple[int, ...]:
    """Channels of all degrees from irreps: "128x0e+64x1e" to (128, 64); ``degrees``: how many are wanted."""
    terms = [_TERM.fullmatch(term) for term in str(settings[key]).split("+")]
    found = [int(term[2]) for term in terms if term]
    wanted = list(range(len(terms) if degrees is None else degrees))
    if None in terms or found != wanted:
        raise ValueError(
            f"the published settings have {key}={settings[key]!r}; Denskit's Equiformer has the degrees "
            f"{', '.join(map(str, wanted))} here, each once, in this order and of even parity"
        )
    return tuple(int(term[1] or 1) for term in terms if term)


def _has_noise_head(state: Mapping[str, Tensor]) -> bool:
    return "denoising_pos_head.merge_src.tp.weight" in state


def _num_elements(state: Mapping[str, Tensor], channels: int) -> int:
    return state["atom_embed.atom_type_lin.tp.weight"].numel() // channels


def _attention(state: Mapping[str, Tensor]) -> str:
    if "blocks.0.dpa.query.tp.weight" in state:
        return "dot_product"
    return "mlp" if "blocks.0.ga.alpha_dot" in state else "none"


def _norm(state: Mapping[str, Tensor]) -> str:
    return "layer" if "blocks.0.norm_1.affine_weight" in state else "none"


def _cutoff(state: Mapping[str, Tensor], usual: float) -> float:
    """Å; the first mean of the exponential-normal basis is exp(-cutoff)."""
    first = float(state["rbf.means"].min()) if "rbf.means" in state else 0.0
    return round(-math.log(first), 4) if 0 < first < 1 else usual


def _messages(state: Mapping[str, Tensor], config: EquiformerConfig, block: str) -> Sequence[int] | str | None:
    """``message_channels`` from the tensors of a block and of the noise head."""
    found = _channels_of_messages(state, config, block, config.channels)
    in_head = found
    if _has_noise_head(state):
        in_head = _channels_of_messages(state, config, "denoising_pos_head", config.feature_channels)
    for setting in (None, "input", found):
        guess = config.model_copy(update={"message_channels": setting})
        if (guess.messages_of(config.channels), guess.messages_of(config.feature_channels)) == (found, in_head):
            return setting
    raise ValueError(
        f"messages have {found} channels in the blocks and {in_head} in the noise head: give the configuration as YAML"
    )


def _channels_of_messages(
    state: Mapping[str, Tensor], config: EquiformerConfig, attention: str, channels_in: Sequence[int]
) -> tuple[int, ...]:
    """Channels of the messages of one attention: sizes of its tensors are linear functions of them."""
    paths, degrees = published_paths(config.l_max), range(config.l_max + 1)
    products = [name for name in ("key_value", "sep", "sep_value") if f"{attention}.{name}.lin.tp.weight" in state]
    product = products[0] if products else "sep_value"
    values = list(config.value_channels)
    if product == "key_value":
        values = [2 * c for c in values]
    elif product == "sep" and _attention(state) == "mlp":
        values[0] *= 2
    radial = {"key_value": "key_value", "sep": "sep", "sep_value": "sep_act"}[product]
    equations = [
        (f"{attention}.merge_src.bias.0", [float(l == 0) for l in degrees]),
        (f"{attention}.merge_src.tp.weight", list(channels_in)),
        (f"{attention}.{radial}.dtp_rad.offset", [sum(path.l1 == l for path in paths) for l in degrees]),
        (f"{attention}.{product}.lin.tp.weight", [sum(values[p.l3] for p in paths if p.l1 == l) for l in degrees]),
    ]
    missing = [name for name, _ in equations if name not in state]
    if missing:
        raise ValueError(f"no {missing[0]} as published among {len(state)} tensors: not a published Equiformer")
    matrix = np.array([row for _, row in equations], dtype=np.float64)
    sizes = np.array([state[name].numel() for name, _ in equations], dtype=np.float64)
    found = np.round(np.linalg.lstsq(matrix, sizes, rcond=None)[0])
    if not np.array_equal(matrix @ found, sizes):
        raise ValueError(f"the sizes of {attention} fit no number of channels: give the configuration as YAML")
    return tuple(int(c) for c in found)


def _config_of(checkpoint: PublishedCheckpoint) -> ModelConfig:
    if checkpoint.model is None:  # as published: weights only
        return detect_equiformer(checkpoint.state)
    return config_of_equiformer(checkpoint.model, checkpoint.state)


IMPORTER = Importer(
    "atom_embed.atom_type_lin.tp.weight",
    _config_of,
    convert_equiformer,
    force_input_scale=1 / KCAL_PER_MOL,
    unseen=("cutoff", "num_heads", "rescale_degree"),
)
