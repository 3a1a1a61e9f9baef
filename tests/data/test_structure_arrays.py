"""The checks that every file goes through."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import ase
import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list

from denskit.batch import System
from denskit.data.base import collate
from denskit.data.structure_arrays import StructureArrays, close_pair
from denskit.geometry.lattice import SAME_PLACE
from denskit.geometry.neighbors import build_neighbors


def _many(system: System, count: int) -> StructureArrays:
    return StructureArrays.from_systems([replace(system, index=index) for index in range(count)], name="mine.npz")


def _with(frames: StructureArrays, name: str, where: object, value: float) -> StructureArrays:
    array = getattr(frames, name).copy()
    array[where] = value
    return replace(frames, **{name: array})


def _alone(frames: StructureArrays, label: str, indices: list[int]) -> StructureArrays:
    """The label taken from some frames."""
    has = frames.has[label].copy()
    has[indices] = False
    return replace(frames, has={**frames.has, label: has})


def test_good_frames_pass_unchanged(systems: dict[str, System]) -> None:
    frames = StructureArrays.from_systems(systems.values(), name="all")
    checked, messages = frames.checked(required=("energy", "forces"), missing="error")
    assert messages == []
    np.testing.assert_array_equal(checked.forces, frames.forces)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("label", "where"), [("energy", 3), ("forces", (3 * 9 + 2, 1)), ("stress", (3, 0, 0))])
def test_labels_that_are_not_finite(systems: dict[str, System], label: str, where: object, value: float) -> None:
    ethanol = replace(systems["ethanol"], stress=np.eye(3))
    frames = _with(_many(ethanol, 5), label, where, value)
    with pytest.raises(ValueError, match=rf"mine.npz: {label} is NaN or infinite in frame 3.*data.missing=mask"):
        frames.checked(required=(), missing="error")
    masked, messages = frames.checked(required=("energy", "forces"), missing="mask")
    assert np.flatnonzero(~masked.has[label]).tolist() == [3]
    assert getattr(masked[3], label) is None
    assert getattr(masked[2], label) is not None
    assert f"{label} is NaN or infinite in frame 3" in messages[0]


def test_frames_without_weighted_labels(systems: dict[str, System]) -> None:
    frames = replace(_alone(_many(systems["water"], 5), "forces", [1, 4]), keys=("energy", "note"))
    with pytest.raises(ValueError, match=r"2 of 5 frames have no forces: frames 1, 4 .*: energy, note. .*data.missing"):
        frames.checked(required=("energy", "forces"), missing="error")
    frames.checked(required=("energy",), missing="error")  # nobody weights forces
    masked, messages = frames.checked(required=("energy", "forces"), missing="mask")
    assert masked[1].forces is None
    assert "2 of 5 frames have no forces" in messages[0]


def test_a_label_that_no_frame_has_cannot_be_masked(systems: dict[str, System]) -> None:
    frames = _alone(_many(systems["water"], 2), "forces", [0, 1])
    with pytest.raises(ValueError, match=r"no frame has forces.*data.forces_key=KEY.*task.forces_weight=0 training.b"):
        frames.checked(required=("forces",), missing="mask")


@pytest.mark.parametrize("name", ["ethanol", "copper", "slab", "triclinic"])
def test_two_atoms_at_one_place(systems: dict[str, System], name: str) -> None:
    system = systems[name]
    positions = system.positions.copy()
    positions[1] = positions[0] + [3e-5, -2e-5, 1e-5]
    bad = replace(system, positions=positions)
    frames = StructureArrays.from_systems([system, bad, system], name="mine.npz")
    with pytest.raises(ValueError, match=r"mine.npz: atoms \d and \d of frame 1 .* are at one place"):
        frames.checked(required=(), missing="mask")
    positions[1] = positions[0] + [3e-4, -2e-4, 1e-4]
    StructureArrays.from_systems([replace(system, positions=positions)], name="mine.npz").checked(
        required=(), missing="mask"
    )


def test_one_distance_is_one_place_in_data_and_in_the_search_of_neighbours(systems: dict[str, System]) -> None:
    system = systems["ethanol"]
    for apart, refused in ((0.5 * SAME_PLACE, True), (2 * SAME_PLACE, False)):
        positions = system.positions.copy()
        positions[1] = positions[0] + [apart, 0, 0]
        near = replace(system, positions=positions)
        batch, _ = collate([near], torch.float64)
        with pytest.raises(ValueError, match=f"at one place.*{SAME_PLACE} Å") if refused else nullcontext():
            StructureArrays.from_systems([near], name="x").checked(required=(), missing="mask")
        with pytest.raises(ValueError, match=f"at one place.*{SAME_PLACE} Å") if refused else nullcontext():
            build_neighbors(batch, 5.0)


def test_an_atom_on_the_image_of_another(systems: dict[str, System]) -> None:
    for name, shift in (("triclinic", [1, -2, 1]), ("copper", [0, 0, 1]), ("slab", [-1, 3, 0])):
        system = systems[name]
        positions = system.positions.copy()
        positions[1] = positions[0] + np.array(shift) @ system.cell + 2e-5
        with pytest.raises(ValueError, match="at one place"):
            StructureArrays.from_systems([replace(system, positions=positions)], name="x").checked(
                required=(), missing="error"
            )
    slab = systems["slab"]  # not periodic along z: there an image is no neighbour
    tall = replace(slab, cell=slab.cell + np.diag([0.0, 0.0, 40.0]))
    positions = tall.positions.copy()
    positions[1] = positions[0] + tall.cell[2]
    StructureArrays.from_systems([replace(tall, positions=positions)], name="x").checked(required=(), missing="error")


def test_bad_geometry(systems: dict[str, System]) -> None:
    frames = _many(systems["water"], 4)
    with pytest.raises(ValueError, match="positions or cell are NaN or infinite in frame 2"):
        _with(frames, "positions", (7, 0), np.nan).checked(required=(), missing="mask")
    with pytest.raises(ValueError, match="atomic numbers outside 1 to 118 in frame 1"):
        _with(frames, "atomic_numbers", 4, 0).checked(required=(), missing="mask")
    with pytest.raises(
        ValueError, match="cell vectors are zero or linearly dependent in frames 0, 1, 2, 3.*Lattice.*pbc="
    ):
        replace(frames, pbc=np.ones((4, 3), dtype=bool)).checked(required=(), missing="mask")
    nothing = replace(systems["water"], positions=np.zeros((0, 3)), atomic_numbers=np.zeros(0, dtype=np.int64),
                      fixed=np.zeros(0, dtype=bool), tags=np.zeros(0, dtype=np.int64), forces=None)  # fmt: skip
    with pytest.raises(ValueError, match="no atoms in frame 1"):
        StructureArrays.from_systems([systems["water"], nothing], name="x").checked(required=(), missing="mask")


def test_no_frames() -> None:
    with pytest.raises(ValueError, match="mine.npz has no frames"):
        StructureArrays.from_systems([], name="mine.npz")


@pytest.mark.parametrize("seed", range(12))
def test_close_pairs_are_those_of_a_search_of_neighbours(seed: int) -> None:
    """In cells of every shape and periodicity, long and thin ones too."""
    generator = np.random.default_rng(seed)
    cell = np.diag(generator.uniform(3.0, 30.0, 3)) @ (np.eye(3) + generator.uniform(-0.4, 0.4, (3, 3)))
    pbc = generator.random(3) < 0.6
    atoms = ase.Atoms("H40", scaled_positions=generator.uniform(-0.5, 1.0, (40, 3)), cell=cell, pbc=pbc)
    one, other, apart = neighbor_list("ijd", atoms, 6.0)
    distances = np.sort(apart[one != other])
    for within in (0.9 * distances[0], 1.1 * distances[0], distances[len(distances) // 2]):
        pair = close_pair(atoms.positions, np.array(cell), pbc, within=min(within, 1.2))
        assert (pair is not None) == (distances[0] < min(within, 1.2))
        assert pair is None or set(pair) in [{i, j} for i, j, d in zip(one, other, apart, strict=True) if d < within]
