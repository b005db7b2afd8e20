"""Faults of the mean over groups, micro-batches and ranks.

Shape letters: G groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from verify.faults.conditions import GROUPS_OF_UNEQUAL_TOKENS, ODD_GROUPS, SEVERAL_GROUPS
from verify.faults.content_conditions import EQUAL_EXAMPLES, FIVE_LOSSES
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Accumulation, Batch, Terms

_PER_MICRO_BATCH = 2
_BUFFER = 4


def scaled(factor: float, honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """The loss times a constant."""
    return factor * honest(terms, batch, rows)


def boundaries_subtracted_twice(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """(T - N) / (T - 2 N + 1) for T slots and N segments in all rows."""
    slots, segments = rows.num_slots * len(rows.rows), sum(len(row) for row in rows.rows)
    return honest(terms, batch, rows) * (slots - segments) / (slots - 2 * segments + 1)


def mean_of_means(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """Mean of the means of micro-batches, the last of which is short."""
    return torch.stack([part.mean() for part in torch.split(terms.losses, _PER_MICRO_BATCH)]).mean()


def summed(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """The sum over micro-batches of one group, never divided by their number."""
    return terms.losses.sum()


def weighted_by_tokens(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """Groups weigh by their completion tokens."""
    num_tokens = torch.tensor([float(sum(len(ids) for ids in group.completions)) for group in batch.groups])
    return honest(replace(terms, weights=num_tokens.to(terms.losses)), batch, rows)


def last_group_twice(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """A sampler fills the last batch up with a copy."""
    twice = torch.arange(len(terms.losses) + 1).clamp(max=len(terms.losses) - 1)
    return honest(replace(terms, losses=terms.losses[twice], weights=terms.weights[twice]), batch, rows)


def first_group_left_out(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """A group that is masked out still counts in the denominator."""
    return terms.losses[1:].sum() / len(terms.losses)


def first_four(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """A buffer for four losses, whatever the batch."""
    return honest(replace(terms, losses=terms.losses[:_BUFFER], weights=terms.weights[:_BUFFER]), batch, rows)


def equal_examples_once(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """Losses are stored by the text of their examples."""
    examples = [(group.prompt_ids, ids) for group in batch.groups for ids in group.completions]
    last = sorted({example: index for index, example in enumerate(examples)}.values())
    return honest(replace(terms, losses=terms.losses[last], weights=terms.weights[last]), batch, rows)


_ONE_RATIO = "log-probs, rewards and margins exact; loss and every gradient off by one ratio"

FAULTS = (
    Fault(
        name="boundaries-subtracted-twice",
        stage="accumulation",
        replacement=boundaries_subtracted_twice,
        what="Segment boundaries are subtracted from a count that has left them out already.",
        imitates=("A33",),
        signature=_ONE_RATIO + " near 1, (T - N) / (T - 2N + 1)",
        invisible_where="log-probs, rewards; one segment",
    ),
    Fault(
        name="mean-of-means",
        stage="accumulation",
        replacement=mean_of_means,
        what=f"The loss is the mean over micro-batches of {_PER_MICRO_BATCH} groups, of which the last is short.",
        imitates=("A34", "A86"),
        kinds=PREFERENCES,
        bites_where=ODD_GROUPS,
        signature="log-probs, rewards and margins exact; loss and the direction of gradients off",
        invisible_where="micro-batches of equal size",
    ),
    Fault(
        name="sum-over-groups",
        stage="accumulation",
        replacement=summed,
        what="Micro-batch losses are added up and never divided by their number.",
        imitates=("A34",),
        kinds=PREFERENCES,
        bites_where=SEVERAL_GROUPS,
        signature=_ONE_RATIO + ", the number of groups",
        invisible_where="one group",
    ),
    Fault(
        name="loss-divided-by-ranks",
        stage="accumulation",
        replacement=partial(scaled, 0.5),
        what="The loss is divided by the number of ranks of a group that shares its tokens, here 2.",
        imitates=("A64",),
        signature=_ONE_RATIO + ", 1/2",
        invisible_where="log-probs, rewards; one rank",
    ),
    Fault(
        name="groups-weighted-by-tokens",
        stage="accumulation",
        replacement=weighted_by_tokens,
        what="Groups weigh by their completion tokens instead of equally.",
        imitates=("A65", "A34"),
        bites_where=GROUPS_OF_UNEQUAL_TOKENS,
        signature="log-probs, rewards and margins exact; loss and the direction of gradients off",
        invisible_where="groups with equal numbers of tokens",
    ),
    Fault(
        name="last-group-counted-twice",
        stage="accumulation",
        replacement=last_group_twice,
        what="The last batch is filled up with a copy, and the copy counts.",
        imitates=("A85",),
        bites_where=SEVERAL_GROUPS,
        signature="log-probs, rewards and margins exact; loss and gradients off by 1 / groups",
        invisible_where="one group",
    ),
    Fault(
        name="masked-group-in-denominator",
        stage="accumulation",
        replacement=first_group_left_out,
        what="A group is masked out of the numerator but counts in the denominator.",
        imitates=("A35",),
        bites_where=SEVERAL_GROUPS,
        signature="log-probs, rewards and margins exact; loss and gradients lack a group",
    ),
    Fault(
        name="fifth-loss-and-later-left-out",
        stage="accumulation",
        replacement=first_four,
        what=f"Only the first {_BUFFER} groups of a batch, or examples of supervised fine-tuning, enter its loss.",
        imitates=("A85",),
        kinds=("pairs", "examples"),
        bites_where=FIVE_LOSSES,
        signature="log-probs, rewards and margins exact; loss and gradients lack the later ones",
        invisible_where="log-probs, rewards; four groups or examples",
    ),
    Fault(
        name="equal-examples-counted-once",
        stage="accumulation",
        replacement=equal_examples_once,
        what="Losses are stored by the text of their examples: one that comes twice counts once.",
        kinds=("examples",),
        bites_where=EQUAL_EXAMPLES,
        signature="log-probs exact; loss and the direction of gradients off",
        invisible_where="log-probs; no two examples are equal",
    ),
)
