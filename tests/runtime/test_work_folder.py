"""Begin, continue and refuse work in a folder; state files, appended files, lines of JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from denskit.files import locked
from denskit.runtime.work_folder import WorkFolder, append_line, differences, read_state, whole_lines, write_state


def folder(path: Path) -> WorkFolder:
    return WorkFolder(path, "relaxation", "settings.json")


def test_work_begins_in_an_empty_folder_and_continues_where_the_marker_is(tmp_path: Path) -> None:
    said: list[str] = []
    with folder(tmp_path / "new").opened(resume=True, say=said.append) as continues:
        assert not continues
        (tmp_path / "new" / "settings.json").write_text("{}")
    assert said == [f"{tmp_path / 'new'} holds no relaxation yet: starting from the beginning"]
    with folder(tmp_path / "new").opened(resume=True, say=pytest.fail) as continues:
        assert continues


def test_folders_are_refused_in_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"is not empty and holds no relaxation to continue; .*nothing changed"):
            folder(tmp_path).continues(resume=resume)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds a relaxation; continue it with --resume .*, or give another folder"):
        folder(tmp_path).continues(resume=False)
    with (
        locked(tmp_path),
        pytest.raises(ValueError, match="is in use by process"),
        folder(tmp_path).opened(resume=True),
    ):
        pass


def test_changed_entries_are_named_by_their_keys(tmp_path: Path) -> None:
    before = {"optimizer": {"name": "fire", "dt": 0.1}, "file": "a.xyz", "steps": (1, 2), "device": "cpu"}
    now = {"optimizer": {"name": "fire", "dt": 0.2}, "steps": [1, 2], "device": "cuda", "sids": "x" * 200}
    assert differences(before, before) == {}
    with pytest.raises(ValueError, match=r"holds another relaxation:\n  file: a.xyz then, None now\n") as error:
        folder(tmp_path).require_same(before, now, may_change={"device"})
    assert "\n  optimizer.dt: 0.1 then, 0.2 now\n" in str(error.value)
    assert "xxx... now" in str(error.value) and "steps" not in str(error.value) and "device" not in str(error.value)
    assert folder(tmp_path).require_same({"a": 1}, {"a": 2}, {"a"}) == {"a": (1, 2)}
    listed = {"files": [{"name": "a", "own": {}}]}
    assert differences(listed, {"files": [{"name": "b"}]}) == {"files.0.name": ("a", "b")}


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    shared = torch.rand(3, 2, dtype=torch.float64)
    write_state(tmp_path / "state", {"a.x": shared, "a.y": shared, "b": shared.T}, {"step": 3})
    tensors, notes = read_state(tmp_path / "state")
    assert notes == {"step": 3}
    assert all(torch.equal(tensors[name], value) for name, value in (("a.x", shared), ("a.y", shared), ("b", shared.T)))
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:50])
    with pytest.raises(ValueError, match=r"state is damaged.*remove it"):
        read_state(tmp_path / "state")
    with pytest.raises(FileNotFoundError, match="nothing to continue"):
        read_state(tmp_path / "other")


def test_appended_files_are_cut_to_the_state(tmp_path: Path) -> None:
    work = folder(tmp_path)
    for name in ("kept", "begun_later"):
        (tmp_path / name).write_text("0123456789")
    work.cut([tmp_path / "kept", tmp_path / "begun_later"], {"kept": 4})
    assert (tmp_path / "kept").read_text() == "0123"
    assert not (tmp_path / "begun_later").exists()
    with pytest.raises(ValueError, match="kept has 4 bytes, but had 5"):
        work.cut([tmp_path / "kept"], {"kept": 5})
    with pytest.raises(ValueError, match="kept has 0 bytes, but had 5"):
        work.cut([], {"kept": 5})


def test_a_state_of_somebody_else_cuts_no_other_file(tmp_path: Path) -> None:
    other, inside = tmp_path / "thesis.tex", tmp_path / "work"
    other.write_text("0123456789")
    inside.mkdir()
    with pytest.raises(ValueError, match="has 0 bytes, but had 4"):
        folder(inside).cut([], {"../thesis.tex": 4})
    folder(inside).cut([], {"../thesis.tex": 0, str(other): 0})
    (inside / "statistics.csv").symlink_to(other)
    with pytest.raises(ValueError, match=r"statistics.csv is a link to .*thesis.tex; put the file itself there"):
        folder(inside).cut([inside / "statistics.csv"], {"statistics.csv": 0})
    assert other.read_text() == "0123456789"


def test_a_torn_last_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    offsets = [append_line(path, {"number": number}) for number in range(3)]
    with path.open("a") as file:
        file.write('{"numb')
    for _ in range(2):
        assert list(whole_lines(path)) == [(offset, {"number": number}) for number, offset in enumerate(offsets)]
    path.write_text('{"number": 0}\nno json\n')
    with pytest.raises(ValueError, match="lines is damaged at byte 14"):
        list(whole_lines(path))
