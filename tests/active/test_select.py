"""Frames chosen by spread, by distance and far from each other: what is chosen, what is left out and said."""

from __future__ import annotations

from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from typer.testing import CliRunner

from denskit.active import label, select, selection
from denskit.active.frames import look_at, read_frames
from denskit.active.selection import write_selection
from denskit.cli import app
from denskit.data import load_data
from denskit.data.writing import plain, relabelled
from denskit.models import ForceField
from denskit.models.model_file import save_model
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of
from denskit.training.load_config import load_config
from denskit.training.run import train

from trained import trained


def rattled(count: int, amount: float, seed: int = 0) -> list[ase.Atoms]:
    """Molecules of ethanol, each with noise of its own."""
    frames = []
    for number in range(count):
        atoms = molecule("CH3CH2OH")
        atoms.rattle(amount, seed=1000 * seed + number)
        atoms.info |= {"config_type": "rattled", "number": number}
        frames.append(atoms)
    return frames


@pytest.fixture(scope="module")
def committee() -> list[ForceField]:
    other, generator = trained(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1 + 0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return [trained(), other]


def spreads(models: list[ForceField], frames: list[ase.Atoms]) -> np.ndarray:
    """Largest standard deviation of an atom's force over the models, frame by frame."""
    found = []
    for frame in frames:
        forces = np.stack([Potential(model)(batch_of([frame])).forces.numpy() for model in models])
        found.append(np.linalg.norm(forces.std(0, ddof=1), axis=1).max())
    return np.array(found)


def test_frames_are_written_as_extxyz_alone(committee: list[ForceField], tmp_path: Path) -> None:
    """Another ending would promise a format that the file has not."""
    selection = select(committee, rattled(3, 0.05), count=1)
    with pytest.raises(ValueError, match=r"chosen\.csv: structures are written as extxyz"):
        write_selection(selection, rattled(3, 0.05), tmp_path / "chosen.csv")
    with pytest.raises(ValueError, match=r"labelled\.traj: structures are written as extxyz"):
        label(rattled(3, 0.05), tmp_path / "labelled.traj", method="xtb")


def test_a_committee_chooses_where_it_disagrees(committee: list[ForceField]) -> None:
    pool = rattled(12, 0.05)
    chosen = select(committee, pool, count=4, duplicate=0.0)
    expected = spreads(committee, pool)
    seen: list[float] = []
    select(committee, pool, count=4, batch_size=5, progress=lambda done, text, total: seen.append(done / total))
    assert seen == [5 / 12, 10 / 12, 1.0]
    assert chosen.by == "spread"
    assert chosen.chosen == np.argsort(-expected)[:4].tolist()
    np.testing.assert_allclose(chosen.scores, np.sort(expected)[::-1][:4], rtol=1e-4)
    limit = float(np.sort(expected)[-3:-1].mean())
    limited = select(committee, pool, count=4, duplicate=0.0, most_spread=limit)
    assert sorted(limited.exploded) == sorted(np.argsort(-expected)[:2].tolist())
    assert limited.chosen == np.argsort(-expected)[2:6].tolist()


@pytest.mark.parametrize("models", [0, 1, 2])
def test_duplicates_are_left_out(committee: list[ForceField], models: int) -> None:
    """Each frame of the pool comes five times, turned about and with atoms of one element in another order."""
    first, turned = rattled(6, 0.1), []
    for frame in first:
        for angle in (30, 60, 90, 120):
            copy = frame[[0, 1, 2, 4, 3, *range(5, 9)]]
            copy.rotate(angle, (1, 2, 3))
            copy.positions += 1.0
            turned.append(copy)
    found = select(committee[:models], [*first, *turned], count=20)
    groups = [number if number < 6 else (number - 6) // 4 for number in found.chosen]
    assert sorted(groups) == list(range(6))
    assert found.alike == 24
    assert found.threshold == 0.1
    # what was trained on is not labelled again
    again = select(committee[:models], [*first, *turned], count=20, train=first[:4])
    assert sorted({number if number < 6 else (number - 6) // 4 for number in again.chosen}) == [4, 5]
    assert len(again.known) == 4 * 5


def test_frames_of_one_composition_are_compared_with_each_other(data_dir: Path) -> None:
    """Training on four metals at 300 K, which differ by far more, does not make their frames at 1,000 K known."""
    train = ase.io.read(data_dir / "bcc_metals_300K_train.extxyz", index="::5")
    hot = ase.io.read(data_dir / "bcc_metals_1000K_2000K_test.extxyz", index="::10")
    pool = [*hot, *train[:3], train[4].repeat((1, 1, 2))]
    found = select([], pool, count=100, train=train)
    assert found.known == [len(hot) + place for place in range(4)], "the same frames, and a supercell of one"
    assert sorted(found.chosen) == list(range(len(hot)))
    unlike = select([], [train[0], train[-1]], count=2, train=train[8:16], duplicate=1e9)
    assert unlike.known == [] and len(unlike.chosen) == 2 and unlike.alike == 0, "of other metals"


def test_the_unit_of_one_composition_is_the_median_distance() -> None:
    points = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, far = torch.zeros(60, dtype=torch.int64), torch.arange(60) // 30
    assert selection._typical(selection._Places(points, one)) == float(torch.pdist(points).median())
    apart = selection._Places(points + 100 * far[:, None], far)
    assert selection._typical(apart) < 5 < float(torch.pdist(apart.points).median())
    single = selection._Places(points, torch.arange(60))
    assert selection._unit(single, selection._Places(points[:2], one[:2])) == float(torch.pdist(points[:2]))
    assert selection._unit(single, single) == float(torch.pdist(points).median())


def test_frames_that_have_flown_apart_are_left_out(committee: list[ForceField]) -> None:
    """By what training has: an atom that sees no other, and a molecule in more parts."""
    train, pool = rattled(10, 0.05, seed=1), rattled(5, 0.05)
    pool[1].positions[8] += [20.0, 0.0, 0.0]
    pool[3].positions[8] += 1.3 * (pool[3].positions[8] - pool[3].positions[0])  # 2.5 Å: it still sees others
    found = select(committee, pool, count=5, train=train)
    assert (found.alone, found.torn, found.broken) == ([1], [3], [])
    assert sorted(found.chosen) == [0, 2, 4]
    assert select(committee, pool, count=5).alone == [1], "models know no atom alone, as far as is known"
    assert select([], pool, count=5).alone == []
    dissociated = select(committee, pool, count=5, train=[*train, pool[1].copy()])
    assert (dissociated.alone, dissociated.torn) == ([], [])
    water = [molecule("H2O"), molecule("H2O")]
    water[1].positions[1] += [0.0, 0.0, 1.5]
    assert select(committee, water, count=2, train=train).torn == [], "training has no water"
    single = select(committee, [*pool, ase.Atoms("H")], count=6, train=train)
    assert 5 not in single.alone + single.torn


def test_the_farthest_frames_cover_the_pool() -> None:
    """Two molecules stretched in one bond among 30 that are nearly alike: both are among the first three."""
    pool = rattled(30, 0.01)
    for number, factor in ((7, 1.3), (21, 0.8)):
        pool[number].set_distance(0, 1, factor * pool[number].get_distance(0, 1), fix=0)
    assert {7, 21} <= set(select([], pool, count=3).chosen)
    assert {7, 21} <= set(select([trained()], pool, count=3, train=rattled(5, 0.01, seed=1)).chosen)


def test_distance_is_that_of_the_strangest_atom() -> None:
    """One displaced hydrogen makes a frame stranger than noise on all atoms; a score of 1 is usual in training."""
    train, pool = rattled(40, 0.05), rattled(8, 0.05, seed=1)
    pool[5].positions[8] += [0.3, 0.2, 0.1]
    found = select([trained()], pool, count=8, by="distance", train=train, duplicate=0.0)
    assert found.chosen[0] == 5
    assert found.scores[0] > 2 * found.scores[1]
    assert 0.5 < found.scores[-1] < found.scores[1] < 4
    assert found.training == 40


def test_frames_that_cannot_be_evaluated_are_left_out(committee: list[ForceField]) -> None:
    pool = rattled(6, 0.05)
    pool[1].positions[0] = np.nan
    pool[4].positions[1] = pool[4].positions[0]
    found = select(committee, pool, count=6)
    assert found.broken == [1, 4]
    assert sorted(found.chosen) == [0, 2, 3, 5]
    with pytest.raises(ValueError, match="no frame is usable"):
        select(committee, [pool[1]], count=1)


def test_what_the_models_cannot_tell_is_refused(committee: list[ForceField]) -> None:
    pool = rattled(2, 0.05)
    for wrong, message in (
        ({"by": "spread"}, "needs a committee of two models or more; 1 given"),
        ({"most_spread": 1.0}, "needs a committee"),
        ({"by": "distance"}, "needs the training frames"),
        ({"count": 0}, "give 1 or more"),
        ({"by": "std"}, "by='std': wanted 'spread' or 'farthest' or 'distance'"),
    ):
        with pytest.raises(ValueError, match=message):
            select(committee[:1], pool, **({"count": 1} | wrong))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the pool, frame 2, has Au"):
        select(committee, [*pool, ase.Atoms("Au2", [[0, 0, 0], [0, 0, 2.5]])], count=1)


def test_features_do_not_depend_on_the_batch() -> None:
    frames = [*rattled(3, 0.1), molecule("H2O")]
    elements = torch.tensor([1, 6, 8])
    for potential in (None, Potential(trained())):
        whole = look_at(frames, potential, 32, elements).fingerprints(elements)
        single = torch.cat([look_at([frame], potential, 1, elements).fingerprints(elements) for frame in frames])
        torch.testing.assert_close(whole, single, rtol=1e-9, atol=1e-9)
        assert float((whole[0] - whole[1]).norm()) > 1e-3


def test_features_do_not_depend_on_the_place() -> None:
    """In float32, too, and far from the origin."""
    model = trained().float()
    frames = rattled(1, 0.05)
    moved = [frame.copy() for frame in frames]
    moved[0].positions += 1e5
    here, there = (look_at(given, Potential(model), 8, torch.tensor([1, 6, 8])).features for given in (frames, moved))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5 * float(here.abs().max()))


def test_files_keep_their_fields_and_are_not_replaced(tmp_path: Path) -> None:
    pool = tmp_path / "pool.extxyz"
    ase.io.write(pool, rattled(5, 0.1))
    pool.write_text(pool.read_text().replace("config_type=", 'remark="" config_type='))
    found = select([], pool, count=3)
    write_selection(found, pool, tmp_path / "chosen.extxyz")
    frames = ase.io.read(tmp_path / "chosen.extxyz", index=":")
    assert [frame.info["number"] for frame in frames] == found.chosen
    assert [frame.info["selection_frame"] for frame in frames] == found.chosen
    assert all(frame.info["config_type"] == "rattled" and frame.info["selection_by"] == "farthest" for frame in frames)
    np.testing.assert_allclose([frame.info["selection_score"] for frame in frames], found.scores, rtol=1e-6)
    with pytest.raises(ValueError, match="exists already"):
        write_selection(found, pool, tmp_path / "chosen.extxyz")
    with pytest.raises(ValueError, match="belongs to the input"):
        write_selection(found, pool, pool, force=True)
    (tmp_path / "md").mkdir()
    for replica in range(2):
        ase.io.write(tmp_path / "md" / f"trajectory_{replica:02d}.extxyz", rattled(3, 0.1, seed=replica))
    assert len(read_frames(tmp_path / "md")) == 6


def test_replayed_structures_are_known(tmp_path: Path) -> None:
    """A run of new frames that trains on old ones again: both are left out."""
    source = load_data(load_config("demo", ["data.split.train=50", "data.split.valid=5"]).data, 0)
    frames = [relabelled(plain(each), {"energy": each.energy, "forces": each.forces}) for each in source.train]
    files = {"old": frames[:30], "new": frames[30:40], "valid": frames[40:45]}
    for name, part in files.items():
        ase.io.write(tmp_path / f"{name}.extxyz", part)

    def run(name: str, train_on: str, *settings: str) -> Path:
        data = [f"data.train={tmp_path / train_on}.extxyz", f"data.valid={tmp_path}/valid.extxyz", "data.name=file"]
        split = "data.split={train: null, valid: null, test: null, mode: null}"
        given = [*data, split, "data.molecule=null", f"output={tmp_path / name}", *settings]
        return train(load_config("demo", given))

    first = run("first", "old", "training.max_steps=200")
    replay = [f"training.init_from={first}", f"training.replay={tmp_path}/old.extxyz", "training.replay_share=0.5"]
    second = run("second", "new", "training.max_steps=2", "training.lr=1e-4", *replay)
    pool = [frames[3], frames[35], frames[48]]
    found = select(second, pool, count=3)
    assert found.training == 40 and found.known == [0, 1] and found.chosen == [2]
    (tmp_path / "old.extxyz").rename(tmp_path / "moved.extxyz")
    with pytest.raises(FileNotFoundError, match=r"second replayed old structures, which are not there: .*--train"):
        select(second, pool, count=3)


def test_the_program(committee: list[ForceField], tmp_path: Path) -> None:
    """A run knows its training frames; the table has the choice, lines below it the reasons."""
    changes = ["data.split.train=20", "data.split.valid=5", "training.max_steps=2", f"output={tmp_path / 'run'}"]
    train(load_config("demo", changes))
    for name, model in zip("ab", committee, strict=True):
        save_model(tmp_path / f"{name}.safetensors", model, {})
    ase.io.write(tmp_path / "pool.extxyz", [*rattled(8, 0.05), *rattled(8, 0.05)])
    ase.io.write(tmp_path / "few.extxyz", rattled(3, 0.05))
    pool, out = str(tmp_path / "pool.extxyz"), str(tmp_path / "chosen.extxyz")
    models = [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]
    done = CliRunner().invoke(app, ["select", *models, pool, "--count", "12", "-o", out])
    assert done.exit_code == 0, done.output
    assert "largest spread of the force" in done.output
    assert "8 nearly equal to a chosen frame: nearer than 0.1" in done.output
    assert "12 were asked for: the other frames are left out for the reasons above" in done.output
    assert len(ase.io.read(out, index=":")) == 8
    again = CliRunner().invoke(app, ["select", *models, pool, "--count", "2", "-o", out])
    assert again.exit_code == 1 and "exists already" in again.output
    few = CliRunner().invoke(app, ["select", str(tmp_path / "few.extxyz"), "--count", "12", "-o", out, "--force"])
    assert "12 were asked for: the pool holds no more" in few.output
    run = ["select", str(tmp_path / "run"), pool, "--count", "2", "--by", "distance", "-o", out, "--force"]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    assert "compared with 20 training frames" in done.output
    assert len(ase.io.read(out, index=":")) == 2
