"""What the checks beside parity work on: one subject, in one precision, on the scenario that is probed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from verify.models.dtypes import DTYPES
from verify.objective import Objective, Preference
from verify.sharded.local_gradients import SummedGradients, gradients_of_one_rank, summed_gradients
from verify.sharded.models import PolicyAndFrozen
from verify.sharded.observe import ShardedRun, all_gathered, no_gradients_left, run_sharded
from verify.sharded.rank_work import SubjectOnRank, Table
from verify.sharded.scenarios import PRECISIONS, Scenario
from verify.sharded.yardsticks import Yardstick, Yardsticks, over
from verify.subject import Subject
from verify.subjects.sharded import ShardedStages
from verify.tolerance import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A subject on a sharded model, and what it must compute.

    Args:
        subject: The subject.
        precision: Name of the precision.
        scenario: The scenario.
        objective: The objective of its case.
        sharded_models: The sharded model and its frozen policy.
        whole_models: The same whole, as a rank computes with them.
        table: Values of the frozen policy, in the order of the data; none under a reward model.
        yardstick: What one process computes.
        yardsticks: Of all cases of the dtype.
        policy: Factors and floors.
        seed: Of torch's generator during passes.
        summed: What the ranks' own gradients add up to.
        alone: What one rank leaves that has the whole batch.
        is_repeatable: Whether that has the same bits a second time, on every rank.
        dummy_learns: Whether the value of a dummy call has a gradient, on every rank.
        runs: Steps that were run on this sharded model, by their stages and whether the reference was cached: the same
            step gives the same bits.
    """

    subject: Subject
    precision: str
    scenario: Scenario
    objective: Objective
    sharded_models: PolicyAndFrozen
    whole_models: PolicyAndFrozen
    table: Table
    yardstick: Yardstick
    yardsticks: Yardsticks
    policy: Policy
    seed: int
    summed: SummedGradients
    alone: Mapping[str, Tensor]
    is_repeatable: bool
    dummy_learns: bool
    runs: dict[tuple[ShardedStages, bool], ShardedRun] = field(default_factory=dict, repr=False)

    @property
    def sharded(self) -> Any:
        """The sharded model."""
        return self.sharded_models.policy

    @property
    def whole(self) -> Any:
        """The whole model."""
        return self.whole_models.policy

    @property
    def is_cached(self) -> bool:
        """Whether the frozen policy of every step is one that stands beside the data."""
        return self.scenario.reference == "cached"

    def on_other(self, sharded: PolicyAndFrozen) -> Bench:
        """The same bench with other sharded models."""
        return replace(self, sharded_models=sharded, runs={})

    def step(self, stages: ShardedStages, *, cached: bool = False) -> ShardedRun:
        """One step of the scenario; run the first time it is asked for. A collective."""
        cached = cached or self.is_cached
        if (stages, cached) not in self.runs:
            self.runs[stages, cached] = run_sharded(
                self.on_rank(cached=cached), micro_size=self.scenario.micro_size, stages=stages, seed=self.seed
            )
        return self.runs[stages, cached]

    def on_rank(self, *, cached: bool = False, dummy_factor: float = 1.0) -> SubjectOnRank:
        """The subject on the sharded model."""
        return SubjectOnRank(
            self.subject,
            self.sharded,
            self.scenario.case.groups,
            over(self.objective, self.sharded_models.frozen),
            table=self.table if cached or self.is_cached else None,
            dummy_factor=dummy_factor,
        )

    def on_whole(self) -> SubjectOnRank:
        """The subject on the whole model."""
        return on_whole_models(self.subject, self.scenario, self.yardstick, self.whole_models)

    @property
    def reduce_epsilon(self) -> float:
        """Machine epsilon of the dtype in which gradients are to be summed."""
        return float(torch.finfo(DTYPES[PRECISIONS[self.precision].reduces]).eps)


def measure_bench(
    subject: Subject,
    scenario: Scenario,
    yardsticks: Yardsticks,
    *,
    precision: str,
    sharded: PolicyAndFrozen,
    whole: PolicyAndFrozen,
    policy: Policy,
    seed: int,
) -> Bench:
    """Run the subject on whole models, so that there is something to hold the sharded one against. A collective.

    Args:
        subject: The subject.
        scenario: The scenario that is probed.
        yardsticks: Of the dtype.
        precision: Name of the precision.
        sharded: The sharded model and its frozen policy.
        whole: The same whole.
        policy: Factors and floors.
        seed: Of torch's generator during passes.

    Returns:
        The bench.
    """
    yardstick = yardsticks.by_case[scenario.case.name]
    on_whole = on_whole_models(subject, scenario, yardstick, whole)
    reduces = DTYPES[PRECISIONS[precision].reduces]
    alone, again = (
        gradients_of_one_rank(on_whole, micro_size=scenario.micro_size, seed=seed, reduces=reduces) for _ in range(2)
    )
    same_bits = all(torch.equal(again[name], gradient) for name, gradient in alone.items())
    return Bench(
        subject=subject,
        precision=precision,
        scenario=scenario,
        objective=yardstick.objective,
        sharded_models=sharded,
        whole_models=whole,
        table=table_of(yardstick),
        yardstick=yardstick,
        yardsticks=yardsticks,
        policy=policy,
        seed=seed,
        summed=summed_gradients(on_whole, micro_size=scenario.micro_size, seed=seed),
        alone=alone,
        is_repeatable=all(all_gathered(same_bits)),
        dummy_learns=all(all_gathered(_learns_from_dummy(on_whole))),
    )


def on_whole_models(
    subject: Subject, scenario: Scenario, yardstick: Yardstick, whole: PolicyAndFrozen
) -> SubjectOnRank:
    """A subject on whole models, in a scenario."""
    return SubjectOnRank(
        subject,
        whole.policy,
        scenario.case.groups,
        over(yardstick.objective, whole.frozen),
        table=table_of(yardstick) if scenario.reference == "cached" else None,
    )


def _learns_from_dummy(on_whole: SubjectOnRank) -> bool:
    """Whether a dummy call would add anything: beyond the kink of a hinge, say, it has no gradient."""
    with no_gradients_left(on_whole.model), torch.enable_grad():
        on_whole.dummy().backward()  # type: ignore[no-untyped-call]
        return any(bool(p.grad.any()) for p in on_whole.model.parameters() if p.grad is not None)


def table_of(yardstick: Yardstick) -> Table:
    """Log-probs of the frozen policy in the order of the data: the cached ones, or those of the unpacked path.

    Raises:
        ValueError: A group with tokens that are not supervised, of which the unpacked path says nothing.
    """
    if not isinstance(yardstick.objective, Preference):
        return ()
    if yardstick.looked_up is not None:
        looked_up = iter(yardstick.looked_up)
        return [tuple(next(looked_up) for _ in group.completions) for group in yardstick.case.groups]
    values = iter(yardstick.witness.ref_per_token_logps)
    if any(group.completion_masks for group in yardstick.case.groups):
        raise ValueError(f"case {yardstick.case.name}: values are cached for supervised tokens only, and some are not")
    return [tuple(next(values) for _ in group.completions) for group in yardstick.case.groups]
