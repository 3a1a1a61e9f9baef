"""Export of a trained force field to a program of plain tensor operations, which runs with torch alone.

The gradient is traced together with the energy, so the program has no Python code and needs no autograd.
``torch.export`` writes it for one structure with any number of atoms and edges.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from denskit.batch import Batch, Edges
from denskit.files import atomic_write
from denskit.models.base import ForceField
from denskit.models.execution import Execution
from denskit.runtime.warning import first_line
from denskit.simulation.structures import batch_of

INPUTS = {
    "positions": "[N, 3] float64, Å",
    "atomic_numbers": "[N] int64",
    "cell": "[3, 3] float64, Å, rows are lattice vectors; zeros for a molecule",
    "edge_index": "[2, E] int64, row 0 the neighbour, row 1 the atom it belongs to; both directions of every pair",
    "edge_shift": "[E, 3] int64, cells: vector = positions[neighbour] + shift @ cell - positions[atom]",
}
METADATA = "denskit.json"  # name of the extra file; of an entry in the metadata of a compiled program
AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}  # of program and model, relative to the largest force


def export_model(model: ForceField, path: Path, *, compiled: bool = False) -> dict[str, Any]:
    """Write the program; returns the metadata stored in it.

    Before writing, program and model are compared on a structure of another size than the traced one.

    Args:
        model: any force field; not changed.
        path: ``.pt2``.
        compiled: compile with AOTInductor to a library for this kind of processor; takes minutes and a C++ compiler.

    Raises ValueError for another suffix, for a model whose operations depend on the number of atoms or edges, and for
    a failed compilation.
    """
    if path.suffix != ".pt2":
        raise ValueError(f"{path}: exported programs are .pt2 files; give such a name")
    program = _Program(copy.deepcopy(model).eval().requires_grad_(False))
    program.model.execution = Execution(kernels="plain")  # torch operations alone
    traced_with, other = (_example(model, count) for count in (6, 9))
    try:
        with torch.no_grad():
            program(*traced_with)  # fills caches of the model: tensors made under tracing have no values
            graph = make_fx(program, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*traced_with)
            atoms, edges = torch.export.Dim("atoms", min=2), torch.export.Dim("edges", min=2)
            shapes = ({0: atoms}, {0: atoms}, None, {1: edges}, {0: edges})
            exported = torch.export.export(graph, traced_with, dynamic_shapes=shapes)
            found, wanted = exported.module()(*other), program(*other)
    except RuntimeError as error:
        name = f"model '{model.config.name}'"
        raise ValueError(f"{name} cannot be exported by torch {torch.__version__}: {_reason(error)}") from error
    _check_agreement(found, wanted, program.dtype)
    metadata = _metadata(model, program)
    with atomic_write(path) as temporary:
        if compiled:
            from torch._inductor import aoti_load_package

            _compile(exported, temporary, metadata)
            # the check above was of the program, not of the library
            library = aoti_load_package(str(temporary))
            _check_agreement(tuple(library(*other)), wanted, program.dtype)
        else:
            torch.export.save(exported, temporary, extra_files={METADATA: json.dumps(metadata)})
    return metadata


def _reason(error: RuntimeError) -> str:
    """Why torch cannot export a program, in one line; in words where a size was taken for a constant."""
    said = first_line(error)
    constant = re.search(r"Constraints violated \((\w+)", said)
    if constant is None:
        return said
    return (
        f"the number of {constant[1]} in the traced structure became a constant of the program; take sizes of tensors "
        f"by tensor.shape[0], not by len(tensor) or int() ({said})"
    )


def _compile(exported: torch.export.ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    """Write the package of AOTInductor.  Raises ValueError where it fails."""
    from torch._inductor import aoti_compile_and_package

    options = {"aot_inductor.metadata": {METADATA: json.dumps(metadata)}}
    try:
        aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)
    except Exception as error:  # compilers raise exceptions of any type
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(
            f"AOTInductor of torch {torch.__version__} cannot compile the program ({reason}); it needs a C++ compiler, "
            "g++ or clang++. The program itself can be exported without compiling"
        ) from error


class _Program(nn.Module):
    """From one structure and its edges to energy, energies of atoms, forces and perhaps stress, float64."""

    def __init__(self, model: ForceField) -> None:
        super().__init__()
        self.model = model
        self.dtype = next(model.parameters()).dtype
        self.stress = model.config.stress == "strain"

    def forward(
        self, positions: Tensor, atomic_numbers: Tensor, cell: Tensor, edge_index: Tensor, edge_shift: Tensor
    ) -> tuple[Tensor, ...]:
        zeros = torch.zeros_like(atomic_numbers)
        batch = Batch(
            # relative to the first atom, so a structure far from the origin loses no digits
            positions=(positions - positions[:1]).to(self.dtype),
            atomic_numbers=atomic_numbers,
            cell=cell[None].to(self.dtype),
            pbc=torch.ones(1, 3, dtype=torch.bool, device=cell.device),
            system_index=zeros,
            n_atoms=torch.full((1,), positions.shape[0], device=cell.device),
            fixed=zeros.bool(),
            tags=zeros,
            denoise=torch.zeros(1, dtype=torch.bool, device=cell.device),
            edges=Edges(index=edge_index, shift=edge_shift),
        )
        scaling = self.model.scaling
        out = self.model(batch, outputs=("energies", "forces", "stress") if self.stress else ("energies", "forces"))
        physical = scaling.unscale(batch, {name: out[name] for name in ("energies", "forces")})
        results = (physical["energies"].sum(), physical["energies"], physical["forces"].double())
        return (*results, out["stress"][0].double() * scaling.energy_scale) if self.stress else results


def _example(model: ForceField, count: int) -> tuple[Tensor, ...]:
    """Inputs with ``count`` atoms of the model's elements in a periodic cell."""
    generator = np.random.default_rng(count)
    spacing = min(1.5, model.cutoff / 3)
    line = np.arange(count)[:, None] * [spacing, 0.3 * spacing, 0.1 * spacing]
    positions = line + generator.normal(scale=0.1 * spacing, size=(count, 3))
    numbers, cell = np.resize(model.scaling.elements, count), (count * spacing + 1.0) * np.eye(3)
    atoms = ase.Atoms(numbers, positions, cell=cell, pbc=True)
    batch = model.config.with_neighbors(batch_of([atoms])).to(next(model.parameters()).device)
    edges = batch.built_edges
    return batch.positions, batch.atomic_numbers, batch.cell[0], edges.index, edges.shift


def _check_agreement(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    largest = max(float(wanted[2].abs().max()), 1e-3)
    apart = max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))
    if not apart <= AGREEMENT[dtype] * largest:
        raise ValueError(
            f"the exported program does not give the model's numbers: {apart:.3g} eV or eV/Å apart. Its operations "
            "depend on the number of atoms or edges; use the model itself"
        )


def _metadata(model: ForceField, program: _Program) -> dict[str, Any]:
    outputs = {"energy": "[] eV", "energies": "[N] eV", "forces": "[N, 3] eV/Å"}
    if program.stress:
        outputs["stress"] = "[3, 3] eV/Å^3, ASE's sign; of structures periodic in three directions"
    return {
        "model": model.config.name,
        "elements": list(model.scaling.elements),
        "compositions": model.scaling.compositions,
        "cutoff": model.cutoff,
        "max_neighbors": model.max_neighbors,
        "strict_neighbors": model.config.strict_neighbors,
        "smooth": model.backbone.smooth,
        "device": str(next(model.parameters()).device),
        "weights": str(program.dtype).removeprefix("torch."),
        "inputs": INPUTS,
        "outputs": outputs,
        "torch": torch.__version__,
    }
