"""EquiformerV2 against the one in fairchem-core 1.10.0: same weights, same structures, steps taken in turn.

    python -m venv peer && peer/bin/pip install torch==2.13.0 numpy scipy ase && peer/bin/pip install --no-deps \\
        fairchem-core==1.10.0 e3nn==0.5.6 torch_geometric opt_einsum opt_einsum_fx torchtnt
    peer/bin/pip install numba orjson submitit hydra-core tensorboard lmdb pyyaml tqdm requests sympy pymatgen \\
        pydantic huggingface_hub aiohttp fsspec jinja2 psutil pyparsing xxhash
    python benchmarks/against_fairchem.py --peer peer/bin/python --json FILE [--layers 12] [--threads 1]

fairchem-core 1.10.0 asks for torch 2.4; --no-deps lets it run beside a current torch, so that both sides use the same
one; torch_scatter, which has no wheel there, is stood in for by benchmarks/stand_ins (only building the graph uses it).
Each side is a process of its own, told in turn to take a step: neighbours, forward, backward of direct forces and
energy in training mode with dropout off.  The weights go from the peer through Denskit's importer; outputs must agree
within the peer's own scatter (its edge frames are random).  Figures: CPU time of a step, and peak memory of the process
above what it held before its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sides import Side, serve

LARGEST_DISAGREEMENT = 2e-3  # of the rms force: the sampled activations see the peer's random frames
MODEL = {
    "sphere_channels": 128, "attn_hidden_channels": 64, "num_heads": 8, "attn_alpha_channels": 64,
    "attn_value_channels": 16, "ffn_hidden_channels": 128, "norm_type": "layer_norm_sh", "lmax_list": [6],
    "mmax_list": [2], "grid_resolution": 18, "num_sphere_samples": 128, "edge_channels": 128,
    "use_atom_edge_embedding": True, "share_atom_edge_embedding": False, "use_m_share_rad": False,
    "distance_function": "gaussian", "num_distance_basis": 512, "attn_activation": "silu", "use_s2_act_attn": False,
    "use_attn_renorm": True, "ffn_activation": "silu", "use_gate_act": False, "use_grid_mlp": True,
    "use_sep_s2_act": True, "alpha_drop": 0.0, "drop_path_rate": 0.0, "proj_drop": 0.0, "weight_init": "uniform",
    "max_neighbors": 20, "max_radius": 12.0, "max_num_elements": 90, "otf_graph": True, "use_pbc": True,
    "regress_forces": True, "enforce_max_neighbors_strictly": True,
}  # fmt: skip

Step = Callable[[], dict[str, Any]]


def slabs(count: int) -> list[Any]:
    """CO on rattled copper slabs of 80 atoms: ``count`` ASE structures."""
    from ase.build import add_adsorbate, fcc111, molecule

    found = []
    for number in range(count):
        atoms = fcc111("Cu", (4, 4, 5), vacuum=8.0, periodic=True)
        add_adsorbate(atoms, molecule("CO"), 1.9)
        atoms.pbc = True
        atoms.rattle(0.05, seed=number)
        found.append(atoms)
    return found


def peer_step(folder: Path, layers: int, count: int) -> Step:
    """Build fairchem's model, write its weights, and return its training step."""
    from fairchem.core.models.equiformer_v2.equiformer_v2_deprecated import EquiformerV2
    from torch_geometric.data import Batch, Data

    torch.manual_seed(0)
    model = EquiformerV2(num_layers=layers, **MODEL)
    config = {"model": "equiformer_v2", "model_attributes": {"num_layers": layers, **MODEL}}
    unit = {"mean": torch.tensor(0.0), "std": torch.tensor(1.0)}
    normalizers = {"target": unit, "grad_target": unit}
    torch.save({"state_dict": model.state_dict(), "config": config, "normalizers": normalizers}, folder / "peer.pt")
    batch = Batch.from_data_list(
        [
            Data(
                pos=torch.tensor(atoms.positions, dtype=torch.float32),
                atomic_numbers=torch.tensor(atoms.numbers, dtype=torch.float32),
                cell=torch.tensor(np.array(atoms.cell), dtype=torch.float32)[None],
                natoms=len(atoms),
                tags=torch.zeros(len(atoms)),
                fixed=torch.zeros(len(atoms)),
                pbc=torch.ones(1, 3, dtype=torch.bool),
            )
            for atoms in slabs(count)
        ]
    )

    def step() -> dict[str, Any]:
        model.zero_grad(set_to_none=True)
        out = model(batch)
        energy, forces = out["energy"].reshape(-1), out["forces"]
        (energy.sum() + torch.linalg.vector_norm(forces, dim=-1).sum()).backward()
        return {"energy": energy.tolist(), "forces": forces.tolist()}

    return step


def our_step(folder: Path, layers: int, count: int) -> Step:
    """Import the peer's weights and return our training step."""
    from denskit.models.published import import_checkpoint
    from denskit.simulation.structures import batch_of

    model = import_checkpoint(folder / "peer.pt")
    model.train()
    batch = batch_of(slabs(count)).to(dtype=torch.float32)

    def step() -> dict[str, Any]:
        model.zero_grad(set_to_none=True)
        out = model(model.config.with_neighbors(batch), None, ("energy", "forces"))
        (out["energy"].sum() + torch.linalg.vector_norm(out["forces"], dim=-1).sum()).backward()
        return {"energy": out["energy"].tolist(), "forces": out["forces"].tolist()}

    return step


def side(name: str, python: str, folder: str, arguments: argparse.Namespace) -> Side:
    """Start one side's process."""
    command = [python, __file__, "--side", name, "--folder", folder, "--layers", str(arguments.layers)]
    command += ["--structures", str(arguments.structures), "--threads", str(arguments.threads)]
    stand_ins = str(Path(__file__).parent / "stand_ins")
    return Side(command, {**os.environ, "PYTHONPATH": stand_ins} if name == "peer" else None)


def main() -> None:
    """Run both sides in turn and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the Python that has fairchem-core")
    parser.add_argument("--json", help="where to write the figures")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--structures", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--side", choices=["peer", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        torch.set_num_threads(arguments.threads)
        build = {"peer": peer_step, "ours": our_step}[arguments.side]
        serve(build(Path(arguments.folder), arguments.layers, arguments.structures))
        return
    with tempfile.TemporaryDirectory() as folder:
        pythons = {"peer": arguments.peer, "ours": sys.executable}
        sides = {name: side(name, python, folder, arguments) for name, python in pythons.items()}
        for _ in range(arguments.warmups + arguments.steps):
            for taking in sides.values():
                taking.step()
    compare(sides, arguments)


def compare(sides: dict[str, Side], arguments: argparse.Namespace) -> None:
    """Assert that both computed the same, and print and write the ratios."""
    forces = {name: np.array(side.rows[0]["forces"]) for name, side in sides.items()}
    rms = float(np.sqrt((forces["peer"] ** 2).mean()))
    disagreement = float(np.abs(forces["ours"] - forces["peer"]).max()) / rms
    scatter = float(np.abs(forces["peer"] - np.array(sides["peer"].rows[-1]["forces"])).max()) / rms
    assert disagreement < max(LARGEST_DISAGREEMENT, 3 * scatter), (disagreement, scatter)
    result: dict[str, Any] = {
        "layers": arguments.layers, "structures": arguments.structures, "threads": arguments.threads,
        "torch": torch.__version__, "disagreement": disagreement, "peer_scatter": scatter,
    }  # fmt: skip
    for name, side in sides.items():
        times = side.times("cpu", arguments.warmups)
        result[name] = {
            "cpu_s_median": statistics.median(times),
            "cpu_s_min": min(times),
            "wall_s_median": statistics.median(side.times("wall", arguments.warmups)),
            "memory_MiB": side.rows[-1]["memory_MiB"],
        }
    result["ratio"] = result["peer"]["cpu_s_median"] / result["ours"]["cpu_s_median"]
    result["ratio_min"] = result["peer"]["cpu_s_min"] / result["ours"]["cpu_s_min"]
    result["memory_ratio"] = result["ours"]["memory_MiB"] / result["peer"]["memory_MiB"]
    print(json.dumps(result, indent=2))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
