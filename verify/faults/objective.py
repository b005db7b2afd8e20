"""Faults of the objective: from sums to losses and rewards.

Shape letters: K completions (chosen, rejected, chosen, ...), G groups.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from verify.faults.conditions import SEVERAL_GROUPS
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.stages import Batch, Objective, Terms
from verify.objective import Preference


def without_reference(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """The reference terms are left out."""
    return honest(sums, torch.zeros_like(ref_sums), batch, objective)


def divided_by_beta(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """``z / beta`` instead of ``beta z``."""
    return honest(sums, ref_sums, batch, replace(objective, beta=1 / objective.beta))


def beta_missing(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Beta of 1."""
    return honest(sums, ref_sums, batch, replace(objective, beta=1.0))


def smoothing_ignored(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Label smoothing does not reach the loss."""
    return honest(sums, ref_sums, batch, replace(objective, label_smoothing=0.0))


def beta_twice_in_rewards(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Logged rewards are scaled by beta again."""
    terms = honest(sums, ref_sums, batch, objective)
    return replace(terms, rewards=objective.beta * terms.rewards)


def rewards_exchanged(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Logged chosen and rejected rewards are exchanged."""
    terms = honest(sums, ref_sums, batch, objective)
    return replace(terms, rewards=terms.rewards.view(-1, 2).flip(1).flatten())


def preference_reversed(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """The loss prefers rejected."""
    flipped = honest(sums.view(-1, 2).flip(1).flatten(), ref_sums.view(-1, 2).flip(1).flatten(), batch, objective)
    return replace(flipped, rewards=flipped.rewards.view(-1, 2).flip(1).flatten())


def pairs_by_stride(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Chosen first, then rejected, in one vector that is read pair by pair."""
    order = torch.arange(len(sums)).view(-1, 2).T.flatten().to(sums.device)
    terms = honest(sums[order], ref_sums[order], batch, objective)
    return replace(terms, rewards=terms.rewards[order.argsort()])


def next_rejected(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Each chosen response is paired with the rejected one of the next group."""

    def paired(x: Tensor) -> Tensor:
        chosen, rejected = x.view(-1, 2).unbind(1)
        return torch.stack((chosen, rejected.roll(-1)), dim=1).flatten()

    return replace(
        honest(paired(sums), paired(ref_sums), batch, objective),
        rewards=honest(sums, ref_sums, batch, objective).rewards,
    )


def reference_of_chosen_for_both(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """The reference sum of chosen is subtracted from both, so that it cancels."""
    return honest(sums, ref_sums.view(-1, 2)[:, :1].expand(-1, 2).flatten(), batch, objective)


def _margins(terms: Terms) -> Tensor:
    return terms.rewards[0::2] - terms.rewards[1::2]


def _with_gradient(terms: Terms, surrogate: Tensor) -> Terms:
    """The exact losses, with the gradient of something else."""
    return replace(terms, losses=surrogate + (terms.losses - surrogate).detach())


def _coefficients(terms: Terms, objective: Preference) -> Tensor:
    """Derivative of the loss by the margin of each pair, detached; [G]."""
    margins, smoothing = _margins(terms).detach(), objective.label_smoothing
    return smoothing * torch.sigmoid(margins) - (1 - smoothing) * torch.sigmoid(-margins)


def coefficients_permuted(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Replay: coefficients of the whole batch meet the rows of a micro-batch in another order."""
    terms = honest(sums, ref_sums, batch, objective)
    return _with_gradient(terms, _coefficients(terms, objective).roll(1) * _margins(terms))


def coefficient_of_mean(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference
) -> Terms:
    """Replay: one coefficient per micro-batch, the mean, instead of one per pair."""
    terms = honest(sums, ref_sums, batch, objective)
    return _with_gradient(terms, _coefficients(terms, objective).mean() * _margins(terms))


def chosen_detached(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Only the last branch of a row keeps its graph."""
    pairs = sums.view(-1, 2)
    return honest(torch.stack((pairs[:, 0].detach(), pairs[:, 1]), dim=1).flatten(), ref_sums, batch, objective)


_LOGPS_EXACT = "log-probs exact; "

FAULTS = (
    Fault(
        name="objective-without-reference",
        stage="objective",
        replacement=without_reference,
        what="The loss has no reference terms.",
        imitates=("A46",),
        signature=_LOGPS_EXACT + "rewards are beta times the policy sums",
    ),
    Fault(
        name="divided-by-beta",
        stage="objective",
        replacement=divided_by_beta,
        what="Margins are divided by beta instead of multiplied.",
        imitates=("A36",),
        signature=_LOGPS_EXACT + "rewards scaled by 1 / beta^2",
        invisible_where="beta = 1",
    ),
    Fault(
        name="beta-missing",
        stage="objective",
        replacement=beta_missing,
        what="Beta does not reach the loss.",
        imitates=("A37",),
        signature=_LOGPS_EXACT + "rewards scaled by 1 / beta",
        invisible_where="beta = 1",
    ),
    Fault(
        name="label-smoothing-ignored",
        stage="objective",
        replacement=smoothing_ignored,
        what="Label smoothing does not reach the loss.",
        imitates=("A37", "A52"),
        kinds=PREFERENCES,
        signature="rewards exact; loss and all gradients off",
        invisible_where="a run without label smoothing (packparity faults uses 0.1)",
    ),
    Fault(
        name="rewards-scaled-twice",
        stage="objective",
        replacement=beta_twice_in_rewards,
        what="Logged rewards are multiplied with beta a second time.",
        imitates=("A88",),
        signature="loss and gradients exact; rewards and margins beta times too small",
        invisible_where="loss, gradients; beta = 1",
    ),
    Fault(
        name="logged-rewards-exchanged",
        stage="objective",
        replacement=rewards_exchanged,
        what="Logged rewards of chosen and rejected are exchanged.",
        imitates=("A88",),
        signature="loss and gradients exact; rewards and the sign of margins wrong",
        invisible_where="loss, gradients",
    ),
    Fault(
        name="preference-reversed",
        stage="objective",
        replacement=preference_reversed,
        what="The loss prefers the rejected response.",
        imitates=("A88",),
        signature=_LOGPS_EXACT + "rewards exact; loss and gradients of the opposite preference",
        invisible_where="log-probs, rewards; a loss of ln 2",
    ),
    Fault(
        name="pairs-by-stride",
        stage="objective",
        replacement=pairs_by_stride,
        what="Sums stand chosen first, then rejected, but are read as pairs with a fixed stride.",
        imitates=("A38",),
        bites_where=SEVERAL_GROUPS,
        signature=_LOGPS_EXACT + "rewards exact; loss and gradients mix the pairs",
        invisible_where="one group",
    ),
    Fault(
        name="rejected-of-next-group",
        stage="objective",
        replacement=next_rejected,
        what="Chosen responses are held against the rejected one of the next group.",
        imitates=("A38", "A40"),
        bites_where=SEVERAL_GROUPS,
        signature=_LOGPS_EXACT + "rewards exact; loss and gradients mix the pairs",
        invisible_where="one group",
    ),
    Fault(
        name="reference-of-chosen-for-both",
        stage="objective",
        replacement=reference_of_chosen_for_both,
        what="The reference sum of chosen is subtracted from both responses, so that it cancels.",
        imitates=("A46", "A45"),
        signature=_LOGPS_EXACT + "chosen rewards exact, rejected ones off",
    ),
    Fault(
        name="coefficients-permuted",
        stage="objective",
        replacement=coefficients_permuted,
        what="In a replay, coefficients d loss / d margin meet the pairs in another order.",
        imitates=("A40",),
        bites_where=SEVERAL_GROUPS,
        signature="every forward quantity exact; gradients off",
        invisible_where="forward quantities; one group",
    ),
    Fault(
        name="one-coefficient-per-micro-batch",
        stage="objective",
        replacement=coefficient_of_mean,
        what="In a replay, the coefficient is taken over the micro-batch instead of per pair.",
        imitates=("A39",),
        bites_where=SEVERAL_GROUPS,
        signature="every forward quantity exact; gradients off",
        invisible_where="forward quantities; one group",
    ),
    Fault(
        name="chosen-detached",
        stage="objective",
        replacement=chosen_detached,
        what="Only the last branch of a pair keeps its graph.",
        imitates=("A49",),
        signature="every forward quantity exact; gradients lack the chosen response",
        invisible_where="forward quantities",
    ),
)
