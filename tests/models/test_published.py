"""Import of published Equiformer checkpoints: what is recognised and what is refused.

The layout of published state dicts is written down here a second time, from their description.  That an imported model
computes the published function is tested in tests/reference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from denskit.models.equiformer import EquiformerConfig
from denskit.models.equiformer.published import convert_equiformer
from denskit.models.equiformer.published_settings import MD17_CONFIGS, config_of_equiformer, detect_equiformer
from denskit.models.importing import import_checkpoint
from denskit.models.published_checkpoint import read_checkpoint
from denskit.models.scaling import Scaling
from denskit.units import KCAL_PER_MOL

Shapes = dict[str, tuple[int, ...]]
TINY = EquiformerConfig(
    num_layers=2, channels=(4, 3, 2), feature_channels=(6, 3, 2), head_channels=(2, 1, 1), num_heads=2,
    ffn_channels=(5, 3, 2), num_basis=4, radial_hidden=(4, 3), num_elements=9,
)  # fmt: skip


class Layout:
    """Names and shapes in a published state dict."""

    def __init__(self, config: EquiformerConfig, dens: bool) -> None:
        self.config, self.shapes = config, Shapes()
        degrees = range(config.l_max + 1)
        self.paths = [(a, c) for a in degrees for b in degrees for c in degrees if abs(a - b) <= c <= a + b]
        channels, features = config.channels, config.feature_channels if dens else config.feature_channels[:1]
        self.linear("atom_embed.atom_type_lin", (config.num_elements,), channels[:1])
        self.basis()
        self.linear("edge_deg_embed.exp", (1,), channels[:1])
        self.shapes["edge_deg_embed.dw.tp.weight"] = (0,)
        self.radial("edge_deg_embed.rad", self.into(channels))
        self.linear("edge_deg_embed.proj", self.into(channels), channels)
        if dens:
            self.linear("force_embed", (1,) * len(channels), channels)
        for k in range(config.num_layers):
            self.block(f"blocks.{k}", features if k == config.num_layers - 1 else channels)
        self.norm("norm", features)
        energy = "energy_head" if dens else "head"
        self.linear(f"{energy}.0", features[:1], features[:1])
        self.linear(f"{energy}.2", features[:1], (1,))
        if dens:
            self.attention("denoising_pos_head", features, (0, 1))

    def into(self, channels: Sequence[int]) -> list[int]:
        """Channels of all paths into each degree."""
        return [sum(channels[a] for a, c in self.paths if c == l3) for l3 in range(len(channels))]

    def linear(self, name: str, c_in: Sequence[int], c_out: Sequence[int], bias: bool = True) -> None:
        self.shapes[f"{name}.tp.weight"] = (sum(a * b for a, b in zip(c_in, c_out, strict=False)),)
        if bias:
            self.shapes[f"{name}.bias.0"] = (c_out[0],)

    def basis(self) -> None:
        count = self.config.num_basis
        names: dict[str, Shapes] = {
            "exponential_normal": {"means": (count,), "betas": (count,)},
            "gaussian": {"mean": (1, count), "std": (1, count), "weight": (1, 1), "bias": (1, 1)},
            "bessel": {"rbf.frequencies": (count,)},
        }
        self.shapes |= {f"rbf.{key}": shape for key, shape in names[self.config.radial_basis].items()}

    def radial(self, name: str, into: Sequence[int]) -> None:
        widths = (self.config.num_basis, *self.config.radial_hidden)
        for k, (a, b) in enumerate(itertools.pairwise(widths)):
            self.shapes[f"{name}.net.{3 * k}.weight"] = (b, a)
            for key in (f"{3 * k}.bias", f"{3 * k + 1}.weight", f"{3 * k + 1}.bias"):
                self.shapes[f"{name}.net.{key}"] = (b,)
        self.shapes[f"{name}.net.{3 * len(widths) - 3}.weight"] = (sum(into), widths[-1])
        self.shapes[f"{name}.offset"] = (sum(into),)

    def norm(self, name: str, channels: Sequence[int]) -> None:
        self.shapes[f"{name}.affine_weight"] = (sum(channels),)
        self.shapes[f"{name}.affine_bias"] = (channels[0],)

    def attention(self, name: str, c_in: Sequence[int], c_out: Sequence[int]) -> None:
        hidden, heads = self.config.messages_of(c_in), self.config.num_heads
        into = self.into(hidden)
        values = [heads * c for c in self.config.head_channels]
        self.linear(f"{name}.merge_src", c_in, hidden)
        self.linear(f"{name}.merge_dst", c_in, hidden, bias=False)
        if self.config.attention == "dot_product":
            self.linear(f"{name}.query", c_in, values)
            self.radial(f"{name}.key_value.dtp_rad", into)
            self.linear(f"{name}.key_value.lin", into, [2 * c for c in values])
        else:
            self.shapes[f"{name}.alpha_dot"] = (1, heads, self.config.head_channels[0])
        if self.config.attention == "mlp" and self.config.messages == "linear":
            self.radial(f"{name}.sep.dtp_rad", into)
            self.linear(f"{name}.sep.lin", into, (2 * values[0], *values[1:]))
        elif self.config.attention == "mlp":
            self.radial(f"{name}.sep_act.dtp_rad", into)
            self.linear(f"{name}.sep_act.lin", into, (sum(hidden), *hidden[1:]))
            self.linear(f"{name}.sep_alpha", into[:1], values[:1])
            self.shapes[f"{name}.sep_value.dtp.tp.weight"] = (sum(into),)
            self.linear(f"{name}.sep_value.lin", into, values)
        self.linear(f"{name}.proj", values, c_out, bias=c_out[0] > 0)

    def block(self, name: str, c_out: Sequence[int]) -> None:
        channels, ffn = self.config.channels, self.config.ffn_channels
        if self.config.norm == "layer":
            self.norm(f"{name}.norm_1", channels)
            self.norm(f"{name}.norm_2", channels)
        self.attention(f"{name}.{'dpa' if self.config.attention == 'dot_product' else 'ga'}", channels, channels)
        self.linear(f"{name}.ffn.fctp_1", channels, (sum(ffn), *ffn[1:]))
        self.linear(f"{name}.ffn.fctp_2", ffn, c_out)
        if tuple(c_out) != channels:
            self.linear(f"{name}.ffn_shortcut", channels, c_out)


def state_of(config: EquiformerConfig = TINY, dens: bool = True) -> dict[str, Tensor]:
    """A published state dict with random numbers."""
    return {name: torch.randn(shape) for name, shape in Layout(config, dens).shapes.items()}


@pytest.mark.parametrize(
    ("l_max", "dens", "count"),
    [(2, False, 3_496_001), (2, True, 4_000_577), (3, False, 5_500_865), (3, True, 6_354_241)],
)
def test_recognises_the_papers_models(l_max: int, dens: bool, count: int) -> None:
    shapes = Layout(MD17_CONFIGS[l_max], dens).shapes
    assert sum(math.prod(shape) for name, shape in shapes.items() if not name.startswith("rbf.")) == count
    state = {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    config = detect_equiformer(state)
    assert config == MD17_CONFIGS[l_max]
    weights, heads = convert_equiformer(state, config)
    assert heads == ({"noise": "1"} if dens else {})
    assert sum(value.numel() for name, value in weights.items() if "basis" not in name) == count - 128 * dens


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": "linear", "radial_basis": "gaussian"},
        {"norm": "none", "radial_basis": "bessel"},
        {"num_layers": 3, "num_basis": 128, "num_elements": 10},
        {"message_channels": (96, 48, 40)},
        {"message_channels": (96, 48, 40), "messages": "linear"},
        {"message_channels": (128, 64, 33), "messages": "linear", "attention": "dot_product"},
        {"message_channels": "input"},
    ],
)
def test_recognises_variants(changes: dict[str, Any]) -> None:
    config = EquiformerConfig.model_validate(MD17_CONFIGS[2].model_dump() | changes)
    state = {name: torch.zeros(1).expand(shape) for name, shape in Layout(config, True).shapes.items()}
    assert detect_equiformer(state) == config
    convert_equiformer(state, config)


def test_recognises_message_channels_of_the_larger_model() -> None:
    config = MD17_CONFIGS[3].model_copy(update={"message_channels": (100, 60, 50, 7)})
    state = {name: torch.zeros(1).expand(shape) for name, shape in Layout(config, True).shapes.items()}
    assert detect_equiformer(state) == config
    state["denoising_pos_head.merge_src.bias.0"] = torch.zeros(101)
    with pytest.raises(ValueError, match=r"\(100, 60, 50, 7\) channels in the blocks and .* in the noise head"):
        detect_equiformer(state)
    name = "denoising_pos_head.sep_value.lin.tp.weight"
    state[name] = torch.zeros(len(state[name]) + 1)
    with pytest.raises(ValueError, match="sizes of denoising_pos_head fit no number of channels"):
        detect_equiformer(state)


def test_recognises_the_cutoff() -> None:
    """The first mean of the exponential-normal basis is exp(-cutoff)."""
    state = state_of(MD17_CONFIGS[2])
    for cutoff in (4.0, 5.0, 6.5):
        state["rbf.means"] = torch.linspace(math.exp(-cutoff), 1, 32)
        assert detect_equiformer(state).cutoff == cutoff


def test_other_models_are_not_recognised() -> None:
    with pytest.raises(ValueError, match="not a published Equiformer"):
        detect_equiformer({"embedding.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match="give the configuration as YAML"):
        detect_equiformer(state_of())


@pytest.mark.parametrize("name", ["blocks.0.ga.merge_src.tp.weight", "edge_deg_embed.rad.net.0.weight"])
def test_half_a_checkpoint_is_not_recognised(name: str) -> None:
    state = {key: torch.zeros(1).expand(shape) for key, shape in Layout(MD17_CONFIGS[2], True).shapes.items()}
    del state[name]
    with pytest.raises(ValueError, match="not a published Equiformer"):
        detect_equiformer(state)


def test_every_missing_tensor_is_named() -> None:
    complete = state_of()
    convert_equiformer(complete, TINY)
    optional = {"edge_deg_embed.dw.tp.weight", "rbf.means", "rbf.betas"}  # empty, and computed from the settings
    for name in complete.keys() - optional:
        if name.startswith(("force_embed.tp", "denoising_pos_head.merge_src.tp", "energy_head.0.tp")):
            continue  # their presence says which kind of model it is; see the next test
        with pytest.raises(ValueError, match=rf"the checkpoint has no '{name}'"):
            convert_equiformer({key: value for key, value in complete.items() if key != name}, TINY)


@pytest.mark.parametrize(
    "name", ["force_embed.tp.weight", "denoising_pos_head.merge_src.tp.weight", "energy_head.0.tp.weight"]
)
def test_neither_one_kind_of_model_nor_the_other(name: str) -> None:
    state = state_of()
    del state[name]
    with pytest.raises(ValueError, match="checkpoint has|numbers where"):
        convert_equiformer(state, TINY)


@pytest.mark.parametrize(
    "name", ["blocks.2.norm_1.affine_weight", "denoising_pos_head.extra", "rbf.extra", "ema.norm.affine_weight"]
)
def test_left_over_tensor_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"does not use.*'{name}'"):
        convert_equiformer(state_of() | {name: torch.zeros(3)}, TINY)


def test_empty_tensors_are_no_left_over() -> None:
    convert_equiformer(state_of() | {"blocks.0.ga.sep_act.dtp.tp.weight": torch.zeros(0)}, TINY)


def test_every_wrong_size_is_named() -> None:
    complete = state_of()
    for name, value in complete.items():
        if value.numel() and not name.startswith("rbf."):
            longer = complete | {name: torch.zeros(value.numel() + 1)}
            with pytest.raises(ValueError, match=rf"'{name}' has {value.numel() + 1} numbers where"):
                convert_equiformer(longer, TINY)


def test_basis_must_be_the_configured_one() -> None:
    """Trained bases come from the file and nowhere else."""
    complete = state_of()
    with pytest.raises(ValueError, match="means"):
        convert_equiformer(complete | {"rbf.means": torch.zeros(5)}, TINY)
    gaussian = EquiformerConfig.model_validate(TINY.model_dump() | {"radial_basis": "gaussian"})
    with pytest.raises(ValueError, match=r"rbf\."):
        convert_equiformer(complete, gaussian)
    trained = state_of(gaussian)
    del trained["rbf.std"]
    with pytest.raises(ValueError, match=r"rbf\.std"):
        convert_equiformer(trained, gaussian)


def test_force_bias_is_folded_into_the_atoms_bias() -> None:
    """It acts on every atom at every time: zero there and more here is the same function."""
    state = state_of()
    folded = dict(state)
    folded["atom_embed.atom_type_lin.bias.0"] = state["atom_embed.atom_type_lin.bias.0"] + state["force_embed.bias.0"]
    folded["force_embed.bias.0"] = torch.zeros_like(state["force_embed.bias.0"])
    expected, _ = convert_equiformer(folded, TINY)
    for name, value in convert_equiformer(state, TINY)[0].items():
        assert torch.equal(value, expected[name]), name


PUBLISHED: dict[str, Any] = {  # the settings of TINY with DeNS
    "name": "equiformer_md17_dens", "irreps_in": "64x0e", "irreps_equivariant_inputs": "1x0e+1x1e+1x2e",
    "irreps_node_embedding": "4x0e+3x1e+2x2e", "num_layers": 2, "irreps_node_attr": "1x0e",
    "irreps_sh": "1x0e + 1x1e + 1x2e", "max_radius": 5.0, "number_of_basis": 4, "basis_type": "exp",
    "fc_neurons": [4, 3], "irreps_feature": "6x0e+3x1e+2x2e", "irreps_head": "2x0e+1x1e+1x2e", "num_heads": 2,
    "irreps_pre_attn": "4x0e+3x1e+2x2e", "rescale_degree": False, "nonlinear_message": True,
    "irreps_mlp_mid": "5x0e+3x1e+2x2e", "norm_layer": "layer", "alpha_drop": 0.0, "proj_drop": 0.0, "out_drop": 0.0,
    "drop_path_rate": 0.0, "use_force_encoding": True, "mean": None, "std": None, "scale": None, "atomref": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"rescale_degree": True}, {"rescale_degree": True}),
        ({"irreps_pre_attn": "7x0e+2x1e+1x2e"}, {"message_channels": (7, 2, 1)}),
        ({"irreps_pre_attn": None}, {"message_channels": "input"}),
        ({"norm_layer": "fast_layer"}, {}),
        ({"max_radius": 4.0, "basis_type": "gaussian"}, {"cutoff": 4.0, "radial_basis": "gaussian"}),
        ({"alpha_drop": 0.1, "proj_drop": 0.2}, {"attention_dropout": 0.1, "projection_dropout": 0.2}),
        ({"out_drop": 0.3, "drop_path_rate": 0.4}, {"output_dropout": 0.3, "stochastic_depth": 0.4}),
    ],
)
@pytest.mark.parametrize("where", ["in the file", "given"])
def test_published_settings(tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    """In the checkpoint or given beside it: the same force field."""
    config = EquiformerConfig.model_validate(TINY.model_dump() | expected)
    settings, path = PUBLISHED | changes, tmp_path / "checkpoint.pt"
    inside = {"config": {"model": settings}} if where == "in the file" else {}
    torch.save({"state_dict": state_of(config), **inside}, path)
    given = settings if where == "given" else None
    force_field = import_checkpoint(path, scaling=Scaling(elements=[1, 6, 8]), config=given)
    assert force_field.config == config.model_copy(update={"force_input_scale": 1 / KCAL_PER_MOL})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("irreps_node_embedding", "4x0e+3x1o+2x2e"),
        ("irreps_node_embedding", "4x0e+3x2e"),
        ("irreps_head", "2x0e+1x1o+1x2e"),
        ("irreps_mlp_mid", "5x0e+3x1e"),
        ("irreps_pre_attn", "7x0e+2x1e"),
        ("irreps_feature", "6x0e"),
        ("irreps_sh", "1x0e+1x1e"),
        ("irreps_sh", None),
        ("irreps_equivariant_inputs", "1x0e+1x1e"),
        ("irreps_node_attr", "5x0e"),
        ("norm_layer", "graph"),
        ("norm_layer", "instance"),
        ("basis_type", "sine"),
        ("use_attn_head", True),
        ("use_force_encoding", False),
        ("scale", 3.0),
        ("atomref", [1.0]),
        ("use_auxiliary_task", True),
    ],
)
def test_published_options_that_are_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        config_of_equiformer(PUBLISHED | {option: value}, state_of())


def test_every_published_option_is_needed_or_known() -> None:
    """The arguments of the constructors of all published models for molecular dynamics."""
    assert config_of_equiformer(PUBLISHED, state_of()) == TINY
    optional = {"irreps_in", "name", "mean", "std", "scale", "atomref", "use_force_encoding", "irreps_node_attr"}
    optional |= {"alpha_drop", "proj_drop", "out_drop", "drop_path_rate", "irreps_sh", "irreps_equivariant_inputs"}
    for option in PUBLISHED:
        fewer = {name: value for name, value in PUBLISHED.items() if name != option}
        if option in optional:
            assert config_of_equiformer(fewer, state_of()) == TINY
        else:
            with pytest.raises(KeyError, match=option):
                config_of_equiformer(fewer, state_of())


@pytest.mark.parametrize(
    ("name", "option"),
    [("head.merge_src.tp.weight", "use_attn_head"), ("blocks.0.norm_1.mean_shift", "norm_layer=graph")],
)
def test_options_that_only_tensors_show_are_refused_by_name(name: str, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        detect_equiformer(state_of(MD17_CONFIGS[2]) | {name: torch.zeros(3)})


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_reads_files_as_they_are_published(tmp_path: Path, wrapper: str | None, prefix: str) -> None:
    state = state_of()
    content: Any = {f"{prefix}{name}": value for name, value in state.items()}
    if wrapper:
        content = {"epoch": 1499, wrapper: content}
    torch.save(content, tmp_path / "checkpoint.pth.tar")
    loaded = read_checkpoint(tmp_path / "checkpoint.pth.tar").state
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_imported_force_field(tmp_path: Path) -> None:
    """All weights come from the file, and forces are encoded in kcal/mol/Å."""
    state = state_of()
    torch.save({"state_dict": state}, tmp_path / "checkpoint.pt")
    scaling = Scaling(elements=[1, 6, 8], energy_scale=0.2, force_scale=0.2)
    force_field = import_checkpoint(tmp_path / "checkpoint.pt", scaling=scaling, config=TINY)
    assert not force_field.training and set(force_field.heads) == {"energy", "noise"}
    assert force_field.backbone.force_encoding.scale == pytest.approx(23.0605, rel=1e-5)  # type: ignore[union-attr]
    converted, _ = convert_equiformer(state, TINY)
    stored = {name: value for name, value in force_field.state_dict().items() if not name.startswith("scaling.")}
    assert stored.keys() == converted.keys()
    assert all(torch.equal(value, converted[name]) for name, value in stored.items())


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "absent.pt")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"text\.pt is damaged"):
        read_checkpoint(tmp_path / "text.pt")
    for k, content in enumerate([[torch.zeros(2)], {"epoch": 3}, {"state_dict": {"weight": 3.0}}]):
        torch.save(content, tmp_path / f"{k}.pt")
        with pytest.raises(ValueError, match=rf"{k}\.pt holds no state dict"):
            read_checkpoint(tmp_path / f"{k}.pt")
    torch.save(state_of(), tmp_path / "whole.pt")
    (tmp_path / "half.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"half\.pt is damaged"):
        read_checkpoint(tmp_path / "half.pt")
