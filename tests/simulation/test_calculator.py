"""The calculator: ASE's view of a model."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.socketio import SocketClient, SocketIOCalculator
from ase.constraints import FixAtoms
from ase.optimize import BFGS
from ase.stress import full_3x3_to_voigt_6_stress
from ase.vibrations import Vibrations

from contract.variants import VARIANTS, build
from denskit.batch import System
from denskit.data.base import collate
from denskit.geometry.neighbors import build_neighbors
from denskit.models.model_file import save_model
from denskit.simulation.calculator import DenskitCalculator
from denskit.simulation.structures import atoms_of

from tolerances import FINITE_DIFFERENCE64
from trained import trained

ROUNDING = 1e-7  # eV/Å, eV/Å^3: energies of thousands of eV in float64, over steps of 1e-4 Å and strains of 1e-5
STATUS = Path("/proc/self/status")
ALLOWED_GROWTH_MB = 20.0
GRADIENT = [name for name, variant in VARIANTS.items() if variant.config.forces == "gradient"]


def test_programs_may_ask_through_a_socket() -> None:
    """As i-PI does: they send positions and get energies and forces in atomic units."""
    atoms = molecule("H2O")
    atoms.center(vacuum=3.0)
    served = atoms.copy()
    served.calc = DenskitCalculator(trained())
    with SocketIOCalculator(unixsocket=f"denskit-{os.getpid()}") as server:
        client = SocketClient(unixsocket=f"denskit-{os.getpid()}")
        thread = threading.Thread(target=client.run, args=(served,), kwargs={"use_stress": False})
        thread.start()
        atoms.rattle(0.05, seed=1)
        atoms.calc = server
        forces, energy = atoms.get_forces(), atoms.get_potential_energy()
    thread.join()
    atoms.calc = DenskitCalculator(trained())
    np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-9)
    assert energy == pytest.approx(atoms.get_potential_energy(), abs=1e-9)


def atoms_named(systems: dict[str, System], name: str) -> ase.Atoms:
    return atoms_of(collate([systems[name]], torch.float64)[0])[0]


@pytest.mark.parametrize("name", ["envelope", "direct"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_numbers_as_predict(systems: dict[str, System], tmp_path: Path, name: str, dtype: str) -> None:
    save_model(tmp_path / "model.safetensors", build(name, torch.float64), {})
    model = build(name, getattr(torch, dtype))
    tolerance = {"float32": 1e-4, "float64": 1e-10}[dtype]
    for system in ("ethanol", "slab", "copper"):
        atoms = atoms_named(systems, system)
        atoms.calc = DenskitCalculator(tmp_path / "model.safetensors", dtype=dtype)
        batch = collate([systems[system]], getattr(torch, dtype))[0]
        wanted = model.predict(build_neighbors(batch, model.cutoff), ("energy", "energies", "forces"))
        assert atoms.get_potential_energy() == pytest.approx(float(wanted["energy"]), abs=tolerance)
        assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
        np.testing.assert_allclose(atoms.get_potential_energies(), wanted["energies"], atol=tolerance)
        np.testing.assert_allclose(
            atoms.get_forces(apply_constraint=False), wanted["forces"], rtol=tolerance, atol=tolerance
        )
        assert atoms.get_potential_energies().sum() == pytest.approx(atoms.get_potential_energy())


@pytest.mark.parametrize("name", GRADIENT)
def test_forces_are_minus_the_slope_of_the_energy(systems: dict[str, System], name: str) -> None:
    atoms = atoms_named(systems, "ethanol")
    atoms.calc = DenskitCalculator(build(name, torch.float64))
    forces, step = atoms.get_forces(), 1e-4
    scale = np.sqrt((forces**2).mean())
    for atom, axis in ((0, 0), (2, 1), (5, 2)):
        energies = []
        for sign in (1, -1):
            atoms.positions[atom, axis] += sign * step
            energies.append(atoms.get_potential_energy())
            atoms.positions[atom, axis] -= sign * step
        slope = (energies[0] - energies[1]) / (2 * step)
        assert forces[atom, axis] == pytest.approx(-slope, abs=10 * FINITE_DIFFERENCE64 * scale + ROUNDING)


@pytest.mark.parametrize("name", GRADIENT)
def test_stress_is_the_slope_by_strain(systems: dict[str, System], name: str) -> None:
    atoms = atoms_named(systems, "triclinic")
    atoms.rotate(40, (1, 2, 3), rotate_cell=True)  # no edge where the gauge of sampled models jumps: y = 0
    atoms.calc = DenskitCalculator(build(name, torch.float64))
    stress, step = atoms.get_stress(), 1e-5
    cell, scale = atoms.cell.array.copy(), np.sqrt((stress**2).mean())
    for row, (i, j) in enumerate(((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))):
        energies = []
        for sign in (1, -1):
            strain = np.zeros((3, 3))
            strain[i, j] += sign * step / 2
            strain[j, i] += sign * step / 2
            strained = atoms.copy()
            strained.set_cell(cell @ (np.eye(3) + strain), scale_atoms=True)
            strained.calc = atoms.calc
            energies.append(strained.get_potential_energy())
        slope = (energies[0] - energies[1]) / (2 * step) / atoms.get_volume()
        assert stress[row] == pytest.approx(slope, abs=100 * FINITE_DIFFERENCE64 * scale + ROUNDING)


def test_stress_needs_a_volume_and_gradients(systems: dict[str, System]) -> None:
    calculator = DenskitCalculator(build("envelope", torch.float64))
    for name, told in (("ethanol", "not periodic"), ("slab", "periodic along xy only")):
        atoms = atoms_named(systems, name)
        atoms.calc = calculator
        with pytest.raises(PropertyNotImplementedError, match=f"the structure is {told}, so it has no volume"):
            atoms.get_stress()
        assert np.isfinite(atoms.get_potential_energy())  # the rest still works
    copper = atoms_named(systems, "copper")
    copper.calc = DenskitCalculator(build("direct", torch.float64))
    with pytest.raises(PropertyNotImplementedError, match="direct"):
        copper.get_stress()


def test_stress_is_that_of_predict(systems: dict[str, System]) -> None:
    model = build("envelope", torch.float64)
    atoms = atoms_named(systems, "copper")
    atoms.calc = DenskitCalculator(model)
    wanted = model.predict(build_neighbors(collate([systems["copper"]], torch.float64)[0], model.cutoff))["stress"]
    np.testing.assert_allclose(atoms.get_stress(), full_3x3_to_voigt_6_stress(wanted[0].numpy()), atol=1e-10)


def test_results_are_kept_until_the_atoms_change(systems: dict[str, System]) -> None:
    atoms = atoms_named(systems, "ethanol")
    calculator = DenskitCalculator(build("envelope", torch.float64))
    atoms.calc = calculator
    atoms.get_forces()
    kept = calculator.results
    atoms.get_potential_energy()
    assert calculator.results is kept
    atoms.positions[0, 0] += 0.01
    atoms.get_potential_energy()
    assert calculator.results is not kept


def test_one_calculator_for_many_structures(systems: dict[str, System]) -> None:
    """Other elements, other cells, other sizes: everything that is kept is renewed."""
    shared = DenskitCalculator(build("envelope", torch.float64))
    first = molecule("CH3CH2OH")
    swapped = first.copy()
    swapped.numbers[2] = 6
    squeezed = atoms_named(systems, "copper")
    squeezed.set_cell(0.98 * squeezed.cell, scale_atoms=True)
    for atoms in (first, swapped, atoms_named(systems, "copper"), squeezed, first):
        atoms.calc = shared
        found = atoms.get_forces()
        atoms.calc = DenskitCalculator(build("envelope", torch.float64))
        np.testing.assert_allclose(found, atoms.get_forces(), atol=1e-10)


def test_constraints_are_left_to_ase() -> None:
    atoms = molecule("CH3CH2OH")
    atoms.calc = DenskitCalculator(build("envelope", torch.float64))
    free = atoms.get_forces()
    atoms.set_constraint(FixAtoms([0]))
    assert (atoms.get_forces()[0] == 0).all()
    np.testing.assert_array_equal(atoms.get_forces(apply_constraint=False), free)


def test_committee(systems: dict[str, System]) -> None:
    models = [build("envelope", torch.float64), build("nonlinear", torch.float64)]
    atoms = atoms_named(systems, "ethanol")
    atoms.calc = DenskitCalculator(models)
    found = atoms.get_forces()
    single = []
    for model in models:
        other = atoms.copy()
        other.calc = DenskitCalculator(model)
        single.append((other.get_potential_energy(), other.get_forces()))
    np.testing.assert_allclose(found, np.mean([forces for _, forces in single], axis=0), atol=1e-12)
    results = atoms.calc.results
    assert results["energy_std"] == pytest.approx(np.std([energy for energy, _ in single], ddof=1))
    np.testing.assert_allclose(results["forces_std"], np.std([f for _, f in single], axis=0, ddof=1), atol=1e-12)


def test_compiled(systems: dict[str, System], monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced graph, not compiled: a compiler would take longer than all tests here."""
    traced = []
    compiled = "denskit.simulation.compiled.library_of"
    monkeypatch.setattr(compiled, lambda graph, inputs: traced.append(graph) or graph)
    model = build("envelope_no_attention", torch.float64)
    atoms = atoms_named(systems, "triclinic")
    atoms.calc = DenskitCalculator(model, compile=True)
    for seed in range(3):
        atoms.rattle(0.02, seed=seed)
        plain = atoms.copy()
        plain.calc = DenskitCalculator(model)
        np.testing.assert_allclose(atoms.get_forces(), plain.get_forces(), atol=1e-10)
        assert len(traced) == 1  # and used again
    np.testing.assert_allclose(atoms.get_stress(), plain.get_stress(), atol=1e-10)


def test_chunks_of_edges_change_nothing(systems: dict[str, System]) -> None:
    atoms, model = atoms_named(systems, "copper"), build("envelope", torch.float64)
    atoms.calc = DenskitCalculator(model)
    whole, forces = atoms.get_potential_energy(), atoms.get_forces()
    atoms.calc = DenskitCalculator(model, edge_chunk=20)
    assert atoms.calc._potential.models[0].execution.edge_chunk == 20
    assert atoms.get_potential_energy() == pytest.approx(whole, abs=1e-10)
    np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-10)


def test_vibrations_of_a_minimum_are_real(tmp_path: Path) -> None:
    """Through ASE: all but the six motions of the whole molecule."""
    atoms = molecule("H2O")
    atoms.calc = DenskitCalculator(trained())
    assert BFGS(atoms, logfile=None).run(fmax=1e-4, steps=300)
    vibrations = Vibrations(atoms, name=str(tmp_path / "vibrations"))
    vibrations.run()
    frequencies = sorted(vibrations.get_frequencies(), key=abs)[6:]  # 1/cm
    assert np.isfinite(frequencies).all()
    assert all(frequency.imag == 0 and frequency.real > 500 for frequency in frequencies)


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    model = build("envelope", torch.float64)
    with pytest.raises(FileNotFoundError, match="no model file"):
        DenskitCalculator(tmp_path / "absent.safetensors")
    for dtype in ("float16", torch.float16, np.int64, "word"):
        with pytest.raises(ValueError, match="float32 or float64"):
            DenskitCalculator(model, dtype=dtype)
    assert DenskitCalculator(model, dtype=np.float32, device="auto")._potential.dtype == torch.float32
    with pytest.raises(TypeError, match="no argument dtyp; it has"):
        DenskitCalculator(model, dtyp="float64")
    with pytest.raises(ValueError, match="kernels is 'x'; give auto"):
        DenskitCalculator(model, kernels="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such device"):
        DenskitCalculator(model, device="gpu")
    with pytest.raises(ValueError, match="no atoms yet"):
        DenskitCalculator(model).get_potential_energy()
    iron = ase.Atoms("Fe2", positions=[[0, 0, 0], [0, 0, 2]], calculator=DenskitCalculator(model))
    with pytest.raises(ValueError, match="Fe"):
        iron.get_forces()
    for far, message in ((1e5, "flown apart"), (np.nan, "finite")):
        exploded = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, far]], calculator=DenskitCalculator(model))
        with pytest.raises(ValueError, match=message):
            exploded.get_forces()


def test_a_charge_that_was_not_trained_on_is_told_once() -> None:
    ion = molecule("H2O")
    ion.info["charge"] = 1
    model = copy.deepcopy(trained())
    model.scaling.charges = []
    ion.calc = DenskitCalculator(model)
    with pytest.warns(UserWarning, match="the structure has a total charge of 1, and no model sees one"):
        ion.get_potential_energy()
    ion.calc.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ion.get_potential_energy()


def test_a_refused_structure_is_refused_again() -> None:
    """And not evaluated with the atoms of the one before."""
    calculator = DenskitCalculator(trained())
    for before in (None, molecule("H2O")):
        if before is not None:
            before.calc = calculator
            before.get_potential_energy()
        sulphide = molecule("SH2")
        sulphide.calc = calculator
        for _ in range(2):
            with pytest.raises(ValueError, match="has S, which this model was not trained on"):
                sulphide.get_potential_energy()


def test_calls_keep_nothing() -> None:
    """As many tensors are alive after many calls as after a few; the neighbour list is made anew now and then."""
    water, rng = molecule("H2O"), np.random.default_rng(0)
    water.calc = DenskitCalculator(trained())
    start, alive = water.positions.copy(), []
    for _ in range(2):
        for _ in range(20):
            water.positions = start + rng.normal(0.0, 0.2, start.shape)
            water.get_forces()
        gc.collect()
        alive.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))
    assert alive[0] == alive[1]


@pytest.mark.one_thread
@pytest.mark.skipif(not STATUS.exists(), reason="the system does not say how much memory a process holds")
def test_memory_does_not_grow_with_calls() -> None:
    """Resident memory also shows what C++ keeps: 50 kB a call would be seen."""
    model = build("envelope_no_attention", torch.float64, stress="none")
    ethanol, rng = molecule("CH3CH2OH"), np.random.default_rng(0)
    ethanol.calc = DenskitCalculator(model)
    start = ethanol.positions.copy()

    def resident_after(calls: int) -> float:
        for _ in range(calls):
            ethanol.positions = start + rng.normal(0.0, 0.05, start.shape)
            ethanol.get_forces()
        gc.collect()
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6

    warm = resident_after(50)
    assert resident_after(400) - warm < ALLOWED_GROWTH_MB


def test_a_compiled_calculator_that_was_used_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def library_of(graph: Any, inputs: Any) -> Any:  # without a compiler: code that no pickle holds
        made.append(graph)
        return lambda *given: graph(*given)

    monkeypatch.setattr("denskit.simulation.compiled.library_of", library_of)
    atoms = molecule("CH3CH2OH")
    atoms.calc = DenskitCalculator(trained(), compile=True)
    energy = atoms.get_potential_energy()
    for number, calculator in enumerate((copy.deepcopy(atoms.calc), pickle.loads(pickle.dumps(atoms.calc)))):
        other = atoms.copy()
        other.rattle(0.01)
        calculator.get_forces(other)
        other.positions = atoms.positions
        assert calculator.get_potential_energy(other) == pytest.approx(energy, abs=1e-9)
        assert len(made) == number + 2


def test_threads_that_share_a_calculator_get_their_own_results() -> None:
    """The second asks while the first has calculated and not yet taken its result."""
    calculated, second_done = threading.Event(), threading.Event()

    class Slow(DenskitCalculator):
        def calculate(self, atoms: ase.Atoms | None = None, *rest: Any) -> None:
            super().calculate(atoms, *rest)
            if atoms is not None and len(atoms) == 9:
                calculated.set()
                second_done.wait(0.3)  # in vain where it waits for its turn

    def energy_of(name: str, calculator: DenskitCalculator) -> float:
        atoms = molecule(name)
        atoms.calc = calculator
        return float(atoms.get_potential_energy())

    shared, found = Slow(trained()), []
    thread = threading.Thread(target=lambda: found.append(energy_of("CH3CH2OH", shared)))
    thread.start()
    calculated.wait()
    found.append(energy_of("H2O", shared))
    second_done.set()
    thread.join()
    wanted = [energy_of(name, DenskitCalculator(trained())) for name in ("CH3CH2OH", "H2O")]
    assert sorted(found) == pytest.approx(sorted(wanted), abs=1e-9)


def test_warnings_of_stress_name_the_line_of_the_user_once(systems: dict[str, System]) -> None:
    """Though ASE calls the calculator, in the end."""
    atoms = atoms_named(systems, "copper")
    atoms.calc = DenskitCalculator(build("linear", torch.float64))
    with pytest.warns(UserWarning, match="this model was not trained on stress") as warned:
        atoms.get_stress()
    assert [warning.filename for warning in warned] == [__file__]
    atoms.rattle(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.get_stress()
