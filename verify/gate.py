"""The parity gate: every subject on every case in every dtype, held against oracle and witness.

Within a dtype all cases are observed first and judged afterwards, because the noise over all cases enters the budget of
each. Observations are dropped as soon as they are compared: what stays is differences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from verify.cases import Case
from verify.checks.check import ExactCheck, Finding
from verify.checks.run import run_exact_checks
from verify.comparison import Comparison, StructureError, compare_observations
from verify.groups import check_token_ids
from verify.judgement import Judgement, JudgingContext, judge
from verify.model_holder import ModelHolder
from verify.model_state import WeightsChangedError
from verify.models.request import ModelRequest, ModelUnderTest
from verify.noise import NoiseFloor, NoiseSample, measure_noise
from verify.objective import DpoSigmoid, objective_named
from verify.observation import Observation, PhaseSlots, observe
from verify.subject import Subject, SubjectError, support_for
from verify.subjects import is_built_in
from verify.subjects.oracle import apply_objective, observe_oracle
from verify.subjects.pairwise import VARIATIONS, WITNESS, default_variations
from verify.tolerance import Policy
from verify.vacuity import implausible_witness, vacuous_adapters, vacuous_expectation
from verify.verdict import Verdict, fold

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all and what is being done."""


class WitnessError(Exception):
    """The unpacked path itself could not be run or compared: nothing can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """What to judge, on what, and how.

    Args:
        model: The model request.
        dtypes: Names of dtypes; at least one.
        subjects: The implementations; at least one, names distinct.
        cases: The inputs; at least one, names distinct.
        objective: beta and label smoothing of the cases with a preference objective.
        policy: Factors and floors.
        variations: Names of the witness's harmless variations; at least one.
        seed: Seed of torch's generator during passes.
        prepare_model: Called with each model that is built, before anything runs on it. What it changes is there for
            unpacked and packed passes alike; the weights must stay.

    Raises:
        ValueError: Something is empty or named twice.
    """

    model: ModelRequest
    dtypes: tuple[str, ...]
    subjects: tuple[Subject, ...]
    cases: tuple[Case, ...]
    objective: DpoSigmoid
    policy: Policy
    variations: tuple[str, ...] = default_variations("cpu")
    seed: int = 0
    prepare_model: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        for what, names in (
            ("dtypes", list(self.dtypes)),
            ("subjects", [subject.name for subject in self.subjects]),
            ("cases", [case.name for case in self.cases]),
            ("variations", list(self.variations)),
        ):
            if not names:
                raise ValueError(f"no {what}: nothing would be compared")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        unknown = sorted(set(self.variations) - VARIATIONS.keys())
        if unknown:
            raise ValueError(f"unknown variations {', '.join(unknown)}: give some of {', '.join(VARIATIONS)}")

    @property
    def num_steps(self) -> int:
        """Observations of the run: oracle, witness, variations and subjects, on each case in each dtype."""
        return len(self.dtypes) * len(self.cases) * (2 + len(self.variations) + len(self.subjects))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One subject on one case in one dtype."""

    case: str
    subject: str
    dtype: str
    verdict: Verdict
    reasons: tuple[str, ...]
    judgements: tuple[Judgement, ...] = ()
    phases: tuple[PhaseSlots, ...] = ()
    passes: int = 2
    """Forward passes of a step: the policy's, and for a preference the frozen policy's."""
    pairwise_slots: int = 0
    """Token slots that these passes feed with one unpadded row per completion."""
    pairwise_rows: int = 0
    can_save: bool = False
    """Whether sharing prompts saves slots here, even where the last prompt token is repeated."""

    @property
    def num_compared(self) -> int:
        """Values compared over all judgements."""
        return sum(judgement.num_compared for judgement in self.judgements)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOutcome:
    """Everything measured in one run of the gate.

    Args:
        results: In the order dtype, case, subject.
        model: The model in the last dtype, for its config and counts.
        model_passes_s: Wall time of forward and backward passes.
        notes: What a reader must know beside the verdict.
        findings: Of the exact checks, in the order dtype, subject, check.
    """

    results: tuple[Result, ...]
    model: ModelUnderTest
    model_passes_s: float
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SubjectRun:
    """One subject on one case, compared but not yet judged."""

    subject: str
    observation: Observation | None = None
    to_oracle: tuple[Comparison, ...] = ()
    to_witness: tuple[Comparison, ...] = ()
    verdict: Verdict | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaseRun:
    """One case in one dtype: expectations without gradients, noise, subjects, and why it may prove nothing."""

    case: Case
    expected: Observation
    witness: Observation
    noise: NoiseSample
    subjects: tuple[_SubjectRun, ...]
    vacuous: tuple[str, ...]
    implausible: tuple[str, ...]


def run_gate(request: GateRequest, progress: Progress, checks: Sequence[ExactCheck] = ()) -> GateOutcome:
    """Run the gate.

    Args:
        request: What to judge.
        progress: Called before each observation.
        checks: The exact checks that each subject is put to after the cases.

    Returns:
        Results of every subject, case and dtype that were asked for.

    Raises:
        ValueError: A token id outside the vocabulary, a model that the oracle does not know.
        WitnessError: The unpacked path cannot be run.
    """
    steps = _Steps(progress, request.num_steps + (len(request.dtypes) * len(request.subjects) if checks else 0))
    oracle_cache: dict[str, Observation] = {}
    results: list[Result] = []
    findings: list[Finding] = []
    notes: dict[str, None] = {}
    model: ModelUnderTest | None = None
    for dtype in request.dtypes:
        model = None  # frees the model of the dtype before
        holder = ModelHolder(request.model, dtype, request.prepare_model)
        for case in request.cases:
            check_token_ids(case.groups, holder.model.get_input_embeddings().num_embeddings)
        runs = [_run_case(case, dtype, holder, request, oracle_cache, steps) for case in request.cases]
        proves_nothing = {run.case.name for run in runs if run.vacuous or run.implausible}
        noise = measure_noise([run.noise for run in runs], not_pooled=proves_nothing)
        adapters = vacuous_adapters(holder.model)
        for run in runs:
            results += _judge_case(run, dtype, request, noise, adapters)
            for subject in run.subjects:
                if subject.observation is not None and subject.observation.settings_put_back:
                    left = ", ".join(subject.observation.settings_put_back)
                    notes[f"subject {subject.subject} left the model changed, which was put back: {left}"] = None
        if checks:
            findings += _exact_checks(request, checks, dtype, holder, steps)
        model = holder.under_test
    assert model is not None
    return GateOutcome(
        results=tuple(results),
        model=model,
        model_passes_s=steps.model_passes_s,
        notes=tuple(notes),
        findings=tuple(findings),
    )


class _Steps:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done, self.model_passes_s = progress, total, 0, 0.0

    def begin(self, text: str) -> None:
        self._progress(self._done, self._total, text)
        self._done += 1


def _exact_checks(
    request: GateRequest, checks: Sequence[ExactCheck], dtype: str, holder: ModelHolder, steps: _Steps
) -> tuple[Finding, ...]:
    start = time.perf_counter()
    try:
        return run_exact_checks(
            request.subjects,
            checks,
            holder,
            dtype=dtype,
            objective=request.objective,
            policy=request.policy,
            seed=request.seed,
            begin=lambda subject: steps.begin(f"{dtype} exact checks: {subject.name}"),
        )
    except (SubjectError, StructureError) as error:
        raise WitnessError(f"{dtype} exact checks: the unpacked path cannot be compared: {error}") from error
    finally:
        steps.model_passes_s += time.perf_counter() - start


def _run_case(
    case: Case,
    dtype: str,
    holder: ModelHolder,
    request: GateRequest,
    oracle_cache: dict[str, Observation],
    steps: _Steps,
) -> _CaseRun:
    def begin(name: str) -> None:
        steps.begin(f"{dtype} {case.name}: {name}")

    def run(subject: Subject) -> Observation:
        observation = observe(
            subject,
            holder.model,
            case.groups,
            objective,
            apply_objective=apply_objective,
            seed=request.seed,
            baseline=holder.baseline,
        )
        steps.model_passes_s += observation.elapsed_s
        return observation

    def run_form(form: Subject) -> Observation:
        begin(form.name)
        return run(form)

    objective = objective_named(case.objective_name, request.objective)
    begin("oracle")
    expected = oracle_cache.get(case.name)
    if expected is None:
        expected = observe_oracle(holder.model, case.groups, objective)
        steps.model_passes_s += expected.elapsed_s
        if holder.under_test.exact_in_bfloat16:
            oracle_cache[case.name] = expected
    try:
        forms = {WITNESS.name: run_form(WITNESS), **{name: run_form(VARIATIONS[name]) for name in request.variations}}
        noise = _noise_sample(case, forms, expected)
    except (SubjectError, StructureError) as error:
        raise WitnessError(f"{dtype} {case.name}: the unpacked path cannot be compared: {error}") from error
    witness = forms[WITNESS.name]
    del forms  # gradients of every form; at full size there is no room to keep them
    subjects = []
    for subject in request.subjects:
        begin(subject.name)  # also where it does not take the case, so that all steps add up
        subjects.append(_run_subject(subject, case, run, expected, witness, holder))
    return _CaseRun(
        case=case,
        expected=replace(expected, gradients=None),
        witness=replace(witness, gradients=None),
        noise=noise,
        subjects=tuple(subjects),
        vacuous=vacuous_expectation(expected, case.groups),
        implausible=implausible_witness(noise.to_oracle, request.policy.plausible.for_dtype(dtype)),
    )


def _noise_sample(case: Case, forms: Mapping[str, Observation], expected: Observation) -> NoiseSample:
    return NoiseSample(
        case.name,
        to_oracle={name: compare_observations(form, expected, case.groups) for name, form in forms.items()},
        between={
            f"{one} against {other}": compare_observations(forms[one], forms[other], case.groups, truth=expected)
            for other, one in combinations(forms, 2)
        },
    )


def _run_subject(
    subject: Subject,
    case: Case,
    run: Callable[[Subject], Observation],
    expected: Observation,
    witness: Observation,
    holder: ModelHolder,
) -> _SubjectRun:
    name = subject.name
    try:
        support = support_for(subject, case)
        if not support.supported:
            return _SubjectRun(subject=name, verdict=Verdict.NOT_APPLICABLE, reason=support.reason)
        observation = _watched(subject, run, holder)
    except SubjectError as error:
        return _SubjectRun(subject=name, verdict=Verdict.ERROR, reason=str(error))
    except WeightsChangedError as error:
        holder.rebuild()
        return _SubjectRun(subject=name, verdict=Verdict.ERROR, reason=str(error))
    kept = replace(observation, gradients=None)
    try:
        to_oracle = compare_observations(observation, expected, case.groups)
        to_witness = compare_observations(observation, witness, case.groups, truth=expected)
    except StructureError as error:
        return _SubjectRun(subject=name, observation=kept, verdict=Verdict.FAIL, reason=str(error))
    return _SubjectRun(subject=name, observation=kept, to_oracle=to_oracle, to_witness=to_witness)


def _watched(subject: Subject, run: Callable[[Subject], Observation], holder: ModelHolder) -> Observation:
    """Run a subject; whether it returned or raised, the model must compute afterwards what it computed before."""
    try:
        observation = run(subject)
    except SubjectError:
        holder.check_bits(subject.name)
        raise
    if not is_built_in(subject):
        holder.check_bits(subject.name)
    return observation


def _judge_case(
    run: _CaseRun, dtype: str, request: GateRequest, noise: NoiseFloor, adapters: Sequence[str]
) -> Iterator[Result]:
    context = JudgingContext(
        case=run.case.name,
        groups=run.case.groups,
        dtype_name=dtype,
        objective=objective_named(run.case.objective_name, request.objective),
        policy=request.policy,
        noise=noise,
    )
    for subject in run.subjects:
        judgements: tuple[Judgement, ...] = ()
        if subject.to_oracle and subject.observation is not None:
            absent = subject.observation.gradients_absent_because
            judgements = (
                *judge(subject.to_oracle, "oracle", run.expected, context, gradients_absent_because=absent),
                *judge(subject.to_witness, "differential", run.witness, context, gradients_absent_because=absent),
            )
        yield _result(run, subject, dtype, judgements, adapters)


def _result(
    run: _CaseRun, subject: _SubjectRun, dtype: str, judgements: tuple[Judgement, ...], adapters: Sequence[str]
) -> Result:
    if subject.verdict is not None:
        verdict, reasons = subject.verdict, [subject.reason]
    else:
        verdict = fold(judgement.verdict for judgement in judgements)
        reasons = list(dict.fromkeys(judgement.reason for judgement in judgements if judgement.reason))
    finite = not any(c.non_finite for c in subject.to_oracle)
    if run.implausible and subject.to_oracle and finite:
        # The budgets themselves are in doubt: neither PASS nor FAIL can rest on them.
        verdict, reasons = Verdict.INCONCLUSIVE, [*adapters, *run.vacuous, *run.implausible, *reasons]
    elif (run.vacuous or adapters) and verdict in (Verdict.PASS, Verdict.INCONCLUSIVE):
        verdict, reasons = Verdict.INCONCLUSIVE, [*adapters, *run.vacuous, *reasons]
    return Result(
        case=run.case.name,
        subject=subject.subject,
        dtype=dtype,
        verdict=verdict,
        reasons=tuple(reasons),
        judgements=judgements,
        phases=subject.observation.phases if subject.observation is not None else (),
        passes=run.case.num_passes,
        pairwise_slots=run.case.num_passes * run.case.pairwise_slots,
        pairwise_rows=run.case.num_passes * run.case.num_completions,
        can_save=any(len(group.prompt_ids) > 1 and len(group.completions) > 1 for group in run.case.groups),
    )
