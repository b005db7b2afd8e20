"""The evaluation over ranks, held against the same values in float64, each once."""

from __future__ import annotations

import torch

from verify.sharded.bench import Bench
from verify.sharded.finding import Difference
from verify.sharded.observe import all_gathered, seeded
from verify.subjects.sharded import Evaluated, ShardedStages, evaluate
from verify.supervised_values import pair_margins

_EPSILONS = 64
"""Of float64, that a mean of some values may be off by."""
_TIED = 0
"""The place of the group whose margin is taken to be zero: no two responses give exactly equal rewards by chance."""


def evaluation_differences(bench: Bench, stages: ShardedStages) -> list[Difference]:
    """Evaluate on all ranks. A collective.

    Args:
        bench: A bench under an objective that compares.
        stages: The stages.

    Returns:
        The differences: counts exact, means but for the rounding of float64.
    """
    on_rank, computed = bench.on_rank(), dict[int, Evaluated]()

    def of_group(place: int) -> Evaluated:
        loss = on_rank.loss_of([place], [place])
        margins = pair_margins(on_rank.seen[place][-1].rewards, [on_rank.groups[place]])
        values = Evaluated(
            loss=float(loss),
            num_units=on_rank.num_units([place]),
            margins=torch.zeros_like(margins) if place == _TIED else margins,
        )
        computed[place] = values
        return values

    with seeded(bench.seed):
        actual = evaluate(len(on_rank.groups), of_group, on_rank.dummy, stages=stages)
    of_all: dict[int, Evaluated] = {}
    for of_rank in all_gathered(computed):
        of_all |= of_rank
    groups = list(of_all.values())
    margins, num_units = torch.cat([group.margins for group in groups]), sum(group.num_units for group in groups)
    expected = {
        "loss": sum(group.loss * group.num_units for group in groups) / num_units,
        "accuracy": float((margins.sign() + 1).mean()) / 2,
        "mean_margin": float(margins.mean()),
    }
    counts = {"num_groups": len(on_rank.groups), "num_pairs": len(margins), "num_ties": int((margins == 0).sum())}
    epsilon = torch.finfo(torch.float64).eps
    return [
        Difference("the number of groups that some rank evaluated", abs(len(groups) - len(on_rank.groups))),
        *(
            Difference(f"{name} of the evaluation", abs(getattr(actual, name) - count))
            for name, count in counts.items()
        ),
        *(
            Difference(f"{name} of the evaluation", abs(getattr(actual, name) - value), _EPSILONS * epsilon * size)
            for name, value in expected.items()
            for size in (1 + abs(value),)
        ),
    ]
