"""Models: backbones by name, and how a force field is built from a configuration."""

from __future__ import annotations

from typing import NamedTuple

from denskit.models.base import Backbone, ForceField
from denskit.models.config import ModelConfig
from denskit.models.equiformer import Equiformer, EquiformerConfig
from denskit.models.equiformer.published_settings import IMPORTER as equiformer_importer
from denskit.models.equiformer_v2 import EquiformerV2, EquiformerV2Config
from denskit.models.equiformer_v2.published import IMPORTER as equiformer_v2_importer
from denskit.models.equiformer_v3 import EquiformerV3, EquiformerV3Config
from denskit.models.equiformer_v3.published import IMPORTER as equiformer_v3_importer
from denskit.models.escn import ESCN, ESCNConfig
from denskit.models.escn.published import IMPORTER as escn_importer
from denskit.models.esen import ESEN, ESENConfig
from denskit.models.esen.published import IMPORTER as esen_importer
from denskit.models.published_checkpoint import Importer
from denskit.models.scaling import Scaling
from denskit.runtime.registry import Registry, settings_problem


class ModelEntry(NamedTuple):
    """A model: its configuration, its backbone(config, heads, force_input_scale), the importer of published weights."""

    config: type[ModelConfig]
    backbone: type[Backbone]
    importer: Importer | None = None


def _problem(name: str, entry: object) -> str | None:
    wanted = "ModelEntry(Config, Backbone)"
    problem = settings_problem(name, entry, wanted, ModelEntry, ModelConfig)
    backbone = getattr(entry, "backbone", None)
    if problem is None and not (isinstance(backbone, type) and issubclass(backbone, Backbone)):
        problem = f"wanted {wanted}, found {backbone!r:.199}"
    return problem


MODELS = Registry(
    "model",
    {
        "equiformer": ModelEntry(EquiformerConfig, Equiformer, equiformer_importer),
        "equiformer_v2": ModelEntry(EquiformerV2Config, EquiformerV2, equiformer_v2_importer),
        "equiformer_v3": ModelEntry(EquiformerV3Config, EquiformerV3, equiformer_v3_importer),
        "esen": ModelEntry(ESENConfig, ESEN, esen_importer),
        "escn": ModelEntry(ESCNConfig, ESCN, escn_importer),
    },
    _problem,
)


def build_force_field(config: ModelConfig, *, heads: dict[str, str], scaling: Scaling) -> ForceField:
    """A force field with fresh weights; ``heads`` are those of tasks, as name -> irreps ("noise": "1" for DeNS).

    Raises ValueError for elements of the scaling that the settings do not embed, and for heads of a missing degree.
    """
    if max(scaling.elements, default=0) >= config.num_elements:
        raise ValueError(
            f"the data hold atomic number {max(scaling.elements)}, the model embeds numbers below "
            f"{config.num_elements}; set model.num_elements={max(scaling.elements) + 1} or more"
        )
    all_heads = config.heads | heads
    config.require_degrees(all_heads)
    force_input_scale = config.force_input_scale or 1 / float(scaling.force_scale)
    backbone = MODELS[config.name].backbone(config, all_heads, force_input_scale)  # type: ignore[call-arg, arg-type]
    return ForceField(backbone, all_heads, scaling)
