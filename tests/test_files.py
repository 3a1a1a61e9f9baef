"""Atomic writes and locks, with real processes that are killed."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from denskit.files import atomic_write, is_empty, locked, locked_file, output_folder, short_names, write_json
from killing import posix, run


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_json(path, [object()])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_what_a_killed_writer_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "numbers.txt"
    operations = run(tmp_path, write_json, path, list(range(1000)))
    assert path.stat().st_size > 3000
    for point in range(2, operations + 1):
        run(tmp_path, write_json, path, [1], kill_at=point)
        assert path.stat().st_size > 3000  # whole, and still the old one
    assert [found.name for found in path.parent.iterdir() if found != path] == [".numbers.partial.txt"]
    assert not is_empty(path.parent)
    write_json(path, [2])
    assert path.read_text() == "[\n  2\n]\n"
    assert list(path.parent.iterdir()) == [path]


@posix
def test_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    second = Thread(target=write_json, args=(path, "second"))
    with atomic_write(path) as temporary:
        second.start()
        second.join(0.2)
        temporary.write_text("first")
        assert not path.exists()
    second.join(60)
    assert path.read_text() == '"second"\n'
    assert list(tmp_path.iterdir()) == [path]


@posix
@pytest.mark.parametrize("name", [".numbers.partial.txt", ".lock"])
def test_a_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    other, folder = tmp_path / "thesis.tex", tmp_path / "folder"
    other.write_text("mine")
    folder.mkdir()
    (folder / name).symlink_to(other)
    refused = pytest.raises(ValueError, match=r"is a link to .*thesis.tex, which would be overwritten; remove it")
    with refused, locked(folder):
        write_json(folder / "numbers.txt", [1])
    assert other.read_text() == "mine"


@posix
def test_a_folder_is_locked_for_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with locked(folder):
        assert is_empty(folder)
        with pytest.raises(ValueError, match=rf"new is in use by process {os.getpid()} on \S+"), locked(folder):
            pass
        waiting = Thread(target=_note, args=(folder,))
        waiting.start()
        waiting.join(0.2)
        assert not (folder / "note").exists()
    waiting.join(60)
    assert (folder / "note").exists()
    assert not (folder / ".lock").exists()
    with locked(tmp_path / "unused"):
        pass
    assert not (tmp_path / "unused").exists()
    with pytest.raises(ValueError, match="note is a file"), locked(folder / "note"):
        pass


@posix
def test_a_file_is_locked_for_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "labels.extxyz"
    with locked_file(path), locked_file(tmp_path / "others.extxyz"):
        with (
            pytest.raises(ValueError, match=rf"labels.extxyz is in use by process {os.getpid()} on \S+\. Wait until"),
            locked_file(path),
        ):
            pass
        assert not path.exists()
    assert not list(tmp_path.iterdir())


def _note(folder: Path) -> None:
    with locked(folder, wait=True):
        (folder / "note").touch()


@posix
def test_files_may_be_read_by_all_who_may_read_the_folder(tmp_path: Path) -> None:
    """Some writers (safetensors 0.8) make files for the owner alone."""
    path = tmp_path / "weights"
    with atomic_write(path) as temporary:
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_names_of_paths_are_short_and_differ() -> None:
    assert short_names([Path("/a/runs/x"), Path("/a/runs/y")]) == ["x", "y"]
    assert short_names([Path("/a/runs/x"), Path("/b/runs/x")]) == ["a/runs/x", "b/runs/x"]
    assert short_names([Path("/a/x"), Path("/a/x")]) == ["/a/x", "/a/x"]
    assert short_names([]) == []


def test_a_folder_is_no_file_by_its_name(tmp_path: Path) -> None:
    assert output_folder(tmp_path / "v1.2") == tmp_path / "v1.2"
    with pytest.raises(ValueError, match=r"rows\.csv: a folder is wanted"):
        output_folder(tmp_path / "rows.csv")
    (tmp_path / "odd.json").mkdir()
    assert output_folder(tmp_path / "odd.json") == tmp_path / "odd.json"
