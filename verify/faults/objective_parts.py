"""What faults of preference objectives are made of: the sides of a group, the right likelihood, a branch of a trainer.

Shape letters: K completions, G groups, m positives and n negatives of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from verify.faults.stages import Batch, Objective, Terms
from verify.objective import Preference

REWARDS_EXACT = "log-probs and rewards exact; "
REWARDS_TELL_NOTHING = "log-probs, rewards"


def sides(values: Tensor, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """What belongs to the positives and to the negatives of each group; [m] and [n]."""
    parts = torch.split(
        values, [size for group in batch.groups for size in (len(group.positives), len(group.negatives))]
    )
    return list(zip(parts[0::2], parts[1::2], strict=True))


def only_under(
    names: Collection[str],
    replacement: Callable[..., Terms],
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Preference,
) -> Terms:
    """The replacement under objectives of these names, as in the branch of a trainer that computes them."""
    if objective.name not in names:
        return honest(sums, ref_sums, batch, objective)
    return replacement(honest, sums, ref_sums, batch, objective)


def right_likelihood(sums: Tensor, batch: Batch, objective: Preference) -> Tensor:
    """The likelihood term of each group as it ought to be, weighted; [G]."""
    means = sides(sums / batch.num_counted.to(sums), batch)
    return -objective.nll_weight * torch.stack([positives.mean() for positives, _ in means])
