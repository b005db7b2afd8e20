"""A result of any kind: read from its file, shown again, written again."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from reports.cost_record import CostRecord
from reports.cost_store import COST_FILE, read_cost, write_cost
from reports.cost_terminal import print_cost
from reports.data_record import DataReport
from reports.data_store import DATA_REPORT_FILE, read_data_report, write_data_report
from reports.data_terminal import print_data_report
from reports.families_record import FamiliesRecord
from reports.families_store import FAMILIES_FILE, read_families, write_families
from reports.families_terminal import print_families
from reports.forecast_record import ForecastRecord
from reports.forecast_store import FORECAST_FILE, read_forecast, write_forecast
from reports.forecast_terminal import print_forecast
from reports.kill_matrix import KillMatrix
from reports.kill_matrix_store import KILL_MATRIX_FILE, read_kill_matrix, write_kill_matrix
from reports.kill_matrix_terminal import print_kill_matrix
from reports.preflight_record import PreflightRecord
from reports.preflight_store import PREFLIGHT_FILE, read_preflight, write_preflight
from reports.preflight_terminal import print_preflight
from reports.record import Record
from reports.sharded_record import ShardedRecord
from reports.sharded_store import SHARDED_FILE, read_sharded, write_sharded
from reports.sharded_terminal import print_sharded
from reports.store import RECORD_FILE, RecordError, parse_json, read_record, write_reports
from reports.terminal import print_record

Result = (
    Record | KillMatrix | DataReport | FamiliesRecord | ShardedRecord | CostRecord | PreflightRecord | ForecastRecord
)

_FILES = (
    FORECAST_FILE,
    RECORD_FILE,
    KILL_MATRIX_FILE,
    DATA_REPORT_FILE,
    FAMILIES_FILE,
    SHARDED_FILE,
    COST_FILE,
    PREFLIGHT_FILE,
)


def read_result(path: Path) -> Result:
    """Read a record of any kind that this program writes.

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
    if kind == "data-report":
        return read_data_report(path)
    if kind == "families":
        return read_families(path)
    if kind == "forecast":
        return read_forecast(path)
    if kind == "preflight":
        return read_preflight(path)
    if kind == "sharded":
        return read_sharded(path)
    if kind == "cost":
        return read_cost(path)
    raise RecordError(
        f"{path}: a {kind!r}; give a record of packparity check, a kill matrix of packparity faults, a report of "
        "packparity data, or one of packparity families, sharded, cost, preflight or forecast"
    )


def _file_in(folder: Path) -> Path:
    found = [folder / name for name in _FILES if (folder / name).exists()]
    if len(found) != 1:
        names = " and ".join(path.name for path in found) if found else f"none of {', '.join(_FILES)}"
        raise RecordError(f"{folder} holds {names}: name the file")
    return found[0]


def print_result(result: Result, console: Console) -> None:
    """Print a result as the command that made it does.

    Args:
        result: What to print.
        console: Where to.
    """
    if isinstance(result, Record):
        print_record(result, console)
    elif isinstance(result, KillMatrix):
        print_kill_matrix(result, console)
    elif isinstance(result, FamiliesRecord):
        print_families(result, console)
    elif isinstance(result, ForecastRecord):
        print_forecast(result, console)
    elif isinstance(result, PreflightRecord):
        print_preflight(result, console)
    elif isinstance(result, CostRecord):
        print_cost(result, console)
    elif isinstance(result, ShardedRecord):
        print_sharded(result, console)
    else:
        print_data_report(result, console)


def write_result(result: Result, out_dir: Path) -> tuple[Path, ...]:
    """Write a result as the command that made it does: JSON, Markdown, HTML, and JUnit XML where there are verdicts.

    Args:
        result: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    if isinstance(result, Record):
        return write_reports(result, out_dir)
    if isinstance(result, KillMatrix):
        return write_kill_matrix(result, out_dir)
    if isinstance(result, FamiliesRecord):
        return write_families(result, out_dir)
    if isinstance(result, ForecastRecord):
        return write_forecast(result, out_dir)
    if isinstance(result, PreflightRecord):
        return write_preflight(result, out_dir)
    if isinstance(result, CostRecord):
        return write_cost(result, out_dir)
    if isinstance(result, ShardedRecord):
        return write_sharded(result, out_dir)
    return write_data_report(result, out_dir)
