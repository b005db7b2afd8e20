"""A result of any kind: read from its file, shown again, written again."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from reports.kill_matrix import KillMatrix
from reports.kill_matrix_store import KILL_MATRIX_FILE, read_kill_matrix, write_kill_matrix
from reports.kill_matrix_terminal import print_kill_matrix
from reports.record import Record
from reports.store import RECORD_FILE, RecordError, parse_json, read_record, write_reports
from reports.terminal import print_record

Result = Record | KillMatrix

_FILES = (RECORD_FILE, KILL_MATRIX_FILE)


def read_result(path: Path) -> Result:
    """Read a record of ``packparity check`` or a kill matrix of ``packparity faults``, whichever it is.

    Args:
        path: The JSON file, or a folder that holds one of them.

    Returns:
        The result.

    Raises:
        RecordError: No such file, several in the folder, or not a valid result; the message names the file.
    """
    if path.is_dir():
        path = _file_in(path)
    content = parse_json(path)
    # The first records that were written had no field that names their kind.
    kind = content.get("kind", "record")
    if kind == "kill-matrix":
        return read_kill_matrix(path)
    if kind == "record":
        return read_record(path)
    raise RecordError(f"{path}: a {kind!r}; give a record of packparity check or a kill matrix of packparity faults")


def _file_in(folder: Path) -> Path:
    found = [folder / name for name in _FILES if (folder / name).exists()]
    if len(found) != 1:
        wrong = "holds both" if found else "holds neither"
        raise RecordError(f"{folder} {wrong} {' and '.join(_FILES) if found else ' nor '.join(_FILES)}: name the file")
    return found[0]


def print_result(result: Result, console: Console) -> None:
    """Print a result as the command that made it does.

    Args:
        result: What to print.
        console: Where to.
    """
    if isinstance(result, Record):
        print_record(result, console)
    else:
        print_kill_matrix(result, console)


def write_result(result: Result, out_dir: Path) -> tuple[Path, ...]:
    """Write a result as Markdown, HTML, JUnit XML and JSON.

    Args:
        result: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    return write_reports(result, out_dir) if isinstance(result, Record) else write_kill_matrix(result, out_dir)
