"""Processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_the_parent() -> None:
    """Leave no worker behind, waiting for work, where the program is killed; does nothing in the program itself."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
