"""What the trained runs of a study are judged on: the test split, other files, simulations, relaxations."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denskit.data import load_data
from denskit.data.base import Source, elements_of
from denskit.data.readers.folders import read_warned
from denskit.data.readers.formats import open_unchecked
from denskit.data.records import unknown_elements
from denskit.evaluation.evaluate import evaluate
from denskit.evaluation.judged_structures import has_test, reading, source_of
from denskit.evaluation.study.config import RELAXATION, SIMULATION, TEST, Relaxations, StudyConfig
from denskit.files import write_json
from denskit.models.model_file import read_header
from denskit.reading.documents import read_json
from denskit.simulation.potential import Potential
from denskit.simulation.relaxation import PROTOCOLS
from denskit.simulation.relaxation.folder import RelaxationFolder, relax_into
from denskit.simulation.relaxation.is2re import errors, first_frames
from denskit.simulation.stability.protocol import Reference, StudySettings
from denskit.simulation.stability.study import run_study
from denskit.simulation.state import Structures
from denskit.training.fitted_settings import training_for
from denskit.training.inputs import digest_of
from denskit.training.loader import steps_per_epoch
from denskit.training.reading_settings import reading_like
from denskit.training.run_folder import RunFolder, model_file
from denskit.training.seen import copies_seen, seen_before
from denskit.training.settings import RunConfig

Errors = dict[str, float]
SEEN, OF = "structures_trained_on", "structures"  # counts beside the errors


def asked_of(study: StudyConfig) -> dict[str, Any]:
    """All that is judged beside the test split, by name, as plain JSON with the content of files.

    Where it changes, runs are judged again.
    """
    asked: dict[str, Any] = {name: {"file": file, "sha256": digest_of(file)} for name, file in study.tests.items()}
    if study.simulation is not None:
        asked[SIMULATION] = study.simulation.model_dump(exclude_defaults=True)
    if study.relaxation is not None:
        asked[RELAXATION] = study.relaxation.model_dump(exclude_defaults=True)
        if study.relaxation.path is not None:
            asked[RELAXATION]["sha256"] = digest_of(study.relaxation.path)
    return asked


def left_to_judge(study: StudyConfig, judged: Mapping[str, Any]) -> list[str]:
    """What a run is not judged on yet; ``judged``: its result so far, perhaps empty."""
    done, asked = judged.get("errors", {}), asked_of(study)
    before = judged.get("tests", {})
    return [name for name, what in asked.items() if name not in done or before.get(name) != what]


def require_judgeable(study: StudyConfig, config: RunConfig) -> None:
    """Raise ValueError, before the training, where its model could not be judged on all that the study asks.

    Simulations and relaxations need something to compare with, and other files only elements that are trained on.
    """
    data = load_data(config.data, config.seed, config.required_labels)
    training = training_for(config, len(data.train))
    steps_per_epoch(len(data.train), training.batch_size, training.drop_last)
    if data.test is None and not asked_of(study):
        raise ValueError(
            "training and validation leave no structure for the test split, and the study has no "
            "tests: nothing to judge its runs on. Give more structures, or ask for fewer (data.split)"
        )
    if study.best_of and data.valid is None:
        raise ValueError(
            "best_of chooses by validation errors, and there are no validation structures (data.split.valid)"
        )
    if study.mean_of_tests and len(study.tests) < 2:
        raise ValueError(
            f"mean_of_tests is the mean over the files of tests, of which the study has {len(study.tests) or 'none'}; "
            "give two or more, such as tests.id=FILE tests.ood=FILE, or mean_of_tests=false"
        )
    _require_references(study, data.test)
    if config.training.init_from is not None:
        for warning in seen_before(config, data.splits, data.judged):
            raise ValueError(warning.removeprefix("warning: "))
    if not study.tests or not data.train.in_memory:  # shards take long
        return
    known = elements_of(data.train)
    if config.training.init_from is not None:
        known |= set(read_header(model_file(config.training.init_from))["scaling"]["elements"])
    for name, file in study.tests.items():
        try:
            source = read_warned(file, reading_like(config.data.model_dump(mode="json"), file), open_unchecked)
        except ValueError as error:
            raise ValueError(f"tests.{name}: {error}") from None
        if found := unknown_elements(source, source.elements_of_structures() if source.in_memory else (), known):
            raise ValueError(
                f"{found}, but in no structure to train on. Train with data that have the elements, or take this file "
                "out of tests"
            )


def _require_references(study: StudyConfig, test: Source | None) -> None:
    relaxation = study.relaxation
    of_test = relaxation is not None and relaxation.path is None
    if study.simulation is None and not of_test:
        return
    if test is None:
        raise ValueError("simulation and relaxation are compared with the test split, and there is none")
    if study.simulation is not None:
        Reference.of(test)
    if relaxation is not None and of_test:
        _with_references(test, relaxation)


def judge(study: StudyConfig, run: Path, name: str) -> Errors:
    """Errors of a trained run on one of :func:`asked_of`.  Raises as the work itself.

    Simulations and relaxations continue after a kill, in folders of the run, and begin again where settings change.
    """
    if name in study.tests:
        return _judged(run, source_of(run, study.tests[name], TEST))
    folder, marker, asked = run / name, run / f"{name}_asked.json", asked_of(study)[name]
    if not (marker.is_file() and read_json(marker) == asked):
        shutil.rmtree(folder, ignore_errors=True)
        write_json(marker, asked)
    if name == SIMULATION and study.simulation is not None:
        return _simulated(run, study.simulation, folder)
    assert name == RELAXATION and study.relaxation is not None
    return _relaxed(run, study.relaxation, folder)


def on_test_split(run: Path) -> dict[str, Errors]:
    """Errors on the test split, under its name; empty where the run has none."""
    return {TEST: _judged(run, source_of(run, None, TEST))} if has_test(run) else {}


def _judged(run: Path, source: Source) -> Errors:
    """Errors on structures, and how many of them the run has trained on, if any."""
    errors, seen = evaluate(run, source), copies_seen(RunFolder(run), source)
    return errors if seen is None or not len(seen) else {**errors, SEEN: len(seen), OF: len(source)}


def _simulated(run: Path, settings: StudySettings, folder: Path) -> Errors:
    """Stability and h(r), means over the simulations, and how many ended early; the reference is the test split."""
    found = run_study(
        Potential(model_file(run)), Reference.of(source_of(run, None, "test")), settings, folder=folder, resume=True
    ).summary()
    means = {name: found[name]["mean"] for name in ("stability_ps", "h_of_r_error")}
    measured = {name: mean for name, mean in means.items() if mean is not None}  # none: all ended before a record
    return {**measured, "simulations": settings.seeds, "unstable": len(found["unstable"])}


def _relaxed(run: Path, settings: Relaxations, folder: Path) -> Errors:
    """Errors of relaxed energies and structures."""
    if settings.path is None:
        source: Structures = source_of(run, None, "test")
    else:
        source = read_warned(settings.path, reading(run, Path(settings.path)), open_unchecked)
    source = _with_references(source, settings)
    protocol = PROTOCOLS[settings.protocol]
    if settings.steps is not None:
        protocol = protocol.model_copy(update={"steps": settings.steps})
    work = RelaxationFolder(folder)
    relax_into(work, Potential(model_file(run), stress=protocol.cell is not None), source, protocol, resume=True)
    return errors(work.results(), source)


def _with_references(source: Structures, settings: Relaxations) -> Structures:
    """The structures to relax.  Raises ValueError where none has a reference."""
    if settings.first_frames:
        source = first_frames(source)
    systems = (source[index] for index in range(len(source)))
    if all(system.relaxed_energy is None and system.relaxed_positions is None for system in systems):
        name = settings.path or "the test split"
        raise ValueError(f"{name}: no structure has a relaxed_energy or relaxed positions to compare with")
    return source
