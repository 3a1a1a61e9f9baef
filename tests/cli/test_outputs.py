"""No command replaces a file of the user's unless told to, and none replaces its own input."""

from __future__ import annotations

from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

from cli_calls import denskit
from contract.variants import build
from denskit import files
from denskit.models.model_file import save_model


def said(*arguments: object) -> tuple[int, str]:
    result = denskit(*arguments)
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, structures, a submission of one split, and files that are precious."""
    save_model(tmp_path / "model.safetensors", build("envelope", torch.float32), {})
    ase.io.write(tmp_path / "mine.extxyz", molecule("CH3CH2OH"))
    part = {"ids": np.array(["1_0"]), "energy": np.zeros(1, np.float32), "forces": np.zeros((1, 3), np.float32)}
    np.savez(tmp_path / "id.npz", chunk_idx=np.zeros(0, np.int64), **part)
    for name in (
        "other.extxyz",
        "other.npz",
        "other.pt2",
        "other.safetensors",
        "published.pt",
        "test.json",
        "summary.json",
    ):
        (tmp_path / name).write_text("precious")
    return tmp_path


COMMANDS = {  # and what each says of what is there
    "predict": ("predict model.safetensors mine.extxyz -o other.extxyz", "other.extxyz exists already"),
    "submission": ("predict model.safetensors mine.extxyz --format evalai -o other.npz", "other.npz exists already"),
    "merge": ("submission merge id=id.npz -o other.npz", "other.npz exists already"),
    "export": ("export model.safetensors -o other.pt2", "other.pt2 exists already"),
    "import": ("import published.pt -o other.safetensors", "other.safetensors exists already"),
    "generate": ("data generate ethanol --frames 1 -o other.extxyz", "other.extxyz exists already"),
    "compare": ("compare a b -o other.extxyz", "other.extxyz is a file, wanted a folder"),
    "convert": ("data convert mine.extxyz -o other.extxyz", "other.extxyz is a file, wanted a folder"),
    "relax": ("relax model.safetensors mine.extxyz -o other.extxyz", "other.extxyz is a file, wanted a folder"),
    "evaluate": ("evaluate model.safetensors mine.extxyz -o .", "test.json exists already"),
    "md": ("md model.safetensors mine.extxyz --steps 1 -o .", ". is not empty and holds no simulation to continue"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_existing_files_are_refused(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command, refusal = COMMANDS[name]
    code, output = said(*command.split())
    assert code == 1, output
    assert f"Error: {refusal}" in output and "(nothing changed)" in output
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_force_replaces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in ("predict", "merge"):
        code, output = said(*COMMANDS[name][0].split(), "--force")
        assert code == 0, output
    assert len(ase.io.read("other.extxyz", ":")) == 1
    assert np.load("other.npz")["id_ids"].tolist() == ["1_0"]


def test_an_input_is_never_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "link.extxyz").symlink_to(folder / "mine.extxyz")
    before = (folder / "mine.extxyz").read_bytes()
    for output in ("mine.extxyz", "link.extxyz"):
        code, words = said("predict", "model.safetensors", "mine.extxyz", "-o", output, "--force")
        assert code == 1
        assert f"{output} belongs to the input" in words
    assert said("submission", "merge", "id=id.npz", "-o", "id.npz", "--force")[0] == 1
    assert (folder / "mine.extxyz").read_bytes() == before


def test_a_relaxation_of_nothing_but_refused_structures_fails(folder: Path) -> None:
    ase.io.write(folder / "xenon.extxyz", [ase.Atoms("Xe"), ase.Atoms("XeH")])
    code, words = said("relax", folder / "model.safetensors", folder / "xenon.extxyz", "-o", folder / "out")
    assert code == 1
    assert "2 unknown element" in words
    assert "No structure could be relaxed" in words


def test_files_inside_an_input_folder_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.lmdb").write_text("data")
    with pytest.raises(ValueError, match=r"belongs to the input .*shards"):
        files.new_file(tmp_path / "shards" / "0.lmdb", inputs=[tmp_path / "shards"], force=True)
    with pytest.raises(ValueError, match="is a folder"):
        files.new_file(tmp_path / "shards", force=True)
    assert files.new_file(tmp_path / "new.lmdb", inputs=[tmp_path / "shards"]) == tmp_path / "new.lmdb"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("data generate ethanol --frames 1 -o new.txt", "name the file .extxyz"),
        ("train demo --slurm --dry-run", "both print and stop"),
        ("train demo --slurm --processes 2", "--processes is not for --slurm"),
        ("evaluate model.safetensors --discovery mine.extxyz --force -o new", "--discovery takes no --split, and no"),
        ("stability model.safetensors mine.extxyz --time inf -o new", "--time: inf: wanted a number of ps above 0"),
    ],
)
def test_what_would_be_lost_or_ignored_is_refused(
    folder: Path, command: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, text = said(*command.split())
    assert code == 1 and why in text
