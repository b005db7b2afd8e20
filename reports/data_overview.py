"""What a survey of a preference file says, as sections of text and tables that every rendering shows alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.data_record import Advice, CountedRowsRecord, DataReport, PlanRecord
from reports.words import NONE, count, number, plural

HEADLINES: dict[Advice, str] = {
    "pays": "Packing pays",
    "does-not-pay": "Packing does not pay",
    "cannot-be-used": "Packing cannot be used",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a table under it, and what has to be said about it.

    Args:
        title: The heading.
        header: Headings of the columns; the first column names the row, the others hold numbers.
        rows: Cells, as text.
        lines: Remarks below the table.
        num_wide_only: How many columns, the last ones, a narrow page leaves out.
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    num_wide_only: int = 0


def headline(report: DataReport) -> str:
    """The recommendation in a few words."""
    return HEADLINES[report.advice.advice]


def summary(report: DataReport) -> str:
    """One line on the file and how it was read."""
    if report.shape is None:
        return f"{report.file}: {plural(report.rows_usable, 'group')}; lengths in {report.unit_note}"
    broken = report.rows_read - report.rows_usable
    return (
        f"{report.file}: {plural(report.rows_read, 'row')} of shape {report.shape}, "
        f"{count(report.rows_usable)} usable, {count(broken)} not; lengths in {report.unit_note}; "
        f"{count(round(report.rows_per_s))} rows/s"
    )


def sections(report: DataReport) -> tuple[Section, ...]:
    """Everything that the report says after its headline.

    Args:
        report: The report.

    Returns:
        Sections in reading order; none of them empty.
    """
    parts = (
        _broken(report),
        _lengths(report),
        _algebra(report),
        _by_responses(report),
        _prefix_trees(report),
        _plans(report),
        _against_plain(report),
        _steps(report),
        _row_limits(report),
        _order(report),
    )
    notes = (*report.unchecked, *report.notes)
    return tuple(part for part in (*parts, Section("Notes", lines=notes)) if part.rows or part.lines)


def _broken(report: DataReport) -> Section:
    lines = [*_counted(report.violations, "cannot be packed"), *_counted(report.remarks, "can be packed")]
    return Section("Rows that need attention", lines=tuple(lines))


def _counted(records: Sequence[CountedRowsRecord], effect: str) -> Iterable[str]:
    for record in records:
        rows, first = plural(record.rows, "row"), "; ".join(record.examples)
        yield f"{record.name}, {rows}, {effect}. {record.meaning}. First: {first}"


def _lengths(report: DataReport) -> Section:
    if not report.lengths:
        return Section("Lengths")
    percents = list(report.lengths[0].quantiles)
    header = ("part", "mean", "shortest", *(f"{percent} %" for percent in percents), "longest")
    rows = tuple(
        (
            f"{report.noun}, packed" if part.part == "group" else part.part,
            count(round(part.mean)),
            count(part.shortest),
            *(count(part.quantiles[percent]) for percent in percents),
            count(part.longest),
        )
        for part in report.lengths
    )
    return Section(f"Lengths in {report.unit}", header, rows, ("a percentile is the upper end of its bin",))


def _algebra(report: DataReport) -> Section:
    algebra = report.algebra
    if algebra is None:
        return Section("Sharing prompts, without padding")
    flops = (
        ("not predicted: attention needs token counts (--tokenizer, or --chars-per-token)",)
        if algebra.flop_ratio is None
        else ()
    )
    rows = (
        (report.unit, count(algebra.tokens_unpacked), count(algebra.tokens_packed), number(algebra.token_ratio)),
        (
            "attention pairs",
            count(algebra.attention_pairs_unpacked),
            count(algebra.attention_pairs_packed),
            number(algebra.attention_pairs_packed / algebra.attention_pairs_unpacked),
        ),
        (f"forward FLOPs, {report.model}", NONE, NONE, number(algebra.flop_ratio)),
        ("memory of activations (packed slots / padded slots)", NONE, NONE, number(algebra.memory_ratio)),
        ("cost by Eq. 1", count(algebra.eq1_unpacked), count(algebra.eq1_packed), number(algebra.eq1_ratio)),
    )
    lines = (
        f"further copies of prompts are {algebra.shared_share:.1%} of the unpacked {report.unit}",
        f"Preference Packing's Eq. 1 calls packing cheaper for {algebra.eq1_share:.1%} of the {report.noun}s: it "
        "counts dense attention over padded sequences and no linear layers; a branch mask never computes more than "
        "unpacked rows",
        *(f"FLOPs are {line}" for line in flops),
    )
    return Section("Sharing prompts, without padding", ("", "unpacked", "packed", "packed / unpacked"), rows, lines)


def _by_responses(report: DataReport) -> Section:
    """Packed / unpacked by number of responses, the exact algebra and Eq. 1 side by side."""
    if report.algebra is None or report.noun == "pair":
        return Section("By number of responses")
    rows = tuple(
        (
            f"{part.responses} or more" if part.or_more else str(part.responses),
            count(part.groups),
            number(part.token_ratio),
            number(part.attention_ratio),
            number(part.flop_ratio),
            number(part.eq1_ratio),
            f"{part.eq1_share:.1%}",
        )
        for part in report.algebra.by_responses
    )
    header = ("responses", "groups", report.unit, "attention pairs", "FLOPs", "cost by Eq. 1", "Eq. 1 packs")
    return Section("By number of responses, packed / unpacked", header, rows)


def _prefix_trees(report: DataReport) -> Section:
    """What prefix trees hold, counted on tokens."""
    trees = report.prefix_trees
    if trees is None:
        return Section("Prefix trees")
    alone = trees.ways[0]
    rows = tuple(
        (
            way.way,
            count(way.tokens),
            count(way.attention_pairs),
            number(way.tokens / alone.tokens),
            number(way.attention_pairs / alone.attention_pairs),
            number(way.flop_ratio),
        )
        for way in trees.ways
    )
    lines = (
        f"counted, not predicted, on the tokens of {count(trees.groups_sampled)} {report.noun}s drawn evenly from the "
        f"file (seed {trees.seed}), without padding: a tree computes each run of first tokens once, whichever of its "
        "sequences begin with it, and each of its tokens attends to itself and all before it on its own path",
        f"rows of several: whole {report.noun}s, shuffled, up to {count(trees.row_limit)} tokens with shared prompts; "
        "what the layout prefix-tree feeds in such rows",
        f"{report.noun}s that begin alike can share more in the whole file than in a sample of it",
    )
    header = ("", "tokens", "attention pairs", "tokens / alone", "pairs / alone", "FLOPs / alone")
    return Section("Prefix trees, counted on sampled rows", header, rows, lines)


_FILLING, _STEP = slice(0, 5), slice(5, None)
"""Columns of a plan: how full rows are, and what a step holds."""


def _plan_header(noun: str) -> tuple[str, ...]:
    return (
        "speed-up",
        "filled",
        "waiting",
        f"{noun}s/row",
        "peak slots",
        f"{noun}s/step",
        "tokens/step",
        "padding/step",
    )


def _plan_cells(plan: PlanRecord) -> tuple[str, ...]:
    return (
        f"{plan.speed_up:.2f}",
        f"{plan.token_utilisation:.1%}",
        f"{plan.waiting_share:.1%}",
        number(plan.examples_per_row),
        count(plan.peak_slots),
        number(plan.examples_per_step),
        count(round(plan.useful_tokens_per_step)),
        count(round(plan.padded_tokens_per_step)),
    )


def _plans(report: DataReport) -> Section:
    simulation = report.simulation
    if simulation is None:
        return Section("Ways to fill rows")
    rows = tuple((plan.plan, *_plan_cells(plan)[_FILLING]) for plan in simulation.plans)
    lines = (
        f"simulated: {count(simulation.groups_sampled)} sampled {report.noun}s (seed {simulation.seed}), "
        "a short sample repeated until it fills eight steps, "
        f"{plural(simulation.num_ranks, 'rank')}, {plural(simulation.groups_per_rank, report.noun)} per rank and step, "
        f"rows of {count(simulation.row_limit)} {report.unit} in sequence packing; shuffled before anything is packed",
        f"time: {simulation.time_is}; a step lasts as long as its slowest rank",
        "filled: slots that hold a token; waiting: share of the ranks' time; peak slots: most of one rank in a step",
    )
    return Section("Ways to fill rows, predicted", ("plan", *_plan_header(report.noun)[_FILLING]), rows, lines)


def _steps(report: DataReport) -> Section:
    if report.simulation is None:
        return Section("What a step holds")
    rows = tuple((plan.plan, *_plan_cells(plan)[_STEP]) for plan in report.simulation.plans)
    return Section("What a step of all ranks holds, predicted", ("plan", *_plan_header(report.noun)[_STEP]), rows)


def _against_plain(report: DataReport) -> Section:
    """Each plan's cost of a group over that of padded sequences."""
    title = "Cost of each way / cost of padded sequences, predicted"
    if report.simulation is None:
        return Section(title)
    plain = next(plan for plan in report.simulation.plans if plan.plan == "plain")
    has_flops = report.algebra is not None and report.algebra.flop_ratio is not None
    rows = tuple(
        (
            plan.plan,
            number(plan.slots_per_example / plain.slots_per_example),
            number(plan.flops_per_example / plain.flops_per_example) if has_flops else NONE,
            number(plan.peak_slots / plain.peak_slots),
            number(1 / plan.speed_up),
        )
        for plan in report.simulation.plans
    )
    return Section(
        title,
        ("plan", "slots", "FLOPs", "memory", "time"),
        rows,
        ("memory: most slots of one rank in a step, which activations grow with; time: with waiting for the slowest",),
    )


def _row_limits(report: DataReport) -> Section:
    if report.simulation is None:
        return Section("Row limits")
    rows = tuple(
        (f"{count(plan.row_limit or 0)}, {plan.plan.rpartition(', prompts ')[2]}", *_plan_cells(plan))
        for plan in report.simulation.by_row_limit
    )
    return Section(
        "Sequence packing by row limit, prompts repeated or shared, predicted",
        ("row limit", *_plan_header(report.noun)),
        rows,
        num_wide_only=3,
    )


def _order(report: DataReport) -> Section:
    lines = [*_neighbours(report), *_rows_in_order(report)]
    return Section("Sampling order", lines=tuple(lines))


def _neighbours(report: DataReport) -> Iterable[str]:
    """What the file's own order is like."""
    order = report.file_order
    if order is None:
        return
    if order.sources is not None:
        yield (
            f"{order.sources.found:.1%} of neighbours in the file come from the same of {count(order.num_sources)} "
            f"sources, {order.sources.random:.1%} would in random order: "
            + ("the file is sorted by source" if order.sources.follows else "it is not sorted by source")
        )
    if order.lengths is not None:
        yield (
            f"lengths of neighbours in the file correlate by {order.lengths.found:+.2f}: "
            + ("it follows an order of lengths" if order.lengths.follows else "no order of lengths")
        )
    if order.follows:
        yield (
            "shuffle before packing, and record the seed: rows and steps in the order of the file would train on one "
            "kind of example at a time"
        )
    if order.repeated_prompts:
        yield (
            f"{plural(order.repeated_prompts, 'row')} with the prompt of the row before: as groups of more responses "
            "they would share it too, which the predictions leave out"
        )


def _rows_in_order(report: DataReport) -> Iterable[str]:
    """Whether rows of sequence packing follow the order."""
    order = report.simulation.order if report.simulation else None
    if order is None:
        return
    where = "the file" if report.shape is not None else "the draws"
    found = f"follow the order of {where}" if order.follows_file_order else f"do not follow the order of {where}"
    yield (
        f"rows of sequence packing, filled after a shuffle with seed {order.seed}, {found}: {report.noun}s in one row "
        f"stand {number(order.mean_distance)} places apart in the sample, {number(order.random_distance)} in rows "
        f"filled at random ({order.standard_deviations:+.1f} standard deviations; without the shuffle "
        f"{order.unshuffled_standard_deviations:+.1f})"
    )
