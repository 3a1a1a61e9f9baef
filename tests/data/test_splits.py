"""Dividing frames: every mode, every refusal, and the files that keep a division."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from denskit.data.config import SplitConfig
from denskit.data.splits import PARTS, Splits, divide
from denskit.runtime.progress import counted


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("splits") / "mine.npz"
    path.write_bytes(b"some bytes")
    return path


def _divide(
    file: Path, total: int, *, groups: Any = (), seed: int = 0, take_test: bool = True, elements: Any = (), **split: Any
) -> Splits:
    return divide(
        SplitConfig(**split), pool=np.arange(total), groups=groups, seed=seed, path=file, test=take_test,
        elements=elements,
    )  # fmt: skip


def _parts(splits: Splits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return splits.train, splits.valid, splits.test


def _sizes(splits: Splits) -> tuple[int, int, int]:
    train, valid, test = map(len, _parts(splits))
    return train, valid, test


@pytest.mark.parametrize(
    ("total", "split", "sizes"),
    [
        (1000, {}, (900, 50, 50)),
        (3, {}, (1, 1, 1)),
        (200, {}, (150, 25, 25)),
        (80, {}, (60, 10, 10)),
        (200, {"train": 50}, (50, 25, 125)),
        (200, {"train": 180}, (180, 10, 10)),
        (200, {"train": 0.9}, (180, 10, 10)),
        (1000, {"train": 600}, (600, 50, 350)),
        (1000, {"train": 600, "valid": 100}, (600, 100, 300)),
        (1000, {"train": 0.5, "valid": 0.25, "test": 0.25}, (500, 250, 250)),
        (1000, {"valid": 100, "test": 100}, (800, 100, 100)),
        (1000, {"test": 200}, (750, 50, 200)),
        (1000, {"train": 100, "valid": 10, "test": 20}, (100, 10, 20)),
        (1000, {"valid": 0, "test": 0}, (1000, 0, 0)),
        (1000, {"train": 1.0, "valid": 0}, (1000, 0, 0)),
        (25, {"train": 0.8, "valid": 0.1, "test": 0.1}, (21, 2, 2)),
        (15, {"train": 0.9, "valid": 0.1, "test": 0}, (13, 2, 0)),
        (1000, {"mode": "published"}, (950, 50, 0)),
        (1000, {"mode": "blocks", "gap": 10}, (880, 50, 50)),
    ],
)
def test_sizes(file: Path, total: int, split: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    splits = _divide(file, total, **split)
    assert _sizes(splits) == sizes
    everything = np.concatenate([splits.train, splits.valid, splits.test])
    assert len(np.unique(everything)) == len(everything)
    assert f"{sizes[0]} train / {sizes[1]} valid / {sizes[2]} test" in splits.how


def test_a_test_file_leaves_all_frames_to_train_and_valid(file: Path) -> None:
    assert _sizes(_divide(file, 1000, take_test=False)) == (950, 50, 0)
    assert _sizes(_divide(file, 1000, take_test=False, train=100)) == (100, 50, 0)
    with pytest.raises(ValueError, match="data.test names a file for them"):
        divide(SplitConfig(test=5), pool=np.arange(1000), groups=(), seed=0, path=file, test=False)


@pytest.mark.parametrize(
    ("total", "split"),
    [
        (100, {"train": 95, "valid": 10}),
        (100, {"train": 101}),
        (100, {"mode": "published"}),
        (100, {"valid": 60, "test": 40}),
        (100, {"mode": "blocks", "train": 90, "valid": 5, "test": 5, "gap": 1}),
        (100, {"mode": "blocks", "train": 0.8, "valid": 0.1, "test": 0.1, "gap": 5}),
        (2, {}),
        (1, {"test": 0}),
    ],
)
def test_more_frames_asked_than_there_are(file: Path, total: int, split: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=rf"mine.npz has {counted(total, 'frame')} to divide; \d+ train \+ \d+ valid.*Ask for fewer"
    ):
        _divide(file, total, **split)


def test_a_split_trains_on_something(file: Path) -> None:
    with pytest.raises(ValueError, match=r"train=0 leaves nothing to train on"):
        _divide(file, 100, train=0)


def test_the_published_split_is_numpys_permutation(file: Path) -> None:
    order = np.random.default_rng(1).permutation(2000)
    splits = _divide(file, 2000, mode="published", seed=7)
    np.testing.assert_array_equal(splits.train, order[:950])
    np.testing.assert_array_equal(splits.valid, order[950:1000])
    np.testing.assert_array_equal(splits.test, order[1000:])


def test_numpys_stream_has_not_changed() -> None:
    """The published split of MD17 ethanol rests on it."""
    first = np.random.default_rng(1).permutation(555_092)[:6].tolist()
    assert first == [194225, 413680, 294033, 337551, 213156, 372191]


def test_blocks_keep_the_order_of_time_with_gaps(file: Path) -> None:
    splits = _divide(file, 100, mode="blocks", train=60, valid=10, gap=5)
    np.testing.assert_array_equal(splits.train, np.arange(60))
    np.testing.assert_array_equal(splits.valid, np.arange(65, 75))
    np.testing.assert_array_equal(splits.test, np.arange(80, 100))


def test_random_splits_depend_on_the_seed_alone(file: Path) -> None:
    one, same, other = (_divide(file, 200, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.train, same.train)
    assert not np.array_equal(one.train, other.train)
    own = divide(SplitConfig(seed=4), pool=np.arange(200), groups=(), seed=0, path=file, test=True)
    np.testing.assert_array_equal(own.train, other.train)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=30, max_size=80), st.integers(0, 5))
def test_groups_are_never_divided(file: Path, groups: list[str], seed: int) -> None:
    if len(set(groups)) < 3:
        return
    splits = _divide(file, len(groups), groups=groups, seed=seed, mode="group")
    names = [{groups[i] for i in part} for part in (splits.train, splits.valid, splits.test)]
    assert all(names)
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    assert not names[1] & names[2]
    assert sum(_sizes(splits)) <= len(groups)


def test_a_part_far_larger_than_asked_is_told(file: Path) -> None:
    large = _divide(file, 100, mode="group", groups=["a"] * 40 + ["b"] * 30 + ["c"] * 30)
    assert "; 12 valid and 12 test were asked for, and no group is divided" in large.how
    assert "asked" not in _divide(file, 100, mode="group", groups=[str(place) for place in range(100)]).how


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_group_is_trained_on_whole(file: Path, seed: int) -> None:
    largest = _divide(file, 100, mode="group", groups=["a"] * 96 + ["b"] * 2 + ["c"] * 2, seed=seed)
    assert _sizes(largest) == (96, 2, 2)
    assert _sizes(_divide(file, 100, mode="group", groups=["a"] * 96 + ["b"] * 2 + ["c"] * 2, train=50)) == (50, 2, 2)


@pytest.mark.parametrize("seed", range(4))
def test_a_small_group_with_the_only_rare_element_is_trained_on(file: Path, seed: int) -> None:
    groups = [name for name in "abcd" for _ in range(300)] + ["rare"] * 40
    elements = [frozenset({6, 79} if name == "rare" else {6}) for name in groups]
    splits = _divide(file, len(groups), mode="group", groups=groups, seed=seed, elements=elements)
    assert set(range(1200, 1240)) <= set(splits.train.tolist()) and len(splits.valid) == len(splits.test) == 300


def test_group_splits_refuse_what_they_cannot_do(file: Path) -> None:
    with pytest.raises(ValueError, match="needs data.group_key"):
        _divide(file, 10, mode="group")
    with pytest.raises(ValueError, match=r"has 2 groups; 3 parts"):
        _divide(file, 10, mode="group", groups=["a"] * 5 + ["b"] * 5)
    with pytest.raises(ValueError, match="1 frame without a group, the first is frame 4"):
        _divide(file, 10, mode="group", groups=["a", "b", "c", "d", "", "a", "b", "c", "d", "e"])


RARE = [frozenset({6, 8}) | ({29 + k // 10} if k % 10 == 0 else set()) for k in range(60)]  # six of 60 frames: rare


@pytest.mark.parametrize("seed", range(5))
def test_random_splits_train_all_elements(file: Path, seed: int) -> None:
    splits = _divide(file, 60, seed=seed, train=20, valid=20, elements=RARE)
    assert _sizes(splits) == (20, 20, 20)
    assert {0, 10, 20, 30, 40, 50} <= set(splits.train.tolist())
    assert "rare elements first" in splits.how
    np.testing.assert_array_equal(splits.train, _divide(file, 60, seed=seed, train=20, valid=20, elements=RARE).train)


@pytest.mark.parametrize("train", [None, 30])
@pytest.mark.parametrize("seed", range(5))
def test_group_splits_train_all_elements(file: Path, seed: int, train: int | None) -> None:
    groups = [str(k // 3) for k in range(60)]  # of three frames; one frame of some has a rare element
    splits = _divide(file, 60, seed=seed, mode="group", groups=groups, train=train, valid=9, test=9, elements=RARE)
    train_elements, *others = (frozenset().union(*(RARE[frame] for frame in part)) for part in _parts(splits))
    assert frozenset().union(*others) <= train_elements
    assert _sizes(splits) == (train or 42, 9, 9)
    names = [{groups[i] for i in part} for part in _parts(splits)]
    assert not names[0] & (names[1] | names[2])


def test_elements_change_no_split_that_trains_all_or_cannot(file: Path) -> None:
    plain = _divide(file, 60, train=4, valid=20)
    for elements in ([frozenset({1})] * 60, RARE):  # nothing lacks; four frames cannot hold six rare elements
        splits = _divide(file, 60, train=4, valid=20, elements=elements)
        assert (splits.how, splits.size, splits.sha256) == (plain.how, plain.size, plain.sha256)
        np.testing.assert_array_equal(splits.train, plain.train)
        np.testing.assert_array_equal(splits.valid, plain.valid)


def test_a_saved_division_comes_back(file: Path, tmp_path: Path) -> None:
    splits = _divide(file, 100, seed=5)
    splits.save(tmp_path / "splits.json")
    again = Splits.load(tmp_path / "splits.json", of=file)
    for part in ("train", "valid", "test"):
        np.testing.assert_array_equal(getattr(again, part), getattr(splits, part))
    assert again.how == splits.how


def test_a_division_of_other_bytes_is_refused(file: Path, tmp_path: Path) -> None:
    _divide(file, 100).save(tmp_path / "splits.json")
    changed = tmp_path / "mine.npz"
    changed.write_bytes(b"same bytes"[:4] + b" bytes")  # as long as the original
    with pytest.raises(ValueError, match=r"splits.json divides mine.npz as it was.*has changed"):
        Splits.load(tmp_path / "splits.json", of=changed)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "other"}', "\x00\x01"])
def test_a_foreign_split_file_is_refused(file: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "splits.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"splits.json is (not a split file|damaged, or no JSON)"):
        Splits.load(path, of=file)
    with pytest.raises(FileNotFoundError, match="no split file"):
        Splits.load(tmp_path / "none.json", of=file)


def test_split_files_are_plain_json(file: Path, tmp_path: Path) -> None:
    _divide(file, 10, mode="blocks").save(tmp_path / "splits.json")
    document = json.loads((tmp_path / "splits.json").read_text())
    assert document["train"] == list(range(8))
    assert document["size"] == file.stat().st_size


@pytest.mark.parametrize(
    ("split", "complaint"),
    [
        ({"train": -1}, "greater than or equal to 0"),
        ({"train": 1.5}, "less than or equal to 1"),
        ({"mode": "blocks", "seed": 1}, "split.seed=1 acts with random and group"),
        ({"mode": "random", "gap": 3}, "split.gap=3 acts with split.mode=blocks"),
        ({"file": "a.json", "train": 4}, r"leave out \['train'\]"),
        ({"modus": "random"}, "Extra inputs"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(split: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        SplitConfig(**split)


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.9, 0.05, 0.05), (0.7, 0.15, 0.15), (0.6, 0.2, 0.2)])
def test_shares_that_are_all_take_all(file: Path, shares: tuple[float, float, float]) -> None:
    """Whatever rounding makes of each."""
    for total in range(10, 60):
        sizes = _sizes(_divide(file, total, **dict(zip(PARTS, shares, strict=True))))
        assert sum(sizes) == total
        assert all(abs(size - share * total) <= 1.5 for size, share in zip(sizes, shares, strict=True))
