"""Models of crystals against DFT: relaxation of unseen alloys, elastic constants of metals.

    python benchmarks/crystal_references.py alloys DATA OUT RUN [RUN ...]
    python benchmarks/crystal_references.py elastic DATA OUT RUN [RUN ...]

DATA holds bcc_binary_train.extxyz, bcc_binary_test.extxyz and bcc_metals_elastic.extxyz (Li et al. 2020).  ``alloys``
relaxes the 48 test cells whose relaxed counterpart DFT knows, by the protocol of Matbench Discovery; the hull has the
relaxed training alloys and the elements.  ``elastic`` compares C11, C12 and C44 with central differences of the stress
of cells that DFT strained by 2 %.  Tables in Markdown; OUT keeps the work of each run, and is gone on with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator

from denskit import Potential
from denskit.evaluation.convex_hull import ConvexHull
from denskit.evaluation.discovery import UNMATCHED, Materials, discover_into, rmsd_function
from denskit.evaluation.judged_structures import source_of
from denskit.simulation.crystals import CrystalSettings
from denskit.simulation.crystals.folder import CUBIC, measure_into
from denskit.units import GPA

METALS = ("Nb", "Mo", "Ta", "W")
UNSTRAINED, STRAIN = "1--0.0000", "0.0200"  # as the labels of the strained cells have it
VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


def alloys_of(file: Path, kind: str) -> dict[str, ase.Atoms]:
    """Alloys of one kind, relaxed or not, by name."""
    frames = [atoms for atoms in ase.io.read(file, ":") if atoms.info["kind"] == kind]
    return {f"{atoms.info['binary']}-{atoms.info['label']}": atoms for atoms in frames}


def metals_of(data: Path) -> dict[str, dict[str, ase.Atoms]]:
    """Metals by strain and element."""
    found: dict[str, dict[str, ase.Atoms]] = {}
    for atoms in ase.io.read(data / "bcc_metals_elastic.extxyz", ":"):
        found.setdefault(atoms.info["label"], {})[str(atoms.symbols[0])] = atoms
    return found


def written(file: Path, frames: dict[str, ase.Atoms]) -> Path:
    """The frames in a file, with their labels and names."""
    named = []
    for name, atoms in frames.items():
        one = atoms.copy()
        one.info = {"material_id": name}
        one.calc = SinglePointCalculator(one, **atoms.calc.results)
        named.append(one)
    ase.io.write(file, named)
    return file


def relax_alloys(data: Path, out: Path, runs: list[Path]) -> None:
    """Relax the alloys with each run's model and print the errors."""
    first, last = (alloys_of(data / "bcc_binary_test.extxyz", kind) for kind in ("unrelax", "relax"))
    first = {name: first[name] for name in last}
    phases = alloys_of(data / "bcc_binary_train.extxyz", "relax") | metals_of(data)[UNSTRAINED]
    start, end = written(out / "initial.extxyz", first), written(out / "relaxed.extxyz", last)
    hull, distance = written(out / "hull.extxyz", phases), rmsd_function()
    energies = [abs(a.get_potential_energy() - last[n].get_potential_energy()) / len(a) for n, a in first.items()]
    gone = [abs(a.get_volume() / last[name].get_volume() - 1) for name, a in first.items()]
    apart = [] if distance is None else [distance(atoms, last[name]) for name, atoms in first.items()]
    far = f"{np.mean([UNMATCHED if one is None else one for one in apart]):.4f}" if apart else ""
    error, volume = f"{1000 * np.mean(energies):.1f}", f"{100 * np.mean(gone):.2f}"
    rows = [["not moved (energies of DFT)", error, "", far, volume, ""]]
    for run in runs:
        work = out / f"alloys-{named(run)}"
        materials = Materials(
            source_of(run, start, ""), start, ConvexHull(source_of(run, hull, ""), str(hull)),
            (source_of(run, end, ""), end),
        )  # fmt: skip
        found = discover_into(work, Potential(run, stress=True), materials, resume=True)
        assert found is not None
        moved = {atoms.info["material_id"]: atoms for atoms in ase.io.read(work / "relaxed.extxyz", ":")}
        gone = [abs(atoms.get_volume() / last[name].get_volume() - 1) for name, atoms in moved.items()]
        far = f"{found['rmsd']:.4f}" if "rmsd" in found else ""
        error = f"{1000 * found['energy_MAE_eV_per_atom']:.1f}"
        converged = f"{found.get('converged', 0)} of {found['materials']}"
        right, wrong = found["true_positives"], found["false_positives"]
        stable = f"{right} of {right + found['false_negatives']}, {wrong} wrongly"
        rows.append([named(run), error, stable, far, f"{100 * np.mean(gone):.2f}", converged])
    heads = ["energy, meV/atom", "called stable", "RMSD", "volume, %", "converged"]
    table(["", *heads], rows)


def cubic_constants(metals: dict[str, dict[str, ase.Atoms]]) -> dict[str, np.ndarray]:
    """C11, C12 and C44 of the metals by the stresses of DFT, GPa."""
    found = {}
    for metal, relaxed in metals[UNSTRAINED].items():
        constants = np.zeros((6, 6))
        for mode in range(1, 7):
            up, down = (metals[f"{mode}-{sign}{STRAIN}"][metal] for sign in ("-", "--"))
            change = np.linalg.solve(relaxed.cell.array, up.cell.array - down.cell.array)
            strain = np.array([(change[i, j] + change[j, i]) / (2 if i == j else 1) for i, j in VOIGT])
            place = np.abs(strain).argmax()
            constants[:, place] = (up.get_stress() - down.get_stress()) / strain[place] / GPA
        upper, shear = constants[:3, :3], constants.diagonal()[3:]
        found[metal] = np.array([upper.diagonal().mean(), upper[~np.eye(3, dtype=bool)].mean(), shear.mean()])
    return found


def compare_elastic(data: Path, out: Path, runs: list[Path]) -> None:
    """Measure the metals with each run's model and print their constants."""
    metals = metals_of(data)
    file, known = written(out / "metals.extxyz", metals[UNSTRAINED]), cubic_constants(metals)
    rows = [["DFT", *(", ".join(f"{value:.0f}" for value in known[metal]) for metal in METALS), "", ""]]
    for run in runs:
        work = out / f"elastic-{named(run)}"
        source = source_of(run, file, "")
        potential = Potential(run, stress=True, dtype="float64")
        found = measure_into(work, potential, source, CrystalSettings(), resume=True)
        assert found is not None
        own = {one["formula"]: np.array([one.get(name, np.nan) for name in CUBIC], float) for one in found}
        error = np.mean([np.abs(own[metal] - known[metal]) for metal in METALS])
        bulk = 100 * np.mean([(own[m][0] + 2 * own[m][1]) / (known[m][0] + 2 * known[m][1]) - 1 for m in METALS])
        constants = (", ".join(f"{v:.0f}" for v in own[metal]) for metal in METALS)
        rows.append([named(run), *constants, f"{error:.0f}", f"{bulk:+.0f}"])
    table(["C11, C12, C44, GPa", *METALS, "mean error, GPa", "bulk modulus (C11 + 2 C12) / 3, %"], rows)


def named(run: Path) -> str:
    """A run of a study by the names of both."""
    return f"{run.absolute().parents[1].name}-{run.name}"


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("alloys", "elastic"))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measure = relax_alloys if arguments.what == "alloys" else compare_elastic
    measure(arguments.data, arguments.out, arguments.runs)


if __name__ == "__main__":
    main()
