"""Our end of the line to a peer's process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
COMPLAINT = 2000  # characters of a peer's last words that are shown


class PeerProcess:
    """A model in a Python of its own, told in turn to take a step (see :mod:`denskit_bench.peers.serving`).

    Args:
        name: of the file in this folder that the peer runs.
        python: the Python that has the peer's packages.
        job: plain data for the peer: "device", "threads", and what its file wants.

    Raises:
        ValueError: There is no such Python, or the peer ended early; its last words are quoted.
    """

    def __init__(self, name: str, python: str, job: dict[str, Any]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        # only the package must be found in our folder, not what lies beside it
        lines = (
            "import sys", f"sys.path.append({str(FOLDER.parent)!r})", "import peers", "sys.path.pop()",
            f"sys.path.append({str(FOLDER / 'stand_ins')!r})", f"from peers import {name}, serving",
            f"serving.serve({name}.build)",
        )  # fmt: skip
        program = "; ".join(lines)
        # e3nn 0.4.4, which MACE pins, reads its own constants in a way that a current torch refuses unless told
        environment = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
        try:
            self._process = subprocess.Popen(
                [python, "-I", "-c", program], text=True, env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            )  # fmt: skip
        except OSError as error:
            raise ValueError(f"--peer-python {python}: {error}; name the python of {name}'s environment") from None
        self.ready = self._ask(json.dumps(job))
        self.parameters: int | None = self.ready["parameters"]
        self.memory: dict[str, float] | None = None
        self.found: dict[str, Any] = {}  # by the last step

    def step(self) -> dict[str, float]:
        """Take one step; seconds by every clock of the peer's process."""
        answer = self._ask("")
        self.memory, self.found = answer["memory"], answer["found"]
        return answer["times"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            raise ValueError(f"{self.name} ended early; it said: {self._errors.read()[-COMPLAINT:].strip()}")
        return json.loads(answer)
