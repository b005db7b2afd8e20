"""Putting a subject to the checks, under the guards of the gate: what it breaks is a finding, and is put back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from verify.cases import Case
from verify.checks.bench import Bench, Setting
from verify.checks.cases import CaseName, check_cases
from verify.checks.check import ExactCheck, Finding, Measured, NotApplicableError
from verify.checks.training_yardsticks import TrainingYardsticks, measure_training
from verify.checks.yardsticks import Yardsticks, measure_yardsticks
from verify.comparison import StructureError
from verify.model_holder import ModelHolder
from verify.model_state import WeightsChangedError, restored_model
from verify.models.vision import num_text_tokens
from verify.objective import REWARD_MODEL, RunObjective, preference_beside
from verify.subject import Subject, SubjectError, support_for
from verify.subjects import is_built_in
from verify.tolerance import Policy
from verify.verdict import Verdict


def run_exact_checks(
    subjects: Sequence[Subject],
    checks: Sequence[ExactCheck],
    holder: ModelHolder,
    *,
    dtype: str,
    objective: RunObjective,
    policy: Policy,
    seed: int,
    begin: Callable[[Subject], None],
) -> tuple[Finding, ...]:
    """Put every subject to the checks, in one dtype.

    Args:
        subjects: The subjects.
        checks: The checks.
        holder: Holds the model.
        dtype: Name of the dtype.
        objective: That of the run.
        policy: Factors and floors.
        seed: Seed of the cases and of the passes.
        begin: Called before each subject.

    Returns:
        Findings in the order subject, check, case.

    Raises:
        SubjectError: The unpacked path itself cannot be run.
        StructureError: It cannot be compared.
    """
    setting = measure_setting(checks, holder, dtype=dtype, objective=objective, policy=policy, seed=seed)
    findings: list[Finding] = []
    for subject in subjects:
        begin(subject)
        findings += run_checks(subject, checks, setting, holder)
    return tuple(findings)


def measure_setting(
    checks: Sequence[ExactCheck],
    holder: ModelHolder,
    *,
    dtype: str,
    objective: RunObjective,
    policy: Policy,
    seed: int,
) -> Setting:
    """Measure what all subjects of a dtype share.

    Args:
        checks: The checks that will be run.
        holder: Holds the model.
        dtype: Name of the dtype.
        objective: That of the run.
        policy: Factors and floors.
        seed: Seed of the cases and of the passes.

    Returns:
        The cases of the checks, and the yardsticks on them.

    Raises:
        SubjectError: The unpacked path itself cannot be run.
        StructureError: It cannot be compared.
    """
    num_tokens = num_text_tokens(holder.model.config, int(holder.model.get_input_embeddings().num_embeddings))
    every = check_cases(num_tokens, seed, objective.name)
    cases, preference = every.on(reward_model=holder.is_reward_model), preference_beside(objective)
    if holder.is_reward_model:  # what is asked of rewards has no budget that the model enters
        yardsticks = Yardsticks(token_budgets={}, losses={}, absolute={})
        training = TrainingYardsticks(trajectories={}, under_dropout={})
    else:
        yardsticks = measure_yardsticks(
            holder.model,
            holder.baseline,
            cases,
            [check.name for check in checks],
            dtype=dtype,
            objective=preference,
            policy=policy,
            seed=seed,
        )
        training = measure_training(
            holder.model, cases, checks, dtype=dtype, objective=preference, policy=policy, seed=seed
        )
    return Setting(
        dtype=dtype,
        objective=objective,
        policy=policy,
        seed=seed,
        cases=cases,
        yardsticks=yardsticks,
        training=training,
    )


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
        One finding for each check and each of its cases that is run on this model, in order.
    """
    wanted = [(check, name) for check in checks for name in check.cases if name not in setting.cases.elsewhere]
    refused = {name: _refusal(subject, setting, name) for _, name in wanted}
    if None not in refused.values():
        return tuple(_finding(subject, setting, check, name, refused[name]) for check, name in wanted)
    findings: list[Finding] = []
    try:
        with restored_model(holder.model, subject.name, seed=setting.seed, baseline=holder.baseline):
            # The frozen policy may have been built again since the setting was measured.
            now = replace(setting, objective=holder.with_reference(setting.objective))
            bench = Bench(subject, holder.model, now)
            for check, name in wanted:
                outcome = refused[name] or _put_to(check, bench, setting.cases.by_name[name])
                findings.append(_finding(subject, setting, check, name, outcome))
        if not is_built_in(subject):
            holder.check_other(subject.name)
            holder.check_bits(subject.name)
    except WeightsChangedError as error:
        holder.rebuild()
        return tuple(replace(finding, verdict=Verdict.ERROR, reason=str(error)) for finding in findings)
    return tuple(findings)


_Outcome = Measured | tuple[Verdict, str]
"""What was measured, or why nothing was."""


def _refusal(subject: Subject, setting: Setting, name: CaseName) -> tuple[Verdict, str] | None:
    """Why a case cannot be given to the subject; None if it can."""
    case = setting.cases.by_name.get(name)
    if case is None:
        return Verdict.NOT_APPLICABLE, "the vocabulary has too few tokens for a case in which all differ"
    try:
        support = support_for(subject, case, preference_beside(setting.objective).reference.name)
    except SubjectError as error:
        return Verdict.ERROR, str(error)
    return None if support.supported else (Verdict.NOT_APPLICABLE, support.reason)


def _put_to(check: ExactCheck, bench: Bench, case: Case) -> _Outcome:
    of_rewards = case.objective_name == REWARD_MODEL
    measure = check.of_rewards if of_rewards else check.measure
    if measure is None:
        return Verdict.NOT_APPLICABLE, "it is about log-probs, or what is made of them, and a reward model has none"
    try:
        return measure(bench, case)
    except NotApplicableError as error:
        return Verdict.NOT_APPLICABLE, str(error)
    except SubjectError as error:
        return Verdict.ERROR, str(error)
    except StructureError as error:  # a value that is not finite
        return Verdict.FAIL, str(error)


def _finding(
    subject: Subject, setting: Setting, check: ExactCheck, case: CaseName, outcome: _Outcome | None
) -> Finding:
    blank = Finding(
        check=check.name,
        subject=subject.name,
        dtype=setting.dtype,
        case=case,
        verdict=Verdict.ERROR,
        reason="nothing was compared",
    )
    if isinstance(outcome, tuple):
        verdict, reason = outcome
        return replace(blank, verdict=verdict, reason=reason, ratio=math.inf if verdict is Verdict.FAIL else 0.0)
    if outcome is None or not outcome.num_compared:
        return blank
    return replace(
        blank,
        verdict=Verdict.FAIL if outcome.num_differing else Verdict.PASS,
        reason=outcome.worst,
        num_compared=outcome.num_compared,
        num_differing=outcome.num_differing,
        ratio=outcome.ratio,
    )
