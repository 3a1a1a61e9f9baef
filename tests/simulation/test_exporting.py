"""Exported programs give the model's numbers, also where Denskit cannot be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule

from contract.variants import build
from denskit.geometry.neighbors import build_neighbors
from denskit.models import build_force_field
from denskit.models.base import ForceField
from denskit.models.equiformer import EquiformerConfig
from denskit.models.scaling import Scaling
from denskit.simulation.exporting import METADATA, _reason, export_model
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of

from tolerances import ORACLE64

pytestmark = pytest.mark.one_thread

# runs alone: torch, numpy and ASE, nothing of ours
ALONE = """
import json, sys
sys.modules["denskit"] = None  # any import of it fails
import ase.io, numpy as np, torch
from ase.neighborlist import neighbor_list
extra = {"denskit.json": ""}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
cutoff = json.loads(extra["denskit.json"])["cutoff"]
out = {}
for place, atoms in enumerate(ase.io.read(sys.argv[2], ":")):
    atom, neighbour, shift = neighbor_list("ijS", atoms, cutoff)
    results = program(
        torch.tensor(atoms.positions), torch.tensor(atoms.numbers), torch.tensor(atoms.cell.array),
        torch.tensor(np.stack([neighbour, atom])), torch.tensor(shift),
    )
    names = ("energy", "energies", "forces", "stress")
    out |= {f"{name}_{place}": value.numpy() for name, value in zip(names, results)}
np.savez(sys.argv[3], **out)
"""


def small(**changes: object) -> ForceField:
    config = EquiformerConfig.model_validate({
        "cutoff": 4.0, "num_layers": 1, "channels": (4, 2), "feature_channels": (4, 2), "head_channels": (2, 2),
        "num_heads": 1, "ffn_channels": (4, 2), "num_basis": 4, "radial_hidden": (4,), "envelope": True, **changes,
    })  # fmt: skip
    torch.manual_seed(0)
    scaling = Scaling(elements=[1, 6, 8, 14], references={"C": -1000.0}, energy_shift=-3.0, energy_scale=2.5,
                      force_scale=2.5, stress_scale=2.5, binding={"C": 4.0, "H": 3.0})  # fmt: skip
    return build_force_field(config, heads={}, scaling=scaling).double().eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ForceField, Path]:
    model, path = small(stress="strain"), tmp_path_factory.mktemp("export") / "model.pt2"
    metadata = export_model(model, path)
    assert metadata["elements"] == [1, 6, 8, 14] and metadata["weights"] == "float64"
    return model, path


def test_programs_run_without_denskit(exported: tuple[ForceField, Path], tmp_path: Path) -> None:
    model, path = exported
    silicon = bulk("Si", cubic=True).repeat((2, 1, 1))
    silicon.rattle(0.05, seed=0)
    structures = [molecule("CH3CH2OH"), molecule("H2"), silicon]
    structures[0].positions += 500.0
    ase.io.write(tmp_path / "in.extxyz", structures)
    structures = ase.io.read(tmp_path / "in.extxyz", ":")  # rounded as they were written
    arguments = [sys.executable, "-c", ALONE, str(path), str(tmp_path / "in.extxyz"), str(tmp_path / "out.npz")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz", allow_pickle=False)
    potential = Potential(model, skin=0.0)
    for place, atoms in enumerate(structures):
        wanted = potential(batch_of([atoms]))
        scale = max(float(wanted.forces.abs().max()), 1.0)
        assert abs(found[f"energy_{place}"] - float(wanted.energy[0])) < ORACLE64 * abs(float(wanted.energy[0]))
        assert np.abs(found[f"forces_{place}"] - wanted.forces.numpy()).max() < ORACLE64 * scale
        assert found[f"energies_{place}"].sum() == pytest.approx(float(found[f"energy_{place}"]), rel=ORACLE64)
    stress = model.predict(build_neighbors(batch_of([silicon]), 4.0))["stress"][0]
    assert np.abs(found["stress_2"] - stress.numpy()).max() < 1e-6  # positions were rounded in the file
    assert METADATA == "denskit.json"


# a model of scalars alone: with vectors the compiler would take three times as long
SCALARS = {
    "channels": (2,), "feature_channels": (2,), "head_channels": (2,), "ffn_channels": (2,), "attention": "none",
    "messages": "linear", "norm": "none",
}  # fmt: skip

# the same for a compiled one
ALONE_COMPILED = ALONE.replace(
    """program = torch.export.load(sys.argv[1], extra_files=extra).module()
cutoff = json.loads(extra["denskit.json"])["cutoff"]""",
    """program = torch._inductor.aoti_load_package(sys.argv[1])
cutoff = json.loads(program.get_metadata()["denskit.json"])["cutoff"]""",
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_compiled_programs_run_without_denskit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In about half a minute."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))  # nothing of an earlier run
    model = small(**SCALARS)
    export_model(model, tmp_path / "model.pt2", compiled=True)
    structures = [molecule("CH3CH2OH"), molecule("H2"), bulk("Si", cubic=True)]
    ase.io.write(tmp_path / "in.extxyz", structures)
    files = [str(tmp_path / name) for name in ("model.pt2", "in.extxyz", "out.npz")]
    done = subprocess.run([sys.executable, "-c", ALONE_COMPILED, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz", allow_pickle=False)
    for place, atoms in enumerate(ase.io.read(tmp_path / "in.extxyz", ":")):
        wanted = Potential(model, skin=0.0)(batch_of([atoms]))
        assert abs(found[f"energy_{place}"] - float(wanted.energy[0])) < ORACLE64 * abs(float(wanted.energy[0]))
        assert np.abs(found[f"forces_{place}"] - wanted.forces.numpy()).max() < ORACLE64


def test_without_a_compiler_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no C++ compiler\nfurther lines")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    with pytest.raises(ValueError, match=r"cannot compile the program \(RuntimeError: no C\+\+ compiler\); it needs"):
        export_model(small(**SCALARS), tmp_path / "model.pt2", compiled=True)
    assert not list(tmp_path.iterdir())


def test_direct_forces_are_exported_too(tmp_path: Path) -> None:
    model = small(forces="direct", channels=(4, 2))
    path = tmp_path / "direct.pt2"
    export_model(model, path)
    batch = build_neighbors(batch_of([molecule("CH4")]), 4.0)
    program = torch.export.load(path).module()
    edges = batch.built_edges
    found = program(batch.positions, batch.atomic_numbers, batch.cell[0], edges.index, edges.shift)
    assert torch.allclose(found[2], model.predict(batch)["forces"], rtol=0, atol=ORACLE64)


def test_a_size_that_became_a_constant_is_named() -> None:
    said = _reason(RuntimeError("Constraints violated (atoms)! For more information, run with TORCH_LOGS\nmore"))
    assert said.startswith("the number of atoms in the traced structure became a constant") and "shape[0]" in said
    assert _reason(RuntimeError("one\ntwo")) == "one"


@pytest.mark.parametrize("parity", [False, True])
def test_messages_of_two_products_are_exported_for_any_number_of_edges(parity: bool, tmp_path: Path) -> None:
    model = small(parity=parity)
    export_model(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    batch = build_neighbors(batch_of([molecule("CH3CH2OH")]), model.cutoff)
    energy, *_ = program(
        batch.positions, batch.atomic_numbers, batch.cell[0], batch.built_edges.index, batch.built_edges.shift
    )
    torch.testing.assert_close(energy.reshape(-1), model.predict(batch)["energy"])


def test_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model.onnx: exported programs are .pt2 files"):
        export_model(small(), tmp_path / "model.onnx")


@pytest.mark.parametrize("variant", ["v2_s2_grid", "v3_parity", "escn_gradient"])
def test_models_of_edge_frames_are_exported_for_any_number_of_atoms(variant: str, tmp_path: Path) -> None:
    """Elsewhere they work in chunks of atoms and edges, whose number a program may not depend on."""
    model = build(variant, torch.float64, num_layers=1).eval()
    export_model(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for name in ("H2O", "CH3CH2OH"):
        batch = build_neighbors(batch_of([molecule(name)]), model.cutoff)
        expected = model.predict(batch)
        energy, _, forces, *_ = program(
            batch.positions, batch.atomic_numbers, batch.cell[0], batch.built_edges.index, batch.built_edges.shift
        )
        torch.testing.assert_close(energy.reshape(1), expected["energy"], rtol=0, atol=ORACLE64)
        torch.testing.assert_close(forces, expected["forces"], rtol=0, atol=ORACLE64)
