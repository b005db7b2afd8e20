"""Faults of groups of more than two responses: which of them are compared, and what each comparison weighs.

Shape letters: K completions, P pairs of a positive and a negative of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from verify.faults.content_conditions import (
    FIVE_NEGATIVES,
    GROUPS_OF_ONE_PROMPT,
    LARGER_GROUPS_ALIKE,
    THREE_POSITIVES,
    TWICE_ON_A_SIDE,
)
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.layout_conditions import (
    MORE_THAN_PAIRS,
    SEVERAL_NEGATIVES,
    SEVERAL_OF_BOTH,
    SEVERAL_POSITIVES,
    UNEVEN_NUMBERS_OF_PAIRS,
)
from verify.faults.rows import Rows
from verify.faults.stages import Accumulation, Batch, Objective, Terms
from verify.groups import PreferenceGroup, TokenIds
from verify.objective import Preference

_PAIR = PreferenceGroup((0,), ((0,),), ((0,),))


def _losses(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference, pairs: Tensor
) -> Tensor:
    """Losses of pairs of completions, [P, 2], each as a group of its own; [P]."""
    both = pairs.flatten()
    of_pairs = Batch([_PAIR] * len(pairs), batch.num_counted[both])
    return honest(sums[both], ref_sums[both], of_pairs, objective).losses


def _starts(batch: Batch) -> list[int]:
    """Number of the first completion of each group."""
    sizes = torch.tensor([len(group.completions) for group in batch.groups])
    return (sizes.cumsum(0) - sizes).tolist()


def _pairs_of(group: PreferenceGroup, start: int) -> Tensor:
    """Completion numbers of all pairs of a group; [positives, negatives, 2]."""
    positives = torch.arange(start, start + len(group.positives))
    negatives = torch.arange(len(group.negatives)) + start + len(group.positives)
    return torch.stack(torch.meshgrid(positives, negatives, indexing="ij"), dim=-1)


def _over_some_pairs(
    choose: Callable[[Tensor], Tensor],
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Preference,
) -> Terms:
    """The mean of each group over pairs chosen from its table, [positives, negatives, 2] to [P, 2]."""
    means = [
        _losses(honest, sums, ref_sums, batch, objective, choose(_pairs_of(group, start))).mean()
        for group, start in zip(batch.groups, _starts(batch), strict=True)
    ]
    return replace(honest(sums, ref_sums, batch, objective), losses=torch.stack(means))


def first_negative_only(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Every positive is held against the first negative alone."""
    return _over_some_pairs(lambda table: table[:, 0], honest, sums, ref_sums, batch, objective)


def first_positive_only(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Every negative is held against the first positive alone."""
    return _over_some_pairs(lambda table: table[0], honest, sums, ref_sums, batch, objective)


def zipped(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """The i-th positive is held against the i-th negative, until one side ends."""
    return _over_some_pairs(lambda table: table.diagonal().T, honest, sums, ref_sums, batch, objective)


def in_twos(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """All responses in one vector, two after two: the pairs of a batch of pairs."""
    pairs = torch.arange(len(sums) // 2 * 2).view(-1, 2)
    losses = _losses(honest, sums, ref_sums, batch, objective, pairs)
    return replace(honest(sums, ref_sums, batch, objective), losses=losses, weights=torch.ones_like(losses))


def first_positives_and_negatives(
    num_positives: int | None,
    num_negatives: int | None,
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Preference,
) -> Terms:
    """Responses beyond some number on a side, where there is one, are not compared."""

    def choose(table: Tensor) -> Tensor:
        return table[:num_positives, :num_negatives].flatten(0, 1)

    return _over_some_pairs(choose, honest, sums, ref_sums, batch, objective)


def each_once(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Responses are stored by their text: one that a side holds twice weighs once."""
    means = []
    for group, start in zip(batch.groups, _starts(batch), strict=True):
        positives, negatives = (
            sorted({ids: index for index, ids in enumerate(side)}.values())
            for side in (group.positives, group.negatives)
        )
        pairs = _pairs_of(group, start)[positives][:, negatives].flatten(0, 1)
        means.append(_losses(honest, sums, ref_sums, batch, objective, pairs).mean())
    return replace(honest(sums, ref_sums, batch, objective), losses=torch.stack(means))


def sides_of_the_batch(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Where all groups are alike one reshape replaces the loop: it takes all positives to come first."""
    sizes = {(len(group.positives), len(group.negatives)) for group in batch.groups}
    terms = honest(sums, ref_sums, batch, objective)
    if len(sizes) > 1:
        return terms
    ((m, n),) = sizes
    order = torch.arange(len(sums))
    positives, negatives = order[: len(batch.groups) * m].view(-1, m), order[len(batch.groups) * m :].view(-1, n)
    losses = [
        _losses(honest, sums, ref_sums, batch, objective, torch.cartesian_prod(positive, negative)).mean()
        for positive, negative in zip(positives, negatives, strict=True)
    ]
    return replace(terms, losses=torch.stack(losses))


def one_prompt_one_group(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Groups are kept by their prompt: the positives of one are compared with the negatives of the other as well."""
    sides: dict[TokenIds, tuple[list[int], list[int]]] = {}
    for group, start in zip(batch.groups, _starts(batch), strict=True):
        positives, negatives = sides.setdefault(group.prompt_ids, ([], []))
        middle, stop = start + len(group.positives), start + len(group.completions)
        positives += range(start, middle)
        negatives += range(middle, stop)
    losses = [
        _losses(honest, sums, ref_sums, batch, objective, torch.cartesian_prod(*map(torch.tensor, both))).mean()
        for both in sides.values()
    ]
    return replace(
        honest(sums, ref_sums, batch, objective), losses=torch.stack(losses), weights=torch.ones(len(losses)).to(sums)
    )


def margins_averaged(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """One margin per group, mean positive minus mean negative, goes through the sigmoid."""

    def means(values: Tensor) -> Tensor:
        sides = []
        for group, start in zip(batch.groups, _starts(batch), strict=True):
            middle, stop = start + len(group.positives), start + len(group.completions)
            sides += [values[start:middle].mean(), values[middle:stop].mean()]
        return torch.stack(sides)

    pairs = Batch([_PAIR] * len(batch.groups), torch.ones(2 * len(batch.groups), dtype=torch.int64))
    losses = honest(means(sums), means(ref_sums), pairs, objective).losses
    return replace(honest(sums, ref_sums, batch, objective), losses=losses)


def _within_sides(values: Tensor, batch: Batch, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Positives and negatives of each group, changed apart; [K]."""
    sizes = [size for group in batch.groups for size in (len(group.positives), len(group.negatives))]
    return torch.cat([change(side) for side in torch.split(values, sizes)])


def _descending(values: Tensor) -> Tensor:
    return values.sort(descending=True).values


def rewards_sorted(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Logged rewards of a group are in order of their size, not of the responses."""
    terms = honest(sums, ref_sums, batch, objective)
    return replace(terms, rewards=_within_sides(terms.rewards, batch, _descending))


def reference_of_next(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """The reference sum of a response is that of the next one of its group."""
    sizes = [len(group.completions) for group in batch.groups]
    return honest(sums, torch.cat([part.roll(-1) for part in torch.split(ref_sums, sizes)]), batch, objective)


def _first_only(values: Tensor) -> Tensor:
    return torch.cat((values[:1], values[1:].detach()))


def later_responses_detached(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Only the first positive and the first negative keep their graph."""
    return honest(_within_sides(sums, batch, _first_only), ref_sums, batch, objective)


def _numbers_of_pairs(batch: Batch, like: Tensor) -> Tensor:
    return torch.tensor([len(group.positives) * len(group.negatives) for group in batch.groups]).to(like)


def mean_over_pairs(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """Groups weigh by their pairs."""
    return honest(replace(terms, weights=_numbers_of_pairs(batch, terms.losses)), batch, rows)


def divided_by_most_pairs(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """The sum over a group's pairs is divided by the most pairs that any group of the batch has."""
    numbers = _numbers_of_pairs(batch, terms.losses)
    return honest(replace(terms, losses=terms.losses * numbers / numbers.max()), batch, rows)


_LOGPS_EXACT = "log-probs and rewards exact; "

FAULTS = (
    Fault(
        name="first-negative-only",
        stage="objective",
        replacement=first_negative_only,
        what="A positive is compared with the first negative of its group, not with the others.",
        imitates=("A38",),
        kinds=("groups",),
        bites_where=SEVERAL_NEGATIVES,
        signature=_LOGPS_EXACT + "loss and gradients lack all other negatives",
        invisible_where="log-probs, rewards; one negative per group",
    ),
    Fault(
        name="pairs-zipped",
        stage="objective",
        replacement=zipped,
        what="The i-th positive is compared with the i-th negative only, until one side ends.",
        imitates=("A38",),
        kinds=("groups",),
        bites_where=SEVERAL_OF_BOTH,
        signature=_LOGPS_EXACT + "loss and gradients lack the pairs off the diagonal",
        invisible_where="log-probs, rewards; one positive and one negative per group",
    ),
    Fault(
        name="responses-read-in-twos",
        stage="objective",
        replacement=in_twos,
        what="The responses of a batch are read two by two, as if every group were a pair.",
        imitates=("A38", "A40"),
        kinds=("groups",),
        bites_where=MORE_THAN_PAIRS,
        signature=_LOGPS_EXACT + "loss and gradients compare positives with positives and groups with each other",
        invisible_where="log-probs, rewards; groups of two",
    ),
    Fault(
        name="margins-averaged-first",
        stage="objective",
        replacement=margins_averaged,
        what="The sigmoid is taken of the mean margin of a group instead of each margin.",
        imitates=("A36",),
        kinds=("groups",),
        bites_where=MORE_THAN_PAIRS,
        signature=_LOGPS_EXACT + "loss too small by the spread of the margins, all pairs of a group pull alike",
        invisible_where="log-probs, rewards; groups of two",
    ),
    Fault(
        name="rewards-sorted",
        stage="objective",
        replacement=rewards_sorted,
        what="Logged rewards of a group stand in order of their size instead of that of the responses.",
        imitates=("A88",),
        kinds=("groups",),
        bites_where=MORE_THAN_PAIRS,
        signature="loss and gradients exact; rewards and margins right as a set, at other responses",
        invisible_where="loss, gradients; rewards that descend already",
    ),
    Fault(
        name="reference-of-next-response",
        stage="objective",
        replacement=reference_of_next,
        what="The reference sum of a response is that of the next one of its group.",
        imitates=("A43",),
        kinds=("groups",),
        signature="log-probs exact; all rewards, loss and gradients off",
        invisible_where="log-probs",
    ),
    Fault(
        name="later-responses-detached",
        stage="objective",
        replacement=later_responses_detached,
        what="Only the first positive and the first negative of a group keep their graph.",
        imitates=("A49",),
        kinds=("groups",),
        bites_where=MORE_THAN_PAIRS,
        signature="every forward quantity exact; gradients lack all other responses",
        invisible_where="forward quantities; groups of two",
    ),
    Fault(
        name="first-positive-for-all",
        stage="objective",
        replacement=first_positive_only,
        what="Negatives are compared with the first positive of their group, not with the others.",
        kinds=("groups",),
        bites_where=SEVERAL_POSITIVES,
        signature=_LOGPS_EXACT + "loss and gradients lack all other positives",
        invisible_where="log-probs, rewards; one positive per group",
    ),
    Fault(
        name="mean-over-pairs-of-the-batch",
        stage="accumulation",
        replacement=mean_over_pairs,
        what="The loss is the mean over all pairs of the batch, so that groups weigh by their pairs.",
        imitates=("A34", "A65"),
        kinds=("groups",),
        bites_where=UNEVEN_NUMBERS_OF_PAIRS,
        signature=_LOGPS_EXACT + "loss and the direction of gradients off",
        invisible_where="log-probs, rewards; groups with equal numbers of pairs",
    ),
    Fault(
        name="divided-by-most-pairs",
        stage="accumulation",
        replacement=divided_by_most_pairs,
        what="The pairs of a group are divided by the most pairs that any group of the batch has.",
        imitates=("A35", "A36"),
        kinds=("groups",),
        bites_where=UNEVEN_NUMBERS_OF_PAIRS,
        signature=_LOGPS_EXACT + "loss and gradients too small for every group but the largest",
        invisible_where="log-probs, rewards; groups with equal numbers of pairs",
    ),
    Fault(
        name="third-positive-and-later-dropped",
        stage="objective",
        replacement=partial(first_positives_and_negatives, 2, None),
        what="A group has room for two positives: further ones are not compared.",
        imitates=("A38",),
        kinds=("groups",),
        bites_where=THREE_POSITIVES,
        signature=_LOGPS_EXACT + "loss and gradients lack the third positive",
        invisible_where="log-probs, rewards; at most two positives per group",
    ),
    Fault(
        name="fifth-negative-and-later-dropped",
        stage="objective",
        replacement=partial(first_positives_and_negatives, None, 4),
        what="A group has room for four negatives: further ones are not compared.",
        imitates=("A38",),
        kinds=("groups",),
        bites_where=FIVE_NEGATIVES,
        signature=_LOGPS_EXACT + "loss and gradients lack the fifth negative",
        invisible_where="log-probs, rewards; at most four negatives per group",
    ),
    Fault(
        name="equal-responses-weigh-once",
        stage="objective",
        replacement=each_once,
        what="Responses are stored by their text: one that a side of a group holds twice weighs once.",
        imitates=("A38",),
        kinds=("groups",),
        bites_where=TWICE_ON_A_SIDE,
        signature=_LOGPS_EXACT + "loss and gradients off by the weight of a response",
        invisible_where="log-probs, rewards; no side holds a response twice",
    ),
    Fault(
        name="groups-alike-read-by-sides",
        stage="objective",
        replacement=sides_of_the_batch,
        what="Groups with the same numbers of responses are reshaped together, as if all positives came first.",
        imitates=("A40",),
        kinds=("groups",),
        bites_where=LARGER_GROUPS_ALIKE,
        signature=_LOGPS_EXACT + "loss and gradients compare responses of different groups",
        invisible_where="log-probs, rewards; groups with different numbers of responses",
    ),
    Fault(
        name="groups-of-one-prompt-merged",
        stage="objective",
        replacement=one_prompt_one_group,
        what="Groups are kept by their prompt: responses of two with the same prompt are compared across.",
        imitates=("A38",),
        kinds=PREFERENCES,
        bites_where=GROUPS_OF_ONE_PROMPT,
        signature=_LOGPS_EXACT + "loss and gradients have pairs across groups",
        invisible_where="log-probs, rewards; every group has a prompt of its own",
    ),
)
