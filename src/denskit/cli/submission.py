"""``denskit submission``: files for the Open Catalyst Project's servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denskit.cli.options import Force
from denskit.cli.output import give
from denskit.cli.sets import named_sets
from denskit.runtime.progress import counted

app = typer.Typer(no_args_is_help=True, help="Files of predictions for the Open Catalyst Project's servers.")


@app.command()
def merge(
    files: Annotated[list[str], typer.Argument(help="NAME=FILE of each split.", metavar="NAME=FILE ...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The npz file to write.", show_default=False)],
    force: Force = False,
) -> None:
    """Merge the files of single splits into one, their names as prefixes.

    Example:  denskit submission merge id=id.npz ood_ads=ood_ads.npz ood_cat=c.npz ood_both=b.npz -o submission.npz
    """
    from denskit.evaluation.submission import merge_submissions

    count = merge_submissions(named_sets(files), output, force=force)
    give(output=output, structures=count)
    typer.echo(f"Wrote {counted(count, 'structure')} to {output}")
