"""Perfect crystals and symmetric molecules are ordinary inputs to every model that is offered for use.

There symmetry makes features of l > 0 vanish.  A norm that divides them by their own size amplifies rounding; forces
near such sites are then wrong by orders of magnitude (the published layer norm, which published presets keep).
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import ase
import pytest
import torch
from ase.build import bulk, molecule
from ase.spacegroup import crystal
from torch import Tensor

from denskit.batch import Batch
from denskit.models import ForceField, build_force_field
from denskit.models.model_file import load_model, save_model
from denskit.models.scaling import Scaling
from denskit.presets import preset_names
from denskit.simulation.structures import batch_of
from denskit.training.load_config import load_config

PUBLISHED = ("md17/", "oc20/", "oc22/", "crystals/")  # the last: models of the presets equiformer_v3 and esen, larger
OFFERED = [name for name in preset_names() if not name.startswith(PUBLISHED)]
STRUCTURES: dict[str, ase.Atoms] = {
    "CH4": molecule("CH4"),
    "CO2": molecule("CO2"),
    "diamond": bulk("C", "diamond", 3.57),
    "copper": bulk("Cu", "fcc", 3.61),
    "NaCl": bulk("NaCl", "rocksalt", 5.64),
    "perovskite": crystal(
        ["Sr", "Ti", "O"], [(0.5, 0.5, 0.5), (0, 0, 0), (0.5, 0, 0)], spacegroup=221, cellpar=3 * [3.9] + 3 * [90]
    ),
}
SITES = {"CH4": slice(0, 1), "CO2": slice(0, 1)}  # atoms on which symmetry allows no force; in the crystals all
ZERO = {torch.float64: 1e-8, torch.float32: 1e-3}  # eV/Å, forces of the random models being of the order of 1
STEPS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # Å; beside one of 0.01 Å


@cache
def model(preset: str, dtype: torch.dtype) -> ForceField:
    """The preset's smallest model with two layers and random numbers in all parameters."""
    config = load_config(preset, ["task=dens"])
    sizes = config.sizes[0].model if config.sizes else {}
    small = sizes | {"num_layers": 2, "average_degree": 20.0, "average_atoms": 5.0}
    small = {key: value for key, value in small.items() if key in type(config.model).model_fields}
    model_config = type(config.model).model_validate(config.model.model_dump() | small)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        force_field = build_force_field(model_config, heads={"noise": "1"}, scaling=Scaling(elements=range(1, 60)))
        with torch.no_grad():
            for parameter in force_field.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return force_field.to(dtype).eval()


def forces(force_field: ForceField, batch: Batch, displacement: Tensor | float = 0.0) -> Tensor:
    """Forces [N, 3] (eV/Å) of the displaced structure."""
    moved = replace(batch, positions=batch.positions + displacement)
    return force_field.predict(force_field.config.with_neighbors(moved))["forces"]


def perfect(structure: str, dtype: torch.dtype) -> Batch:
    return batch_of([STRUCTURES[structure]], "cpu").to(dtype=dtype)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("preset", OFFERED)
class TestSymmetricSites:
    @pytest.mark.parametrize("dtype", ZERO, ids=str)
    def test_no_force_where_symmetry_allows_none(self, preset: str, structure: str, dtype: torch.dtype) -> None:
        found = forces(model(preset, dtype), perfect(structure, dtype))
        assert float(found[SITES.get(structure, slice(None))].abs().max()) <= ZERO[dtype]

    def test_forces_grow_linearly(self, preset: str, structure: str) -> None:
        """The change of forces per Å is the same from 1e-7 to 0.01 Å, apart from what is of second order."""
        force_field, batch = model(preset, torch.float64), perfect(structure, torch.float64)
        direction = torch.randn(batch.positions.shape, dtype=torch.float64)
        at_rest = forces(force_field, batch)
        wide = (forces(force_field, batch, 0.01 * direction) - at_rest) / 0.01
        scale = float(wide.abs().max()) + 1e-3  # one atom a cell: a displacement is a translation
        for step in STEPS:
            change = (forces(force_field, batch, step * direction) - at_rest) / step
            assert float((change - wide).abs().max()) <= scale, f"displaced by {step} Å"

    def test_hessian_is_symmetric(self, preset: str, structure: str) -> None:
        """By central differences of the forces at the symmetric geometry."""
        force_field, batch = model(preset, torch.float64), perfect(structure, torch.float64)
        if force_field.config.forces == "direct":
            pytest.skip("direct forces have no Hessian")
        rows = []
        for coordinate in range(3 * batch.num_atoms):
            step = torch.zeros(3 * batch.num_atoms, dtype=torch.float64)
            step[coordinate] = 1e-5  # of 1e-4 third derivatives of random models are seen
            pushed = [forces(force_field, batch, sign * step.view(-1, 3)) for sign in (1, -1)]
            rows.append((pushed[0] - pushed[1]).flatten() / 2e-5)
        hessian = torch.stack(rows)
        assert float((hessian - hessian.T).abs().max()) <= 1e-5 * max(1.0, float(hessian.abs().max()))


def test_the_published_layer_norm_is_not_promised_and_warns(tmp_path: Path) -> None:
    """The tests above can fail: with the published norm forces near the carbon of CH4 do not grow linearly."""
    config = load_config("md17/equiformer_l2", ["data.molecule=ethanol"]).model
    small = {"num_layers": 2, "channels": (8, 4, 2), "ffn_channels": (8, 4, 2), "head_channels": (4, 2, 2)}
    small |= {"feature_channels": (8, 4, 2), "average_degree": 20.0, "average_atoms": 5.0}
    published = type(config).model_validate(config.model_dump() | small)
    force_field = build_force_field(published, heads={}, scaling=Scaling(elements=(1, 6))).double()
    batch = perfect("CH4", torch.float64)
    direction = torch.randn(batch.positions.shape, dtype=torch.float64)
    pushed = [forces(force_field, batch, step * direction)[0] for step in (1e-6, 1e-2)]
    assert float(pushed[0].norm()) / 1e-6 > 100 * float(pushed[1].norm()) / 1e-2
    assert not force_field.backbone.symmetric_sites
    save_model(tmp_path / "model.safetensors", force_field, {})
    with pytest.warns(UserWarning, match="near symmetric sites .* forces are wrong by orders of magnitude"):
        load_model(tmp_path / "model.safetensors")


def test_models_offered_for_use_promise_it_and_load_in_silence(tmp_path: Path) -> None:
    for preset in OFFERED:
        save_model(tmp_path / "model.safetensors", model(preset, torch.float32), {})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert load_model(tmp_path / "model.safetensors").backbone.symmetric_sites
