"""Presets load, describe themselves, and the ones meant for dynamics are smooth."""

from __future__ import annotations

import pytest

from denskit.presets import preset_description, preset_names, preset_text
from denskit.training.config import load_config


@pytest.mark.parametrize("name", preset_names())
def test_preset_loads_with_and_without_dens(name: str) -> None:
    molecule = ["data.molecule=aspirin"] if name.startswith("md17/") else []
    for task in ("energy_forces", "dens"):
        config = load_config(name, [*molecule, f"task={task}"])
        assert config.task.name == task
        direct = config.model.forces == "direct"
        # the coefficients belong to the form of the loss
        assert config.task.loss == ("published_oc20" if direct else "published")
    # what is neither published nor of direct forces is smooth
    published = name.startswith(("md17/", "oc20/", "oc22/"))
    assert direct or published or config.model.envelope  # type: ignore[attr-defined]
    assert preset_text(name).startswith("# ")
    assert 20 < len(preset_description(name)) < 120


def test_misspelt_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean md17/equiformer_l2_dens"):
        preset_text("md17/equiformer_l2_denss")
