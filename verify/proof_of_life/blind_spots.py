"""What a run would not have seen: kinds of faults for which it has no case, no option, no quantity or no precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reports.record import BlindSpotRecord
from reports.words import listed
from verify.cases import Case
from verify.faults.catalogue import FAULTS
from verify.faults.conditions import Condition
from verify.faults.fault import Fault
from verify.gate import GateRequest, Result
from verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class _Option:
    """Faults that compute the same as the honest step at some setting of the run."""

    what: str
    faults: tuple[str, ...]
    why: Callable[[GateRequest, Any], str]
    """Given the request and the model's config: why they cannot be seen, or "" where they can."""


_OPTIONS = (
    _Option(
        "faults of label smoothing",
        ("label-smoothing-ignored",),
        lambda request, config: "label smoothing is 0" if request.objective.label_smoothing == 0 else "",
    ),
    _Option(
        "faults of beta",
        ("divided-by-beta", "beta-missing", "rewards-scaled-twice"),
        lambda request, config: "beta is 1" if request.objective.beta == 1 else "",
    ),
    _Option(
        "faults of the adapters' scale",
        ("adapter-scaling-ignored",),
        lambda request, config: "alpha is the rank" if request.model.lora.scaling == 1 else "",
    ),
    _Option(
        "faults of the attention scale",
        ("attention-scale-from-hidden-size",),
        lambda request, config: (
            "heads times head dimension is the hidden size"
            if config.num_attention_heads * config.head_dim == config.hidden_size
            else ""
        ),
    ),
    _Option(
        "faults of some layers and not others",
        ("only-first-layer-has-gradient", "first-layer-without-gradient"),
        lambda request, config: "the model has one layer" if config.num_hidden_layers == 1 else "",
    ),
)


def blind_spots(
    request: GateRequest, results: Sequence[Result], config: Any, *, within_rounding: Sequence[tuple[str, str]] = ()
) -> tuple[BlindSpotRecord, ...]:
    """The kinds of faults of the catalogue that a run could not have seen.

    Args:
        request: The run.
        results: Of the subjects under judgement.
        config: The model's config.
        within_rounding: Dtype and name of planted faults that stayed within budget because rounding hides them.

    Returns:
        One blind spot for each condition that no case meets, option that hides a fault, group of subjects that were
        judged on part of the run only, and precision.
    """
    judged = _judged_cases(request, results)
    if not judged:
        names = [fault.name for fault in FAULTS]
        return (BlindSpotRecord(what="any fault", why="no subject was judged on a case in every dtype", faults=names),)
    of_run = [case for case in request.cases if any(case.name in names for names in judged.values())]
    missing = _missing(of_run)
    hidden = [(option, option.why(request, config)) for option in _OPTIONS]
    return (
        *(_of_condition(condition, faults) for condition, faults in missing.items()),
        *(BlindSpotRecord(what=option.what, why=why, faults=list(option.faults)) for option, why in hidden if why),
        *_of_precision(request.dtypes, within_rounding),
        *_of_gradients(results),
        *_of_subjects(request.cases, judged, set(missing)),
    )


def _judged_cases(request: GateRequest, results: Sequence[Result]) -> dict[str, frozenset[str]]:
    """Subject to the cases on which it was judged in every dtype; subjects that were judged on none are left out."""
    everywhere = {
        subject.name: frozenset.intersection(
            *(
                frozenset(r.case for r in results if (r.subject, r.dtype) == (subject.name, dtype) and r.num_compared)
                for dtype in request.dtypes
            )
        )
        for subject in request.subjects
    }
    return {name: cases for name, cases in everywhere.items() if cases}


def _missing(cases: Iterable[Case]) -> dict[Condition, list[Fault]]:
    """Conditions that no case meets, with the faults that need them."""
    present = list(cases)
    needed: dict[Condition, list[Fault]] = {}
    for fault in FAULTS:
        if not any(fault.bites(case) for case in present):
            needed.setdefault(fault.bites_where, []).append(fault)
    return needed


def _of_condition(condition: Condition, faults: Sequence[Fault]) -> BlindSpotRecord:
    return BlindSpotRecord(
        what=f"faults that bite only where {condition.words}",
        why="no case that was judged has it",
        faults=[fault.name for fault in faults],
    )


def _of_subjects(
    cases: Sequence[Case], judged: dict[str, frozenset[str]], missing: set[Condition]
) -> Iterable[BlindSpotRecord]:
    """Subjects that were judged on part of the cases; what no subject could show is said already."""
    alike: dict[frozenset[str], list[str]] = {}
    for subject, names in judged.items():
        alike.setdefault(names, []).append(subject)
    for names, subjects in alike.items():
        own = {c: faults for c, faults in _missing(c for c in cases if c.name in names).items() if c not in missing}
        if own:
            shown = listed([case.name for case in cases if case.name in names])
            yield BlindSpotRecord(
                what=f"faults of {listed(subjects)} that bite only on cases that they were not judged on",
                why=f"judged on {shown} only; not seen: where {'; where '.join(c.words for c in own)}",
                faults=[fault.name for faults in own.values() for fault in faults],
            )


def _of_gradients(results: Sequence[Result]) -> Iterable[BlindSpotRecord]:
    """Subjects whose gradients were judged nowhere."""
    reasons: dict[str, str] = {}
    for result in results:
        for judgement in result.judgements:
            if judgement.quantity == "gradients" and judgement.verdict is Verdict.NOT_APPLICABLE:
                reasons.setdefault(result.subject, judgement.reason)
    alike: dict[str, list[str]] = {}
    for subject, reason in reasons.items():
        alike.setdefault(reason, []).append(subject)
    faults = [fault.name for fault in FAULTS if "forward quantities" in fault.invisible_where]
    for reason, subjects in alike.items():
        yield BlindSpotRecord(what=f"faults of the gradients of {listed(subjects)}", why=reason, faults=faults)


def _of_precision(dtypes: Sequence[str], within_rounding: Sequence[tuple[str, str]]) -> Iterable[BlindSpotRecord]:
    """Faults that rounding hides, by their own description or as this run has shown."""
    for dtype in dtypes:
        shown = [fault for of_dtype, fault in within_rounding if of_dtype == dtype]
        by_nature = [fault.name for fault in FAULTS if dtype not in fault.dtypes]
        if shown or by_nature:
            yield BlindSpotRecord(
                what=f"faults smaller than the rounding of {dtype}",
                why=f"planted and within budget: {', '.join(shown)}" if shown else f"the budgets of {dtype} are wide",
                faults=list(dict.fromkeys((*shown, *by_nature))),
            )
