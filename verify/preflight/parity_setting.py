"""On what the sharded model is judged: cases, backends, precision, and how deep the oracle goes; alike on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.words import duration, listed, plural
from verify.groups import PreferenceGroup
from verify.judgement import JudgingContext
from verify.models.dtypes import DTYPES
from verify.models.request import ModelRequest, ModelUnderTest
from verify.noise import NoiseFloor
from verify.objective import Preference, objective_named, run_objective
from verify.observation import Observation
from verify.preflight.depth import OracleDepth, OracleMeans, oracle_depth
from verify.preflight.effort import (
    Effort,
    Rates,
    Workload,
    measure_rates,
    packed_tokens,
    slowest,
    unpacked_tokens,
)
from verify.preflight.headroom import available_bytes
from verify.preflight.look_around import Gathered
from verify.preflight.meeting import Meeting
from verify.preflight.parity_cases import ParityCase, made_up_pairs, parity_cases, tiny_parity_cases
from verify.preflight.plan import PreflightPlan
from verify.sharded.models import sharded_model
from verify.sharded.observe import run_sharded
from verify.sharded.rank_work import SubjectOnRank
from verify.sharded.scenarios import PRECISIONS
from verify.subject import Subject
from verify.subjects.pairwise import default_variations
from verify.subjects.selection import select_subject
from verify.subjects.sharded import HONEST, ShardedStages
from verify.tolerance import Policy, load_policy

_FEW_VARIATIONS = ("eager", "padded-left", "repeat")
"""Of a model of real size, whose passes take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParitySetting:
    """What parity is judged on.

    Args:
        plan: The plan.
        device: Of this rank.
        depth: Of the oracle.
        cases: The cases.
        subjects: The backends that were shown to run.
        variations: Names of harmless variations of the unpacked path.
        policy: Factors and floors.
        effort: How long it is expected to take; None for a tiny model, or where the sizes of the model do not tell.
    """

    plan: PreflightPlan
    device: str
    depth: OracleDepth
    cases: tuple[ParityCase, ...]
    subjects: tuple[Subject, ...]
    variations: tuple[str, ...]
    policy: Policy
    effort: Effort | None

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

    def describe(self) -> str:
        """What is run, e.g. "all 28 layers, 3 pairs of up to 32 tokens, dense-sdpa and split, 2 ranks"."""
        depth = self.plan.depth_in_words(self.depth.num_layers)
        then = f"; then all {self.plan.num_layers}, packed against unpacked" if self.is_cut else ""
        groups = [group for each in self.cases for group in each.case.groups]
        longest = max(map(packed_tokens, groups))
        kernels = listed([subject.name for subject in self.subjects])
        return f"{depth} against the oracle{then}; {plural(len(groups), 'pair')} of up to {longest} tokens, {kernels}"

    def too_long(self, *, full_depth: bool) -> str:
        """Why a part would be ended by the watch before it is done; "" where it would not.

        Args:
            full_depth: The steps at full depth, rather than those that the oracle judges.
        """
        if self.effort is None:
            return ""
        needed, limit = self.effort.full_step_s if full_depth else self.effort.longest_s, self.plan.options.timeout_s
        if needed <= limit:
            return ""
        shorter = "shorter pairs (--max-tokens)" if self.plan.options.data else "one backend (--backend)"
        return (
            f"a part of it would take about {duration(needed)}, and --timeout ends it after {limit:g} s: give "
            f"--timeout {2 * needed:.0f}, {shorter}, or fewer layers (--layers)"
        )

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

    def request(self, num_layers: int) -> ModelRequest:
        """The model at a depth, on the device of this rank."""
        return replace(self.plan.model, device=self.device, num_layers=num_layers if self.plan.can_be_cut else None)

    def sharded_model(self, num_layers: int, built: ModelUnderTest | None = None) -> Any:
        """The model at a depth, sharded. A collective.

        Args:
            num_layers: The depth.
            built: What was built at that depth in the dtype of passes: it is sharded if shards have that dtype.
        """
        precision = self.plan.options.dtype
        whole = built if PRECISIONS[precision].weights == self.plan.computes else None
        return sharded_model(self.request(num_layers), precision, HONEST, built=whole)

    def step(self, model: Any, subject: Subject, of: ParityCase, stages: ShardedStages | None = None) -> Observation:
        """One sharded step. A collective.

        Args:
            model: The sharded model.
            subject: The subject.
            of: The case.
            stages: Of the step; the honest ones of the case if None.
        """
        objective = objective_named(of.case.objective_name, self.objective)
        on_rank = SubjectOnRank(subject=subject, model=model, groups=of.case.groups, objective=objective)
        done = run_sharded(on_rank, micro_size=1, stages=stages or of.stages, seed=self.seed)
        return done.observation(on_rank)

    def context(self, of: ParityCase, noise: NoiseFloor) -> JudgingContext:
        """What a judge needs."""
        return JudgingContext(
            case=of.case.name,
            groups=of.case.groups,
            dtype_name=self.plan.computes,
            objective=objective_named(of.case.objective_name, self.objective),
            policy=self.policy,
            noise=noise,
        )


def choose_setting(
    plan: PreflightPlan,
    meeting: Meeting,
    gathered: Gathered,
    backends: Sequence[str],
    pairs: Sequence[PreferenceGroup],
    *,
    gather_s: float,
) -> ParitySetting:
    """Choose cases, variations and the depth of the oracle. A collective.

    Args:
        plan: The plan.
        meeting: Where this rank stands.
        gathered: For the memory that the oracle may take.
        backends: Those that were shown to run on every rank.
        pairs: Of the data, the same on all ranks; none without.
        gather_s: Seconds in which a byte is gathered from other ranks.

    Returns:
        What parity is judged on.
    """
    world_size, device = meeting.place.world_size, meeting.place.device
    cases = _cases(plan, world_size, device, pairs)
    variations = default_variations(device)
    if not plan.is_tiny:
        variations = tuple(name for name in variations if name in _FEW_VARIATIONS)
    workload = rates = None
    if plan.sizes is not None and not plan.is_tiny:
        workload = Workload(
            config=plan.sizes,
            lora=plan.model.lora,
            cases=cases,
            num_layers=plan.num_layers,
            num_subjects=len(backends),
            num_unpacked=1 + len(variations),
            itemsize=plan.weights.itemsize,
            world_size=world_size,
        )
        own = measure_rates(plan.sizes, device, DTYPES[plan.computes], gather_s)
        rates = slowest(meeting.gathered(own))
    depth = _depth(plan, meeting, gathered, workload, rates)
    return ParitySetting(
        plan=plan,
        device=device,
        depth=depth,
        cases=cases,
        subjects=tuple(select_subject(backend) for backend in backends),
        variations=variations,
        policy=load_policy(None),
        effort=None if workload is None or rates is None else workload.expected(depth.num_layers, rates),
    )


def _cases(
    plan: PreflightPlan, world_size: int, device: str, pairs: Sequence[PreferenceGroup]
) -> tuple[ParityCase, ...]:
    seed, vocab_size = plan.options.seed, plan.vocab_size
    if plan.is_tiny and not pairs:
        return tiny_parity_cases(vocab_size, seed)
    return parity_cases(pairs or made_up_pairs(vocab_size, seed, world_size + 1, short=device == "cpu"), world_size)


def _depth(
    plan: PreflightPlan, meeting: Meeting, gathered: Gathered, workload: Workload | None, rates: Rates | None
) -> OracleDepth:
    """As deep as the rank with the least memory and the slowest float64 can go."""
    if plan.options.oracle_layers is not None:
        return OracleDepth(num_layers=plan.options.oracle_layers, why_cut="--oracle-layers")
    if workload is None or rates is None:
        return OracleDepth(num_layers=plan.num_layers)
    available = meeting.gathered(available_bytes(gathered.machine, plan.profile))
    known = [each for each in available if each is not None]
    groups = [group for each in workload.cases for group in each.case.groups]
    return oracle_depth(
        workload.config,
        workload.lora,
        num_layers=plan.num_layers,
        tokens_of_group=max(map(unpacked_tokens, groups)),
        itemsize=plan.itemsize,
        means=OracleMeans(
            available_bytes=min(known) if len(known) == len(available) else None,
            expected_s=lambda depth: workload.expected(depth, rates).one_process_s,
            stage_s=plan.options.timeout_s,
        ),
    )
