"""How long the work of one precision will take: told before it begins, from a step that is timed on its own model.

Unit of work is a step of adapters (policy, reference and backward pass) over one token. Sharded steps are taken to be
packed, as those of most subjects are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from reports.words import duration, plural
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.dtypes import computing_in
from verify.objective import RunObjective, objective_named
from verify.observation import observe
from verify.sharded.dealing import largest_load
from verify.sharded.observe import all_gathered
from verify.sharded.scenarios import PRECISIONS, Scenario
from verify.subject import support_for
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import WITNESS
from verify.subjects.sharded import HONEST

if TYPE_CHECKING:
    from verify.sharded.run import ShardedRequest

BENCH_STEPS = 5
"""Steps of the probed scenario on whole models, among which two in which a rank has the whole batch."""
CHECK_STEPS = 12
"""Sharded steps of the checks beside parity: two with the whole batch on one rank, three of the optimizer with as many
on whole models, and one or less of each other."""
FAULT_STEPS = 1.5
HARMLESS_STEPS = 3
_ORACLE = 3
"""Of float64, a form of the unpacked path taking 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one precision runs.

    Args:
        scenarios: The scenarios; the first is probed.
        runs: Of the scenarios each as often as subjects take it.
        num_unpacked: Forms of the unpacked path.
        num_faults: Faults that are planted.
        num_harmless: Harmless changes that are made.
    """

    scenarios: Sequence[Scenario]
    runs: Sequence[Scenario]
    num_unpacked: int
    num_faults: int
    num_harmless: int

    def tokens(self, world_size: int) -> float:
        """Tokens that the rank with most to do takes a step over, dummy calls counted as calls.

        Args:
            world_size: Number of ranks.
        """
        slots = {each.case.name: each.case.pairwise_slots for each in self.scenarios}
        pieces = [n for count in slots.values() for n in (_ORACLE * count, *[count] * self.num_unpacked)]
        pieces += [each.case.pairwise_slots for each in self.runs if each.reference != "cached" and not each.label]
        parity = sum(largest_share(each, world_size) for each in self.runs)
        steps = BENCH_STEPS + CHECK_STEPS + FAULT_STEPS * self.num_faults + HARMLESS_STEPS * self.num_harmless
        return largest_load(pieces, world_size) + parity + steps * largest_share(self.scenarios[0], world_size)

    def in_words(self) -> str:
        """What it consists of."""
        groups = [group for each in self.scenarios for group in each.case.groups]
        longest = max(len(group.prompt_ids) + max(map(len, group.completions)) for group in groups)
        planted = f"{self.num_faults} faults"
        if self.num_harmless:
            planted += f" and {self.num_harmless} harmless changes"
        return (
            f"parity of {plural(len(self.runs), 'subject and scenario', 'subjects and scenarios')}, sequences of up to "
            f"{plural(longest, 'token')}; checks, {planted}"
        )


def announcement(request: ShardedRequest, precision: str, holder: ModelHolder) -> str:
    """What is run in a precision, and about how long it takes here. A collective.

    Args:
        request: What is judged.
        precision: Name of the precision.
        holder: The whole model in it.
    """
    workload = Workload(
        scenarios=request.scenarios,
        runs=[
            scenario
            for scenario in request.scenarios
            for subject in request.subjects
            if support_for(subject, scenario.case, scenario.reference).supported
        ],
        num_unpacked=1 + len(request.variations),
        num_faults=len(request.faults),
        num_harmless=len(request.harmless) if precision == request.precisions[0] else 0,
    )
    dtype = PRECISIONS[precision].computes
    token_s = seconds_of_token(holder, request.scenarios[0], request.objective, dtype, request.seed)
    expected = duration(token_s * workload.tokens(dist.get_world_size()))
    later = request.precisions[request.precisions.index(precision) + 1 :]
    then = f"; then {', '.join(later)}" if later else ""
    return f"{precision}: {workload.in_words()}: about {expected}{then}"


def largest_share(scenario: Scenario, world_size: int) -> int:
    """Tokens of the rank that has most of them, each prompt once."""
    groups = scenario.case.groups
    of_ranks = HONEST.assign(len(groups), world_size)
    return max(sum(_packed_tokens(groups[at]) for at in own) for own in of_ranks)


def seconds_of_token(holder: ModelHolder, scenario: Scenario, of_run: RunObjective, dtype: str, seed: int) -> float:
    """How long the slowest rank takes for a token, all being busy, in a step of the unpacked path. A collective.

    Args:
        holder: The whole model.
        scenario: Whose longest group is taken.
        of_run: The objective of cases of pairs and groups.
        dtype: Name of the dtype of passes.
        seed: Of torch's generator.
    """
    groups = [max(scenario.case.groups, key=_unpacked_tokens)]
    objective = objective_named(scenario.case.objective_name, holder.with_reference(of_run))
    times = []
    for _ in range(2):  # the first warms up
        dist.barrier()
        started = time.perf_counter()
        with computing_in(dtype, "cpu" if holder.model.device.type == "cpu" else str(holder.model.device)):
            observe(
                WITNESS,
                holder.model,
                groups,
                objective,
                apply_objective=apply_objective,
                seed=seed,
                baseline=holder.baseline,
            )
        times.append(time.perf_counter() - started)
    return float(max(all_gathered(times[-1]))) / _unpacked_tokens(groups[0])


def _unpacked_tokens(group: PreferenceGroup) -> int:
    return sum(len(group.prompt_ids) + len(ids) for ids in group.completions)


def _packed_tokens(group: PreferenceGroup) -> int:
    return len(group.prompt_ids) + sum(map(len, group.completions))
