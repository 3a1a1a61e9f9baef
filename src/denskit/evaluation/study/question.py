"""The study that tells whether DeNS helps on a user's data, sized to a time budget."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from denskit.batch import System
from denskit.data import load_data
from denskit.data.base import Source, spaced
from denskit.data.periodicity import mostly_crystals
from denskit.evaluation.denoising import guessed_noise, noise_of
from denskit.evaluation.study.config import FRAMES, LR, StudyConfig, changed
from denskit.evaluation.study.running import MAY_CHANGE, StudyFolder
from denskit.evaluation.study.runs import StudyRun, runs_of
from denskit.tasks import DeNSConfig, EnergyForcesConfig
from denskit.training import checks
from denskit.training.checks import COMPARE, STRESS_WEIGHT, STRESS_WEIGHTS, has_stress_head
from denskit.training.cost import Cost
from denskit.training.fitted_denoising import few_epochs_of, fit_dens_to_crystals, fit_sigma_to_data, paying_epochs
from denskit.training.fitted_loss import fit_loss_to_energies
from denskit.training.fitted_settings import training_for
from denskit.training.hints import MEASURED_RATE
from denskit.training.loader import steps_per_epoch
from denskit.training.planned import SAMPLE, PlannedTraining
from denskit.training.schedule import Schedule
from denskit.training.settings import RunConfig, TrainingConfig

RATES = (MEASURED_RATE / 2, MEASURED_RATE)  # the first is better for 16 cells of metals, the second for 100 of ethanol
FEW_FRAMES = 10  # fewer structures are no advice
_STEPS, _EPOCHS = ("training.max_steps", "training.evaluate_every"), "training.epochs"
LENGTHS = {*_STEPS, _EPOCHS}
_VARIANTS = {"without DeNS": {"task": "energy_forces"}, "with DeNS": {"task": "dens"}}
_OF_THE_DATA = (  # reasons not to expect a gain that a longer training leaves as they are
    checks.noise, checks.idle_denoising, checks.nothing_to_strain, checks.denoising_at_equilibrium,
    checks.denoising_few_crystals,
)  # fmt: skip
_FOR_TESTS = "only the noise"  # of corrupted structures
_ONLY_NOISE = {"task.energy_on_corrupted": False, "task.forces_on_corrupted": False}


def dens_question(file: Path, frames: int | None = None, steps: int = 10_000) -> StudyConfig:
    """Training with and without DeNS on a file, or ``frames`` of it, with three seeds and at two learning rates."""
    return StudyConfig(
        title=f"Does DeNS help on {file.name}?",
        base="equiformer",
        settings={"data.path": str(file.resolve()), **_length(steps)},
        variants=_VARIANTS,
        axes={**({FRAMES: (frames,)} if frames is not None else {}), LR: RATES},
        best_of=(LR,),
    )


def _with_length(question: StudyConfig, keys: Collection[str], kept: StudyConfig | None) -> StudyConfig:
    """The question with trainings as long as those of the study ``kept`` from an earlier command, and its one learning
    rate where time was short; without steps where epochs are among the ``keys`` of settings to come."""
    settings = dict(question.settings)
    if kept is not None:
        settings |= {key: kept.settings[key] for key in LENGTHS - set(keys) if key in kept.settings}
        if LR in kept.settings and default_rates(question):
            question = at_one_rate(question)
            settings |= {LR: kept.settings[LR]}
    if _EPOCHS in settings or _EPOCHS in keys:
        settings = {key: value for key, value in settings.items() if key not in _STEPS}
    return question.model_copy(update={"settings": settings})


def asked_anew(
    file: Path, frames: int | None, overrides: Sequence[str], kept: StudyConfig | None
) -> tuple[StudyConfig, list[str]]:
    """The question with the settings of a command, as long as ``kept`` of an earlier one where these say no length; and
    what the data make of it, in words."""
    keys = {override.partition("=")[0] for override in overrides}
    question = _with_length(dens_question(file, frames), keys, kept)
    study = changed(at_one_rate(question) if "axes" in keys else question, overrides)
    if LENGTHS & keys == {"training.max_steps"} and isinstance(steps := study.settings["training.max_steps"], int):
        study = study.model_copy(update={"settings": {**study.settings, **_length(steps)}})
    return adapted(study)


def asked_again(
    kept: StudyConfig, file: Path, frames: int | None, overrides: Sequence[str]
) -> tuple[StudyConfig, list[str]] | None:
    """The study ``kept`` from an earlier command about the same file, with more seeds, tests and the like; and what
    the data make of it, in words.  None where other settings are given, too."""
    fields = {override.partition("=")[0].partition(".")[0] for override in overrides}
    if kept.settings.get("data.path") != str(file.resolve()) or frames is not None or not fields <= MAY_CHANGE:
        return None
    return adapted(changed(kept, overrides)) if overrides else (kept, [])


def at_one_rate(study: StudyConfig, rate: float = MEASURED_RATE) -> StudyConfig:
    """The question with one learning rate for all trainings: that of its settings, else ``rate``."""
    settings = {LR: rate, **study.settings}
    axes = {axis: values for axis, values in study.axes.items() if axis != LR}
    return study.model_copy(update={"settings": settings, "axes": axes, "best_of": ()})


def adapted(study: StudyConfig) -> tuple[StudyConfig, list[str]]:
    """The question with ``task`` settings that DeNS alone has at its variant; and messages.

    Crystals get their stress, where they have one and the study gives no settings of it.  Further test files, which may
    lie beyond the training structures, get a variant that learns only the noise of corrupted structures: there DeNS can
    lose by their labels.  Raises as :func:`denskit.data.load_data`.
    """
    if LR in study.settings:
        study = at_one_rate(study)
    plain = {f"task.{name}" for name in EnergyForcesConfig.model_fields}
    settings = {key: value for key, value in study.settings.items() if not key.startswith("task.") or key in plain}
    own_of_dens = next((own for own in study.variants.values() if own.get("task") == "dens"), {})
    given = {key: value for key, value in own_of_dens.items() if key != "task"}  # of a study that is kept
    given |= {key: value for key, value in study.settings.items() if key not in settings}
    study, said = study.model_copy(update={"settings": settings}), []
    config = runs_of(study)[0].config()
    data = load_data(config.data, config.seed, config.required_labels)
    if data.valid is None and default_rates(study):
        study = at_one_rate(study)
        settings |= {LR: MEASURED_RATE}
        said.append(f"no validation structures, which choose a learning rate: all are trained at {MEASURED_RATE:g}")
    train = data.train
    sample = [train[int(place)] for place in spaced(len(train), SAMPLE)]
    if mostly_crystals(sample) and not {"model", "model.stress", "task.stress_weight"} & settings.keys():
        own, why = _settings_of_stress(sample, config)
        settings |= own
        said += why
    variants = {name: {**own, **given} if own.get("task") == "dens" else own for name, own in study.variants.items()}
    wanted = study.tests and config.model.forces == "gradient" and not _ONLY_NOISE.keys() & given.keys()
    if wanted and _FOR_TESTS not in variants:
        variants[_FOR_TESTS] = {"task": "dens", **given, **_ONLY_NOISE}
        said.append(
            "test files of their own: a third variant learns only the noise of corrupted structures "
            f"({' '.join(f'{key}=false' for key in _ONLY_NOISE)}), which lost nothing at "
            "600 K in short trainings of 3BPA"
        )
    study = study.model_copy(update={"settings": settings, "variants": variants})
    denoising = (run.config() for run in runs_of(study) if run.settings.get("task") == "dens")
    first = next(denoising)
    return study, said + fit_loss_to_energies(first, train)[1] + fit_dens_to_crystals(first, train)[1]


def _settings_of_stress(sample: Sequence[System], config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """What trains crystals on their stress, and a message of it, or of why not; neither where none has one."""
    having = sum(system.stress is not None for system in sample)
    if having == 0:
        return {}, []
    lacking = len(sample) - sum(system.stress is not None and bool(system.pbc.all()) for system in sample)
    if lacking:
        return {}, [f"not trained on the stress, which {lacking} of {len(sample)} frames looked at do not have"]
    form = "strain" if config.model.forces == "gradient" else "direct"
    if form == "direct" and not has_stress_head(config.model.name):
        return {}, [f"not trained on the stress: {config.model.name} with direct forces has no head of it"]
    weight = STRESS_WEIGHTS.get(config.model.name, STRESS_WEIGHT)
    own = {"model.stress": form, "task.stress_weight": weight}
    return own, [f"crystals with a stress: trained on it, model.stress={form} task.stress_weight={weight}"]


def same_question(study: StudyConfig, other: StudyConfig, file: Path) -> bool:
    """Whether two studies differ at most in the length of their trainings and in seeds, and are about ``file``.

    A question at two learning rates may have become one at one rate, where time was short.
    """

    def asked(one: StudyConfig) -> object:
        unasked = (*_STEPS, LR) if LR in one.axes else _STEPS
        return {key: value for key, value in one.settings.items() if key not in unasked}, one.axes, one.variants

    alike = any(asked(one) == asked(other) for one in (study, at_one_rate(study) if default_rates(study) else study))
    return alike and other.settings.get("data.path") == str(file.resolve())


def default_rates(study: StudyConfig) -> bool:
    """Whether the study has the learning rates that the question proposes."""
    return study.axes.get(LR) == RATES


def sized(
    study: StudyConfig, costs: Mapping[str, Cost], hours: float, processes: int, *, both: bool = False
) -> tuple[StudyConfig, list[str]]:
    """:func:`within_budget`; at one learning rate where two leave too few epochs (and not ``both``); and messages."""
    if both or not default_rates(study):
        return within_budget(study, costs, hours, processes), []
    one = within_budget(at_one_rate(study), costs, hours, processes)
    try:
        two = within_budget(study, costs, hours, processes)
    except ValueError:  # not even 100 steps
        two = None
    timed = [run for run in runs_of(two or one) if run.cell in costs]
    paying = max(paying_epochs(_training(run, costs[run.cell]).batch_size) for run in timed)
    if two is not None and min(_epochs(run, costs[run.cell]) for run in timed) >= paying:
        return two, []
    return one, [
        f"--hours {hours:g} is too little for {paying} epochs at each of two learning rates: all are trained at "
        f"training.lr={MEASURED_RATE:g}. Without DeNS half of it may be better, so a gain may be that of the rate; "
        f"'axes.{LR}=[{', '.join(f'{rate:g}' for rate in RATES)}]' trains at both all the same"
    ]


def within_budget(study: StudyConfig, costs: Mapping[str, Cost], hours: float, processes: int) -> StudyConfig:
    """The study with the steps that ``processes`` trainings at once do in ``hours``.

    Raises ValueError where not even 100 steps fit.
    """
    available = 3600 * hours * processes
    runs = runs_of(study)
    rounds = math.ceil(len(runs) / processes) * processes / len(runs)  # processes wait for the last round
    share = available / rounds / len(runs)

    def steps_in(cost: Cost) -> float:
        validations = 20 * cost.valid  # as dens_question has them
        return (share - cost.start - (validations + cost.test) * cost.structure) / cost.step

    steps = int(min(steps_in(costs[run.cell]) for run in runs if run.cell in costs))
    if steps < 100:
        raise ValueError(
            f"--hours {hours:g} is enough for {max(steps, 0)} steps a training; give more time, fewer seeds, or "
            "fewer validation and test frames (data.split.valid, data.split.test)"
        )
    return study.model_copy(update={"settings": {**study.settings, **_length(steps - steps % 100)}})


def _length(steps: int) -> dict[str, int | str]:
    """Settings of trainings of so many steps, with 20 validations."""
    return {"training.max_steps": steps, "training.evaluate_every": f"{max(1, steps // 20)} steps"}


def _training(run: StudyRun, cost: Cost) -> TrainingConfig:
    """Settings of a training, with those that follow its number of structures."""
    return training_for(run.config(), run.point.get(FRAMES, cost.train))


def _epochs(run: StudyRun, cost: Cost) -> float:
    schedule = cost.schedule(_training(run, cost), run.point.get(FRAMES))
    return schedule.total_steps / schedule.steps_per_epoch


class _Short(NamedTuple):
    """A training with DeNS that is too short for it."""

    share: float  # of the epochs wanted
    epochs: float
    wanted: int
    frames: int
    enough: int  # structures for which as many steps would do


def _frames_for(run: StudyRun, cost: Cost, share: float) -> int:
    """Structures of which as many steps would be the epochs that DeNS needs; ``share``: what the run has of these."""
    frames, before = run.point.get(FRAMES, cost.train), _training(run, cost).batch_size
    now = training_for(run.config(), max(1, int(frames * share))).batch_size  # fewer may come in smaller batches
    return int(frames * share * now / before * few_epochs_of(before) / few_epochs_of(now))


def advice(
    study: StudyConfig, costs: Mapping[str, Cost], *, warned: Collection[str] = (), asked: bool = True
) -> list[str]:
    """A warning where trainings with DeNS are too short for it to pay, but for variants that have another reason.

    warned: these variants, see :func:`data_warnings`.  asked: by ``--question``, whose options say the length.
    """
    short: dict[str, _Short] = {}
    for run in _denoising_runs(study):
        if run.variant in warned or run.cell not in costs:
            continue
        if "task.forces_on_corrupted" in run.settings:  # only the noise: pays earlier
            continue
        cost = costs[run.cell]
        epochs, wanted = _epochs(run, cost), few_epochs_of(_training(run, cost).batch_size)
        if epochs < wanted:
            enough = _frames_for(run, cost, epochs / wanted)
            frames = run.point.get(FRAMES, cost.train)
            short[replace(run, point=_but_rate(run)).label] = _Short(epochs / wanted, epochs, wanted, frames, enough)
    if not short:
        return []
    length, size = ("--hours", "--frames") if asked else ("training.max_steps", FRAMES)
    worst = min(short.values())
    fewer = f", or on {worst.enough} instead of {worst.frames} structures ({size})"
    fewer = fewer if worst.enough >= FEW_FRAMES else ""
    together: dict[str, list[str]] = {}
    for label, one in short.items():
        together.setdefault(f"{one.epochs:.0f} epochs", []).append(label)
    found = "; ".join(f"{', '.join(labels)}: {epochs}" for epochs, labels in together.items())
    return [
        f"warning: {found}. DeNS pays late: with fewer than about {worst.wanted} epochs it was not seen to help "
        f"on molecules. Train {'up to ' * (len(together) > 1)}{1 / worst.share:.1f} times as long ({length}){fewer}"
    ]


def data_warnings(study: StudyConfig) -> dict[str, list[str]]:
    """Why DeNS is not expected to pay on the training structures, as ``denskit train`` says it: variant -> messages.

    Raises as :func:`denskit.data.load_data`.
    """
    found: dict[str, dict[str, str]] = {}
    loaded: dict[str, Source] = {}
    seen: list[object] = []
    for run in _denoising_runs(study):
        if (kind := (run.variant, _but_rate(run))) in seen:
            continue
        seen.append(kind)
        config = run.config()
        if (data := config.data.model_dump_json()) not in loaded:
            loaded[data] = load_data(config.data, config.seed, config.required_labels).train
        train = loaded[data]
        config, _ = fit_sigma_to_data(fit_dens_to_crystals(config, train)[0], train)
        config = config.model_copy(update={"training": training_for(config, len(train))})
        per_epoch = steps_per_epoch(len(train), config.training.batch_size, config.training.drop_last)
        planned = PlannedTraining(config, Schedule(config.training, per_epoch), train)
        for check in _OF_THE_DATA:
            if message := check(planned):
                found.setdefault(run.variant, {}).setdefault(check.__name__, message.removesuffix(COMPARE))
    return {variant: list(messages.values()) for variant, messages in found.items()}


def _denoising_runs(study: StudyConfig) -> list[StudyRun]:
    """The runs with DeNS of the first seed."""
    first = (run for run in runs_of(study) if run.seed == study.seeds[0])
    return [run for run in first if isinstance(run.config().task, DeNSConfig)]


def _but_rate(run: StudyRun) -> dict[str, Any]:
    """The point of a run without its learning rate."""
    return {key: value for key, value in run.point.items() if key != LR}


def noise_recovered(study: StudyConfig, folder: StudyFolder) -> list[str]:
    """How well runs that denoise recover the noise of test structures, in words: means over the seeds."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for run in runs_of(study):
        if noise := folder.judged(run).get("noise"):
            found.setdefault(run.label, []).append(noise)
    lines: list[str] = []
    guessed: dict[str, tuple[float, str]] = {}
    for label, noise in found.items():
        informed, bare = noise_of(noise)
        encoded = "" if math.isnan(informed) else f"{informed:.2f} with the forces encoded, "
        lines.append(f"{label}: error of the recovered noise {encoded}{bare:.2f} without forces (1: not recovered)")
        if not math.isnan(informed) and (meaning := guessed_noise(bare)) is not None:
            guessed[label] = bare, meaning
    if guessed:  # the same for all but the number
        worst = min(guessed.values())
        lines.append(f"hint: {'; '.join(guessed)}: {worst[1]}")
    return lines
