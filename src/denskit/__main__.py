"""``python -m denskit`` is the ``denskit`` program (``torchrun -m denskit train ...`` needs a module)."""

from denskit.cli import app

app()
