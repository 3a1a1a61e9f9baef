"""Runs with their files: restarts bit for bit, instabilities, what is refused, and the program."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import ase.units
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.constraints import FixAtoms
from typer.testing import CliRunner

from contract.variants import build
from denskit.cli import app
from denskit.simulation.dynamics import DynamicsSettings
from denskit.simulation.dynamics.folder import DynamicsPlan, molecular_dynamics, warnings_of
from denskit.simulation.dynamics.integrators import BrokenSystems, State
from denskit.simulation.dynamics.recorders import TrajectoryWriter
from denskit.simulation.dynamics.restart import Restart
from denskit.simulation.potential import Potential
from denskit.simulation.structures import batch_of
from denskit.units import AMU

from tolerances import SAME_MOTION64
from trained import TRAINED, nearly_free, trained

STRUCTURES = [molecule("H2O"), molecule("CH3CH2OH"), molecule("H2O")]


@pytest.fixture(scope="module")
def potential() -> Potential:
    return Potential(trained())


def plan(folder: Path, steps: int, **settings: object) -> DynamicsPlan:
    chosen = {"temperature": 300.0, "timestep": 0.25} | settings
    return DynamicsPlan(
        settings=DynamicsSettings.model_validate(chosen), steps=steps, folder=folder, bonds=False, frame_every=4,
        statistics_every=3, restart_every=5,
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "statistics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("ensemble", ["nvt", "langevin"])
def test_an_interrupted_run_ends_as_one_that_was_not(potential: Potential, tmp_path: Path, ensemble: str) -> None:
    molecular_dynamics(potential, STRUCTURES, plan(tmp_path / "whole", 15, ensemble=ensemble), say=pytest.fail)
    parts, left = plan(tmp_path / "parts", 15, ensemble=ensemble), iter([False] * 8)
    stopped = molecular_dynamics(potential, STRUCTURES, parts, stop=lambda: next(left, True))
    assert stopped.interrupted and stopped.state.step == 8
    # a crash after the restart file: what was written since then is cut off
    with (tmp_path / "parts" / "statistics.csv").open("a") as file:
        file.write("0,9,torn")
    fresh = Potential(trained())
    ended = molecular_dynamics(fresh, STRUCTURES, parts, resume=True)
    assert not ended.interrupted and ended.state.step == 15
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == [
        "restart.safetensors", "statistics.csv", "summary.json", "trajectory_00.extxyz", "trajectory_01.extxyz",
        "trajectory_02.extxyz",
    ]  # fmt: skip
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name


def test_a_compiled_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced graph without a compiler; where it has other room for edges after the restart, to rounding."""
    monkeypatch.setattr("denskit.simulation.compiled.library_of", lambda graph, inputs: graph)
    shapes, ends = [], []

    def run(folder: Path, steps: int, resume: bool) -> None:
        potential = Potential(trained(), compile=True)
        chosen = plan(folder, steps)
        outcome = molecular_dynamics(potential, STRUCTURES, chosen, resume=resume, say=lambda text: None)
        assert potential._compiled is not None
        shapes.append(potential._compiled[0]._shapes)
        ends.append(outcome.state.batch.positions)

    run(tmp_path / "whole", 12, resume=False)
    run(tmp_path / "parts", 8, resume=False)
    shutil.copytree(tmp_path / "parts", tmp_path / "roomy")
    run(tmp_path / "parts", 12, resume=True)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "parts" / path.name).read_bytes(), path.name
    monkeypatch.setattr("denskit.simulation.compiled.SPARE", 1.6)
    run(tmp_path / "roomy", 12, resume=True)
    assert shapes[0] == shapes[1] == shapes[2] != shapes[3]
    torch.testing.assert_close(ends[3], ends[0], rtol=0, atol=SAME_MOTION64)


def test_the_last_step_is_a_frame_which_a_longer_simulation_takes_away(potential: Potential, tmp_path: Path) -> None:
    short = tmp_path / "parts"
    molecular_dynamics(potential, STRUCTURES, plan(short, 3))
    assert [frame.info["step"] for frame in ase.io.read(short / "trajectory_01.extxyz", ":")] == [0, 3]
    ended = molecular_dynamics(potential, STRUCTURES, plan(short, 3), resume=True)
    last = ase.io.read(short / "trajectory_01.extxyz", ":")
    assert [frame.info["step"] for frame in last] == [0, 3], "the same call again"
    own = ended.state.batch.system_index == 1
    np.testing.assert_allclose(last[-1].positions, ended.state.batch.positions[own], atol=1e-8)

    for every, steps in ((2, [0, 3]), (3, [0, 3])):  # nothing is lost or written twice with another interval
        molecular_dynamics(potential, STRUCTURES, replace(plan(short, 3), frame_every=every), resume=True)
        again = ase.io.read(short / "trajectory_01.extxyz", ":")
        assert [frame.info["step"] for frame in again] == steps
    molecular_dynamics(Potential(trained()), STRUCTURES, plan(short, 10), resume=True)
    molecular_dynamics(Potential(trained()), STRUCTURES, plan(tmp_path / "whole", 10))
    assert [frame.info["step"] for frame in ase.io.read(short / "trajectory_01.extxyz", ":")] == [0, 4, 8, 10]
    for path in (tmp_path / "whole").iterdir():
        if path.name != "restart.safetensors":  # restart files are written at other steps, and forget neighbour lists
            assert path.read_bytes() == (short / path.name).read_bytes(), path.name


def test_files_say_what_happened(potential: Potential, tmp_path: Path) -> None:
    outcome = molecular_dynamics(potential, STRUCTURES, plan(tmp_path, 12, ensemble="nve"))
    found = rows(tmp_path)
    assert [(row["replica"], row["step"]) for row in found] == [
        (str(r), str(s)) for s in range(0, 13, 3) for r in range(3)
    ]
    for row in found:
        energy = float(row["potential_eV"]) + float(row["kinetic_eV"])
        assert float(row["total_eV"]) == pytest.approx(energy)
        first = next(float(start["conserved_eV"]) for start in found if start["replica"] == row["replica"])
        atoms = len(STRUCTURES[int(row["replica"])])
        drift = 1000 * (float(row["conserved_eV"]) - first) / atoms
        assert float(row["drift_meV_per_atom"]) == pytest.approx(drift, abs=1e-9)
        assert float(row["time_ps"]) == pytest.approx(int(row["step"]) * 0.25e-3)
    frames = ase.io.read(tmp_path / "trajectory_01.extxyz", index=":")
    assert [frame.info["step"] for frame in frames] == [0, 4, 8, 12]
    own = outcome.state.batch.system_index == 1
    last = frames[-1]
    np.testing.assert_allclose(last.positions, outcome.state.batch.positions[own], atol=1e-8)
    np.testing.assert_allclose(last.get_forces(), outcome.state.forces[own], atol=1e-7)
    assert last.get_potential_energy() == pytest.approx(float(outcome.state.energy[1]))
    assert last.get_kinetic_energy() == pytest.approx(float(outcome.state.kinetic[1]), rel=1e-6)
    np.testing.assert_allclose(last.get_momenta() * AMU * ase.units.fs, outcome.state.momenta[own], atol=1e-7)
    assert json.loads((tmp_path / "summary.json").read_text())["stable_replicas"] == [0, 1, 2]


def test_unstable_runs_end_and_the_others_go_on(tmp_path: Path) -> None:
    """Nothing holds the molecules together, so they lose their bonds one after the other."""
    settings = DynamicsSettings(temperature=1000.0, timestep=0.25, rotation=True)
    chosen = DynamicsPlan(settings=settings, steps=80, folder=tmp_path, statistics_every=1)
    outcome = molecular_dynamics(Potential(nearly_free()), STRUCTURES, chosen)
    assert len({failure.step for failure in outcome.failures}) > 1
    for failure in outcome.failures:
        assert failure.check == "bonds" and "bond" in str(failure) and "Å long" in str(failure)
        assert failure.time == pytest.approx(failure.step * 0.25e-3)
        later = [
            row for row in rows(tmp_path) if int(row["replica"]) == failure.replica and int(row["step"]) > failure.step
        ]
        assert not later
    broken = [failure.replica for failure in outcome.failures]
    assert sorted(broken + outcome.state.replicas.tolist()) == [0, 1, 2]


def test_what_cannot_be_resumed_is_refused(potential: Potential, tmp_path: Path) -> None:
    molecular_dynamics(potential, STRUCTURES, plan(tmp_path, 5))
    with pytest.raises(ValueError, match="holds a simulation; continue it with --resume"):
        molecular_dynamics(potential, STRUCTURES, plan(tmp_path, 9))
    with pytest.raises(ValueError, match="another simulation:\n  temperature: 300.0 then, 310.0 now\n"):
        molecular_dynamics(potential, STRUCTURES, plan(tmp_path, 9, temperature=310.0), resume=True)
    with pytest.raises(ValueError, match=r"another simulation:\n  structures \(.*\): 3 then, 2 now\nContinue"):
        molecular_dynamics(potential, STRUCTURES[:2], plan(tmp_path, 9), resume=True)
    with pytest.raises(ValueError, match=r"another simulation:\n(  \w+: sha256 .*\n)+  n_atoms: "):
        molecular_dynamics(
            potential, [*STRUCTURES[:2], ase.Atoms("H2", [[0, 0, 0], [0, 0, 0.8]])], plan(tmp_path, 9), resume=True
        )
    other = Potential(build("envelope_no_attention", torch.float64))
    with pytest.raises(ValueError, match="another simulation:\n  models: sha256 "):
        molecular_dynamics(other, STRUCTURES, plan(tmp_path, 9), resume=True)
    half = Potential(potential.models, dtype=torch.float32)
    with pytest.raises(ValueError, match="holds another simulation:\n  dtype: float64 then, float32 now"):
        molecular_dynamics(half, STRUCTURES, plan(tmp_path, 9), resume=True)
    for name, change in (
        ("atomic_numbers", lambda atoms: atoms.numbers.__setitem__(0, 7)),
        ("positions", lambda atoms: atoms.positions.__setitem__((2, 0), 0.9)),
        ("cell", lambda atoms: atoms.set_cell([9, 9, 9])),
        ("pbc", lambda atoms: atoms.set_pbc([0, 0, 1])),
        ("fixed", lambda atoms: atoms.set_constraint(FixAtoms([1]))),
    ):
        changed = [atoms.copy() for atoms in STRUCTURES]
        change(changed[2])
        with pytest.raises(ValueError, match=f"another simulation:\n  {name}: sha256 .*... then, sha256 "):
            molecular_dynamics(potential, changed, plan(tmp_path, 9), resume=True)
    assert rows(tmp_path)[-1]["step"] == "3"  # nothing was changed
    (tmp_path / "statistics.csv").write_text("")
    with pytest.raises(ValueError, match="has 0 bytes"):
        molecular_dynamics(potential, STRUCTURES, plan(tmp_path, 9), resume=True)


def test_resume_where_nothing_is_begins(potential: Potential, tmp_path: Path) -> None:
    said: list[str] = []
    ended = molecular_dynamics(potential, STRUCTURES, plan(tmp_path / "new", 3), say=said.append, resume=True)
    assert ended.state.step == 3
    assert said == [f"{tmp_path / 'new'} holds no simulation yet: starting from the beginning"]
    (tmp_path / "new" / "restart.safetensors").unlink()
    for resume in (False, True):  # what somebody may still want is not written over
        with pytest.raises(ValueError, match="is not empty and holds no simulation to continue"):
            molecular_dynamics(potential, STRUCTURES, plan(tmp_path / "new", 6), say=said.append, resume=resume)


@pytest.mark.parametrize("frames", [0, 2])
def test_a_run_killed_at_its_first_frame_begins_again(
    potential: Potential, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    molecular_dynamics(potential, STRUCTURES, plan(whole, 6))
    write, left = ase.io.write, [None] * frames

    def dies(*arguments: object, **options: object) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(*arguments, **options)

    monkeypatch.setattr(ase.io, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        molecular_dynamics(potential, STRUCTURES, plan(killed, 6))
    assert len(list(killed.glob("trajectory*"))) == frames
    monkeypatch.undo()
    molecular_dynamics(potential, STRUCTURES, plan(killed, 6), resume=True)
    for path in whole.iterdir():
        assert path.read_bytes() == (killed / path.name).read_bytes(), path.name


def test_a_long_time_step_is_warned_about(tmp_path: Path) -> None:
    heavy = molecule("CH3CH2OH")
    heavy.set_masses([4.0 if symbol == "H" else None for symbol in heavy.symbols])

    def said(atoms: ase.Atoms, timestep: float) -> str:
        told: list[str] = []
        settings = DynamicsSettings(timestep=timestep)
        plan = DynamicsPlan(settings=settings, steps=1, folder=tmp_path / f"{len(list(tmp_path.iterdir()))}")
        molecular_dynamics(Potential(trained()), [atoms], plan, say=told.append)
        return "\n".join(told)

    assert "warning: a time step of 3 fs is long for hydrogen" in said(molecule("CH3CH2OH"), 3.0)
    assert "time step" not in said(heavy, 3.0) + said(molecule("CH3CH2OH"), 1.0)


def test_rough_models_are_warned_about_with_their_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([molecule("H2O")])
    chosen = DynamicsSettings(timestep=1.0)
    assert warnings_of(Potential(trained()), batch, chosen) == []
    for name, reason in (("direct", "no gradient"), ("nonlinear", "not smooth")):
        (warning,) = warnings_of(Potential(build(name, torch.float64)), batch, chosen)
        assert reason in warning
        assert re.search(r"\(energy drift without a bath, over 100 fs: [+-]\d\S* meV/atom/ps\)$", warning)

    def broken(*_: object) -> None:
        raise BrokenSystems(torch.tensor([True]))

    monkeypatch.setattr("denskit.simulation.dynamics.folder.nve_drift", broken)
    (warning,) = warnings_of(Potential(build("direct", torch.float64)), batch, chosen)
    assert "over 100 fs: systems [0] of the batch broke" in warning


def test_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ase.io.write(tmp_path / "water.xyz", [molecule("CH3CH2OH"), molecule("H2O")])
    common = ["md", str(TRAINED), str(tmp_path / "water.xyz"), "-o", str(tmp_path / "run")]
    common += ["--replicas", "2", "--statistics-every", "1", "--no-bonds", "--timestep", "0.25"]
    result = CliRunner().invoke(app, [*common, "--steps", "3"])
    assert result.exit_code == 0, result.output
    assert "2 of 2 runs are stable" in result.output
    assert "wrote 2 frames of each simulation (every 100 steps and the last) to" in result.output
    result = CliRunner().invoke(app, [*common, "--time", "0.0015", "--resume"])
    assert result.exit_code == 0, result.output
    assert "0.0015 ps (step 6)" in result.output
    assert "wrote frames (every 100 steps and the last) to" in result.output
    assert len(rows(tmp_path / "run")) == 2 * 7
    assert "continuing from step 3 of" in result.output
    hot = CliRunner().invoke(
        app, [*common, "--steps", "50", "--timestep", "50", "--bonds", "-o", str(tmp_path / "hot")]
    )
    assert hot.exit_code == 1 and "0 of 2 runs are stable" in hot.output, hot.output
    monkeypatch.setattr(TrajectoryWriter, "__call__", lambda writer, state: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(app, [*common, "--steps", "9", "--resume", "--frame-every", "7"])
    assert result.exit_code == 130, result.output
    assert "interrupted at 0.00175 ps (step 7)" in result.output and "the same command and --resume" in result.output
    for wrong, message in (
        (["--steps", "3", "--time", "1"], "give the length of the simulation: --steps N or --time PS"),
        ([], "give the length of the simulation: --steps N or --time PS"),
        (["--time", "0.0001"], "less than a time step"),
        (["--time", "-1"], "--time is -1 ps; give a finite number above 0"),
        (["--time", "nan"], "--time is nan ps; give a finite number above 0"),
        (["--steps", "3", "--temperature", "-5"], "Error: --temperature: -5.0: wanted a number above 0"),
        (["--steps", "3", "--index", "7"], "has no frames 7"),
    ):
        result = CliRunner().invoke(app, [*common, *wrong])
        assert result.exit_code == 1
        assert message in result.output


@pytest.mark.parametrize(("index", "frames"), [("-1", [2]), ("0", [0]), ("1:", [1, 2])])
def test_the_program_takes_frames_of_training_files(tmp_path: Path, index: str, frames: list[int]) -> None:
    """Of npz files, too; positions in the units that the file names."""
    water = molecule("H2O")
    positions = np.stack([water.positions + 0.01 * frame for frame in range(3)])
    np.savez(tmp_path / "water.npz", R=positions, z=water.numbers, E=np.zeros(3), F=np.zeros_like(positions))
    command = ["md", str(TRAINED), str(tmp_path / "water.npz"), "--index", index, "--steps", "1", "--no-bonds"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    first = [ase.io.read(file, index=0) for file in sorted((tmp_path / "run").glob("trajectory_*.extxyz"))]
    assert len(first) == len(frames)
    for atoms, frame in zip(first, frames, strict=True):
        np.testing.assert_allclose(atoms.positions, positions[frame], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "frames", "told"), [("a.extxyz", 3, True), ("a.extxyz", 1, False), ("POSCAR", 1, False)]
)
def test_the_program_says_that_it_takes_the_last_frame(tmp_path: Path, name: str, frames: int, told: bool) -> None:
    water = molecule("H2O", vacuum=5.0)
    ase.io.write(tmp_path / name, [water] * frames if frames > 1 else water)
    command = ["md", str(TRAINED), str(tmp_path / name), "--steps", "1", "--no-bonds", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert ("only its last frame is simulated" in " ".join(result.output.split())) == told


def test_the_program_takes_packed_extxyz_and_notes_beside_it(tmp_path: Path) -> None:
    """Which for trainings are raw data of OC20."""
    ase.io.write(tmp_path / "water.extxyz.xz", molecule("H2O"), format="extxyz")
    ase.io.write(tmp_path / "noted.extxyz", molecule("H2O"))
    (tmp_path / "noted.txt").write_text("two lines\nof notes\n")
    for name in ("water.extxyz.xz", "noted.extxyz"):
        command = [
            "md",
            str(TRAINED),
            str(tmp_path / name),
            "--steps",
            "1",
            "--no-bonds",
            "-o",
            str(tmp_path / name[:5]),
        ]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("index", ["3", "none", "7:"])
def test_the_program_says_how_many_frames_a_training_file_has(tmp_path: Path, index: str) -> None:
    water = molecule("H2O")
    np.savez(tmp_path / "water.npz", R=water.positions[None], z=water.numbers, E=np.zeros(1), F=np.zeros((1, 3, 3)))
    command = ["md", str(TRAINED), str(tmp_path / "water.npz"), "--index", index, "--steps", "1"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert f"no frames {index}; it has 1, counted from 0" in result.output.replace("\n", " ")


def test_masses_of_isotopes_are_used_and_kept(potential: Potential, tmp_path: Path) -> None:
    """Each replica with its own, also after a restart; other masses are another simulation."""
    heavy = molecule("H2O")
    heavy.set_masses([15.999, 2.014, 2.014])
    ase.io.write(tmp_path / "water.extxyz", [molecule("H2O"), heavy])
    water = ase.io.read(tmp_path / "water.extxyz", ":")
    assert isinstance(water, list)
    whole, parts = (plan(tmp_path / name, 8, ensemble="langevin") for name in ("whole", "parts"))
    said: list[str] = []
    ended = molecular_dynamics(potential, water, whole, say=said.append)
    assert said == ["note: 1 structure with own masses, as of isotopes, which are used"]
    assert (ended.state.masses / AMU).tolist() == pytest.approx([15.999, 1.008, 1.008, 15.999, 2.014, 2.014])
    left = iter([False] * 3)
    molecular_dynamics(potential, water, parts, stop=lambda: next(left, True))
    molecular_dynamics(potential, water, parts, resume=True, say=lambda text: None)
    for name in ("trajectory_00.extxyz", "trajectory_01.extxyz", "statistics.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name
    for place, atoms in enumerate(water):
        frame = ase.io.read(tmp_path / "whole" / f"trajectory_0{place}.extxyz", "-1")
        (row,) = [row for row in rows(tmp_path / "whole") if row["replica"] == str(place) and row["step"] == "0"]
        first = ase.io.read(tmp_path / "whole" / f"trajectory_0{place}.extxyz", "0")
        assert isinstance(frame, ase.Atoms) and isinstance(first, ase.Atoms)
        assert frame.get_masses() == pytest.approx(atoms.get_masses()) and frame.has("masses") == (place == 1)
        assert first.get_kinetic_energy() == pytest.approx(float(row["kinetic_eV"]), rel=1e-5)
    with pytest.raises(ValueError, match="holds another simulation:\n  masses: "):
        molecular_dynamics(potential, [water[0]] * 2, parts, resume=True)
    heavy.set_masses([15.999, 0.0, 2.014])
    with pytest.raises(ValueError, match=r"structure 1, atom 1 \(H\) has a mass of 0 amu; wanted is a positive number"):
        molecular_dynamics(potential, [water[0], heavy], plan(tmp_path / "wrong", 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frame_every": 0}, "frame_every is 0; give a whole number of 1 or more"),
        ({"steps": -3}, "steps is -3; give a whole number of 0 or more"),
        ({"restart_every": 2.5}, "restart_every is 2.5; give a whole number"),
        ({"statistics_every": "10"}, "statistics_every is '10'; give a whole number"),
        ({"uncertain": float("nan")}, "uncertain is nan eV/Å"),
        ({"settings": {}}, "settings: found dict; wanted DynamicsSettings"),
    ],
)
def test_a_plan_names_its_wrong_field(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        replace(plan(tmp_path, 3), **changes)
    assert replace(plan(tmp_path, 3), steps=1e3).steps == 1000


def test_other_plans_name_their_class(potential: Potential) -> None:
    wanted = r"DynamicsPlan: from denskit.simulation.dynamics import DynamicsSettings; from .* import DynamicsPlan"
    with pytest.raises(TypeError, match=f"plan: found dict; wanted {wanted}"):
        molecular_dynamics(potential, STRUCTURES, {"steps": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [iter, lambda found: found[0]])
def test_structures_in_any_form_and_nothing_printed(
    potential: Potential, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: Callable[[list[ase.Atoms]], object]
) -> None:
    """Without rotation a molecule in a box turns all the same, which is warned of."""
    box = molecule("H2O", vacuum=6.0, pbc=True)
    with pytest.warns(UserWarning, match="a molecule that turns freely") as warned:
        outcome = molecular_dynamics(potential, form([box]), plan(tmp_path, 1))  # type: ignore[arg-type]
    assert outcome.state.step == 1 and warned[0].filename == __file__
    assert not str(warned[0].message).startswith("warning") and not capsys.readouterr().out


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_saves_the_state(
    potential: Potential, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]
) -> None:
    def interrupted(writer: TrajectoryWriter, state: State) -> None:
        write(writer, state)
        if state.step == 4:
            signal.raise_signal(number)

    write, before = TrajectoryWriter.__call__, signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(TrajectoryWriter, "__call__", interrupted)
    with pytest.raises(error, match="the state is saved in|143"):
        molecular_dynamics(potential, STRUCTURES[0], plan(tmp_path, 8))
    assert Restart.load(tmp_path / "restart.safetensors").state.step == 4
    assert signal.getsignal(signal.SIGINT) is before
