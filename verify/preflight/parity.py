"""Parity of the sharded model with the kernels of this machine, planted faults beside it, and how steady it is.

The judge is that of ``packparity sharded``: the same step in one process, the float64 oracle and the unpacked path,
with the gate's budgets. Where the oracle does not reach full depth it runs on fewer layers at full width, and the full
depth is judged by itself (``verify.preflight.full_depth``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from reports.preflight_consistency import WOULD_NOTICE
from reports.words import duration, plural
from verify.comparison import compare_observations, gradient_sizes
from verify.judgement import Judge, Judgement
from verify.model_holder import ModelHolder
from verify.models.request import ModelUnderTest
from verify.noise import NoiseFloor
from verify.observation import Observation
from verify.preflight import planted
from verify.preflight.agreement import agreement
from verify.preflight.finding import Finding, abstains, go, measured, no_go
from verify.preflight.full_depth import judge_full_depth
from verify.preflight.judging import finding_of
from verify.preflight.meeting import Meeting
from verify.preflight.parity_setting import ParitySetting
from verify.sharded.parity import judge_parity
from verify.sharded.yardsticks import Yardsticks, measure_yardsticks
from verify.subject import Subject
from verify.verdict import Verdict, fold

PARITY, DETERMINISM = "parity", "determinism"
_HINT_DETERMINISM = "look for a kernel that races; torch.use_deterministic_algorithms(True) names those that may differ"


def look_at_parity(setting: ParitySetting, meeting: Meeting) -> None:
    """Judge every backend on the sharded model.

    Args:
        setting: On what, and how deep.
        meeting: Takes the findings.
    """
    run = [subject.name for subject in setting.subjects]
    not_run = [backend for backend in setting.plan.backends if backend not in run]
    meeting.together(abstains(PARITY, "its attention was not proven to run here", part=each) for each in not_run)
    if not run:
        meeting.together([abstains(DETERMINISM, "no attention backend was proven to run here")])
        return
    meeting.enter(PARITY)
    _announce(setting, meeting)
    if too_long := setting.too_long(full_depth=False):
        meeting.together([*(abstains(PARITY, too_long, part=each) for each in run), abstains(DETERMINISM, too_long)])
        return
    yardsticks, whole = _yardsticks(setting, meeting)
    model = setting.sharded_model(setting.depth.num_layers, built=whole)
    for subject in setting.subjects:
        _judge(setting, meeting, yardsticks, model, subject)
    _plant(setting, meeting, yardsticks, model)
    del model, whole, yardsticks
    if setting.is_cut:
        judge_full_depth(setting, meeting)


def _announce(setting: ParitySetting, meeting: Meeting) -> None:
    """Say what will be done, and how long it will take."""
    if setting.effort is None:
        return
    meeting.say(f"parity: {setting.describe()}: about {duration(setting.effort.total_s)}")
    expected = {
        "one_process_s": setting.effort.one_process_s,
        "sharded_steps_s": setting.effort.steps_s,
        "full_depth_s": setting.effort.full_steps_s,
        "total_s": setting.effort.total_s,
    }
    seen = f"expected by products of matrices measured here: about {duration(setting.effort.total_s)}"
    meeting.together([measured(PARITY, seen, part="time", measures=expected)])


def _yardsticks(setting: ParitySetting, meeting: Meeting) -> tuple[Yardsticks, ModelUnderTest]:
    """What one process, the oracle and the unpacked path compute, and the model of it. A collective."""
    holder = ModelHolder(setting.request(setting.depth.num_layers), setting.plan.computes)
    yardsticks = measure_yardsticks(
        holder,
        [each.case for each in setting.cases],
        setting.subjects,
        dtype=setting.plan.computes,
        objective=setting.objective,
        policy=setting.policy,
        variations=setting.variations,
        seed=setting.seed,
        begin=meeting.within,
    )
    return yardsticks, holder.under_test


def _judge(setting: ParitySetting, meeting: Meeting, yardsticks: Yardsticks, model: Any, subject: Subject) -> None:
    """One backend against all yardsticks, and against itself."""
    plan = setting.plan
    depth = plan.depth_in_words(setting.depth.num_layers)
    said = f"{plural(len(setting.cases), 'case')}, {depth}, {plan.options.dtype} on {setting.device}"
    meeting.enter(PARITY)
    verdicts: list[tuple[Verdict, Sequence[str]]] = []
    judgements: list[tuple[str, Judgement]] = []
    first: list[Observation] = []
    for of in setting.cases:
        first.append(setting.step(model, subject, of))
        verdict, reasons, judged = judge_parity(
            first[-1],
            subject.name,
            yardsticks.by_case[of.case.name],
            yardsticks,
            dtype=plan.computes,
            policy=setting.policy,
        )
        verdicts.append((verdict, reasons))
        judgements += judged
    meeting.together([finding_of(PARITY, subject.name, verdicts, judgements, said)])
    meeting.enter(DETERMINISM)
    meeting.together(_determinism(setting, subject, model, first, yardsticks.noise))
    digests = {of.case.name: _digest(seen) for of, seen in zip(setting.cases, first, strict=True)}
    alike = agreement(DETERMINISM, meeting.gathered(digests), hint=_HINT_DETERMINISM)
    meeting.together([replace(alike, part=f"{subject.name} alike")])


def _plant(setting: ParitySetting, meeting: Meeting, yardsticks: Yardsticks, model: Any) -> None:
    """Two faults on the first case, which have to be noticed."""
    meeting.enter(WOULD_NOTICE)
    honest, of = setting.subjects[0], setting.cases[0]
    for part, subject, stages in (
        (planted.LEAK, planted.Leaking(subject=honest), of.stages),
        (planted.NO_WORLD_SIZE, honest, planted.without_world_size(of.stages)),
    ):
        verdict, _, judged = judge_parity(
            setting.step(model, subject, of, stages),
            honest.name,
            yardsticks.by_case[of.case.name],
            yardsticks,
            dtype=setting.plan.computes,
            policy=setting.policy,
        )
        meeting.together([planted.noticed(part, verdict, judged, setting.plan.options.dtype)])


def _digest(seen: Observation) -> str:
    """Of the bits of everything that was computed; all ranks are told the same."""
    digest = hashlib.sha256()
    for name, tensor in (seen.gradients or {}).items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    for tensor in (*seen.per_token_logps, *seen.ref_per_token_logps, seen.rewards, seen.loss):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def _determinism(
    setting: ParitySetting, subject: Subject, model: object, first: Sequence[Observation], noise: NoiseFloor
) -> Iterator[Finding]:
    """The same step again: equal to the last bit, or no farther off than harmless variations are."""
    verdicts: list[tuple[Verdict, Sequence[str]]] = []
    judgements: list[tuple[str, Judgement]] = []
    for of, before in zip(setting.cases, first, strict=True):
        again = setting.step(model, subject, of)
        if _digest(again) == _digest(before):
            continue
        comparisons = compare_observations(again, before, of.case.groups, sizes=gradient_sizes(before.gradients or {}))
        judged = Judge("differential", before, setting.context(of, noise))(comparisons, gradients_absent_because="")
        verdicts.append((fold(each.verdict for each in judged), [each.reason for each in judged if each.reason]))
        judgements += [("the same step", each) for each in judged]
    if not verdicts:
        yield go(
            DETERMINISM, f"the same step twice is bit-identical on {plural(len(first), 'case')}", part=subject.name
        )
        return
    found = finding_of(DETERMINISM, subject.name, verdicts, judgements, "the same step twice, not bit-identical")
    yield (
        found
        if found.outcome != "NO-GO"
        else no_go(DETERMINISM, found.seen, _HINT_DETERMINISM, part=subject.name, measures=found.measures)
    )
