"""What the renderings show, worked out once from the record so that no two of them can disagree.

Ratios come from the judgements themselves: measured / budget, where NaN counts as worse than anything.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.record import Record
from reports.record_names import NOT_A_PASS, QuantityName
from reports.record_results import JudgementRecord, ResultRecord, SubjectSummary
from reports.words import NO_REASON, QUANTITIES, against, at, budget_name, count, listed, number, plural, setting

FAMILIES: dict[str, tuple[QuantityName, ...]] = {
    "log-probs": ("per_token_logps",),
    "ref log-probs": ("ref_per_token_logps",),
    "rewards, margins, loss": ("rewards", "margins", "router_probs", "router_shares", "loss"),
    "gradients": ("gradients",),
}
"""The columns of a summary: the quantities that each of them covers."""

_HOW_MANY_TENSORS = re.compile(r"\((\d+ of \d+ (?:LoRA )?tensors)\)$")

WHOLE_CASE = "the whole case"
"""What was left out where a subject was not judged on a case at all."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A judgement by how much of its budget it used."""

    value: float
    judgement: JudgementRecord
    case: str


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One subject in one dtype.

    Args:
        summary: As recorded.
        num_compared: Values compared over all cases.
        worst: The largest ratio in each of ``FAMILIES``, or None where nothing was measured.
    """

    summary: SubjectSummary
    num_compared: int
    worst: tuple[Ratio | None, ...]


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """What a subject was not asked for one reason.

    Args:
        subject: Name.
        what: ``WHOLE_CASE``, or the quantities.
        reason: Why.
        cases: Names of the cases concerned.
        dtypes: In which dtypes.
    """

    subject: str
    what: str
    reason: str
    cases: tuple[str, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One entry of the tolerance policy.

    Args:
        name: Path in the policy, e.g. "float32 / gradients".
        values: Settings with their values, e.g. "factor 2, floor 1.2e-7".
        rationale: Why these values; "" where the policy does not say.
    """

    name: str
    values: str
    rationale: str


def ratio(judgement: JudgementRecord) -> float | None:
    """Share of the budget that was used: measured / budget.

    Args:
        judgement: A judgement.

    Returns:
        0 where nothing differs, infinity where something differs and nothing may, NaN where either number is NaN or
        both are infinite, None where there is no number.
    """
    if judgement.measured is None or judgement.budget is None:
        return None
    if math.isnan(judgement.measured):
        return math.nan
    if judgement.budget == 0:
        return 0.0 if judgement.measured == 0 else math.inf
    return judgement.measured / judgement.budget


def worst(results: Iterable[ResultRecord], quantities: Sequence[QuantityName]) -> Ratio | None:
    """The judgement that used most of its budget; NaN is worst.

    Args:
        results: Where to look.
        quantities: Which quantities to look at.

    Returns:
        The first of the worst, or None where none of the quantities was measured.
    """
    found = [
        Ratio(value, judgement, result.case)
        for result in results
        for judgement in result.judgements
        if judgement.quantity in quantities and (value := ratio(judgement)) is not None
    ]
    return max(found, key=lambda item: (math.isnan(item.value), item.value), default=None)


def summary_rows(record: Record) -> tuple[SummaryRow, ...]:
    """One row for each subject and dtype, in the order of the record."""
    rows = []
    for summary in record.summaries:
        own = [r for r in record.results if (r.subject, r.dtype) == (summary.subject, summary.dtype)]
        families = tuple(worst(own, quantities) for quantities in FAMILIES.values())
        rows.append(SummaryRow(summary, sum(result.num_compared for result in own), families))
    return tuple(rows)


def needs_attention(record: Record) -> tuple[ResultRecord, ...]:
    """The results that are ERROR, FAIL or INCONCLUSIVE, worst verdict first."""
    found = [result for result in record.results if result.verdict in NOT_A_PASS]
    return tuple(sorted(found, key=lambda result: NOT_A_PASS.index(result.verdict)))


def broken(result: ResultRecord) -> tuple[JudgementRecord, ...]:
    """The judgements of a result that are ERROR, FAIL or INCONCLUSIVE."""
    return tuple(judgement for judgement in result.judgements if judgement.verdict in NOT_A_PASS)


def speaks_for_itself(judgement: JudgementRecord) -> bool:
    """Whether the numbers say all that the reason of a judgement could: over budget, by how much and where."""
    value = ratio(judgement)
    return judgement.verdict == "FAIL" and value is not None and not value <= 1 and bool(judgement.worst)


def finding(judgement: JudgementRecord) -> str:
    """What is wrong, each fact once: quantity, to what, measured, budget, by how much, where, and the values there.

    Args:
        judgement: One that is not a PASS.

    Returns:
        One line, e.g. "log-probs, to the oracle, max: 1.61 against a budget of 1.84e-5 nats, 8.77e4x; worst at group 0,
        rejected, token 8: actual -8.81266212, expected -7.19851729"; with the reason where the numbers do not say it.
    """
    used = ratio(judgement)
    # Where measured or budget is not finite, neither is the share, and it is no news.
    share = f", {number(used)}x" if used is not None and 1 < used < math.inf else ""
    parts = [f"{budget_name(judgement)}: {against(judgement)}{share}"]
    if judgement.reason and not speaks_for_itself(judgement):
        parts.append(judgement.reason)
    elif tensors := _HOW_MANY_TENSORS.search(judgement.reason):
        parts[0] += f" in {tensors[1]}"  # the numbers are those of the worst tensor alone
    parts += [f"worst at {at(place)}" for place in judgement.worst[:1]]
    return "; ".join(parts)


def run_reasons(record: Record) -> list[str]:
    """The reasons of a run, unless a result, or a summary with a reason, already shows its verdict."""
    shown = {result.verdict for result in record.results} | {s.verdict for s in record.summaries if s.reasons}
    return [] if record.verdict in shown else list(record.reasons)


def own_reasons(result: ResultRecord) -> list[str]:
    """The reasons of a result that none of its judgements gives; those are shown beside their numbers."""
    given = {judgement.reason for judgement in result.judgements}
    return [reason for reason in result.reasons if reason not in given]


def not_applicable(record: Record) -> tuple[NotApplicable, ...]:
    """What was left out, with its reason: whole cases, and single quantities of cases that were judged."""
    cases: dict[tuple[str, str, str, str], list[str]] = {}
    for result in record.results:
        for what, reason in _left_out(result):
            cases.setdefault((result.subject, result.dtype, what, reason), []).append(result.case)
    dtypes: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (subject, dtype, what, reason), names in cases.items():
        dtypes.setdefault((subject, what, reason, tuple(names)), []).append(dtype)
    return tuple(NotApplicable(*key, dtypes=tuple(names)) for key, names in dtypes.items())


def _left_out(result: ResultRecord) -> Iterable[tuple[str, str]]:
    if result.verdict == "NOT_APPLICABLE":
        yield WHOLE_CASE, "; ".join(result.reasons) or NO_REASON
        return
    quantities: dict[str, dict[str, None]] = {}
    for judgement in result.judgements:
        if judgement.verdict == "NOT_APPLICABLE":
            quantities.setdefault(judgement.reason or NO_REASON, {})[QUANTITIES[judgement.quantity]] = None
    for reason, names in quantities.items():
        yield ", ".join(names), reason


def closing_line(record: Record) -> str:
    """What a reader should take away: values compared, how near the nearest came to its budget, what was not judged."""
    compared = f"{plural(record.num_compared, 'value')} compared in {plural(len(record.results), 'result')}"
    gaps = not_judged(record)
    return "; ".join(
        [
            compared,
            _headroom(record),
            *([f"NOT judged: {', '.join(gaps)}"] if gaps else []),
            *without_logps(record),
            *without_oracle(record),
        ]
    )


def without_logps(record: Record) -> list[str]:
    """That cases of reward models say nothing about log-probs, where some passed."""
    of_rewards = {case.name for case in record.cases if case.objective == "reward-model"}
    judged = {result.case for result in record.results if result.num_compared} & of_rewards
    if not judged:
        return []
    return [f"of {plural(len(judged), 'case')} rewards were judged, NOT log-probs: a reward model has none"]


def without_oracle(record: Record) -> list[str]:
    """That nothing independent of a model's own code was there to compare with, where it was not."""
    alone = "judged against the unpacked path alone, in float64 in place of the oracle"
    models = {"": record.model, ", which cases with images were run on": record.model_with_images}
    return [
        f"no oracle knows a model {model.config.get('model_type', 'of this type')}{what}: {alone}"
        for what, model in models.items()
        if model is not None and model.expected_by != "oracle"
    ]


def _headroom(record: Record) -> str:
    nearest = worst(record.results, tuple(QUANTITIES))
    if nearest is None:
        return "nothing was measured against a budget"
    if math.isnan(nearest.value):
        return "worst measured / budget NaN: no headroom"
    if nearest.value > 1:
        return f"worst measured / budget {number(nearest.value)}: over budget"
    headroom = f"{number(1 / nearest.value)}x" if nearest.value > 0 else "unlimited, nothing differs"
    return f"worst measured / budget {number(nearest.value)} (headroom {headroom})"


_GAPS_NAMED = 3
"""Gaps of whole cases that the closing line spells out."""


def not_judged(record: Record) -> tuple[str, ...]:
    """What a verdict does not speak of, in as few words as name it; `not_applicable` gives the reasons.

    Args:
        record: The record.

    Returns:
        Single quantities first, then whole cases; subjects with the same gap together: "gradients of flex in all
        cases", "dense-sdpa/row-per-group and split/row-per-group in 17 of 19 cases". A dtype is named where the other
        dtypes of the subject do not have the gap. Quantities are missing from the cases that a subject was judged on.
        Where there are more gaps of whole cases than anyone reads, how many subjects have one.
    """
    cases: defaultdict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)  # by subject, what, dtype
    for item in not_applicable(record):
        for dtype in item.dtypes:
            cases[item.subject, item.what, dtype].update(dict.fromkeys(item.cases))
    dtypes: defaultdict[tuple[str, str, frozenset[str]], list[str]] = defaultdict(list)
    for (subject, what, dtype), names in cases.items():
        dtypes[subject, what, frozenset(names)].append(dtype)
    subjects: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for (subject, what, gap), found in dtypes.items():
        own = [result for result in record.results if result.subject == subject]
        some = f" ({', '.join(found)})" if {result.dtype for result in own} > set(found) else ""
        judged = [result for result in own if what == WHOLE_CASE or result.verdict != "NOT_APPLICABLE"]
        total = len({result.case for result in judged})
        which = "all cases" if len(gap) == total > 1 else f"{len(gap)} of {plural(total, 'case')}"
        subjects[what, f"{which}{some}"].append(subject)
    quantities = [
        f"{what} of {listed(names)} in {where}" for (what, where), names in subjects.items() if what != WHOLE_CASE
    ]
    whole = [f"{listed(names)} in {where}" for (what, where), names in subjects.items() if what == WHOLE_CASE]
    if len(whole) > _GAPS_NAMED:
        with_gap = {name for (what, _), names in subjects.items() if what == WHOLE_CASE for name in names}
        whole = [f"{plural(len(with_gap), 'subject')} in some cases, for the reasons given"]
    return (*quantities, *whole)


def counts_line(counts: dict[str, int], separator: str = ", ") -> str:
    """The counts that are not zero, each with its verdict in full, e.g. "18 PASS, 1 FAIL"."""
    return separator.join(f"{count(amount)} {verdict}" for verdict, amount in counts.items() if amount) or "none"


def slots_ratio(summary: SubjectSummary) -> float | None:
    """Slots fed, as a share of what one unpadded row per completion feeds; None where nothing was fed."""
    return summary.slots / summary.pairwise_slots if summary.pairwise_slots else None


def policy_rows(policy: dict[str, object]) -> tuple[PolicyRow, ...]:
    """The policy as a table: one row for each object in it that holds values.

    Args:
        policy: As recorded. The text under a key "rationale" explains the values beside it.

    Returns:
        Rows in the order of the policy.
    """
    return tuple(_policy_rows("", policy))


def _policy_rows(name: str, node: dict[str, object]) -> Iterable[PolicyRow]:
    nested: list[tuple[str, dict[str, object]]] = []
    values: list[str] = []
    rationale = ""
    for key, value in node.items():
        path = f"{name} / {key}" if name else key
        if key == "rationale":
            rationale = setting(value)
        elif isinstance(value, dict):
            nested.append((path, value))
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            nested.extend((f"{path} {index}", item) for index, item in enumerate(value, 1))
        else:
            values.append(f"{key} {setting(value)}")
    if values or rationale:
        yield PolicyRow(name or "policy", ", ".join(values), rationale)
    for inner_name, inner in nested:
        yield from _policy_rows(inner_name, inner)
