"""Train the models of the zoo, judge them and write them with their cards into src/denskit/zoo.

    python scripts/make_zoo.py FOLDER [--data FOLDER] [NAME ...]

Runs go into FOLDER; finished ones are only judged, interrupted ones continue.  --data holds the files that do not ship:
rmd17_ethanol_a.extxyz and rmd17_ethanol_b.extxyz, 1,000 frames each of revised MD17.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ase.io
import torch

from denskit.evaluation.evaluate import evaluate
from denskit.evaluation.judged_structures import run_data
from denskit.models.model_file import load_model, read_header, save_model
from denskit.zoo import CARDS, FOLDER

# 32 radial functions: many structures of one molecule resolve more than the 12 of the preset
COMMON = [
    "model.num_basis=32", "training.max_steps=8000", "training.evaluate_every=1000 steps", "training.log_every=100"
]  # fmt: skip
RMD17 = ["data.name=file", "data.train=rmd17_ethanol_a.extxyz", "data.test=rmd17_ethanol_b.extxyz"]
RECIPES: dict[str, dict[str, Any]] = {
    "ethanol-xtb": {
        "settings": ["task=dens", *COMMON],
        "purpose": "ethanol at 500 K; to try Denskit, and to start from",
        "method": "GFN2-xTB",
        "data": "the embedded ethanol: 2,000 frames of Langevin dynamics at 500 K, made by this project",
        "licence": "MIT, data and model",
        "test": "360 later frames of the same simulation, 20 frames after the last one of validation",
    },
    "ethanol-rmd17": {
        "settings": ["task=energy_forces", *RMD17, "data.split.train=950", "data.split.valid=50", *COMMON],
        "purpose": "ethanol with DFT labels, at 500 K",
        "method": "PBE/def2-SVP",
        "data": "1,000 frames of revised MD17 ethanol (Christensen and von Lilienfeld 2020)",
        "licence": "CC0 data, MIT model",
        "test": "1,000 other frames of revised MD17, less those also in the training file",
    },
}
ERRORS = (
    "energy_mae_meV", "energy_rmse_meV", "forces_mae_meV_per_A", "forces_rmse_meV_per_A", "forces_mae_relative_to_zero"
)  # fmt: skip


def train(name: str, recipe: dict[str, Any], run: Path, data: Path) -> str:
    """Train, or continue; returns the command."""
    command = ["denskit", "train", "demo", *recipe["settings"]]
    if not (run / "model.safetensors").is_file():
        arguments = [*command, f"output={run.resolve()}", "--resume"]
        subprocess.run([sys.executable, "-m", *arguments], cwd=data, check=True)
    return " ".join(f'"{part}"' if " " in part else part for part in command)


def unseen(train: Path, test: Path, into: Path) -> Path:
    """The frames of ``test`` whose positions are not in ``train``, as a file."""
    known = {atoms.positions.round(6).tobytes() for atoms in ase.io.iread(train, index=":")}
    frames = [atoms for atoms in ase.io.iread(test, index=":") if atoms.positions.round(6).tobytes() not in known]
    ase.io.write(into, frames)
    return into


def package(name: str, recipe: dict[str, Any], run: Path, data: Path, command: str) -> dict[str, Any]:
    """Judge the run, write its model without paths of this machine; returns the card."""
    header = read_header(run)
    source = None
    if name == "ethanol-xtb":
        split = {part: len(getattr(run_data(run), part)) for part in ("train", "valid", "test")}
    else:
        source = unseen(data / "rmd17_ethanol_a.extxyz", data / "rmd17_ethanol_b.extxyz", run.parent / f"{name}.extxyz")
        split = {"train": 950, "valid": 50, "test": len(ase.io.read(source, index=":"))}
    errors = evaluate(run, source)
    environment = json.loads((run / "environment.json").read_text("utf-8"))
    metadata = header["metadata"]
    files = {
        part: Path(file).name for part, file in metadata["run"]["data"].items() if part in ("train", "test") and file
    }
    settings = metadata["run"] | {"output": f"runs/{name}", "data": metadata["run"]["data"] | files}
    kept = metadata | {"data": recipe["data"], "run": settings, "zoo": name}
    path = FOLDER / f"{name}.safetensors"
    save_model(path, load_model(run), kept)
    path.chmod(0o644)
    log = (run / "train.log").read_text("utf-8")
    return {
        "purpose": recipe["purpose"], "method": recipe["method"], "data": recipe["data"], "licence": recipe["licence"],
        "split": split, "test": recipe["test"], "errors": {key: round(errors[key], 4) for key in ERRORS},
        "command": command, "steps": metadata["step"],
        "note": note(log), "commit": environment["commit"],
        "versions": {package: environment["packages"][package] for package in ("torch", "numpy", "ase")},
        "parameters": header["parameters"], "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }  # fmt: skip


def note(log: str) -> str:
    """What the command does not say: a training that continued with another length, and so another schedule."""
    found = re.findall(r"resumed after step (\d+)\n.*changed on resume: training.max_steps: (\d+) -> (\d+)", log)
    return "; ".join(f"planned for {old} steps, and after step {step} for {new}" for step, old, new in found)


def main() -> None:
    """Train, judge and write the models asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--data", type=Path, default=Path())
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    for name in given.names or RECIPES:
        run = given.folder / name
        command = train(name, RECIPES[name], run, given.data)
        card = package(name, RECIPES[name], run, given.data, command)
        cards = json.loads(CARDS.read_text("utf-8")) | {name: card}  # another call may have written its own meanwhile
        CARDS.write_text(json.dumps(cards, indent=2, ensure_ascii=False) + "\n", "utf-8")
        print(name, cards[name]["errors"], cards[name]["split"])


if __name__ == "__main__":
    main()
