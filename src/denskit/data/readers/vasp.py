"""What VASP's output says about its own labels, and ASE's readers do not: electrons that did not converge, and
calculations that did not reach their end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from denskit.data.structure_arrays import numbered
from denskit.reading.budget import Lines

_OUTCAR, _XML = re.compile(r"OUTCAR"), re.compile(r"vasp.*\.xml\b")  # as ASE knows them
_NELM_OF_OUTCAR, _ITERATION = re.compile(rb"\bNELM\s*=\s*(\d+)"), re.compile(rb"Iteration\s+\d+\(\s*(\d+)\)")
_NELM = re.compile(rb'<i [^>]*name="NELM"[^>]*>\s*(\d+)')


def told_by_vasp(path: Path) -> list[str]:
    """Messages about an OUTCAR or a vasprun.xml, known by its name; none about other files."""
    if _OUTCAR.search(path.name):
        unconverged, ended = _of_outcar(path)
    elif _XML.search(path.name):
        unconverged, ended = _of_xml(path)
    else:
        return []
    said = []
    if unconverged:
        where = f"{path.name} of {path.parent.name}" if path.parent.name else path.name  # one of many is to be found
        said.append(
            f"warning: {where}: the electrons of {numbered(np.array(unconverged))} did not converge within NELM steps, "
            "so energy and forces are wrong by unknown amounts. Leave these frames out, or compute them again"
        )
    if not ended:
        said.append(f"note: {path}: the calculation did not reach its end; the ionic steps that it finished are read")
    return said


def _of_outcar(path: Path) -> tuple[list[int], bool]:
    """Frames that did not converge, and whether the file has VASP's last lines.

    VASP 6 says of each ionic step whether EDIFF was reached; VASP 5 is silent where it took all NELM electronic steps.
    """
    unconverged, frame, most, steps, converged, ended = [], 0, 0, 0, False, False
    for line in _lines(path):
        if b"EDIFF is reached" in line:
            converged = True
        elif b"Iteration" in line and (found := _ITERATION.search(line)):
            steps = int(found.group(1))
        elif b"NELM " in line and (found := _NELM_OF_OUTCAR.search(line)):
            most = int(found.group(1))
        elif b"EDIFF was not reached" in line:
            steps = most = max(most, 1)
        elif b"FREE ENERGIE OF THE ION-ELECTRON SYSTEM" in line:  # one of each ionic step, after its electrons
            if most and steps >= most and not converged:
                unconverged.append(frame)
            frame, steps, converged = frame + 1, 0, False
        elif b"General timing and accounting" in line:
            ended = True
    return unconverged, ended


def _of_xml(path: Path) -> tuple[list[int], bool]:
    """As :func:`_of_outcar`; an ionic step of NELM electronic ones counts as not converged."""
    unconverged, frame, steps, most, ended = [], 0, 0, 0, False
    for line in _lines(path):
        if not most and (found := _NELM.search(line)):
            most = int(found.group(1))
        if b"<scstep>" in line:
            steps += 1
        elif b"</calculation>" in line:
            if most and steps >= most:
                unconverged.append(frame)
            frame, steps = frame + 1, 0
        elif b"</modeling>" in line:
            ended = True
    return unconverged, ended


def _lines(path: Path) -> Iterator[bytes]:
    with Lines(path) as file:
        yield from file
