"""The losses of the DPO family on a pair, their slopes, and how the pairs of a group come together.

Symbols: z the margin of a pair, e the label smoothing, sigma the logistic function. Margins may have any shape and any
size: nothing here overflows. Everything keeps the dtype that it is given; the losses are differentiable.

Legend: P positives and N negatives of one group.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from reference_impl.objectives import check_beta, check_label_smoothing


def sigmoid_losses(margins: Tensor, label_smoothing: float) -> Tensor:
    """``-(1-e) log sigma(z) - e log sigma(-z)`` for each pair.

    Status: published. Rafailov et al. 2023, equation 7, is e = 0; the smoothed form is Mitchell 2023, "A note on DPO
    with noisy preferences & relationship to IPO".

    Args:
        margins: z.
        label_smoothing: e, the assumed share of swapped labels, in [0, 0.5).

    Returns:
        Losses, shaped like the margins.

    Raises:
        ValueError: A label smoothing outside [0, 0.5).
    """
    check_label_smoothing(label_smoothing)
    return -(1 - label_smoothing) * logsigmoid(margins) - label_smoothing * logsigmoid(-margins)


def robust_losses(margins: Tensor, label_smoothing: float) -> Tensor:
    """``[-(1-e) log sigma(z) + e log sigma(-z)] / (1 - 2e)`` for each pair: unbiased under labels swapped at rate e.

    Status: published, Chowdhury et al. 2024, "Provably robust DPO". It may be negative.

    Args:
        margins: z.
        label_smoothing: e, as in :func:`sigmoid_losses`.

    Returns:
        Losses, shaped like the margins.

    Raises:
        ValueError: A label smoothing outside [0, 0.5).
    """
    check_label_smoothing(label_smoothing)
    clean, swapped = -logsigmoid(margins), -logsigmoid(-margins)
    return ((1 - label_smoothing) * clean - label_smoothing * swapped) / (1 - 2 * label_smoothing)


def hinge_losses(margins: Tensor) -> Tensor:
    """``max(0, 1 - z)`` for each pair.

    Status: published, Zhao et al. 2023 (SLiC) on log-probs; on rewards against a frozen policy Liu et al. 2024 (RSO).

    Args:
        margins: z.

    Returns:
        Losses, shaped like the margins.
    """
    return torch.relu(1 - margins)


def ipo_losses(margins: Tensor, beta: float) -> Tensor:
    """``(z / beta - 1 / (2 beta))^2`` for each pair: the gap in log-prob ratios is pulled to ``1 / (2 beta)``.

    Status: published, Azar et al. 2023, equation 17, beta being tau there, with summed log-probs; with their mean over
    tokens as TRL computes it.

    Args:
        margins: z.
        beta: As in :func:`reference_impl.objectives.rewards`.

    Returns:
        Losses, shaped like the margins.

    Raises:
        ValueError: A beta that is not positive and finite.
    """
    check_beta(beta)
    return (margins / beta - 1 / (2 * beta)) ** 2


def sigmoid_slopes(margins: Tensor, label_smoothing: float) -> Tensor:
    """``d loss / d z = -(1-e) sigma(-z) + e sigma(z)`` of :func:`sigmoid_losses` (derived)."""
    check_label_smoothing(label_smoothing)
    return -(1 - label_smoothing) * torch.sigmoid(-margins) + label_smoothing * torch.sigmoid(margins)


def robust_slopes(margins: Tensor, label_smoothing: float) -> Tensor:
    """``d loss / d z = [-(1-e) sigma(-z) - e sigma(z)] / (1 - 2e)`` of :func:`robust_losses` (derived).

    Never zero: a pair that is already won pulls on with ``-e / (1 - 2e)``.
    """
    check_label_smoothing(label_smoothing)
    clean, swapped = -torch.sigmoid(-margins), torch.sigmoid(margins)
    return ((1 - label_smoothing) * clean - label_smoothing * swapped) / (1 - 2 * label_smoothing)


def hinge_slopes(margins: Tensor) -> Tensor:
    """``d loss / d z = -1 where z < 1, else 0`` of :func:`hinge_losses` (derived); 0 at the kink, as torch has it."""
    return -(margins < 1).to(margins.dtype)


def ipo_slopes(margins: Tensor, beta: float) -> Tensor:
    """``d loss / d z = (2 / beta) (z / beta - 1 / (2 beta))`` of :func:`ipo_losses` (derived)."""
    check_beta(beta)
    return 2 / beta * (margins / beta - 1 / (2 * beta))


def mean_over_pairs(losses_PN: Tensor) -> Tensor:
    """``(1 / (P N)) sum_p sum_n loss(z_pn)``: the loss of one group.

    Status: derived. It is the published loss at P = N = 1.

    Args:
        losses_PN: The losses of all pairs of one group.

    Returns:
        The loss, a scalar.
    """
    return losses_PN.mean()


def reward_slopes_of_pairs(slopes_PN: Tensor) -> tuple[Tensor, Tensor]:
    """Derivative of the mean over a group's pairs with respect to each reward (derived).

    A completion takes part in as many pairs as there are completions on the other side:
    ``c_p = (1 / (P N)) sum_n loss'(z_pn)`` and ``c_n = -(1 / (P N)) sum_p loss'(z_pn)``.

    Args:
        slopes_PN: ``loss'(z_pn)`` of all pairs of one group.

    Returns:
        The derivatives, [P] and [N]; they sum to zero together.
    """
    shares_PN = slopes_PN / slopes_PN.numel()
    return shares_PN.sum(dim=1), -shares_PN.sum(dim=0)
