"""How each program is told to train on a folder of frames, and where it leaves its errors and its model."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from denskit_accuracy.frames import elements_of

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / "environments"


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training.  ``length`` and ``interval`` (between validations) are epochs or steps, as the program counts;
    ``settings`` and ``minutes`` choose among its settings.
    """

    frames: Path
    folder: Path
    settings: str
    stress: bool = False  # train on it
    minutes: float
    length: int
    interval: int


class Program(ABC):
    """A program that trains; ``python`` is that of its environment."""

    kind: ClassVar[str]  # of its calculator
    package: ClassVar[str]
    unit: ClassVar[str] = "epoch"
    batch_size: ClassVar[int] = 5
    line: ClassVar[str]  # pattern of a validation in its output: epoch or step, force MAE in meV/Å
    first: ClassVar[int]  # added to the epoch or step of that line
    environment: ClassVar[dict[str, str]] = {
        "PYTHONPATH": str(ENVIRONMENTS),
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # e3nn 0.4.4, which MACE pins, reads its constants by torch.load
    }

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python

    @abstractmethod
    def command(self, training: Training) -> list[str]:
        """The command that begins or resumes a training; writes the configuration that it names."""

    @abstractmethod
    def model(self, folder: Path) -> Path:
        """The trained model."""


class Mace(Program):
    """MACE by its command line."""

    kind, package = "mace", "mace-torch"
    line, first = r"Epoch (\d+): .*MAE_F= *([\d.]+) meV", 1

    def command(self, training: Training) -> list[str]:
        """``mace_run_train``; the exponential schedule ends stage one at the learning rate of stage two."""
        settings = _load("mace.yaml")
        options = settings["common"] | settings["sets"][training.settings] | _at(settings, training.minutes)
        if training.stress:
            options |= settings["stress"]
        start = max(1, int(settings["stage_one"] * training.length))
        options |= {
            "name": "model",
            "work_dir": training.folder,
            "train_file": training.frames / "train.extxyz",
            "valid_file": training.frames / "valid.extxyz",
            "energy_key": "energy",
            "forces_key": "forces",
            "max_num_epochs": training.length + 1,  # it validates after epochs 1, interval + 1, ...
            "eval_interval": training.interval,
            "patience": training.length,
            "start_swa": start,
            "lr_scheduler_gamma": (options["swa_lr"] / options["lr"]) ** (1 / start),
            "error_table": "PerAtomMAE",
            "device": "cpu",
            "seed": 0,
            "num_workers": 0,
            "plot": False,
        }
        flags = [f"--{flag}" for flag in [*settings["flags"], "restart_latest"]]
        given = [f"--{name}={value}" for name, value in options.items()]
        return [self.python, str(Path(self.python).parent / "mace_run_train"), *given, *flags]

    def model(self, folder: Path) -> Path:
        """Of stage two, with its averaged weights."""
        return folder / "model_stagetwo.model"


class Nequip(Program):
    """NequIP by its command line."""

    kind, package = "nequip", "nequip"
    line, first = r"epoch (\d+) forces MAE ([\d.]+)", 1

    def command(self, training: Training) -> list[str]:
        """``nequip-train`` on a configuration in the run's folder."""
        settings = _load("nequip.yaml")
        by_set, at = settings.pop("sets")[training.settings], _at(settings, training.minutes)
        settings.pop("minutes")
        stress = settings.pop("stress")
        settings |= by_set | at
        if training.stress:
            settings["training_module"] |= stress
        settings |= {
            "elements": elements_of(training.frames),
            "frames": str(training.frames),
            "folder": str(training.folder),
            "epochs": training.length,
            "interval": training.interval,
        }
        last = training.folder / "last.ckpt"
        if last.exists():
            settings["ckpt_path"] = str(last)
        (training.folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return [
            self.python, str(Path(self.python).parent / "nequip-train"), "-cp", str(training.folder), "-cn", "config",
            f"hydra.run.dir={training.folder}/hydra",
        ]  # fmt: skip

    def model(self, folder: Path) -> Path:
        """The best on validation."""
        return folder / "best.ckpt"


class Denskit(Program):
    """Denskit by its command line: the preset for few molecules, with nothing changed but its length."""

    kind, package, unit = "denskit", "denskit", "step"
    line, first = r"step (\d+)/\d+ .*valid MAE .*?forces ([\d.]+) meV", 0
    environment: ClassVar[dict[str, str]] = {}
    settings: ClassVar[tuple[str, ...]] = ("equiformer", "task=energy_forces")
    stress: ClassVar[tuple[str, ...]] = ("model.stress=strain", "task.stress_weight=10")  # as docs/crystals.md says

    def command(self, training: Training) -> list[str]:
        """``denskit train``."""
        settings = self.settings + self.stress if training.stress else self.settings
        return [
            self.python, "-m", "denskit", "train", *settings, "--resume",
            f"data.train={training.frames}/train.extxyz", f"data.valid={training.frames}/valid.extxyz",
            "seed=0", f"training.max_steps={training.length}",
            f"training.evaluate_every={training.interval} steps", f"output={training.folder}/run",
        ]  # fmt: skip

    def model(self, folder: Path) -> Path:
        """The run folder."""
        return folder / "run"


class DenskitDens(Denskit):
    """The same with DeNS."""

    settings = ("equiformer", "task=dens")


class DenskitWithoutParity(Denskit):
    """The same without parity, as measured in docs/results.md."""

    settings = ("equiformer", "model.parity=false", "task=energy_forces")


class DenskitDensWithoutParity(Denskit):
    """The same with DeNS, without parity."""

    settings = ("equiformer", "model.parity=false", "task=dens")


class DenskitEsen(Denskit):
    """eSEN, narrow by its preset, as docs/crystals.md recommends for few crystals, in batches of 4."""

    settings = ("esen", "training.batch_size=4")


class DenskitV2(Denskit):
    """EquiformerV2 in batches of 4."""

    settings = ("equiformer_v2", "training.batch_size=4")


class DenskitV3(Denskit):
    """EquiformerV3 in batches of 4."""

    settings = ("equiformer_v3", "training.batch_size=4")


PROGRAMS: dict[str, type[Program]] = {
    "mace": Mace,
    "nequip": Nequip,
    "denskit": Denskit,
    "denskit-dens": DenskitDens,
    "denskit-esen": DenskitEsen,
    "denskit-v2": DenskitV2,
    "denskit-v3": DenskitV3,
    "denskit-without-parity": DenskitWithoutParity,
    "denskit-dens-without-parity": DenskitDensWithoutParity,
}


def steps_per_epoch(program: type[Program], frames: int) -> int:
    """Steps of one epoch; Denskit counts in steps."""
    return 1 if program.unit == "step" else -(-frames // program.batch_size)


def with_pythons(names: Sequence[str], pythons: dict[str, str]) -> dict[str, Program]:
    """Programs by name, each in its environment.

    Raises ValueError for an unknown program, and for one of another environment whose Python is not given.
    """
    programs = {}
    for name in names:
        if name not in PROGRAMS:
            raise ValueError(f"there is no program {name!r}; there are {', '.join(PROGRAMS)}")
        program = PROGRAMS[name]
        if program.kind == "denskit":
            programs[name] = program()
        elif program.kind in pythons:
            programs[name] = program(str(Path(pythons[program.kind]).absolute()))
        else:
            raise ValueError(f"{name} runs in its own environment; name its Python: --{program.kind}-python PATH")
    return programs


def _load(name: str) -> dict[str, Any]:
    return yaml.safe_load((HERE / "settings" / name).read_text(encoding="utf-8"))


def _at(settings: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Settings for a budget: those of the largest one that is not larger."""
    fitting = [key for key in settings["minutes"] if key <= minutes]
    return settings["minutes"][max(fitting)] if fitting else {}
