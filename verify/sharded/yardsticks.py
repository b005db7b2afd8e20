"""What sharded steps are held against, computed without sharding: oracle, unpacked path, and the subject itself.

The work is shared among the ranks, case by case; each holds the whole model for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch.distributed as dist

from verify.cases import Case
from verify.comparison import gradient_sizes
from verify.frozen_policy import ADAPTERS_OFF, FrozenPolicy
from verify.gate_work import noise_sample
from verify.model_holder import ModelHolder
from verify.models.dtypes import computing_in
from verify.noise import NoiseFloor, NoiseSample, measure_noise
from verify.objective import Objective, Preference, RunObjective, objective_named
from verify.observation import Observation, observe
from verify.sharded.observe import all_gathered
from verify.subject import Subject, support_for
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.tolerance import Policy
from verify.vacuity import implausible_witness, vacuous_adapters, vacuous_expectation

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """One case in one dtype, as one process computes it.

    Args:
        case: The case.
        objective: Its objective; the frozen policy is that of each model on which it is computed.
        expected: The oracle's observation.
        witness: The unpacked path's.
        singles: Each subject's own, by its name, from one call with all groups.
        sizes: Sizes of the true gradients.
        noise: Comparisons among the forms of the unpacked path.
        vacuous: Why the case would prove nothing.
        implausible: Why its budgets are in doubt.
    """

    case: Case
    objective: Objective
    expected: Observation
    witness: Observation
    singles: Mapping[str, Observation]
    sizes: Mapping[str, float]
    noise: NoiseSample
    vacuous: tuple[str, ...]
    implausible: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardsticks:
    """All cases of one dtype.

    Args:
        by_case: By the name of the case.
        noise: The noise floor over all of them.
    """

    by_case: Mapping[str, Yardstick]
    noise: NoiseFloor


def measure_yardsticks(
    holder: ModelHolder,
    cases: Sequence[Case],
    subjects: Sequence[Subject],
    *,
    dtype: str,
    objective: RunObjective,
    policy: Policy,
    variations: Sequence[str],
    seed: int,
    begin: Callable[[str], None],
) -> Yardsticks:
    """Observe every case in one process. A collective: each rank does some of the cases.

    Args:
        holder: The whole model in this dtype.
        cases: The cases.
        subjects: The subjects that are run sharded.
        dtype: Name of the dtype, as the gate knows it.
        objective: The objective of cases of pairs and groups.
        policy: Bounds of what is plausible.
        variations: Names of the variations of the unpacked path.
        seed: Of torch's generator during passes.
        begin: Called before each case.

    Returns:
        The yardsticks, on every rank.
    """

    def measure(case: Case) -> Yardstick:
        begin(f"{dtype} {case.name}: one process")
        of_case = objective_named(case.objective_name, holder.with_reference(objective))

        def run(subject: Subject) -> Observation:
            with computing_in(dtype, "cpu" if holder.model.device.type == "cpu" else str(holder.model.device)):
                return observe(
                    subject,
                    holder.model,
                    case.groups,
                    of_case,
                    apply_objective=apply_objective,
                    seed=seed,
                    baseline=holder.baseline,
                )

        expected = holder.expectation.of(case.groups, of_case)
        forms = {WITNESS.name: run(WITNESS), **{name: run(VARIATIONS[name]) for name in variations}}
        noise = noise_sample(case, forms, expected)
        return Yardstick(
            case=case,
            objective=over(of_case, ADAPTERS_OFF),
            expected=expected,
            witness=forms[WITNESS.name],
            singles={s.name: run(s) for s in subjects if support_for(s, case, holder.reference.name).supported},
            sizes=gradient_sizes(expected.gradients or {}),
            noise=noise,
            vacuous=(*vacuous_adapters(holder.model), *vacuous_expectation(expected, case.groups)),
            implausible=implausible_witness(noise.to_oracle, policy.plausible.for_dtype(dtype)),
        )

    found = {yardstick.case.name: yardstick for yardstick in shared_among_ranks(cases, measure)}
    proves_nothing = {name for name, yardstick in found.items() if yardstick.vacuous or yardstick.implausible}
    noise = measure_noise([yardstick.noise for yardstick in found.values()], not_pooled=proves_nothing)
    return Yardsticks(by_case=found, noise=noise)


def over(objective: Objective, frozen: FrozenPolicy) -> Objective:
    """The objective over another frozen policy, where it has one."""
    return replace(objective, reference=frozen) if isinstance(objective, Preference) else objective


def shared_among_ranks(items: Sequence[_Item], work: Callable[[_Item], _Result]) -> list[_Result]:
    """Do some work on every item, each on one rank, and give all results to all ranks. A collective."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = {number: work(items[number]) for number in range(rank, len(items), world_size)}
    of_all: dict[int, _Result] = {}
    for of_rank in all_gathered(own):
        of_all |= of_rank
    return [of_all[number] for number in range(len(items))]
