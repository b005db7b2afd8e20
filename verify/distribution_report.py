"""The report of ``packparity simulate``: what packing saves on lengths that are drawn from a named distribution."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from reports.data_record import DataReport
from verify.data.length_statistics import LengthHistogram
from verify.data.survey import MOST_COUNTED
from verify.packing_plan.advice import advise
from verify.packing_plan.costs import FlopPrices, GroupLengths
from verify.packing_plan.decoder_sizes import read_decoder_sizes
from verify.packing_plan.distributions import named_distribution
from verify.packing_plan.records import (
    PlanOptions,
    algebra_record,
    default_row_limit,
    lengths_record,
    simulation_record,
)
from verify.packing_plan.totals import MOST_GROUPS, NOTHING, GroupArrays, Totals, totals_of
from verify.tool_version import tool_version


def report_distribution(
    name: str,
    plan: PlanOptions,
    *,
    num_groups: int,
    responses: tuple[int, int],
    command: Sequence[str],
    started: float,
) -> DataReport:
    """Draw lengths from a named distribution and predict.

    Args:
        name: Of the distribution.
        plan: What the simulation takes.
        num_groups: Groups to draw.
        responses: Fewest and most responses of a group.
        command: The command line, for the record.
        started: ``time.perf_counter()`` when the program began.

    Returns:
        The report.

    Raises:
        ValueError: An unknown distribution or model, or a row limit below the longest group.
    """
    distribution, model = named_distribution(name), read_decoder_sizes(plan.model)
    draw_started = time.perf_counter()
    groups = distribution.draw(num_groups, plan.seed, responses)
    draw_s = time.perf_counter() - draw_started
    longest = max(group.packed for group in groups)
    row_limit = plan.row_limit or default_row_limit(longest)
    if row_limit < longest:
        raise ValueError(
            f"--row-limit {row_limit}: the longest of {num_groups} groups drawn from {name} takes {longest} tokens, "
            f"and a group is never cut or split; give {longest} at least"
        )
    prices = FlopPrices.of(model.sizes)
    totals, histograms = _sums(groups)
    algebra = algebra_record(totals, prices)
    simulation = simulation_record(groups, longest, model.name, prices, plan, row_limit)
    few, many = responses
    drawn = f"{few} responses" if few == many else f"{few} to {many} responses"
    return DataReport(
        tool_version=tool_version(),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        file=name,
        sha256=None,
        shape=None,
        unit="tokens",
        unit_note=f"tokens, drawn with seed {plan.seed}: prompt {distribution.prompt}; {drawn} a group, each "
        f"{distribution.response}",
        tokenizer=None,
        model=model.name,
        max_length=None,
        max_tokens=None,
        rows_read=num_groups,
        rows_usable=num_groups,
        most_broken_share=0.0,
        violations=[],
        remarks=[],
        unchecked=[],
        lengths=[lengths_record(part, histogram) for part, histogram in histograms.items()],
        file_order=None,
        algebra=algebra,
        simulation=simulation,
        advice=advise(num_groups, num_groups, 0.0, algebra, simulation, model.name),
        notes=[],
        read_s=draw_s,
        total_s=time.perf_counter() - started,
    )


def _sums(groups: Sequence[GroupLengths]) -> tuple[Mapping[int, Totals], Mapping[str, LengthHistogram]]:
    """Costs by number of responses, and lengths by part."""
    totals: dict[int, Totals] = {}
    by_count: dict[int, list[GroupLengths]] = {}
    for group in groups:
        by_count.setdefault(min(len(group.responses), MOST_COUNTED), []).append(group)
    for count, alike in sorted(by_count.items()):
        for at in range(0, len(alike), MOST_GROUPS):
            batch = alike[at : at + MOST_GROUPS]
            arrays = GroupArrays.of([group.prompt for group in batch], [group.responses for group in batch])
            totals[count] = totals.get(count, NOTHING) + totals_of(arrays)
    lengths = {
        "prompt": [group.prompt for group in groups],
        "response": [length for group in groups for length in group.responses],
        "group": [group.packed for group in groups],
    }
    histograms = {part: LengthHistogram() for part in lengths}
    for part, values in lengths.items():
        histograms[part].add(np.array(values, dtype=np.int64))
    return totals, histograms
