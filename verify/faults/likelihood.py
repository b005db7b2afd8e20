"""Faults of the likelihood term of preferred responses; phi and rewards are right.

Shape letters: K completions, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from verify.faults.fault import PREFERENCES, Fault
from verify.faults.objective_conditions import GROUPDPO, GROUPDPO_NAMES, LIKELIHOOD_OF_UNEVEN, RPO, RPO_OF_LONG
from verify.faults.objective_parts import REWARDS_EXACT, REWARDS_TELL_NOTHING, only_under, sides
from verify.faults.stages import Batch, Objective, Terms
from verify.objective import Preference


def with_likelihood(
    likelihood: Callable[[Tensor, Tensor, Batch], Tensor],
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Preference,
) -> Terms:
    """Another likelihood term: of sums and numbers of tokens, [K] each; [G]."""
    terms = honest(sums, ref_sums, batch, replace(objective, nll_weight=0.0))
    term = objective.nll_weight * likelihood(sums, batch.num_counted.to(sums), batch)
    return replace(terms, losses=terms.losses - term)


def summed_likelihood(sums: Tensor, counts: Tensor, batch: Batch) -> Tensor:
    """Summed over tokens."""
    return torch.stack([positives.mean() for positives, _ in sides(sums, batch)])


def likelihood_of_all(sums: Tensor, counts: Tensor, batch: Batch) -> Tensor:
    """Of rejected responses too."""
    return torch.stack([torch.cat(of_group).mean() for of_group in sides(sums / counts, batch)])


def likelihood_by_token(sums: Tensor, counts: Tensor, batch: Batch) -> Tensor:
    """The mean over all tokens of the preferred responses of the batch."""
    total, number = (sum(positives.sum() for positives, _ in sides(values, batch)) for values in (sums, counts))
    return torch.as_tensor(total / number).expand(len(batch.groups))


def likelihood_forgotten(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """No likelihood term."""
    return honest(sums, ref_sums, batch, replace(objective, nll_weight=0.0))


FAULTS = (
    Fault(
        name="likelihood-summed",
        stage="objective",
        replacement=partial(only_under, ("rpo",), partial(with_likelihood, summed_likelihood)),
        what="The likelihood of a preferred response is summed over its tokens instead of averaged.",
        bites_where=RPO_OF_LONG,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss and gradients with the likelihood of long responses too large",
        invisible_where=REWARDS_TELL_NOTHING + "; preferred responses of one token",
    ),
    Fault(
        name="likelihood-of-rejected-too",
        stage="objective",
        replacement=partial(only_under, ("rpo",), partial(with_likelihood, likelihood_of_all)),
        what="The likelihood is taken over all responses, rejected ones too, as a model's own loss on the batch is.",
        bites_where=RPO,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "gradients raise the likelihood of rejected responses",
        invisible_where=REWARDS_TELL_NOTHING,
    ),
    Fault(
        name="likelihood-by-token",
        stage="objective",
        replacement=partial(only_under, ("rpo", *GROUPDPO_NAMES), partial(with_likelihood, likelihood_by_token)),
        what="The likelihood is the mean over all preferred tokens of the batch instead of over responses, as in TRL.",
        imitates=("A34",),
        bites_where=LIKELIHOOD_OF_UNEVEN,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss and the direction of gradients off: long responses weigh more",
        invisible_where=REWARDS_TELL_NOTHING + "; preferred responses of one length",
    ),
    Fault(
        name="likelihood-forgotten",
        stage="objective",
        replacement=partial(only_under, GROUPDPO_NAMES, likelihood_forgotten),
        what="GroupDPO's likelihood term is left out.",
        imitates=("A37",),
        bites_where=GROUPDPO,
        kinds=PREFERENCES,
        signature=REWARDS_EXACT + "loss and gradients without the likelihood of preferred responses",
        invisible_where=REWARDS_TELL_NOTHING + "; nll_weight = 0",
    ),
)
