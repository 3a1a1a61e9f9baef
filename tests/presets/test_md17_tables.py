"""Every MD17 preset against the paper's tables, copied here literally.

DeNS and loss coefficients: the paper's table of hyper-parameters on MD17.  Optimisation, plain coefficients and
network: the published training scripts of Equiformer, which the paper says it follows.
"""

from __future__ import annotations

import pytest

from denskit.models import build_force_field
from denskit.models.scaling import Scaling
from denskit.presets import preset_names
from denskit.tasks import build_task
from denskit.training.load_config import RunConfig, load_config

MOLECULES = "aspirin benzene ethanol malonaldehyde naphthalene salicylic toluene uracil".split()

#                aspirin benzene ethanol malonaldehyde naphthalene salicylic toluene uracil      (the paper's columns)
DENS = {
    "energy":     [1,    1,     1,     1,     2,     1,     1,     1],
    "force":      [80,   80,    80,    100,   20,    80,    80,    20],
    "p_dens":     [0.25, 0.25,  0.25,  0.25,  0.25,  0.25,  0.125, 0.25],
    "lambda":     [5,    5,     5,     5,     5,     5,     5,     5],
    "sigma":      [0.05, 0.05,  0.05,  0.05,  0.05,  0.05,  0.025, 0.05],
    "ratio":      [0.25, 0.25,  0.25,  0.25,  0.25,  0.25,  0.25,  0.25],
}  # fmt: skip
PLAIN = {
    "l2": {"energy": [1, 1, 1, 1, 1, 1, 1, 1], "force": [80, 80, 80, 100, 20, 80, 80, 20]},
    "l3": {"energy": [1, 1, 1, 1, 1, 1, 1, 1], "force": [100, 80, 80, 100, 100, 100, 100, 100]},
}
#                                    aspirin benzene ethanol malon.  naphth. salic.  toluene uracil
LEARNING_RATE = {
    "equiformer_l2":                [5e-4,   1e-4,   5e-4,   5e-4,   5e-4,   5e-4,   5e-4,   5e-4],
    "equiformer_l2_dens":           [5e-4,   1e-4,   5e-4,   5e-4,   5e-4,   5e-4,   5e-4,   5e-4],
    "equiformer_l3":                [2e-4,   1e-4,   2e-4,   2e-4,   2e-4,   2e-4,   2e-4,   2e-4],
    "equiformer_l3_dens":           [2e-4,   1e-4,   2e-4,   2e-4,   2e-4,   2e-4,   2e-4,   2e-4],
}  # fmt: skip
EPOCHS = {
    "equiformer_l2":                [1500] * 8,
    "equiformer_l2_dens":           [1500] * 8,
    "equiformer_l3":                [2000] * 8,
    "equiformer_l3_dens":           [2000, 1500, 2000, 2000, 2000, 2000, 2000, 2000],
}  # fmt: skip
BATCH = {
    "equiformer_l2":                [8] * 8,
    "equiformer_l2_dens":           [8] * 8,
    "equiformer_l3":                [5] * 8,
    "equiformer_l3_dens":           [5, 8, 5, 5, 5, 5, 5, 5],
}  # fmt: skip
NETWORK = {
    "l2": {
        "channels": (128, 64, 32), "feature_channels": (512, 256, 128), "head_channels": (32, 16, 8),
        "ffn_channels": (384, 192, 96),
    },
    "l3": {
        "channels": (128, 64, 64, 32), "feature_channels": (512, 256, 256, 128), "head_channels": (32, 16, 16, 8),
        "ffn_channels": (384, 192, 192, 96),
    },
}  # fmt: skip
SAME_NETWORK = {
    "name": "equiformer", "cutoff": 5.0, "max_neighbors": None, "num_elements": 64, "forces": "gradient",
    "num_layers": 6, "num_heads": 4, "radial_basis": "exponential_normal", "num_basis": 32, "radial_hidden": (64, 64),
    "messages": "nonlinear", "envelope": False, "attention_dropout": 0.0, "projection_dropout": 0.0,
    "output_dropout": 0.0, "stochastic_depth": 0.0,
    "average_degree": 15.57930850982666, "average_atoms": 18.03065905448718,
}  # fmt: skip
SAME_TRAINING = {
    "drop_last": True, "min_lr": 1e-6, "schedule": "cosine", "schedule_unit": "epoch", "warmup": 10, "warmup_lr": 1e-6,
    "weight_decay": 1e-6, "betas": (0.9, 0.999), "clip_norm": None, "ema_decay": None, "accumulate": 1,
    "dtype": "float32", "scale": "energy_std", "final": "last",
}  # fmt: skip
VARIANTS = {  # of L_max = 2: (attention, norm, initialisation), the rows of the paper's table of architectures
    "": ("mlp", "layer", "normal"),
    "_no_attention": ("none", "layer", "normal"),
    "_no_attention_no_norm": ("none", "none", "uniform"),
}
PARAMETERS = {  # the paper's counts; ours lacks the 128 biases of the force embedding
    "equiformer_l2": 3_496_001,
    "equiformer_l2_dens": 4_000_577 - 128,
    "equiformer_l3": 5_500_865,
    "equiformer_l3_dens": 6_354_241 - 128,
}
PRESETS = [*LEARNING_RATE, *(f"equiformer_l2{v}{d}" for v in list(VARIANTS)[1:] for d in ("", "_dens"))]


def load(preset: str, molecule: str) -> RunConfig:
    return load_config(f"md17/{preset}", [f"data.molecule={molecule}", "output=unused"])


def check(found: object, wanted: dict[str, object]) -> None:
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_every_md17_preset_is_in_these_tables() -> None:
    assert sorted(f"md17/{preset}" for preset in PRESETS) == [n for n in preset_names() if n.startswith("md17/")]


@pytest.mark.parametrize("column", range(8), ids=MOLECULES)
@pytest.mark.parametrize("preset", PRESETS)
def test_preset_is_the_papers(preset: str, column: int) -> None:
    config = load(preset, MOLECULES[column])
    size, dens = preset.split("_")[1], preset.endswith("_dens")
    variant = preset.removeprefix(f"equiformer_{size}").removesuffix("_dens")
    base = f"equiformer_{size}{'_dens' if dens else ''}"
    attention, norm, initialisation = VARIANTS[variant]

    check(config.model, SAME_NETWORK | NETWORK[size])
    check(config.model, {"attention": attention, "norm": norm, "initialisation": initialisation})
    check(config.training, SAME_TRAINING)
    row = {"lr": LEARNING_RATE[base][column], "epochs": EPOCHS[base][column], "batch_size": BATCH[base][column]}
    check(config.training, row | {"max_steps": None})
    table = DENS if dens else PLAIN[size]
    check(config.task, {"energy_weight": table["energy"][column], "forces_weight": table["force"][column]})
    check(config.task, {"loss": "published", "energy_loss": "mae", "stress_weight": 0})
    if dens:
        row = {"probability": "p_dens", "coefficient": "lambda", "sigma": "sigma", "corruption_ratio": "ratio"}
        check(config.task, {name: DENS[key][column] for name, key in row.items()})
        check(config.task, {"coefficient_decay": "linear", "force_encoding": True, "energy_on_corrupted": True})
        check(config.task, {"partial": True, "sigma_end": None, "max_force": None, "max_corrupted_share": None})
    assert config.task.name == ("dens" if dens else "energy_forces")
    check(config.data, {"name": "md17", "molecule": MOLECULES[column], "references": "mean"})
    assert config.data.split.mode == "published"


@pytest.mark.parametrize("preset", PARAMETERS)
def test_parameter_counts_are_the_papers(preset: str) -> None:
    config = load(preset, "aspirin")
    heads = build_task(config.task).heads
    force_field = build_force_field(config.model, heads=heads, scaling=Scaling(elements=[1, 6, 8]))
    assert sum(parameter.numel() for parameter in force_field.parameters()) == PARAMETERS[preset]
