"""Collating structures, parts of sources, lazy sources."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from denskit.batch import System
from denskit.data.base import Lazy, Subset, collate
from denskit.data.records import joined
from denskit.data.structure_arrays import StructureArrays


def test_collate_concatenates_structures_and_their_labels(systems: dict[str, System]) -> None:
    chosen = [systems["slab"], systems["copper"], systems["water"]]
    batch, targets = collate(chosen, torch.float64)
    sizes = [len(system) for system in chosen]
    assert batch.n_atoms.tolist() == sizes
    assert batch.system_index.tolist() == np.repeat([0, 1, 2], sizes).tolist()
    assert batch.edges is None
    assert batch.denoise.tolist() == [True, True, True]
    for row, (system, begin) in enumerate(zip(chosen, np.cumsum([0, *sizes]), strict=False)):
        atoms = slice(begin, begin + len(system))
        np.testing.assert_array_equal(batch.positions[atoms], system.positions)
        np.testing.assert_array_equal(batch.atomic_numbers[atoms], system.atomic_numbers)
        np.testing.assert_array_equal(batch.fixed[atoms], system.fixed)
        np.testing.assert_array_equal(batch.tags[atoms], system.tags)
        np.testing.assert_array_equal(batch.cell[row], system.cell)
        np.testing.assert_array_equal(batch.pbc[row], system.pbc)
        np.testing.assert_array_equal(targets.forces[atoms], system.forces)
        assert targets.energy[row] == system.energy


def test_collate_keeps_energies_in_float64(systems: dict[str, System]) -> None:
    batch, targets = collate([systems["water"]], torch.float32)
    assert batch.positions.dtype == batch.cell.dtype == targets.forces.dtype == targets.stress.dtype == torch.float32
    assert targets.energy.dtype == torch.float64


def test_collate_masks_absent_labels(systems: dict[str, System]) -> None:
    water = systems["water"]
    bare = System(
        positions=water.positions,
        atomic_numbers=water.atomic_numbers,
        cell=water.cell,
        pbc=water.pbc,
        fixed=water.fixed,
        tags=water.tags,
        denoise=False,
    )
    batch, targets = collate([bare, water, systems["copper"]])
    assert targets.energy_mask.tolist() == [False, True, True]
    assert targets.forces_mask.tolist() == [False] * 3 + [True] * 7
    assert targets.stress_mask.tolist() == [False, False, True]
    assert targets.energy[0] == 0
    assert (targets.forces[:3] == 0).all()
    assert batch.denoise.tolist() == [False, True, True]


def test_collate_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="at least one structure"):
        collate([])


def test_frames_give_back_what_was_packed(systems: dict[str, System]) -> None:
    packed = StructureArrays.from_systems(systems.values(), name="here")
    assert len(packed) == len(systems)
    for index, system in enumerate(systems.values()):
        again = packed[index]
        for name in ("positions", "atomic_numbers", "cell", "pbc", "fixed", "tags", "forces"):
            np.testing.assert_array_equal(getattr(again, name), getattr(system, name))
        assert (again.energy, again.group, again.index) == (system.energy, system.group, index)
        assert (again.stress is None) == (system.stress is None)


def test_subset_keeps_the_position_in_the_whole_source(systems: dict[str, System]) -> None:
    packed = StructureArrays.from_systems(systems.values(), name="here")
    part = Subset(packed, np.array([4, 1]), "part")
    assert [system.index for system in part] == [4, 1]
    assert len(part) == 2


def test_every_source_iterates_over_a_range_of_itself(systems: dict[str, System]) -> None:
    packed = StructureArrays.from_systems(systems.values(), name="here")
    part = Subset(packed, np.array([4, 1, 0]), "part")
    both = joined([part, packed])
    assert both.name == "part, here" and len(both) == 3 + len(packed)
    assert both.sizes is not None and both.sizes.tolist() == [len(system) for system in both]
    for source in (packed, part, Lazy("lazy", lambda: packed), both):
        for begin, end in ((0, None), (1, 3), (2, 2), (2, len(source))):
            found = [system.positions for system in source.iterate(begin, end)]
            wanted = [source[index].positions for index in range(begin, len(source) if end is None else end)]
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
    assert [system.index for system in both.iterate(1, 5)] == [1, 2, 3, 4]
    assert part.in_file_order().indices.tolist() == [0, 1, 4]


def test_lazy_opens_once_and_only_when_used(systems: dict[str, System]) -> None:
    opened = []

    def open_source() -> StructureArrays:
        opened.append(1)
        return StructureArrays.from_systems([systems["water"]], name="here")

    source = Lazy("here", open_source)
    assert opened == []
    assert len(source) == 1
    assert len(source[0]) == 3
    assert opened == [1]
