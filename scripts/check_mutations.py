"""Break the code on purpose, one mistake at a time, and see that the test named for it fails.

    python scripts/check_mutations.py [--markdown]

Each mutation is a textual change to a copy of the package in a temporary folder; the sources stay as they are.  Exits
with 1 if a mutation goes unnoticed, if its text is no longer in the code, or if a named test fails without a mutation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DENS = "tasks/dens.py"
BATCH = "batch.py"
CELL_DENS = "tasks/cell_dens.py"
CORRUPTION = "tasks/corruption.py"
NOISY_NODES = "tasks/noisy_nodes.py"
NDEM = "tasks/ndem.py"
ANIDS = "tasks/anids.py"
LABELS = "tasks/energy_forces.py"
LOSSES = "tasks/losses.py"
METRICS = "tasks/metrics.py"
PADDING = "geometry/padding.py"
RECORDED = "training/recorded.py"
WEIGHT_UPDATE = "training/weight_update.py"


@dataclass(frozen=True)
class Mutation:
    """One mistake: in ``file`` of the package ``before`` becomes ``after``, and ``test`` must fail."""

    mistake: str
    file: str
    before: str
    after: str
    test: str


_T = "tests/tasks/test_dens.py::"
_L = "tests/tasks/test_losses.py::"
_M = "tests/tasks/test_metrics.py::"
_N = "tests/tasks/test_noisy_nodes.py::"
_C = "tests/tasks/test_cell_dens.py::"
_D = "tests/tasks/test_ndem.py::"
_E = "tests/tasks/test_element_sigma.py::"
_A = "tests/tasks/test_anids.py::"
_R = "tests/training/test_recorded.py::"
_P = "tests/contract/test_recording.py::"

MUTATIONS = [
    Mutation(
        mistake="padding edges that count",
        file=PADDING,
        before="mask.new_zeros(missing)",
        after="mask.new_ones(missing)",
        test=_P + "test_ghosts_change_nothing",
    ),
    Mutation(
        mistake="forces of padding atoms that are scored",
        file=PADDING,
        before="""            changed[field.name] = torch.cat((value, value.new_zeros(more, *value.shape[1:])))
""",
        after="""            changed[field.name] = torch.cat((value, value.new_ones(more, *value.shape[1:])))
""",
        test=_P + "test_ghosts_change_nothing",
    ),
    Mutation(
        mistake="gradients of the warm-ups of a recording that are kept",
        file=RECORDED,
        before="            self.gradients.flat.copy_(before)",
        after="            before.copy_(self.gradients.flat)",
        test=_R + "test_weights_are_those_without_recording",
    ),
    Mutation(
        mistake="weights of the loss terms that a recording keeps from its first step",
        file=WEIGHT_UPDATE,
        before="            weights=weights,\n",
        after="            weights=None,\n",
        test=_R + "test_what_changes_with_the_step_is_read_from_tensors",
    ),
    Mutation(
        mistake="noise not divided by sigma",
        file=DENS,
        before="            noise=noise,\n",
        after="            noise=displacement,\n",
        test=_T + "test_noise_target_is_in_units_of_sigma",
    ),
    Mutation(
        mistake="forces scored on corrupted atoms",
        file=DENS,
        before="self.config.energy_on_corrupted, ~prepared.noise_mask & whole",
        after="self.config.energy_on_corrupted, whole",
        test=_T + "test_forces_of_corrupted_atoms_are_not_scored",
    ),
    Mutation(
        mistake="forces encoded on uncorrupted atoms",
        file=DENS,
        before="encoded = noise_mask[:, None] & self.config.force_encoding",
        after="encoded = batch.free_atoms[:, None] & self.config.force_encoding",
        test=_T + "test_forces_of_uncorrupted_atoms_are_not_encoded",
    ),
    Mutation(
        # The test's potential is a spring of 1 eV/Å^2 on every atom: moving by d changes the force by -d.
        mistake="labels taken at the noisy positions",
        file=DENS,
        before="            targets=targets,\n",
        after='            targets=Targets(**{**vars(targets), "forces": targets.forces - displacement}),\n',
        test=_T + "test_labels_are_those_of_the_original_positions",
    ),
    Mutation(
        mistake="forces encoded are those of the noisy positions",
        file=DENS,
        before="force_input=torch.where(encoded, targets.forces,",
        after="force_input=torch.where(encoded, targets.forces - displacement,",
        test=_T + "test_labels_are_those_of_the_original_positions",
    ),
    Mutation(
        mistake="edges built before the corruption",
        file=CORRUPTION,
        before="displacement, edges=None)",
        after="displacement)",
        test=_T + "test_edges_belong_to_the_corrupted_positions",
    ),
    Mutation(
        mistake="the energy switch ignored",
        file=DENS,
        before="return untouched | self.config.energy_on_corrupted,",
        after="return torch.ones_like(untouched),",
        test=_T + "test_labels_of_corrupted_structures_are_not_scored_when_switched_off",
    ),
    Mutation(
        mistake="the switch for forces ignored",
        file=DENS,
        before="whole = (untouched | self.config.forces_on_corrupted)",
        after="whole = torch.ones_like(untouched)",
        test=_T + "test_labels_of_corrupted_structures_are_not_scored_when_switched_off",
    ),
    Mutation(
        mistake="the force encoding switch ignored",
        file=DENS,
        before="encoded = noise_mask[:, None] & self.config.force_encoding",
        after="encoded = noise_mask[:, None]",
        test=_T + "test_force_encoding_switch_changes_only_what_reaches_the_encoding",
    ),
    Mutation(
        mistake="the switch for all atoms ignored",
        file=DENS,
        before="        if self.config.partial:\n",
        after="        if True:\n",
        test=_T + "test_all_atoms_corrupted_leaves_ordinary_structures_alone",
    ),
    Mutation(
        mistake="one draw for the whole batch",
        file=DENS,
        before="chosen = uniform(keys, Use.CHOOSE_SYSTEM) <",
        after="chosen = uniform(keys[:1].expand_as(keys), Use.CHOOSE_SYSTEM) <",
        test=_T + "test_each_structure_is_chosen_for_itself",
    ),
    Mutation(
        mistake="fixed atoms corrupted",
        file=DENS,
        before="        drawn = batch.free_atoms\n",
        after="        drawn = torch.ones_like(batch.fixed)\n",
        test=_T + "test_probability_one_and_ratio_one_corrupt_every_free_atom",
    ),
    Mutation(
        mistake="exclusion ignored",
        file=DENS,
        before="chosen = chosen & self._allowed(batch, targets, drawn)",
        after="chosen = chosen | (self._allowed(batch, targets, drawn) & False)",
        test="tests/tasks/test_dens_exclusion.py::test_the_settings_reach_the_corruption",
    ),
    Mutation(
        mistake="large forces on fixed atoms exclude a structure",
        file=DENS,
        before="batch.count_atoms(too_large & free & targets.forces_mask)",
        after="batch.count_atoms(too_large & targets.forces_mask)",
        test="tests/tasks/test_dens_exclusion.py::test_large_forces_on_free_atoms_refuse_the_structure",
    ),
    Mutation(
        mistake="the share of corrupted atoms is taken of all atoms, not of the free ones",
        file=DENS,
        before="config.max_corrupted_share * batch.count_atoms(free).double()",
        after="config.max_corrupted_share * batch.n_atoms.double()",
        test="tests/tasks/test_dens_exclusion.py::test_too_large_a_share_of_the_free_atoms_refuses_the_structure",
    ),
    Mutation(
        mistake="energies an atom that are of the structure",
        file=LABELS,
        before="difference = difference / batch.n_atoms",
        after="difference = difference / 1",
        test=_L + "test_huber_terms_are_those_of_torch",
    ),
    Mutation(
        mistake="the mean error of the stress that is its norm",
        file=LABELS,
        before='mean = config.stress_loss == "mae"',
        after='mean = config.stress_loss != "mae"',
        test=_L + "test_huber_terms_are_those_of_torch",
    ),
    Mutation(
        mistake="draws depend on the place in the batch",
        file=CORRUPTION,
        before="batch.number_in_system[:, None]\n",
        after="torch.arange(batch.num_atoms, device=keys.device)[:, None]\n",
        test=_T + "test_a_structure_draws_the_same_in_any_batch",
    ),
    Mutation(
        mistake="stress scored on corrupted structures",
        file=DENS,
        before="stress_scored=self._untouched(prepared),",
        after="stress_scored=torch.ones_like(energy),",
        test=_L + "test_published_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="noise scored on all atoms",
        file=CORRUPTION,
        before="        scored=prepared.noise_mask,\n",
        after="        scored=batch.free_atoms,\n",
        test=_L + "test_published_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="the coefficient does not decay",
        file=CORRUPTION,
        before='return 1.0 - progress if self.coefficient_decay == "linear" else 1.0\n',
        after="return 1.0\n",
        test=_T + "test_the_coefficient_falls_to_zero_or_stays",
    ),
    Mutation(
        mistake="forces of fixed atoms scored",
        file=LABELS,
        before="existing = targets.forces_mask & batch.free_atoms",
        after="existing = targets.forces_mask",
        test=_L + "test_published_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="missing energies scored",
        file=LABELS,
        before="scored = targets.energy_mask & energy_scored",
        after="scored = energy_scored",
        test=_L + "test_missing_labels_count_nowhere",
    ),
    Mutation(
        mistake="published norms squared",
        file=LOSSES,
        before="return torch.linalg.vector_norm(difference, dim=-1)",
        after="return difference.square().sum(dim=-1)",
        test=_L + "test_published_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="a norm without a gradient at zero",
        file=LOSSES,
        before="return torch.linalg.vector_norm(difference, dim=-1)",
        after="return difference.square().sum(dim=-1).sqrt()",
        test=_L + "test_a_perfect_prediction_has_loss_zero_and_finite_gradients",
    ),
    Mutation(
        mistake="paper's loss divided by the scored atoms",
        file=LOSSES,
        before="atoms = batch.count_atoms(existing)",
        after="atoms = batch.count_atoms(scored)",
        test=_L + "test_paper_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="Huber's function of each component",
        file=LOSSES,
        before="return self._of_squared(difference.square().sum(dim=-1))",
        after="return self._of_squared(difference.square()).sum(dim=-1)",
        test=_L + "test_huber_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="Huber's function from a root without a gradient at zero",
        file=LOSSES,
        before="torch.where(small, torch.ones_like(squared), squared).sqrt()",
        after="squared.sqrt()",
        test=_L + "test_a_perfect_prediction_has_loss_zero_and_finite_gradients",
    ),
    Mutation(
        mistake="Huber's delta left at its default",
        file=LABELS,
        before="HuberLoss(self.huber_delta)",
        after="HuberLoss(0.01)",
        test=_L + "test_huber_loss_of_the_worked_example",
    ),
    Mutation(
        mistake="force errors of fixed atoms in the metrics",
        file=METRICS,
        before="atoms = targets.forces_mask & batch.free_atoms\n        mask = atoms[:, None].expand_as(forces)",
        after="atoms = targets.forces_mask\n        mask = atoms[:, None].expand_as(forces)",
        test=_M + "test_metrics_of_the_worked_example",
    ),
    Mutation(
        mistake="Noisy Nodes: target not divided by sigma",
        file=NOISY_NODES,
        before="noise - targets.relaxation / sigma, noise)",
        after="noise - targets.relaxation, noise)",
        test=_N + "test_the_target_is_the_way_to_the_relaxed_positions",
    ),
    Mutation(
        mistake="Noisy Nodes: relaxed positions ignored",
        file=NOISY_NODES,
        before="            noise=target,\n",
        after="            noise=noise,\n",
        test=_N + "test_the_target_is_the_way_to_the_relaxed_positions",
    ),
    Mutation(
        mistake="Noisy Nodes: relaxed positions expected of every structure",
        file=NOISY_NODES,
        before="relaxing = (noise_mask & targets.relaxation_mask)[:, None]",
        after="relaxing = noise_mask[:, None]",
        test=_N + "test_the_target_is_the_way_to_the_relaxed_positions",
    ),
    Mutation(
        mistake="Noisy Nodes: shown the forces",
        file=NOISY_NODES,
        before="            force_input=torch.zeros_like(batch.positions),\n",
        after="            force_input=torch.where(noise_mask[:, None], targets.forces, 0.0),\n",
        test=_N + "test_every_free_atom_is_displaced_and_no_force_is_shown",
    ),
    Mutation(
        mistake="Noisy Nodes: fixed atoms displaced",
        file=NOISY_NODES,
        before="noise_mask = batch.free_atoms &",
        after="noise_mask = torch.ones_like(batch.fixed) &",
        test=_N + "test_every_free_atom_is_displaced_and_no_force_is_shown",
    ),
    Mutation(
        mistake="Noisy Nodes: labels of corrupted structures not scored",
        file=NOISY_NODES,
        before="label_terms(self.config, prediction, prepared)",
        after="label_terms(self.config, prediction, prepared, forces_scored=~prepared.noise_mask)",
        test=_N + "test_all_labels_are_scored_and_stay_those_of_the_original",
    ),
    Mutation(
        mistake="the strain deforms the cell, not the atoms",
        file=BATCH,
        before="replace(batch, positions=positions, cell=batch.cell + batch.cell @ symmetric)",
        after="replace(batch, cell=batch.cell + batch.cell @ symmetric)",
        test=_C + "test_strained_crystals_deform_as_a_whole_and_others_not",
    ),
    Mutation(
        mistake="the strain is not symmetric",
        file=CELL_DENS,
        before="return (drawn + drawn.mT) / 2",
        after="return drawn",
        test=_C + "test_strained_crystals_deform_as_a_whole_and_others_not",
    ),
    Mutation(
        mistake="stress encoded without the volume",
        file=CELL_DENS,
        before="(batch.cell.det().abs() / batch.n_atoms)",
        after="(1.0 / batch.n_atoms)",
        test=_C + "test_the_encoded_virial_is_that_of_the_original_structure",
    ),
    Mutation(
        mistake="stress encoded on structures that are not strained",
        file=CELL_DENS,
        before="encoded = chosen & self.config.stress_encoding",
        after="encoded = torch.ones_like(chosen) & self.config.stress_encoding",
        test=_C + "test_the_encoded_virial_is_that_of_the_original_structure",
    ),
    Mutation(
        mistake="structures without a stress are strained",
        file=CELL_DENS,
        before=" & targets.stress_mask  # [B]",
        after="",
        test=_C + "test_crystals_that_cannot_be_strained_are_left_alone",
    ),
    Mutation(
        mistake="the stress of strained crystals is scored",
        file=CELL_DENS,
        before="return super()._untouched(prepared) & ~prepared.strain_mask",
        after="return super()._untouched(prepared)",
        test=_C + "test_what_is_scored",
    ),
    Mutation(
        mistake="the strain scored on all crystals",
        file=CELL_DENS,
        before="self.config.form, prepared.strain_mask",
        after="self.config.form, torch.ones_like(prepared.strain_mask)",
        test=_C + "test_what_is_scored",
    ),
    Mutation(
        mistake="one sigma for all elements",
        file=CORRUPTION,
        before="        return found[:, None]\n",
        after="        return torch.full_like(found, mean)[:, None]\n",
        test=_E + "test_each_atom_moves_by_the_sigma_of_its_element",
    ),
    Mutation(
        mistake="a table of sigma that does not follow sigma_end",
        file=CORRUPTION,
        before="        scale = mean / fmean(self.sigma.values())\n",
        after="        scale = 1.0\n",
        test=_E + "test_the_mean_moves_to_sigma_end_in_the_same_proportions",
    ),
    Mutation(
        mistake="NDeM: the sign of the change of the forces",
        file=NDEM,
        before='prediction["forces"].index_select(0, original) - prediction["noise"]',
        after='prediction["noise"] - prediction["forces"].index_select(0, original)',
        test=_D + "test_the_change_of_the_forces_is_compared_with_the_noise",
    ),
    Mutation(
        mistake="NDeM: the forces left out of the target",
        file=NDEM,
        before='prediction["forces"].index_select(0, original) - prediction["noise"]',
        after='-prediction["noise"]',
        test=_D + "test_the_change_of_the_forces_is_compared_with_the_noise",
    ),
    Mutation(
        mistake="NDeM: no gradient into the forces of the structure",
        file=NDEM,
        before='prediction["forces"].index_select(0, original) - prediction["noise"]',
        after='prediction["forces"].detach().index_select(0, original) - prediction["noise"]',
        test=_D + "test_gradients_reach_the_forces_of_the_structures_and_the_head_of_the_copies",
    ),
    Mutation(
        mistake="NDeM: half of all atoms taken for the structures",
        file=NDEM,
        before="batch.n_atoms[: batch.num_systems // 2].sum()",
        after="torch.tensor(batch.num_atoms // 2)",
        test="tests/contract/test_recording.py::test_ghosts_change_no_term",
    ),
    Mutation(
        mistake="NDeM: the structures displaced, too",
        file=NDEM,
        before="displaced(both, _for_copies(displacement))",
        after="displaced(both, torch.cat([displacement, displacement]))",
        test=_D + "test_structures_stay_and_copies_are_displaced",
    ),
    Mutation(
        mistake="NDeM: labels on the displaced copies",
        file=NDEM,
        before="torch.cat([value, torch.zeros_like(value)])",
        after="torch.cat([value, value])",
        test=_D + "test_only_the_structures_have_labels",
    ),
    Mutation(
        mistake="NDeM: noise of one size",
        file=NDEM,
        before="noise = size[batch.system_index, None] * draw_noise",
        after="noise = draw_noise",
        test=_D + "test_noise_of_a_structure_has_one_size_between_the_bounds",
    ),
    Mutation(
        mistake="AniDS: the noise that was drawn as target",
        file=ANIDS,
        before="noise=zero_unless(prepared.noise_mask, variance[:, None] * score),",
        after="noise=prepared.noise,",
        test=_A + "test_the_target_is_the_score_times_the_variance",
    ),
    Mutation(
        mistake="AniDS: the covariance in place of its root",
        file=ANIDS,
        before="(factor @ drawn)[..., 0]",
        after="(covariance @ drawn)[..., 0]",
        test=_A + "test_noise_has_the_covariance",
    ),
    Mutation(
        mistake="AniDS: more noise along bonds",
        file=ANIDS,
        before="identity.index_add(0, target, -outer)",
        after="identity.index_add(0, target, outer)",
        test=_A + "test_covariances_are_positive_turn_with_the_structure_and_are_small_along_bonds",
    ),
    Mutation(
        mistake="AniDS: no gradient through the displaced positions",
        file=ANIDS,
        before="positions=batch.positions + displacement, edges=None)",
        after="positions=batch.positions + displacement.detach(), edges=None)",
        test=_A + "test_gradients_pass_through_positions_and_target_into_the_network",
    ),
    Mutation(
        mistake="AniDS: the penalty on all atoms",
        file=ANIDS,
        before="zero_unless(prepared.noise_mask, penalty).sum()",
        after="penalty.sum()",
        test=_A + "test_the_penalty_counts_corrupted_atoms",
    ),
    Mutation(
        mistake="AniDS: the model cuts the gradient at the positions",
        file="models/base.py",
        before="positions = given if given.requires_grad else given.detach().requires_grad_()",
        after="positions = given.detach().requires_grad_()",
        test="tests/training/test_learned_task.py::test_the_network_learns_from_all_terms",
    ),
]


def run(package_parent: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run some tests against the package found in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(package_parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def notices(mutation: Mutation, package_parent: Path) -> str:
    """What is wrong with a mutation's test, or nothing.  ``package_parent`` holds a copy of the package."""
    path = package_parent / "denskit" / mutation.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutation.before) != 1:
        return f"its text occurs {source.count(mutation.before)} times in {mutation.file}, wanted once"
    path.write_text(source.replace(mutation.before, mutation.after), encoding="utf-8")
    result = run(package_parent, [mutation.test])
    path.write_text(source, encoding="utf-8")
    if result.returncode == 0:
        return "the test passes all the same"
    # 1 means that a test failed; anything else, or an error outside a test, says nothing about the mutation.
    broken = result.returncode != 1 or any(
        word in result.stdout for word in ("SyntaxError", "NameError", "ImportError")
    )
    return f"the run broke:\n{result.stdout[-2000:]}{result.stderr[-2000:]}" if broken else ""


def main() -> int:
    """Carry out all mutations and print the table."""
    markdown = "--markdown" in sys.argv[1:]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        parent = Path(folder)
        shutil.copytree(ROOT / "src" / "denskit", parent / "denskit", ignore=shutil.ignore_patterns("__pycache__"))
        whole = run(parent, sorted({mutation.test for mutation in MUTATIONS}))
        if whole.returncode != 0:
            print(f"The named tests must pass on the code as it is:\n{whole.stdout[-4000:]}{whole.stderr[-2000:]}")
            return 1
        if markdown:
            print("| Mutation | File | Test that fails |\n|---|---|---|")
        for mutation in MUTATIONS:
            wrong = notices(mutation, parent)
            failures += bool(wrong)
            if markdown:
                print(f"| {mutation.mistake} | `{mutation.file}` | {wrong or f'`{mutation.test}`'} |", flush=True)
            else:
                print(f"{'MISSED' if wrong else 'caught'}  {mutation.mistake}: {wrong or mutation.test}", flush=True)
    print(f"{len(MUTATIONS) - failures} of {len(MUTATIONS)} mutations caught.", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
