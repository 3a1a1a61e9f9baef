"""Checks that a new model or data source must pass, for the tests of its author.

    from denskit.testing import check_model, check_source

    def test_my_model():
        check_model(build_force_field(MyConfig(), heads={}, scaling=scaling).double())

    def test_my_source():
        check_source(MySource("file.mine"))

Every check raises AssertionError saying how far the model is off.  Differences are relative to the root mean square of
the expected values.  A model is checked as it stands: give it random weights, also where they begin as zeros or ones.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from denskit.batch import Batch, System
from denskit.data.base import Source, collate
from denskit.models.base import ForceField

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}
DERIVATIVE = 1e-6  # of central differences with steps of STEP, in float64
STEP = 2e-5  # Å
JUMP = 1e-5  # of a model that promises to be smooth, across the cutoff, in float64
GAP = 1e-8  # Å, from the cutoff, to both sides


@torch.no_grad()  # forces are derivatives all the same
def check_model(force_field: ForceField, systems: Sequence[System] | None = None, sampling: float = 0.0) -> None:
    """All checks of a model; those of derivatives and smoothness where it is in float64 and promises them.

    Args:
        force_field: in float32 or float64.
        systems: structures to check on; default: a molecule and a crystal of elements that the model knows.
        sampling: relative error of rotated inputs that the model admits, as one that samples functions on a sphere.
    """
    systems = systems or example_systems(force_field)
    crystals = [system for system in systems if system.pbc.all()]  # alone, since molecules have no stress
    for group in (systems, crystals) if crystals else (systems,):
        check_rotation(force_field, group, sampling=sampling)
        check_batching(force_field, group)
    check_translation(force_field, systems)
    check_permutation(force_field, systems)
    if "noise" in force_field.heads:
        check_force_input(force_field, systems)
    if dtype_of(force_field) == torch.float64:
        if force_field.config.forces == "gradient":
            check_forces(force_field, systems)
        if force_field.backbone.smooth:
            check_smoothness(force_field)


def check_rotation(force_field: ForceField, systems: Sequence[System], *, sampling: float = 0.0) -> None:
    """Energies do not change with a rotation, forces turn with it; also with a reflection where it promises O(3)."""
    batch = batch_of(systems, force_field)
    given, wanted = forces_to_encode(force_field, batch), outputs_for(force_field, systems)
    out = force_field(batch, given, wanted)
    for sign in (1, -1) if force_field.backbone.symmetry == "O(3)" else (1,):
        rotation = random_rotation(batch.positions.dtype) * sign
        turned = replace(batch, positions=batch.positions @ rotation.T, cell=batch.cell @ rotation.T)
        expected = {name: _turned(value, _irreps(force_field, name), rotation) for name, value in out.items()}
        actual = force_field(turned, None if given is None else given @ rotation.T, wanted)
        assert_near(actual, expected, max(sampling, TOLERANCE[batch.positions.dtype]), "rotated")


def check_translation(force_field: ForceField, systems: Sequence[System]) -> None:
    """Nothing changes with a translation."""
    batch = batch_of(systems, force_field)
    given, wanted = forces_to_encode(force_field, batch), outputs_for(force_field, systems)
    shifted = moved(batch, batch.positions.new_tensor([0.3, -1.7, 0.9]))
    expected = force_field(batch, given, wanted)
    assert_near(force_field(shifted, given, wanted), expected, TOLERANCE[batch.positions.dtype], "translated")


def check_permutation(force_field: ForceField, systems: Sequence[System]) -> None:
    """The order of the atoms does not matter."""
    for system in systems:
        order = torch.randperm(len(system))
        names = ("positions", "atomic_numbers", "fixed", "tags")
        other = replace(system, forces=None, **{name: getattr(system, name)[order.numpy()] for name in names})
        batch, wanted = batch_of([system], force_field), outputs_for(force_field, [system])
        given = forces_to_encode(force_field, batch)
        out = force_field(batch, given, wanted)
        expected = {name: value[order] if _of_atoms(force_field, name) else value for name, value in out.items()}
        actual = force_field(batch_of([other], force_field), None if given is None else given[order], wanted)
        assert_near(actual, expected, TOLERANCE[batch.positions.dtype], "permuted")


def check_batching(force_field: ForceField, systems: Sequence[System]) -> None:
    """A batch of structures gives the same as each of them alone."""
    batch, wanted = batch_of(systems, force_field), outputs_for(force_field, systems)
    given = forces_to_encode(force_field, batch)
    parts = [None] * len(systems) if given is None else given.split([len(system) for system in systems])
    singles = [force_field(batch_of([s], force_field), part, wanted) for s, part in zip(systems, parts, strict=True)]
    expected = {name: torch.cat([single[name] for single in singles]) for name in wanted}
    assert_near(force_field(batch, given, wanted), expected, TOLERANCE[batch.positions.dtype], "in a batch")


def check_force_input(force_field: ForceField, systems: Sequence[System]) -> None:
    """Encoded forces of DeNS change every output, and forces of zero change nothing."""
    batch, wanted = batch_of(systems, force_field), outputs_for(force_field, systems)
    without, given = force_field(batch, None, wanted), forces_to_encode(force_field, batch)
    assert given is not None, "a model without a noise head encodes no forces"
    assert_near(force_field(batch, 0 * given, wanted), without, TOLERANCE[batch.positions.dtype], "with forces of zero")
    for name, value in force_field(batch, given, wanted).items():
        off = relative(value, without[name])
        assert off > TOLERANCE[batch.positions.dtype], f"{name} does not depend on force_input, so DeNS cannot work"


def check_forces(force_field: ForceField, systems: Sequence[System]) -> None:
    """Forces are the negative gradient of the energy, by central differences; for models in float64."""
    batch = batch_of(systems, force_field)
    forces = force_field(batch, None, ("energy", "forces"))["forces"]
    for _ in range(3):
        way = torch.randn_like(batch.positions)
        before, after = (force_field(moved(batch, s * STEP * way), None, ("energy",))["energy"] for s in (-1, 1))
        work = batch.sum_over_atoms((forces * way).sum(1))
        assert_near({"forces": work}, {"forces": (before - after) / (2 * STEP)}, DERIVATIVE, "by finite differences")


def check_smoothness(force_field: ForceField) -> None:
    """Energy and forces do not jump where an atom crosses the cutoff; for models in float64."""
    jump = jump_at_cutoff(force_field)
    assert jump < JUMP, f"energy or forces jump by {jump:.1e} of their rms where an atom crosses the cutoff"


def jump_at_cutoff(force_field: ForceField) -> float:
    """The largest change of energy or forces, over their rms, when an atom leaves the cutoff of another."""
    first, second = _elements(force_field, 2)
    water = np.array([[0.0, 0.0, 0.1], [0.76, 0.0, -0.47], [-0.76, 0.0, -0.47]])
    changes = []
    for atom in water:
        out = []
        for side in (-1, 1):
            probe = atom + (force_field.cutoff + side * GAP) * np.array([0.36, 0.48, 0.8])
            system = molecule([*water.tolist(), probe.tolist()], [first, second, second, second])
            out.append(force_field(batch_of([system], force_field), None, ("energy", "forces")))
        inside, outside = out
        changes += [relative(outside[name], inside[name]) for name in inside]
    return max(changes)


def check_source(source: Source) -> None:
    """A data source gives sound structures: by index, in order, twice the same, and after pickling."""
    assert len(source) > 0, f"{source.name} has no structures"
    again: Source = pickle.loads(pickle.dumps(source))
    assert source.sizes is None or len(source.sizes) == len(source), "sizes has another length than the source"
    for place, system in enumerate(source):
        where = f"{source.name}, structure {place}"
        assert system.index == place, f"{where} has the index {system.index}"
        assert len(system) > 0 and np.isfinite(system.positions).all(), f"{where}: no atoms, or positions not finite"
        assert source.sizes is None or source.sizes[place] == len(system), f"{where}: sizes says other"
        for name in ("positions", "cell", "energy", "forces", "stress"):
            value = getattr(system, name)
            if value is None:
                continue
            array = np.asarray(value)
            assert array.dtype == np.float64, f"{where}: {name} is {array.dtype}; wanted float64"
            assert np.isfinite(array).all(), f"{where}: {name} is not finite; a label that is missing is None"
            for other in (source[place], again[place]):
                assert np.array_equal(array, getattr(other, name)), f"{where}: {name} differs when it is read again"
    for outside in (-1, len(source)):
        try:
            source[outside]
        except IndexError:
            continue
        raise AssertionError(f"{source.name}[{outside}] raises no IndexError")


def example_systems(force_field: ForceField) -> list[System]:
    """A molecule and a triclinic crystal of elements that the model knows, off symmetric places."""
    elements = _elements(force_field, 3)
    sites = [[0.0, 0.1, 0.0], [1.1, 0.0, 0.2], [-0.4, 1.2, 0.1], [0.2, -0.6, 1.0], [1.7, 1.1, 0.8]]
    cell = np.array([[3.1, 0.0, 0.0], [0.9, 3.4, 0.0], [-0.7, 0.5, 2.9]])
    crystal = molecule([[0.3, 0.2, -0.6], [1.9, 2.7, 1.4]], elements[:2])
    return [
        molecule(sites, [elements[place % 3] for place in range(5)]),
        replace(crystal, cell=cell, pbc=np.ones(3, dtype=bool)),
    ]


def molecule(positions: Sequence[Sequence[float]], numbers: Sequence[int]) -> System:
    """A molecule without labels; positions [n, 3] in Å."""
    n = len(numbers)
    return System(
        positions=np.array(positions, dtype=np.float64), atomic_numbers=np.array(numbers), cell=np.zeros((3, 3)),
        pbc=np.zeros(3, dtype=bool), fixed=np.zeros(n, dtype=bool), tags=np.zeros(n, dtype=np.int64),
    )  # fmt: skip


def batch_of(systems: Sequence[System], force_field: ForceField) -> Batch:
    """A batch in the precision of the model, with the neighbours that it sees."""
    return force_field.config.with_neighbors(collate(systems, dtype_of(force_field))[0])


def forces_to_encode(force_field: ForceField, batch: Batch) -> Tensor | None:
    """Forces [N, 3] of every second atom where the model encodes forces, else None."""
    if "noise" not in force_field.heads:
        return None
    generator = torch.Generator().manual_seed(3)
    forces = torch.randn(batch.positions.shape, generator=generator, dtype=torch.float64).to(batch.positions.dtype)
    return forces * (torch.arange(batch.num_atoms) % 2)[:, None]


def outputs_for(force_field: ForceField, systems: Sequence[System]) -> tuple[str, ...]:
    """All outputs of the model, but the stress only where every structure has a volume."""
    volume = all(bool(system.pbc.all()) for system in systems)
    return tuple(name for name in force_field.outputs() if name != "stress" or volume)


def _irreps(force_field: ForceField, name: str) -> str:
    """What an output is: "0" scalars, "1" vectors, "0+2" symmetric matrices."""
    return {"energies": "0", "forces": "1", "stress": "0+2"}.get(name) or force_field.head_irreps[name]


def _turned(value: Tensor, irreps: str, rotation: Tensor) -> Tensor:
    if irreps == "0":
        return value
    return value @ rotation.T if irreps == "1" else rotation @ value @ rotation.T


def _of_atoms(force_field: ForceField, name: str) -> bool:
    """Whether an output has a row for each atom: those of heads have, but for the energy and for matrices."""
    return name != "energy" and _irreps(force_field, name) != "0+2"


def random_rotation(dtype: torch.dtype) -> Tensor:
    """A proper rotation [3, 3]."""
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    return (rotation * rotation.det()).to(dtype)


def moved(batch: Batch, displacement: Tensor) -> Batch:
    """The same graph with other positions; displacement [N, 3] or [3] in Å."""
    return replace(batch, positions=batch.positions + displacement)


def relative(actual: Tensor, expected: Tensor) -> float:
    """The largest difference over the root mean square of the expected values."""
    scale = float(expected.detach().square().mean().sqrt())
    difference = float((actual - expected).detach().abs().max())
    return difference / scale if scale else (0.0 if difference == 0 else np.inf)


def assert_near(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float, how: str = "") -> None:
    """Raise AssertionError where outputs are not finite, or differ by more than ``tolerance`` of their rms."""
    assert actual.keys() == expected.keys(), f"outputs are {sorted(actual)}; wanted {sorted(expected)}"
    for name, value in expected.items():
        assert bool(value.isfinite().all()), f"{name} is not finite"
        off = relative(actual[name], value)
        assert off <= tolerance, f"{name} {how} is off by {off:.1e} of its rms; {tolerance:.0e} is allowed"


def dtype_of(force_field: ForceField) -> torch.dtype:
    """The precision of the weights."""
    return next(force_field.parameters()).dtype


def _elements(force_field: ForceField, count: int) -> list[int]:
    known = list(force_field.scaling.elements)
    return [known[place % len(known)] for place in range(count)]
