"""Where the program begins and ends: an interrupt is answered from here on, before anything else is imported."""

from __future__ import annotations

import atexit
import os
import sys

INTERRUPTED = 130
"""Exit status of an interrupted program, into which typer turns an interrupt too."""
NOTHING_WRITTEN = "interrupted: nothing was written"


def main() -> None:
    """Run the program; an interrupt that nothing else answered is one line and its exit status."""
    status: list[int] = []
    atexit.register(_end_at_once, status)  # first of all, so that it comes last
    try:
        from verify.cli.interrupts import interrupts_noted

        with interrupts_noted():
            from verify.cli.app import main as run
        run()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            status.append(ended.code)
        raise
    except KeyboardInterrupt:
        print(f"packparity: {NOTHING_WRITTEN}", file=sys.stderr)  # noqa: T201
        status.append(INTERRUPTED)
        sys.exit(INTERRUPTED)


def _end_at_once(status: list[int]) -> None:
    """End with the status, without taking apart a million objects that torch and transformers have made.

    Also after an interrupt, for which Python would end itself by the signal. A rank has connections to others: it ends
    in the ordinary way.
    """
    if not status or "RANK" in os.environ:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        return  # Python will say so
    os._exit(status[0])
