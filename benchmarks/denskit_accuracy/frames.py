"""The frames that all programs see: data sets, and their training, validation and test files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator

from denskit.files import write_json

SEED = 0


@dataclass(frozen=True, kw_only=True)
class FrameSet:
    """Training and validation frames are drawn from one file, test frames from another."""

    settings: str  # the section of the settings files
    train_file: str
    test_file: str
    train: int
    valid: int = 50
    test: int = 200
    stress: bool = False  # whether it is trained on, and judged


SETS = {
    "ethanol-50": FrameSet(
        settings="rmd17", train_file="rmd17_ethanol_a.extxyz", test_file="rmd17_ethanol_b.extxyz", train=50
    ),
    "3bpa-50": FrameSet(
        settings="3bpa", train_file="3bpa_train_300K.extxyz", test_file="3bpa_test_300K.extxyz", train=50
    ),
    "aspirin-50": FrameSet(
        settings="rmd17", train_file="rmd17_aspirin_train.extxyz", test_file="rmd17_aspirin_test.extxyz", train=50
    ),
    "metals-50": FrameSet(
        settings="metals",
        train_file="bcc_metals_300K_train.extxyz",
        test_file="bcc_metals_300K_test.extxyz",
        train=50,
        valid=20,
        test=32,
    ),
    "alloys-50": FrameSet(
        settings="alloys",
        train_file="bcc_binary_train.extxyz",
        test_file="bcc_binary_test.extxyz",
        train=50,
        test=150,
        stress=True,
    ),
    "ethanol-200": FrameSet(
        settings="rmd17", train_file="rmd17_ethanol_a.extxyz", test_file="rmd17_ethanol_b.extxyz", train=200
    ),
}


def write_frames(frame_set: FrameSet, data: Path, folder: Path) -> None:
    """Write train.extxyz, valid.extxyz and test.extxyz, and frames.json with the indices; leave them alone if there.

    Energies are less the elements' references, fitted on the training frames: a program that computes in float32 then
    loses nothing in a large constant.  Test frames that also occur in the training file are left out.

    Raises FileNotFoundError for a missing data file and ValueError for one with too few frames, or without stress where
    the set asks for it.
    """
    if (folder / "frames.json").exists():
        return
    pool, tests = (_read(data / file) for file in (frame_set.train_file, frame_set.test_file))
    order = np.random.default_rng(SEED).permutation(len(pool))
    seen = {_fingerprint(atoms) for atoms in pool}
    unseen = np.array([number for number, atoms in enumerate(tests) if _fingerprint(atoms) not in seen])
    _require(data / frame_set.train_file, len(pool), frame_set.train + frame_set.valid)
    _require(data / frame_set.test_file, len(unseen), frame_set.test)
    chosen = {
        "train": order[: frame_set.train],
        "valid": order[frame_set.train : frame_set.train + frame_set.valid],
        "test": np.sort(np.random.default_rng(SEED).permutation(unseen)[: frame_set.test]),
    }
    if frame_set.stress:
        _require_stress(data / frame_set.train_file, [pool[index] for index in (*chosen["train"], *chosen["valid"])])
        _require_stress(data / frame_set.test_file, [tests[index] for index in chosen["test"]])
    references = element_references([pool[index] for index in chosen["train"]])
    folder.mkdir(parents=True, exist_ok=True)
    for split, indices in chosen.items():
        source = tests if split == "test" else pool
        ase.io.write(
            folder / f"{split}.extxyz", [_plain(source[index], references, frame_set.stress) for index in indices]
        )
    write_json(
        folder / "frames.json",
        {
            "files": {"train": frame_set.train_file, "valid": frame_set.train_file, "test": frame_set.test_file},
            "indices": {split: indices.tolist() for split, indices in chosen.items()},
            "references_eV": references,
        },
    )


def element_references(frames: list[ase.Atoms]) -> dict[str, float]:
    """Energies of the elements, eV: the shortest least-squares solution over the frames' total energies."""
    elements = sorted({symbol for atoms in frames for symbol in atoms.symbols})
    counts = np.array([[atoms.symbols.count(element) for element in elements] for atoms in frames], dtype=float)
    energies = np.array([atoms.get_potential_energy() for atoms in frames])
    return dict(zip(elements, np.linalg.lstsq(counts, energies, rcond=None)[0].tolist(), strict=True))


def labels_of(file: Path) -> tuple[np.ndarray, list[np.ndarray], np.ndarray | None]:
    """Energies [frames] in eV, forces [atoms, 3] of each frame in eV/Å, stresses [frames, 6] in eV/Å^3 or None."""
    frames = _read(file)
    energies, forces = [atoms.get_potential_energy() for atoms in frames], [atoms.get_forces() for atoms in frames]
    stress = np.array([atoms.get_stress() for atoms in frames]) if "stress" in frames[0].calc.results else None
    return np.array(energies), forces, stress


def elements_of(folder: Path) -> list[str]:
    """Elements of the training frames."""
    return list(json.loads((folder / "frames.json").read_text(encoding="utf-8"))["references_eV"])


def _read(file: Path) -> list[ase.Atoms]:
    return list(ase.io.iread(file))


def _plain(atoms: ase.Atoms, references: dict[str, float], stress: bool) -> ase.Atoms:
    """Positions, cell, energy less references, forces, with ``stress`` it, too: all that the programs are to know."""
    plain = ase.Atoms(atoms.symbols, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    energy = atoms.get_potential_energy() - sum(references[symbol] for symbol in atoms.symbols)
    labels = {"energy": energy, "forces": atoms.get_forces(apply_constraint=False)}
    if stress:
        labels["stress"] = atoms.get_stress(apply_constraint=False)
    plain.calc = SinglePointCalculator(plain, **labels)
    return plain


def _fingerprint(atoms: ase.Atoms) -> bytes:
    return np.round(atoms.positions, 6).tobytes()


def _require_stress(file: Path, frames: list[ase.Atoms]) -> None:
    without = sum("stress" not in atoms.calc.results for atoms in frames)
    if without:
        raise ValueError(f"{file}: {without} of {len(frames)} chosen frames have no stress, which this set trains on")


def _require(file: Path, found: int, wanted: int) -> None:
    if found < wanted:
        raise ValueError(f"{file}: {found} frames that can be used, {wanted} are wanted; take the complete file")
