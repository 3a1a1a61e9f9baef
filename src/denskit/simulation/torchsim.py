"""A trained force field inside TorchSim (``pip install 'denskit[torchsim]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denskit.batch import Batch
from denskit.models.base import ForceField
from denskit.simulation.potential import Potential

try:
    from torch_sim.models.interface import ModelInterface  # type: ignore[import-not-found]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"TorchSim cannot be imported ({error}); install it with: pip install 'denskit[torchsim]'"
    ) from None


class DenskitModel(ModelInterface):  # type: ignore[misc]
    """TorchSim's model interface around one model, or the mean of several.

    Results are those of ``ForceField.predict``: eV, eV/Å, and eV/Å^3 with ASE's sign.

    Args:
        models: model files, or force fields.
        device: default: CUDA if there is one.
        dtype: of weights and results; default: that of the model.
        compute_stress: all systems must then be periodic.
        skin: Å, of the neighbour list, which is kept until an atom has moved skin / 2.

    Raises FileNotFoundError or ValueError as ``Potential``.
    """

    def __init__(
        self,
        models: str | Path | ForceField | Sequence[str | Path | ForceField],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        compute_stress: bool = False,
        skin: float = 0.5,
    ) -> None:
        super().__init__()
        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.potential = Potential(models, device=place, dtype=dtype, stress=compute_stress, skin=skin)
        self._device, self._dtype = self.potential.device, self.potential.dtype
        self._compute_forces, self._compute_stress = True, compute_stress
        self._memory_scales_with = "n_atoms_x_density"

    def forward(self, state: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Energy [B], forces [N, 3] and, with ``compute_stress``, stress [B, 3, 3] of a ``SimState`` or such a dict."""
        if isinstance(state, dict):
            from torch_sim.state import SimState  # type: ignore[import-not-found]

            state = SimState(**{"masses": torch.ones_like(state["positions"][:, 0])} | state)
        found = self.potential(_batch(state))
        out = {"energy": found.energy, "forces": found.forces}
        if found.stress is not None:
            out["stress"] = found.stress
        return {name: value.to(self._dtype) for name, value in out.items()}


def _batch(state: Any) -> Batch:
    """TorchSim's state as a batch; its cells are columns, its periodicity holds for all systems."""
    atoms, systems = len(state.positions), int(state.n_systems)
    device = state.positions.device
    return Batch(
        positions=state.positions,
        atomic_numbers=state.atomic_numbers.long(),
        cell=state.row_vector_cell,
        pbc=torch.as_tensor(state.pbc, dtype=torch.bool, device=device).expand(systems, 3),
        system_index=state.system_idx.long(),
        n_atoms=torch.bincount(state.system_idx.long(), minlength=systems),
        fixed=torch.zeros(atoms, dtype=torch.bool, device=device),
        tags=torch.zeros(atoms, dtype=torch.int64, device=device),
        denoise=torch.zeros(systems, dtype=torch.bool, device=device),
    )
