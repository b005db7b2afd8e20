"""Faults of the preference objectives beside the sigmoid loss, and changes of them that are harmless.

Shape letters: N targets, K completions, G groups, m positives and n negatives of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, EquivalentMutant, Fault
from verify.faults.objective_conditions import (
    ALL_PAIRS_OF_UNEVEN,
    HINGE,
    IPO,
    LOG_SUM_EXP,
    MARGIN_OF_GROUPS,
    MEANS_OF_LONG,
    MPO,
    OTHER_THAN_SIGMOID,
    ROBUST,
    SIGMOID_NORM_OF_UNEVEN,
    SOFTMAX_OF_SEVERAL,
)
from verify.faults.objective_parts import REWARDS_EXACT, REWARDS_TELL_NOTHING, only_under, right_likelihood, sides
from verify.faults.stages import Batch, Objective, Reduction, Targets, Terms
from verify.objective import Preference

# Scores.


def sums_for_means(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """Sums that the division by the number of tokens leaves as sums."""
    sums = honest(logps, targets)
    return sums * targets.completions[targets.counted].bincount(minlength=len(sums)).to(sums)


def divided_by_padded_length(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Means over the length to which responses are padded, that of the longest of the batch."""
    padded = batch.num_counted.max().expand_as(batch.num_counted)
    return honest(sums, ref_sums, replace(batch, num_counted=padded), objective)


# phi of a group. Its rewards are right, and so is the likelihood term.

GroupLoss = Callable[[Tensor, Tensor, Preference], Tensor]
"""Rewards of positives [m] and of negatives [n] to the loss of a group."""


def with_group_loss(
    loss: GroupLoss, honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Another phi."""
    terms = honest(sums, ref_sums, batch, objective)
    losses = torch.stack([loss(*rewards, objective) for rewards in sides(terms.rewards, batch)])
    return replace(terms, losses=losses + right_likelihood(sums, batch, objective))


def with_pair_loss(
    loss: Callable[[Tensor, Preference], Tensor],
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Preference,
) -> Terms:
    """The mean over the pairs of a group, with another loss of a margin."""

    def of_group(positives: Tensor, negatives: Tensor, objective: Preference) -> Tensor:
        return loss(positives[:, None] - negatives, objective).mean()

    return with_group_loss(of_group, honest, sums, ref_sums, batch, objective)


def towards_one_over_beta(margins: Tensor, objective: Preference) -> Tensor:
    """IPO's target is 1 / beta."""
    return ((margins - 1) / objective.beta).square()


def towards_half_of_beta(margins: Tensor, objective: Preference) -> Tensor:
    """IPO's target is beta / 2."""
    return (margins / objective.beta - objective.beta / 2).square()


def hinge_without_beta(margins: Tensor, objective: Preference) -> Tensor:
    """The hinge of log-ratios."""
    return relu(1 - margins / objective.beta)


def over_negatives(positives: Tensor, negatives: Tensor, objective: Preference) -> Tensor:
    """The denominator lacks the positives."""
    return negatives.logsumexp(0) - positives.logsumexp(0)


def softmax_summed(positives: Tensor, negatives: Tensor, objective: Preference) -> Tensor:
    """A sum over positives."""
    return softplus(negatives.logsumexp(0) - positives).sum()


def not_divided(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """What is unbiased only when divided by 1 - 2e is not divided."""
    terms = honest(sums, ref_sums, batch, objective)
    likelihood = right_likelihood(sums, batch, objective)
    kept = 1 - 2 * objective.label_smoothing
    return replace(terms, losses=kept * (terms.losses - likelihood) + likelihood)


def pair_by_pair(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """The mean of the losses of all pairs instead of the loss of the mean margin."""
    return honest(sums, ref_sums, batch, replace(objective, name="groupdpo-all-pairs"))


def pairs_of_the_batch(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Phi of a group weighs by its pairs; the likelihood does not."""
    terms = honest(sums, ref_sums, batch, objective)
    likelihood = right_likelihood(sums, batch, objective)
    pairs = torch.tensor([len(group.positives) * len(group.negatives) for group in batch.groups]).to(sums)
    return replace(terms, losses=pairs / pairs.mean() * (terms.losses - likelihood) + likelihood)


# Harmless changes.


def responses_reordered(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """The last positive and the last negative of a group come first, which reorders its pairs."""
    numbers = torch.arange(len(sums), device=sums.device)
    order = torch.cat([side.flip(0) for of_group in sides(numbers, batch) for side in of_group])
    counts = batch.num_counted[order.to(batch.num_counted.device)]
    terms = honest(sums[order], ref_sums[order], replace(batch, num_counted=counts), objective)
    return replace(terms, rewards=terms.rewards[order.argsort()])


def shifted_by_mean(positives: Tensor, negatives: Tensor, objective: Preference) -> Tensor:
    """Log-sums of exponentials over all responses that are compared, shifted by their mean instead of the largest."""

    def log_sum_exp(values: Tensor) -> Tensor:
        shift = values.detach().mean()
        return shift + (values - shift).exp().sum().log()

    if objective.name == "groupdpo-mpo":
        return log_sum_exp(torch.cat((positives, negatives))) - log_sum_exp(positives)
    each = [log_sum_exp(torch.cat((positive[None], negatives))) - positive for positive in positives]
    return torch.stack(each).mean()


_LOGPS_EXACT = "log-probs exact; "

FAULTS = (
    Fault(
        name="scores-summed-for-averaged",
        stage="reduction",
        replacement=sums_for_means,
        what="Scores are sums of log-probs where the objective takes means, as in code that was made for DPO.",
        bites_where=MEANS_OF_LONG,
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "each reward is too large by the length of its response",
        invisible_where="log-probs; responses of one token",
    ),
    Fault(
        name="ipo-towards-one-over-beta",
        stage="objective",
        replacement=partial(only_under, ("ipo",), partial(with_pair_loss, towards_one_over_beta)),
        what="IPO's target is 1 / beta instead of 1 / (2 beta).",
        bites_where=IPO,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss about four times too large",
        invisible_where=REWARDS_TELL_NOTHING,
    ),
    Fault(
        name="ipo-towards-half-of-beta",
        stage="objective",
        replacement=partial(only_under, ("ipo",), partial(with_pair_loss, towards_half_of_beta)),
        what="IPO's target is beta / 2 instead of 1 / (2 beta), as if beta were one over itself.",
        bites_where=IPO,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "nearly no loss, gradients nearly without a pull",
        invisible_where=REWARDS_TELL_NOTHING + "; beta = 1",
    ),
    Fault(
        name="divided-by-padded-length",
        stage="objective",
        replacement=partial(only_under, ("sigmoid_norm",), divided_by_padded_length),
        what="Mean log-probs are taken over the length that responses are padded to, that of the longest of the batch.",
        imitates=("A36",),
        bites_where=SIGMOID_NORM_OF_UNEVEN,
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "rewards too small, the more so the shorter the response",
        invisible_where="log-probs; responses of one length",
    ),
    Fault(
        name="robust-not-divided",
        stage="objective",
        replacement=partial(only_under, ("robust",), not_divided),
        what="The robust loss is not divided by 1 - 2e.",
        bites_where=ROBUST,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss and all gradients too small by 1 - 2e",
        invisible_where=REWARDS_TELL_NOTHING + "; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="hinge-without-beta",
        stage="objective",
        replacement=partial(only_under, ("hinge",), partial(with_pair_loss, hinge_without_beta)),
        what="The hinge is taken of differences of scores, without beta, as where there is no frozen policy.",
        bites_where=HINGE,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss and gradients as of margins 1 / beta times as large",
        invisible_where=REWARDS_TELL_NOTHING + "; beta = 1",
    ),
    Fault(
        name="mpo-over-negatives",
        stage="objective",
        replacement=partial(only_under, ("groupdpo-mpo",), partial(with_group_loss, over_negatives)),
        what="The denominator of the group's softmax holds the negatives only.",
        bites_where=MPO,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss too small, may be below 0; coefficients do not shrink as positives lead",
        invisible_where=REWARDS_TELL_NOTHING + "; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="softmax-summed-over-positives",
        stage="objective",
        replacement=partial(only_under, ("groupdpo-softmax",), partial(with_group_loss, softmax_summed)),
        what="The softmax losses of the positives of a group are summed instead of averaged.",
        bites_where=SOFTMAX_OF_SEVERAL,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "phi of a group too large by the number of its positives",
        invisible_where=REWARDS_TELL_NOTHING + "; one positive per group; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="margin-of-each-pair",
        stage="objective",
        replacement=partial(only_under, ("groupdpo-margin",), pair_by_pair),
        what="The loss is averaged over pairs where it is one of the mean margin of the group.",
        bites_where=MARGIN_OF_GROUPS,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss too large by the spread of the margins, pairs of a group pull unlike",
        invisible_where=REWARDS_TELL_NOTHING + "; groups of two; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="all-pairs-of-the-batch",
        stage="objective",
        replacement=partial(only_under, ("groupdpo-all-pairs",), pairs_of_the_batch),
        what="Pairs are averaged over the batch instead of within their group.",
        imitates=("A34", "A65"),
        bites_where=ALL_PAIRS_OF_UNEVEN,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "groups weigh by their pairs in all but the likelihood",
        invisible_where=REWARDS_TELL_NOTHING + "; groups with equal numbers of pairs; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
)

MUTANTS = (
    EquivalentMutant(
        name="responses-of-a-side-reordered",
        stage="objective",
        replacement=responses_reordered,
        what="The objective is given the positives and the negatives of a group backwards, so that pairs are too.",
        bites_where=OTHER_THAN_SIGMOID,
        kinds=PREFERENCES,
        why_equal="a group is two sets: no objective depends on the order within a side",
    ),
    EquivalentMutant(
        name="log-sums-shifted-by-the-mean",
        stage="objective",
        replacement=partial(
            only_under, ("groupdpo-mpo", "groupdpo-softmax"), partial(with_group_loss, shifted_by_mean)
        ),
        what="Log-sums of exponentials are over all responses compared, shifted by their mean, not their largest.",
        bites_where=LOG_SUM_EXP,
        kinds=PREFERENCES,
        why_equal="log-sum-exp is equivariant under a common shift, and softplus(b - a) is log(e^a + e^b) - a",
    ),
)
