"""What every model promises: symmetries, locality, physics, finite derivatives, files.

One class over all variants of all models, in float32 and float64.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.variants import ELEMENTS, VARIANTS, build
from denskit.batch import Batch, System
from denskit.data.base import collate
from denskit.geometry.edge_frame import edge_frames
from denskit.geometry.neighbors import build_neighbors
from denskit.geometry.padding import with_edges
from denskit.models import MODELS, ForceField
from denskit.models.model_file import load_model, save_model
from denskit.tasks import DeNS, DeNSConfig, EnergyForces, EnergyForcesConfig, total_loss
from denskit.testing import (
    JUMP,
    STEP,
    TOLERANCE,
    assert_near,
    batch_of,
    check_batching,
    check_forces,
    check_permutation,
    check_rotation,
    check_translation,
    forces_to_encode,
    jump_at_cutoff,
    molecule,
    moved,
    random_rotation,
    relative,
)  # fmt: skip
from models.test_escn import turned_frames

from tolerances import ENERGY_ROUND_TRIP_EV, EQUIVARIANCE32, EQUIVARIANCE64, FINITE_DIFFERENCE64

Systems = dict[str, System]
Outputs = dict[str, Tensor]
SEAM = 1e-13 * np.eye(3)  # Å, changes of an edge on either side of it
FORCES = ("energy", "forces")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def test_every_model_is_under_contract() -> None:
    assert {variant.config.name for variant in VARIANTS.values()} == set(MODELS)


def names(*, smooth: bool = False, gradient: bool = False, strain: bool = False, noise: bool = False) -> list[str]:
    """Variants that promise what is asked."""
    chosen = []
    for name, variant in VARIANTS.items():
        config = variant.config
        promises = (
            (build(name, torch.float32).backbone.smooth or not smooth)
            and (config.forces == "gradient" or not gradient)
            and (config.stress == "strain" or not strain)
            and ("noise" in variant.heads or not noise)
        )
        if promises:
            chosen.append(name)
    assert chosen
    return chosen


@pytest.fixture(params=list(VARIANTS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=list(DTYPES))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


@pytest.fixture
def force_field(name: str, dtype: torch.dtype) -> ForceField:
    return build(name, dtype)


def zero_input(force_field: ForceField, batch: Batch) -> Tensor | None:
    return torch.zeros_like(batch.positions) if "noise" in force_field.heads else None


def for_crystals(force_field: ForceField) -> tuple[str, ...]:
    return force_field.outputs()


def for_molecules(force_field: ForceField) -> tuple[str, ...]:
    return tuple(name for name in force_field.outputs() if name != "stress")


def rotation_tolerance(name: str, dtype: torch.dtype) -> float:
    """Exact models agree to rounding; sampled ones to their error, which is named beside them."""
    return max(VARIANTS[name].sampling_error, TOLERANCE[dtype])


def loss_of(out: Outputs) -> Tensor:
    return torch.stack([value.square().sum() for value in out.values()]).sum()


@cache
def acting_parameters(name: str) -> frozenset[str]:
    """Names of the parameters that some output depends on.

    The others are those of degrees that nothing reads behind them; the published models have them.
    """
    force_field = build(name, torch.float64).train()
    batch = batch_of([molecule([[0, 0, 0], [0, 0.8, 0.6], [1.2, 0, -0.3]], [8, 1, 1])], force_field)
    loss_of(force_field(batch, forces_to_encode(force_field, batch), for_molecules(force_field))).backward()
    return frozenset(key for key, parameter in force_field.named_parameters() if parameter.grad is not None)


def assert_finite_gradients(force_field: ForceField, loss: Tensor, acting: Collection[str]) -> None:
    """Every parameter that can act has a gradient, and it is finite; backward goes through the forces' own gradient."""
    force_field.zero_grad()
    loss.backward()
    for key, parameter in force_field.named_parameters():
        if key in acting:
            assert parameter.grad is not None, key
            assert bool(parameter.grad.isfinite().all()), key


class TestSymmetry:
    def test_rotation(self, name: str, force_field: ForceField, systems: Systems) -> None:
        """Also reflections where the model promises O(3)."""
        sampling = VARIANTS[name].sampling_error
        check_rotation(force_field, [systems["ethanol"], systems["triclinic"]], sampling=sampling)
        check_rotation(force_field, [systems["copper"], systems["triclinic"]], sampling=sampling)

    def test_rotation_of_edges_along_axes(self, name: str, force_field: ForceField, dtype: torch.dtype) -> None:
        """A molecule all of whose bonds lie on coordinate axes is like any other."""
        bonds = [[0, 0, 0], [1.1, 0, 0], [-1.2, 0, 0], [0, 1.3, 0], [0, -1.4, 0], [0, 0, 1.5], [0, 0, -1.6]]
        batch = batch_of([molecule(bonds, [6, 1, 1, 8, 7, 1, 8])], force_field)
        rotation, wanted = random_rotation(dtype), for_molecules(force_field)
        actual = force_field(replace(batch, positions=batch.positions @ rotation.T), None, wanted)
        out = force_field(batch, None, wanted)
        expected = {key: value if key == "energy" else value @ rotation.T for key, value in out.items()}
        assert_near(actual, expected, rotation_tolerance(name, dtype))

    def test_rotation_about_the_edge_is_arbitrary(self, name: str, systems: Systems) -> None:
        """Where the model promises it, no output depends on which of all rotations onto the axis a frame takes."""
        force_field = build(name, torch.float64)
        if not force_field.backbone.gauge_exact:
            pytest.skip("not promised")
        batch = batch_of([systems["triclinic"]], force_field)
        own, other = edge_frames(batch.edge_vectors(), 3), turned_frames(batch, 3)
        assert not torch.allclose(own.wigner[1], other.wigner[1])
        wanted = ("energy", *(head for head in force_field.heads if head != "energy"))
        expected = force_field(batch, None, wanted)
        assert_near(force_field(batch, None, wanted, edge_frames=other), expected, EQUIVARIANCE64)

    def test_no_output_has_a_seam(self, name: str) -> None:
        """Where frames jump, at edges along the y axis and in the plane y = 0, outputs and gradient forces do not."""
        force_field = build(name, torch.float64)
        if not force_field.backbone.gauge_exact:
            pytest.skip("not promised")
        for edge in ((0.0, 1.1, 0.0), (0.9, 0.0, 0.3)):
            places = [[[0, 0, 0], [*np.add(edge, step)], [-0.5, 0.7, 0.4]] for step in np.vstack((SEAM, -SEAM))]
            out = force_field(batch_of([molecule(p, [8, 1, 1]) for p in places], force_field), None, FORCES)
            for value in (out["energy"].view(-1, 1), out["forces"].view(len(places), -1)):
                assert_near({"": value}, {"": value[:1].expand_as(value)}, EQUIVARIANCE64)

    def test_translation(self, force_field: ForceField, systems: Systems) -> None:
        check_translation(force_field, [systems["ethanol"], systems["water"]])

    def test_lattice_translation_of_single_atoms(self, name: str, systems: Systems) -> None:
        """It does not matter in which cell an atom is written down."""
        force_field = build(name, torch.float64)
        system = systems["triclinic"]
        elsewhere = replace(system, positions=system.positions + np.array([[1, 0, -2], [0, 3, 1]]) @ system.cell)
        first, second = (force_field(batch_of([s], force_field)) for s in (system, elsewhere))
        assert_near(second, first, EQUIVARIANCE64)

    def test_permutation(self, force_field: ForceField, systems: Systems) -> None:
        check_permutation(force_field, [systems["ethanol"]])


class TestLocality:
    def test_batch_of_two_is_two_of_one(self, force_field: ForceField, systems: Systems) -> None:
        check_batching(force_field, [systems["copper"], systems["triclinic"]])

    def test_systems_do_not_see_each_other(self, name: str, systems: Systems) -> None:
        """Molecules at one place; the gradient across is exactly zero, and moving one changes nothing of the other."""
        force_field = build(name, torch.float64)
        batch = batch_of([systems["ethanol"], systems["water"]], force_field)
        positions = batch.positions.clone().requires_grad_()
        energy = force_field(replace(batch, positions=positions), None, ("energy",))["energy"]
        (gradient,) = torch.autograd.grad(energy[0], positions)
        assert torch.equal(gradient[9:], torch.zeros_like(gradient[9:])) and bool(gradient[:9].any())
        displacement = 0.1 * torch.randn_like(batch.positions)
        displacement[:9] = 0
        wanted = for_molecules(force_field)
        before, after = force_field(batch, None, wanted), force_field(moved(batch, displacement), None, wanted)
        for key in wanted:
            own = 1 if key == "energy" else 9
            assert torch.equal(before[key][:own], after[key][:own])
            assert not torch.equal(before[key][own:], after[key][own:])

    def test_supercell(self, name: str, systems: Systems) -> None:
        """Twice the cell has twice the energy, the same forces and the same stress."""
        force_field = build(name, torch.float64)
        small = systems["triclinic"]
        double = replace(
            small,
            positions=np.concatenate([small.positions, small.positions + small.cell[1]]),
            atomic_numbers=np.tile(small.atomic_numbers, 2), cell=small.cell * np.array([[1], [2], [1]]),
            fixed=np.tile(small.fixed, 2), tags=np.tile(small.tags, 2), forces=None,
        )  # fmt: skip
        out = force_field(batch_of([small], force_field))
        expected = {name: value.repeat(2, 1) if name in ("forces", "noise") else value for name, value in out.items()}
        expected["energy"] = 2 * out["energy"]
        assert_near(force_field(batch_of([double], force_field)), expected, EQUIVARIANCE64)

    def test_isolated_atoms(self, name: str, force_field: ForceField, systems: Systems) -> None:
        """No edges at all, and an atom without edges beside a molecule: finite, no force, the same energy."""
        atom, wanted = molecule([[0.0, 0.0, 0.0]], [8]), for_molecules(force_field)
        batch = batch_of([atom], force_field)
        alone = force_field.train()(batch, zero_input(force_field, batch), wanted)
        batch = batch_of([systems["water"], atom], force_field)
        together = force_field(batch, zero_input(force_field, batch), wanted)
        for key, value in alone.items():
            assert bool(value.isfinite().all())
            torch.testing.assert_close(value[0], together[key][-1])
        largest = together["forces"].detach().abs().max() * VARIANTS[name].sampling_error
        assert float(alone["forces"].detach().abs().max()) <= float(largest)  # exactly 0 but for sampled heads
        for out in (alone, together):
            assert_finite_gradients(force_field, loss_of(out), acting_parameters(name))


class TestPadding:
    def test_padding_edges_change_nothing(
        self, name: str, force_field: ForceField, dtype: torch.dtype, systems: Systems
    ) -> None:
        """Masked edges, which compiled potentials have; in training as well."""
        plain = build_neighbors(collate([systems["ethanol"], systems["water"]], dtype)[0], force_field.cutoff)
        forces, wanted = forces_to_encode(force_field, plain), for_molecules(force_field)
        acting = [p for key, p in force_field.named_parameters() if key in acting_parameters(name)]
        outputs, gradients = [], []
        for batch in (plain, with_edges(plain, plain.num_edges + 6)):
            outputs.append(force_field.train()(batch, forces, wanted))
            gradients.append(torch.autograd.grad(loss_of(outputs[-1]), acting))
        assert_near(outputs[1], outputs[0], TOLERANCE[dtype])
        largest = max(float(g.abs().max()) for g in gradients[0])
        for a, b in zip(*gradients, strict=True):
            assert float((a - b).abs().max()) <= 10 * TOLERANCE[dtype] * largest


class TestPhysics:
    @pytest.mark.parametrize("name", names(gradient=True))
    def test_forces_are_the_gradient(self, name: str, systems: Systems) -> None:
        check_forces(build(name, torch.float64), [systems["ethanol"], systems["triclinic"]])

    @pytest.mark.parametrize("name", names(strain=True))
    def test_stress_is_the_gradient_by_strain(self, name: str, systems: Systems) -> None:
        force_field = build(name, torch.float64)
        batch = batch_of([systems["copper"], systems["triclinic"]], force_field)
        stress = force_field(batch, None, ("energy", "stress"))["stress"]
        assert_near({"stress": stress}, {"stress": stress.mT}, EQUIVARIANCE64)
        expected = torch.zeros_like(stress)
        for a in range(3):
            for b in range(3):
                energies = []
                for sign in (1, -1):
                    strain = torch.eye(3, dtype=torch.float64)
                    strain[a, b] += sign * STEP / 2
                    strain[b, a] += sign * STEP / 2
                    strained = replace(batch, positions=batch.positions @ strain, cell=batch.cell @ strain)
                    energies.append(force_field(strained, None, ("energy",))["energy"])
                expected[:, a, b] = (energies[0] - energies[1]) / (2 * STEP)
        expected = expected / batch.cell.det().abs()[:, None, None]
        assert_near({"stress": stress}, {"stress": expected}, FINITE_DIFFERENCE64)

    @pytest.mark.parametrize("name", names(strain=True))
    def test_molecules_beside_crystals_harm_no_gradient(self, name: str, systems: Systems) -> None:
        """A molecule has no volume; the loss leaves its stress out, and nothing infinite remains behind the mask."""
        force_field = build(name, torch.float64).train()
        batch = batch_of([systems["triclinic"], systems["water"]], force_field)
        out = force_field(batch, zero_input(force_field, batch))
        assert bool(out["stress"].isfinite().all())
        scored = torch.tensor([True, False])[:, None, None]
        stress = torch.where(scored, out["stress"], 0)
        loss = loss_of({key: stress if key == "stress" else value for key, value in out.items()})
        assert_finite_gradients(force_field, loss, acting_parameters(name))


class TestSmoothness:
    """An atom crosses the cutoff.  The published functions jump there, and the envelope is what removes it."""

    @pytest.mark.parametrize("name", names(smooth=True))
    def test_no_jump_at_the_cutoff_with_an_envelope_only(self, name: str) -> None:
        force_field = build(name, torch.float64)
        assert jump_at_cutoff(force_field) < JUMP
        if "envelope" in type(force_field.config).model_fields:  # a setting of some models
            assert jump_at_cutoff(build(name, torch.float64, envelope=False)) > 1e-4

    @pytest.mark.parametrize("name", names(smooth=True))
    def test_no_jump_with_attention_as_sharp_as_after_training(self, name: str) -> None:
        force_field = build(name, torch.float64)
        with torch.no_grad():
            for key, parameter in force_field.named_parameters():
                if key.endswith(("attention_vector", "query.weights.0")):
                    parameter *= 5
        assert jump_at_cutoff(force_field) < JUMP

    @pytest.mark.parametrize("name", [n for n in names() if n not in names(smooth=True)])
    def test_smooth_is_promised_where_it_is_true(self, name: str) -> None:
        assert jump_at_cutoff(build(name, torch.float64)) > JUMP

    @pytest.mark.parametrize("name", names(smooth=True))
    def test_the_only_neighbour_leaves(self, name: str, dtype: torch.dtype) -> None:
        """Energy and forces of a pair go over into those of two single atoms, with finite second derivatives."""
        force_field = build(name, dtype).train()
        single = sum(
            force_field(batch_of([molecule([[0, 0, 0]], [z])], force_field), None, ("energy",))["energy"]
            for z in (6, 8)
        )
        for gap, tolerance in ((1e-1, 1e-1), (1e-2, 1e-3), (1e-3, 1e-5), (1e-5, 1e-5), (1e-6, 1e-5)):
            pair = molecule([[0, 0, 0], [0, 0, force_field.cutoff - gap]], [6, 8])
            batch = batch_of([pair], force_field)
            assert batch.num_edges == 2
            out = force_field(batch, None, for_molecules(force_field))
            assert float((out["energy"] - single).detach().abs()) <= tolerance * float(single.detach().abs())
            assert float(out["forces"].detach().abs().max()) <= 10 * tolerance
            without_encoding = {key for key in acting_parameters(name) if "force_encoding" not in key}
            assert_finite_gradients(force_field, loss_of(out), without_encoding)


class TestTraining:
    def test_gradients_of_all_outputs_are_finite(self, name: str, force_field: ForceField, systems: Systems) -> None:
        batch = batch_of([systems["copper"], systems["triclinic"]], force_field)
        out = force_field.train()(batch, forces_to_encode(force_field, batch), for_crystals(force_field))
        assert_finite_gradients(force_field, loss_of(out), acting_parameters(name))

    def test_edges_along_every_axis(self, name: str, force_field: ForceField) -> None:
        """No pole anywhere: a cross of atoms on the axes, and forces along the axes."""
        bonds = [[0, 0, 0], [1.1, 0, 0], [-1.1, 0, 0], [0, 1.1, 0], [0, -1.1, 0], [0, 0, 1.1], [0, 0, -1.1]]
        batch = batch_of([molecule(bonds, [6, 1, 1, 1, 1, 1, 1])], force_field)
        out = force_field.train()(
            batch, batch.positions.clone() if "noise" in force_field.heads else None, for_molecules(force_field)
        )
        assert all(bool(value.isfinite().all()) for value in out.values())
        assert_finite_gradients(force_field, loss_of(out), acting_parameters(name))

    @pytest.mark.parametrize("name", names(noise=True))
    def test_zero_force_input_is_no_force_input(self, name: str, force_field: ForceField, systems: Systems) -> None:
        batch = batch_of([systems["ethanol"]], force_field)
        wanted = for_molecules(force_field)
        nothing, zero = (force_field.train()(batch, f, wanted) for f in (None, torch.zeros_like(batch.positions)))
        for key in wanted:
            assert torch.equal(nothing[key], zero[key])
        assert_finite_gradients(force_field, loss_of(zero), acting_parameters(name))

    @pytest.mark.parametrize("name", names(noise=True))
    def test_force_input_acts(self, name: str, systems: Systems) -> None:
        force_field = build(name, torch.float64)
        batch = batch_of([systems["ethanol"]], force_field)
        wanted = for_molecules(force_field)
        nothing, given = (force_field(batch, f, wanted) for f in (None, forces_to_encode(force_field, batch)))
        for key in wanted:
            assert not torch.allclose(nothing[key], given[key])

    @pytest.mark.parametrize("name", [n for n in names(noise=True) if VARIANTS[n].config.mark_corrupted])
    def test_marks_tell_small_forces_from_none(self, name: str, systems: Systems) -> None:
        """Of one atom; without a mark so small a force changes nothing."""
        marked, batch = build(name, torch.float64), collate([systems["ethanol"]], torch.float64)[0]
        batch = build_neighbors(batch, marked.cutoff)
        mark = marked.backbone.force_encoding.linear.bias
        for size, acts in ((1.0, True), (0.0, False)):
            with torch.no_grad():  # a constant would not survive a layer norm
                mark.copy_(size * torch.linspace(-1, 1, len(mark)))
            small = torch.zeros_like(batch.positions)
            small[0, 1] = 1e-12
            nothing, given = (marked(batch, f, ("energy", "noise")) for f in (None, small))
            for key, value in nothing.items():
                assert (relative(given[key], value) > 1e-6) == acts, key

    @pytest.mark.parametrize("name", names(noise=True))
    def test_noise_head_has_zero_gradients_when_nothing_is_corrupted(
        self, name: str, force_field: ForceField, systems: Systems
    ) -> None:
        """Zero, not absent: processes that drew no corruption must still take part in the reduction of gradients."""
        task = DeNS(DeNSConfig(probability=0.0))
        batch, targets = collate([systems["ethanol"]], next(force_field.parameters()).dtype)
        prepared = task.prepare(batch, targets, torch.tensor([5]), 0.0)
        prepared = replace(prepared, batch=build_neighbors(prepared.batch, force_field.cutoff))
        out = force_field.train()(prepared.batch, prepared.force_input, for_molecules(force_field))
        assert_finite_gradients(force_field, total_loss(task.losses(out, prepared, 0.0)), acting_parameters(name))
        for key, parameter in force_field.named_parameters():
            if key.startswith(("heads.noise", "backbone.force_encoding")) and key in acting_parameters(name):
                assert torch.equal(parameter.grad, torch.zeros_like(parameter))

    def test_labels_do_not_reach_the_model(self, name: str, systems: Systems) -> None:
        force_field = build(name, torch.float64)
        batch, targets = collate([systems["water"]], next(force_field.parameters()).dtype)
        unknown = replace(targets, energy=targets.energy * torch.nan, forces=targets.forces * torch.nan)
        task = EnergyForces(EnergyForcesConfig())
        outs = []
        for labels in (targets, unknown):
            prepared = task.prepare(batch, labels, torch.tensor([5]), 0.0)
            graph = build_neighbors(prepared.batch, force_field.cutoff)
            given = prepared.force_input if "noise" in force_field.heads else None
            outs.append(force_field(graph, given, for_molecules(force_field)))
        for key, value in outs[0].items():
            assert torch.equal(value, outs[1][key])

    def test_training_and_evaluation_agree_without_dropout(self, name: str, systems: Systems) -> None:
        force_field = build(name, torch.float64)
        batch, wanted = batch_of([systems["water"]], force_field), for_molecules(force_field)
        assert_near(force_field.train()(batch, None, wanted), force_field.eval()(batch, None, wanted), EQUIVARIANCE64)

    def test_only_what_nothing_reads_does_not_act(self, name: str) -> None:
        """All of the backbone acts if a head reads vectors; else the last block's vectors are never read."""
        force_field = build(name, torch.float32)
        idle = {key for key, p in force_field.named_parameters() if p.numel()} - acting_parameters(name)
        assert all(key.startswith("heads.") or (len(force_field.heads) == 1 and ".blocks." in key) for key in idle), (
            idle
        )
        assert len(idle) < 0.4 * len(list(force_field.parameters()))


class TestUse:
    def test_two_calls_are_equal_bit_for_bit(self, name: str, systems: Systems) -> None:
        force_field = build(name, torch.float64)
        batch = batch_of([systems["ethanol"], systems["triclinic"]], force_field)
        first, second = (force_field(batch, None, for_molecules(force_field)) for _ in range(2))
        for key, value in first.items():
            assert torch.equal(value, second[key])

    def test_precisions_agree(self, name: str, systems: Systems) -> None:
        outs = []
        for kind in DTYPES.values():
            force_field = build(name, kind)
            out = force_field(batch_of([systems["triclinic"]], force_field))
            assert all(value.dtype == kind for value in out.values())
            outs.append({key: value.double() for key, value in out.items()})
        assert_near(*outs, EQUIVARIANCE32)

    def test_outputs_asked_for_are_those_of_all(self, name: str, systems: Systems) -> None:
        """Asking for less computes less, not something else."""
        force_field = build(name, torch.float64)
        batch = batch_of([systems["triclinic"]], force_field)
        every = force_field(batch)
        assert tuple(every) == force_field.outputs()
        for key, value in every.items():
            out = force_field(batch, None, (key,))
            assert_near(out, {key: value}, EQUIVARIANCE64)

    def test_predict_speaks_electronvolts(self, force_field: ForceField, systems: Systems) -> None:
        batch = batch_of([systems["water"], systems["triclinic"]], force_field)
        force_field.train()
        predicted = force_field.predict(batch)
        assert force_field.training and "noise" not in predicted
        out = force_field.eval()(batch, None, ("energies", "forces"))
        references = torch.tensor([2 * -13.0 - 2000.0 - 3.0, -3.0], dtype=torch.float64)
        assert predicted["energy"].dtype == torch.float64
        summed = torch.zeros(2, dtype=torch.float64).index_add(0, batch.system_index, out["energies"].double())
        expected = 2.5 * summed + references
        torch.testing.assert_close(predicted["energy"], expected, rtol=0, atol=ENERGY_ROUND_TRIP_EV)
        torch.testing.assert_close(predicted["forces"], 2.5 * out["forces"])
        assert not any(value.requires_grad for value in predicted.values())
        energies = force_field.predict(batch, ("energies",))["energies"]
        added = torch.zeros(2, dtype=torch.float64).index_add(0, batch.system_index, energies)
        # computed along another path (no vectors), so equal to the model's rounding only
        tolerance = ENERGY_ROUND_TRIP_EV if out["forces"].dtype == torch.float64 else 2.5 * EQUIVARIANCE32
        torch.testing.assert_close(added, predicted["energy"], rtol=0, atol=tolerance)

    def test_predict_works_where_gradients_are_off(self, name: str, systems: Systems) -> None:
        force_field = build(name, torch.float64)
        batch = batch_of([systems["water"]], force_field)
        expected = force_field.predict(batch)
        with torch.no_grad():
            actual = force_field.predict(batch)
        assert_near(actual, expected, EQUIVARIANCE64)  # matmul folds its arguments otherwise where gradients are off

    def test_predict_refuses_unknown_elements(self, name: str) -> None:
        force_field = build(name, torch.float32)
        assert 26 not in ELEMENTS
        with pytest.raises(ValueError, match="has Fe, which this model was not trained on .*H C N O Na Cl Cu"):
            force_field.predict(batch_of([molecule([[0, 0, 0], [0, 0, 2]], [26, 8])], force_field))

    def test_file_gives_the_same_model_back(self, name: str, systems: Systems, tmp_path: Path) -> None:
        force_field = build(name, torch.float64)
        save_model(tmp_path / "model.denskit", force_field, {"note": "contract"})
        loaded = load_model(tmp_path / "model.denskit")
        assert loaded.config == force_field.config and loaded.head_irreps == force_field.head_irreps
        batch = batch_of([systems["triclinic"]], force_field)
        expected = force_field.predict(batch)
        for key, value in loaded.predict(batch).items():
            assert torch.equal(value, expected[key])
        for key, value in force_field.state_dict().items():
            assert torch.equal(value, loaded.state_dict()[key])
