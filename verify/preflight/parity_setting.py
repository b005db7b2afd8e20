"""On what the sharded model is judged: cases, backends, precision, and how deep the oracle goes; alike on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from verify.groups import PreferenceGroup
from verify.judgement import JudgingContext
from verify.models.request import ModelRequest
from verify.noise import NoiseFloor
from verify.objective import Preference, objective_named, run_objective
from verify.observation import Observation
from verify.preflight.depth import OracleDepth, OracleMeans, oracle_depth
from verify.preflight.headroom import available_bytes
from verify.preflight.look_around import Gathered
from verify.preflight.machine import float64_flops_per_s
from verify.preflight.meeting import Meeting
from verify.preflight.parity_cases import ParityCase, made_up_pairs, parity_cases, tiny_parity_cases
from verify.preflight.plan import PreflightPlan
from verify.sharded.models import sharded_model
from verify.sharded.observe import run_sharded
from verify.sharded.rank_work import SubjectOnRank
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
    """

    plan: PreflightPlan
    device: str
    depth: OracleDepth
    cases: tuple[ParityCase, ...]
    subjects: tuple[Subject, ...]
    variations: tuple[str, ...]
    policy: Policy

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

    def request(self, num_layers: int) -> ModelRequest:
        """The model at a depth, on the device of this rank."""
        return replace(self.plan.model, device=self.device, num_layers=num_layers if self.plan.can_be_cut else None)

    def sharded_model(self, num_layers: int) -> Any:
        """The model at a depth, sharded. A collective."""
        return sharded_model(self.request(num_layers), self.plan.options.dtype, HONEST)

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
) -> ParitySetting:
    """Choose cases, variations and the depth of the oracle. A collective.

    Args:
        plan: The plan.
        meeting: Where this rank stands.
        gathered: For the memory that the oracle may take.
        backends: Those that were shown to run on every rank.
        pairs: Of the data, the same on all ranks; none without.

    Returns:
        What parity is judged on.
    """
    world_size, seed, vocab_size = meeting.place.world_size, plan.options.seed, plan.vocab_size
    if plan.is_tiny and not pairs:
        cases = tiny_parity_cases(vocab_size, seed)
    else:
        cases = parity_cases(pairs or made_up_pairs(vocab_size, seed, world_size + 1), world_size)
    variations = default_variations(meeting.place.device)
    return ParitySetting(
        plan=plan,
        device=meeting.place.device,
        depth=_depth(plan, meeting, gathered, cases),
        cases=cases,
        subjects=tuple(select_subject(backend) for backend in backends),
        variations=variations if plan.is_tiny else tuple(name for name in variations if name in _FEW_VARIATIONS),
        policy=load_policy(None),
    )


def _depth(plan: PreflightPlan, meeting: Meeting, gathered: Gathered, cases: Sequence[ParityCase]) -> OracleDepth:
    """As deep as the rank with the least memory and the slowest float64 can go."""
    if plan.options.oracle_layers is not None:
        return OracleDepth(num_layers=plan.options.oracle_layers, why_cut="--oracle-layers")
    if plan.sizes is None or plan.is_tiny:
        return OracleDepth(num_layers=plan.num_layers)
    available = meeting.gathered(available_bytes(gathered.machine, plan.profile))
    known = [each for each in available if each is not None]
    slots = [each.case.pairwise_slots for each in cases]
    of_group = [sum(len(g.prompt_ids) + len(ids) for ids in g.completions) for each in cases for g in each.case.groups]
    cases_of_rank = -(-len(cases) // meeting.place.world_size)
    return oracle_depth(
        plan.sizes,
        plan.model.lora,
        num_layers=plan.num_layers,
        num_tokens=cases_of_rank * max(slots),
        tokens_of_group=max(of_group),
        itemsize=plan.itemsize,
        means=OracleMeans(
            available_bytes=min(known) if len(known) == len(available) else None,
            flops_per_s=min(meeting.gathered(float64_flops_per_s(meeting.place.device))),
            stage_s=plan.options.timeout_s,
        ),
    )
