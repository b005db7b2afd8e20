"""What a run would not have seen: kinds of faults for which it has no case, no option, no quantity or no precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.record import BlindSpotRecord
from reports.words import listed
from verify.cases import Case, CaseKind
from verify.faults.catalogue import FAULTS
from verify.faults.conditions import Condition
from verify.faults.fault import Fault
from verify.gate import GateRequest, Result
from verify.proof_of_life.kinds import concerning, kinds_of
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
            # A config without head_dim divides the hidden size by the heads.
            if not getattr(config, "head_dim", None)
            or config.num_attention_heads * config.head_dim == config.hidden_size
            else ""
        ),
    ),
    _Option(
        "faults of some layers and not others",
        ("only-first-layer-has-gradient", "first-layer-without-gradient"),
        lambda request, config: "the model has one layer" if config.num_hidden_layers == 1 else "",
    ),
)


_KIND_WORDS: Mapping[CaseKind, str] = {
    "pairs": "pairs of responses",
    "groups": "groups of more than two responses",
    "examples": "supervised examples",
}
_SHOWN = 3
"""Conditions that a text lists."""


def blind_spots(
    request: GateRequest, results: Sequence[Result], config: Any, *, within_rounding: Sequence[tuple[str, str]] = ()
) -> tuple[BlindSpotRecord, ...]:
    """The kinds of faults of the catalogue that a run could not have seen.

    A fault that is planted on no kind of case that a subject takes is no blind spot of it.

    Args:
        request: The run.
        results: Of the subjects under judgement.
        config: The model's config.
        within_rounding: Dtype and name of planted faults that stayed within budget because rounding hides them.

    Returns:
        One blind spot for each kind of case and each condition that no case meets, option that hides a fault, group of
        subjects that were judged on part of the run only, and precision.
    """
    judged = _judged_cases(request, results)
    if not judged:
        names = [fault.name for fault in FAULTS]
        return (BlindSpotRecord(what="any fault", why="no subject was judged on a case in every dtype", faults=names),)
    faults = concerning(FAULTS, kinds_of(subject for subject in request.subjects if subject.name in judged))
    of_run = [case for case in request.cases if any(case.name in names for names in judged.values())]
    missing = _missing(faults, of_run)
    names = [fault.name for fault in faults]
    return (
        *map(_of_lack, missing, missing.values()),
        *_of_options(request, config, names),
        *_of_precision(faults, request.dtypes, within_rounding),
        *_of_gradients(faults, results),
        *_of_subjects(request, judged, set(missing)),
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


_Lack = Condition | CaseKind
"""What no case has: a kind of case that is not there at all, or a condition that those of the kind do not meet."""


def _missing(faults: Sequence[Fault], cases: Iterable[Case]) -> dict[_Lack, list[Fault]]:
    """What no case has, with the faults that need it."""
    present = list(cases)
    kinds = {case.kind for case in present}
    needed: dict[_Lack, list[Fault]] = {}
    for fault in faults:
        if not any(fault.bites(case) for case in present):
            lack: _Lack = fault.bites_where if kinds.intersection(fault.kinds) else fault.kinds[0]
            needed.setdefault(lack, []).append(fault)
    return needed


def _of_lack(lack: _Lack, faults: Sequence[Fault]) -> BlindSpotRecord:
    names = [fault.name for fault in faults]
    if isinstance(lack, Condition):
        what = f"faults that bite only where {lack.words}"
        return BlindSpotRecord(what=what, why="no case that was judged has it", faults=names)
    return BlindSpotRecord(what=f"faults of {_KIND_WORDS[lack]}", why="no case of that kind was judged", faults=names)


def _in_words(lack: _Lack) -> str:
    return f"where {lack.words}" if isinstance(lack, Condition) else f"{_KIND_WORDS[lack]}"


def _of_subjects(
    request: GateRequest, judged: dict[str, frozenset[str]], missing: set[_Lack]
) -> Iterable[BlindSpotRecord]:
    """Subjects that were judged on part of the cases; what no subject could show is said already."""
    kinds = {subject.name: kinds_of([subject]) for subject in request.subjects}
    alike: dict[tuple[frozenset[str], frozenset[CaseKind]], list[str]] = {}
    for subject, names in judged.items():
        alike.setdefault((names, kinds[subject]), []).append(subject)
    for (names, taken), subjects in alike.items():
        lacks = _missing(concerning(FAULTS, taken), (case for case in request.cases if case.name in names))
        own = {lack: faults for lack, faults in lacks.items() if lack not in missing}
        if own:
            more = f"; and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
            yield BlindSpotRecord(
                what=f"faults of {listed(subjects)} that bite only on cases that they were not judged on",
                why=f"judged on {len(names)} of {len(request.cases)} cases; not seen: "
                f"{'; '.join(map(_in_words, list(own)[:_SHOWN]))}{more}",
                faults=[fault.name for faults in own.values() for fault in faults],
            )


def _of_options(request: GateRequest, config: Any, names: Sequence[str]) -> Iterable[BlindSpotRecord]:
    """Settings of the run under which faults that concern it compute the same as the honest step."""
    for option in _OPTIONS:
        faults = [name for name in option.faults if name in names]
        if faults and (why := option.why(request, config)):
            yield BlindSpotRecord(what=option.what, why=why, faults=faults)


def _of_gradients(faults: Sequence[Fault], results: Sequence[Result]) -> Iterable[BlindSpotRecord]:
    """Subjects whose gradients were judged nowhere."""
    reasons: dict[str, str] = {}
    for result in results:
        for judgement in result.judgements:
            if judgement.quantity == "gradients" and judgement.verdict is Verdict.NOT_APPLICABLE:
                reasons.setdefault(result.subject, judgement.reason)
    alike: dict[str, list[str]] = {}
    for subject, reason in reasons.items():
        alike.setdefault(reason, []).append(subject)
    names = [fault.name for fault in faults if "forward quantities" in fault.invisible_where]
    for reason, subjects in alike.items():
        yield BlindSpotRecord(what=f"faults of the gradients of {listed(subjects)}", why=reason, faults=names)


def _of_precision(
    faults: Sequence[Fault], dtypes: Sequence[str], within_rounding: Sequence[tuple[str, str]]
) -> Iterable[BlindSpotRecord]:
    """Faults that rounding hides, by their own description or as this run has shown."""
    for dtype in dtypes:
        shown = [fault for of_dtype, fault in within_rounding if of_dtype == dtype]
        by_nature = [fault.name for fault in faults if dtype not in fault.dtypes]
        if shown or by_nature:
            yield BlindSpotRecord(
                what=f"faults smaller than the rounding of {dtype}",
                why=f"planted and within budget: {', '.join(shown)}" if shown else f"the budgets of {dtype} are wide",
                faults=list(dict.fromkeys((*shown, *by_nature))),
            )
