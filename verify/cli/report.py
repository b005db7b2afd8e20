"""``packparity report``: show a result again, or hold two against each other. Needs nothing of what produced them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_HELP_RESULT = "A record.json, kill-matrix.json, data-report.json, families.json, ..., or its folder."


def report(
    result: Annotated[Path, typer.Argument(help=_HELP_RESULT)],
    other: Annotated[Path | None, typer.Argument(help="A second result of the same kind, to compare with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the files of the result, or comparison.md.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Show a result again, or what differs between two: verdicts, worst ratios, versions and settings.

    Exit status 0 whatever the verdicts: a report tells what was, it judges nothing.
    """
    from rich.console import Console

    from reports.results import print_result, read_result, write_result

    first, console = read_result(result), Console()
    written: tuple[Path, ...] = ()
    if other is None:
        written = write_result(first, out) if out is not None else ()
        print_result(first, console)
    else:
        from reports import difference_markdown
        from reports.difference import compare
        from reports.difference_terminal import print_difference
        from reports.store import write_together

        difference = compare(first, read_result(other))
        if out is not None:
            name = "comparison.md"
            written = write_together({name: difference_markdown.render(difference)}, out, (name,))
        print_difference(difference, console)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)
