"""Pictures of structures."""

from __future__ import annotations

import numpy as np
from ase.build import molecule

from denskit.analysis.scenes import Frame, Scene


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
