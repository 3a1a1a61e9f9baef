"""Parts of a model: frozen ones stay as they were, and rates fall with the distance from the heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from denskit.data import load_data
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling
from denskit.runtime.processes import join_processes
from denskit.training.load_config import RunConfig, load_config
from denskit.training.optimizer import build_optimizer, learning_rates_in_words, set_learning_rate
from denskit.training.parts import depths, freeze, parts_of
from denskit.training.run import train
from denskit.training.trainer import Trainer
from training.strained import crystals

Tiny = Callable[..., RunConfig]


@pytest.fixture
def trained(tiny: Tiny) -> Path:
    return train(tiny("training.max_steps=2", "task=energy_forces", name="trained"))


def _last(run: Path) -> ForceField:
    return load_model(run / "checkpoints" / "last.safetensors")


def _start(config: RunConfig) -> Trainer:
    return Trainer(config, load_data(config.data, config.seed), join_processes("cpu"))


def test_frozen_parts_keep_their_weights_and_the_others_learn(tiny: Tiny, trained: Path) -> None:
    run = train(
        tiny(
            f"training.init_from={trained}",
            "training.frozen=[embedding,blocks.0]",
            "task=energy_forces",
            "training.max_steps=3",
        )
    )
    before, after = load_model(trained / "model.safetensors"), _last(run)
    parts = parts_of(after)
    moved = {
        parts[name]
        for (name, old), (_, new) in zip(before.named_parameters(), after.named_parameters(), strict=True)
        if not torch.equal(old, new)
    }
    assert moved.isdisjoint({"embedding", "blocks.0"})
    assert {"norm", "heads.energy"} <= moved
    assert "frozen: embedding, blocks.0; " in (run / "train.log").read_text()


def test_a_run_with_frozen_parts_resumes_exactly(tiny: Tiny, trained: Path) -> None:
    settings = (
        f"training.init_from={trained}", "training.frozen=[embedding]", "training.ema_decay=0.9", "task=energy_forces",
        "training.schedule=constant", "training.layer_decay=0.5",
    )  # fmt: skip
    whole = train(tiny(*settings, "training.max_steps=4", name="whole"))
    train(tiny(*settings, "training.max_steps=2", name="cut"))
    cut = train(tiny(*settings, "training.max_steps=4", name="cut"), resume=True)
    for one, other in zip(_last(whole).parameters(), _last(cut).parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["training.frozen=[block]", "task=energy_forces"], "no part 'block'; did you mean blocks.0"),
        (["training.frozen=[embedding,blocks,norm,heads]", "task=energy_forces"], "leaves no weights to train"),
        (["training.frozen=[heads]", "task=dens"], "heads.noise has untrained weights"),
    ],
)
def test_refused(tiny: Tiny, trained: Path, settings: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _start(tiny(f"training.init_from={trained}", *settings))


@pytest.mark.parametrize(("preset", "tables_in", "rows"), [("equiformer_v3", 2, 40), ("esen", 1, 24)])
def test_new_elements_learn_in_frozen_parts(preset: str, tables_in: int, rows: int, tmp_path: Path) -> None:
    """EquiformerV3 has tables of elements in every block. No decay, average or resumption moves their other rows."""
    sizes = {"channels": 8, "hidden_channels": 8, "edge_channels": 8, "num_layers": 2, "l_max": 1, "m_max": 1}
    if preset == "equiformer_v3":
        sizes |= {"num_heads": 2, "alpha_channels": 4, "value_channels": 4, "ffn_channels": 8}
    common = ["model.forces=direct", "model.stress=none", "training.batch_size=2", "device=cpu"]

    def run(elements: list[int], name: str, *settings: str) -> Path:
        data = crystals(tmp_path / f"{elements[0]}.extxyz", elements, 12)
        given = [f"data.path={data}", f"output={tmp_path / name}", *common, *settings]
        return train(load_config(preset, given))

    first = run([22, 8], "first", "training.max_steps=2", *(f"model.{key}={value}" for key, value in sizes.items()))
    tuned = [f"training.init_from={first}", "training.frozen=[embedding,blocks.0]", "training.weight_decay=0.5"]
    tuned += ["training.ema_decay=0.9", "training.schedule=constant", "training.warmup=0", "training.lr=0.01"]
    whole = run([40, 8], "whole", *tuned, "training.max_steps=4")
    run([40, 8], "cut", *tuned, "training.max_steps=2")
    first.rename(tmp_path / "gone")  # it is not needed again
    cut = train(load_config(tmp_path / "cut", ["training.max_steps=4"]), resume=True)
    before, after = load_model(tmp_path / "gone"), _last(whole)
    parts, tables, old = parts_of(after), after.element_tables(), dict(before.named_parameters())
    frozen = {name for name, part in parts.items() if part in ("embedding", "blocks.0")}
    assert len({parts[name] for name in tables & frozen}) == tables_in
    others = torch.arange(len(before.backbone.atom_embedding)) != 40  # type: ignore[arg-type]
    for (name, one), (_, resumed) in zip(after.named_parameters(), _last(cut).named_parameters(), strict=True):
        assert torch.equal(one, resumed), name
        if name in tables & frozen:
            assert torch.equal(one[others], old[name][others]), name
            assert not torch.equal(one[40], old[name][22]), f"{name}: Zr began as a copy of Ti"
        elif name in frozen:
            assert torch.equal(one, old[name]), name
    assert not torch.equal(after.state_dict()["backbone.norm.weight"], old["backbone.norm.weight"])
    said = f"weights are trained, {rows} of them in the rows of Zr in frozen tables of elements"
    assert said in (whole / "train.log").read_text(encoding="utf-8")


def test_nothing_is_frozen_in_an_untrained_model(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="frozen=embedding would keep random weights; give init_from"):
        tiny("training.frozen=[embedding]")


def test_rates_fall_with_the_distance_from_the_heads(tiny: Tiny) -> None:
    config = tiny("training.layer_decay=0.5")
    force_field = _start(config).force_field
    depth = depths(force_field)
    last = max(depth[name] for name in depth if parts_of(force_field)[name].startswith("blocks."))
    assert {depth[name] for name, part in parts_of(force_field).items() if part in ("norm", "heads.energy")} == {0}
    assert {depth[name] for name, part in parts_of(force_field).items() if part == "embedding"} == {last + 1}
    optimizer = build_optimizer(force_field, config.training)
    set_learning_rate(optimizer, 0.01)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in force_field.named_parameters():
        assert rates[id(parameter)] == pytest.approx(0.01 * 0.5 ** depth[name])
    assert len(rates) == len(depth)
    assert learning_rates_in_words(optimizer, tiny().training) == []
    (told,) = learning_rates_in_words(optimizer, config.training)
    lr = config.training.lr
    assert f"{lr:g} of the heads, falling to {lr * 0.5 ** (last + 1):.3g} of the first part" in told


def test_the_first_layers_move_less(tiny: Tiny, trained: Path) -> None:
    settings = [f"training.init_from={trained}", "task=energy_forces", "training.max_steps=3"]
    before = load_model(trained / "model.safetensors")
    moved = []
    for decay in (1.0, 0.1):
        after = _last(train(tiny(*settings, f"training.layer_decay={decay}", name=f"decay-{decay}")))
        parts, depth = parts_of(after), depths(after)
        changes = {depth[name]: 0.0 for name in parts}
        for (name, old), (_, new) in zip(before.named_parameters(), after.named_parameters(), strict=True):
            changes[depth[name]] += float((new - old).detach().double().square().sum())
        moved.append([changes[place] ** 0.5 for place in sorted(changes)])  # from the heads to the embedding
    shares = [less / more for more, less in zip(*moved, strict=True)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.3 < 0.7 < shares[0]


def test_parts_of_every_model() -> None:
    for preset in ("equiformer_v2", "equiformer_v3", "esen"):
        config = load_config(preset, ["data.path=none.xyz"])
        scaling = Scaling(elements=[1], references={}, energy_shift=0.0, energy_scale=1.0, force_scale=1.0)
        model = config.model.model_copy(update={"average_degree": 10.0, "average_atoms": 10.0})
        force_field = build_force_field(model, heads={"noise": "1"}, scaling=scaling)
        parts = set(parts_of(force_field).values())
        assert {"embedding", "blocks.0", "norm", "heads.energy", "heads.noise"} <= parts
        assert freeze(force_field, ["embedding", "blocks"]).startswith("frozen: embedding, blocks;")
