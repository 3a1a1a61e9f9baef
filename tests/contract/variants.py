"""The models under contract: every backbone in a few small variants.  A new model adds its lines here."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from denskit.models import ForceField, ModelConfig, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling

NOISE = {"noise": "1"}
ELEMENTS = (1, 6, 7, 8, 11, 17, 29)


@dataclass(frozen=True)
class Variant:
    """A small model."""

    config: ModelConfig
    heads: dict[str, str] = field(default_factory=dict)


def equiformer(**changes: object) -> EquiformerConfig:
    """Equiformer with everything small; the cutoff leaves about 70 edges in the test systems."""
    small: dict[str, object] = {
        "cutoff": 4.0,
        "num_layers": 2,
        "channels": (8, 4, 2),
        "feature_channels": (8, 4, 3),
        "head_channels": (4, 2, 2),
        "num_heads": 2,
        "ffn_channels": (8, 4, 2),
        "num_basis": 8,
        "radial_hidden": (8,),
    }
    return EquiformerConfig.model_validate(small | changes)


VARIANTS: dict[str, Variant] = {
    "nonlinear": Variant(equiformer(), NOISE),
    "linear": Variant(equiformer(messages="linear", radial_basis="gaussian", num_layers=1)),
    "dot_product": Variant(
        equiformer(attention="dot_product", messages="linear", radial_basis="bessel", num_layers=1), NOISE
    ),
    "no_attention": Variant(equiformer(attention="none", norm="none", initialisation="uniform", num_layers=1), NOISE),
    "direct": Variant(equiformer(forces="direct", messages="linear", attention="none", num_layers=1), NOISE),
    "envelope": Variant(equiformer(envelope=True, stress="strain"), NOISE),
    "envelope_dot_product": Variant(
        equiformer(envelope=True, attention="dot_product", messages="linear", num_layers=1, radial_basis="gaussian"),
        NOISE,
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
    return force_field.to(dtype).eval()
