"""Files for the Open Catalyst Project's servers, and errors on several sets, alone and on two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from denskit.batch import System
from denskit.data.base import Subset, collate
from denskit.evaluation.evaluate import evaluate, evaluate_splits
from denskit.evaluation.submission import merge_submissions, write_submission
from denskit.models.model_file import save_model
from training.slabs import Slabs, slabs, small_model

from tolerances import PATIENCE_S

SERVED32 = 1e-5  # eV and eV/Å: float32, and batches of another size


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def five(systems: dict[str, System]) -> Slabs:
    """Ids 8_5, 8_100, 9_5, 9_100, 10_5: as text 10_5 comes first and 8_100 before 8_5."""
    return slabs(systems["slab"], 5)


def test_one_split_in_the_layout_of_evalai(five: Slabs, tmp_path: Path) -> None:
    model = small_model()
    twice = Slabs([*five.systems, five.systems[1]])
    assert write_submission(model, twice, tmp_path / "s.npz", batch_size=2) == 5
    arrays = _load(tmp_path / "s.npz")
    assert arrays["ids"].tolist() == ["10_5", "8_100", "8_5", "9_100", "9_5"]
    assert {name: (value.dtype.kind, value.dtype.itemsize) for name, value in arrays.items() if name != "ids"} == {
        "energy": ("f", 4), "forces": ("f", 4), "chunk_idx": ("i", 8),
    }  # fmt: skip
    assert arrays["ids"].dtype.kind == "U"
    assert arrays["energy"].shape == (5,)
    chunks = np.split(arrays["forces"], arrays["chunk_idx"])
    for position, index in enumerate((4, 1, 0, 3, 2)):
        batch, _ = collate([five[index]])
        predicted = model.predict(model.config.with_neighbors(batch))
        assert arrays["energy"][position] == pytest.approx(float(predicted["energy"]), abs=SERVED32)
        free = ~five[index].fixed
        np.testing.assert_allclose(chunks[position], predicted["forces"].numpy()[free], atol=SERVED32)


def test_energies_hold_the_references(five: Slabs, tmp_path: Path) -> None:
    """A model of totals answers with totals, also for structures without labels."""
    model = small_model()
    with torch.no_grad():
        model.heads["energy"].output.weights[0].zero_()  # type: ignore[union-attr, index, operator]
    unlabelled = Slabs([replace(system, energy=None, forces=None) for system in five.systems])
    write_submission(model, unlabelled, tmp_path / "s.npz")
    counts = np.bincount(five[0].atomic_numbers, minlength=30)
    expected = -9.0 * counts[6] - 7.0 * counts[8] - 3.5 * counts[29] - 0.5
    np.testing.assert_allclose(_load(tmp_path / "s.npz")["energy"], expected, rtol=1e-6)


def test_the_leaderboards_layout_has_all_atoms(five: Slabs, tmp_path: Path) -> None:
    model = small_model()
    for layout in ("evalai", "leaderboard"):
        write_submission(model, five, tmp_path / f"{layout}.npz", layout=layout)  # type: ignore[arg-type]
    free, every = (_load(tmp_path / f"{layout}.npz") for layout in ("evalai", "leaderboard"))
    fixed = five[0].fixed
    assert 0 < fixed.sum() < len(fixed)
    assert every["chunk_idx"].tolist() == [len(fixed) * number for number in range(1, 5)]
    for some, all_of_them in zip(
        np.split(free["forces"], free["chunk_idx"]), np.split(every["forces"], every["chunk_idx"]), strict=True
    ):
        np.testing.assert_array_equal(all_of_them[~fixed], some)
        assert not all_of_them[fixed].any()


def test_splits_become_one_file_at_once_or_later(five: Slabs, systems: dict[str, System], tmp_path: Path) -> None:
    model, other = small_model(), slabs(systems["slab"], 3, seed=1)
    assert write_submission(model, {"id": five, "ood_ads": other}, tmp_path / "both.npz") == 8
    for name, source in (("id", five), ("ood_ads", other)):
        write_submission(model, source, tmp_path / f"{name}.npz")
    merged = merge_submissions({name: tmp_path / f"{name}.npz" for name in ("id", "ood_ads")}, tmp_path / "merged.npz")
    assert merged == 8
    both, later = _load(tmp_path / "both.npz"), _load(tmp_path / "merged.npz")
    assert set(both) == {f"{s}_{key}" for s in ("id", "ood_ads") for key in ("ids", "energy", "forces", "chunk_idx")}
    assert set(both) == set(later)
    assert all(np.array_equal(both[name], later[name]) for name in both)


def test_what_is_no_submission_is_refused(five: Slabs, tmp_path: Path) -> None:
    model, file = small_model(), tmp_path / "id.npz"
    with pytest.raises(ValueError, match=r"slabs, frame 0: no sid or fid"):
        write_submission(model, Slabs([replace(five[0], sid="")]), file)
    with pytest.raises(ValueError, match=r"name it \.npz"):
        write_submission(model, five, tmp_path / "id.extxyz")
    write_submission(model, {"id": five}, file)
    with pytest.raises(ValueError, match="wanted a submission of one split"):
        merge_submissions({"id": file}, tmp_path / "all.npz")
    np.savez(file, ids=np.array(["1_2", "1_3"]), energy=np.zeros(1))
    with pytest.raises(ValueError, match="2 ids, but 1 energy"):
        merge_submissions({"id": file}, tmp_path / "all.npz")
    np.savez(file, ids=np.array(["1_2", None], dtype=object))
    with pytest.raises(ValueError, match="id.npz: array ids is damaged, or no plain array"):
        merge_submissions({"id": file}, tmp_path / "all.npz")
    with pytest.raises(FileNotFoundError, match="no file"):
        merge_submissions({"id": tmp_path / "none.npz"}, tmp_path / "all.npz")
    assert not (tmp_path / "all.npz").exists()


def test_relaxed_energies_merge_too(tmp_path: Path) -> None:
    for name in ("id", "ood"):
        np.savez(tmp_path / f"{name}.npz", ids=np.array(["7", "8"]), energy=np.array([0.5, 1.5], np.float32))
    merge_submissions({name: tmp_path / f"{name}.npz" for name in ("id", "ood")}, tmp_path / "all.npz")
    assert _load(tmp_path / "all.npz")["ood_energy"].tolist() == [0.5, 1.5]


def test_the_mean_is_the_plain_mean_of_the_splits(five: Slabs, systems: dict[str, System]) -> None:
    """However many structures a split has."""
    model, other = small_model(), slabs(systems["slab"], 2, seed=1)
    results = evaluate_splits(model, {"id": five, "ood_ads": other})
    assert list(results) == ["id", "ood_ads", "mean"]
    for name, value in results["mean"].items():
        assert value == pytest.approx((results["id"][name] + results["ood_ads"][name]) / 2)
    assert results["id"] == evaluate(model, five)
    assert {"efwt_percent", "ewt_percent", "forces_cosine", "forces_magnitude_mae_meV_per_A"} <= results["mean"].keys()
    assert list(evaluate_splits(model, {"id": five})) == ["id"]  # the mean of one would repeat it
    with pytest.raises(ValueError, match="named 'mean'"):
        evaluate_splits(model, {"mean": five})
    bare = Slabs([replace(system, forces=None) for system in other.systems])
    assert "forces_mae_meV_per_A" not in evaluate_splits(model, {"id": five, "bare": bare})["mean"]


def test_errors_are_of_free_atoms_weighted_by_atom(five: Slabs) -> None:
    model = small_model()
    nine = Slabs([*five.systems, replace(five[0], fixed=np.ones(len(five[0]), bool))])
    errors = []
    for index in range(5):
        batch, targets = collate([five[index]])
        difference = model.predict(model.config.with_neighbors(batch))["forces"] - targets.forces
        errors.append(difference[~batch.fixed].abs())
    expected = 1000 * torch.cat(errors).mean().item()
    assert evaluate(model, nine, batch_size=4)["forces_mae_meV_per_A"] == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, Subset(five, np.arange(5), "all"))["forces_mae_meV_per_A"] == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.one_thread
def test_two_processes_judge_and_predict_each_structure_once(five: Slabs, tmp_path: Path) -> None:
    """Five structures on two processes: a padded sampler would count one twice."""
    model = small_model()
    save_model(tmp_path / "model.safetensors", model, {})
    program = Path(__file__).with_name("submission_worker.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(program), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "errors.pt", weights_only=True)
    expected = evaluate_splits(model, {"id": five})
    assert found.keys() == expected.keys()
    assert found["id"] == pytest.approx(expected["id"], rel=1e-5, abs=1e-6)  # float32 in batches of other sizes
    write_submission(model, five, tmp_path / "one.npz")
    one, two = _load(tmp_path / "one.npz"), _load(tmp_path / "two.npz")
    assert one["ids"].tolist() == two["ids"].tolist()
    for name in ("energy", "forces", "chunk_idx"):
        np.testing.assert_allclose(two[name], one[name], atol=SERVED32)
