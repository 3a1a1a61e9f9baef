"""Does DeNS help on few real relaxations?  Five folds, with and without it, paired by system.

    python benchmarks/oc20_folds.py train FILE.npz RUNS --preset PRESET [--steps 800] [--folds 0 1 2 3 4] [--seed 0]
    python benchmarks/oc20_folds.py table RUNS

FILE.npz holds labelled frames of several systems (see docs/data_oc.md).  A system's frames are all in one fold; with
``--by frame`` each fold holds out every fifth frame of each system instead, so that all systems are trained on.  Each
fold is trained twice, task=energy_forces and task=dens, from the same initial weights and over the same order of the
structures, and judged on what it has not seen.  ``--network fairchem`` trains fairchem's EquiformerV2 in the same way
(oc20_fairchem.py).  A run that is there is resumed or left alone, so the command can be repeated until all are done.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import oc20_fairchem
from denskit import load_config, workflow
from denskit.batch import MAX_ATOMIC_NUMBER
from denskit.data import DataConfig, Splits, Subset, read_file
from denskit.data.structure_arrays import StructureArrays
from denskit.evaluation.evaluate import evaluate
from denskit.files import sha256_of
from denskit.models.model_file import load_model
from denskit.training.run_folder import model_file

TASKS = ("energy_forces", "dens")
# the paper's for OC20 S2EF-2M, 12 epochs
OC20_DENS = ["task.probability=0.5", "task.sigma=0.1", "task.corruption_ratio=0.5", "task.coefficient=10"]


def folds_of(groups: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """The systems of each fold: dealt in turn, those with most frames first, so that the folds are alike in size."""
    names, frames = np.unique(groups, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-frames[order], kind="stable")]
    return [names[order[number::count]] for number in range(count)]


def held_out_by_system(groups: np.ndarray, count: int, number: int) -> np.ndarray:
    """Mask of the frames of the systems of a fold."""
    return np.isin(groups, folds_of(groups, count, seed=0)[number])


def held_out_by_frame(groups: np.ndarray, count: int, number: int) -> np.ndarray:
    """Mask of a fold's share of the frames of each system, drawn at random."""
    test = np.zeros(len(groups), dtype=bool)
    for name in np.unique(groups):
        frames = np.random.default_rng(0).permutation(np.flatnonzero(groups == name))
        test[frames[number::count]] = True
    return test


HELD_OUT = {"system": held_out_by_system, "frame": held_out_by_frame}


def split_of(file: Path, test: np.ndarray, how: str) -> Splits:
    """The held-out frames for test, all others for training."""
    return Splits(
        train=np.flatnonzero(~test),
        valid=np.array([], dtype=np.int64),
        test=np.flatnonzero(test),
        file=file.name,
        size=file.stat().st_size,
        sha256=sha256_of(file),
        how=how,
    )


def train(arguments: argparse.Namespace) -> None:
    """Train and judge what is missing of the folds and tasks asked for."""
    if arguments.network == "fairchem":
        oc20_fairchem.register()
    file, runs = Path(arguments.file).resolve(), Path(arguments.runs)
    frames, _ = read_file(file, DataConfig())
    groups = np.array(frames.groups)
    runs.mkdir(parents=True, exist_ok=True)
    for number in arguments.folds:
        test = HELD_OUT[arguments.by](groups, arguments.count, number)
        saved = runs / f"fold{number}.json"
        splits = split_of(file, test, f"fold {number} of {arguments.count} by {arguments.by}, {arguments.network}")
        if saved.is_file() and Splits.read(saved).how != splits.how:
            raise SystemExit(f"{saved} is of {Splits.read(saved).how}, not of {splits.how}: give another folder RUNS")
        splits.save(saved)
        for task in arguments.tasks:
            run = runs / f"fold{number}-{task}-seed{arguments.seed}"
            if (run / "systems.json").is_file():
                continue
            settings = [f"task={task}", f"data.path={file}", f"data.split.file={saved}", f"output={run}"]
            settings += [f"training.max_steps={arguments.steps}", f"seed={arguments.seed}", *arguments.settings]
            if task == "dens":
                settings += OC20_DENS
            if arguments.network == "fairchem":
                settings += [f"model.name={oc20_fairchem.NAME}", f"model.num_basis={oc20_fairchem.BASIS}"]
            workflow.train(load_config(arguments.preset, settings), resume=True, progress=True)
            held_out = {name: np.flatnonzero(test & (groups == name)) for name in np.unique(groups[test])}
            judged = {str(name): chosen[:: arguments.every] for name, chosen in held_out.items()}
            errors = judge(run, judged, frames)
            (run / "systems.json").write_text(json.dumps(errors, indent=2) + "\n", encoding="utf-8")


def judge(run: Path, systems: dict[str, np.ndarray], frames: StructureArrays) -> dict[str, dict[str, float]]:
    """Errors on the given frames of each system, and how many of its elements the training has not seen.

    With 25 systems a held-out one often has an element of its own.  Its forces are judged all the same (its embedding
    is then the initial one, the same for both tasks) and counted apart; its energy would mean nothing.
    """
    model = load_model(model_file(run, None))
    known = set(model.scaling.elements)
    model.scaling.elements = list(range(1, MAX_ATOMIC_NUMBER + 1))
    found = {}
    for name, chosen in systems.items():
        unseen = set(frames[int(chosen[0])].atomic_numbers.tolist()) - known
        found[name] = {**evaluate(model, Subset(frames, chosen, name), batch_size=8), "unseen_elements": len(unseen)}
    return found


def table(arguments: argparse.Namespace) -> None:
    """Errors by system, paired differences, mean and standard error over the systems."""
    found: dict[str, dict[str, dict[str, float]]] = {task: {} for task in TASKS}
    for file in sorted(Path(arguments.runs).glob("fold*-*-seed*/systems.json")):
        fold, task, seed = file.parent.name.split("-")
        for system, errors in json.loads(file.read_text(encoding="utf-8")).items():
            found[task][f"{fold} {seed} {system}"] = errors
    shown = Table("fold, seed, system", *TASKS, "difference", title="Force MAE of free atoms (meV/Å), systems not seen")
    pairs = sorted(found[TASKS[0]].keys() & found[TASKS[1]].keys())
    for name in pairs:
        plain, dens = (found[task][name]["forces_mae_meV_per_A"] for task in TASKS)
        mark = " *" if found[TASKS[0]][name]["unseen_elements"] else ""
        shown.add_row(name + mark, f"{plain:.1f}", f"{dens:.1f}", f"{dens - plain:+.1f}")
    Console().print(shown)
    print("* has elements that its training did not see")
    judged = {
        "all systems": pairs,
        "all elements seen": [n for n in pairs if not found[TASKS[0]][n]["unseen_elements"]],
    }
    for label, names in judged.items():
        values = np.array([[found[task][name]["forces_mae_meV_per_A"] for task in TASKS] for name in names])
        if len(values) > 1:
            print(f"{label}: {summary(values)}")
    for task in TASKS:
        shares = [errors["forces_mae_relative_to_zero"] for errors in found[task].values()]
        if shares:
            print(f"{task}: {np.mean(shares):.3f} of the error of predicting zero forces; at 1 nothing was learnt")


def summary(values: np.ndarray) -> str:
    """Means of both columns [systems, 2], their paired difference with its standard error, and a verdict."""
    difference = values[:, 1] - values[:, 0]
    error = difference.std(ddof=1) / len(difference) ** 0.5
    return (
        f"mean over {len(values)} systems {values[:, 0].mean():.1f} without, {values[:, 1].mean():.1f} with DeNS; "
        f"paired difference {difference.mean():+.2f} +- {error:.2f} meV/Å (standard error): "
        f"{'beyond' if abs(difference.mean()) > 2 * error else 'within'} two standard errors"
    )


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    training = verbs.add_parser("train", help="train and judge")
    training.add_argument("file")
    training.add_argument("runs")
    training.add_argument("--preset", required=True)
    training.add_argument("--steps", type=int, default=800)
    training.add_argument("--by", choices=HELD_OUT, default="system", help="what a fold holds out")
    training.add_argument("--network", choices=("denskit", "fairchem"), default="denskit")
    training.add_argument("--count", type=int, default=5, help="number of folds")
    training.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    training.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--every", type=int, default=4, help="judge every so many frames of a system")
    training.add_argument("--settings", nargs="*", default=[], help="further key=value for denskit train")
    training.set_defaults(call=train)
    shown = verbs.add_parser("table", help="show what was found")
    shown.add_argument("runs")
    shown.set_defaults(call=table)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
