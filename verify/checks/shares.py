"""How much of the mean that a loss is each micro-batch makes up."""

from __future__ import annotations

from collections.abc import Sequence

from verify.groups import PreferenceGroup
from verify.objective import ObjectiveName


def shares(objective_name: ObjectiveName, parts: Sequence[Sequence[PreferenceGroup]]) -> list[float]:
    """The share of each part of a batch in that which the loss is a mean over.

    Of one group and two groups the shares are 1/3 and 2/3 under a preference objective; under the token mean of SFT
    those of their supervised tokens, under the example mean those of their completions.

    Args:
        objective_name: Says what the mean is over.
        parts: The micro-batches of the batch.

    Returns:
        One share per part; they add up to 1.
    """
    weights = [weight_of(objective_name, groups) for groups in parts]
    return [weight / sum(weights) for weight in weights]


def weight_of(objective_name: ObjectiveName, groups: Sequence[PreferenceGroup]) -> int:
    """How many of that which a loss is a mean over are in some groups.

    Args:
        objective_name: Says what the mean is over.
        groups: The groups.

    Returns:
        Supervised tokens, completions, or groups.
    """
    match objective_name:
        case "sft-token-mean":
            return sum(sum(group.num_supervised) for group in groups)
        case "sft-example-mean":
            return sum(len(group.completions) for group in groups)
        case _:
            return len(groups)
