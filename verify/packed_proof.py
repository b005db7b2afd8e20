"""Did the packed path run? Judged over a whole run from token slots that were counted, not from what a subject says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.gate import Result
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

    A subject that says packed and feeds, over the run, as many slots as the pairwise layout is INCONCLUSIVE: a naive
    comparison would hold padded rows against padded rows and pass. Single cases may save nothing (one-token prompts).

    Args:
        results: All results of the run.
        subjects: The subjects, for what they claim.
        dtypes: The dtypes of the run.

    Returns:
        One summary for each dtype and subject.
    """
    summaries = []
    for dtype in dtypes:
        for subject in subjects:
            own = tuple(r for r in results if r.subject == subject.name and r.dtype == dtype)
            totals = _totals(own)
            doubts = [] if layout_of(subject) == "unpacked" else [d for t in totals if (d := _doubt(t))]
            most = max(totals, key=lambda total: total.slots / total.pairwise_slots, default=_Total("", 0, 0, 0))
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
class _Total:
    phase: str
    slots: int
    slots_with_grad: int
    pairwise_slots: int


def _totals(results: Sequence[Result]) -> list[_Total]:
    totals: dict[str, _Total] = {}
    for result in results:
        for phase in result.phases:
            known = totals.get(phase.phase, _Total(phase.phase, 0, 0, 0))
            totals[phase.phase] = _Total(
                phase.phase,
                known.slots + phase.count.slots,
                known.slots_with_grad + phase.count.slots_with_grad,
                known.pairwise_slots + result.pairwise_slots,
            )
    return list(totals.values())


def _doubt(total: _Total) -> str:
    if total.slots == 0:
        return f"no token passed the model's embedding in {total.phase}: that a packed path ran cannot be shown"
    # A padded policy pass may not hide behind a packed reference pass. Without a backward pass they look alike.
    of_policy, of_reference = total.slots_with_grad, total.slots - total.slots_with_grad
    passes = [(total.phase, total.slots, total.pairwise_slots)]
    if of_policy:
        passes += [
            (f"the policy pass of {total.phase}", of_policy, total.pairwise_slots // 2),
            (f"the reference pass of {total.phase}", of_reference, total.pairwise_slots // 2),
        ]
    for name, slots, unpacked in passes:
        if slots >= unpacked:
            return (
                f"says packed, but {name} fed {slots} token slots where unpacked rows feed {unpacked}: "
                "the packed path did not run"
            )
    return ""
