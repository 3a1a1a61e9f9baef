"""``denskit data convert`` and ``verify``: one sharded format for large data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from denskit.cli.output import give
from denskit.cli.sets import with_settings
from denskit.runtime.progress import counted, progress_bar


def convert(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files and folders of shards; data.KEY=VALUE: how they are read.",
            metavar="FILE ... [data.KEY=VALUE ...]",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)],
    workers: Annotated[int, typer.Option(min=1, help="Processes that read and write.")] = 1,
) -> None:
    """Write structures of any format as one folder of shards, for training sets larger than memory.

    The same command continues an interrupted conversion. Train with data.train=FOLDER.

    Examples:

      denskit data convert s2ef/2M/train -o oc20_2M --workers 8

      denskit data convert md.lmdb -o oc20_md data.origin=md data.missing=mask
    """  # fmt: skip
    from denskit.data.convert import convert as write
    from denskit.data.readers.shards import read_index
    from denskit.training.load_config import whole_file_config

    files, settings = with_settings(inputs)
    config = whole_file_config(settings, "data convert")
    with progress_bar(Console(stderr=True)) as progress:
        messages = write([Path(file) for file in files], output, config, workers=workers, progress=progress)
    give(output=output, messages=messages)
    for message in messages:
        typer.echo(message)
    if read_index(output)["labels"]:
        typer.echo(f"Next:  denskit train PRESET data.train={shlex.quote(str(output))}")


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.", show_default=False)],
) -> None:
    """Compare every shard of a folder with its SHA-256 in the index.

    Example:  denskit data verify oc20_2M
    """
    from denskit.data.convert import verify as check

    with progress_bar(Console(stderr=True)) as progress:
        count = check(folder, progress)
    give(folder=folder, structures=count)
    typer.echo(f"{folder}: {counted(count, 'structure')}, as they were written")
