"""Import of published Equiformer checkpoints: what is recognised, what is refused, and that nothing in a file runs.

The layout of published state dicts is written down here a second time, from their description.  That an imported model
computes the published function is tested in tests/reference.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from denskit.models.equiformer import EquiformerConfig
from denskit.models.published import import_checkpoint
from denskit.models.published_checkpoint import read_checkpoint
from denskit.models.published_equiformer import MD17_CONFIGS, convert_equiformer, detect_equiformer
from denskit.models.scaling import Scaling

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
        paths = [(a, c) for a in degrees for b in degrees for c in degrees if abs(a - b) <= c <= a + b]
        self.into = [sum(config.channels[a] for a, c in paths if c == l3) for l3 in degrees]
        channels, features = config.channels, config.feature_channels if dens else config.feature_channels[:1]
        self.linear("atom_embed.atom_type_lin", (config.num_elements,), channels[:1])
        self.basis()
        self.linear("edge_deg_embed.exp", (1,), channels[:1])
        self.shapes["edge_deg_embed.dw.tp.weight"] = (0,)
        self.radial("edge_deg_embed.rad")
        self.linear("edge_deg_embed.proj", self.into, channels)
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

    def radial(self, name: str) -> None:
        widths = (self.config.num_basis, *self.config.radial_hidden)
        for k, (a, b) in enumerate(itertools.pairwise(widths)):
            self.shapes[f"{name}.net.{3 * k}.weight"] = (b, a)
            for key in (f"{3 * k}.bias", f"{3 * k + 1}.weight", f"{3 * k + 1}.bias"):
                self.shapes[f"{name}.net.{key}"] = (b,)
        self.shapes[f"{name}.net.{3 * len(widths) - 3}.weight"] = (sum(self.into), widths[-1])
        self.shapes[f"{name}.offset"] = (sum(self.into),)

    def norm(self, name: str, channels: Sequence[int]) -> None:
        self.shapes[f"{name}.affine_weight"] = (sum(channels),)
        self.shapes[f"{name}.affine_bias"] = (channels[0],)

    def attention(self, name: str, c_in: Sequence[int], c_out: Sequence[int]) -> None:
        hidden, heads = self.config.channels, self.config.num_heads
        values = [heads * c for c in self.config.head_channels]
        self.shapes[f"{name}.alpha_dot"] = (1, heads, self.config.head_channels[0])
        self.linear(f"{name}.merge_src", c_in, hidden)
        self.linear(f"{name}.merge_dst", c_in, hidden, bias=False)
        if self.config.messages == "linear":
            self.radial(f"{name}.sep.dtp_rad")
            self.linear(f"{name}.sep.lin", self.into, (2 * values[0], *values[1:]))
        else:
            self.radial(f"{name}.sep_act.dtp_rad")
            self.linear(f"{name}.sep_act.lin", self.into, (sum(hidden), *hidden[1:]))
            self.linear(f"{name}.sep_alpha", self.into[:1], values[:1])
            self.shapes[f"{name}.sep_value.dtp.tp.weight"] = (sum(self.into),)
            self.linear(f"{name}.sep_value.lin", self.into, values)
        self.linear(f"{name}.proj", values, c_out, bias=c_out[0] > 0)

    def block(self, name: str, c_out: Sequence[int]) -> None:
        channels, ffn = self.config.channels, self.config.ffn_channels
        if self.config.norm == "layer":
            self.norm(f"{name}.norm_1", channels)
            self.norm(f"{name}.norm_2", channels)
        self.attention(f"{name}.ga", channels, channels)
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
    ],
)
def test_recognises_variants(changes: dict[str, Any]) -> None:
    config = EquiformerConfig.model_validate(MD17_CONFIGS[2].model_dump() | changes)
    state = {name: torch.zeros(1).expand(shape) for name, shape in Layout(config, True).shapes.items()}
    assert detect_equiformer(state) == config
    convert_equiformer(state, config)


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


class RunsCode:
    """Unpickling this runs a shell command."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.proof}",)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_file_does_not_run(tmp_path: Path, how: str) -> None:
    proof, path = tmp_path / "proof", tmp_path / "checkpoint.pt"
    content = {"state_dict": state_of() | {"payload": RunsCode(proof)}}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match="the pickle asks for posix.system|is damaged, or no file of torch.save"):
        read_checkpoint(path)
    assert not proof.exists()
    pickle.loads(pickle.dumps(RunsCode(proof)))  # the trap does work
    assert proof.exists()


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
