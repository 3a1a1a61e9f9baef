"""What VASP's output says of its own labels is told."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk

from denskit.data import DataConfig
from denskit.data.base import Subset
from denskit.data.inspection import findings_of
from denskit.data.loading import read_files
from denskit.data.readers.vasp import told_by_vasp

STOPPED = "------------------------ aborting loop because hard stop was set ---------------------------------------\n"
REACHED = "------------------------ aborting loop because EDIFF is reached ----------------------------------------\n"
NOT_REACHED = (
    "------------------------ aborting loop EDIFF was not reached (unconverged)  ----------------------------\n"
)
END = " General timing and accounting informations for this job:\n"


def outcar(ends: Sequence[str], iterations: int = 3, most: int = 3, end: str = END) -> str:
    """A file that ASE reads, of one ionic step for each of ``ends``; energies are -1, -2, ... eV."""
    text = (
        " vasp.6.3.2 27Jun22 (build) complex\n POTCAR:    PAW_PBE W 08Apr2002\n POTCAR:    PAW_PBE W 08Apr2002\n"
        f"   ions per type =                2\n   NKPTS =      1   k-points in BZ\n   ISPIN  =      1\n"
        f"   NELM   =  {most:5};   NELMIN=  2; NELMDL=  0     # of ELM steps\n   IBRION =      0\n"
    )
    cell = "".join(f"  {x:14.9f}{y:14.9f}{z:14.9f}" * 2 + "\n" for x, y, z in 3.2 * np.eye(3))
    atoms = "".join(f" {x:13.5f}{x:13.5f}{x:13.5f}  {0:14.6f}{0:14.6f}{0:14.6f}\n" for x in (0.0, 1.6))
    line = f" {'-' * 83}\n"
    for ion, said in enumerate(ends, start=1):
        for step in range(1, iterations + 1):
            text += f"--------------------------------------- Iteration {ion:6}({step:4})  -----------------------\n"
        text += (
            f"{said} VOLUME and BASIS-vectors are now :\n  energy-cutoff  :      300.00\n"
            "  volume of cell :       32.77\n"
            f"      direct lattice vectors                 reciprocal lattice vectors\n{cell}\n"
            f" POSITION                                       TOTAL-FORCE (eV/Angst)\n{line}{atoms}{line}"
            f"  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)\n  {'-' * 51}\n"
            f"  free  energy   TOTEN  = {-ion:17.8f} eV\n\n"
            f"  energy  without entropy= {-ion:17.8f}  energy(sigma->0) = {-ion:17.8f}\n"
        )
    return text + end


def vasprun(electronic: Sequence[int], falling: float = 0.5, end: str = "</modeling>\n") -> str:
    """A file that ASE reads; with so many electronic steps in each ionic one, each of which lowers the energy (eV)."""
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

    def energies(step: int) -> str:
        lines = (f'<i name="{name}"> {-14.5 - falling * step:.8f} </i>\n' for name in ("e_fr_energy", "e_0_energy"))
        return f"<energy>\n{''.join(lines)}</energy>\n"

    text = (
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<modeling>\n<kpoints>\n<generation param="Gamma">\n'
        '<v type="int" name="divisions"> 1 1 1 </v>\n</generation>\n<varray name="kpointlist">\n<v> 0 0 0 </v>\n'
        '</varray>\n<varray name="weights">\n<v> 1 </v>\n</varray>\n</kpoints>\n'
        '<parameters>\n<separator name="electronic">\n<i type="int" name="NELM">     5</i>\n'
        '<i name="EDIFF">      0.00010000</i>\n</separator>\n'
        "</parameters>\n"
        f'<atominfo>\n<atoms>4</atoms>\n<array name="atoms">\n<set>\n{names}</set>\n</array>\n</atominfo>\n'
        f'<structure name="initialpos">\n{structure}</structure>\n'
    )
    for count in electronic:
        steps = "".join(f"<scstep>\n{energies(step)}</scstep>\n" for step in range(count))
        text += f"<calculation>\n{steps}<structure>\n{structure}</structure>\n{arrays['forces']}"
        text += f"{arrays['stress']}{energies(count)}</calculation>\n"
    return text + f'<structure name="finalpos">\n{structure}</structure>\n' + end


@pytest.mark.parametrize(
    ("name", "text", "frames"),
    [
        ("OUTCAR", outcar([REACHED, REACHED]), []),
        ("OUTCAR", outcar([REACHED, NOT_REACHED, REACHED]), [1]),
        ("OUTCAR_2", outcar([NOT_REACHED, NOT_REACHED]), [0, 1]),
        ("OUTCAR", outcar([REACHED, STOPPED]), [1]),
        ("OUTCAR", outcar(["", REACHED]), [0]),  # VASP 5 is silent
        ("OUTCAR", outcar(["", ""], iterations=2), []),  # not NELM steps
        ("OUTCAR", outcar([NOT_REACHED], most=1, iterations=1), []),  # at given orbitals
        ("vasprun.xml", vasprun([4, 1]), []),
        ("vasprun.xml", vasprun([4, 5, 5]), [1, 2]),
        ("vasprun.xml", vasprun([5, 5], falling=1e-6), []),  # EDIFF reached in the last step
        ("other.txt", outcar([NOT_REACHED], end=""), []),
        ("OUTCARs.extxyz", "2\nenergy=1\nH 0 0 0\nH 0 0 1\n" + NOT_REACHED, []),
        ("vasp.xml.txt", NOT_REACHED, []),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_steps_whose_electrons_did_not_converge(
    tmp_path: Path, name: str, text: str, frames: list[int], packed: bool
) -> None:
    path = tmp_path / f"{name}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert told_by_vasp(path) == (frames, "")


@pytest.mark.parametrize(
    ("name", "text"), [("OUTCAR", outcar([REACHED], end="")), ("vasprun.xml", vasprun([2], end="")[:-80])]
)
def test_calculations_that_did_not_end_are_told(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    frames, note = told_by_vasp(tmp_path / name)
    assert frames == [] and note.startswith(f"note: {tmp_path / name}: the calculation did not reach its end")


def test_frames_of_several_files_are_named(tmp_path: Path) -> None:
    for folder, text in {"a": vasprun([2, 5]), "b": vasprun([1], end=""), "c": vasprun([1, 1, 5])}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "vasprun.xml").write_text(text)
    source, said = read_files(tmp_path / "*" / "vasprun.xml", DataConfig())
    assert len(source) == 6
    assert [line for line in said if "its end" in line] == [
        f"note: {tmp_path}/*/vasprun.xml/...: the calculation did not reach its end; the ionic steps that it finished "
        "are read (1 of 3 files)"
    ]
    (found,) = [one for one in findings_of(source) if "did not converge" in one.found]
    assert found.frames == (1, 5)
    (again,) = [
        one for one in findings_of(Subset(source, np.array([5, 0, 4]), "part")) if "did not converge" in one.found
    ]
    assert again.frames == (5,)
    assert found.where == f"frame 1 of {tmp_path}/a/vasprun.xml, frame 2 of {tmp_path}/c/vasprun.xml"


def test_numbers_of_frames_are_those_that_ase_reads(tmp_path: Path) -> None:
    (tmp_path / "OUTCAR").write_text(outcar([REACHED, NOT_REACHED, REACHED, STOPPED]))
    source, _ = read_files(tmp_path / "OUTCAR", DataConfig())
    assert [(system.energy, system.unconverged) for system in source] == [
        (-1.0, False), (-2.0, True), (-3.0, False), (-4.0, True),
    ]  # fmt: skip
    nested = Subset(Subset(source, np.array([3, 2, 1]), "part"), np.array([1, 2]), "nested")
    assert nested.places_of("unconverged").tolist() == [1] and nested[1].index == 1
