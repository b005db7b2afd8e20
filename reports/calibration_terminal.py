"""A calibration on the terminal: the verdict, and one table of what matters."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.calibration import CalibrationRecord
from reports.words import NONE, number, percent


def print_calibration(record: CalibrationRecord, console: Console) -> None:
    """Print a summary.

    Args:
        record: The calibration.
        console: Where to.
    """
    table = Table(
        title="error / budget", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in ("dtype", "results", "honest: median", "99.9 %", "largest", "faults: smallest", "1 %", "median"):
        table.add_column(column, justify="left" if column == "dtype" else "right")
    for dtype in record.dtypes:
        honest, fault = record.distribution("honest", dtype), record.distribution("fault", dtype)
        cells = [dtype, NONE if honest is None else f"{honest.num_values:,}"]
        cells += (
            [NONE] * 3
            if honest is None
            else [*(number(honest.quantile(q)) for q in (0.5, 0.999)), number(honest.outermost)]
        )
        cells += (
            [NONE] * 3
            if fault is None
            else [number(fault.outermost), *(number(fault.quantile(q)) for q in (0.01, 0.5))]
        )
        table.add_row(*cells)
    console.print(table)
    for bound in record.bounds:
        if bound.dtype == "all":
            rate = percent(bound.upper_95)
            line = f"{bound.with_alarm} of {bound.num_runs:,} runs had a false alarm: below {rate} of {bound.what}"
            console.print(Text(line), soft_wrap=True)
    for reason in record.reasons:
        console.print(Text(reason), soft_wrap=True)
    console.print(
        Text(
            f"{record.verdict}: {record.num_cases:,} random cases of {record.case_kind} in "
            f"{record.num_batches:,} runs of the gate"
        ),
        soft_wrap=True,
    )
