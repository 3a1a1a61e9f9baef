"""``denskit bench``: speed of a model on this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denskit.cli.options import Device, Kernels, ModelPath
from denskit.cli.output import give
from denskit.runtime.progress import counted

if TYPE_CHECKING:
    from denskit.training.trainer import Trainer

WARM_UPS = 2  # untimed calls first: kernels are compiled, memory is allocated


def bench(
    model: ModelPath,
    file: Annotated[
        Path | None, typer.Argument(help="Structures; default: the test split of the run.", show_default=False)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Structures at a time.", min=1)] = 8,
    device: Device = "auto",
    kernels: Kernels = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of torch; default: as many as the edges keep busy.", min=1, show_default=False),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed calls.", min=1)] = 10,
) -> None:
    """Time energies and forces of a model and, for a run, its training step; medians, per structure.

    The training step has the batch size, the data and the task of the run. Nothing is written.

    Examples:

      denskit bench runs/mine

      denskit bench model.safetensors new.extxyz --batch-size 1 --threads 4
    """
    import torch

    from denskit.data.base import evenly
    from denskit.evaluation.evaluate import load_force_field
    from denskit.evaluation.judged_structures import source_of
    from denskit.models.execution import Execution
    from denskit.models.prediction import batches
    from denskit.runtime.threads import threads_evaluating, threads_for
    from denskit.training.run_folder import RunFolder

    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # decides alone, as when the user sets it
        torch.set_num_threads(threads)
    force_field = load_force_field(model, None, device)
    force_field.execution = Execution(kernels=kernels)
    parameters = list(force_field.parameters())
    place = parameters[0].device
    source = evenly(source_of(model, file, "test"), batch_size)
    _, batch, _ = next(batches(force_field, source, batch_size))
    used = force_field.backbone.choose_kernels(force_field.execution, place)

    def predict() -> None:
        with torch.no_grad():
            force_field.predict(batch)

    running = threads_evaluating(batch.num_edges, place)
    typer.echo(
        f"{force_field.config.name}, {sum(part.numel() for part in parameters):,} parameters; {place}, "
        f"{running} thread{'' if running == 1 else 's'}, kernels {used}"
    )
    give(
        model=force_field.config.name, device=place, threads=running, kernels=used,
        structures=batch.num_systems, atoms=batch.num_atoms, edges=batch.num_edges,
    )  # fmt: skip
    typer.echo(f"{counted(batch.num_systems, 'structure')}, {batch.num_atoms} atoms, {batch.num_edges} edges")
    _say("energies and forces", "predict", _seconds(predict, place, repeats), batch.num_systems)
    if RunFolder(model).config.is_file():
        trainer = _trainer(model, kernels, str(place))
        work = [trainer.loader.work(step) for step in range(WARM_UPS + repeats)]
        size = min(trainer.config.training.batch_size, len(trainer.data.train))
        steps = iter(work)
        with threads_for(trainer.loader.edges, place):
            seconds = _seconds(lambda: trainer.train_step(next(steps)), place, repeats)
        _say(f"training step ({trainer.config.task.name}), batches of {size}", "train", seconds, size)


def _trainer(run: Path, kernels: str, device: str) -> Trainer:
    """The training of a run at its beginning; its folder is not written to."""
    from denskit.evaluation.judged_structures import run_data
    from denskit.runtime.processes import join_processes
    from denskit.training.fitted_settings import fit_model_to_data
    from denskit.training.load_config import load_config
    from denskit.training.trainer import Trainer

    config, data = load_config(run), run_data(run)
    training = config.training.model_copy(update={"kernels": kernels})
    config, _ = fit_model_to_data(config.model_copy(update={"training": training}), data)
    return Trainer(config, data, join_processes(device))


def _seconds(call: Callable[[], object], device: object, repeats: int) -> list[float]:
    """Wall seconds of each timed call; on a GPU until its work is done."""
    import torch

    times = []
    for _ in range(WARM_UPS + repeats):
        begin = time.perf_counter()
        call()
        if torch.device(str(device)).type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times[WARM_UPS:]


def _say(work: str, key: str, seconds: list[float], structures: int) -> None:
    median, best = (1e3 * value / structures for value in (statistics.median(seconds), min(seconds)))
    give(**{f"{key}_ms_per_structure": median, f"{key}_ms_per_structure_best": best})
    typer.echo(f"{work}: {median:.3g} ms per structure (best {best:.3g}), {1e3 / median:.3g} structures per s")
