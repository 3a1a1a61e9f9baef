"""NequIP with random weights in ASE's velocity Verlet; runs in NequIP's environment."""

from __future__ import annotations

from typing import Any

from .dynamics import verlet
from .serving import Step


def build(job: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
    """As many layers and channels of each degree as asked; eager, as its calculator runs a model that it is given."""
    from ase.data import chemical_symbols
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
    from nequip.integrations.ase import NequIPCalculator
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state()
    names = [chemical_symbols[number] for number in job["elements"]]
    model = NequIPGNNModel(
        seed=0, model_dtype="float32", type_names=names, r_max=job["cutoff"], num_layers=job["layers"],
        l_max=job["l_max"], parity=True, num_features=job["channels"], avg_num_neighbors=8.0,
    )  # fmt: skip
    transforms = [ChemicalSpeciesToAtomTypeMapper(names), NeighborListTransform(r_max=job["cutoff"])]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    calculator = NequIPCalculator(model.eval().to(job["device"]), device=job["device"], transforms=transforms)
    return verlet(job, calculator), {"parameters": parameters}
