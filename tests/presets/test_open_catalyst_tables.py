"""Every OC20 and OC22 preset against the paper's tables of hyper-parameters, copied here literally.

What the tables leave out (the parts of the networks, normalisers, the warm-up's start, the end of the cosine,
precision, eSCN's optimisation) is that of the published configuration files.
"""

from __future__ import annotations

import pytest
import torch

from denskit.models import build_force_field
from denskit.models.equiformer_v2 import EquiformerV2Config
from denskit.models.escn import ESCNConfig
from denskit.models.scaling import Scaling
from denskit.presets import preset_names
from denskit.tasks import build_task
from denskit.training.load_config import RunConfig, load_config
from denskit.training.schedule import rate_of

EV = 2.887317180633545  # OC20: deviation of referenced energies, eV, and unit of forces, eV/Å

#                                   lr    batch epochs warm-up depth lE clip blocks M   p_dens lambda sigma  ratio
EQUIFORMER_V2 = {
    "oc20/equiformer_v2_2m":           (2e-4, 64,  12, 0.1,  0.05, 2, 100, 12, 2, (0.5,   10, 0.1,  0.5)),
    "oc20/equiformer_v2_2m_20_epochs": (4e-4, 128, 20, 0.1,  0.05, 2, 100, 12, 2, (0.5,   10, 0.15, 0.5)),
    "oc20/equiformer_v2_2m_30_epochs": (4e-4, 128, 30, 0.1,  0.05, 2, 100, 12, 2, (0.5,   10, 0.15, 0.5)),
    "oc20/equiformer_v2_all_md":       (4e-4, 512, 2,  0.01, 0.1,  4, 100, 20, 3, (0.125, 15, 0.1,  0.25)),
    "oc22/equiformer_v2":              (2e-4, 128, 6,  0.1,  0.1,  4, 50,  18, 2, (0.5,   25, 0.15, 0.5)),
}  # fmt: skip
ESCN = "oc20/escn_2m"
EPOCHS_WITHOUT_DENS = {"oc20/equiformer_v2_all_md": 1}  # "we increase the number of epochs from 1 to 2"
PARAMETERS = {  # published counts, plain and with DeNS; ours has no bias in the force embedding
    "oc20/equiformer_v2_2m": (83_164_802, 89_148_163),
    "oc20/equiformer_v2_2m_20_epochs": (83_164_802, 89_148_163),
    "oc20/equiformer_v2_2m_30_epochs": (83_164_802, 89_148_163),
    "oc20/equiformer_v2_all_md": (153_602_690, 160_504_579),
    "oc22/equiformer_v2": (121_526_402, 127_509_763),
    "oc20/escn_2m": (51_844_608, 51_878_784),
}
SPHERE = 128 * (3 + 49)  # numbers that the published eSCN counts and nobody trains: points and their harmonics
SAME_NETWORK = {
    "cutoff": 12.0, "max_neighbors": 20, "num_elements": 90, "forces": "direct", "stress": "none",
    "force_input_scale": 1.0, "num_basis": 600, "l_max": 6, "channels": 128, "edge_channels": 128,
}  # fmt: skip
EQUIFORMER_V2_NETWORK = {  # d_attn_hidden, h, d_attn_alpha, d_attn_value, d_ffn, R
    "name": "equiformer_v2", "hidden_channels": 64, "num_heads": 8, "alpha_channels": 64, "value_channels": 16,
    "ffn_channels": 128, "grid_resolution": 18, "atom_pairs": "own", "norm": "separable_layer_norm",
    "activation": "separable_s2", "grid_mlp": True, "attention_renormalisation": True, "initialisation": "uniform",
    "envelope": False, "attention_dropout": 0.1, "projection_dropout": 0.0,
    "average_degree": 23.395238876342773, "average_atoms": 77.81317,
}  # fmt: skip
ESCN_NETWORK = {
    "name": "escn", "strict_neighbors": True, "num_layers": 12, "m_max": 2, "hidden_channels": 256, "basis_width": 2.0,
    "num_sphere_samples": 128,
}  # fmt: skip
SAME_TRAINING = {
    "schedule_unit": "step", "ema_decay": 0.999, "ema_warmup": False, "betas": (0.9, 0.999), "accumulate": 1,
    "dtype": "float32", "max_steps": None, "drop_last": True,
}  # fmt: skip
SAME_TASK = {"loss": "published_oc20", "energy_loss": "mae", "forces_weight": 100, "stress_weight": 0}
SAME_DENS = {
    "coefficient_decay": "none", "force_encoding": True, "energy_on_corrupted": True, "partial": True,
    "sigma_end": None, "min_atoms": None, "max_force": None, "max_corrupted_share": None,
}  # fmt: skip
PRESETS = [*EQUIFORMER_V2, ESCN]
TWINS = pytest.mark.parametrize("dens", [False, True], ids=["plain", "dens"])


def load(preset: str, dens: bool) -> RunConfig:
    return load_config(f"{preset}_dens" if dens else preset, ["output=unused"])


def check(found: object, wanted: dict[str, object]) -> None:
    assert {name: getattr(found, name) for name in wanted} == wanted


def check_dens(config: RunConfig, dens: bool, row: tuple[float, ...]) -> None:
    assert config.task.name == ("dens" if dens else "energy_forces")
    check(config.task, SAME_TASK)
    if dens:
        columns = ("probability", "coefficient", "sigma", "corruption_ratio")
        check(config.task, SAME_DENS | dict(zip(columns, row, strict=True)))


def test_every_open_catalyst_preset_is_in_these_tables() -> None:
    expected = sorted(f"{preset}{twin}" for preset in PRESETS for twin in ("", "_dens"))
    of_the_paper = [name for name in preset_names() if name.startswith(("oc20/", "oc22/")) and "_v3_" not in name]
    assert expected == of_the_paper


@TWINS
@pytest.mark.parametrize("preset", EQUIFORMER_V2)
def test_equiformer_v2_is_the_papers(preset: str, dens: bool) -> None:
    config = load(preset, dens)
    lr, batch, epochs, warmup, depth, energy, clip, blocks, orders, row = EQUIFORMER_V2[preset]
    check(config.model, SAME_NETWORK | EQUIFORMER_V2_NETWORK)
    check(config.model, {"num_layers": blocks, "m_max": orders, "stochastic_depth": depth})
    check(config.model, {"strict_neighbors": preset.startswith("oc20/")})
    check(config.training, SAME_TRAINING)
    check(config.training, {"schedule": "cosine", "weight_decay": 1e-3, "amsgrad": False, "amp": "fp16"})
    check(config.training, {"lr": lr, "batch_size": batch, "warmup": f"{warmup} epochs", "clip_norm": clip})
    assert config.training.epochs == (epochs if dens else EPOCHS_WITHOUT_DENS.get(preset, epochs))
    assert config.training.warmup_lr is not None
    assert rate_of(config.training.warmup_lr, lr) == pytest.approx(0.2 * lr)
    assert rate_of(config.training.min_lr, lr) == pytest.approx(0.01 * lr)
    check(config.task, {"energy_weight": energy})
    check_dens(config, dens, row)


@TWINS
def test_escn_is_the_papers(dens: bool) -> None:
    """DeNS as for EquiformerV2 trained for 20 epochs; 16 GPUs with 6 structures each."""
    config = load(ESCN, dens)
    check(config.model, SAME_NETWORK | ESCN_NETWORK)
    check(config.training, SAME_TRAINING)
    check(
        config.training, {"schedule": "multistep", "gamma": 0.3, "weight_decay": 0.01, "amsgrad": True, "amp": "none"}
    )
    check(config.training, {"milestones": ("11.7 epochs", "15 epochs", "18.3 epochs"), "warmup": "0.01 epochs"})
    check(config.training, {"lr": 8e-4, "batch_size": 16 * 6, "epochs": 20, "clip_norm": 100})
    assert config.training.warmup_lr is not None
    assert rate_of(config.training.warmup_lr, 8e-4) == pytest.approx(0.2 * 8e-4)
    check(config.task, {"energy_weight": 2})
    check_dens(config, dens, EQUIFORMER_V2["oc20/equiformer_v2_2m_20_epochs"][-1])


@TWINS
@pytest.mark.parametrize("preset", PRESETS)
def test_normalisers_are_the_published(preset: str, dens: bool) -> None:
    config = load(preset, dens)
    assert config.data.name == preset[:4]
    if preset.startswith("oc20/"):  # energies are those of adsorption
        scale, references = {"energy_shift": -0.7554450631141663, "energy_scale": EV, "force_scale": EV}, "none"
    else:  # the published references of elements are a file
        scale = {"energy_shift": 0.0, "energy_scale": 25.119809935106424, "force_scale": 0.14759646356105804}
        references = "fit"
    check(config.training.scale, scale)
    assert config.data.references == references


@TWINS
@pytest.mark.parametrize("preset", PRESETS)
def test_parameter_counts_are_the_published(preset: str, dens: bool) -> None:
    config = load(preset, dens)
    heads = build_task(config.task).heads
    with torch.device("meta"):
        force_field = build_force_field(config.model, heads=heads, scaling=Scaling(elements=[1, 6, 8]))
    count = sum(parameter.numel() for parameter in force_field.parameters())
    counted = count + (128 if dens else 0) + (SPHERE if preset == ESCN else 0)
    print(f"{preset}{'_dens' if dens else ''}: {count:,} parameters, published {PARAMETERS[preset][dens]:,}")
    assert counted == PARAMETERS[preset][dens]


@pytest.mark.parametrize("model", [EquiformerV2Config, ESCNConfig])
def test_defaults_are_the_papers_models(model: type[EquiformerV2Config] | type[ESCNConfig]) -> None:
    default = model(force_input_scale=1.0)
    assert load(f"oc20/{default.name}_2m", dens=False).model == default
