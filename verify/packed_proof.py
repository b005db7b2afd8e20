"""Did the packed path run? Judged over a whole run from token slots that were counted, not from what a subject says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from verify.gate import Result
from verify.policy_passes import FedPass
from verify.slots import SlotCount
from verify.subject import Subject, layout_of
from verify.verdict import Verdict, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One subject in one dtype, over all cases.

    Args:
        subject: Name of the subject.
        dtype: Name of the dtype.
        verdict: All results and the proof that the packed path ran, folded.
        reasons: Why it is not PASS, beyond the reasons of single results.
        results: Its results.
        slots: Token slots fed in policy and reference passes, in the phase that saved least.
        pairwise_slots: What one unpadded row per completion would have fed on the same cases.
    """

    subject: str
    dtype: str
    verdict: Verdict
    reasons: tuple[str, ...]
    results: tuple[Result, ...]
    slots: int
    pairwise_slots: int


def summarise(results: Sequence[Result], subjects: Sequence[Subject], dtypes: Sequence[str]) -> tuple[Summary, ...]:
    """Fold the results of each subject and dtype, and judge the proof that the packed path ran.

    A subject that says packed and feeds, over the run, as many slots in as many rows as the pairwise layout is
    INCONCLUSIVE: a naive comparison would hold padded rows against padded rows and pass. Single cases may save nothing
    (one-token prompts). Sequence packing shares no prompt: it feeds as many slots, none of them padding, in fewer rows;
    of supervised examples fewer rows are all that is asked.

    Args:
        results: All results of the run.
        subjects: The subjects, for what they claim.
        dtypes: The dtypes of the run.

    Returns:
        One summary for each dtype and subject.
    """
    of: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        of.setdefault((result.subject, result.dtype), []).append(result)
    summaries = []
    for dtype in dtypes:
        for subject in subjects:
            own = tuple(of.get((subject.name, dtype), ()))
            totals = _totals(own)
            doubts = [] if layout_of(subject) == "unpacked" else _doubts(own)
            fed = [total.both for total in totals]
            most = max(fed, key=lambda one: one.slots / one.pairwise_slots, default=_Fed(""))
            summaries.append(
                Summary(
                    subject=subject.name,
                    dtype=dtype,
                    verdict=fold([*(r.verdict for r in own), *([Verdict.INCONCLUSIVE] if doubts else [])]),
                    reasons=tuple(doubts),
                    results=own,
                    slots=most.slots,
                    pairwise_slots=most.pairwise_slots,
                )
            )
    return tuple(summaries)


@dataclass(frozen=True, slots=True)
class _Fed:
    """Slots and rows of one pass over all cases, and what the pairwise layout would have fed."""

    what: str
    slots: int = 0
    rows: int = 0
    pairwise_slots: int = 0
    pairwise_rows: int = 0


@dataclass(frozen=True, slots=True)
class _Total:
    """One phase over all cases: both passes together, and the policy pass (that with gradients) alone.

    Beside the policy pass of a two-pass step stand others, without gradients, that find its coefficients or what is
    logged: they are none of both, and each saves by itself or not.
    """

    both: _Fed
    policy: _Fed
    first: tuple[_Fed, ...] = ()
    layer_slots: int = 0
    """Slots that passed the first decoder layer."""
    slots_again: int = 0
    """Slots that were fed once more within a backward pass."""

    @property
    def reference(self) -> _Fed:
        return _Fed(
            f"the reference pass of {self.both.what}",
            self.both.slots - self.policy.slots,
            self.both.rows - self.policy.rows,
            self.both.pairwise_slots - self.policy.pairwise_slots,
            self.both.pairwise_rows - self.policy.pairwise_rows,
        )


def _totals(results: Sequence[Result]) -> list[_Total]:
    totals: dict[str, _Total] = {}
    for result in results:
        for phase in result.phases:
            name, count = phase.phase, phase.count
            known = totals.get(name) or _Total(_Fed(name), _Fed(f"the policy pass of {name}"))
            slots, rows, passes = result.pairwise_slots, result.pairwise_rows, result.passes
            first_slots, first_rows = first_pass(count)
            totals[name] = _Total(
                _added(known.both, count.slots - first_slots, count.rows - first_rows, slots, rows),
                _added(
                    known.policy,
                    count.slots_with_grad,
                    count.rows_with_grad,
                    slots // passes,
                    rows // passes,
                ),
                _added_in_turn(known.first, _first_passes(count, slots // passes, rows // passes), name),
                known.layer_slots + count.layer_slots,
                known.slots_again + count.slots_again,
            )
    return list(totals.values())


def first_pass(count: SlotCount) -> tuple[int, int]:
    """Slots and rows of passes of the policy without gradients, beside one that has them or is taken for the policy's.

    Where nothing has gradients, the first of several passes is the policy's.
    """
    passes = _first_passes(count, 0, 0)
    return sum(each.slots for each in passes), sum(each.rows for each in passes)


def _first_passes(count: SlotCount, pairwise_slots: int, pairwise_rows: int) -> tuple[FedPass, ...]:
    """These passes one by one; all of them as one where they cannot be told apart, or save as much as one has to."""
    if not count.slots_with_grad:
        return count.tried[1:]
    if not count.slots_tried or (count.tried and count.slots_tried >= pairwise_slots):
        return count.tried
    return (FedPass(count.slots_tried, count.rows_tried, pairwise_slots, pairwise_rows),)


def _added_in_turn(known: tuple[_Fed, ...], passes: Sequence[FedPass], phase: str) -> tuple[_Fed, ...]:
    """What the first, the second, ... pass without gradients fed over all cases."""
    numbers = ("", *(f" {number}" for number in range(2, len(passes) + 1)))[len(known) : len(passes)]
    new = [_Fed(f"the policy pass{number} without gradients of {phase}") for number in numbers]
    return tuple(
        fed if each is None else _added(fed, each.slots, each.rows, each.pairwise_slots, each.pairwise_rows)
        for fed, each in zip_longest((*known, *new), passes)
    )


def _added(fed: _Fed, slots: int, rows: int, pairwise_slots: int, pairwise_rows: int) -> _Fed:
    return _Fed(
        fed.what,
        fed.slots + slots,
        fed.rows + rows,
        fed.pairwise_slots + pairwise_slots,
        fed.pairwise_rows + pairwise_rows,
    )


def _doubts(results: Sequence[Result]) -> list[str]:
    """Over the run, then in each case: a fallback in one case hides behind the savings of others.

    Examples of supervised fine-tuning need not share anything. They are packed where several are in a row; what a case
    of one example feeds says nothing, unless the run has no other.
    """
    preferences = [result for result in results if result.kind != "examples"]
    examples = [result for result in results if result.kind == "examples" and result.phases]
    over_the_run = [doubt for total in _totals(preferences) if (doubt := _doubt(total))]
    if not over_the_run:
        over_the_run = [
            f"case {result.case}: {doubt}"
            for result in preferences
            if result.can_save
            for total in _totals([result])
            if (doubt := _doubt(total))
        ]
    if examples and not any(result.can_save for result in results):
        return [*over_the_run, "says packed, but no case has several sequences: that a packed path ran cannot be shown"]
    return over_the_run + [
        f"case {result.case}: {doubt}"
        for result in examples
        for total in _totals([result])
        if (doubt := _doubt_of_examples(total) if result.can_save else _unseen(total))
    ]


def _unseen(total: _Total) -> str:
    """Why what passed the embedding is no account of what ran."""
    if total.both.slots == 0:
        return f"no token passed the model's embedding in {total.both.what}: that a packed path ran cannot be shown"
    fed_slots = total.both.slots + sum(first.slots for first in total.first)
    if total.layer_slots > fed_slots:
        return (
            f"says packed, but {total.both.what} fed {fed_slots} token slots to the embedding and "
            f"{total.layer_slots} to the first decoder layer: what passed the embedding is not all that ran"
        )
    of_policy = total.policy.slots + sum(first.slots for first in total.first) or total.both.slots
    if total.slots_again > of_policy:
        return (
            f"says packed, but the backward pass of {total.both.what} fed {total.slots_again} token slots where its "
            f"forward passes fed {of_policy}: checkpoints run again no more than what ran before"
        )
    return ""


def _doubt_of_examples(total: _Total) -> str:
    if unseen := _unseen(total):
        return unseen
    fed = total.both
    if fed.rows < fed.pairwise_rows or fed.slots < fed.pairwise_slots:
        return ""
    return (
        f"says packed, but {fed.what} fed {fed.rows} rows where there are {fed.pairwise_rows} sequences: the packed "
        "path did not run"
    )


def _doubt(total: _Total) -> str:
    if unseen := _unseen(total):
        return unseen
    # A padded policy pass may not hide behind a packed reference pass. Without a backward pass they look alike.
    reference = [total.reference] if total.reference.pairwise_slots else []  # a reward model has none
    beside = [total.policy, *reference] if total.policy.slots else []
    passes = [total.both, *beside, *total.first]
    for fed in passes:
        shares_rows = fed.slots == fed.pairwise_slots and fed.rows < fed.pairwise_rows
        if fed.slots >= fed.pairwise_slots and not shares_rows:
            return (
                f"says packed, but {fed.what} fed {fed.slots} token slots in {fed.rows} rows where unpacked rows feed "
                f"{fed.pairwise_slots} in {fed.pairwise_rows}: the packed path did not run, or "
                "padding costs more than sharing saves"
            )
    return ""
