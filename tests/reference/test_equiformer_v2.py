"""EquiformerV2 against stored outputs of its published implementation: every case ``v2_*`` of the reference folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from denskit.models import build_force_field
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.equiformer_v2.published import config_of_equiformer_v2, convert_equiformer_v2
from denskit.models.scaling import Scaling
from reference.open_catalyst import AgainstPublished, Case, cases, load_case


@pytest.fixture(scope="module", params=cases("v2_") or [None])
def case(request: pytest.FixtureRequest, reference_dir: Path) -> Case:
    if request.param is None:
        pytest.skip(f"no v2_*.npz in {reference_dir}")
    return load_case(reference_dir, request.param, "equiformer_v2")


class TestEquiformerV2(AgainstPublished):
    """Outputs, loss and gradients."""


@pytest.mark.parametrize(
    ("changes", "plain", "dens"),
    [
        ({}, 83_164_802, 89_148_163),  # OC20 S2EF-2M
        ({"num_layers": 20, "m_max": 3}, 153_602_690, 160_504_579),  # OC20 S2EF-All+MD
        ({"num_layers": 18}, 121_526_402, 127_509_763),  # OC22
    ],
)
def test_number_of_parameters(changes: dict[str, int], plain: int, dens: int) -> None:
    """The paper's models; with DeNS ours has no bias in the force embedding: 128 fewer."""
    for heads, published in (({}, plain), ({"noise": "1"}, dens - 128)):
        scaling = Scaling(elements=[1, 6, 8])
        with torch.device("meta"):
            force_field = build_force_field(EquiformerV2Config(**changes), heads=heads, scaling=scaling)
        count = sum(parameter.numel() for parameter in force_field.parameters())
        print(f"{changes} {heads}: {count:,} parameters")
        assert count == published


def test_number_of_parameters_of_the_cases(case: Case) -> None:
    count = sum(parameter.numel() for parameter in case.force_field.parameters())
    folded = case.arrays["param/force_embedding.bias"].numel() if "noise" in case.force_field.heads else 0
    assert count == case.about["n_params"] - folded


def test_checkpoints_of_unknown_variants_are_refused(case: Case) -> None:
    """Not loaded as something else."""
    given, config = case.about["hyper_parameters"], case.force_field.config
    for change in ({"use_m_share_rad": True}, {"use_gate_act": True, "use_grid_mlp": True, "use_sep_s2_act": False}):
        with pytest.raises(ValueError, match="the checkpoint has "):
            config_of_equiformer_v2(given | change)
    with pytest.raises(ValueError, match="it is not a published EquiformerV2"):
        convert_equiformer_v2({"weight": torch.zeros(1)}, config)  # type: ignore[arg-type]
