"""Worker processes of :mod:`multiprocessing` that do not outlive the process that started them."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Let this worker end as soon as the process that started it has ended, also by a kill.

    Otherwise it would wait for work for ever.  A program that the worker has started is not ended.
    """
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)  # not sys.exit, which ends this thread alone

    threading.Thread(target=watch, daemon=True).start()
