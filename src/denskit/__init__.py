"""Denskit: equivariant force fields with denoising of non-equilibrium structures (DeNS).

The names that a user types; each is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know this name; typing itself takes longer to import than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from denskit.batch import System
    from denskit.data.loading import read
    from denskit.evaluation.evaluate import evaluate, predict, predict_file
    from denskit.models.model_file import load_model
    from denskit.simulation.calculator import DenskitCalculator
    from denskit.simulation.dynamics.folder import molecular_dynamics as dynamics
    from denskit.simulation.potential import Potential
    from denskit.simulation.relaxation import relax
    from denskit.training.load_config import load_config
    from denskit.workflow import Run, train

__version__ = "0.1.0"
__all__ = [
    "DenskitCalculator", "Potential", "Run", "System", "dynamics", "evaluate", "load_config", "load_model", "predict",
    "predict_file", "read", "relax", "train",
]  # fmt: skip

_PLACES = {
    "DenskitCalculator": "simulation.calculator",
    "Potential": "simulation.potential",
    "Run": "workflow",
    "System": "batch",
    "dynamics": "simulation.dynamics.folder:molecular_dynamics",
    "evaluate": "evaluation.evaluate",
    "load_config": "training.load_config",
    "load_model": "models.model_file",
    "predict": "evaluation.evaluate",
    "predict_file": "evaluation.evaluate",
    "read": "data.loading",
    "relax": "simulation.relaxation",
    "train": "workflow",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = getattr(import_module(f"{__name__}.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
