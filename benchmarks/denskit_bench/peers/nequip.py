"""NequIP with random weights in ASE's velocity Verlet; runs in NequIP's environment."""

from __future__ import annotations

import tempfile
from typing import Any

from .dynamics import atoms_of, verlet
from .serving import Step

BOX = 50.0  # Å


def build(job: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
    """As many layers and channels of each degree as asked.

    Eager, as its calculator runs a model that it is given, or with ``job["compile"]`` by AOTInductor, as recommended.
    """
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
    model = model.eval().to(job["device"])
    if job["compile"]:
        calculator = _compiled(model, transforms, job, names)
    else:
        calculator = NequIPCalculator(model, device=job["device"], transforms=transforms)
    return verlet(job, calculator), {"parameters": parameters}


def _compiled(model: Any, transforms: list[Any], job: dict[str, Any], names: list[str]) -> Any:
    """A calculator on what `nequip-compile --mode aotinductor --target ase` makes of a model in a file."""
    import torch
    from nequip.data import AtomicDataDict, from_ase
    from nequip.integrations.ase import NequIPCalculator
    from nequip.utils.aot import aot_export_model
    from nequip.utils.aoti_metadata import NEQUIP_AOTI_INPUTS_KEY, NEQUIP_AOTI_OUTPUTS_KEY, serialize_aoti_keys
    from nequip.utils.global_state import get_latest_global_state

    target = NequIPCalculator._get_aoti_compile_target()
    example = atoms_of(job["structures"][0])
    if not example.cell.rank:  # a molecule has no volume and so no stress, which is compared after compiling
        example.cell = [BOX] * 3
    data = from_ase(example)
    for transform in transforms:
        data = transform(data)
    data = target["data_settings"](AtomicDataDict.to_(data, torch.device(job["device"])))
    sizes = {name: torch.export.Dim(f"num_{name}s", min=2) for name in ("graph", "node", "edge")}
    known = {**model.metadata, **get_latest_global_state(only_metadata_related=True)}
    metadata = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in known.items()}
    metadata[NEQUIP_AOTI_INPUTS_KEY] = serialize_aoti_keys(target["input"])
    metadata[NEQUIP_AOTI_OUTPUTS_KEY] = serialize_aoti_keys(target["output"])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.nequip.pt2"
        aot_export_model(
            model=model, device=job["device"], input_fields=target["input"], output_fields=target["output"], data=data,
            batch_map=target["batch_map_settings"](sizes), output_path=path,
            inductor_configs={"aot_inductor.metadata": metadata},
        )  # fmt: skip
        species = {name: name for name in names}
        return NequIPCalculator.from_compiled_model(path, job["device"], chemical_species_to_atom_type_map=species)
