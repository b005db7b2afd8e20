"""The program: commands, exit status, and one message for what goes wrong.

Exit status: 0 PASS, 1 FAIL, 2 the request or the input is wrong, 3 nothing was proven (ERROR, INCONCLUSIVE, or an
internal error).
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Annotated

STARTED = time.perf_counter()
"""When the program began, before the heavy imports."""

import typer  # noqa: E402

from verify.cli.calibrate import calibrate  # noqa: E402
from verify.cli.check import check  # noqa: E402
from verify.cli.cost import cost  # noqa: E402
from verify.cli.data import data  # noqa: E402
from verify.cli.families import families  # noqa: E402
from verify.cli.faults import faults  # noqa: E402
from verify.cli.forecast import forecast  # noqa: E402
from verify.cli.option_checks import check_arguments  # noqa: E402
from verify.cli.out_folder import no_empty_folder, out_folder  # noqa: E402
from verify.cli.preflight import preflight  # noqa: E402
from verify.cli.report import report  # noqa: E402
from verify.cli.sharded import sharded  # noqa: E402
from verify.cli.simulate import simulate  # noqa: E402
from verify.cli.start import INTERRUPTED, NOTHING_WRITTEN  # noqa: E402
from verify.cli.supervision import names_foreign_code, supervised  # noqa: E402
from verify.parent_process import end_with_the_launcher  # noqa: E402
from verify.sharded.board import SaidByRank0Error  # noqa: E402
from verify.sharded.ranks import STARTED_HERE  # noqa: E402

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Verifies that packed preference training computes what unpacked training computes.",
)


def _unwrapped(command: Callable[..., None]) -> str:
    """Help of a command, a line for each paragraph: typer keeps line breaks in all but the first, however wide."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.__doc__ or ""))


_COMMANDS: tuple[Callable[..., None], ...] = (
    check,
    faults,
    calibrate,
    data,
    simulate,
    families,
    forecast,
    preflight,
    cost,
    sharded,
    report,
)
for _command in _COMMANDS:
    app.command(help=_unwrapped(_command))(_command)


def _print_version(asked: bool) -> None:
    if asked:
        from verify.tool_version import tool_version

        typer.echo(f"packparity {tool_version()}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Verifies that packed preference training computes what unpacked training computes."""


def main() -> None:
    """Run the program and turn failures into one message and an exit status."""
    arguments = sys.argv[1:]
    if names_foreign_code(arguments):
        status = _answered(lambda: supervised(lambda: _answered(lambda: _run(arguments))))
    else:
        status = _answered(lambda: _run(arguments))
    _leave(status)


def _leave(status: int) -> None:
    """End this process with a status.

    A rank ends at once: threads of the backend outlive the process group, and one that comes back to an interpreter
    that is being torn down ends it by SIGABRT, after the verdict was handed over.
    """
    if "RANK" in os.environ and "torch" in sys.modules:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # whoever read them has gone
            status = status or 3
        os._exit(status)
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    if STARTED_HERE in os.environ:
        end_with_the_launcher()
    check_arguments(arguments)
    with no_empty_folder(out_folder(arguments)):
        # Not standalone: typer would draw a box around what is wrong, over several lines.
        status = app(arguments or ["--help"], prog_name="packparity", standalone_mode=False)
    says_itself = STARTED_HERE in os.environ or arguments[:1] in (["calibrate"], ["cost"])  # the launcher; what is kept
    if status == INTERRUPTED and not says_itself:
        _say(NOTHING_WRITTEN)
    return int(status or 0) if arguments else 2


def _answered(run: Callable[[], int]) -> int:
    """The status of a run, and one message where it failed."""
    debug = "--debug" in sys.argv
    try:
        return run()
    except ValueError as error:
        if debug:
            traceback.print_exc()
        _say(f"error: {error}")
        return 2
    except SaidByRank0Error as error:
        if debug:
            traceback.print_exc()
        return error.status
    except Exception as error:
        if wrong := _wrong_usage(error):
            _say(f"error: {wrong}")
            return 2
        if debug:
            traceback.print_exc()
        _say(f"nothing was proven: {type(error).__name__}: {error} (--debug shows where)")
        return 3
    except SystemExit:  # typer, where whoever reads standard output has gone; its status would be that of a FAIL
        if "--help" in sys.argv or sys.argv[1:2] == ["report"]:  # which proves nothing that could get lost
            return 0
        _say("nothing was proven: standard output was closed")
        return 3


def _wrong_usage(error: Exception) -> str:
    """What typer found wrong with the command line, and where one can read what would be right; "" for other errors.

    Told by what its exceptions have rather than by their class, which has moved from click to typer.
    """
    if not hasattr(error, "format_message"):
        return ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "packparity"
    return f"{str(error.format_message()).rstrip('. ')} ({command} --help lists what can be given)"


def _say(message: str) -> None:
    """One line that a terminal shows as it is: what a message quotes may hold control characters."""
    one_line = " ".join(line.strip() for line in message.splitlines() if line.strip())
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line)
    print(f"packparity: {printable}", file=sys.stderr)  # noqa: T201
