"""A run of sharded parity, as every rank runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch.distributed as dist

from verify.cases import Case
from verify.comparison import StructureError
from verify.model_holder import ModelHolder
from verify.model_state import WeightsChangedError, mixed_sum
from verify.models.request import ModelRequest, ModelUnderTest
from verify.objective import Preference, RewardModel, RunObjective
from verify.sharded.agreement import check_same_weights
from verify.sharded.bench import Bench, measure_bench, on_whole_models, table_of
from verify.sharded.checks import CHECKS
from verify.sharded.effort import announcement
from verify.sharded.faults import FAULTS, HARMLESS, HarmlessChange, ShardedFault
from verify.sharded.finding import Finding
from verify.sharded.models import PolicyAndFrozen, sharded_models, whole_models
from verify.sharded.observe import all_gathered, run_sharded, seeded
from verify.sharded.parity import ParityResult, judge_parity
from verify.sharded.planting import Ground, NotPlanted, planted_in, why_not_planted
from verify.sharded.rank_work import NotShardedError, SubjectOnRank, forward_calls
from verify.sharded.scenarios import PRECISIONS, Scenario
from verify.sharded.yardsticks import Yardsticks, measure_yardsticks, over
from verify.subject import Subject, gradient_support, support_for
from verify.subjects import is_built_in
from verify.subjects.sharded import HONEST, ShardedStages, local_shards
from verify.tolerance import Policy
from verify.verdict import Verdict

Begin = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedRequest:
    """What to judge.

    Args:
        model: The model request.
        precisions: Names of ``PRECISIONS``; at least one.
        subjects: The subjects; at least one. The first that takes the probed scenario is put to the checks.
        scenarios: The scenarios; the first is the one that is probed.
        policy: Factors and floors.
        variations: Names of the variations of the unpacked path.
        faults: What is planted.
        harmless: Harmless changes that are made, in the first precision.
        seed: Of torch's generator during passes.
        objective: The objective of cases of pairs and groups that name it.
    """

    model: ModelRequest
    precisions: tuple[str, ...]
    subjects: tuple[Subject, ...]
    scenarios: tuple[Scenario, ...]
    policy: Policy
    variations: tuple[str, ...]
    seed: int
    faults: tuple[ShardedFault, ...] = FAULTS
    harmless: tuple[HarmlessChange, ...] = HARMLESS
    objective: RunObjective = field(default_factory=Preference)

    def __post_init__(self) -> None:
        names = [subject.name for subject in self.subjects]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"subjects named twice: {', '.join(twice)}")

    @property
    def is_reward_model(self) -> bool:
        """Whether the model is a reward model."""
        return isinstance(self.objective, RewardModel)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases of the scenarios, each once."""
        return tuple({scenario.case.name: scenario.case for scenario in self.scenarios}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault that was planted in this run, or a harmless change that was made.

    Args:
        name: Its name.
        what: What is wrong, or other.
        precision: Name of the precision.
        findings: Of the checks that have to catch a fault; of those that have to pass under a change.
    """

    name: str
    what: str
    precision: str
    findings: tuple[Finding, ...]

    @property
    def caught_by(self) -> tuple[str, ...]:
        """The checks that failed."""
        return tuple(finding.check for finding in self.findings if finding.verdict is Verdict.FAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedOutcome:
    """Everything that a run measured, the same on every rank.

    Args:
        parity: In the order precision, scenario, subject.
        findings: Of the checks, in the order precision, check.
        planted: Faults, in the order precision, fault.
        harmless: Changes, in the first precision.
        not_planted: Faults that could not have shown.
        model: The model in the last precision, whole.
    """

    parity: tuple[ParityResult, ...]
    findings: tuple[Finding, ...]
    planted: tuple[Planted, ...]
    harmless: tuple[Planted, ...]
    not_planted: tuple[NotPlanted, ...]
    model: ModelUnderTest


def run_sharded_parity(request: ShardedRequest, begin: Begin, say: Begin | None = None) -> ShardedOutcome:
    """Run everything. A collective.

    Args:
        request: What to judge.
        begin: Called with what is being done.
        say: Called before each precision with what it runs and about how long that takes, for which a step is timed;
            None where that is not worth it. Given on all ranks or on none.

    Returns:
        The outcome.

    Raises:
        ValueError: Ranks whose weights differ.
        SubjectError: A subject raised on this rank.
        WeightsChangedError: A subject changed the weights of a model, or trains the frozen one.
    """
    parity: list[ParityResult] = []
    findings: list[Finding] = []
    planted: list[Planted] = []
    harmless: list[Planted] = []
    not_planted: list[NotPlanted] = []
    for precision in request.precisions:
        of = _OfPrecision(request, precision, begin, say)
        parity += of.parity()
        if (bench := of.bench(parity)) is not None:
            for check in CHECKS.values():
                if not check.name.startswith("parity"):  # which all scenarios have been put to
                    begin(f"{precision} {check.name}: {bench.subject.name}")
                    findings.append(check.run(bench, HONEST))
            for fault in request.faults:
                if why := why_not_planted(fault, of.ground(bench, parity)):
                    not_planted.append(NotPlanted(name=fault.name, precision=precision, reason=why))
                else:
                    planted.append(of.planted(bench, fault))
            # Users' own subjects may rest on how a model is sharded: the changes are about the checks, not about them.
            if precision == request.precisions[0] and is_built_in(bench.subject):
                harmless += [of.changed(bench, change) for change in request.harmless]
    return ShardedOutcome(
        parity=tuple(parity),
        findings=tuple(findings),
        planted=tuple(planted),
        harmless=tuple(harmless),
        not_planted=tuple(not_planted),
        model=of.under_test,
    )


class _OfPrecision:
    """The models of one precision, and what is run on them."""

    def __init__(self, request: ShardedRequest, precision: str, begin: Begin, say: Begin | None) -> None:
        self._request, self._precision, self._begin = request, precision, begin
        self._dtype = PRECISIONS[precision].computes
        holder = ModelHolder(request.model, self._dtype, is_reward_model=request.is_reward_model)
        self.under_test = holder.under_test
        whole = PolicyAndFrozen.of(holder.under_test, request.model.reference)
        for model in (holder.model, holder.under_test.other):
            if model is not None:
                check_same_weights(model, self._dtype)
        if say is not None:
            begin(f"{precision}: timing a step")
            say(announcement(request, precision, holder))
        self._yardsticks = self._measured(holder)
        is_cast = PRECISIONS[precision].weights != self._dtype
        is_reward_model = request.is_reward_model
        self._whole = whole_models(request.model, precision, is_reward_model=is_reward_model) if is_cast else whole
        self._sharded: dict[str, PolicyAndFrozen] = {}

    def _measured(self, holder: ModelHolder) -> Yardsticks:
        request = self._request
        return measure_yardsticks(
            holder,
            request.cases,
            request.subjects,
            dtype=self._dtype,
            objective=request.objective,
            policy=request.policy,
            variations=request.variations,
            seed=request.seed,
            begin=self._begin,
        )

    def _sharded_models(self, stages: ShardedStages, *, reshard_after_forward: bool = True) -> PolicyAndFrozen:
        return sharded_models(
            self._request.model,
            self._precision,
            stages,
            reshard_after_forward=reshard_after_forward,
            is_reward_model=self._request.is_reward_model,
        )

    def _sharded_for(self, subject: Subject) -> PolicyAndFrozen:
        """The sharded models of a subject. A collective the first time.

        Users' own have one each: what they leave there (hooks, settings of FSDP) is not to be the next one's fault.
        """
        owner = "" if is_built_in(subject) else subject.name
        if owner not in self._sharded:
            self._sharded[owner] = self._sharded_models(HONEST)
        return self._sharded[owner]

    def parity(self) -> Iterator[ParityResult]:
        """Every subject in every scenario."""
        for scenario in self._request.scenarios:
            for subject in self._request.subjects:
                self._begin(f"{self._precision} {scenario.name}: {subject.name}")
                yield self._parity_of(scenario, subject)

    def _parity_of(self, scenario: Scenario, subject: Subject) -> ParityResult:
        yardstick = self._yardsticks.by_case[scenario.case.name]
        result = ParityResult(
            scenario=scenario.name, subject=subject.name, precision=self._precision, verdict=Verdict.NOT_APPLICABLE
        )
        micro_size, why = self._fitting(scenario, subject)
        if why:
            return replace(result, reasons=(why,))
        sharded = self._sharded_for(subject)
        on_rank = SubjectOnRank(
            subject,
            sharded.policy,
            scenario.case.groups,
            over(yardstick.objective, sharded.frozen),
            table=table_of(yardstick) if scenario.reference == "cached" else None,
        )
        before = None if is_built_in(subject) else _bits(sharded)
        run = run_sharded(on_rank, micro_size=micro_size, stages=HONEST, seed=self._request.seed)
        if before is not None and before != _bits(sharded):
            raise WeightsChangedError(f"subject {subject.name} changed the weights of the sharded model")
        if trained := sharded.trained_though_frozen():
            raise WeightsChangedError(
                f"subject {subject.name} trains the frozen {'adapter' if '.lora_' in trained[0] else 'model'}: "
                f"{trained[0]} requires grad or has a gradient"
            )
        try:
            verdict, reasons, judgements = judge_parity(
                run.observation(on_rank),
                subject.name,
                yardstick,
                self._yardsticks,
                dtype=self._dtype,
                policy=self._request.policy,
            )
        except StructureError as error:
            verdict, reasons, judgements = Verdict.FAIL, (str(error),), ()
        return replace(
            result,
            verdict=verdict,
            reasons=reasons,
            judgements=judgements,
            micro_size=micro_size,
            groups_of_ranks=tuple(all_gathered(len(on_rank.seen))),
            dummies_of_ranks=run.num_dummies,
        )

    def _fitting(self, scenario: Scenario, subject: Subject) -> tuple[int, str]:
        """The size of micro-batches in which a subject is run, and why it is not; the same on every rank.

        Whoever makes a call for each group is run group by group: sharding needs as many calls on every rank.
        """
        support = support_for(subject, scenario.case, scenario.reference)
        if not support.supported:
            return 0, support.reason
        of_run = support_for(subject, scenario.case, self._request.model.reference)
        if not of_run.supported:  # what one process computes is over the frozen policy of the run
            return 0, f"nothing to hold it against in one process: {of_run.reason}"
        gradients = gradient_support(subject, self._whole.policy)
        if not gradients.supported:
            return 0, f"a step needs gradients: {gradients.reason}"
        counts: set[int] = set()
        for micro_size in dict.fromkeys((scenario.micro_size, 1)):
            try:
                counts = self._calls(replace(scenario, micro_size=micro_size), subject)
            except NotShardedError as error:
                return 0, str(error)
            if len(counts) == 1:
                return micro_size, ""
        return 0, (
            f"it makes {min(counts)} to {max(counts)} forward calls for a group, and sharding needs as many on every "
            "rank: make one call for all sequences of a group"
        )

    def _calls(self, scenario: Scenario, subject: Subject) -> set[int]:
        """Numbers of forward calls for the micro-batches of all ranks, and for a dummy call. A collective.

        Of our own subjects the dummy call stands for all: they make the same calls for any groups.
        """
        on_whole = on_whole_models(subject, scenario, self._yardsticks.by_case[scenario.case.name], self._whole)
        with seeded(self._request.seed):
            calls = {forward_calls(on_whole, ())}
            if not is_built_in(subject):
                calls |= {forward_calls(on_whole, places) for places in own_micro_batches(scenario)}
        return set().union(*all_gathered(calls))

    def bench(self, parity: Sequence[ParityResult]) -> Bench | None:
        """The bench of the first subject that ran in the scenario that is probed; None where there is none."""
        probed = self._request.scenarios[0]
        for subject in self._request.subjects:
            if (result := self._ran(probed.name, subject, parity)) is not None:
                self._begin(f"{self._precision} gradients of each rank: {subject.name}")
                return measure_bench(
                    subject,
                    replace(probed, micro_size=result.micro_size),
                    self._yardsticks,
                    precision=self._precision,
                    sharded=self._sharded_for(subject),
                    whole=self._whole,
                    policy=self._request.policy,
                    seed=self._request.seed,
                )
        return None

    def ground(self, bench: Bench, parity: Sequence[ParityResult]) -> Ground:
        """What faults would be planted in."""
        probed = self._request.scenarios[0]
        cached = [
            s.name for s in self._request.scenarios if s.reference == "cached" and s.case.name == probed.case.name
        ]
        return Ground(
            objective=bench.objective.name,
            reference=self._request.model.reference,
            train=self._request.model.train,
            micro_size=bench.scenario.micro_size,
            is_repeatable=bench.is_repeatable,
            dummy_learns=bench.dummy_learns,
            has_cached=any(self._ran(name, bench.subject, parity) is not None for name in cached),
        )

    def _ran(self, scenario: str, subject: Subject, parity: Sequence[ParityResult]) -> ParityResult | None:
        wanted = (scenario, subject.name, self._precision)
        return next(
            (
                result
                for result in parity
                if (result.scenario, result.subject, result.precision) == wanted
                and result.verdict is not Verdict.NOT_APPLICABLE
            ),
            None,
        )

    def planted(self, bench: Bench, fault: ShardedFault) -> Planted:
        """Plant a fault, and run the checks that have to catch it."""
        self._begin(f"{self._precision} planted {fault.name}")
        if fault.stages.reduce_dtype is not None:
            bench = bench.on_other(self._sharded_models(fault.stages))
        with planted_in(bench, fault) as wrong:
            findings = tuple(CHECKS[name].run(wrong, fault.stages) for name in fault.checks)
        return Planted(name=fault.name, what=fault.what, precision=self._precision, findings=findings)

    def changed(self, bench: Bench, change: HarmlessChange) -> Planted:
        """Make a harmless change, and run the checks that do not rest on how groups are cut."""
        self._begin(f"{self._precision} harmless {change.name}")
        if not change.reshard_after_forward:
            bench = bench.on_other(self._sharded_models(change.stages, reshard_after_forward=False))
        return Planted(
            name=change.name,
            what=change.what,
            precision=self._precision,
            findings=tuple(
                CHECKS[name].run(bench, change.stages) for name in ("parity", "every-group-once", "clip", "evaluation")
            ),
        )


def own_micro_batches(scenario: Scenario) -> Sequence[Sequence[int]]:
    """The micro-batches of this rank in a scenario."""
    own = HONEST.assign(len(scenario.case.groups), dist.get_world_size())[dist.get_rank()]
    return HONEST.micro_batches(own, scenario.micro_size)


def _bits(models: PolicyAndFrozen) -> list[Mapping[str, int]]:
    return [
        {name: mixed_sum(tensor.reshape(-1)) for name, tensor in local_shards(model).items()} for model in models.models
    ]
