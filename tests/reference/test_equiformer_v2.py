"""EquiformerV2 against stored outputs of its published implementation: every case ``v2_*`` of the reference folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from denskit.models.equiformer_v2.published import IMPORTER, convert_equiformer_v2
from denskit.models.published_checkpoint import PublishedCheckpoint
from reference.open_catalyst import AgainstPublished, Case, cases, load_case


@pytest.fixture(scope="module", params=cases("v2_") or [None])
def case(request: pytest.FixtureRequest, reference_dir: Path) -> Case:
    if request.param is None:
        pytest.skip(f"no v2_*.npz in {reference_dir}")
    return load_case(reference_dir, request.param, "equiformer_v2")


class TestEquiformerV2(AgainstPublished):
    """Outputs, loss and gradients."""


def test_number_of_parameters_of_the_cases(case: Case) -> None:
    count = sum(parameter.numel() for parameter in case.force_field.parameters())
    folded = case.arrays["param/force_embedding.bias"].numel() if "noise" in case.force_field.heads else 0
    assert count == case.about["n_params"] - folded


def test_checkpoints_of_unknown_variants_are_refused(case: Case) -> None:
    """Not loaded as something else."""
    given, config = case.about["hyper_parameters"], case.force_field.config
    for change in ({"use_m_share_rad": True}, {"use_gate_act": True, "use_grid_mlp": True, "use_sep_s2_act": False}):
        with pytest.raises(ValueError, match="the checkpoint has "):
            IMPORTER.config(PublishedCheckpoint({}, given | change, None, None))
    with pytest.raises(ValueError, match="it is not a published EquiformerV2"):
        convert_equiformer_v2({"weight": torch.zeros(1)}, config)  # type: ignore[arg-type]
