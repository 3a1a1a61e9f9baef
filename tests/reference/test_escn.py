"""eSCN against stored outputs of its published implementation: every case ``escn_*`` of the reference folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from denskit.models.escn.layers import sphere_harmonics, sphere_points
from reference.open_catalyst import AgainstPublished, Case, assert_near, cases, load_case

from tolerances import EXACT64


@pytest.fixture(scope="module", params=cases("escn_") or [None])
def case(request: pytest.FixtureRequest, reference_dir: Path) -> Case:
    if request.param is None:
        pytest.skip(f"no escn_*.npz in {reference_dir}")
    return load_case(reference_dir, request.param, "escn")


class TestESCN(AgainstPublished):
    """Outputs, loss and gradients."""


def test_fresh_models_have_the_published_points(case: Case) -> None:
    points = case.arrays["param/sphere_points"]
    assert_near(sphere_points(len(points)), points, EXACT64)
    l_max = case.about["hyper_parameters"]["lmax_list"][0]
    assert_near(sphere_harmonics(points, l_max), case.arrays["param/sphharm_weights.0"], EXACT64)


def test_number_of_parameters_of_the_cases(case: Case) -> None:
    count = sum(parameter.numel() for parameter in case.force_field.parameters())
    fixed = sum(case.arrays[f"param/{name}"].numel() for name in ("sphere_points", "sphharm_weights.0"))
    assert count + fixed + case.arrays["param/force_embedding.bias"].numel() == case.about["n_params"]
