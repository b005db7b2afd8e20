"""Checks of a sharded step beside parity. Each is a collective, and says the same on every rank.

A check takes stages: the honest ones, or those of a fault that it has to catch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.sharded.bench import Bench
from verify.sharded.evaluation import evaluation_differences
from verify.sharded.finding import Difference, Finding, abstained, found
from verify.sharded.local_gradients import sum_differences
from verify.sharded.observe import all_gathered, gathered_gradients, no_gradients_left, run_sharded, seeded
from verify.sharded.optimizer import optimizer_differences
from verify.sharded.parity import judge_parity
from verify.sharded.scenarios import PRECISIONS
from verify.subjects.sharded import ShardedStages, accumulate
from verify.verdict import Verdict

_NORM_TERM = 1e-6
"""What torch adds to the norm that it divides by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedCheck:
    """A check beside parity.

    Args:
        name: Its name.
        claims: What a PASS says.
        cannot_see: What it says nothing about.
        measure: Runs it.
        compares_bits: Whether it takes passes that give the same bits on whole and sharded models.
    """

    name: str
    claims: str
    cannot_see: str
    measure: Callable[[Bench, ShardedStages], Finding]
    compares_bits: bool = False

    def run(self, bench: Bench, stages: ShardedStages) -> Finding:
        """What the check finds; it abstains where it would be misled. A collective."""
        if self.compares_bits and not bench.is_repeatable:
            reason = "two runs of the same passes gave other bits here (kernels that add in any order?)"
            return abstained(self.name, bench.precision, bench.subject.name, reason)
        return self.measure(bench, stages)


def _parity(bench: Bench, stages: ShardedStages, *, cached: bool = False) -> Finding:
    run = bench.step(stages, cached=cached)
    name = "parity/cached" if cached else "parity"
    missing = sum(not times for times in run.seen)
    if missing:
        return found(name, bench.precision, bench.subject.name, [Difference("the number of groups", float(missing))])
    _, reasons, judgements = judge_parity(
        run.observation(bench.on_rank()),
        bench.subject.name,
        bench.yardstick,
        bench.yardsticks,
        dtype=PRECISIONS[bench.precision].computes,
        policy=bench.policy,
    )
    if not judgements:  # what cannot be compared
        return Finding(
            check=name,
            precision=bench.precision,
            subject=bench.subject.name,
            verdict=Verdict.FAIL,
            num_compared=0,
            ratio=math.inf,
            worst=reasons[0],
        )
    worst = max((judgement for _, judgement in judgements), key=lambda judgement: judgement.ratio)
    failed = not worst.ratio <= 1
    return Finding(
        check=name,
        precision=bench.precision,
        subject=bench.subject.name,
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        num_compared=sum(judgement.num_compared for _, judgement in judgements),
        ratio=worst.ratio,
        worst=reasons[0] if failed and reasons else "",
    )


def _cached_parity(bench: Bench, stages: ShardedStages) -> Finding:
    return _parity(bench, stages, cached=True)


def _every_group_once(bench: Bench, stages: ShardedStages) -> Finding:
    counts = [len(times) for times in bench.step(stages).seen]
    differences = [
        Difference(f"the number of times that group {place} was computed", abs(count - 1.0))
        for place, count in enumerate(counts)
    ]
    return found("every-group-once", bench.precision, bench.subject.name, differences)


def _reduction(bench: Bench, stages: ShardedStages) -> Finding:
    run, summed = bench.step(stages), bench.summed
    return found(
        "reduction",
        bench.precision,
        bench.subject.name,
        sum_differences(run.gradients, summed.total, summed.sizes, (summed.num_terms + 2) * bench.reduce_epsilon),
        num_compared=sum(tensor.numel() for tensor in summed.total.values()),
    )


def _dummy_calls(bench: Bench, stages: ShardedStages) -> Finding:
    """One rank has the whole batch; gradients have the bits of that rank alone, with dummies finite and infinite."""
    on_first = replace(stages, assign=_all_on_first)
    differences = []
    for what, factor in (("dummy calls", 1.0), ("dummy calls of infinite value", math.inf)):
        on_rank = bench.on_rank(dummy_factor=factor)
        run = run_sharded(on_rank, micro_size=bench.scenario.micro_size, stages=on_first, seed=bench.seed)
        differences += [
            Difference(f"beside {what} the gradient of {name}", _distance(run.gradients.get(name), tensor))
            for name, tensor in bench.alone.items()
        ]
        differences.append(Difference("the number of dummy calls of the first rank", float(run.num_dummies[0])))
        idle = sum(count == 0 for count in run.num_dummies[1:])
        differences.append(Difference("the number of ranks without a dummy call", float(idle)))
    num_compared = 2 * sum(tensor.numel() for tensor in bench.alone.values())
    return found("dummy-calls", bench.precision, bench.subject.name, differences, num_compared=num_compared)


def _all_on_first(num_groups: int, world_size: int) -> list[range]:
    return [range(num_groups), *([range(0)] * (world_size - 1))]


def _distance(actual: Tensor | None, expected: Tensor) -> float:
    if actual is None:
        return math.inf
    return 0.0 if torch.equal(actual, expected) else float((actual - expected).abs().max())


def _clip(bench: Bench, stages: ShardedStages) -> Finding:
    on_rank = bench.on_rank()
    with seeded(bench.seed), no_gradients_left(bench.sharded):
        accumulate(
            bench.sharded, len(on_rank.groups), on_rank.work, micro_size=bench.scenario.micro_size, stages=stages
        )
        gradients = gathered_gradients(bench.sharded)
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        if not norm:
            nothing = Difference("the gradient, of which there is none,", math.inf)
            return found("clip", bench.precision, bench.subject.name, [nothing])
        norms = all_gathered(stages.clip(bench.sharded, norm / 2))
        clipped = gathered_gradients(bench.sharded)
    num_values = sum(gradient.numel() for gradient in gradients.values())
    # A sum of n squares, rounded at random, is off by about sqrt(n) epsilons.
    allowed = 4 * math.sqrt(num_values) * _epsilon(bench) + _NORM_TERM / norm
    differences = [
        Difference(f"relative to the global norm, the norm on rank {rank}", abs(own / norm - 1), allowed)
        for rank, own in enumerate(norms)
    ]
    left = math.sqrt(sum(float((clipped[name] - gradients[name] / 2).square().sum()) for name in gradients))
    differences.append(Difference("relative to the global norm, the clipped gradient", left / norm, allowed))
    return found("clip", bench.precision, bench.subject.name, differences, num_compared=num_values + len(norms))


def _epsilon(bench: Bench) -> float:
    """Of the dtype in which gradients are kept; adapters of a bfloat16 model are in float32."""
    return float(torch.finfo(torch.float64 if bench.precision == "float64" else torch.float32).eps)


def _optimizer_steps(bench: Bench, stages: ShardedStages) -> Finding:
    differences = optimizer_differences(bench, stages, _epsilon(bench))
    return found("optimizer-steps", bench.precision, bench.subject.name, differences)


def _evaluation(bench: Bench, stages: ShardedStages) -> Finding:
    return found("evaluation", bench.precision, bench.subject.name, evaluation_differences(bench, stages))


CHECKS: Mapping[str, ShardedCheck] = {
    check.name: check
    for check in (
        ShardedCheck(
            name="parity",
            claims="Log-probs, rewards, loss and gathered gradients are those of one process, of the oracle and of the "
            "unpacked path, within the budgets of the gate.",
            cannot_see="What those budgets leave room for: a reduction in bfloat16 under bfloat16 passes.",
            measure=_parity,
        ),
        ShardedCheck(
            name="parity/cached",
            claims="The same with values of the frozen policy that were computed before and stand beside the data.",
            cannot_see="How a cache was filled, or whether it fits the model.",
            measure=_cached_parity,
        ),
        ShardedCheck(
            name="every-group-once",
            claims="Every group of the batch was computed by one rank, once.",
            cannot_see="What a data loader did before groups were handed to the step.",
            measure=_every_group_once,
        ),
        ShardedCheck(
            name="reduction",
            claims="Gathered gradients are the ranks' own, computed on whole models, weighted by their share of the "
            "global count and summed in float64, but for rounding of the dtype that they are to be summed in.",
            cannot_see="Gradients that are wrong on a whole model too. It abstains where kernels give other bits the "
            "second time.",
            measure=_reduction,
            compares_bits=True,
        ),
        ShardedCheck(
            name="dummy-calls",
            claims="With the whole batch on one rank, gradients have the bits of that rank alone: calls of ranks that "
            "have run out add nothing, not even where their value is infinite.",
            cannot_see="Ranks that make another number of calls, which would not end.",
            measure=_dummy_calls,
            compares_bits=True,
        ),
        ShardedCheck(
            name="clip",
            claims="Every rank clips by the norm of the whole gradient, and the clipped gradient is that part of it.",
            cannot_see="Clipping by value, or by parameter.",
            measure=_clip,
        ),
        ShardedCheck(
            name="optimizer-steps",
            claims="Over three steps of AdamW, gathered weights move as those of one process do that is given the "
            "gathered gradients, and gradients at the moved weights are the ranks' own, summed.",
            cannot_see="Other optimizers, schedules, and state that is saved and loaded.",
            measure=_optimizer_steps,
            compares_bits=True,
        ),
        ShardedCheck(
            name="evaluation",
            claims="Loss, accuracy and mean margin of an evaluation are those over every pair once, a tie counting one "
            "half, whichever rank computed it.",
            cannot_see="Whether the values of a pair are right: with gradients parity says it, without them the gate.",
            measure=_evaluation,
        ),
    )
}
"""By name, in the order in which they run."""
