"""Worker processes end with the process that started them, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from killing import lives, posix, within

PARENT = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from denskit.runtime.children import end_worker_with_parent

def work(folder):
    import os
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(120)

if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn"), end_worker_with_parent) as pool:
        list(pool.map(work, [sys.argv[1]] * 4))
"""


@posix
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script, pids = tmp_path / "parent.py", tmp_path / "pids"
    script.write_text(PARENT)
    pids.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(pids)])
    assert within(60, lambda: len(list(pids.iterdir())) == 2)
    workers = [int(path.name) for path in pids.iterdir()]
    assert all(map(lives, workers))
    parent.kill()
    parent.wait()
    assert within(10, lambda: not any(map(lives, workers)))
