"""Every preset of crystals/ against the released configurations of EquiformerV3, copied here literally.

eSEN's training settings are not released; its presets have those of EquiformerV3, which says that it follows eSEN, and
the epochs of eSEN's paper and model cards, which name no DeNS on OMat24.
"""

from __future__ import annotations

import pytest

from denskit.presets import preset_names
from denskit.tasks import DeNSConfig
from denskit.training.load_config import load_config
from denskit.training.schedule import rate_of

MPTRJ, OMAT, OAM = 0.8124567446457275, 4.980640411, 0.6274358034  # eV, eV/Å: one deviation for all labels
WIDE = (0.9, 0.98, 1e-6)

#                                       L  rbf lr    epochs batch beta1, beta2, epsilon  unit   lambda max_force
V3 = {
    "equiformer_v3_mptrj_direct_dens":     (4, 10, 2e-4, 70, 512, (0.9, 0.95, 1e-8), MPTRJ, 10,   None),
    "equiformer_v3_mptrj_gradient":        (4, 10, 5e-5, 10, 512, (0.9, 0.95, 1e-8), MPTRJ, None, None),
    "equiformer_v3_omat24_direct_dens":    (4, 64, 2e-4, 4,  512, WIDE,              OMAT,  1,    2.5),
    "equiformer_v3_omat24_direct_dens_l6": (6, 64, 2e-4, 4,  512, WIDE,              OMAT,  1,    2.5),
    "equiformer_v3_omat24_gradient":       (4, 64, 1e-4, 2,  512, WIDE,              OMAT,  None, None),
    "equiformer_v3_omat24_gradient_l6":    (6, 64, 1e-4, 2,  512, WIDE,              OMAT,  None, None),
    "equiformer_v3_oam_gradient":          (4, 64, 5e-5, 2,  256, WIDE,              OAM,   None, None),
}  # fmt: skip
ESEN = {
    "esen_30m_mptrj_direct_dens":          (3, 10, 2e-4, 60, 512, (0.9, 0.95, 1e-8), MPTRJ, 10,   None),
    "esen_30m_mptrj_gradient":             (3, 10, 5e-5, 40, 512, (0.9, 0.95, 1e-8), MPTRJ, None, None),
    "esen_30m_omat24_direct":              (3, 64, 2e-4, 2,  512, WIDE,              OMAT,  None, None),
    "esen_30m_omat24_gradient":            (3, 64, 1e-4, 2,  512, WIDE,              OMAT,  None, None),
    "esen_30m_oam_gradient":               (3, 64, 5e-5, 1,  256, WIDE,              OAM,   None, None),
}  # fmt: skip
NETWORK_V3 = {
    "name": "equiformer_v3", "num_elements": 128, "num_layers": 7, "hidden_channels": 32, "num_heads": 8,
    "alpha_channels": 64, "value_channels": 16, "ffn_channels": 512, "norm": "merged_layer_norm",
    "activation": "swiglu_s2", "average_atoms": 1.0, "average_degree": 23.395238876342773, "strict_neighbors": True,
}  # fmt: skip
NETWORK_ESEN = {
    "name": "esen", "num_elements": 100, "num_layers": 10, "hidden_channels": 128, "radial_basis": "gaussian",
    "atomwise": "spectral", "average_degree": 5.0, "strict_neighbors": False,
}  # fmt: skip
SAME_NETWORK = {
    "m_max": 2, "channels": 128, "edge_channels": 128, "cutoff": 6.0, "max_neighbors": 300, "envelope": True,
    "force_input_scale": 1.0,
}  # fmt: skip
SAME_TRAINING = {
    "schedule": "cosine", "schedule_unit": "step", "warmup": "0.1 epochs", "weight_decay": 1e-3, "clip_norm": 100,
    "ema_decay": 0.999, "ema_warmup": False,
}  # fmt: skip
SAME_TASK = {
    "loss": "published_oc20", "energy_loss": "mae_per_atom", "stress_loss": "mae", "energy_weight": 20,
    "forces_weight": 20, "stress_weight": 5,
}  # fmt: skip
SAME_DENS = {"probability": 0.5, "sigma": 0.025, "corruption_ratio": 0.5, "max_corrupted_share": 0.75,
             "coefficient_decay": "none"}  # fmt: skip


def check(found: object, wanted: dict[str, object]) -> None:
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_every_preset_of_crystals_is_in_these_tables() -> None:
    expected = sorted(f"crystals/{preset}" for preset in V3 | ESEN)
    assert expected == [name for name in preset_names() if name.startswith("crystals/")]


@pytest.mark.parametrize("preset", V3 | ESEN)
def test_preset_is_the_released(preset: str) -> None:
    config = load_config(f"crystals/{preset}", ["data.train=x.extxyz", "data.valid=y.extxyz"])
    l_max, basis, lr, epochs, batch, (first, second, epsilon), unit, coefficient, max_force = (V3 | ESEN)[preset]
    direct, dens = "direct" in preset, preset.endswith(("_dens", "_dens_l6"))
    check(config.model, SAME_NETWORK | (NETWORK_V3 if preset in V3 else NETWORK_ESEN))
    check(config.model, {"l_max": l_max, "num_basis": basis})
    heads = ("direct", "direct") if direct else ("gradient", "strain")
    check(config.model, dict(zip(("forces", "stress"), heads, strict=True)))
    if preset in V3:
        epsilon_of_attention = 1e-8 if preset == "equiformer_v3_oam_gradient" else 1e-16
        check(config.model, {"attention_dropout": 0.1 * direct, "stochastic_depth": 0.05 * direct})
        check(config.model, {"attention_epsilon": epsilon_of_attention})
    check(config.training, SAME_TRAINING | {"lr": lr, "epochs": epochs, "batch_size": batch})
    check(config.training, {"betas": (first, second), "adam_epsilon": epsilon})
    assert rate_of(config.training.min_lr, lr) == pytest.approx(0.01 * lr)
    assert config.training.warmup_lr == 0.0
    check(config.training.scale, {"energy_shift": 0.0, "energy_scale": unit, "force_scale": unit})
    check(config.task, SAME_TASK | {"name": "dens" if dens else "energy_forces"})
    if dens:
        assert isinstance(config.task, DeNSConfig)
        check(config.task, SAME_DENS | {"coefficient": coefficient, "max_force": max_force})
