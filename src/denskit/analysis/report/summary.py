"""The first section: the result in words, warnings, and a table of errors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from denskit.analysis.judged import Judged
from denskit.analysis.plots import COLUMNS, MEV, UNITS
from denskit.analysis.report.elements import by_element
from denskit.analysis.report.page import Section, listed, paragraph, table
from denskit.analysis.run_results import RunResults
from denskit.runtime.progress import counted
from denskit.tasks.energy_shift import mostly_shift
from denskit.training.best_by import BEST_BY, judged_by
from denskit.units import GPA

OUTLIER = 3.0  # times the median error of a frame
_LISTED = 8  # outliers by number
_PLURAL = {"energy": "energies", "forces": "forces"}
NAMES = {  # key of metrics.csv and test.json: quantity, unit
    "energy_mae_meV": ("Energy: mean absolute error", "meV"),
    "energy_rmse_meV": ("Energy: root mean square error", "meV"),
    "energy_mae_meV_per_atom": ("Energy per atom: mean absolute error", "meV"),
    "energy_rmse_meV_per_atom": ("Energy per atom: root mean square error", "meV"),
    "energy_mean_error_meV": ("Energy: mean of predicted less reference", "meV"),
    "energy_mae_shifted_meV": ("Energy without a constant for each element: mean absolute error", "meV"),
    "energy_mae_shifted_meV_per_atom": ("The same per atom", "meV"),
    "energy_mae_relative_to_mean": ("Energy error / error of predicting the elements' mean energies", ""),
    "forces_mae_meV_per_A": ("Forces: mean absolute error of a component", "meV/Å"),
    "forces_rmse_meV_per_A": ("Forces: root mean square error of a component", "meV/Å"),
    "forces_magnitude_mae_meV_per_A": ("Forces: mean absolute error of the length", "meV/Å"),
    "forces_cosine": (
        "Forces: mean cosine between predicted and reference (1 is parallel; atoms without a force count as 0)",
        "",
    ),
    "forces_slope": ("Forces: slope of predicted against reference (below 1: the potential is too soft)", ""),
    "forces_mae_relative_to_zero": ("Force error / error of predicting zero", ""),
    "ewt_percent": ("Structures with an energy within 20 meV", "%"),
    "efwt_percent": ("Structures with an energy within 20 meV and every force component within 30 meV/Å", "%"),
    "stress_mae_meV_per_A3": ("Stress: mean absolute error of a component", "meV/Å³"),
    "stress_slope": ("Stress: slope of predicted against reference", ""),
    "stress_cosine": ("Stress: cosine between all predicted and reference components (-1: opposite signs)", ""),
}


def summary(run: RunResults) -> Section:
    """The run in a few sentences, its warnings and its errors."""
    parts: list[str] = []
    if isinstance(run.judged, Judged):
        parts.append(paragraph(headline(run)).replace("<p>", '<p class="lead">', 1))
    else:
        parts.append(paragraph(run.judged))
    parts.append(paragraph(training_in_words(run)))
    warnings = [line.removeprefix("warning: ") for line in run.messages if line.startswith("warning")]
    warnings += [line for line in run.messages if line.startswith("training data:")]
    if warnings:
        parts += ["<p>Warnings of the training:</p>", listed(warnings, "warnings")]
    errors = errors_by_set(run)
    if errors:
        parts.append(error_table(errors))
    return Section("Summary", parts)


def headline(run: RunResults) -> str:
    """``12.0 meV/Å on 987 unseen frames, 1.4 % of the mean force component; worst element O; 3 outliers.``"""
    judged = run.judged
    assert isinstance(judged, Judged)
    frames = counted(len(judged), f"{'unseen' if judged.part == 'test' else 'validation'} frame", ",")
    if len(judged) < judged.of:
        frames += f" (of {int(judged.of):,}, evenly spaced)"
    sentences = []
    if judged.forces is not None:
        sentences.append(_forces_in_words(judged, frames))
    if judged.energy is not None:
        other = run.config.data.test is not None  # else of the training's own file
        sentences.append(
            f"Energy: {_energy_in_words(judged.errors, other=other)}" + ("" if sentences else f" on {frames}")
        )
    if judged.stress is not None:
        error = np.abs(judged.stress[1] - judged.stress[0]).mean()
        sentences.append(f"Stress: {two_digits(MEV * error)} meV/Å³ ({two_digits(error / GPA)} GPa)")
    return ". ".join(sentences) + "." if sentences else f"The {frames} have no labels to compare with."


def _forces_in_words(judged: Judged, frames: str) -> str:
    assert judged.forces is not None
    reference, predicted = judged.forces
    error, scale = np.abs(predicted - reference).mean(), np.abs(reference).mean()
    told = f"Forces: {MEV * error:.1f} meV/Å mean absolute error on {frames}"
    if scale:
        told += f", {two_digits(100 * error / scale)} % of the mean force component ({MEV * scale:.0f} meV/Å)"
    elements = by_element(judged)
    if len(elements) > 1:
        worst = max(elements, key=lambda row: row.error)
        told += f"; worst element {worst.label} ({MEV * worst.error:.1f} meV/Å)"
    return f"{told}; {_outliers_in_words(judged)}"


def two_digits(value: float) -> str:
    """Two digits below 10, whole numbers above."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _energy_in_words(errors: Mapping[str, float], *, other: bool) -> str:
    """The error, and the error up to a constant for each element where that is much smaller and of another file."""
    text = f"{errors[COLUMNS['energy']]:.1f} meV, {two_digits(errors['energy_mae_meV_per_atom'])} meV an atom"
    if other and (found := mostly_shift(errors)):
        text += f" ({two_digits(found[1])} meV an atom without a constant for each element: other reference energies?)"
    return text


def outliers(judged: Judged) -> np.ndarray:
    """Places of the frames with more than three times the median error, the worst first."""
    error = judged.frame_error
    found = np.flatnonzero(error > OUTLIER * np.nanmedian(error))
    return found[np.argsort(-error[found])]


def _outliers_in_words(judged: Judged) -> str:
    found = outliers(judged)
    if not len(found):
        return f"no outliers (no frame has {OUTLIER:g} times the median error)"
    numbers = ", ".join(str(judged.index[place]) for place in found[:_LISTED])
    more = ", ..." if len(found) > _LISTED else ""
    return f"{counted(len(found), 'outlier')} with more than {OUTLIER:g} times the median error (frame {numbers}{more})"


def training_in_words(run: RunResults) -> str:
    """Model, task, length, the best validation, and training against validation errors."""
    config, columns = run.config, run.columns
    trained = next((line for line in run.messages if "training structures" in line and "parameters" in line), "")
    sentences = [trained or f"{config.model.name}; task {config.task.name}"]
    if (splits := run.folder.divided()) is not None:
        sentences.append(f"Data: {splits.file}, {splits.how}")
    steps = columns["step"]
    judged = {name.removeprefix("valid_"): values for name, values in columns.items() if name.startswith("valid_")}
    judged = {name: values for name, values in judged.items() if np.isfinite(values).any()}
    if BEST_BY[config.training.best_by] in judged:
        by = judged_by(config.training.best_by, judged)
        quantity = next(name for name, column in COLUMNS.items() if column == by)
        valid, unit = judged[by], UNITS[quantity]
        best = int(np.nanargmin(valid))
        at = (
            f"at step {steps[best]:,.0f} of {steps[-1]:,.0f}" if steps[best] else "before the first step"
        )  # fine-tuning
        sentences.append(f"Validation {_PLURAL[quantity]} were best {at}: {valid[best]:.1f} {unit}")
        train = columns.get(f"train_{by}", valid)[best]
        if valid[best] > 2 * train:
            sentences.append(
                f"The training error was {train:.1f} {unit} there, {valid[best] / train:.1f} times smaller: more "
                "training frames will help more than longer training"
            )
    elif len(steps):
        sentences.append(f"{steps[-1]:,.0f} steps are logged, without a validation")
    return ". ".join(sentence.rstrip(".") for sentence in sentences) + "."


def errors_by_set(run: RunResults) -> dict[str, Mapping[str, float]]:
    """Errors by set: tests as they were written or as they are measured now, and the validation of the kept model."""
    found: dict[str, Mapping[str, float]] = dict(run.errors)
    if not found and isinstance(run.judged, Judged) and run.judged.part == "test":
        found["test"] = run.judged.errors
    validation = run.header.get("metadata", {}).get("validation")
    return found | ({"validation": validation} if validation else {})


def error_table(errors: Mapping[str, Mapping[str, float]]) -> str:
    """Errors under names for people, one column a set."""
    known = [key for key in NAMES if any(key in found for found in errors.values())]
    rows = [
        [NAMES[key][0], *(f"{found[key]:.4g}" if key in found else "" for found in errors.values()), NAMES[key][1]]
        for key in known
    ]
    return table(["Error", *errors, "unit"], rows)
