"""Errors of thermal conductivities over crystals with references: kappa_SRME of Matbench Discovery.

Conductivities and errors are those of ``denskit crystal --conductivity --reference``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denskit.data.base import Source
from denskit.data.writing import Originals
from denskit.runtime.progress import Report
from denskit.simulation.crystals import CrystalSettings
from denskit.simulation.crystals.conductivity import WORST
from denskit.simulation.crystals.folder import measure_into, require_conductivities
from denskit.simulation.potential import EnergyAndForces

ERRORS = ("kappa_SRME", "kappa_SRE")
MEANS = (*ERRORS, "reference_conductivities", "conductivities_counted_as_worst")  # of all crystals


@dataclass(frozen=True)
class KnownConductivities:
    """Crystals whose conductivities are known, and the potential that is judged by them."""

    source: Source
    file: Path
    references: Path  # folder with conductivity_INDEX.npz of each crystal
    potential: EnergyAndForces  # with stress; in float64, since conductivities need third derivatives
    settings: CrystalSettings = field(default_factory=CrystalSettings)
    origin: dict[str, Any] = field(default_factory=dict)  # plain JSON about model and file

    def require_comparable(self) -> None:
        """Raises FileNotFoundError, ValueError naming the reference, and ModuleNotFoundError without phono3py."""
        require_conductivities(self.references, self.source, self.settings)


def judge_conductivities(
    folder: Path, known: KnownConductivities, *, resume: bool, say: Callable[[str], None], stop: Callable[[], bool],
    progress: Report,
) -> dict[str, Any] | None:  # fmt: skip
    """Mean errors of the conductivities, or None where ``stop`` ended the work.

    A crystal without a conductivity, by imaginary modes or because it did not relax, has the largest error, 2; so it
    has where relaxation broke its symmetry.  Writes a line a crystal.  Arguments and errors as
    :func:`denskit.simulation.crystals.folder.measure_into`.
    """
    found = measure_into(
        folder, known.potential, known.source, known.settings, moduli=False, heat=True, reference=known.references,
        origin=known.origin, original=Originals(known.file, known.source), resume=resume,
        say=say, stop=stop, progress=progress,
    )  # fmt: skip
    if found is None:
        return None
    for crystal in found:
        if "error" in crystal:
            say(f"no conductivity of crystal {crystal['index']} ({crystal['formula']}): {crystal['error']}")
    means = {name: sum(crystal.get(name, WORST) for crystal in found) / len(found) for name in ERRORS}
    worst = sum(crystal.get("kappa_SRME", WORST) == WORST for crystal in found)
    return {**means, "reference_conductivities": len(found), "conductivities_counted_as_worst": worst}
