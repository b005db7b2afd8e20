"""The pieces of a run of the gate, and doing them: cases observed and compared, subjects put to the exact checks.

Nothing is judged here: the noise over all cases of a dtype enters the budget of each. Observations are dropped as soon
as they are compared: what a piece hands over is differences, and the few values that budgets are made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from verify.cases import Case
from verify.checks.bench import Setting
from verify.checks.check import ExactCheck, Finding
from verify.checks.run import measure_setting, run_checks
from verify.comparison import Comparison, Quantity, StructureError, compare_observations, gradient_sizes
from verify.decisions import Decisions, decide
from verify.groups import check_token_ids
from verify.model_holder import ModelHolder
from verify.model_state import WeightsChangedError
from verify.models.dtypes import DTYPES, computing_in
from verify.models.request import ModelRequest
from verify.noise import NoiseSample
from verify.objective import PREFERENCE_NAMES, REWARD_MODEL, Objective, objective_named, without_router_loss
from verify.observation import Observation, observe
from verify.passes import PhaseSlots
from verify.precision import rounds_in
from verify.router_balance import experts_per_token
from verify.router_ties import RouterTies, find_ties, untouched_max
from verify.subject import Subject, SubjectError, support_for
from verify.subjects import is_built_in
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.tolerance import Policy
from verify.vacuity import implausible_witness, is_satisfied, vacuous_adapters, vacuous_expectation
from verify.verdict import Verdict
from verify.workers import Begin

if TYPE_CHECKING:
    from verify.gate import GateRequest
    from verify.gate_pieces import Piece


_NOT_WATCHED = "rounding may turn expert choices, which are watched with --router-loss"


class WitnessError(Exception):
    """The unpacked path itself could not be run or compared: nothing can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRun:
    """One subject on one case, compared but not yet judged; of what it computed only what judging takes is kept."""

    subject: str
    phases: tuple[PhaseSlots, ...] = ()
    settings_put_back: tuple[str, ...] = ()
    gradients_absent_because: str = ""
    to_oracle: tuple[Comparison, ...] = ()
    to_witness: tuple[Comparison, ...] = ()
    untouched_max: tuple[Mapping[Quantity, float], Mapping[Quantity, float]] = ({}, {})
    """Largest distances to oracle and witness among log-probs that no undecided expert choice touches."""
    decisions: Decisions | None = None
    verdict: Verdict | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One case in one dtype: expectations without gradients, noise, subjects, and why it may prove nothing."""

    case: Case
    expected: Observation
    witness: Observation
    noise: NoiseSample
    subjects: tuple[SubjectRun, ...]
    adapters: tuple[str, ...]
    vacuous: tuple[str, ...]
    is_satisfied: bool
    """Every pair is beyond the kink of the hinge: gradients are 0, which is judged, and have no noise."""
    implausible: tuple[str, ...]
    ties: RouterTies | None
    """Expert choices that rounding may turn; None where the loss of routers has no part in the run."""
    num_passes: int
    """Forward passes of a step, that of a frozen policy included where it is run."""

    @property
    def num_flipped(self) -> int:
        """Expert choices that rounding turned between forms of the unpacked path."""
        return 0 if self.ties is None else self.ties.num_flipped


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceDone:
    """What came of a piece: differences and values, no model and no gradients, so that it can travel."""

    dtype: str
    passes_s: float
    case_run: CaseRun | None = None
    findings: tuple[Finding, ...] = ()


class GateWork:
    """Does one piece after another; keeps the model of the dtype that it is at.

    Args:
        request: What to judge.
        checks: The exact checks.
    """

    def __init__(self, request: GateRequest, checks: Sequence[ExactCheck] = ()) -> None:
        self._request, self._checks = request, checks
        self._oracle_cache: dict[str, Observation] = {}
        self._dtype = ""
        # By what was asked for, and whether they are of a reward model.
        self._holders: dict[tuple[ModelRequest, bool], ModelHolder] = {}
        self._settings: dict[bool, Setting] = {}

    def __call__(self, piece: Piece, begin: Begin) -> PieceDone:
        """Do a piece.

        Args:
            piece: The piece.
            begin: Called before each observation.

        Returns:
            What came of it.

        Raises:
            ValueError: A token id outside the vocabulary, or a model that is not causal (UnfitModelError).
            WitnessError: The unpacked path cannot be run.
        """
        if self._request.prepare_model is not None:
            # What was prepared may go on from pass to pass, and no piece may depend on another.
            self._holders, self._settings = {}, {}
        steps = _Steps(begin)
        if piece.case is not None:
            model, is_reward_model = self._request.model_of(piece.case), piece.case.objective_name == REWARD_MODEL
            holder = self.holder_of(piece.dtype, model, is_reward_model=is_reward_model)
            check_token_ids(piece.case.groups, holder.model.get_input_embeddings().num_embeddings)
            run = _run_case(piece.case, piece.dtype, holder, self._request, self._oracle_cache, steps)
            return PieceDone(dtype=piece.dtype, passes_s=steps.model_passes_s, case_run=run)
        assert piece.subject is not None
        findings = self._exact_checks(piece.subject, piece.dtype, steps)
        return PieceDone(dtype=piece.dtype, passes_s=steps.model_passes_s, findings=findings)

    def holder_of(self, dtype: str, model: ModelRequest | None = None, *, is_reward_model: bool = False) -> ModelHolder:
        """The causal LM or the reward model of a dtype, that of the run if none is named.

        Those of another dtype are let go first.
        """
        if dtype != self._dtype:
            self._holders, self._settings, self._dtype = {}, {}, dtype
        key = model or self._request.model, is_reward_model
        if key not in self._holders:
            self._holders[key] = ModelHolder(
                key[0], dtype, self._request.prepare_model, is_reward_model=is_reward_model
            )
        return self._holders[key]

    def _exact_checks(self, subject: Subject, dtype: str, steps: _Steps) -> tuple[Finding, ...]:
        steps.begin(f"{dtype} exact checks: {subject.name}")
        start, request = time.perf_counter(), self._request
        of_models = (False, True) if request.objective.name == REWARD_MODEL else (False,)
        try:
            settings = {each: self._setting(dtype, each) for each in of_models}
            with computing_in(dtype, request.model.device, weights_stay=False):
                findings = [
                    finding
                    for each, setting in settings.items()
                    for finding in run_checks(
                        subject, self._checks, setting, self.holder_of(dtype, is_reward_model=each)
                    )
                ]
        except (SubjectError, StructureError) as error:
            raise WitnessError(f"{dtype} exact checks: the unpacked path cannot be compared: {error}") from error
        finally:
            steps.model_passes_s += time.perf_counter() - start
        order = [(check.name, str(case)) for check in self._checks for case in check.cases]
        return tuple(sorted(findings, key=lambda finding: order.index((finding.check, finding.case))))

    def _setting(self, dtype: str, is_reward_model: bool) -> Setting:
        holder = self.holder_of(dtype, is_reward_model=is_reward_model)
        if is_reward_model not in self._settings:
            request = self._request
            with computing_in(dtype, request.model.device, weights_stay=False):
                self._settings[is_reward_model] = measure_setting(
                    self._checks,
                    holder,
                    dtype=dtype,
                    objective=holder.with_reference(without_router_loss(request.objective)),
                    policy=request.policy,
                    seed=request.seed,
                )
        return self._settings[is_reward_model]


class _Steps:
    def __init__(self, begin: Begin) -> None:
        self.begin, self.model_passes_s = begin, 0.0


def _run_case(
    case: Case,
    dtype: str,
    holder: ModelHolder,
    request: GateRequest,
    oracle_cache: dict[str, Observation],
    steps: _Steps,
) -> CaseRun:
    def begin(name: str) -> None:
        steps.begin(f"{dtype} {case.name}: {name}")

    def run(subject: Subject) -> Observation:
        with computing_in(dtype, request.model.device):
            observation = observe(
                subject,
                holder.model,
                case.groups,
                objective(),
                apply_objective=apply_objective,
                seed=request.seed,
                baseline=holder.baseline,
            )
        steps.model_passes_s += observation.elapsed_s
        return observation

    def run_form(form: Subject) -> Observation:
        begin(form.name)
        return run(form)

    def objective() -> Objective:  # asked for anew each time: the model may have been built again
        return objective_named(case.objective_name, holder.with_reference(request.objective))

    begin(holder.expectation.by)
    try:
        expected = oracle_cache.get(case.name)
        if expected is None:
            expected = holder.expectation.of(case.groups, objective())
            steps.model_passes_s += expected.elapsed_s
            if len(request.dtypes) > 1 and holder.expects_the_same_in_all_dtypes:
                oracle_cache[case.name] = expected
        forms = {WITNESS.name: run_form(WITNESS), **{name: run_form(VARIATIONS[name]) for name in request.variations}}
        noise = noise_sample(case, forms, expected)
        ties = _ties(case, forms, holder, request.policy, dtype)
    except (SubjectError, StructureError) as error:
        raise WitnessError(f"{dtype} {case.name}: the unpacked path cannot be compared: {error}") from error
    witness = forms[WITNESS.name]
    del forms  # gradients of every form; at full size there is no room to keep them
    subjects, expectations = [], _Expectations(expected, witness, gradient_sizes(expected.gradients or {}), ties)
    for subject in request.subjects:
        begin(subject.name)  # also where it does not take the case, so that all steps add up
        subjects.append(
            _run_subject(
                subject, case, run, expectations, holder, router_loss=request.objective.router_aux_loss_coef > 0
            )
        )
    return CaseRun(
        case=case,
        expected=replace(expected, gradients=None),
        witness=replace(witness, gradients=None, router_scores=()),
        noise=noise,
        subjects=tuple(subjects),
        ties=ties,
        adapters=vacuous_adapters(holder.model),
        vacuous=vacuous_expectation(expected, case.groups, objective_name=case.objective_name),
        is_satisfied=is_satisfied(expected, case.objective_name),
        num_passes=1 + holder.reference.passes if case.objective_name in PREFERENCE_NAMES else 1,
        implausible=_with_flips(
            implausible_witness(noise.to_oracle, request.policy.plausible.for_dtype(dtype)),
            ties,
            has_routers=bool(experts_per_token(holder.model)),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Expectations:
    """What a subject is compared with, and the sizes of the true gradients."""

    oracle: Observation
    witness: Observation
    sizes: Mapping[str, float]
    ties: RouterTies | None


def _with_flips(implausible: tuple[str, ...], ties: RouterTies | None, *, has_routers: bool) -> tuple[str, ...]:
    """Reasons to doubt the witnesses, and what may explain them."""
    if not implausible:
        return ()
    if ties is None:
        return (*implausible, _NOT_WATCHED) if has_routers else implausible
    if not ties.num_flipped:
        return implausible
    flips = f"{ties.num_flipped} of {ties.num_choices} expert choices flipped by rounding between unpacked forms"
    return (flips, *implausible)


def _ties(
    case: Case, forms: Mapping[str, Observation], holder: ModelHolder, policy: Policy, dtype: str
) -> RouterTies | None:
    if not forms[WITNESS.name].router_scores:
        return None
    epsilon = float(torch.finfo(DTYPES[rounds_in(dtype)]).eps)
    per_token = experts_per_token(holder.model)
    return find_ties(list(forms.values()), case.groups, per_token, policy=policy, epsilon=epsilon)


def noise_sample(case: Case, forms: Mapping[str, Observation], expected: Observation) -> NoiseSample:
    """Compare the forms of the unpacked path with the oracle and with each other.

    Args:
        case: The case.
        forms: What each form gave, by its name; two at least.
        expected: What the oracle gave.

    Returns:
        The comparisons.
    """
    sizes = gradient_sizes(expected.gradients or {})
    return NoiseSample(
        case.name,
        to_oracle={
            name: compare_observations(form, expected, case.groups, sizes=sizes) for name, form in forms.items()
        },
        between={
            f"{one} against {other}": compare_observations(forms[one], forms[other], case.groups, sizes=sizes)
            for other, one in combinations(forms, 2)
        },
    )


def _run_subject(
    subject: Subject,
    case: Case,
    run: Callable[[Subject], Observation],
    expectations: _Expectations,
    holder: ModelHolder,
    *,
    router_loss: bool,
) -> SubjectRun:
    name = subject.name
    try:
        support = support_for(subject, case, holder.reference.name, router_loss=router_loss)
        if not support.supported:
            return SubjectRun(subject=name, verdict=Verdict.NOT_APPLICABLE, reason=support.reason)
        observation = _watched(subject, run, holder)
    except SubjectError as error:
        return SubjectRun(subject=name, verdict=Verdict.ERROR, reason=str(error))
    except WeightsChangedError as error:
        holder.rebuild()
        return SubjectRun(subject=name, verdict=Verdict.ERROR, reason=str(error))
    kept = SubjectRun(
        subject=name,
        phases=observation.phases,
        settings_put_back=observation.settings_put_back,
        gradients_absent_because=observation.gradients_absent_because,
    )
    witness, sizes = expectations.witness, expectations.sizes
    try:
        to_oracle = compare_observations(observation, expectations.oracle, case.groups, sizes=sizes)
        to_witness = compare_observations(observation, witness, case.groups, sizes=sizes)
    except StructureError as error:
        return replace(kept, verdict=Verdict.FAIL, reason=str(error))
    decisions = decide(observation.margins, witness.margins) if len(witness.margins) else None
    untouched = (
        ({}, {})
        if (ties := expectations.ties) is None
        else (untouched_max(observation, expectations.oracle, ties), untouched_max(observation, witness, ties))
    )
    return replace(kept, to_oracle=to_oracle, to_witness=to_witness, untouched_max=untouched, decisions=decisions)


def _watched(subject: Subject, run: Callable[[Subject], Observation], holder: ModelHolder) -> Observation:
    """Run a subject; whether it returned or raised, the model must compute afterwards what it computed before."""
    try:
        observation = run(subject)
    except SubjectError:
        holder.check_other(subject.name)
        holder.check_bits(subject.name)
        raise
    if is_built_in(subject):
        return observation
    of_other = holder.check_other(subject.name)
    holder.check_bits(subject.name)
    return replace(observation, settings_put_back=(*observation.settings_put_back, *of_other))
