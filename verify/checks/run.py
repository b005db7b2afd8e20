"""Putting a subject to the checks, under the guards of the gate: what it breaks is a finding, and is put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from verify.checks.bench import Bench, Setting
from verify.checks.check import ExactCheck, Finding, Measured, NotApplicableError
from verify.comparison import StructureError
from verify.model_state import Baseline, WeightsChangedError, restored_model
from verify.subject import Subject, SubjectError, support_for
from verify.subjects import is_built_in
from verify.verdict import Verdict


class ModelHolder(Protocol):
    """The model of one dtype, as the gate holds it."""

    @property
    def model(self) -> Any:
        """The model."""
        ...

    @property
    def baseline(self) -> Baseline:
        """What it must be after each subject."""
        ...

    def rebuild(self) -> None:
        """Build it again, after a subject changed its weights."""
        ...

    def check_bits(self, subject: str) -> None:
        """Raise where it computes something else than when it was built."""
        ...


def run_checks(
    subject: Subject, checks: Sequence[ExactCheck], setting: Setting, holder: ModelHolder
) -> tuple[Finding, ...]:
    """Put one subject to the checks.

    Args:
        subject: The subject.
        checks: The checks.
        setting: What all subjects of the dtype share.
        holder: Holds the model; it is as before afterwards, or new.

    Returns:
        One finding for each check and case, in order.
    """
    findings: list[Finding] = []
    try:
        with restored_model(holder.model, subject.name, seed=setting.seed, baseline=holder.baseline):
            bench = Bench(subject, holder.model, setting)
            findings += [_find(bench, check, name) for check in checks for name in check.cases]
        if not is_built_in(subject):
            holder.check_bits(subject.name)
    except WeightsChangedError as error:
        holder.rebuild()
        return tuple(replace(finding, verdict=Verdict.ERROR, reason=str(error)) for finding in findings)
    return tuple(findings)


def _find(bench: Bench, check: ExactCheck, case_name: Any) -> Finding:
    blank = Finding(
        check=check.name, subject=bench.subject.name, dtype=bench.setting.dtype, case=case_name, verdict=Verdict.ERROR
    )
    case = bench.setting.cases.by_name.get(case_name)
    if case is None:
        return replace(blank, verdict=Verdict.NOT_APPLICABLE, reason="the vocabulary has too few distinct tokens")
    try:
        support = support_for(bench.subject, case)
        if not support.supported:
            return replace(blank, verdict=Verdict.NOT_APPLICABLE, reason=support.reason)
        return _judged(blank, check.measure(bench, case))
    except NotApplicableError as error:
        return replace(blank, verdict=Verdict.NOT_APPLICABLE, reason=str(error))
    except SubjectError as error:
        return replace(blank, reason=str(error))
    except StructureError as error:
        return replace(blank, verdict=Verdict.FAIL, reason=str(error), ratio=float("inf"))


def _judged(blank: Finding, measured: Measured) -> Finding:
    if not measured.num_compared:
        return replace(blank, reason="nothing was compared")
    return replace(
        blank,
        verdict=Verdict.FAIL if measured.num_differing else Verdict.PASS,
        reason=measured.worst,
        num_compared=measured.num_compared,
        num_differing=measured.num_differing,
        ratio=measured.ratio,
    )
