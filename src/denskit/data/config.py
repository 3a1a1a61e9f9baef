"""Settings of the data."""

from __future__ import annotations

from typing import Annotated, Literal

from ase.data import atomic_numbers
from pydantic import Field, field_validator, model_validator

from denskit.settings import OnResume, Seed, Settings
from denskit.units import BOHR, GPA, HARTREE, KCAL_PER_MOL, KJ_PER_MOL

ENERGY_UNITS = {"eV": 1.0, "kcal/mol": KCAL_PER_MOL, "kJ/mol": KJ_PER_MOL, "Hartree": HARTREE, "Ry": HARTREE / 2}
FORCE_UNITS = {"Hartree/Bohr": HARTREE / BOHR, "Ry/Bohr": HARTREE / BOHR / 2}
STRESS_UNITS = {"GPa": GPA, "kbar": GPA / 10}
Origin = Literal["relaxation", "rattled", "md"]
FixedFrom = Literal["file", "tags", "none"]
Share = Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, le=1)]


class SplitConfig(Settings):
    """Split of one file.  Shares are numbers of frames (``950``) or fractions (``0.9``)."""

    mode: Literal["random", "blocks", "group", "published"] | None = None
    """``random`` frames; contiguous ``blocks`` in file order; whole groups (``data.group_key``); ``published``, the
    MD17 split: numpy ``default_rng(1).permutation``, first train, then valid, then test.  None: the dataset's own."""
    train: Share | None = None
    """Structures for training, a number or below 1 a share; None: the rest."""
    valid: Share | None = None
    """Structures for validation, a number or a share; None: 5 %, of fewer than 500 structures an eighth, at most
    25; 0: none."""
    test: Share | None = None
    """Structures for the final test, a number or a share; None: the rest, or without ``train`` as many as for
    validation by default; 0: none."""
    gap: int = Field(default=0, ge=0)
    """Frames left out between blocks, so that the blocks are less correlated (for ``blocks``, and without ``mode`` and
    ``seed`` it chooses them)."""
    seed: Seed | None = None
    """Seed of ``random`` and ``group``; None: the run's seed."""
    file: str | None = None
    """A split saved by an earlier run (JSON), instead of all other settings here."""

    @model_validator(mode="after")
    def _no_idle_fields(self) -> SplitConfig:
        others = self.model_fields_set - {"file"}
        if self.file is not None and others:
            raise ValueError(f"split.file={self.file} is used alone; leave out {sorted(others)}")
        if self.gap and self.mode not in ("blocks", None):
            raise ValueError(f"split.gap={self.gap} acts with split.mode=blocks only, not with {self.mode}")
        if self.seed is not None and self.mode in ("blocks", "published"):
            raise ValueError(f"split.seed={self.seed} acts with random and group splits only, not with {self.mode}")
        return self


References = Literal["fit", "isolated", "mean", "none", "trained"] | dict[str, float]
_REFERENCES = ("fit", "isolated", "mean", "none", "trained")


class FilterConfig(Settings):
    """Structures that training leaves out, by the first rule that they break.

    Isolated atoms that give the model the energies of the elements are exempt.
    """

    isolated: float | None = Field(default=None, gt=0)
    """Leave out structures with an atom that has no neighbour within this distance, in Å."""
    max_force: float | None = Field(default=None, gt=0)
    """Leave out structures with a force longer than this, in eV/Å."""
    max_stress: float | None = Field(default=None, gt=0)
    """Leave out structures with a component of the stress larger than this, in eV/Å^3."""
    max_energy_deviation: float | None = Field(default=None, gt=0)
    """Leave out structures whose energy is farther than this from a sum over the elements (a fit to the file that
    outliers do not pull), in eV an atom.  A file that is divided is fitted and filtered first, whatever the part."""


class Part(Settings):
    """One of several files or folders of training frames."""

    path: str
    """File, or folder of shards."""
    origin: Origin | None = None
    """As ``data.origin``, for this part."""
    repeat: int = Field(default=1, ge=1)
    """How often each structure counts, as in 8 copies of MPtrj beside sAlex."""


class DataConfig(Settings):
    """Files of structures, their split, and the reading of their labels."""

    name: str = "file"
    """Dataset: ``file`` (your own), ``md17``, ``rmd17`` (downloaded), ``embedded`` (shipped with Denskit), ``oc20`` or
    ``oc22`` (their published files)."""
    path: str | None = None
    """One file, a folder, or a pattern of files (``"calc/*/OUTCAR"``), divided by ``split``.  With md17 and rmd17:
    instead of the downloaded file."""
    train: str | tuple[Part, ...] | None = None
    """File, folder or pattern of training frames, instead of ``path``; or a list of them, each a path or
    {path, origin, repeat}."""
    valid: str | None = None
    """File or folder of validation frames; None: taken from ``path`` or ``train`` by ``split``."""
    test: str | None = None
    """File or folder of test frames, judged by ``evaluate``; None: taken from ``path`` or ``train`` by ``split``."""
    split: SplitConfig = SplitConfig()
    """Split of ``path`` or ``train`` into the parts without a file of their own."""
    molecule: str | None = None
    """Molecule of md17, rmd17 or embedded."""
    energy_key: str | None = None
    """Field with the energy; None: ``REF_energy``, else the calculator's ``energy``."""
    forces_key: str | None = None
    """Field with the forces; None: ``REF_forces``, else the calculator's ``forces``."""
    stress_key: str | None = None
    """Field with the stress or, with "virial" in its name, the virial (-stress * volume, in the unit of energies)."""
    stress_unit: Literal["auto", "GPa", "kbar"] = "auto"
    """Unit of the stress.  ``auto``: that of energies, per Å^3."""
    stress_sign: Literal["tension", "compression"] = "tension"
    """When the stress is positive: under ``tension`` (ASE), or under ``compression`` (VASP's own files, MPtrj)."""
    group_key: str | None = None
    """Field that names a frame's group (system, material); None: ``sid`` where present.  Frames with groups are
    divided by group by default."""
    origin: Origin | None = None
    """Origin of the frames, as in OC20's All, rattled and MD sets.  ``md``: DeNS never corrupts them, as published."""
    units: Literal["auto", "eV", "kcal/mol", "kJ/mol", "Hartree", "Ry"] = "auto"
    """Unit of energies, and of forces per Å.  ``auto``: the unit fields of the file; without them
    kcal/mol for npz of one molecule, as in the published MD17 and rMD17 files, and eV for all others."""
    forces_unit: Literal["auto", "Hartree/Bohr", "Ry/Bohr"] = "auto"
    """Unit of the forces, as quantum chemistry writes them.  ``auto``: that of energies, per Å."""
    references: References | str | None = None
    """Energies of the elements, subtracted before training: ``fit`` (on the training frames, per atom), ``isolated``
    (the file's single atoms, without a periodic image within 6 Å), ``mean`` (one constant a structure), ``none``,
    ``{H: -13.6, ...}`` in eV, or a file of them: ``*.json``, or ``*.npz`` with ``coeff`` by atomic number. With
    ``training.init_from`` the default is ``trained``: the references of its model. None: ``fit``; ``mean`` for
    oc20's adsorption energies and the embedded molecules."""
    fixed: FixedFrom = "file"
    """Fixed atoms of oc20 and oc22 objects: from the ``file`` (an error without them), atoms with tag 0 (``tags``), or
    ``none``."""
    energies: Literal["referenced", "total"] | None = None
    """Energies of OC20's raw downloads (``*.extxyz.xz``): less each frame's reference (default), or total."""
    oc20_ref: str | None = None
    """``oc20_ref.pkl`` or JSON: energies by system, added to adsorption energies to make totals."""
    filter: FilterConfig = FilterConfig()
    """Structures left out of ``path``, ``train`` and ``valid``; a file given as ``test`` is judged whole."""
    missing: OnResume[Literal["error", "mask"]] = "error"
    """Labels that are absent or not finite: an ``error``, or ``mask``: they count in no loss."""

    @field_validator("references")
    @classmethod
    def _known_elements(cls, value: str | dict[str, float] | None) -> str | dict[str, float] | None:
        if isinstance(value, dict):
            unknown = sorted(set(value) - set(atomic_numbers) | set(value) & {"X"})
            if unknown or not value:
                raise ValueError(f"{', '.join(unknown) or 'nothing'} given; wanted element symbols like H or O")
        elif value is not None and value not in _REFERENCES and not value.endswith((".npz", ".json")):
            raise ValueError(f"references={value}: wanted {', '.join(_REFERENCES)}, energies, or a .npz or .json file")
        return value

    @field_validator("train", mode="before")
    @classmethod
    def _paths_are_parts(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            if not value:
                raise ValueError("train is an empty list; wanted files or folders")
            return tuple({"path": part} if isinstance(part, str) else part for part in value)
        return value

    def force_factor(self, of_auto: float) -> float:
        """Factor from the forces of a file to eV/Å, where ``of_auto`` is that of ``forces_unit=auto``."""
        return of_auto if self.forces_unit == "auto" else FORCE_UNITS[self.forces_unit]

    @property
    def stress_settings(self) -> str:
        """The settings that say how to read the stress, empty where all have their defaults."""
        names = ("stress_key", "stress_unit", "stress_sign")
        values = {name: getattr(self, name) for name in names}
        usual = type(self).model_fields
        return ", ".join(f"data.{name}={value}" for name, value in values.items() if value != usual[name].default)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Files and folders of training frames: ``path``, or ``train``, each with its origin."""
        given = self.path if self.train is None else self.train
        listed = () if given is None else (Part(path=given),) if isinstance(given, str) else given
        return tuple(part.model_copy(update={"origin": part.origin or self.origin}) for part in listed)

    @model_validator(mode="after")
    def _one_origin(self) -> DataConfig:
        if self.path is not None and self.train is not None:
            raise ValueError(f"give data.path={self.path} or data.train={self.train}, not both")
        if self.path is not None and self.valid is not None:
            raise ValueError(f"data.path={self.path} is split by data.split; with data.valid given call it data.train")
        if self.group_key is not None and self.split.mode not in ("group", None):
            raise ValueError(f"data.group_key={self.group_key} acts with split.mode=group only, not {self.split.mode}")
        if self.valid is not None and self.train is not None and self.split != SplitConfig():
            raise ValueError("data.split divides one file; with data.train and data.valid given it would be ignored")
        return self
