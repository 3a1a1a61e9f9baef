"""Neighbour lists against ASE's, their limits, their errors, and the dense list against the cell list."""

from __future__ import annotations

from dataclasses import replace

import ase
import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list
from hypothesis import given, settings
from hypothesis import strategies as st

from denskit.batch import Batch, System
from denskit.geometry import neighbors
from denskit.geometry.neighbors import build_neighbors
from denskit.simulation.structures import batch_of

from tolerances import EXACT64, ORACLE64

Edge = tuple[int, ...]  # source, target, shift


def make_batch(*structures: ase.Atoms, dtype: torch.dtype = torch.float64) -> Batch:
    """The structures one after the other."""
    return batch_of(structures).to(dtype=dtype)


def as_atoms(system: System) -> ase.Atoms:
    return ase.Atoms(numbers=system.atomic_numbers, positions=system.positions, cell=system.cell, pbc=system.pbc)


def cluster(n: int, seed: int, width: float = 5.0) -> ase.Atoms:
    """Random atoms without periodicity."""
    return ase.Atoms(numbers=[1] * n, positions=np.random.default_rng(seed).uniform(0, width, size=(n, 3)))


def edge_list(batch: Batch) -> list[Edge]:
    """Real edges in the order of the batch."""
    edges = batch.built_edges
    rows = torch.cat([edges.index.T, edges.shift], dim=1)
    real = slice(None) if edges.mask is None else edges.mask
    return [tuple(row) for row in rows[real].tolist()]


def ase_edges(atoms: ase.Atoms, cutoff: float) -> list[Edge]:
    target, source, shift = neighbor_list("ijS", atoms, cutoff)
    return sorted(zip(source.tolist(), target.tolist(), *shift.T.tolist(), strict=True))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 6),
    pbc=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    zero_rows=st.booleans(),
    cutoff=st.floats(1.0, 6.0),
)
def test_equals_ase(seed: int, n: int, pbc: tuple[bool, bool, bool], zero_rows: bool, cutoff: float) -> None:
    """Triclinic cells about as large as the cutoff or smaller, any periodicity, atoms far outside the cell."""
    generator = np.random.default_rng(seed)
    cell = 3.0 * np.eye(3) + generator.uniform(-1, 1, size=(3, 3))
    if zero_rows:
        cell[~np.array(pbc)] = 0.0
    atoms = ase.Atoms(numbers=[1] * n, positions=generator.uniform(-10, 10, size=(n, 3)), cell=cell, pbc=pbc)
    batch = build_neighbors(make_batch(atoms), cutoff)
    assert sorted(edge_list(batch)) == ase_edges(atoms, cutoff)


def test_vectors_and_order(systems: dict[str, System]) -> None:
    """The vector points from target to source within the cutoff; edges are sorted by target, source, shift."""
    atoms = as_atoms(systems["triclinic"])
    batch = build_neighbors(make_batch(atoms), 5.0)
    target, source, shift, vector = neighbor_list("ijSD", atoms, 5.0)
    order = np.lexsort((*shift.T[::-1], source, target))
    assert edge_list(batch) == [(source[k], target[k], *shift[k]) for k in order]
    np.testing.assert_allclose(batch.edge_vectors().numpy(), vector[order], atol=5.0 * EXACT64)


def test_self_images() -> None:
    """One atom in a cubic cell of 2 Å sees its 6 + 12 + 8 images below 3.5 Å, and itself never."""
    batch = build_neighbors(make_batch(ase.Atoms("H", cell=[2, 2, 2], pbc=True)), 3.5)
    edges = edge_list(batch)
    assert len(edges) == 26
    assert (0, 0, 0, 0, 0) not in edges


def test_batch_of_two_is_two_of_one(systems: dict[str, System]) -> None:
    slab, ethanol = as_atoms(systems["slab"]), as_atoms(systems["ethanol"])
    n = len(slab)
    together = edge_list(build_neighbors(make_batch(slab, ethanol), 5.0))
    apart = [edge_list(build_neighbors(make_batch(atoms), 5.0)) for atoms in (slab, ethanol)]
    assert together == apart[0] + [(j + n, i + n, *shift) for j, i, *shift in apart[1]]


def test_no_edges_at_all() -> None:
    batch = build_neighbors(make_batch(ase.Atoms("H"), ase.Atoms("H", positions=[[0.0, 0.0, 1.0]])), 5.0)
    assert batch.edges.index.shape == (2, 0) and batch.edges.index.dtype == torch.int64
    assert batch.edges.shift.shape == (0, 3)
    assert batch.edges.mask is None
    assert batch.edge_vectors().shape == (0, 3)


def distances_by_target(batch: Batch) -> list[np.ndarray]:
    distance = batch.edge_vectors().norm(dim=1).numpy()
    target = batch.built_edges.index[1].numpy()
    return [np.sort(distance[target == i]) for i in range(batch.num_atoms)]


@pytest.mark.parametrize("k", [1, 4, 9, 200])
def test_max_neighbors(systems: dict[str, System], k: int) -> None:
    """Against every target's sorted distances: the k nearest, or those up to the (k+1)-th with OC20's tolerance."""
    batch = make_batch(as_atoms(systems["slab"]), as_atoms(systems["ethanol"]), as_atoms(systems["copper"]))
    everything = build_neighbors(batch, 5.0)
    strict = build_neighbors(batch, 5.0, max_neighbors=k)
    loose = build_neighbors(batch, 5.0, max_neighbors=k, strict=False)
    assert min(len(d) for d in distances_by_target(everything)) > 4
    for all_, nearest, near in zip(*map(distances_by_target, (everything, strict, loose)), strict=True):
        np.testing.assert_allclose(nearest, all_[:k], rtol=EXACT64)
        expected = all_ if len(all_) <= k else all_[all_**2 <= all_[k] ** 2 + 0.01]
        np.testing.assert_allclose(near, expected, rtol=EXACT64)
    assert set(edge_list(strict)) <= set(edge_list(loose)) <= set(edge_list(everything))
    place = {edge: number for number, edge in enumerate(edge_list(everything))}
    positions_in_full = [place[edge] for edge in edge_list(loose)]
    assert positions_in_full == sorted(positions_in_full)


def published_edges(atoms: ase.Atoms, cutoff: float, k: int, strict: bool) -> list[list[tuple[float, Edge]]]:
    """By brute force over all images, target by target: what OC20's and OC22's models look at, (d^2, edge).

    Strict: the k nearest.  Else all with d^2 <= that of the (k + 1)-th + 0.01 Å^2.
    """
    heights = 1 / np.linalg.norm(np.linalg.inv(atoms.cell.array), axis=0)  # distances of the cell's faces
    reach = np.ceil(cutoff / heights).astype(int) + 1
    shifts = np.stack(np.meshgrid(*(np.arange(-r, r + 1) for r in reach), indexing="ij"), -1).reshape(-1, 3)
    found = []
    for i, centre in enumerate(atoms.positions):
        vectors = atoms.positions[None] + (shifts @ atoms.cell.array)[:, None] - centre  # [S, n, 3]
        squared = (vectors**2).sum(-1)
        places = np.argwhere((squared < cutoff**2) & (squared > 1e-4))
        edges = sorted((squared[s, j], (int(j), i, *shifts[s].tolist())) for s, j in places)
        if strict or len(edges) <= k:
            found.append(edges[:k])
        else:
            found.append([edge for edge in edges if edge[0] <= edges[k][0] + 0.01])
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), k=st.sampled_from([1, 3, 20]), gap=st.sampled_from([0.0, 8.0]))
def test_nearest_neighbours_as_published(seed: int, n: int, k: int, gap: float) -> None:
    """Random cells, with and without a vacuum of many Å, so that the search has to grow for some atoms."""
    generator = np.random.default_rng(seed)
    cell = 3.0 * np.eye(3) + generator.uniform(-1, 1, size=(3, 3))
    cell[2, 2] += gap
    positions = generator.uniform(0, 1, size=(n, 3)) @ cell * [1, 1, 0.4 if gap else 1] + generator.uniform(-9, 9, 3)
    atoms = ase.Atoms(numbers=[1] * n, positions=positions, cell=cell, pbc=True)
    same_neighbors(atoms, 7.5, k)


def same_neighbors(atoms: ase.Atoms, cutoff: float, k: int) -> None:
    """The same edges as by brute force; strict, of equally distant ones (an atom's images come in pairs) any may go."""
    for strict in (True, False):
        kept = edge_list(build_neighbors(make_batch(atoms), cutoff, max_neighbors=k, strict=strict))
        assert len(set(kept)) == len(kept)
        for i, expected in enumerate(published_edges(atoms, cutoff, k, strict)):
            mine = [edge for edge in kept if edge[1] == i]
            if strict:
                places = [atoms.positions[j] + np.array(shift) @ atoms.cell.array for j, _, *shift in mine]
                squared = sorted(((place - atoms.positions[i]) ** 2).sum() for place in places)
                np.testing.assert_allclose(squared, [square for square, _ in expected], rtol=ORACLE64)
            else:
                assert sorted(mine) == sorted(edge for _, edge in expected)


@pytest.mark.parametrize("k", [1, 6, 12, 13, 18, 20])
def test_shells_of_a_crystal(k: int) -> None:
    """Copper: 12 at a / sqrt(2), 6 at a, 24 at ...; strict cuts a shell, else the (k + 1)-th's is whole."""
    atoms = ase.Atoms("Cu", cell=3.6 * np.array([[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]), pbc=True)
    shells = np.cumsum([12, 6, 24])
    assert len(edge_list(build_neighbors(make_batch(atoms), 12.0, max_neighbors=k))) == k
    loose = edge_list(build_neighbors(make_batch(atoms), 12.0, max_neighbors=k, strict=False))
    assert len(loose) == shells[np.searchsorted(shells, k + 1)]
    assert len(loose) == len(published_edges(atoms, 12.0, k, strict=False)[0])


def line(*places: float) -> ase.Atoms:
    return ase.Atoms(numbers=[1] * len(places), positions=[[x, 0.0, 0.0] for x in places])


def test_the_tolerance_is_of_squares_and_of_the_next_neighbour() -> None:
    """Atom 0 sees 1.0, 2.0 and one a little farther, which is in while d^2 <= 4 + 0.01, whatever k = 1 would say."""
    for third, count in ((2.0024, 3), (2.0026, 2), (2.1, 2)):
        edges = edge_list(build_neighbors(make_batch(line(0.0, 1.0, -2.0, third)), 9.0, max_neighbors=1, strict=False))
        assert sum(edge[1] == 0 for edge in edges) == count


def test_the_search_grows_for_atoms_far_from_all_others() -> None:
    """Atoms around 7, 9 and 11 Å away from a cluster: the first radius holds none of their neighbours."""
    crowd = np.random.default_rng(1).uniform(-2, 2, size=(40, 3))
    for distance in (7.0, 9.3, 11.9, 14.5):
        positions = np.concatenate([crowd, [[0.0, 0.0, distance]]])
        atoms = ase.Atoms(numbers=[1] * 41, positions=positions, cell=[60, 60, 60], pbc=True)
        same_neighbors(atoms, 12.0, 20)


def test_ties_are_cut_the_same_way_every_time() -> None:
    """Six equal distances, four kept: the first by source and shift."""
    batch = make_batch(ase.Atoms("H", cell=[2, 2, 2], pbc=True))
    kept = edge_list(build_neighbors(batch, 2.5, max_neighbors=4))
    assert kept == edge_list(build_neighbors(batch, 2.5))[:4]
    assert len(edge_list(build_neighbors(batch, 2.5, max_neighbors=4, strict=False))) == 6


@pytest.mark.parametrize(
    ("cell", "pbc"),
    [
        (np.zeros((3, 3)), [True, True, True]),
        (np.diag([5.0, 5.0, 0.0]), [False, False, True]),
        ([[5, 0, 0], [0, 5, 0], [5, 5, 1e-7]], [True, True, True]),
        ([[5, 0, 0], [5, 1e-7, 0], [0, 0, 5]], [True, True, False]),
    ],
)
def test_flat_cells_are_refused(cell: object, pbc: list[bool]) -> None:
    flat = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]], cell=cell, pbc=pbc)
    with pytest.raises(ValueError, match=r"System 1 of the batch: periodic along .* no volume"):
        build_neighbors(make_batch(cluster(2, seed=0), flat), 5.0)


def test_flat_rows_without_periodicity_are_fine() -> None:
    """The third row lies in the plane of the others, but nothing repeats along it."""
    atoms = ase.Atoms("H2", positions=[[0, 0, 0], [0, 1, 1]], cell=[[3, 0, 0], [1, 3, 0], [4, 3, 0]], pbc=[1, 1, 0])
    proper = ase.Atoms("H2", positions=atoms.positions, cell=[[3, 0, 0], [1, 3, 0], [0, 0, 9]], pbc=[1, 1, 0])
    assert edge_list(build_neighbors(make_batch(atoms), 5.0)) == edge_list(build_neighbors(make_batch(proper), 5.0))


def test_two_atoms_at_one_place() -> None:
    double = cluster(4, seed=0)
    double.positions[3] = double.positions[1] + 1e-6
    with pytest.raises(ValueError, match=r"System 1 .* atoms 1 and 3 are at one place \(1.7e-06 Å.*counted from 0"):
        build_neighbors(make_batch(cluster(2, seed=1), double), 5.0)
    image = ase.Atoms("H2", positions=[[0, 0, 0], [4, 0, 0]], cell=[4, 4, 4], pbc=True)
    with pytest.raises(ValueError, match=r"System 0 .* atoms 0 and 1 are at one place"):
        build_neighbors(make_batch(image), 5.0)


@pytest.mark.parametrize(
    ("x", "message"), [(np.nan, "atom 1 is at .*counted from 0"), (1e300, "atom 1 is at"), (1e7, "flown apart")]
)
@pytest.mark.parametrize("pbc", [(False, False, False), (True, True, False)])
def test_positions_that_would_kill_the_process(x: float, message: str, pbc: tuple[bool, bool, bool]) -> None:
    atoms = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, x]], cell=np.diag([4.0, 4.0, 0.0]), pbc=pbc)
    with pytest.raises(ValueError, match=message):
        build_neighbors(make_batch(atoms), 5.0)


def test_cells_that_would_kill_the_process() -> None:
    plate = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]], cell=[3, 1e4, 1e4], pbc=True)
    with pytest.raises(ValueError, match=r"System 0 of the batch: .* its cell is huge: 1e\+04 Å"):
        build_neighbors(make_batch(plate), 5.0)


def test_nonsense_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_neighbors is 0"):
        build_neighbors(make_batch(cluster(2, seed=0)), 5.0, max_neighbors=0)


def test_replaces_older_edges() -> None:
    """Edges of earlier positions leave no trace: what a task relies on after corrupting a batch."""
    batch = make_batch(cluster(6, seed=0))
    old = build_neighbors(batch, 3.0)
    moved = replace(old, positions=old.positions * 1.5)
    assert edge_list(build_neighbors(moved, 3.0)) == edge_list(
        build_neighbors(replace(batch, positions=moved.positions), 3.0)
    )
    assert edge_list(build_neighbors(moved, 3.0)) != edge_list(old)


@pytest.mark.parametrize(("limit", "strict"), [(None, True), (4, True), (4, False)])
def test_few_atoms_have_the_edges_of_a_search(limit: int | None, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    molecules = [ase.Atoms(f"C{n}", generator.uniform(-3, 3, (n, 3)) + 40) for n in (1, 2, 9, 40)]
    grid = ase.Atoms("C27", np.stack(np.meshgrid(*3 * [[0.0, 1.5, 3.0]]), -1).reshape(-1, 3))  # equal distances
    batch = batch_of([*molecules, grid])
    found = build_neighbors(batch, 3.0, max_neighbors=limit, strict=strict).built_edges
    monkeypatch.setattr(neighbors, "FEW_ATOMS", 0)
    expected = build_neighbors(batch, 3.0, max_neighbors=limit, strict=strict).built_edges
    assert torch.equal(found.index, expected.index) and torch.equal(found.shift, expected.shift)
    assert found.index.shape[1] > 100
