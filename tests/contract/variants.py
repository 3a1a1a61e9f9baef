"""The models under contract: every backbone in a few small variants.  A new model adds its lines here."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from denskit.models import ForceField, ModelConfig, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.equiformer_v3 import EquiformerV3Config
from denskit.models.escn import ESCNConfig
from denskit.models.esen import ESENConfig
from denskit.models.scaling import Scaling

NOISE = {"noise": "1"}
ELEMENTS = (1, 6, 7, 8, 11, 17, 29)


@dataclass(frozen=True)
class Variant:
    """A small model."""

    config: ModelConfig
    heads: dict[str, str] = field(default_factory=dict)
    sampling_error: float = 0.0  # of rotated inputs, relative to the rms: functions sampled at points of the sphere
    gain: float = 1.0  # of all parameters: eSCN's initial vectors are so small that only sampling errors would be left


EQUIFORMER: dict[str, object] = {  # the cutoff leaves about 70 edges in the test systems
    "cutoff": 4.0, "num_layers": 2, "channels": (8, 4, 2), "feature_channels": (8, 4, 3), "head_channels": (4, 2, 2),
    "num_heads": 2, "ffn_channels": (8, 4, 2), "num_basis": 8, "radial_hidden": (8,),
}  # fmt: skip
PACKED: dict[str, object] = {
    "cutoff": 4.0, "max_neighbors": None, "l_max": 2, "m_max": 1, "channels": 8, "edge_channels": 8, "num_basis": 16,
}  # fmt: skip
ATTENTION: dict[str, object] = PACKED | {
    "num_layers": 1, "hidden_channels": 4, "num_heads": 2, "alpha_channels": 4, "value_channels": 2,
    "ffn_channels": 8, "attention_dropout": 0.0, "stochastic_depth": 0.0,
}  # fmt: skip
ESEN = PACKED | {"num_layers": 2, "hidden_channels": 6}
ESCN = PACKED | {
    "num_layers": 2, "channels": 6, "hidden_channels": 5, "edge_channels": 4, "num_sphere_samples": 128,
}  # fmt: skip


def equiformer(**changes: object) -> EquiformerConfig:
    """Equiformer with everything small."""
    return EquiformerConfig.model_validate(EQUIFORMER | changes)


def equiformer_v2(**changes: object) -> EquiformerV2Config:
    """EquiformerV2 with everything small."""
    return EquiformerV2Config.model_validate(ATTENTION | {"grid_resolution": 10} | changes)


def equiformer_v3(**changes: object) -> EquiformerV3Config:
    """EquiformerV3 with everything small."""
    return EquiformerV3Config.model_validate(ATTENTION | changes)


def esen(**changes: object) -> ESENConfig:
    """ESEN with everything small."""
    return ESENConfig.model_validate(ESEN | changes)


def escn(**changes: object) -> ESCNConfig:
    """ESCN with everything small."""
    return ESCNConfig.model_validate(ESCN | changes)


BY_PAIR = {"radial_basis": "exponential_normal", "basis_origin": "covalent_radii"}
VARIANTS: dict[str, Variant] = {
    "nonlinear": Variant(equiformer(), NOISE),
    "linear": Variant(equiformer(messages="linear", radial_basis="gaussian", num_layers=1)),
    "dot_product": Variant(
        equiformer(attention="dot_product", messages="linear", radial_basis="bessel", num_layers=1), NOISE
    ),
    "no_attention": Variant(equiformer(attention="none", norm="none", initialisation="uniform", num_layers=1), NOISE),
    "direct": Variant(
        equiformer(forces="direct", messages="linear", attention="none", num_layers=1, message_channels="input"), NOISE
    ),
    "envelope": Variant(equiformer(envelope=True, stress="strain"), NOISE),
    "merged": Variant(
        equiformer(envelope=True, norm="merged", basis_origin="covalent_radii", mark_corrupted=True), NOISE
    ),
    "parity": Variant(
        equiformer(envelope=True, norm="merged", basis_origin="covalent_radii", parity=True, stress="strain"), NOISE
    ),
    "parity_direct": Variant(
        equiformer(forces="direct", attention="dot_product", messages="linear", num_layers=1, parity=True), NOISE
    ),
    "merged_direct": Variant(equiformer(envelope=True, norm="merged", forces="direct", messages="linear"), NOISE),
    "envelope_dot_product": Variant(
        equiformer(
            envelope=True,
            attention="dot_product",
            messages="linear",
            num_layers=1,
            radial_basis="gaussian",
            rescale_degree=True,
        ),
        NOISE,
    ),
    "envelope_rescaled": Variant(
        equiformer(envelope=True, stress="strain", num_layers=1, rescale_degree=True, message_channels=(6, 5, 3)), NOISE
    ),
    "envelope_linear_l3": Variant(
        equiformer(
            envelope=True,
            messages="linear",
            num_layers=1,
            channels=(8, 4, 2, 2),
            feature_channels=(8, 4, 2, 2),
            head_channels=(4, 2, 1, 1),
            ffn_channels=(8, 4, 2, 2),
        )
    ),
    "envelope_no_attention": Variant(equiformer(envelope=True, attention="none", stress="strain", num_layers=1)),
    "v2": Variant(equiformer_v2(num_layers=2, l_max=3, m_max=2), NOISE, sampling_error=0.05),
    "v2_s2": Variant(
        equiformer_v2(activation="s2", grid_mlp=False, norm="rms_norm", atom_pairs="shared"), sampling_error=1e-5
    ),
    "v2_s2_grid": Variant(
        equiformer_v2(
            activation="s2",
            norm="layer_norm",
            atom_pairs="none",
            attention_renormalisation=False,
            initialisation="normal",
        ),
        NOISE,
        sampling_error=0.1,
    ),
    "v3": Variant(equiformer_v3(num_layers=2, l_max=3, m_max=2, stress="direct"), NOISE),
    "v3_gradient": Variant(equiformer_v3(forces="gradient", stress="strain", **BY_PAIR), NOISE),
    "v3_parity": Variant(
        equiformer_v3(num_layers=2, parity=True, forces="gradient", stress="strain", **BY_PAIR), NOISE
    ),
    "v3_s2": Variant(
        equiformer_v3(activation="separable_s2", norm="separable_layer_norm", envelope=False), sampling_error=0.05
    ),
    "esen": Variant(esen(l_max=3, m_max=2, stress="direct"), NOISE),
    "esen_gradient": Variant(esen(forces="gradient", stress="strain", radial_basis="bessel"), NOISE),
    "esen_parity": Variant(
        esen(parity=True, forces="gradient", stress="strain", mark_corrupted=True, **BY_PAIR), NOISE
    ),
    "esen_grid": Variant(esen(atomwise="grid", envelope=False), sampling_error=0.1),
    "v2_gate": Variant(equiformer_v2(activation="gate", grid_mlp=False, norm="rms_norm"), NOISE),
    "v2_gradient": Variant(equiformer_v2(forces="gradient"), sampling_error=1e-6),
    "v2_envelope": Variant(
        equiformer_v2(
            activation="gate", grid_mlp=False, envelope=True, forces="gradient", stress="strain", num_layers=2
        ),
        NOISE,
    ),
    "v2_parity_direct": Variant(
        equiformer_v2(activation="gate", grid_mlp=False, envelope=True, norm="layer_norm", parity=True), NOISE
    ),
    "escn": Variant(escn(), NOISE, sampling_error=0.1, gain=1.7),
    "escn_all_orders": Variant(escn(m_max=2), sampling_error=0.1, gain=1.7),
    "escn_gradient": Variant(escn(forces="gradient", mark_corrupted=True), NOISE, sampling_error=0.2, gain=1.7),
}


def build(name: str, dtype: torch.dtype, **changes: object) -> ForceField:
    """A variant with random numbers in all parameters, also where they start as zeros or ones; in evaluation mode."""
    variant = VARIANTS[name]
    generator = torch.Generator().manual_seed(7)
    scaling = Scaling(
        elements=ELEMENTS, references={"H": -13.0, "O": -2000.0}, energy_shift=-3.0,
        energy_scale=2.5, force_scale=2.5, stress_scale=2.5,
    )  # fmt: skip
    config = type(variant.config).model_validate(variant.config.model_dump() | changes)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        force_field = build_force_field(config, heads=variant.heads, scaling=scaling).double()
    with torch.no_grad():
        for parameter in force_field.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter *= variant.gain
    return force_field.to(dtype).eval()
