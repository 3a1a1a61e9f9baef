"""eSCN against stored outputs of its published implementation: every case ``escn_*`` of the reference folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from denskit.models import build_force_field
from denskit.models.escn import ESCNConfig
from denskit.models.escn.layers import sphere_harmonics, sphere_points
from denskit.models.scaling import Scaling
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


@pytest.mark.parametrize(("heads", "published"), [({}, 51_844_608), ({"noise": "1"}, 51_878_784)])
def test_number_of_parameters(heads: dict[str, str], published: int) -> None:
    """The paper's models.

    The published count holds the points of the sphere and their harmonics, which are not trained and are buffers here;
    and with DeNS the 128 biases of the force embedding, which are part of the atom embedding here.
    """
    with torch.device("meta"):
        force_field = build_force_field(
            ESCNConfig(force_input_scale=1.0), heads=heads, scaling=Scaling(elements=[1, 6, 8])
        )
    count = sum(parameter.numel() for parameter in force_field.parameters())
    fixed = sum(buffer.numel() for name, buffer in force_field.named_buffers() if name.startswith("backbone.sphere_"))
    print(f"{heads}: {count:,} trained parameters and {fixed:,} numbers of the sphere")
    assert fixed == 128 * (3 + 49)
    assert count + fixed + (128 if heads else 0) == published


def test_number_of_parameters_of_the_cases(case: Case) -> None:
    count = sum(parameter.numel() for parameter in case.force_field.parameters())
    fixed = sum(case.arrays[f"param/{name}"].numel() for name in ("sphere_points", "sphharm_weights.0"))
    assert count + fixed + case.arrays["param/force_embedding.bias"].numel() == case.about["n_params"]
