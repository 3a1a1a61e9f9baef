"""``python -m denskit_accuracy``."""

from denskit_accuracy.cli import app

if __name__ == "__main__":
    app(prog_name="python -m denskit_accuracy")
