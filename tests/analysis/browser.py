"""A page in headless Chromium, driven over the pipe of the DevTools protocol; needs nothing but the program."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-swiftshader", "--use-angle=swiftshader",
    "--remote-debugging-pipe", "--hide-scrollbars", "--window-size=1100,900",
)  # fmt: skip
_PATIENCE = 60.0  # s


class Page:
    """A page that is loaded from a file; use it in a ``with`` block.  ``problems`` collects errors and requests."""

    def __init__(self, path: Path, profile: Path) -> None:
        assert CHROMIUM is not None
        self.problems: list[str] = []
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        command = f"exec {CHROMIUM} {' '.join(_FLAGS)} --user-data-dir={profile} 3<&{to_read} 4>&{to_write}"
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self._session = b"", 0, None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete'")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + _PATIENCE
        while not self.run(script):
            assert time.monotonic() < until, f"never true: {script}; {self.problems}"
            time.sleep(0.1)

    def drag(self, x: float, y: float, by: float) -> None:
        """Drag the mouse to the right."""
        self._mouse("mousePressed", x, y)
        for part in range(1, 6):
            self._mouse("mouseMoved", x + by * part / 5, y)
        self._mouse("mouseReleased", x + by, y)

    def screenshot(self, clip: dict[str, float] | None = None) -> bytes:
        """PNG of the page, or of a rectangle (x, y, width, height) of it."""
        region = {} if clip is None else {"clip": {**clip, "scale": 1}}
        return base64.b64decode(self._call("Page.captureScreenshot", **region)["data"])

    def _mouse(self, kind: str, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._notice(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _notice(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console {values['type']}: {values['args']}")
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.problems.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not values["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"fetched {values['request']['url']}")
