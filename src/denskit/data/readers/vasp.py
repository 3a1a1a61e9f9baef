"""What VASP's output says of its own labels, and ASE's readers do not: ionic steps whose electrons did not converge,
and calculations that did not reach their end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from denskit.reading.budget import Lines

_OUTCAR, _XML = re.compile(r"OUTCAR"), re.compile(r"vasp.*\.xml\b")  # as ASE knows them
_HEAD = 5  # lines, one of which is VASP's own; files that are made from these may have their names
_NELM, _ITERATION = re.compile(rb"\bNELM\s*=\s*(\d+)"), re.compile(rb"Iteration\s+\d+\(\s*(\d+)\)")
_ENTRY = re.compile(rb'<i [^>]*name="(NELM|EDIFF|e_fr_energy)"[^>]*>\s*([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)')


def told_by_vasp(path: Path) -> tuple[list[int], str]:
    """Numbers of the frames of an OUTCAR or vasprun.xml, packed or not, whose electrons did not converge, and a message
    where the calculation did not reach its end; none for other files.

    One electronic step (NELM=1) is a calculation at given orbitals or density, and counts as converged.
    """
    for name, mark, read in ((_OUTCAR, b"vasp.", _of_outcar), (_XML, b"<modeling", _of_xml)):
        if name.search(path.name) and _has(path, mark):
            unconverged, ended = read(path)
            note = f"note: {path}: the calculation did not reach its end; the ionic steps that it finished are read"
            return unconverged, "" if ended else note
    return [], ""


def _of_outcar(path: Path) -> tuple[list[int], bool]:
    """Frames that did not converge, and whether the file has VASP's last lines.

    VASP 6 says of each ionic step whether EDIFF was reached; VASP 5 is silent where it took all NELM electronic steps.
    A hard stop (LABORT in STOPCAR) ends them early.
    """
    unconverged, frame, most, steps, reached, stopped, ended = [], 0, 0, 0, False, False, False
    for line in _lines(path):
        if b"EDIFF is reached" in line:
            reached = True
        elif b"EDIFF was not reached" in line or b"hard stop was set" in line:
            stopped = True
        elif b"Iteration" in line and (found := _ITERATION.search(line)):
            steps = int(found.group(1))
        elif b"NELM " in line and (found := _NELM.search(line)):
            most = int(found.group(1))
        elif b"FREE ENERGIE OF THE ION-ELECTRON SYSTEM" in line:  # one of each ionic step, after its electrons
            if most != 1 and not reached and (stopped or 0 < most <= steps):
                unconverged.append(frame)
            frame, steps, reached, stopped = frame + 1, 0, False, False
        elif b"General timing and accounting" in line:
            ended = True
    return unconverged, ended


def _of_xml(path: Path) -> tuple[list[int], bool]:
    """As :func:`_of_outcar`: an ionic step did not converge that took all NELM electronic steps, of which the last two
    energies differ by more than EDIFF.  A hard stop leaves no mark."""
    given = {b"NELM": 0.0, b"EDIFF": 0.0}
    unconverged: list[int] = []
    energies: list[float] = []
    frame, steps, ended = 0, 0, False
    for line in itertools.chain(_lines(path), [b"</calculation>"]):  # the last may be cut behind its labels
        if b"<i " in line and (found := _ENTRY.search(line)):
            name, value = found.group(1), float(found.group(2))
            if name in given:
                given[name] = value
            else:
                energies.append(value)
        elif b"</scstep>" in line:
            steps += 1
        elif b"</calculation>" in line:
            of_steps = energies[:steps]  # the last energy is that of the ionic step
            apart = abs(of_steps[-1] - of_steps[-2]) if len(of_steps) > 1 else 0.0
            if steps >= given[b"NELM"] > 1 and apart > given[b"EDIFF"]:
                unconverged.append(frame)
            frame, steps, energies = frame + 1, 0, []
        elif b"</modeling>" in line:
            ended = True
    return unconverged, ended  # one more than ASE reads, at most, where the file ends within a step


def _has(path: Path, mark: bytes) -> bool:
    with Lines(path) as file:
        return any(mark in file.next() for _ in range(_HEAD))


def _lines(path: Path) -> Iterator[bytes]:
    with Lines(path) as file:
        yield from file
