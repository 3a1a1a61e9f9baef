"""State files of simulations."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.reading.budget import naming
from denskit.runtime.work_folder import below, read_state, write_state
from denskit.simulation.dynamics.integrators import State
from denskit.simulation.dynamics.loop import Failure
from denskit.simulation.dynamics.momenta import masses_of
from denskit.simulation.dynamics.settings import DynamicsSettings
from denskit.simulation.potential import Potential
from denskit.simulation.state import tensors_of


def save_state(path: Path, state: State, notes: dict[str, Any], extra: dict[str, Tensor] | None = None) -> None:
    """Write a state, JSON and further tensors atomically."""
    tensors = {f"extra.{name}": value for name, value in (extra or {}).items()}
    tensors |= tensors_of(state.batch, "batch.") | tensors_of(state, "state.")
    write_state(path, tensors, {"step": state.step, "notes": notes})


def load_state(path: Path, device: torch.device | str = "cpu") -> tuple[State, dict[str, Any], dict[str, Tensor]]:
    """State, JSON and further tensors of :func:`save_state`.  Raises FileNotFoundError, and ValueError."""
    tensors, header = read_state(path, device, "give another folder, or remove this one")
    if other := below(tensors, "batch.").keys() - {part.name for part in fields(Batch)}:
        raise ValueError(
            f"{path} is of another version of Denskit (it holds {', '.join(sorted(other))}): finish the simulation "
            "with that one, or begin it anew in another folder"
        )
    with naming(path, "is no saved simulation"):
        batch = Batch(**below(tensors, "batch."))
        state = State(batch=batch, step=int(header["step"]), **below(tensors, "state."))
        return state, header["notes"], below(tensors, "extra.")


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Everything that a simulation needs to continue bit for bit."""

    state: State
    settings: DynamicsSettings
    origin: dict[str, str]  # of :func:`origin_of`
    failures: tuple[Failure, ...] = ()
    files: dict[str, int] = field(default_factory=dict)  # bytes of the appended files, by name
    uncertain: dict[str, float] = field(default_factory=dict)  # how frames of a committee were chosen, if they were

    def save(self, path: Path) -> None:
        """Write atomically."""
        notes = {
            "settings": self.settings.model_dump(mode="json"),
            "origin": self.origin,
            "failures": [asdict(failure) for failure in self.failures],
            "files": self.files,
            "uncertain": self.uncertain,
        }
        save_state(path, self.state, notes)

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> Restart:
        """Read a restart file.  Raises FileNotFoundError, and ValueError for another or damaged file."""
        state, notes, _ = load_state(path, device)
        with naming(path, "is no restart file of this Denskit"):
            settings = DynamicsSettings.model_validate(notes["settings"])
            failures = tuple(Failure(**failure) for failure in notes["failures"])
            files = {str(name): int(size) for name, size in notes["files"].items()}
            return cls(
                state=state, settings=settings, origin=notes["origin"], failures=failures, files=files,
                uncertain=notes["uncertain"],
            )  # fmt: skip

    @property
    def record(self) -> dict[str, Any]:
        """What a simulation that goes on keeps, as :meth:`denskit.runtime.work_folder.WorkFolder.require_same` compares
        it."""
        return {**self.settings.model_dump(mode="json"), **self.origin, **self.uncertain}

    @property
    def structures(self) -> int:
        """Structures at the start."""
        return self.state.batch.num_systems + len(self.failures)


OF_STRUCTURES = ("n_atoms", "atomic_numbers", "positions", "cell", "pbc", "fixed")


def origin_of(batch: Batch, masses: Tensor, potential: Potential) -> dict[str, str]:
    """SHA-256 of each property of the initial structures, of masses unlike the standard ones, and of the models;
    and the precision of the models, which is in theirs."""
    found = {name: hashlib.sha256(getattr(batch, name).cpu().numpy().tobytes()).hexdigest() for name in OF_STRUCTURES}
    if not torch.equal(masses, masses_of(batch).cpu()):
        found["masses"] = hashlib.sha256(masses.numpy().tobytes()).hexdigest()
    return found | {"models": potential.weights_sha256(), "dtype": str(potential.dtype).removeprefix("torch.")}
