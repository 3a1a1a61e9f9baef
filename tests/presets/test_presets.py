"""Presets load, describe themselves, and the ones meant for dynamics are smooth."""

from __future__ import annotations

import pytest

from denskit.models import build_force_field
from denskit.models.config import MEASURED
from denskit.models.scaling import Scaling
from denskit.presets import preset_description, preset_names, preset_text
from denskit.training.load_config import load_config
from denskit.training.settings import SizeRow


@pytest.mark.parametrize("name", preset_names())
def test_preset_loads_with_and_without_dens(name: str) -> None:
    molecule = ["data.molecule=aspirin"] if name.startswith("md17/") else []
    for task in ("energy_forces", "dens"):
        config = load_config(name, [*molecule, f"task={task}"])
        assert config.task.name == task
        one_mean = config.model.forces == "direct" or name.startswith("crystals/")
        # the coefficients belong to the form of the loss
        assert config.task.loss == ("published_oc20" if one_mean else "published")
    assert preset_text(name).startswith("# ")
    assert 20 < len(preset_description(name)) < 120


PUBLISHED = ("md17/", "oc20/", "oc22/", "crystals/")  # as published, which is not smooth
OF_GRADIENTS = [
    name
    for name in preset_names()
    if not name.startswith(PUBLISHED) and load_config(name, []).model.forces == "gradient"
]


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_forces_by_gradient_are_smooth_at_every_size(name: str) -> None:
    """Models promise ``smooth`` where they have an envelope, no limit of neighbours, and are exact in every gauge; the
    contract tests hold them to it."""
    config = load_config(name, [])
    assert config.model.cutoff <= 6
    for row in config.sizes or (SizeRow(model={}),):
        settings = config.model.model_dump() | row.model
        settings |= {key: 20.0 for key in MEASURED if key in settings}
        model = type(config.model).model_validate(settings)
        backbone = build_force_field(model, heads={"noise": "1"}, scaling=Scaling(elements=[1, 6, 8])).backbone
        assert backbone.smooth
        assert backbone.gauge_exact


def test_presets_of_gradients_are_found() -> None:
    assert {"equiformer", "equiformer_v2", "equiformer_v3", "esen", "demo"} <= set(OF_GRADIENTS)


def test_misspelt_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean md17/equiformer_l2_dens"):
        preset_text("md17/equiformer_l2_denss")


def test_presets_for_own_data_clip_outliers() -> None:
    for name in (name for name in preset_names() if "/" not in name):
        assert load_config(name, ["data.path=x.extxyz"]).training.clip_norm, name
