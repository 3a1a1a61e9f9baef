"""Pictures of structures, and how new their surroundings are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ase.build import bulk, molecule

from denskit.analysis.novelty import novelty
from denskit.analysis.scenes import Frame, Scene
from denskit.simulation.structures import system_of


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


def test_copies_of_a_lattice_are_not_infinitely_new() -> None:
    """Training structures that differ in rounding only give no unit of novelty."""
    site = system_of(bulk("W", cubic=True) * (2, 2, 2))
    copies = [replace(site, positions=site.positions + 1e-9 * number) for number in range(4)]
    shaken = replace(site, positions=site.positions + np.random.default_rng(0).normal(scale=0.05, size=(16, 3)))
    assert novelty(copies[:1], copies).max() < 1
    assert 1 < novelty([shaken], copies).max() < 1000
