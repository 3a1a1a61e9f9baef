"""Published eSEN weights and hyper-parameters as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from denskit.models.esen.config import ESENConfig
from denskit.models.packed_published import rename, without_stress_head
from denskit.models.published_checkpoint import Converted, Importer, from_settings

_HEADS = (
    (r"^energy_block\.", "heads.energy.mlp."),
    (r"^linear\.", "heads.forces.linear."),
    (r"^denoising_linear\.", "heads.noise.linear."),
)
_LAYERS = (
    (r"\.scalar_mlp\.0\.", ".gates."),
    (r"\.grid_mlp\.0\.", ".first."),
    (r"\.grid_mlp\.2\.", ".inner."),
    (r"\.grid_mlp\.4\.", ".last."),
)


def convert_esen(state: Mapping[str, Tensor], config: ESENConfig) -> Converted:
    """A published eSEN state dict as ours (see :class:`Importer`), without the stress' head."""
    out, heads = rename(without_stress_head(state), "eSEN", _HEADS, _LAYERS, bias_on_all=True)
    for head in ("forces", "noise"):  # published: one matrix for each degree and a bias, of which only degree 1 acts
        if f"heads.{head}.linear.weight" in out:
            out[f"heads.{head}.linear.weight"] = out[f"heads.{head}.linear.weight"][1]
            del out[f"heads.{head}.linear.bias"]
    return out, heads


def config_of_esen(model: Mapping[str, Any]) -> ESENConfig:
    """Our configuration from the published hyper-parameters (section ``model`` of a checkpoint's configuration).

    Raises ValueError for a variant that Denskit does not have.
    """
    if model.get("act_type", "s2") != "gate":  # s2: the published default
        raise ValueError(f"the checkpoint has act_type={model.get('act_type', 's2')}; Denskit's eSEN has gate only")
    atomwise, points = model.get("mlp_type", "grid"), model.get("grid_resolution")
    if atomwise == "grid" and points is not None:
        raise ValueError(f"the checkpoint has grid_resolution={points}; Denskit's eSEN chooses the points by degree")
    direct = model.get("direct_forces", True)
    return ESENConfig(
        cutoff=model["cutoff"],
        max_neighbors=model["max_neighbors"],
        num_elements=model.get("max_num_elements", 100),
        forces="direct" if direct else "gradient",
        stress="strain" if model.get("regress_stress") and not direct else "none",
        force_input_scale=1.0,  # published: raw forces in eV/Å
        num_layers=model["num_layers"],
        l_max=model["lmax"],
        m_max=model["mmax"],
        channels=model["sphere_channels"],
        hidden_channels=model["hidden_channels"],
        edge_channels=model["edge_channels"],
        num_basis=model["num_distance_basis"],
        radial_basis=model.get("distance_function", "gaussian"),
        atomwise=atomwise,
        envelope=model.get("use_envelope", False),
    )


IMPORTER = Importer(
    "blocks.0.edge_wise.so2_conv_1.fc_m0.weight",
    from_settings(config_of_esen, one_value={"norm_type": "rms_norm_sh"}),
    convert_esen,
)
