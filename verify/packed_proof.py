"""Did the packed path run? Judged over a whole run from token slots that were counted, not from what a subject says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.gate import Result
from verify.subject import Subject, layout_of, owns_loss
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
        slots: Token slots fed in policy passes.
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
            observed = [r for r in own if r.forward_calls or r.judgements]
            slots, pairwise = sum(r.slots for r in observed), sum(r.pairwise_slots for r in observed)
            doubts = _doubts(subject, observed, slots, pairwise) if observed else []
            summaries.append(
                Summary(
                    subject=subject.name,
                    dtype=dtype,
                    verdict=fold([*(r.verdict for r in own), *([Verdict.INCONCLUSIVE] if doubts else [])]),
                    reasons=tuple(doubts),
                    results=own,
                    slots=slots,
                    pairwise_slots=pairwise,
                )
            )
    return tuple(summaries)


def _doubts(subject: Subject, observed: Sequence[Result], slots: int, pairwise: int) -> list[str]:
    if layout_of(subject) != "packed":
        return []
    doubts = []
    if slots == 0:
        doubts.append("no token passed the model's embedding: that a packed path ran cannot be shown")
    elif slots >= pairwise:
        doubts.append(
            f"says packed, but fed {slots} token slots where unpacked rows feed {pairwise}: the packed path did not run"
        )
    if owns_loss(subject):
        loss_slots = sum(r.loss_slots or 0 for r in observed)
        if loss_slots >= 2 * pairwise:  # policy and reference pass
            doubts.append(
                f"its own loss fed {loss_slots} token slots; unpacked policy and reference passes feed {2 * pairwise}"
            )
        if loss_slots == 0:
            doubts.append("its own loss fed no token through the model's embedding")
    return doubts
