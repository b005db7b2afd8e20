"""Parity of the sharded model with the kernels of this machine, the floor of its determinism, and the full depth.

The judge is that of ``packparity sharded``: the same step in one process, the float64 oracle and the unpacked path,
with the gate's budgets. Where the oracle does not fit at full depth it runs on fewer layers at full width, and the full
depth is judged by itself: packed against unpacked on the same sharded model, within the noise of harmless variations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from verify.cases import Case
from verify.comparison import StructureError, compare_observations, gradient_sizes
from verify.data.load import LoadedPairs
from verify.gate_work import noise_sample
from verify.judgement import Judge, Judgement, JudgingContext
from verify.model_holder import ModelHolder
from verify.noise import NoiseFloor, measure_noise
from verify.objective import Preference, objective_named, run_objective
from verify.observation import Observation
from verify.preflight import planted
from verify.preflight.agreement import agreement
from verify.preflight.depth import OracleDepth, oracle_depth
from verify.preflight.finding import Finding, abstains, go, no_go
from verify.preflight.judging import finding_of
from verify.preflight.look_around import Gathered
from verify.preflight.meeting import Meeting
from verify.preflight.parity_cases import cases_of_data, only_pairs, parity_cases
from verify.preflight.plan import PreflightPlan, itemsize_of
from verify.sharded.models import sharded_model
from verify.sharded.observe import run_sharded
from verify.sharded.parity import judge_parity
from verify.sharded.rank_work import SubjectOnRank
from verify.sharded.yardsticks import measure_yardsticks
from verify.subject import Subject
from verify.subjects.pairwise import VARIATIONS, WITNESS, default_variations
from verify.subjects.selection import select_subject
from verify.subjects.sharded import HONEST, ShardedStages
from verify.tolerance import load_policy
from verify.vacuity import vacuous_expectation
from verify.verdict import Verdict, fold

PARITY, DETERMINISM, FULL_DEPTH = "parity", "determinism", "full depth"
_FEW_VARIATIONS = ("eager", "padded-left", "repeat")
"""Of a model of real size, whose passes take seconds."""
_HINT_DETERMINISM = "look for a kernel that races; torch.use_deterministic_algorithms(True) names those that may differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What parity is judged on.

    Args:
        plan: The plan.
        device: Of this rank.
        depth: Of the oracle.
        cases: The cases.
        subjects: The backends that were shown to run.
        variations: Names of harmless variations of the unpacked path.
    """

    plan: PreflightPlan
    device: str
    depth: OracleDepth
    cases: tuple[Case, ...]
    subjects: tuple[Subject, ...]
    variations: tuple[str, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the oracle runs on fewer layers than the model has."""
        return self.depth.num_layers < self.plan.num_layers

    @property
    def limits(self) -> list[str]:
        """What is not looked at, in sentences."""
        if not self.is_cut:
            return []
        layers = self.plan.depth_in_words(self.depth.num_layers)
        return [
            f"the float64 oracle at full depth: it runs on {layers} ({self.depth.why_cut}); all layers are judged "
            "packed against unpacked on the sharded model"
        ]

    @property
    def seed(self) -> int:
        """Of torch's generator during passes."""
        return self.plan.options.seed

    @property
    def objective(self) -> Preference:
        """DPO with the adapters off as the frozen policy."""
        objective = run_objective("sigmoid", beta=0.1, label_smoothing=0.0, nll_weight=None)
        assert isinstance(objective, Preference)
        return objective

    def on(self, model: object, subject: Subject, case: Case, stages: ShardedStages = HONEST) -> Observation:
        """One sharded step. A collective."""
        objective = objective_named(case.objective_name, self.objective)
        on_rank = SubjectOnRank(subject=subject, model=model, groups=case.groups, objective=objective)
        return run_sharded(on_rank, micro_size=1, stages=stages, seed=self.seed).observation(on_rank)

    def context(self, case: Case, noise: NoiseFloor) -> JudgingContext:
        """What a judge needs."""
        return JudgingContext(
            case=case.name,
            groups=case.groups,
            dtype_name=self.plan.options.dtype,
            objective=objective_named(case.objective_name, self.objective),
            policy=load_policy(None),
            noise=noise,
        )


def look_at_parity(judging: Judging, meeting: Meeting) -> None:
    """Judge every backend on the sharded model.

    Args:
        judging: On what, and how deep.
        meeting: Takes the findings.
    """
    plan, run = judging.plan, [subject.name for subject in judging.subjects]
    not_run = [backend for backend in plan.backends if backend not in run]
    meeting.together(abstains(PARITY, "its attention was not proven to run here", part=each) for each in not_run)
    if not run:
        meeting.together([abstains(DETERMINISM, "no attention backend was proven to run here")])
        return
    _judge_with_oracle(judging, meeting)
    if judging.is_cut:
        _judge_full_depth(judging, meeting)


def choose_judging(
    plan: PreflightPlan, meeting: Meeting, gathered: Gathered, backends: Sequence[str], pairs: LoadedPairs | None
) -> Judging:
    """Choose cases, variations and the depth of the oracle, the same on every rank.

    Args:
        plan: The plan.
        meeting: Where this rank stands.
        gathered: For the memory that the oracle may take.
        backends: Those that were shown to run on every rank.
        pairs: Of the data, the same on all ranks; None without.

    Returns:
        What parity is judged on.
    """
    world_size = meeting.place.world_size
    cases = (
        cases_of_data(pairs.groups)
        if pairs is not None
        else parity_cases(
            vocab_size=plan.vocab_size, seed=plan.options.seed, world_size=world_size, is_tiny=plan.is_tiny
        )
    )
    variations = default_variations(meeting.place.device)
    return Judging(
        plan=plan,
        device=meeting.place.device,
        depth=_depth(plan, gathered, cases),
        cases=cases,
        subjects=tuple(select_subject(backend) for backend in backends),
        variations=variations if plan.is_tiny else tuple(name for name in variations if name in _FEW_VARIATIONS),
    )


def _depth(plan: PreflightPlan, gathered: Gathered, cases: Sequence[Case]) -> OracleDepth:
    if plan.options.oracle_layers is not None:
        return OracleDepth(num_layers=plan.options.oracle_layers, why_cut="--oracle-layers")
    if plan.sizes is None:
        return OracleDepth(num_layers=plan.num_layers)
    return oracle_depth(
        plan.sizes,
        plan.model.lora,
        num_layers=plan.num_layers,
        num_tokens=max(case.pairwise_slots for case in cases),
        itemsize=itemsize_of(plan.options.dtype),
        host_bytes=gathered.host_bytes,
        stage_s=plan.options.timeout_s,
    )


def _judge_with_oracle(judging: Judging, meeting: Meeting) -> None:
    """Against one process, the oracle and the unpacked path, on as many layers as the oracle can do."""
    plan, dtype, policy = judging.plan, judging.plan.options.dtype, load_policy(None)
    request = replace(
        plan.model, device=judging.device, num_layers=judging.depth.num_layers if plan.can_be_cut else None
    )
    meeting.enter(PARITY)
    yardsticks = measure_yardsticks(
        ModelHolder(request, dtype),
        judging.cases,
        judging.subjects,
        dtype=dtype,
        objective=judging.objective,
        policy=policy,
        variations=judging.variations,
        seed=judging.seed,
        begin=lambda what: None,
    )
    model = sharded_model(request, dtype, HONEST)
    said = f"{len(judging.cases)} cases, {plan.depth_in_words(judging.depth.num_layers)}, {dtype} on {judging.device}"
    for subject in judging.subjects:
        meeting.enter(PARITY)
        verdicts: list[tuple[Verdict, Sequence[str]]] = []
        judgements: list[tuple[str, Judgement]] = []
        first: list[Observation] = []
        for case in judging.cases:
            first.append(judging.on(model, subject, case))
            verdict, reasons, judged = judge_parity(
                first[-1], subject.name, yardsticks.by_case[case.name], yardsticks, dtype=dtype, policy=policy
            )
            verdicts.append((verdict, reasons))
            judgements += judged
        meeting.together([finding_of(PARITY, subject.name, verdicts, judgements, said)])
        meeting.enter(DETERMINISM)
        meeting.together(_determinism(judging, subject, model, first, yardsticks.noise))
        digests = {case.name: _digest(seen) for case, seen in zip(judging.cases, first, strict=True)}
        alike = agreement(DETERMINISM, meeting.gathered(digests), hint=_HINT_DETERMINISM)
        meeting.together([replace(alike, part=f"{subject.name} alike")])
    meeting.enter(planted.PROBE)
    honest, case = judging.subjects[0], judging.cases[0]
    for part, subject, stages in (
        (planted.LEAK, planted.Leaking(subject=honest), HONEST),
        (planted.NO_WORLD_SIZE, honest, planted.without_world_size()),
    ):
        actual = judging.on(model, subject, case, stages)
        verdict, _, judged = judge_parity(
            actual, honest.name, yardsticks.by_case[case.name], yardsticks, dtype=dtype, policy=policy
        )
        meeting.together([planted.noticed(part, verdict, judged, dtype)])


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
    judging: Judging, subject: Subject, model: object, first: Sequence[Observation], noise: NoiseFloor
) -> Iterator[Finding]:
    """The same step again: equal to the last bit, or no farther off than harmless variations are."""
    verdicts: list[tuple[Verdict, Sequence[str]]] = []
    judgements: list[tuple[str, Judgement]] = []
    for case, before in zip(judging.cases, first, strict=True):
        again = judging.on(model, subject, case)
        if _digest(again) == _digest(before):
            continue
        comparisons = compare_observations(again, before, case.groups, sizes=gradient_sizes(before.gradients or {}))
        judged = Judge("differential", before, judging.context(case, noise))(comparisons, gradients_absent_because="")
        verdicts.append((fold(each.verdict for each in judged), [each.reason for each in judged if each.reason]))
        judgements += [("the same step", each) for each in judged]
    if not verdicts:
        yield go(DETERMINISM, f"the same step twice is bit-identical on {len(first)} cases", part=subject.name)
        return
    found = finding_of(DETERMINISM, subject.name, verdicts, judgements, "the same step twice, not bit-identical")
    yield (
        found
        if found.outcome != "NO-GO"
        else no_go(DETERMINISM, found.seen, _HINT_DETERMINISM, part=subject.name, measures=found.measures)
    )


def _judge_full_depth(judging: Judging, meeting: Meeting) -> None:
    """All layers: packed against unpacked on the same sharded model."""
    meeting.enter(FULL_DEPTH)
    plan, dtype = judging.plan, judging.plan.options.dtype
    cases = [case for case in map(only_pairs, judging.cases) if case is not None]
    if not cases:
        meeting.together([abstains(FULL_DEPTH, "no case has a pair, which unpacked steps on all ranks need")])
        return
    model = sharded_model(replace(plan.model, device=judging.device), dtype, HONEST)
    forms = (WITNESS, *(VARIATIONS[name] for name in judging.variations))
    seen = {case.name: {form.name: judging.on(model, form, case) for form in forms} for case in cases}
    noise = measure_noise([noise_sample(case, seen[case.name], seen[case.name][WITNESS.name]) for case in cases])
    said = f"{plan.depth_in_words(plan.num_layers)}, {dtype}, packed against unpacked on the sharded model"
    for subject in judging.subjects:
        meeting.enter(FULL_DEPTH)
        verdicts: list[tuple[Verdict, Sequence[str]]] = []
        judgements: list[tuple[str, Judgement]] = []
        for case in cases:
            witness = seen[case.name][WITNESS.name]
            vacuous = vacuous_expectation(witness, case.groups)
            try:
                comparisons = compare_observations(
                    judging.on(model, subject, case),
                    witness,
                    case.groups,
                    sizes=gradient_sizes(witness.gradients or {}),
                )
            except StructureError as error:
                verdicts.append((Verdict.FAIL, [str(error)]))
                continue
            judge = Judge("differential", witness, judging.context(case, noise))
            judged = judge(comparisons, gradients_absent_because="")
            verdict = fold(each.verdict for each in judged)
            inconclusive = vacuous and verdict is Verdict.PASS
            verdicts.append(
                (Verdict.INCONCLUSIVE if inconclusive else verdict, [*vacuous, *(j.reason for j in judged if j.reason)])
            )
            judgements += [("unpacked", each) for each in judged]
        meeting.together([finding_of(FULL_DEPTH, subject.name, verdicts, judgements, said)])
