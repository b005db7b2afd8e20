"""The exact checks on planted faults: each fault on those cases of theirs on which it could show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verify.checks.bench import Setting
from verify.checks.cases import CaseName
from verify.checks.catalogue import EXACT_CHECKS, MANY_PASSES
from verify.checks.check import ExactCheck, Finding
from verify.checks.run import measure_setting, run_checks
from verify.faults.fault import Fault, Mutation
from verify.faults.stages import StageName
from verify.gate import GateRequest
from verify.model_holder import ModelHolder
from verify.objective import RewardModel
from verify.subjects.faulty import FaultySubject
from verify.subjects.forward_cache import ForwardCache

_LOGPS: tuple[CaseName, ...] = (
    "distinct-tokens",
    "distinct-turns",
    "distinct-examples",
    "six-levels",
    "long-rows",
)
_LOSS: tuple[CaseName, ...] = (
    "uneven-groups",
    "special-ids",
    "distinct-turns",
    "distinct-examples",
    "examples-weighed-alike",
    "groups-of-one-prompt",
    "one-conversation",
)
_ALL: tuple[CaseName, ...] = tuple(dict.fromkeys(_LOGPS + _LOSS))

CASES_BY_STAGE: Mapping[StageName, tuple[CaseName, ...]] = {
    "layout": _ALL,
    "positions": _LOGPS,
    "mask": _LOGPS,
    "activations": _LOGPS,
    "predictors": _LOGPS,
    "supervision": _ALL,
    "token_logps": _LOGPS,
    "reduction": _LOSS,
    "reference": _LOSS,
    "readout": _LOGPS,
    "scores": _LOSS,
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
    work = ExactFaultWork(request)
    return tuple(
        finding
        for dtype in request.dtypes
        for mutation in mutations.values()
        for finding in work(dtype, mutation, begin)
    )


class ExactFaultWork:
    """Puts one mutation after another to the exact checks; keeps model and passes of the dtype that it is at.

    Args:
        request: The run; its model, objective, policy and seed are taken.
    """

    def __init__(self, request: GateRequest) -> None:
        self._request = request
        self._at: _AtDtype | None = None

    def __call__(self, dtype: str, mutation: Mutation, begin: Callable[[str], None]) -> tuple[Finding, ...]:
        """Put a mutation to the checks.

        Args:
            dtype: Name of the dtype.
            mutation: The mutation.
            begin: Called before it, with what is being done.

        Returns:
            Findings in the order check, case.

        Raises:
            SubjectError: The unpacked path cannot be run.
            StructureError: It cannot be compared.
        """
        if self._at is None or (self._at.setting.dtype, self._at.holder.is_reward_model) != (
            dtype,
            mutation.of_rewards,
        ):
            self._at = None  # frees the model before
            self._at = _AtDtype.measure(self._request, dtype, is_reward_model=mutation.of_rewards)
        at, cases = self._at, frozenset(CASES_BY_STAGE[mutation.stage])
        subject = FaultySubject(mutation=mutation, cases=cases, forwards=at.forwards)
        begin(f"{dtype} exact checks: {subject.name}")
        return run_checks(subject, checks_for(mutation), at.setting, at.holder)


def checks_for(mutation: Mutation) -> tuple[ExactCheck, ...]:
    """The checks that a mutation is put to.

    Args:
        mutation: A fault or an equivalent mutant.

    Returns:
        All of them; of a fault without those of many passes that are not named for it.
    """
    if not isinstance(mutation, Fault):
        return EXACT_CHECKS
    return tuple(c for c in EXACT_CHECKS if c.name not in MANY_PASSES or c.name in mutation.must_kill)


@dataclass(frozen=True, slots=True)
class _AtDtype:
    holder: ModelHolder
    forwards: ForwardCache
    setting: Setting

    @staticmethod
    def measure(request: GateRequest, dtype: str, *, is_reward_model: bool) -> _AtDtype:
        holder = ModelHolder(request.model, dtype, is_reward_model=is_reward_model)
        setting = measure_setting(
            EXACT_CHECKS,
            holder,
            dtype=dtype,
            objective=RewardModel() if is_reward_model else request.objective,
            policy=request.policy,
            seed=request.seed,
        )
        return _AtDtype(holder, ForwardCache(holder.model), setting)
