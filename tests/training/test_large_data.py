"""Trainings on structures that stay on disk, of which only a sample is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import torch

from data.published import new_object, pickled, s2ef, write_lmdb
from denskit.models.model_file import load_model
from denskit.models.scaling import Scaling
from denskit.training import starting_model
from denskit.training.checkpoint import load_checkpoint
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train

RARE = 17  # record with xenon, outside the sample
GIVEN = {"H": -1.0, "C": -4.0, "O": -2.0, "Cu": -3.0}  # eV


def _large(tiny: Callable[..., RunConfig], path: Path, *overrides: str) -> RunConfig:
    """A run on records, of which a few are measured; its first epoch has 9 steps."""
    return tiny(
        f"data.path={path}", "data.split={mode: blocks, train: 36, valid: 2, test: 2}", "data.references=fit",
        "task=energy_forces", "model.forces=direct", "training.max_steps=9", "training.checkpoint_every=1", *overrides,
    )  # fmt: skip


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An LMDB file of 40 structures."""
    for place in ("starting_model", "planned", "fitted_loss", "fitted_settings", "fitted_denoising"):
        monkeypatch.setattr(f"denskit.training.{place}.SAMPLE", 14)
    monkeypatch.setattr("denskit.data.loading.SAMPLE", 14)
    monkeypatch.setattr("denskit.training.forecast.MEASURED", 14)
    for place in ("data.loading.FEW", "training.forecast.FEW"):
        monkeypatch.setattr(f"denskit.{place}", 10)
    monkeypatch.setattr("denskit.training.forecast.findings_of", lambda *_: [])  # looks at 1,000
    return write_lmdb(tmp_path / "s2ef.lmdb", [_record(index) for index in range(40)], length=40)


def _record(index: int, **changes: Any) -> bytes:
    return pickled(new_object(s2ef(index, **changes)))


def test_what_is_measured_is_said_once_and_measured_once(
    tiny: Callable[..., RunConfig], records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run has it in its checkpoint; settings with which it does not continue are told before a model."""
    told = "reading 14 of 36 training structures for scale and references"
    run = train(_large(tiny, records, "training.max_steps=1"), progress=True)
    assert capsys.readouterr().out.count(told) == (run / "train.log").read_text().count(told) == 1
    before = torch.load(run / "checkpoints/last.pt", weights_only=True)["scaling"]
    assert before["elements"] == [1, 6, 8, 29]

    def measured(*args: object, **settings: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(starting_model, "fit_scaling", measured)
    train(_large(tiny, records, "training.max_steps=2"), resume=True)
    assert torch.load(run / "checkpoints/last.pt", weights_only=True)["scaling"] == before
    monkeypatch.setattr("denskit.training.trainer.initial_force_field", measured)
    with pytest.raises(ValueError, match=r"another run:\n +seed: 0 then, 1 now"):
        train(_large(tiny, records, "seed=1"), resume=True)


@pytest.mark.parametrize("given", [None, GIVEN])
def test_a_run_that_meets_a_further_element_goes_on_with_its_reference(
    tiny: Callable[..., RunConfig], records: Path, tmp_path: Path, given: dict[str, float] | None
) -> None:
    """As the error says; given energies are centred as those that were given before."""
    _with_xenon(records)

    def references(energies: dict[str, float] | None) -> list[str]:
        return [] if energies is None else [f"data.references={json.dumps(energies)}"]

    with pytest.raises(ValueError, match=r"structures have Xe, .* --resume 'data\.references=\{Xe: \.\.\.\}'"):
        train(_large(tiny, records, *references(given)))
    run = tmp_path / "run"
    assert "structures were looked at for elements" in (run / "train.log").read_text()
    stopped = load_checkpoint(run / "checkpoints/last.pt")
    assert 0 < stopped.step < 9 and stopped.scaling["elements"] == [1, 6, 8, 29]

    added = {"Xe": -0.5}
    with pytest.raises(ValueError, match=r"data\.references\.H: .* 3\.0 now"):
        train(_large(tiny, records, *references({**added, "H": 3.0})), resume=True)
    train(_large(tiny, records, *references(added)), resume=True)
    longer = [*references(added), "training.max_steps=10"]
    train(_large(tiny, records, *longer), resume=True)  # again, and nothing more is added
    assert "changed on resume: data.references.Xe: None -> -0.5" in (run / "train.log").read_text()
    with pytest.raises(ValueError, match=r"no step left .*data\.references\.Kr=-0\.1"):
        train(_large(tiny, records, *longer, *references({**added, "Kr": -0.1})), resume=True)

    scaling, before = load_model(run / "checkpoints/last.safetensors").scaling, Scaling.from_dict(stopped.scaling)
    assert scaling.elements == [1, 6, 8, 29, 54]
    assert (scaling.references[:54] == before.references[:54]).all()
    centre = 0.0 if given is None else float(before.references[1]) - given["H"]
    assert float(scaling.references[54]) == pytest.approx(-0.5 + centre)
    scaling.check_elements(np.array([54]))
    kept = load_config(run).data.references
    assert isinstance(kept, dict) and kept.keys() == {"H", "C", "O", "Cu", "Xe"} and kept["Xe"] == -0.5


def test_other_references_in_a_file_are_no_further_elements(
    tiny: Callable[..., RunConfig], records: Path, tmp_path: Path
) -> None:
    _with_xenon(records)
    (file := tmp_path / "references.json").write_text(json.dumps(GIVEN))
    with pytest.raises(ValueError, match="where references are of a file, add it there and begin a new run"):
        train(_large(tiny, records, f"data.references={file}"))
    with pytest.raises(ValueError, match=r"data\.references\.Xe: None then, -0\.5 now"):
        train(_large(tiny, records, "data.references={Xe: -0.5}"), resume=True)


def test_an_element_without_an_embedding_needs_a_new_run(tiny: Callable[..., RunConfig], records: Path) -> None:
    _with_xenon(records)
    with pytest.raises(ValueError, match=r"Xe has the atomic number 54, .* new run with model\.num_elements=55"):
        train(_large(tiny, records, "model.num_elements=40"))
    with pytest.raises(ValueError, match=r"Xe has the atomic number 54"):
        train(_large(tiny, records, "model.num_elements=40", "data.references={Xe: -0.5}"), resume=True)


def _with_xenon(path: Path) -> None:
    """Write one record anew, with xenon."""
    _write(path, _record(RARE, atomic_numbers=torch.tensor([29.0, 29.0, 8.0, 54.0, 6.0, 1.0])))


def _write(path: Path, record: bytes) -> None:
    """Another record in the place of the one that the sample lacks."""
    with lmdb.open(str(path), subdir=False, map_size=2**24, lock=False) as file, file.begin(write=True) as transaction:
        transaction.put(str(RARE).encode(), record)


def test_a_fine_tuning_that_meets_a_further_element_goes_on(
    tiny: Callable[..., RunConfig], records: Path, tmp_path: Path
) -> None:
    """Not where a part is frozen: what is trained would change."""
    first = train(_large(tiny, records, "training.max_steps=1")).rename(tmp_path / "first")
    _with_xenon(records)
    run, added = [f"training.init_from={first}"], "data.references={Xe: -0.5}"
    frozen = [*run, "training.frozen=[embedding]", f"output={tmp_path / 'frozen'}"]
    for settings in (run, frozen):
        with pytest.raises(ValueError, match=r"data\.references=\{Xe: \.\.\.\}"):
            train(_large(tiny, records, *settings))
    with pytest.raises(ValueError, match=r"training\.frozen=embedding: the model was frozen without Xe"):
        train(_large(tiny, records, *frozen, added), resume=True)
    model = load_model(train(_large(tiny, records, *run, added), resume=True) / "checkpoints/last.safetensors")
    assert model.scaling.elements == [1, 6, 8, 29, 54]
    row = [path.backbone.get_parameter("atom_embedding")[54] for path in (load_model(first), model)]
    assert not torch.equal(*row)


def test_a_run_that_met_a_missing_label_goes_on_without_it(tiny: Callable[..., RunConfig], records: Path) -> None:
    """As the error says."""
    _write(records, _record(RARE, y=np.nan))
    with pytest.raises(ValueError, match=r"record 17: energy is NaN or infinite.* data\.missing=mask"):
        train(_large(tiny, records))
    run = train(_large(tiny, records, "data.missing=mask"), resume=True)
    assert load_checkpoint(run / "checkpoints/last.pt").step == 9
