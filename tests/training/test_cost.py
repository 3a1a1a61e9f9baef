"""What a training costs, and trainings that last a given time."""

from __future__ import annotations

import csv
import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from denskit.data import DataConfig
from denskit.data.base import Source
from denskit.training.checkpoint import load_checkpoint
from denskit.training.checks import warnings_before
from denskit.training.cost import Cost, TimeBudget, time_steps
from denskit.training.fitted_settings import rows_for
from denskit.training.forecast import _trial, forecast_of
from denskit.training.load_config import RunConfig, load_config
from denskit.training.run import train
from denskit.training.settings import SizeRow, TrainingConfig, parse_budget, parse_interval
from training.same_runs import TIMINGS

Tiny = Callable[..., RunConfig]
COST = Cost(step=0.1, structure=0.01, train=80, valid=20, test=50)


def test_times_in_words() -> None:
    assert [parse_budget(text) for text in ("90 seconds", "1 minute", "1.5 hours", "2 days")] == [90, 60, 5400, 172800]
    for wrong in ("soon", "0 minutes", "30", "-1 hours", "5 steps"):
        with pytest.raises(ValueError, match="is no time; write '30 minutes'"):
            parse_budget(wrong)


def test_steps_and_seconds_agree() -> None:
    """10 steps an epoch; a validation of 0.2 s after every 20 steps."""
    settings = {"batch_size": 8, "evaluate_every": "2 epochs"}
    steps = COST.steps_of(TrainingConfig(**settings, budget="2 minutes"))
    assert steps == int((120 - 0.2) / (0.1 + 0.2 / 20))
    assert COST.training_seconds(TrainingConfig(**settings, max_steps=steps)) == pytest.approx(120, abs=0.4)
    assert COST.training_seconds(TrainingConfig(**settings, epochs=10), train=8) == pytest.approx(10 * 0.1 + 5 * 0.2)
    with pytest.raises(ValueError, match=r"training.budget=1 second is enough for 7 steps of 0.1 s"):
        COST.steps_of(TrainingConfig(**settings, budget="1 second"))
    slow = replace(COST, trial=60)
    assert slow.steps_of(TrainingConfig(**settings, budget="3 minutes")) == steps
    assert slow.steps_of(TrainingConfig(**settings, budget="1 minute")) == int((30 - 0.2) / (0.1 + 0.2 / 20))


def test_old_structures_that_are_judged_count() -> None:
    settings = TrainingConfig(batch_size=8, evaluate_every="2 epochs", max_steps=20)
    more = replace(COST, replayed=100).training_seconds(settings) - COST.training_seconds(settings)
    assert more == pytest.approx(100 * 0.01)


def test_a_trial_is_said_before_it_begins(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may take minutes."""

    def ended(*_: object, **__: object) -> float:
        raise ValueError("the trial")

    monkeypatch.setattr("denskit.training.forecast.time_steps", ended)
    for progress in (True, False):
        with pytest.raises(ValueError, match="the trial"):
            train(tiny("training.budget=1 minute"), progress=progress)
        assert ("timing a few steps of equiformer with" in capsys.readouterr().out) == progress


@pytest.mark.parametrize(("budget", "limit", "judged"), [("1 day", 30, 4), ("1 minute", 15, 3), ("56 seconds", 14, 2)])
def test_a_trial_of_slow_steps_takes_a_part_of_the_budget(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, budget: str, limit: float, judged: int
) -> None:
    """Batches of two structures take 5 s; a quarter of the time for steps, half as long for the evaluations."""
    limits: list[float] = []
    evaluated: list[int] = []

    def timed(*_: object, limit: float, **__: object) -> float:
        limits.append(limit)
        return 5.0

    def measured(force_field: object, sample: Source, **_: object) -> None:
        evaluated.append(len(sample))

    monkeypatch.setattr("denskit.training.forecast.time_steps", timed)
    monkeypatch.setattr("denskit.training.forecast.measure", measured)
    forecast_of(tiny(f"training.budget={budget}", "training.batch_size=2"))
    assert (limits, evaluated) == ([limit], [judged, judged])


def test_large_files_are_named_before_they_are_read(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.extxyz"
    file.write_bytes(b"3\n" * 1500)  # no file of structures: the line comes before the error
    config = tiny("training.max_steps=1")
    config = config.model_copy(update={"data": DataConfig(path=str(file))})
    for large, words in ((1e4, ""), (2e3, f"reading {file} (0 MB)")):
        monkeypatch.setattr("denskit.training.forecast._LARGE", large)
        said: list[str] = []
        with pytest.raises(ValueError, match="cannot be read"):
            forecast_of(config, say=said.append)
        with pytest.raises(ValueError, match="cannot be read"):
            train(config, progress=True)
        assert said == [words][: bool(words)]
        assert capsys.readouterr().out.strip() == words


def test_the_model_of_a_trial_is_gone_after_it(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its optimizer: the training that follows needs the memory."""
    made: list[weakref.ref[object]] = []

    def timed(step: Any, *_: object, **__: object) -> float:
        trainer = step.__self__
        made.extend(weakref.ref(part) for part in (trainer.force_field, trainer.update.optimizer))
        return 0.1

    monkeypatch.setattr("denskit.training.forecast.time_steps", timed)
    gc.disable()  # else the collector may happen to come by
    try:
        forecast_of(tiny("training.max_steps=2"))
    finally:
        gc.enable()
    assert [part() for part in made] == [None, None]


def test_one_length_is_given(tiny: Tiny) -> None:
    assert tiny("training.budget=1 minute").training.max_steps is None  # it replaces that of the file
    with pytest.raises(ValueError, match=r"each set the length of the training; give one of training.epochs"):
        tiny("training.budget=1 minute", "training.epochs=3")
    with pytest.raises(ValueError, match=r"training.budget: .*'90' is no time; write '30 minutes'"):
        tiny("training.budget=90")


def test_a_trial_measures_and_writes_nothing(tiny: Tiny) -> None:
    before = time.process_time()
    forecast = forecast_of(tiny("training.max_steps=7", "task.sigma=0.4"))
    config, cost = forecast.planned.config, forecast.cost
    assert (cost.train, cost.valid, cost.test) == (20, 4, 4)
    assert cost.step > 0 and cost.structure > 0
    assert before < cost.start < time.process_time(), "of the whole process, before the first step"
    assert config.training.max_steps == 7
    assert any(message.startswith("warning: task.sigma=0.4 Å") for message in warnings_before(forecast.planned))
    assert not Path(config.output).exists()


def test_a_budget_becomes_steps_which_a_resumed_run_keeps(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is the one of so many steps; a second trial, which would find another number, is not made."""
    monkeypatch.setattr(Cost, "steps_of", lambda self, training: 10)
    frames = "data.split.train=7"  # one batch of 4 an epoch, the other 3 are dropped
    run = train(tiny("training.budget=1 day", frames))
    assert load_config(run).training.max_steps == 10 and load_config(run).training.budget is None
    assert "training.budget=1 day: 10 steps (10 epochs)" in (run / "train.log").read_text(encoding="utf-8")
    other = train(tiny("training.max_steps=10", frames, name="other"))
    assert _errors(run) == _errors(other)
    monkeypatch.setattr(Cost, "steps_of", lambda self, training: 99)
    assert load_config(train(tiny("training.budget=1 day", frames), resume=True)).training.max_steps == 10


def test_a_run_that_began_before_its_preset_had_epochs_keeps_its_length(tiny_file: Path, tmp_path: Path) -> None:
    """Those of ``sizes`` are for new runs; what a command gives counts."""

    def length(name: str, *settings: str, resume: bool = False) -> tuple[int | None, int | None, int]:
        run = train(load_config(tiny_file, [f"output={tmp_path / name}", "device=cpu", *settings]), resume=resume)
        training = load_config(run).training
        return training.epochs, training.max_steps, load_checkpoint(run / "checkpoints" / "last.pt").step

    text = tiny_file.read_text()
    tiny_file.write_text(f"{text}sizes: [{{training: {{batch_size: 4}}}}]\n")
    assert length("old") == (None, 10, 10)
    tiny_file.write_text(f"{text}sizes: [{{training: {{batch_size: 4, epochs: 1}}}}]\n")
    assert length("old", resume=True) == (None, 10, 10)
    assert length("old", "training.max_steps=12", resume=True) == (None, 12, 12)
    assert length("new") == (1, 10, 5)
    assert length("new", "training.epochs=3", resume=True) == (3, None, 15)


@pytest.mark.parametrize("planned", [6, 20, 60])
def test_a_training_keeps_to_its_budget(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, planned: int) -> None:
    """However many steps the trial found, it gets those that fit by the speed found later."""
    monkeypatch.setattr(Cost, "steps_of", lambda self, training: planned)
    monkeypatch.setattr(TimeBudget, "steps_that_fit", lambda self, step, total: 20)
    settings = ("training.budget=10 seconds", "training.log_every=2", "training.warmup=0.1")
    run = train(tiny(*settings))
    said = (run / "train.log").read_text(encoding="utf-8")
    changed = f"training.budget=10 seconds: 20 instead of {planned} steps, at the present speed"
    assert said.count("at the present speed") == said.count(changed) == int(planned != 20)
    assert load_config(run).training.max_steps == 20
    last = load_checkpoint(run / "checkpoints" / "last.pt")
    assert last.step == 20 and last.config["training"]["max_steps"] == 20
    whole = train(tiny("training.max_steps=20", *settings[1:], name="whole"))
    rates, wanted = (
        [(row["step"], row["lr"]) for row in csv.DictReader((one / "metrics.csv").open(encoding="utf-8"))]
        for one in (run, whole)
    )
    assert rates[4:] == wanted[4:] and len(rates) > 8, "from the correction on, the schedule is that of 20 steps"
    assert "20 steps" in (train(tiny(*settings), resume=True) / "train.log").read_text(encoding="utf-8")


def test_a_longer_training_does_not_warm_up_again(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 6 steps; of 20 it would be 10.  The same command goes on with it, and one that gives another length."""
    monkeypatch.setattr(Cost, "steps_of", lambda self, training: 6)
    monkeypatch.setattr(TimeBudget, "steps_that_fit", lambda self, step, total: 20)
    config = tiny("training.budget=10 seconds", "training.log_every=1", "training.warmup=0.5")
    run = train(config)
    rates = [float(row["lr"]) for row in csv.DictReader((run / "metrics.csv").open(encoding="utf-8"))]
    assert len(rates) == 20 and all(later < earlier for earlier, later in pairwise(rates[4:]))
    assert load_config(run).training.warmup == 3
    train(config, resume=True)
    train(tiny("training.max_steps=22", "training.log_every=1", "training.warmup=0.5"), resume=True)
    assert load_config(run).training.warmup == 3
    assert len((run / "metrics.csv").read_text(encoding="utf-8").splitlines()) == 1 + 22


def test_a_length_is_corrected_by_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred seconds, in which steps of one second were planned."""
    seconds = 1000.0
    monkeypatch.setattr("denskit.training.cost.time.monotonic", lambda: seconds)

    def lengths(*looks: tuple[float, int, int], spent: float = 0.0) -> list[int]:
        nonlocal seconds
        seconds, budget, found = 1000.0, TimeBudget("100 seconds", spent), []
        budget.begin()
        for after, step, total in looks:
            seconds = 1000.0 + after
            found.append(budget.steps_that_fit(step, total))
        return found

    assert lengths((9, 5, 900)) == [900], "too early"
    assert lengths((20, 20, 104)) == [104] and lengths((20, 20, 96)) == [96], "within 5 %"
    assert lengths((20, 20, 106)) == lengths((20, 20, 94)) == [100]
    assert lengths((20, 10, 100), (29, 11, 50), (60, 50, 50)) == [50, 50, 90], "by the speed since the last look"
    assert lengths((20, 20, 100), spent=30) == [70]
    assert lengths((20, 20, 100), spent=90) == [50], "a trial may take half of the time"
    assert lengths((120, 110, 130)) == [111], "too late"


@pytest.mark.parametrize(("wanted", "layers"), [(10, 2), (11, 1)])
def test_a_budget_for_too_few_steps_takes_a_smaller_model(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, wanted: int, layers: int
) -> None:
    """Said in the log; the dry run finds the same, and a run that continues keeps it without another trial."""
    monkeypatch.setattr(Cost, "steps_within", lambda self, training: 10)
    trials: list[float] = []

    def trial(*arguments: Any) -> Cost:
        cost = _trial(*arguments)
        trials.append(cost.trial)
        return cost

    monkeypatch.setattr("denskit.training.forecast._trial", trial)
    rows = (SizeRow(up_to=2, model={"num_layers": 1}), SizeRow(min_steps=wanted, model={"num_layers": 2}))
    config = tiny("training.budget=1 hour").model_copy(update={"sizes": rows})
    forecast = forecast_of(config)
    assert forecast.planned.config.model.num_layers == layers
    assert sum(trials) == pytest.approx(forecast.cost.trial) and min(trials) > 0 and len(trials) == layers
    run = train(config)
    assert load_config(run).model.num_layers == layers
    said = (run / "train.log").read_text(encoding="utf-8")
    told = (
        "has time for fewer than 10 steps of the model meant for 20 structures, which wants 11; a smaller one is taken"
    )
    assert (told in said) == (layers == 1)
    monkeypatch.setattr(Cost, "steps_within", lambda self, training: 99)
    again = load_config(train(config, resume=True))
    assert (again.model.num_layers, again.training.max_steps) == (layers, 10)
    longer = tiny("training.max_steps=12").model_copy(update={"sizes": rows})  # as the log advises
    again = load_config(train(longer, resume=True))
    assert (again.model.num_layers, again.training.max_steps) == (layers, 12)


def test_a_size_that_was_given_is_tried_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without the settings that the user gave may be alike: nothing smaller is there, and nothing is said."""
    monkeypatch.setattr(Cost, "steps_within", lambda self, training: 10)
    rows = (SizeRow(up_to=2, model={}), SizeRow(min_steps=1000, model={}))
    forecast = forecast_of(tiny("training.budget=1 hour").model_copy(update={"sizes": rows}))
    assert not any("smaller" in line for line in forecast.messages)


def test_rows_that_differ_in_the_training_alone_are_not_the_same(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget tries each, and a run that continues keeps its own settings of both."""
    monkeypatch.setattr(Cost, "steps_within", lambda self, training: 10)
    rows = (SizeRow(up_to=2, training={"batch_size": 2}), SizeRow(min_steps=10, training={"lr": 2e-3, "batch_size": 5}))
    config = tiny("training.budget=1 hour").model_copy(update={"sizes": rows})
    run = train(config)
    kept = load_config(run).training
    assert (kept.batch_size, kept.lr) == (5, 2e-3)
    again = load_config(train(tiny("training.max_steps=12").model_copy(update={"sizes": rows}), resume=True)).training
    assert (again.batch_size, again.lr, again.max_steps) == (5, 2e-3, 12)


def test_rows_that_a_budget_chooses_from() -> None:
    """From the row for so many structures up, as long as one wants a number of steps."""
    small, medium, large = (
        SizeRow(up_to=10, model={}),
        SizeRow(up_to=100, min_steps=1000, model={}),
        SizeRow(min_steps=5000, model={}),
    )
    rows = (small, medium, large)
    assert rows_for(rows, 5) == [small]
    assert rows_for(rows, 11) == [medium, small]
    assert rows_for(rows, 101) == [large, medium, small]
    assert rows_for((large,), 101) == [large]
    assert rows_for((), 5) == []


def _errors(run: Path) -> list[list[str]]:
    with (run / "metrics.csv").open(newline="") as stream:
        return [[value for key, value in row.items() if key not in TIMINGS] for row in csv.DictReader(stream)]


@pytest.mark.parametrize(("seconds", "steps"), [(1.0, 6), (2.0, 4), (6.0, 2), (60.0, 2)])
def test_steps_of_a_trial(monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int) -> None:
    """A trial of five seconds takes one step beyond them, at least four, but two where those take twice as long."""
    now = 0.0
    monkeypatch.setattr("denskit.training.cost.time.perf_counter", lambda: now)
    taken = []

    def step(work: int) -> None:
        nonlocal now
        now += seconds
        taken.append(work)

    assert time_steps(step, range(30), limit=5.0) == seconds  # type: ignore[arg-type]
    assert len(taken) == steps


def test_processes_end_a_trial_after_the_same_step() -> None:
    """By the time that they agree on, whatever the clock of this one says."""
    taken: list[int] = []
    passed = iter(range(100))
    time_steps(taken.append, range(30), limit=5.0, agreed=lambda own: float(next(passed)))  # type: ignore[arg-type]
    assert len(taken) == 7


@pytest.mark.parametrize("compiling", [3.0, 20.0])
def test_the_step_that_compiles_is_not_counted(monkeypatch: pytest.MonkeyPatch, compiling: float) -> None:
    """Also where there is time for two steps alone."""
    now = 0.0
    monkeypatch.setattr("denskit.training.cost.time.perf_counter", lambda: now)

    def step(work: int) -> None:
        nonlocal now
        now += 0.1 if work else compiling

    assert time_steps(step, range(30), limit=5.0) == pytest.approx(0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("length", "every", "validations", "after"),
    [
        (1500, "1000 steps", 2, (1000, 1)),
        (20, "0.01 epochs", 20, (5, 15)),
        (20, "2 epochs", 1, (20, 0)),
        (100, "2 epochs", 5, (45, 3)),
        (5, "100 steps", 1, (3, 1)),
    ],
)
def test_validations_of_a_training(length: int, every: str, validations: int, after: tuple[int, int]) -> None:
    """10 steps an epoch; the last validation is at the end, whatever the interval."""
    settings = TrainingConfig(batch_size=8, evaluate_every=every, max_steps=length)
    schedule = COST.schedule(settings)
    interval = parse_interval(settings.evaluate_every)
    counted = [step for step in range(1, length + 1) if schedule.is_due(interval, step) or step == length]
    assert schedule.validations() == len(counted) == validations
    assert schedule.validations(after[0]) == sum(step > after[0] for step in counted) == after[1]
    assert COST.training_seconds(settings) == pytest.approx(length * 0.1 + validations * 20 * 0.01)
