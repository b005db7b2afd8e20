"""The exact checks on planted faults: each fault on those cases of theirs on which it could show."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from verify.checks.cases import CaseName
from verify.checks.catalogue import EXACT_CHECKS
from verify.checks.check import Finding
from verify.checks.run import run_exact_checks
from verify.faults.fault import Mutation
from verify.faults.stages import StageName
from verify.gate import GateRequest
from verify.model_holder import ModelHolder
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.forward_cache import ForwardCache

_LOGPS: tuple[CaseName, ...] = ("distinct-tokens", "long-rows")
_LOSS: tuple[CaseName, ...] = ("uneven-groups", "special-ids")

CASES_BY_STAGE: Mapping[StageName, tuple[CaseName, ...]] = {
    "layout": _LOGPS + _LOSS,
    "positions": _LOGPS,
    "mask": _LOGPS,
    "activations": _LOGPS,
    "predictors": _LOGPS,
    "supervision": _LOGPS + _LOSS,
    "token_logps": _LOGPS,
    "reduction": _LOSS,
    "reference": _LOSS,
    "objective": _LOSS,
    "accumulation": _LOSS,
    "gradients": _LOSS,
}
"""Behind the log-probs a fault leaves rows and log-probs those of the honest step, and before them the loss a mean."""


def exact_findings(
    request: GateRequest, mutations: Mapping[str, Mutation], begin: Callable[[str], None]
) -> tuple[Finding, ...]:
    """Put every mutation of a run to the exact checks.

    Args:
        request: The run; its model, dtypes, objective, policy and seed are taken.
        mutations: The mutations by the names of their subjects.
        begin: Called before each mutation, with what is being done.

    Returns:
        Findings in the order dtype, mutation, check, case.

    Raises:
        SubjectError: The unpacked path cannot be run.
        StructureError: It cannot be compared.
    """
    findings: list[Finding] = []
    for dtype in request.dtypes:
        holder = ModelHolder(request.model, dtype)
        forwards = ForwardCache(holder.model)
        subjects = [
            FaultySubject(mutation=mutation, cases=frozenset(CASES_BY_STAGE[mutation.stage]), forwards=forwards)
            for mutation in mutations.values()
        ]

        def tell(subject: Subject, dtype: str = dtype) -> None:
            begin(f"{dtype} exact checks: {subject.name}")

        findings += run_exact_checks(
            subjects,
            EXACT_CHECKS,
            holder,
            dtype=dtype,
            objective=request.objective,
            policy=request.policy,
            seed=request.seed,
            begin=tell,
        )
    return tuple(findings)
