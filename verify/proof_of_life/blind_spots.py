"""What a run would not have seen: kinds of faults for which it has no case, no option, no quantity or no precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.record_faults import BlindSpotRecord
from reports.words import listed
from verify.cases import Case, CaseKind
from verify.faults.catalogue import FAULTS, FAULTS_OF_EVERY_WEIGHT, FAULTS_OF_REWARDS
from verify.faults.conditions import Condition
from verify.faults.fault import Fault
from verify.gate import GateRequest, Result
from verify.objective import RewardModel
from verify.precision import rounds_in
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
        lambda request, config: "label smoothing is 0" if getattr(request.objective, "label_smoothing", 1) == 0 else "",
    ),
    _Option(
        "faults of beta",
        ("divided-by-beta", "beta-missing", "rewards-scaled-twice"),
        lambda request, config: "beta is 1" if getattr(request.objective, "beta", 0) == 1 else "",
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
        return (
            BlindSpotRecord(
                what="any fault of the subjects, of which none was judged",
                why="no subject was judged on a case in every dtype",
                faults=names,
            ),
            *_of_precision((), request.dtypes, within_rounding),
        )
    kinds = kinds_of(subject for subject in request.subjects if subject.name in judged)
    faults = concerning(_catalogue(request), kinds)
    of_run = [case for case in request.cases if any(case.name in names for names in judged.values())]
    bites = _remembered()
    unseen = _unseen(faults, of_run, kinds, bites)
    names = [fault.name for fault in faults]
    return (
        *(
            BlindSpotRecord(what=f"faults {lack.words(' that bite only')}", why=lack.why, faults=of_lack)
            for lack, of_lack in _lacks(unseen, of_run).items()
        ),
        *_of_options(request, config, names),
        *_of_precision(faults, request.dtypes, within_rounding),
        *_of_gradients(faults, results),
        *_of_subjects(request, judged, frozenset(unseen), bites),
    )


def _catalogue(request: GateRequest) -> tuple[Fault, ...]:
    """The faults that a run is about: in one of reward models those of log-probs on examples alone."""
    of_run = [f for f in (*FAULTS, *FAULTS_OF_EVERY_WEIGHT) if request.model.train in f.trains]
    if not isinstance(request.objective, RewardModel):
        return tuple(of_run)
    of_examples = (replace(fault, kinds=("examples",)) for fault in of_run if "examples" in fault.kinds)
    return (*of_examples, *FAULTS_OF_REWARDS)


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


_Unseen = tuple[Fault, CaseKind]
"""A fault, and a kind of case on which nothing shows it though it is planted there.

What a pair shows says nothing of groups and examples, which other code may lay out.
"""


_Bites = Callable[[Fault, Case], bool]


def _remembered() -> _Bites:
    """Whether a fault bites on a case. Each condition is asked of each case once: faults and subjects share them."""
    known: dict[tuple[Condition, tuple[CaseKind, ...], str], bool] = {}

    def bites(fault: Fault, case: Case) -> bool:
        key = fault.bites_where, fault.kinds, case.name
        if key not in known:
            known[key] = fault.bites(case)
        return known[key]

    return bites


def _unseen(
    faults: Sequence[Fault], cases: Iterable[Case], kinds: frozenset[CaseKind], bites: _Bites
) -> tuple[_Unseen, ...]:
    """What no case shows, on the kinds that are taken."""
    present = list(cases)
    return tuple(
        (fault, kind)
        for fault in faults
        for kind in fault.kinds
        if kind in kinds and not any(case.kind == kind and bites(fault, case) for case in present)
    )


@dataclass(frozen=True, slots=True)
class _Lack:
    """What no case has: a condition that those of some kinds do not meet, or a kind of case that is not there."""

    kinds: tuple[CaseKind, ...]
    condition: Condition | None

    def words(self, which: str = "") -> str:
        """Completes "faults ...", with what is said of those that need a condition."""
        if self.condition is None:
            return f"of {listed([_KIND_WORDS[kind] for kind in self.kinds])}"
        return f"on {listed(self.kinds)}{which} where {self.condition.words}"

    @property
    def why(self) -> str:
        return "no case of that kind was judged" if self.condition is None else "no case that was judged has it"


def _lacks(unseen: Iterable[_Unseen], cases: Iterable[Case]) -> dict[_Lack, list[str]]:
    """What is lacking for what is not seen, with the names of the faults that need it."""
    present = {case.kind for case in cases}
    kinds: dict[Fault, list[CaseKind]] = {}
    found: dict[_Lack, list[str]] = {}
    for fault, kind in unseen:
        if kind in present:
            kinds.setdefault(fault, []).append(kind)
        else:
            found.setdefault(_Lack((kind,), None), []).append(fault.name)
    for fault, of_fault in kinds.items():
        found.setdefault(_Lack(tuple(of_fault), fault.bites_where), []).append(fault.name)
    return found


def _of_subjects(
    request: GateRequest, judged: dict[str, frozenset[str]], of_run: frozenset[_Unseen], bites: _Bites
) -> Iterable[BlindSpotRecord]:
    """Subjects that were judged on part of the cases; what no subject could show is said already."""
    kinds = {subject.name: kinds_of([subject]) for subject in request.subjects}
    alike: dict[tuple[frozenset[str], frozenset[CaseKind]], list[str]] = {}
    for subject, names in judged.items():
        alike.setdefault((names, kinds[subject]), []).append(subject)
    for (names, taken), subjects in alike.items():
        cases = [case for case in request.cases if case.name in names]
        unseen = _unseen(concerning(_catalogue(request), taken), cases, taken, bites)
        lacks = _lacks((one for one in unseen if one not in of_run), cases)
        if lacks:
            more = f"; and {len(lacks) - _SHOWN} more" if len(lacks) > _SHOWN else ""
            yield BlindSpotRecord(
                what=f"faults of {listed(subjects)} that bite only on cases that they were not judged on",
                why=f"judged on {len(names)} of {len(request.cases)} cases; not seen: "
                f"{'; '.join(lack.words() for lack in list(lacks)[:_SHOWN])}{more}",
                faults=list(dict.fromkeys(name for of_lack in lacks.values() for name in of_lack)),
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
        by_nature = [fault.name for fault in faults if rounds_in(dtype) not in fault.dtypes]
        if shown or by_nature:
            yield BlindSpotRecord(
                what=f"faults smaller than the rounding of {dtype}",
                why=f"planted and within budget: {', '.join(shown)}" if shown else f"the budgets of {dtype} are wide",
                faults=list(dict.fromkeys((*shown, *by_nature))),
            )
