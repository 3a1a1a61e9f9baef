"""The log of a run: terminal and train.log, metrics.csv, TensorBoard, a progress bar."""

from __future__ import annotations

import csv
import errno
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console

from denskit.files import write_rows
from denskit.runtime.progress import Report, duration, progress_bar, unreported
from denskit.training.overview import rows_of
from denskit.training.run_folder import RunFolder

_SIGNIFICANT = 7  # digits in metrics.csv

OnRow = Callable[[dict[str, float | int]], object]


class RunLog:
    """The log of the first process; ``silent`` in the others.  ``progress``: it is shown, too.

    ``on_row`` is called with each row of metrics.csv after it was written; its first error is told, and is its end.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        total_steps: int,
        first_step: int,
        silent: bool,
        progress: bool = False,
        on_row: OnRow | None = None,
    ) -> None:
        self._on_row = on_row
        self.folder = folder
        self.silent = silent
        self._total, self._first = total_steps, first_step
        self._console = Console(highlight=False, quiet=not progress)
        self._bar: Report = unreported
        self._note = ""  # beside the bar
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self.silent:
            return self
        # imported here, since it takes longer than the rest of the package
        from torch.utils.tensorboard import SummaryWriter

        self._text = self._open.enter_context(self.folder.log.open("a", encoding="utf-8"))
        board = SummaryWriter(str(self.folder.path / "tensorboard"), purge_step=self._first)
        self._board = self._open.enter_context(board)
        self._header = _drop_later_rows(self.folder, self._first)
        self._bar = self._open.enter_context(progress_bar(self._console))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self.silent and (reason := _reason(error)):
            self._text.write(f"{_now()}  stopped: {reason}\n")
        self._open.close()

    def say(self, line: str, *, shown: bool = False) -> None:
        """A line in the terminal, unless it was ``shown`` there, and in train.log."""
        if self.silent:
            return
        self._text.write(f"{_now()}  {line}\n")
        self._text.flush()
        if not shown:
            try:
                print_line(self._console, line)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._console.quiet = True  # the terminal was closed; the training saves and ends, or goes on

    def lasts(self, total_steps: int) -> None:
        """The training has another length than it began with."""
        self._total = total_steps

    def advance(self, step: int) -> None:
        """Move the progress bar."""
        self._bar(step, f"step {step}/{self._total}{self._note}", self._total)

    def row(self, values: Mapping[str, float | int]) -> None:
        """A row of metrics.csv and of TensorBoard; ``values`` has "step", and new names become new columns."""
        if self.silent:
            return
        self._header = _append_row(self.folder, values, self._header)
        for name, value in values.items():
            if name != "step":
                self._board.add_scalar(name.replace("_", "/", 1), value, int(values["step"]))
        if "train_forces_mae_meV_per_A" in values:
            self._note = f", train forces {values['train_forces_mae_meV_per_A']:.1f} meV/Å"
        if self._on_row is not None:
            try:
                self._on_row(dict(values))
            except Exception as error:  # a logger that is out of reach need not end a training
                self._on_row = None
                self.say(f"warning: on_row gets no further rows: {type(error).__name__}: {error}")


def print_line(console: Console, line: str) -> None:
    """A line of the log in the terminal; warnings stand out."""
    console.print(line, markup=False, soft_wrap=True, style="bold yellow" if line.startswith("warning") else None)


def _reason(error: BaseException) -> str:
    """Why a training ends by an error; empty after a signal, of which the log tells already."""
    closed = isinstance(error, SystemExit) and error.code == 1  # rich ends the program so
    if closed or isinstance(error, BrokenPipeError):
        return "standard output was closed, as by | head; --resume continues from the last checkpoint"
    return "" if isinstance(error, SystemExit) else str(error)


def metrics_line(values: Mapping[str, float | int], total_steps: int, validations: float = 0.0) -> str:
    """A row as one line: step, errors, learning rate, speed, time left (with ``validations``, s), memory."""
    parts = [f"step {values['step']}/{total_steps}", f"epoch {values['epoch']}"]
    if "train_loss" in values:
        parts.append(f"loss {values['train_loss']:.4f}")
    parts += [text for split in ("train", "valid", "replay") if (text := errors_line(values, split))]
    if "gradient_norm" in values:
        share = f", {values['gradient_clipped']:.0%} clipped" if values["gradient_clipped"] else ""
        parts.append(f"gradient {values['gradient_norm']:.3g} (max {values['gradient_norm_max']:.3g}{share})")
    parts.append(f"lr {values['lr']:.2e}")
    if values.get("skipped_steps"):
        parts.append(f"{values['skipped_steps']} steps skipped: float16 overflowed")
    if "step_ms" in values:
        parts.append(f"{values['step_ms']:.0f} ms/step")
        parts.append(f"{values['samples_per_s']:.1f} structures/s")
        if (waiting := values.get("waiting_share", 0.0)) >= 0.05:
            parts.append(f"{waiting:.0%} waiting for batches")
        left = (total_steps - values["step"]) * values["step_ms"] / 1000 + validations
        parts.append(f"{duration(left)} left")
    parts.append(f"{values['memory_MiB']:.0f} MiB")
    return "  ".join(parts)


def errors_line(values: Mapping[str, float | int], split: str) -> str:
    """Mean absolute errors of the columns of a split; empty where there are none."""
    relative = values.get(f"{split}_forces_mae_relative_to_zero")
    zero = "" if relative is None else f" ({relative:.{2 if relative < 10 else 0}f} of predicting zero)"
    errors = [
        f"{label} {values[name]:.2f} {unit}"
        for label, name, unit in (
            ("energy", f"{split}_energy_mae_meV", "meV"),
            ("forces", f"{split}_forces_mae_meV_per_A", f"meV/Å{zero}"),
            ("stress", f"{split}_stress_mae_meV_per_A3", "meV/Å^3"),
        )
        if name in values
    ]
    return f"{split} MAE {', '.join(errors)}" if errors else ""


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _append_row(folder: RunFolder, values: Mapping[str, float | int], header: list[str]) -> list[str]:
    """Append a row, or rewrite the file for a row with new columns; returns the header."""
    cells = {
        name: str(value) if isinstance(value, int) else f"{value:.{_SIGNIFICANT}g}" for name, value in values.items()
    }
    new = [name for name in values if name not in header]
    if new:
        write_rows(folder.metrics, header + new, [*rows_of(folder), cells] if header else [cells])
        return header + new
    with folder.metrics.open("a", newline="", encoding="utf-8") as stream:
        csv.DictWriter(stream, header, restval="").writerow(cells)
    return header


def _drop_later_rows(folder: RunFolder, first_step: int) -> list[str]:
    """Drop the rows after the checkpoint of a resumed run, whose steps are repeated; returns the header."""
    rows = rows_of(folder)
    if not rows:
        return []
    write_rows(folder.metrics, list(rows[0]), [row for row in rows if int(row["step"]) <= first_step])
    return list(rows[0])
