"""Reads files in a child process with limits, and says what went wrong: neither read nor an error for people."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

Files = dict[str, bytes]
Read = Callable[[Path], None]  # of a folder; raises what it raises

SECONDS = 20  # of computing for one case; the attacks took minutes to years
STUCK = 600  # s for one case that computes nothing
MEMORY = 512 << 20  # bytes that one case may add to the process
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)  # of glibc
_ADDRESSES = 6 << 30  # bytes of address space: what asks for more gets a MemoryError, and is found out


def failures(cases: Sequence[Files], read: Read, folder: Path) -> Iterator[tuple[int, str]]:
    """(number of a case, what went wrong) for the cases in which something did."""
    begin = 0
    while begin < len(cases):
        done = begin
        for number, outcome in _run(cases[begin:], read, folder):
            done = begin + number + 1
            if outcome:
                yield begin + number, outcome
        begin = done


def _run(cases: Sequence[Files], read: Read, folder: Path) -> Iterator[tuple[int, str]]:
    """Outcomes of the cases of one child, the last of which may have killed it."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _serve(cases, read, folder, send)
    os.close(send)
    number = -1
    with os.fdopen(receive, encoding="utf-8") as lines:
        for line in lines:
            number += 1
            yield number, line.rstrip("\n")
    _, status = os.waitpid(child, 0)
    if number + 1 < len(cases):
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        too_long = {"SIGPROF": f"took more than {SECONDS} s", "SIGALRM": f"stuck for {STUCK} s"}
        yield number + 1, too_long.get(name, f"died of {name}")


def _serve(cases: Sequence[Files], read: Read, folder: Path, send: int) -> None:
    """In the child: one line for each case, empty where all is well; never returns."""
    try:
        torch.set_num_threads(1)  # the threads of the parent are not here, and OpenMP would wait for them
        resource.setrlimit(resource.RLIMIT_AS, (_size("VmSize") + _ADDRESSES, resource.RLIM_INFINITY))
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for limit in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(limit, signal.SIG_DFL)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        for number, files in enumerate(cases):
            place = folder / str(number)
            write(files, place)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.setitimer(signal.ITIMER_REAL, STUCK)
            outcome = _outcome(read, place)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(send, f"{outcome}\n".encode(errors="replace"))
    finally:
        os._exit(0)


def _outcome(read: Read, place: Path) -> str:
    """What is wrong with how ``read`` took it; nothing where all is well."""
    _TRIM(0)  # freed memory that the process has kept would be taken again unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
    before = _size("VmRSS")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(place)
    except (ValueError, OSError) as error:
        text = str(error)
        if "MemoryError" in text or not any(name in text for name in (place.name + "/", *os.listdir(place))):
            return f"{type(error).__name__} that names no file, or of memory: {text[:300]!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]!r}"
    grown = _size("VmHWM") - before
    return f"{grown / 2**20:.0f} MiB" if grown > MEMORY else ""


def _size(name: str) -> int:
    """Bytes of this process: VmSize, VmRSS, or VmHWM, the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def write(files: Files, folder: Path) -> None:
    """Lay files into a new folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
