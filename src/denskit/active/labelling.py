"""Labels of frames by a reference method: GFN2-xTB, or any calculator of ASE."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.calculators.calculator import PropertyNotImplementedError
from ase.stress import voigt_6_to_full_3x3_stress

from denskit.active.frames import read_frames
from denskit.active.journal import Journal, origin_of
from denskit.data.base import electrons_in
from denskit.data.datasets.generate import METHOD, xtb_calculator
from denskit.data.electrons import ElectronSettings
from denskit.data.frames import exact_extxyz
from denskit.data.writing import relabelled
from denskit.files import atomic_write, locked_file, new_frames_file
from denskit.geometry.lattice import periodic_rows
from denskit.runtime.children import end_worker_with_parent
from denskit.runtime.progress import Report, counted, unreported
from denskit.runtime.warning import warn

XTB = "xtb"
UNGUARDED = (
    ". In a script of Python the call must stand below if __name__ == '__main__': each process runs the script again"
)
Maker = Callable[[], Any]  # makes a calculator of ASE


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The end of a labelling."""

    path: Path
    labels: int
    failures: dict[int, str]  # reason by number of the frame; these are not in the file
    taken: int  # labels from an earlier call
    again: int  # frames that failed in an earlier call, and were or will be tried again
    finished: bool  # False: stopped; the same call continues


def label(
    frames: str | Path | Sequence[ase.Atoms],
    output: str | Path,
    *,
    method: str | Maker = XTB,
    processes: int = 1,
    force: bool = False,
    progress: Report = unreported,
    stop: Callable[[], bool] = lambda: False,
) -> Labelled:
    """Compute energy, forces and (periodic frames, where the calculator has it) stress; write them as extxyz.

    They are in eV and Å, as the field ``result_unit`` says.  All fields are kept; labels and results that the frames
    bring become ``input_energy``, ``input_forces``, ....  The total charge and spin that a frame's fields give
    (``charge``, ``multiplicity``, ...) are set in the calculator; one that has no such parameter gives a warning.

    Each label goes at once into ``OUTPUT.progress``, so the same call continues after a kill.  The file is removed when
    all frames have labels; otherwise the same call tries those without again.

    Args:
        frames: frames, or a file of them.
        output: the file to write.
        method: "xtb" (GFN2-xTB), or "package.module:function": a function without arguments that returns a calculator
            of ASE, also from a file in the current folder; or such a function or a class itself, with several
            processes one that they can import.
        processes: frames labelled at the same time, each by a process with a calculator of its own.
        force: replace an existing output.
        progress: called after each frame.
        stop: asked after each frame whether to end.

    Raises:
        FileNotFoundError: No such file.
        ValueError: No such calculator; a function that processes cannot be given; an output that exists, is no extxyz
            by its name or is being written by another process; labels of other frames or another method in the
            progress file; no frame that could be labelled.
    """
    path = new_frames_file(output, inputs=[frames] if isinstance(frames, str | Path) else [], force=True)
    structures = read_frames(frames) if isinstance(frames, str | Path) else list(frames)
    name = _name_of(method, processes)
    calculator = calculator_of(method)  # raises before the work begins
    with locked_file(path):
        journal = Journal(path, origin_of(structures, name, calculator), force=force)
        taken = len(journal.results)
        left = [number for number in range(len(structures)) if number not in journal.results]
        failed, told = 0, set[str]()
        stopped = threading.Event()
        for result in journal.labels.values():
            _tell(result, told)
        results = _computed(structures, left, method, calculator, processes, stopped)
        for done, (number, result) in enumerate(results, start=taken + 1):
            _tell(journal.add(number, result), told)
            failed += "error" in result
            progress(done, counted(done, "frame") + (f", {failed} failed" if failed else ""), len(structures))
            if not stopped.is_set() and done < len(structures) and stop():
                stopped.set()
        finished = len(journal.results) == len(structures)
        if finished:
            _write(path, structures, journal, name)
    return Labelled(
        path=path, labels=len(journal.labels), failures=journal.failures, taken=taken, again=journal.failed,
        finished=finished,
    )  # fmt: skip


def _write(path: Path, structures: Sequence[ase.Atoms], journal: Journal, method: str) -> None:
    """Write the labelled frames.  Raises ValueError where there are none."""
    if not journal.labels:
        failures = journal.failures
        first, reason = next(iter(failures.items()))
        journal.path.unlink()
        raise ValueError(f"none of {len(failures)} frames could be labelled by {method}; frame {first}: {reason}")
    found = []
    for number, result in journal.labels.items():
        labels: dict[str, Any] = {"energy": result["energy"]}
        labels |= {name: np.array(result[name]) for name in ("forces", "stress") if name in result}
        found.append(relabelled(structures[number], labels))
    with atomic_write(path) as temporary:
        temporary.write_text("".join(exact_extxyz(found)), encoding="utf-8")
    journal.end()


def calculator_of(method: str | Maker) -> Any:
    """A new calculator of ASE by name, "xtb" or "package.module:function", or by a function or class.

    Raises ValueError for one that leads to no calculator.
    """
    if method == XTB:
        return xtb_calculator()
    if not isinstance(method, str):
        return _made(method, _name_of(method))
    module, colon, name = method.partition(":")
    if not colon:
        raise ValueError(f"{method!r} is no method: wanted {XTB} ({METHOD}) or package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"{method}: {error}; wanted a function package.module:function that can be imported") from None
    except Exception as error:  # the user's own code raises anything
        raise _failed(method, error) from error
    return _made(make, method)


def _name_of(method: object, processes: int = 1) -> str:
    """The method by name.  Raises ValueError for one that is neither text nor callable or that processes cannot get."""
    if isinstance(method, str):
        return method
    if not callable(method):
        raise ValueError(
            f"method is an object of class {type(method).__name__}; wanted {XTB}, package.module:function, or a "
            "function without arguments (a class) that makes a calculator of ASE"
        )
    name = f"{method.__module__}:{getattr(method, '__qualname__', '<object>')}"
    if "<" in name:  # others may have the same name, and a journal could not tell their labels apart
        raise ValueError(
            f"{name} has no name of its own; define a function or class at the top of a module, and give it"
        )
    if processes > 1 and method.__module__ == "__main__" and not _script():
        raise ValueError(f"{name} is not found by other processes: define it in a module, or give processes=1")
    return name


def _script() -> str:
    """The file of the script that runs, which other processes run again; empty in a notebook and for a command."""
    file = getattr(sys.modules["__main__"], "__file__", None) or ""
    return "" if Path(file).name in ("denskit", "__main__.py") else file


def _failed(method: str, error: Exception) -> ValueError:
    return ValueError(
        f"{method} raised {type(error).__name__}: {error}; wanted a function without arguments that returns a "
        "calculator of ASE"
    )


def _made(make: Maker, method: str) -> Any:
    """The calculator that a function makes, called ``method`` in errors."""
    try:
        calculator = make()
    except Exception as error:  # the user's own code raises anything
        raise _failed(method, error) from error
    if not hasattr(calculator, "get_potential_energy"):
        found = type(calculator).__name__
        raise ValueError(f"{method} returned an object of class {found}; wanted a calculator of ASE")
    return calculator


def _computed(
    structures: Sequence[ase.Atoms],
    left: Sequence[int],
    method: str | Maker,
    calculator: Any,
    processes: int,
    stopped: threading.Event,
) -> Generator[tuple[int, dict[str, Any]]]:
    """Results by number of the frame, in the order in which they are ready.

    Once ``stopped`` is set no calculation begins; those of processes that are under way end.
    """
    if processes == 1 or len(left) < 2:
        own = _Method(calculator)
        for number in left:
            yield number, own.result(structures[number])
            if stopped.is_set():
                return
        return
    # spawned: forked processes share locks and threads of torch
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (method,)) as pool:
        with _ctrl_c_ignored():
            running = {pool.submit(_result, structures[number]): number for number in left}  # starts the processes
        done = 0
        try:
            for future in as_completed(running):
                if future.cancelled():
                    continue
                yield running[future], future.result()
                done += 1
                if stopped.is_set():
                    for waiting in running:
                        waiting.cancel()
        except BrokenProcessPool:
            raise ValueError(
                f"a process of {_name_of(method)} was killed or crashed; the labels so far are saved: the same call "
                f"continues{UNGUARDED if _script() and not done else ''}"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes that start in the block ignore Ctrl-C, which a terminal sends to all; the first process acts."""
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Method:
    """A calculator that labels frames one after another, in the charge and spin of each."""

    def __init__(self, calculator: Any) -> None:
        self.calculator = calculator
        self.electrons = ElectronSettings(calculator)
        self.state: Any = ()  # charge and spin by the fields of the frame before

    def result(self, atoms: ase.Atoms) -> dict[str, Any]:
        """Energy, forces, perhaps stress as lists; or "error".  Perhaps "notes": what a user should know."""
        if not (np.isfinite(atoms.positions).all() and np.isfinite(atoms.cell.array).all()):
            return {"error": "positions or cell are NaN or infinite"}  # some methods pass over such an atom in silence
        try:  # in a flat cell their search of neighbours takes all memory
            periodic_rows(atoms.cell.array, atoms.pbc, "the frame")
        except ValueError as error:
            return {"error": str(error)}
        bare = ase.Atoms(
            atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc, info=dict(atoms.info),
            charges=atoms.get_initial_charges(), magmoms=atoms.get_initial_magnetic_moments(),
        )  # fmt: skip
        bare.calc = self.calculator
        name = type(self.calculator).__name__
        try:
            untold = self.electrons.set_for(bare)
            if (state := electrons_in(bare.info)) != self.state and hasattr(self.calculator, "reset"):
                self.calculator.reset()  # ASE keeps results of the same geometry, whatever its charge
            self.state = state
        except ValueError as error:
            return {"error": str(error)}
        except Exception as error:  # of the calculator
            return {"error": f"{type(error).__name__}: {error}"}
        notes = [
            f"{name} was not told the {what} that the frame's fields give: it has no such parameter. Unless it reads "
            "atoms.info itself, labels of such frames are of another state. One that takes the parameter without "
            "naming it before (Gaussian, ORCA) is told where it begins with one: charge=0, mult=1"
            for what in untold
        ]
        try:
            found = {"energy": float(bare.get_potential_energy()), "forces": bare.get_forces()}
            if bare.pbc.all() and "stress" in getattr(self.calculator, "implemented_properties", ()):
                try:
                    found["stress"] = voigt_6_to_full_3x3_stress(bare.get_stress())
                except PropertyNotImplementedError:
                    notes.append(f"{name} has a stress, but computed none here: such frames get no label of the stress")
        except Exception as error:  # calculators raise errors of any class
            return {"error": f"{type(error).__name__}: {error}"}
        if not len(bare) or np.shape(found["forces"]) != (len(bare), 3):
            shape = np.shape(found["forces"])
            return {"error": f"forces of shape {shape} for {len(bare)} atoms; at least one atom and (n, 3) are wanted"}
        bad = [name for name, value in found.items() if not np.isfinite(value).all()]
        if bad:
            return {"error": f"{bad[0]} is not finite"}
        labels = {name: np.asarray(value).tolist() for name, value in found.items()}
        return labels | ({"notes": notes} if notes else {})


_method: _Method  # of a worker


def _begin(method: str | Maker) -> None:
    global _method
    end_worker_with_parent()
    _method = _Method(calculator_of(method))


def _result(atoms: ase.Atoms) -> dict[str, Any]:
    return _method.result(atoms)


def _tell(result: Mapping[str, Any], told: set[str]) -> None:
    """Warn of the notes of a result that are not in ``told``, and add them."""
    for note in result.get("notes", ()):
        if note not in told:
            told.add(note)
            warn(f"frame {result['frame']}: {note}")
