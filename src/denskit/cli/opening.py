"""The models and structures of a command, as its options say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from denskit.data.base import Source
    from denskit.simulation.divided import DividedPotential

RECORDED_ATOMS = 1500  # at once; 64 aspirins (1,344 atoms) took 7.7 ms on an H200, 24.8 without recording


def gains_by_recording(device: str, atoms: int) -> bool:
    """Whether steps of so many atoms are too small to keep a device busy, and recordings of them far faster."""
    from denskit.runtime.device import choose_device

    return choose_device(device).type == "cuda" and atoms <= RECORDED_ATOMS


def open_potential(
    models: Sequence[Path], device: str, dtype: str | None, *, processes: int = 1, **settings: Any
) -> DividedPotential:
    """One potential of model files or runs, in the precision of ``--dtype`` (None: that of the models).

    ``settings``: further arguments of :class:`denskit.simulation.potential.Potential`.
    """
    from denskit.runtime.device import choose_device
    from denskit.simulation.divided import DividedPotential
    from denskit.training.run_folder import model_file

    files = [model_file(model) for model in models]
    where = choose_device(device)
    return DividedPotential(files, processes=processes, device=where, dtype=dtype, **settings)


def open_structures(model: Path, file: Path, data: dict[str, Any]) -> Source:
    """The structures of a file or folder, read as the model's training data but for ``data``; prints what was read."""
    from denskit.data.overlaps import geometry_warnings
    from denskit.data.readers.folders import read_given
    from denskit.data.readers.formats import open_unchecked, require_keys
    from denskit.evaluation.judged_structures import reading

    source, said = read_given(file, reading(model, file, data), open_unchecked)
    require_keys(data, source)
    said += geometry_warnings(source, str(file))
    typer.echo("\n".join(said), err=True)
    return source


def references_of(reference: Path, file: Path, source: Source) -> AbstractContextManager[Path]:
    """The folder of ``--reference`` for the crystals of a file, made for the block where it is a published file."""
    from denskit.data.writing import Originals
    from denskit.simulation.crystals.published_conductivities import references_in

    original = Originals(file, source)
    return references_in(reference, lambda: [original(system).info for system in source])
