"""Ridge regression of element energies: closed forms against plain refits, and real crystals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from denskit.data.loading import read_file
from denskit.models.reference_fit import fit_references

from tolerances import EXACT64


def _random(structures: int, elements: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Counts [B, K] of a few elements each, some compositions several times, and their energies."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, size=(structures, elements)) * (rng.random((structures, elements)) < 0.5)
    counts[:, 0] += 1
    counts = np.concatenate([counts, counts[: structures // 3], 2 * counts[:3]]).astype(float)
    energies = counts @ rng.normal(-6, 3, size=elements)
    return counts, energies + noise * rng.normal(size=len(counts)) * counts.sum(axis=1)


def _ridge(counts: np.ndarray, energies: np.ndarray, strength: float) -> np.ndarray:
    """The references in the equation of the module, by solving for slopes and intercept."""
    atoms = counts.sum(axis=1)
    shares, energy = counts / atoms[:, None], energies / atoms
    design = np.concatenate([shares, np.ones((len(shares), 1))], axis=1)
    penalty = np.diag([*[strength] * shares.shape[1], 0.0])
    solution = np.linalg.lstsq(design.T @ design + penalty, design.T @ energy, rcond=None)[0]
    return solution[:-1] + solution[-1]


def _largest_variance(counts: np.ndarray) -> float:
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.linalg.norm(shares - shares.mean(axis=0), ord=2) ** 2)


def _left_out(counts: np.ndarray, energies: np.ndarray, strength: float, *, whole: bool) -> float:
    """Root mean square error per atom of each structure from a refit without it, or without all of its composition.

    Whole compositions are left out where the others have their elements.
    """
    atoms = counts.sum(axis=1)
    shares, errors = counts / atoms[:, None], []
    for row in range(len(counts)):
        kept = ~np.isclose(shares, shares[row]).all(axis=1) if whole else np.arange(len(counts)) != row
        if whole and (counts[row][~counts[kept].any(axis=0)] > 0).any():
            continue
        errors.append((energies[row] - counts[row] @ _ridge(counts[kept], energies[kept], strength)) / atoms[row])
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.mark.parametrize(("structures", "elements"), [(12, 3), (8, 12)])
def test_closed_forms_are_those_of_refits(structures: int, elements: int) -> None:
    counts, energies = _random(structures, elements, noise=0.3)
    fit = fit_references(counts, energies)
    strength = fit.strength * _largest_variance(counts)
    np.testing.assert_allclose(fit.references, _ridge(counts, energies, strength), atol=1e-6)
    residuals = (energies - counts @ fit.references) / counts.sum(axis=1)
    assert fit.error == pytest.approx(np.sqrt((residuals**2).mean()))
    assert residuals.mean() == pytest.approx(0, abs=1e-12)
    assert fit.error_left_out == pytest.approx(_left_out(counts, energies, strength, whole=False), rel=1e-6)
    assert fit.error_new_composition == pytest.approx(_left_out(counts, energies, strength, whole=True), rel=1e-6)
    assert fit.compositions == len(np.unique(counts / counts.sum(axis=1, keepdims=True), axis=0)) < len(counts)
    others = [strength * factor for factor in (1e-2, 0.3, 3, 1e2)]
    assert all(_left_out(counts, energies, other, whole=False) > fit.error_left_out for other in others)


def test_without_noise_it_is_least_squares() -> None:
    counts, energies = _random(20, 5, noise=0.0)
    fit = fit_references(counts, energies)
    np.testing.assert_allclose(fit.references, np.linalg.lstsq(counts, energies, rcond=None)[0], atol=1e-9)
    assert fit.determined.all()


def test_the_common_mean_is_not_shrunk() -> None:
    """A constant per atom moves all references by itself."""
    counts, energies = _random(8, 12, noise=0.5)
    moved = fit_references(counts, energies - 1000 * counts.sum(axis=1)).references
    np.testing.assert_allclose(moved, fit_references(counts, energies).references - 1000, atol=1e-6)


def test_what_compositions_do_not_tell_apart() -> None:
    """Na and Cl come only as NaCl: together they are known, alone not; nor is Xe, which only comes with He."""
    counts = np.array(
        [[1, 1, 0, 0, 0], [2, 2, 1, 0, 0], [0, 0, 4, 0, 0], [0, 0, 2, 1, 1], [1, 1, 3, 2, 2]], dtype=float
    )
    exact = counts @ np.array([-1.0, -3.0, -5.0, -0.5, -0.5])
    fit = fit_references(counts, exact)
    assert fit.determined.tolist() == [False, False, True, False, False]
    np.testing.assert_allclose(fit.references, [-2, -2, -5, -0.5, -0.5], atol=1e-9)


@pytest.mark.parametrize(("counts", "error"), [([[6, 2, 1]], 0.0), ([[6, 2, 1]] * 3, 1 / 9 * np.sqrt(2 / 3))])
def test_one_composition_gives_all_elements_its_mean(counts: list[list[int]], error: float) -> None:
    energies = -4212.0 + np.arange(len(counts))
    fit = fit_references(np.array(counts, dtype=float), energies)
    np.testing.assert_allclose(fit.references, energies.mean() / 9, rtol=EXACT64)
    assert not fit.determined.any()
    assert fit.error == pytest.approx(error, abs=1e-12)
    assert np.isnan(fit.error_new_composition)


def test_two_compositions_are_met_exactly() -> None:
    """Leaving one of two out says nothing about the strength: the weakest is taken."""
    counts, energies = np.array([[4.0, 1, 0], [2, 0, 1]]), np.array([-1080.5, -2068.25])
    fit = fit_references(counts, energies)
    np.testing.assert_allclose(counts @ fit.references, energies, atol=1e-6)


def _minimum_norm(counts: np.ndarray, energies: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(counts, energies, rcond=1e-10)[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_crystals_that_were_not_fitted(data_dir: Path, seed: int) -> None:
    """134 crystals of MPtrj determine 70 elements badly: the ridge predicts the others better, as it says itself."""
    frames, _ = read_file(data_dir / "mptrj_850.extxyz")
    systems = [frames[index] for index in np.random.default_rng(seed).permutation(len(frames))]
    counts = np.array([np.bincount(system.atomic_numbers, minlength=119) for system in systems], dtype=float)
    energies = np.array([system.energy for system in systems])
    known = counts[:134].any(axis=0)
    unseen = ~counts[:, ~known].any(axis=1) & (np.arange(len(counts)) >= 134)
    counts = counts[:, known]
    fit = fit_references(counts[:134], energies[:134])

    def error(references: np.ndarray) -> float:
        residuals = (energies - counts @ references)[unseen] / counts[unseen].sum(axis=1)
        return float(np.sqrt((residuals**2).mean()))

    assert error(fit.references) < 0.8 * error(_minimum_norm(counts[:134], energies[:134]))
    assert error(fit.references) == pytest.approx(fit.error_left_out, rel=0.2)
    assert fit.error_left_out > 1.5 * fit.error
