"""A line on standard output for each validation of a NequIP training; runs in NequIP's Python."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback


class ValidationLines(Callback):
    """Prints ``epoch 12 forces MAE 34.56`` (meV/Å) after each validation."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Print the line."""
        if not trainer.sanity_checking:
            error = 1000 * float(trainer.callback_metrics["val0_epoch/forces_mae"])
            print(f"epoch {trainer.current_epoch} forces MAE {error:.3f}", flush=True)
