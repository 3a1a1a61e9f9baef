"""The journal of a labelling: results that are on the disk, of which frames and by which method."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ase
import numpy as np

from denskit.data.base import electrons_in
from denskit.files import new_file, sha256_of
from denskit.runtime.work_folder import append_line, differences, in_words, whole_lines

_SHOWN = 5  # differences in a message
# parameters that say where a calculator works and how it is started, which do not change what it computes
_PLACES = {"command", "directory", "label", "log", "logfile", "outdir", "prefix", "profile", "tmp_dir", "txt"}


class Journal:
    """Results as lines of JSON, each on the disk as soon as it is there; the first line says of which frames.

    A last line notes that the output is written.  The journal then stays as long as frames have failed, so that the
    same call tries these again.

    output: the file to write; the journal lies beside it.  origin: :func:`origin_of`.  force: whether an output that
    the journal does not know is replaced.  Raises ValueError for such an output otherwise, and for results of another
    origin.
    """

    def __init__(self, output: Path, origin: Mapping[str, Any], *, force: bool) -> None:
        self.output = output
        self.path = output.with_name(f"{output.name}.progress")
        lines = [value for _, value in whole_lines(self.path)] if self.path.exists() else []
        changes = differences(lines[0], origin) if lines else {}
        written = [line["written"] for line in lines[1:] if "written" in line]
        known = bool(written) and not changes and output.exists() and sha256_of(output) == written[-1]
        if not known:
            new_file(output, force=force)
        if lines and "written" in lines[-1] and (force or changes):  # of an output that is there and replaced, or gone
            self.path.unlink()
            lines = []
        elif changes:
            method = lines[0].get("method")
            listed = in_words({key: values for key, values in changes.items() if key.startswith("calculator.")})
            raise ValueError(
                f"{self.path} holds labels of other frames or by another method ({method})"
                f"{': ' * bool(listed)}{', '.join(listed[:_SHOWN])}; bring these frames back, remove the file, or "
                "give another output (nothing changed)"
            )
        if not lines:
            append_line(self.path, origin)
        results = {line["frame"]: line for line in lines[1:] if "frame" in line}
        self.results: dict[int, dict[str, Any]] = {  # labels; those of this call, also errors
            number: result for number, result in results.items() if "error" not in result
        }
        self.failed = len(results) - len(self.results)  # frames of earlier calls, which are tried again

    def add(self, number: int, result: dict[str, Any]) -> dict[str, Any]:
        """Save the result of a frame; with its number, as it is saved."""
        line = self.results[number] = {"frame": number, **result}
        append_line(self.path, line)
        return line

    @property
    def labels(self) -> dict[int, dict[str, Any]]:
        """Labels by number of the frame, ascending."""
        return {number: result for number, result in sorted(self.results.items()) if "error" not in result}

    @property
    def failures(self) -> dict[int, str]:
        """Reasons by number of the frame, ascending; of this call."""
        return {number: result["error"] for number, result in sorted(self.results.items()) if "error" in result}

    def end(self) -> None:
        """The output is written.  Without failures the journal is removed."""
        if self.failures:
            append_line(self.path, {"written": sha256_of(self.output)})
        else:
            self.path.unlink()


def origin_of(structures: Sequence[ase.Atoms], method: str, calculator: Any) -> dict[str, Any]:
    """Origin of results, as JSON: the frames with their charges and spins, the calculator with its parameters."""
    parameters = getattr(calculator, "parameters", None)
    kind = type(calculator)
    return {
        "method": method,
        "calculator": {"class": f"{kind.__module__}.{kind.__qualname__}", "parameters": _plain(parameters or {})},
        "frames": _sha256(structures),
    }


def _sha256(structures: Sequence[ase.Atoms]) -> str:
    digest = hashlib.sha256()
    for atoms in structures:
        charges, moments = atoms.get_initial_charges(), atoms.get_initial_magnetic_moments()
        for array in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, charges, moments):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(repr(electrons_in(atoms.info)).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Parameters of a calculator as JSON that a later call gives again: of objects the class, of places nothing."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if key not in _PLACES}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):  # NaN is not equal to itself
        return str(value)
    if isinstance(value, bool | int | float | str | None):
        return value
    return type(value).__qualname__
