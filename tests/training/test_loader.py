"""The order of the data: a pure function of seed, epoch and step, however the work is divided."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from denskit.batch import Prepared, System
from denskit.data.base import Source, Subset
from denskit.models.config import ModelConfig
from denskit.tasks import DeNSConfig, NoisyNodesConfig, build_task
from denskit.training.loader import Loader, Mixture, divide, epoch_order, steps_per_epoch
from denskit.training.schedule import Schedule
from denskit.training.settings import TrainingConfig

from tolerances import EXACT64


class _Water:
    """Structures that differ by one distance, so that a batch says which they are."""

    name = "water"
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> System:
        if not 0 <= index < 10:
            raise IndexError(index)
        positions = np.array([[0.0, 0, 0], [0.96 + 0.01 * index, 0, 0], [-0.24, 0.93, 0]])
        return System(
            positions=positions, atomic_numbers=np.array([8, 1, 1]), cell=np.zeros((3, 3)), pbc=np.zeros(3, bool),
            fixed=np.zeros(3, bool), tags=np.zeros(3, np.int64), energy=-10.0, forces=positions, index=100 + index,
        )  # fmt: skip


def _all(source: Source) -> Mixture:
    return Mixture(source, len(source))


def _loader(batch_size: int = 4, *, drop_last: bool = True, **settings: int) -> Loader:
    training = TrainingConfig(batch_size=batch_size, epochs=3)
    return Loader(
        mixture=_all(_Water()), task=build_task(DeNSConfig(probability=0.5)),
        schedule=Schedule(training, steps_per_epoch(10, batch_size, drop_last)), seed=3, batch_size=batch_size,
        dtype=torch.float64, model=ModelConfig(name="any", cutoff=3.0),
        **({"accumulate": 1} | settings),  # type: ignore[arg-type]
    )  # fmt: skip


def test_an_epoch_is_a_permutation_that_changes_with_epoch_and_seed() -> None:
    orders = [epoch_order(seed, epoch, 50, np.arange(50)).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] != list(range(50))


def test_steps_of_an_epoch_go_through_it_once() -> None:
    loader = _loader()
    seen = np.concatenate([loader.samples(step) for step in (0, 1)])
    assert seen.tolist() == epoch_order(3, 0, 10, np.arange(8)).tolist()
    assert loader.samples(2).tolist() == epoch_order(3, 1, 10, np.arange(4)).tolist()
    with_rest = _loader(drop_last=False)
    assert [len(with_rest.samples(step)) for step in range(4)] == [4, 4, 2, 4]


def test_a_batch_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(ValueError, match="5 training structures, less than one batch of training.batch_size=8"):
        steps_per_epoch(5, 8, drop_last=True)
    assert steps_per_epoch(5, 8, drop_last=False) == 1


class _Relaxing(_Water):
    """Water on its way: each structure says where it ends."""

    end = np.array([[0.0, 0, 0], [0.958, 0, 0], [-0.24, 0.927, 0]])

    def __getitem__(self, index: int) -> System:
        return replace(super().__getitem__(index), relaxed_positions=self.end)


def test_noisy_nodes_are_given_the_way_to_the_relaxed_positions() -> None:
    config = NoisyNodesConfig(sigma=0.3)
    loader = replace(_loader(), mixture=_all(_Relaxing()), task=build_task(config))
    (part,) = loader.work(0).parts
    home = np.tile(_Relaxing.end, (4, 1))
    np.testing.assert_allclose(part.batch.positions - config.sigma * part.noise, home, atol=1e-12)


class _Chains(_Water):
    """Structures of 3 to 12 atoms in a row."""

    sizes = np.array([3, 12, 5, 3, 9, 4, 11, 3, 6, 8])

    def __getitem__(self, index: int) -> System:
        n = self.sizes[index]
        positions = np.arange(n)[:, None] * np.array([[1.0 + 0.01 * index, 0.0, 0.0]])
        return System(
            positions=positions, atomic_numbers=np.full(n, 1), cell=np.zeros((3, 3)), pbc=np.zeros(3, bool),
            fixed=np.zeros(n, bool), tags=np.zeros(n, np.int64), energy=float(index), forces=positions, index=index,
        )  # fmt: skip


def _by_energy(parts: list[Prepared]) -> dict[float, list[torch.Tensor]]:
    """Tensors of each structure, which its energy names."""
    found: dict[float, list[torch.Tensor]] = {}
    for part in parts:
        for place, energy in enumerate(part.targets.energy.tolist()):
            atoms = part.batch.system_index == place
            found[energy] = [part.batch.positions[atoms], part.noise[atoms], part.force_input[atoms]]
    return found


@pytest.mark.parametrize(("num_processes", "accumulate"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
def test_division_changes_nothing(num_processes: int, accumulate: int) -> None:
    """Each structure of the step comes to one process, with the same corruption, and the counts add up to the same."""
    loader = replace(_loader(batch_size=5), mixture=_all(_Chains()))
    whole = loader.work(1)
    shares = [
        replace(loader, rank=rank, num_processes=num_processes, accumulate=accumulate).work(1)
        for rank in range(num_processes)
    ]
    joined = _by_energy([part for share in shares for part in share.parts])
    alone = _by_energy(whole.parts)
    assert sorted(joined) == sorted(alone) and len(joined) == 5
    for energy, tensors in alone.items():
        for a, b in zip(tensors, joined[energy], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=EXACT64)
    assert torch.equal(torch.stack([share.counts for share in shares]).sum(0), whole.counts)


def test_shares_are_balanced() -> None:
    sizes = np.random.default_rng(0).integers(20, 226, size=64)
    parts = divide(sizes, 8)
    assert sorted(np.concatenate(parts).tolist()) == list(range(64))
    assert all((np.diff(places) > 0).all() for places in parts)
    weights = np.array([sizes[places].sum() for places in parts])
    assert np.ptp(weights) < 0.02 * weights.mean()
    unbalanced = [part.sum() for part in np.array_split(sizes, 8)]
    assert np.ptp(unbalanced) > 10 * np.ptp(weights)


def test_shares_of_few_and_of_equal_structures() -> None:
    assert [places.tolist() for places in divide(np.array([7, 7]), 3)] == [[0], [1], []]
    assert [places.tolist() for places in divide(np.array([4, 4, 4, 4, 4]), 2)] == [[0, 2, 4], [1, 3]]
    assert [places.tolist() for places in divide(np.array([1, 1, 9, 1]), 2)] == [[2], [0, 1, 3]]
    assert [places.tolist() for places in divide(np.array([5, 4, 3]), 1)] == [[0, 1, 2]]


def test_few_structures_come_to_all_processes() -> None:
    """Though there are more micro-batches than structures."""
    loader = replace(_loader(batch_size=4), num_processes=4, accumulate=2)
    assert [sum(map(len, replace(loader, rank=rank).shares(0))) for rank in range(4)] == [1, 1, 1, 1]


def test_a_process_without_structures_counts_zero() -> None:
    share = replace(_loader(drop_last=False), rank=2, num_processes=3).work(2)  # two structures for three processes
    assert share.parts == []
    assert share.counts.tolist() == [0.0, 0.0, 0.0]


def _tensors(prepared: Prepared) -> list[torch.Tensor]:
    parts = (prepared.batch, prepared.batch.built_edges)
    found = [getattr(part, field.name) for part in parts for field in fields(part)]
    return [
        *(tensor for tensor in found if isinstance(tensor, torch.Tensor)),
        prepared.noise,
        prepared.force_input,
        prepared.targets.forces,
    ]


def test_all_threads_work_at_once() -> None:
    """Also where there are more of them than batches to be prepared ahead."""
    together = threading.Barrier(3, timeout=10)

    def work(step: int) -> int:
        together.wait()
        return step

    loader: Any = SimpleNamespace(threads=3, work=work)
    assert list(Loader.prefetch(loader, 0, 3, 1)) == [0, 1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_prefetched_work_is_the_same_from_any_step_and_with_any_number_of_threads(threads: int) -> None:
    loader = _loader()
    all_of_it = list(loader.prefetch(0, 6, 2))
    assert [work.step for work in all_of_it] == [0, 1, 2, 3, 4, 5]
    later = list(replace(loader, threads=threads).prefetch(2, 6, 4))
    for one, other in zip(all_of_it[2:], later, strict=True):
        assert one.step == other.step
        for a, b in zip(_tensors(one.parts[0]), _tensors(other.parts[0]), strict=True):
            assert torch.equal(a, b)


def test_nothing_is_made_far_ahead_nor_after_the_last_is_taken() -> None:
    class Counting(_Water):
        read = 0

        def __getitem__(self, index: int) -> System:
            Counting.read += 1
            return super().__getitem__(index)

    coming = replace(_loader(), mixture=_all(Counting()), threads=2).prefetch(0, 6, 2)
    next(coming)
    coming.close()  # waits for what was begun
    assert 4 <= Counting.read <= 3 * 4 + 2  # each thread may read one for the names of the terms
    before = Counting.read
    assert not any(thread.name.startswith("denskit-loader") for thread in threading.enumerate())
    assert Counting.read == before


def test_counts_are_those_of_the_masks() -> None:
    work = _loader().work(0)
    (part,) = work.parts
    corrupted = int(part.noise_mask.sum())
    counts = dict(zip(_loader().term_names, work.counts.tolist(), strict=True))
    assert counts == {"energy": 4.0, "forces": 12.0 - corrupted, "noise": float(corrupted)}


def test_errors_of_the_thread_come_out_where_the_batch_would_and_name_the_frames() -> None:
    class Collapsed(_Water):
        def __getitem__(self, index: int) -> System:
            system = super().__getitem__(index)
            return replace(system, positions=np.zeros((3, 3))) if index == 5 else system

    loader = replace(_loader(), mixture=_all(Collapsed()))
    with pytest.raises(ValueError, match=r"water, a batch of frames .*105.*at one place"):
        list(loader.prefetch(0, 6, 1))


def test_describe_names_the_frames_of_the_file() -> None:
    loader = replace(_loader(), mixture=_all(Subset(_Water(), np.array([7, 1, 2, 3]), "water (train)")))
    frames = {int(text) for text in loader.describe(0).split("frames ")[1].split(", ")}
    assert frames == {107, 101, 102, 103}
