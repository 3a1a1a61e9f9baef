"""What VASP's output says of its own labels is told."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import ase
import numpy as np
import pytest
from ase.build import bulk

from denskit.data import read_file
from denskit.data.readers.vasp import told_by_vasp

REACHED = "------------------------ aborting loop because EDIFF is reached ----------------------------------------\n"
NOT_REACHED = (
    "------------------------ aborting loop EDIFF was not reached (unconverged)  ----------------------------\n"
)
END = " General timing and accounting informations for this job:\n"


def outcar(ends: Sequence[str], iterations: int = 3, end: str = END) -> str:
    """The lines that count, of one ionic step for each of ``ends``."""
    text = "   NELM   =      3;   NELMIN=  2; NELMDL=  0     # of ELM steps\n"
    for ion, said in enumerate(ends, start=1):
        for step in range(1, iterations + 1):
            text += f"--------------------------------------- Iteration {ion:6}({step:4})  -----------------------\n"
        text += said + "  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)\n"
    return text + end


def vasprun(electronic: Sequence[int], end: str = "</modeling>\n") -> str:
    """A file that ASE reads; with so many electronic steps in each ionic one."""
    atoms = bulk("Cu", cubic=True)
    rows = {
        "basis": atoms.cell.array, "positions": atoms.get_scaled_positions(),
        "forces": np.full((4, 3), 0.125), "stress": np.eye(3),
    }  # fmt: skip
    arrays = {
        name: f'<varray name="{name}">\n'
        + "".join(f"<v> {x:.8f} {y:.8f} {z:.8f} </v>\n" for x, y, z in values)
        + "</varray>\n"
        for name, values in rows.items()
    }
    structure = f"<crystal>\n{arrays['basis']}</crystal>\n{arrays['positions']}"
    names = "".join("<rc><c>Cu</c><c>   1</c></rc>\n" for _ in range(4))
    energies = "<energy>\n" + "".join(f'<i name="{name}"> -14.5 </i>\n' for name in ("e_fr_energy", "e_0_energy"))
    step = f"<scstep>\n{energies}</energy>\n</scstep>\n"
    text = (
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<modeling>\n<kpoints>\n<generation param="Gamma">\n'
        '<v type="int" name="divisions"> 1 1 1 </v>\n</generation>\n<varray name="kpointlist">\n<v> 0 0 0 </v>\n'
        '</varray>\n<varray name="weights">\n<v> 1 </v>\n</varray>\n</kpoints>\n'
        '<parameters>\n<separator name="electronic">\n<i type="int" name="NELM">     5</i>\n</separator>\n'
        "</parameters>\n"
        f'<atominfo>\n<atoms>4</atoms>\n<array name="atoms">\n<set>\n{names}</set>\n</array>\n</atominfo>\n'
        f'<structure name="initialpos">\n{structure}</structure>\n'
    )
    for count in electronic:
        text += f"<calculation>\n{count * step}<structure>\n{structure}</structure>\n{arrays['forces']}"
        text += f"{arrays['stress']}{energies}</energy>\n</calculation>\n"
    return text + f'<structure name="finalpos">\n{structure}</structure>\n' + end


@pytest.mark.parametrize(
    ("name", "text", "frames"),
    [
        ("OUTCAR", outcar([REACHED, REACHED]), ""),
        ("OUTCAR", outcar([REACHED, NOT_REACHED, REACHED]), "frame 1 "),
        ("OUTCAR_2", outcar([NOT_REACHED, NOT_REACHED]), "frames 0, 1 "),
        ("OUTCAR", outcar(["", REACHED]), "frame 0 "),  # VASP 5 is silent
        ("OUTCAR", outcar(["", ""], iterations=2), ""),  # not NELM steps
        ("vasprun.xml", vasprun([4, 1]), ""),
        ("vasprun.xml", vasprun([4, 5, 5]), "frames 1, 2 "),
        ("other.txt", outcar([NOT_REACHED], end=""), ""),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_steps_whose_electrons_did_not_converge_are_named(
    tmp_path: Path, name: str, text: str, frames: str, packed: bool
) -> None:
    path = tmp_path / f"{name}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    said = told_by_vasp(path)
    if not frames:
        assert said == []
        return
    (warning,) = said
    assert warning.startswith(f"warning: {path.name} of {tmp_path.name}: the electrons of {frames}")


@pytest.mark.parametrize(
    ("name", "text"), [("OUTCAR", outcar([REACHED], end="")), ("vasprun.xml", vasprun([2], "")[:-80])]
)
def test_calculations_that_did_not_end_are_told(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (note,) = told_by_vasp(tmp_path / name)
    assert note.startswith(f"note: {tmp_path / name}: the calculation did not reach its end")


def test_a_reading_tells_of_both(tmp_path: Path) -> None:
    (tmp_path / "vasprun.xml").write_text(vasprun([2, 5], end=""))
    structures, said = read_file(tmp_path / "vasprun.xml")
    assert len(structures) == 2
    assert isinstance(structures[0].forces, np.ndarray) and ase.Atoms("Cu").numbers[0] in structures[0].atomic_numbers
    assert [line.split(":")[0] for line in said if "electrons of frame 1" in line or "its end" in line] == [
        "warning", "note",
    ]  # fmt: skip
