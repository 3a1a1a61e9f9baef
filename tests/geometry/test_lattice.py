"""Neighbours in skewed cells: against ASE's, and against ASE's in a compact cell of the same lattice."""

from __future__ import annotations

import itertools

import ase
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from denskit.geometry.lattice import short_basis
from denskit.geometry.neighbors import build_neighbors, nearest_distance
from geometry.test_neighbors import Edge, ase_edges, edge_list, make_batch

from tolerances import EXACT64, ORACLE64

Pbc = tuple[bool, bool, bool]
PERIODIC = st.tuples(st.booleans(), st.booleans(), st.booleans())


def shears(seed: int, pbc: Pbc, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers [3, 3] that make other lattice vectors of a cell's, along periodic directions, and their inverse."""
    generator = np.random.default_rng(seed)
    there, back = np.eye(3, dtype=np.int64), np.eye(3, dtype=np.int64)
    periodic = np.flatnonzero(pbc)
    for _ in range(count if len(periodic) > 1 else 0):
        one, other = generator.choice(periodic, size=2, replace=False)
        shear = np.eye(3, dtype=np.int64)
        shear[one, other] = generator.integers(-size, size + 1)
        there, back = shear @ there, back @ (2 * np.eye(3, dtype=np.int64) - shear)
    if len(periodic) and generator.random() < 0.5:  # left-handed
        flip = np.eye(3, dtype=np.int64)
        flip[periodic[0], periodic[0]] = -1
        there, back = flip @ there, back @ flip
    return there, back


def resolved(there: np.ndarray, back: np.ndarray) -> bool:
    """Whether float64 tells where the points of a skewed cell's lattice lie, to 10^-9 Å."""
    return (np.abs(back) @ np.abs(there)).max() < 1e5


def compact(seed: int, n: int, pbc: Pbc, height: float) -> ase.Atoms:
    generator = np.random.default_rng(seed)
    cell = np.diag([3.0, 3.0, height]) + generator.uniform(-0.7, 0.7, size=(3, 3))
    return ase.Atoms(numbers=[1] * n, positions=generator.uniform(-10, 10, size=(n, 3)), cell=cell, pbc=pbc)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 4), pbc=PERIODIC, cutoff=st.floats(1.0, 5.0))
def test_skewed_cells_equal_ase(seed: int, n: int, pbc: Pbc, cutoff: float) -> None:
    atoms = compact(seed, n, pbc, 3.0)
    atoms.set_cell(shears(seed, pbc, 2, 2)[0] @ atoms.cell.array)
    assert sorted(edge_list(build_neighbors(make_batch(atoms), cutoff))) == ase_edges(atoms, cutoff)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 4),
    pbc=PERIODIC,
    size=st.sampled_from([3, 30, 300]),
    count=st.integers(1, 3),
    far=st.sampled_from([0, 100, 3 * 10**6]),
    height=st.sampled_from([3.0, 20.0]),
)
def test_cells_of_one_lattice_have_the_same_neighbors(
    seed: int, n: int, pbc: Pbc, size: int, count: int, far: int, height: float
) -> None:
    """Skewed as one likes, atoms millions of cells outside: ASE's edges in the compact cell, shifts converted."""
    atoms = compact(seed, n, pbc, height)
    there, back = shears(seed, pbc, size, count)
    assume(resolved(there, back))
    outside = np.random.default_rng(seed).integers(-far, far + 1, size=(n, 3)) * np.array(pbc)
    skewed = atoms.copy()
    skewed.positions += outside @ atoms.cell.array
    skewed.set_cell(there @ atoms.cell.array)
    expected: list[Edge] = []
    for source, target, *shift in ase_edges(atoms, 4.0):
        moved = np.array(shift) - outside[source] + outside[target]
        expected.append((source, target, *(moved @ back).tolist()))
    assert sorted(edge_list(build_neighbors(make_batch(skewed), 4.0))) == sorted(expected)


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 3), size=st.sampled_from([1, 10, 1000]), count=st.integers(0, 6))
def test_the_short_basis_is_one_and_is_short(seed: int, k: int, size: int, count: int) -> None:
    """Integers of determinant ±1 make it; no sum of its vectors is shorter than the longest vector in the sum."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(k, 3)) * generator.uniform(0.5, 5.0, size=(k, 1))
    periodic: Pbc = (True, k > 1, k > 2)
    there, back = shears(seed, periodic, size, count)
    assume(resolved(there, back))
    rows = there[:k, :k] @ rows
    basis, change = short_basis(rows)
    if change is None:
        assert basis is rows
        change = np.eye(k, dtype=np.int64)
    else:
        lengths = np.linalg.norm(basis, axis=1)
        for sums in itertools.product((-1, 0, 1), repeat=k):
            longest = max((length for length, times in zip(lengths, sums, strict=True) if times), default=0.0)
            assert np.linalg.norm(np.array(sums) @ basis) >= (1 - 1e-7) * longest
    assert abs(round(np.linalg.det(change.astype(float)))) == 1
    np.testing.assert_allclose(basis, change @ rows, atol=EXACT64 * (np.abs(change) @ np.abs(rows)).max())


def test_flat_skewed_cell() -> None:
    """(2, 2, 0.001) is a diagonal and 0.001 Å more: planes 0.001 Å apart, found as in a cell that says so."""
    skewed = ase.Atoms("H", cell=[[2, 0, 0], [0, 2, 0], [2, 2, 1e-3]], pbc=True)
    plain = ase.Atoms("H", cell=[[2, 0, 0], [0, 2, 0], [0, 0, 1e-3]], pbc=True)
    edges = edge_list(build_neighbors(make_batch(plain), 1.5))
    assert len(edges) == 2998
    expected = sorted((0, 0, x - z, y - z, z) for _, _, x, y, z in edges)
    assert sorted(edge_list(build_neighbors(make_batch(skewed), 1.5))) == expected


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), pbc=PERIODIC)
def test_nearest_distance(seed: int, n: int, pbc: Pbc) -> None:
    atoms = compact(seed, n, pbc, 3.0)
    atoms.set_cell(shears(seed, pbc, 2, 2)[0] @ atoms.cell.array)
    batch = build_neighbors(make_batch(atoms), 5.0)
    expected = float(batch.edge_vectors().norm(dim=1).min()) if batch.edge_vectors().numel() else np.inf
    found = nearest_distance(
        atoms.positions, atoms.cell.array, np.array(pbc), radius=5.0, cutoff=5.0, name="this structure"
    )
    assert found == pytest.approx(expected, rel=ORACLE64)
