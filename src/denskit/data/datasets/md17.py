"""MD17 and revised MD17: ten molecules, in the files that ``denskit data download`` fetches.

MD17: Chmiela et al., Sci. Adv. 3, e1603015 (2017), PBE+vdW-TS.  rMD17: Christensen and von Lilienfeld, Mach. Learn.:
Sci. Technol. 1, 045018 (2020), PBE/def2-SVP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ase.formula import Formula
from ase.symbols import Symbols

from denskit.batch import System
from denskit.data.config import DataConfig
from denskit.data.loading import WEIGHTED, LoadedData, load_files
from denskit.files import cache_folder

MOLECULES = {
    "md17": ("aspirin", "benzene", "ethanol", "malonaldehyde", "naphthalene", "salicylic", "toluene", "uracil"),
    "rmd17": (
        "aspirin", "azobenzene", "benzene", "ethanol", "malonaldehyde", "naphthalene", "paracetamol", "salicylic",
        "toluene", "uracil",
    ),
}  # fmt: skip
FORMULAS = {
    "aspirin": "C9H8O4", "azobenzene": "C12H10N2", "benzene": "C6H6", "ethanol": "C2H6O", "malonaldehyde": "C3H4O2",
    "naphthalene": "C10H8", "paracetamol": "C8H9NO2", "salicylic": "C7H6O3", "toluene": "C7H8", "uracil": "C4H4N2O2",
}  # fmt: skip


def molecule_file(name: str, molecule: str | None) -> Path:
    """Path of the downloaded file of ``molecule`` of ``name`` (md17 or rmd17).

    Raises ValueError for a molecule that is not in the dataset.
    """
    if molecule is None or molecule not in MOLECULES[name]:
        found = "no molecule given" if molecule is None else f"{molecule!r} is not in {name}"
        raise ValueError(f"{found}; data.molecule is one of {', '.join(MOLECULES[name])}")
    return cache_folder() / name / f"{name}_{molecule}.npz"


def load_md17(config: DataConfig, seed: int, required: Sequence[str] = WEIGHTED) -> LoadedData:
    """Datasets ``md17`` and ``rmd17``: ``data.molecule``, divided as published unless ``data.split`` says otherwise.

    A file in ``data.path`` (or ``data.train``) takes the place of the downloaded one.  Raises ValueError where it holds
    another of the molecules.
    """
    if config.path is None and config.train is None:
        path = molecule_file(config.name, config.molecule)
        if not path.is_file():
            raise FileNotFoundError(
                f"no file {path}. Fetch it with: denskit data download {config.name} {config.molecule}; or give your "
                "own with data.path=FILE"
            )
        config = config.model_copy(update={"path": str(path)})
    split = config.split
    own = split.mode is not None or split.file is not None or split.seed is not None or split.gap
    if not own and config.group_key is None and config.valid is None:
        config = config.model_copy(update={"split": split.model_copy(update={"mode": "published"})})
    data = load_files(config, seed, required)
    return replace(data, messages=data.messages + _other_molecule(config.molecule, data.train[0]))


def _other_molecule(molecule: str | None, system: System) -> list[str]:
    """That a structure is no ``molecule``, whose settings a preset may have chosen.

    Raises ValueError where it is another one that has settings of its own.
    """
    found = Symbols(system.atomic_numbers).formula
    if molecule not in FORMULAS or found == Formula(FORMULAS[molecule]):
        return []
    told = f"the training structures are {found.format('hill')}; data.molecule={molecule} is {FORMULAS[molecule]}"
    if same := [name for name, formula in FORMULAS.items() if found == Formula(formula)]:
        raise ValueError(f"{told}: say data.molecule={same[0]}, or give the file of {molecule}")
    return [f"WARNING: {told}, so settings that depend on the molecule are those of {molecule}"]
