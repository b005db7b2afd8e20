"""The program: commands, exit status, and one message for what goes wrong.

Exit status: 0 PASS, 1 FAIL, 2 the request or the input is wrong, 3 nothing was proven (ERROR, INCONCLUSIVE, or an
internal error).
"""

from __future__ import annotations

import sys
import time
import traceback

STARTED = time.perf_counter()
"""When the program began, before the heavy imports."""

import typer  # noqa: E402

from verify.cli.calibrate import calibrate  # noqa: E402
from verify.cli.check import check  # noqa: E402
from verify.cli.faults import faults  # noqa: E402
from verify.cli.report import report  # noqa: E402

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Verifies that packed preference training computes what unpacked training computes.",
)
app.command()(check)
app.command()(faults)
app.command()(calibrate)
app.command()(report)

_INTERRUPTED = 130
"""Status into which typer turns an interrupt."""


@app.callback()
def _program() -> None:
    """Verifies that packed preference training computes what unpacked training computes."""


def main() -> None:
    """Run the program and turn failures into one message and an exit status."""
    debug = "--debug" in sys.argv
    try:
        app()
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            _say("interrupted: nothing was written")
        raise
    except ValueError as error:
        if debug:
            traceback.print_exc()
        _say(f"error: {error}")
        sys.exit(2)
    except Exception as error:
        if debug:
            traceback.print_exc()
        _say(f"nothing was proven: {type(error).__name__}: {error} (--debug shows where)")
        sys.exit(3)


def _say(message: str) -> None:
    one_line = " ".join(line.strip() for line in message.splitlines() if line.strip())
    print(f"packparity: {one_line}", file=sys.stderr)  # noqa: T201
