"""The distinct branches of a batch of groups, dealt out to micro-batches that share a prompt.

Shape letters: K completions of all groups, U distinct branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from packed_impl.groups import Group, Image, Mask, TokenIds, check_groups, masked_completions
from packed_impl.layout import PackedLayout, pack


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some branches of one prompt, as a group that can be packed; which side they are on does not matter here.

    Args:
        prompt_ids: The prompt.
        positives: The responses.
        completion_masks: Which of their tokens are supervised.
        negatives: None.
        images: The images of the prompt.
    """

    prompt_ids: TokenIds
    positives: tuple[TokenIds, ...]
    completion_masks: tuple[Mask, ...]
    negatives: tuple[TokenIds, ...] = ()
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, eq=False)
class BranchPlan:
    """Every distinct branch of a batch once, and whose it is.

    Two groups with one prompt, of responses ``a | b`` and ``c | b``, have the branches ``a b c``; in micro-batches of
    two these are ``a b`` and ``c``, and the completions are branches 0 1 2 1.

    Args:
        groups: The branches of each micro-batch; branch numbers run through them.
        micro_batches: The same, packed.
        counts: Number of supervised tokens of each branch; int64, [U].
        branch_of_completion: Branch number of each completion, in the standard order; int64, [K].
    """

    groups: tuple[MicroBatch, ...]
    micro_batches: tuple[PackedLayout, ...]
    counts: Tensor
    branch_of_completion: Tensor


def plan_branches(groups: Sequence[Group], branches_per_micro_batch: int, *, layout: str) -> BranchPlan:
    """Deal the distinct branches of a batch out to micro-batches.

    A branch is a prompt with its images, a response and its mask. Groups with the same prompt and images share branches
    and micro-batches.

    Args:
        groups: Any groups that can be packed.
        branches_per_micro_batch: The most that one micro-batch holds, at least 1.
        layout: One of ``layout.LAYOUTS``.

    Returns:
        The plan.

    Raises:
        ValueError: A number below 1, a response twice in one group or on both of its sides, or as ``layout.pack``.
    """
    if branches_per_micro_batch < 1:
        raise ValueError(f"branches_per_micro_batch is {branches_per_micro_batch}: at least one branch has to fit")
    check_groups(groups)
    branches_of: dict[tuple[TokenIds, tuple[Image, ...]], dict[tuple[TokenIds, Mask], None]] = {}
    for index, group in enumerate(groups):
        _check_distinct(index, group)
        branches_of.setdefault(_prompt(group), {}).update(dict.fromkeys(masked_completions(group)))
    micro_batches = []
    for (prompt_ids, images), branches in branches_of.items():
        for start in range(0, len(branches), branches_per_micro_batch):
            responses, masks = zip(*list(branches)[start : start + branches_per_micro_batch], strict=True)
            micro_batches.append(MicroBatch(prompt_ids, responses, masks, images=images))
    keys = [(prompt, *branch) for prompt, branches in branches_of.items() for branch in branches]
    number_of = {key: number for number, key in enumerate(keys)}
    return BranchPlan(
        tuple(micro_batches),
        tuple(pack([micro_batch], layout=layout) for micro_batch in micro_batches),
        torch.tensor([sum(mask) for _, _, mask in keys]),
        torch.tensor([number_of[_prompt(group), *branch] for group in groups for branch in masked_completions(group)]),
    )


def _prompt(group: Group) -> tuple[TokenIds, tuple[Image, ...]]:
    """What a prompt is known by: two of equal tokens may show different images."""
    return group.prompt_ids, group.images


def _check_distinct(index: int, group: Group) -> None:
    first_place: dict[TokenIds, str] = {}
    for side, responses in (("positives", group.positives), ("negatives", group.negatives)):
        for place, response in enumerate(responses):
            name = f"{side}[{place}]"
            if response in first_place:
                raise ValueError(
                    f"group {index} has the same response as {first_place[response]} and as {name}: "
                    "a response belongs to a group once, on one side"
                )
            first_place[response] = name
