"""Faults of a reward model's step: where its head is read, what the head learns, and the loss of its rewards.

Shape letters: m positives and n negatives of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from verify.faults.conditions import BRANCH_OF_TWO, SEVERAL_GROUPS
from verify.faults.content_conditions import ENDS_IN_ZERO
from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, EquivalentMutant, Fault
from verify.faults.layout_conditions import MORE_THAN_PAIRS, UNEVEN_NUMBERS_OF_PAIRS
from verify.faults.mask import branches_not_isolated, trees_not_isolated
from verify.faults.objective_parts import sides
from verify.faults.positions import running
from verify.faults.rows import Branch, Rows
from verify.faults.stages import Batch, Objective, Readout, Scores, Terms
from verify.objective import RewardModel

# Where the head is read.


def read_at(slot: Callable[[Rows, Branch], int], honest: Readout, rows: Rows) -> Tensor:
    """The head is read at another slot of the row."""
    places = honest(rows).clone()
    for branch in rows.branches():  # of a completion in several pieces the last one counts
        places[branch.completion, 1] = slot(rows, branch)
    return places


def one_token_early(rows: Rows, branch: Branch) -> int:
    """The slot that predicts the last token, as for a log-prob; of a response of one token the end of the prompt."""
    return branch.tokens[-2] if len(branch.tokens) > 1 else end_of_prompt(rows, branch)


def end_of_row(rows: Rows, branch: Branch) -> int:
    """Where transformers reads a row: its last slot, whichever response that belongs to."""
    return rows.num_slots - 1


def end_of_prompt(rows: Rows, branch: Branch) -> int:
    """The last token before the branch."""
    return rows.ancestors_of(branch)[-1].stop - 1


def first_token(rows: Rows, branch: Branch) -> int:
    """The first token of the branch."""
    return branch.tokens[0]


def last_token_but_zeros(rows: Rows, branch: Branch) -> int:
    """The last token of the branch that is no 0, its first where all are: lengths are counted by a padding id."""
    ids = rows.input_ids[branch.row]
    return next((slot for slot in reversed(branch.tokens) if ids[slot] != 0), branch.tokens[0])


def end_of_branch_before(rows: Rows, branch: Branch) -> int:
    """The slot before the branch, of the first one its own last token: offsets are shifted by one response."""
    first = rows.ancestors_of(branch)[-1].stop == branch.start
    return branch.tokens[-1] if first else branch.start - 1


# What the head learns.


def head_detached(honest: Scores, hidden: Tensor, head: Tensor, batch: Batch) -> Tensor:
    """The head is frozen, as a head that nobody named among the modules to save."""
    return honest(hidden, head.detach(), batch)


def head_learns_from_chosen(honest: Scores, hidden: Tensor, head: Tensor, batch: Batch) -> Tensor:
    """The head has the gradient of the chosen responses only."""
    learned, frozen = honest(hidden, head, batch), honest(hidden, head.detach(), batch)
    by_group = zip(sides(learned, batch), sides(frozen, batch), strict=True)
    return torch.cat([part for (chosen, _), (_, rejected) in by_group for part in (chosen, rejected)])


def only_head_learns(honest: Scores, hidden: Tensor, head: Tensor, batch: Batch) -> Tensor:
    """The hidden states that the head reads are cut off the graph."""
    return honest(hidden.detach(), head, batch)


# The loss.


def with_margins(
    loss: Callable[[Tensor], Tensor],
    honest: Objective,
    rewards: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: RewardModel,
) -> Terms:
    """Another loss of the margins of a group, [m, n]; its rewards are right."""
    losses = [loss(positives[:, None] - negatives) for positives, negatives in sides(rewards, batch)]
    return replace(honest(rewards, ref_sums, batch, objective), losses=torch.stack(losses))


def pairs_summed(margins: Tensor) -> Tensor:
    """A sum over the pairs of a group."""
    return softplus(-margins).sum()


def swapped(margins: Tensor) -> Tensor:
    """Rejected responses are preferred."""
    return softplus(margins).mean()


def mean_margin(margins: Tensor) -> Tensor:
    """The loss of the mean margin."""
    return softplus(-margins.mean())


def of_softplus(margins: Tensor) -> Tensor:
    """The loss in its other form."""
    return softplus(-margins).mean()


def pairs_of_the_batch(
    honest: Objective, rewards: Tensor, ref_sums: Tensor, batch: Batch, objective: RewardModel
) -> Terms:
    """A group weighs by its pairs."""
    pairs = torch.tensor([len(group.positives) * len(group.negatives) for group in batch.groups])
    terms = honest(rewards, ref_sums, batch, objective)
    return replace(terms, weights=pairs.to(terms.weights))


_REWARDS_EXACT = "rewards and margins exact; "

FAULTS = (
    Fault(
        name="reward-read-one-token-early",
        stage="readout",
        replacement=partial(read_at, one_token_early),
        what="The head reads the slot that predicts the last token, as log-probs do.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="all rewards are those of sequences without their last token",
        must_kill=("parity", "causality"),
    ),
    Fault(
        name="reward-read-at-end-of-row",
        stage="readout",
        replacement=partial(read_at, end_of_row),
        what="The head reads the last slot of the row, as where each response has a row of its own.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="all rewards of a row are that of its last response, all its margins 0",
        must_kill=("parity", "branch-isolation", "group-isolation", "causality"),
    ),
    Fault(
        name="reward-read-at-end-of-prompt",
        stage="readout",
        replacement=partial(read_at, end_of_prompt),
        what="The head reads the last token of the prompt.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="all rewards of a prompt are equal, all margins 0",
        must_kill=("parity", "branch-isolation", "causality"),
    ),
    Fault(
        name="reward-read-at-first-token",
        stage="readout",
        replacement=partial(read_at, first_token),
        what="The head reads the first token of a branch.",
        bites_where=BRANCH_OF_TWO,
        kinds=PREFERENCES,
        of_rewards=True,
        signature="rewards of responses of two or more tokens are those of their beginnings",
        invisible_where="responses of one token",
        must_kill=("parity", "causality"),
    ),
    Fault(
        name="reward-read-in-branch-before",
        stage="readout",
        replacement=partial(read_at, end_of_branch_before),
        what="Offsets of last tokens are shifted by one response: the head reads the end of the branch before.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="all but the first response of a prompt have the reward of the one before",
        must_kill=("parity", "branch-isolation", "causality"),
    ),
    Fault(
        name="reward-read-before-zeros",
        stage="readout",
        replacement=partial(read_at, last_token_but_zeros),
        what="Token 0 at the end of a response is taken for padding, and the head reads the token before.",
        bites_where=ENDS_IN_ZERO,
        kinds=PREFERENCES,
        of_rewards=True,
        signature="a response that ends in token 0 has the reward of the response without it",
        invisible_where="no response ends in token 0",
    ),
    Fault(
        name="reward-branches-not-isolated",
        stage="mask",
        replacement=branches_not_isolated,
        what="Trees are kept apart (document mask), but within one the mask is causal.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="rewards of all but the first response of a prompt are off",
        must_kill=("parity", "branch-isolation", "causality", "row-map"),
    ),
    Fault(
        name="reward-trees-not-isolated",
        stage="mask",
        replacement=trees_not_isolated,
        what="Branches of a prompt are kept apart, but a tree sees all trees before it.",
        bites_where=SEVERAL_GROUPS,
        kinds=PREFERENCES,
        of_rewards=True,
        signature="rewards of all groups but the first are off",
        invisible_where="one group",
        must_kill=("parity", "branch-isolation", "group-isolation", "row-map"),
    ),
    Fault(
        name="reward-positions-run-on",
        stage="positions",
        replacement=running,
        what="Positions count the slots of the row, so that a branch stands behind its siblings.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="rewards of all but the first response of a prompt are off",
        must_kill=("parity", "row-map"),
    ),
    Fault(
        name="reward-head-without-gradient",
        stage="scores",
        replacement=head_detached,
        what="The head is frozen, as one that was not named among the modules to be trained and saved.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="forward quantities exact; score.weight has no gradient",
        invisible_where="forward quantities",
    ),
    Fault(
        name="reward-head-learns-from-chosen",
        stage="scores",
        replacement=head_learns_from_chosen,
        what="The head has the gradient of chosen responses only, as where their passes are differentiated apart.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="forward quantities exact; the gradient of score.weight lacks a part, all others are exact",
        invisible_where="forward quantities",
    ),
    Fault(
        name="reward-only-head-learns",
        stage="scores",
        replacement=only_head_learns,
        what="The head is trained on hidden states that are cut off the graph.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature="forward quantities exact; no gradient but that of score.weight",
        invisible_where="forward quantities",
    ),
    Fault(
        name="reward-preference-reversed",
        stage="objective",
        replacement=partial(with_margins, swapped),
        what="Chosen and rejected responses are swapped in the loss.",
        kinds=PREFERENCES,
        of_rewards=True,
        signature=_REWARDS_EXACT + "loss off by the mean margin, gradients point the other way",
        invisible_where="rewards",
        must_kill=("parity", "own-objective"),
    ),
    Fault(
        name="reward-pairs-summed",
        stage="objective",
        replacement=partial(with_margins, pairs_summed),
        what="The losses of the pairs of a group are summed instead of averaged.",
        bites_where=MORE_THAN_PAIRS,
        kinds=("groups",),
        of_rewards=True,
        signature=_REWARDS_EXACT + "loss and gradients of a group too large by the number of its pairs",
        invisible_where="rewards; pairs",
        must_kill=("parity", "own-objective"),
    ),
    Fault(
        name="reward-loss-of-mean-margin",
        stage="objective",
        replacement=partial(with_margins, mean_margin),
        what="The loss is that of a group's mean margin instead of the mean over its pairs.",
        bites_where=MORE_THAN_PAIRS,
        kinds=("groups",),
        of_rewards=True,
        signature=_REWARDS_EXACT + "loss too small by the spread of the margins",
        invisible_where="rewards; pairs; bfloat16",
        must_kill=("parity", "own-objective"),
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="reward-mean-over-pairs-of-the-batch",
        stage="objective",
        replacement=pairs_of_the_batch,
        what="Pairs are averaged over the batch instead of within their group.",
        bites_where=UNEVEN_NUMBERS_OF_PAIRS,
        kinds=("groups",),
        of_rewards=True,
        signature=_REWARDS_EXACT + "groups weigh by their pairs",
        invisible_where="rewards; groups with equal numbers of pairs",
        must_kill=("parity", "own-objective"),
    ),
)

MUTANTS = (
    EquivalentMutant(
        name="reward-loss-as-softplus",
        stage="objective",
        replacement=partial(with_margins, of_softplus),
        what="The loss of a margin z is softplus(-z).",
        kinds=PREFERENCES,
        of_rewards=True,
        why_equal="-log sigma(z) is log(1 + e^-z)",
    ),
)
