"""The exact checks on planted faults: each fault on those cases of theirs on which it could show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verify.checks.bench import Setting
from verify.checks.cases import CaseName
from verify.checks.catalogue import EXACT_CHECKS, MANY_PASSES
from verify.checks.check import ExactCheck, ExactCheckName, Finding
from verify.checks.run import measure_setting, run_checks
from verify.faults.fault import Fault, Mutation
from verify.faults.stages import StageName
from verify.gate import GateRequest
from verify.model_holder import ModelHolder
from verify.objective import REWARD_MODEL, ComparingName, RunObjective, Sft, objective_named
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
    "window": _LOGPS,
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


_OF_LOSSES: tuple[ExactCheckName, ...] = ("normalisation", "own-objective")
"""Checks of what another preference objective changes: log-probs and rows are those under the objective of the run."""


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
    """Puts one mutation after another to the exact checks; keeps models and passes of the dtype that it is at.

    Args:
        request: The run; its model, objective, policy and seed are taken.
    """

    def __init__(self, request: GateRequest) -> None:
        self._request = request
        self._dtype = ""
        self._models: dict[bool, _Model] = {}
        self._settings: dict[ComparingName, Setting] = {}

    def __call__(
        self,
        dtype: str,
        mutation: Mutation,
        begin: Callable[[str], None],
        objective: ComparingName | None = None,
    ) -> tuple[Finding, ...]:
        """Put a mutation to the checks.

        Args:
            dtype: Name of the dtype.
            mutation: The mutation.
            begin: Called before it, with what is being done.
            objective: What cases with rejected responses are under; the objective of the run if None, and a reward
                model for what is planted in its step.

        Returns:
            Findings in the order check, case.

        Raises:
            SubjectError: The unpacked path cannot be run.
            StructureError: It cannot be compared.
        """
        if mutation.of_rewards:
            objective = REWARD_MODEL
        name = objective or self._request.objective.name
        if dtype != self._dtype:
            self._dtype, self._models, self._settings = dtype, {}, {}  # frees those before
        if mutation.of_rewards not in self._models:
            self._models[mutation.of_rewards] = _Model.built(self._request, dtype, is_reward_model=mutation.of_rewards)
        model, checks = self._models[mutation.of_rewards], self._checks(mutation, name)
        if name not in self._settings:
            self._settings[name] = self._measured(model, checks, name)
        cases = frozenset(CASES_BY_STAGE[mutation.stage])
        subject = FaultySubject(mutation=mutation, cases=cases, forwards=model.forwards)
        begin(f"{dtype} exact checks: {subject.name}")
        return run_checks(subject, checks, self._settings[name], model.holder)

    def _checks(self, mutation: Mutation, objective: ComparingName) -> tuple[ExactCheck, ...]:
        if objective in (REWARD_MODEL, self._request.objective.name):
            return checks_for(mutation)
        return tuple(check for check in EXACT_CHECKS if check.name in _OF_LOSSES)

    def _measured(self, model: _Model, checks: tuple[ExactCheck, ...], name: ComparingName) -> Setting:
        request = self._request
        of_run = name in (REWARD_MODEL, request.objective.name)
        return measure_setting(
            EXACT_CHECKS if of_run else checks,
            model.holder,
            dtype=self._dtype,
            objective=model.holder.with_reference(_comparing(name, request.objective)),
            policy=request.policy,
            seed=request.seed,
        )


def _comparing(name: ComparingName, run: RunObjective) -> RunObjective:
    """The objective of a name, with the parameters of that of the run."""
    objective = objective_named(name, run)
    assert not isinstance(objective, Sft)
    return objective


def checks_for(mutation: Mutation) -> tuple[ExactCheck, ...]:
    """The checks that a mutation is put to under the objective of the run.

    Args:
        mutation: A fault or an equivalent mutant.

    Returns:
        All of them; of a fault without those of many passes that are not named for it.
    """
    if not isinstance(mutation, Fault):
        return EXACT_CHECKS
    return tuple(c for c in EXACT_CHECKS if c.name not in MANY_PASSES or c.name in mutation.must_kill)


@dataclass(frozen=True, slots=True)
class _Model:
    holder: ModelHolder
    forwards: ForwardCache

    @staticmethod
    def built(request: GateRequest, dtype: str, *, is_reward_model: bool) -> _Model:
        holder = ModelHolder(request.model, dtype, is_reward_model=is_reward_model)
        return _Model(holder, ForwardCache(holder.model))
