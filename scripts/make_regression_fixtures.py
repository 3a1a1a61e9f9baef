"""Write tests/models/fixtures/*.npz: outputs of tiny models with random weights, one file for each family of layers.

    python scripts/make_regression_fixtures.py [FOLDER]

They pin down what the code computes today, weights included, so that a refactor that changes a function is noticed
without the reference numbers of the published implementations.  Run it only when a function is meant to change, and say
so in the commit.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denskit.batch import Batch
from denskit.geometry.neighbors import build_neighbors
from denskit.models import ForceField, build_force_field
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "models" / "fixtures"
SMALL: dict[str, Any] = {
    "num_layers": 1, "channels": (4, 3, 2), "feature_channels": (4, 3, 2), "head_channels": (2, 1, 1), "num_heads": 2,
    "ffn_channels": (4, 3, 2), "num_basis": 4, "radial_hidden": (4,), "num_elements": 9, "cutoff": 3.0,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "mlp_nonlinear": {},
    "mlp_linear": {"messages": "linear", "radial_basis": "gaussian"},
    "dot_product": {"attention": "dot_product", "messages": "linear", "radial_basis": "bessel"},
    "no_attention_no_norm": {"attention": "none", "norm": "none"},
    "envelope": {"envelope": True},
    "dens": {"num_layers": 2},
}


def water_and_hydroxyl() -> Batch:
    """Two molecules and a stranger at the edge of the cutoff."""
    positions = [
        [0.0, 0.0, 0.1],
        [0.76, 0.1, -0.47],
        [-0.76, 0.0, -0.5],
        [1.9, 1.6, 0.9],
        [0.0, 0.0, 0.0],
        [0, 0.97, 0],
    ]
    system_index = torch.tensor([0, 0, 0, 0, 1, 1])
    return Batch(
        positions=torch.tensor(positions, dtype=torch.float64),
        atomic_numbers=torch.tensor([8, 1, 1, 6, 8, 1]),
        cell=torch.zeros(2, 3, 3, dtype=torch.float64),
        pbc=torch.zeros(2, 3, dtype=torch.bool),
        system_index=system_index,
        n_atoms=torch.bincount(system_index),
        fixed=torch.zeros(6, dtype=torch.bool),
        tags=torch.zeros(6, dtype=torch.int64),
        denoise=torch.ones(2, dtype=torch.bool),
    )


def force_field_of(family: str) -> ForceField:
    """The family's model in float64, with whatever weights it starts with."""
    config = EquiformerConfig.model_validate(SMALL | FAMILIES[family])
    heads = {"noise": "1"} if family == "dens" else {}
    return build_force_field(config, heads=heads, scaling=Scaling(elements=[1, 6, 8], force_scale=2.0)).double().eval()


def evaluate(force_field: ForceField) -> dict[str, np.ndarray]:
    """All outputs; a model with a noise head is told the forces of two atoms."""
    batch = build_neighbors(water_and_hydroxyl(), force_field.cutoff)
    force_input = None
    if "noise" in force_field.heads:
        force_input = torch.zeros_like(batch.positions)
        force_input[1], force_input[4] = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([0.0, -3.0, 0.0])
    return {name: value.detach().numpy() for name, value in force_field(batch, force_input).items()}


def main(folder: Path = OUTPUT) -> None:
    """Write one file for each family: its weights (float32 numbers), its outputs (float64) and its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, family in enumerate(FAMILIES):
        torch.manual_seed(number)
        force_field = force_field_of(family)
        with torch.no_grad():
            for parameter in force_field.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
                parameter.copy_(parameter.float())  # the file keeps float32: half the size, and the same numbers
        named = dict(force_field.named_parameters())
        about = {
            "config": force_field.config.model_dump(mode="json"),
            "shapes": {name: list(parameter.shape) for name, parameter in named.items()},
        }
        weights = torch.cat([parameter.detach().float().flatten() for parameter in named.values()]).numpy()
        outputs = {f"out/{name}": value for name, value in evaluate(force_field).items()}
        np.savez_compressed(folder / f"{family}.npz", about=np.array(json.dumps(about)), weights=weights, **outputs)


def read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Configuration, weights by name, and outputs by name, of a file that :func:`main` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        about = json.loads(str(stored["about"]))
        outputs = {name.removeprefix("out/"): stored[name] for name in stored.files if name.startswith("out/")}
        flat = torch.from_numpy(stored["weights"])
    shapes = about["shapes"]
    parts = flat.split([math.prod(shape) for shape in shapes.values()])
    weights = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    return about["config"], weights, outputs


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
