"""Values of supervised tokens and of pairs, picked out of what was computed for whole completions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verify.groups import PreferenceGroup


def supervised_logps(logps: Sequence[Tensor], groups: Sequence[PreferenceGroup]) -> tuple[Tensor, ...]:
    """The log-probs of the supervised tokens; what stands at others is not looked at.

    Args:
        logps: One vector per completion, a value for each of its tokens.
        groups: The groups.

    Returns:
        One vector per completion, a value for each of its supervised tokens.
    """
    if not any(group.completion_masks for group in groups):
        return tuple(logps)
    places = [supervised for group in groups for supervised in group.supervised]
    return tuple(logp[list(supervised)] for logp, supervised in zip(logps, places, strict=True))


def pair_margins(rewards: Tensor, groups: Sequence[PreferenceGroup]) -> Tensor:
    """Positive minus negative reward of each pair of each group.

    Args:
        rewards: [completions], group by group, positives before negatives.
        groups: The groups; a negative in each.

    Returns:
        [pairs]: group by group, positive by positive, negative by negative.

    Raises:
        ValueError: A group without a negative.
    """
    margins, start = [], 0
    for index, group in enumerate(groups):
        num_positives, stop = len(group.positives), start + len(group.completions)
        if not group.negatives:
            raise ValueError(f"group {index} has no negative: there is nothing to compare its positives with")
        positives, negatives = rewards[start : start + num_positives], rewards[start + num_positives : stop]
        margins.append((positives[:, None] - negatives[None, :]).flatten())
        start = stop
    return torch.cat(margins)


def all_supervised(groups: Sequence[PreferenceGroup]) -> list[PreferenceGroup]:
    """Groups of the same shape that have the supervised tokens only, since observations hold no others.

    Args:
        groups: The groups of a case.

    Returns:
        As many groups; their token ids mean nothing.
    """
    return [
        PreferenceGroup(
            (0,),
            tuple((index,) * length for index, length in enumerate(group.num_supervised[: len(group.positives)])),
            tuple((index,) * length for index, length in enumerate(group.num_supervised[len(group.positives) :], 1000)),
        )
        for group in groups
    ]
