"""``denskit data convert`` and ``verify``: one sharded format for large data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def convert(
    inputs: Annotated[list[Path], typer.Argument(help="Files, and folders of shards, to read.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="How to read, KEY=VALUE as in data.KEY=VALUE; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that read and write.")] = 1,
) -> None:
    """Write structures of any form as one folder of shards, for training on more than fits into memory.

    Interrupted, the same command goes on where it was.  Train on it with data.train=FOLDER.

    Example:  denskit data convert s2ef/2M/train oc20_2M --workers 8

    Example:  denskit data convert md.lmdb oc20_md --set origin=md --set missing=mask
    """
    from denskit.data import DataConfig
    from denskit.data.convert import convert as write

    settings = dict(_pair(text) for text in set_ or ())
    config = DataConfig.model_validate(settings)
    with _bar("structures") as progress:
        messages = write(inputs, output, config, workers=workers, progress=progress)
    for message in messages:
        typer.echo(message)
    typer.echo(f"train on it with data.train={output}")


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.", show_default=False)],
) -> None:
    """Compare every shard of a folder with its SHA-256 in the index.

    Example:  denskit data verify oc20_2M
    """
    from denskit.data.convert import verify as check

    with _bar("structures") as progress:
        count = check(folder, progress)
    typer.echo(f"{folder}: {count} structures, as they were written")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.removeprefix("data.").partition("=")
    if not equals:
        raise ValueError(f"--set {text}: wanted KEY=VALUE, as units=kcal/mol")
    return key, value


@contextmanager
def _bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console

    from denskit.runtime.progress import progress_bar

    with progress_bar(Console(stderr=True)) as bar:
        yield lambda done, total: bar(done, f"{done} of {total} {unit}", total)
