"""Pictures of structures."""

from __future__ import annotations

import ase
import numpy as np
import pytest
from ase.build import molecule

from denskit.analysis.scenes import Frame, Scene, _view


def _drawn(scene: Scene) -> list[np.ndarray]:
    """Places of the atoms in each panel, one row an atom in the order in which they are drawn."""
    return [
        np.array([patch.center for patch in axes.patches if hasattr(patch, "center")]) for axes in scene.figure().axes
    ]


def test_all_panels_of_one_structure_are_seen_alike() -> None:
    """Displacements of 0.01 Å would turn a view of each frame's own: benzene has no longest axis."""
    atoms = molecule("C6H6")
    generator = np.random.default_rng(0)
    moved = [atoms.positions + generator.normal(scale=0.01, size=(12, 3)) for _ in range(4)]
    frames = [Frame(label=str(place), numbers=atoms.numbers, positions=where) for place, where in enumerate(moved)]
    panels = _drawn(Scene(name="noise", title="Noise", frames=frames))
    assert len(panels) == 4 and all(len(places) == 12 for places in panels)
    for places in panels[1:]:
        nearest = np.linalg.norm(places[:, None] - panels[0][None], axis=-1).min(1)
        assert nearest.max() < 0.1


@pytest.mark.parametrize("name", ["N2", "CO2", "H", "CH3CHO"])
def test_views_are_right_handed_and_show_all_atoms_of_a_line(name: str) -> None:
    atoms = molecule(name) if name != "H" else ase.Atoms("H")
    view = _view(Frame(label=name, numbers=atoms.numbers, positions=atoms.positions))
    np.testing.assert_allclose(view @ view.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(view) == pytest.approx(1)
    seen = (atoms.positions - atoms.positions.mean(0)) @ view.T
    assert np.all(np.diff(np.ptp(seen, axis=0)[:2]) <= 1e-9), "the longest direction is across"
    assert name not in ("N2", "CO2") or np.ptp(seen[:, 0]) == pytest.approx(np.ptp(atoms.positions[:, 2]))


def test_a_figure_says_that_it_shows_some_of_the_frames() -> None:
    frames = [Frame(label="", numbers=np.array([7]), positions=np.zeros((1, 3)))] * 9
    figure = Scene(name="x", title="x: 9 of 9 frames", frames=frames).figure()
    assert figure.get_suptitle() == "x: 9 of 9 frames; 4 of them here"
    assert all(np.ptp(axes.get_xlim()) >= 3 for axes in figure.axes)
