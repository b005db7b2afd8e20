"""The objectives of GroupDPO on the rewards of one group, and their slopes.

Symbols: u_p and u_n the rewards of positive p and of negative n, sigma the logistic function, lse logsumexp.
``softplus(x) = -log sigma(-x)`` throughout: torch's softplus is x itself above its threshold of 20, which is wrong by
2e-9 there. Rewards may have any size: nothing here overflows, and no small difference is taken of large numbers.

All four equal the sigmoid loss of DPO, without label smoothing, at one positive and one negative. Slopes are
``c_i = d phi / d u_i``; those of a group sum to zero, since every objective sees differences of rewards only.

Legend: P positives and N negatives of one group; rewards_P and rewards_N are never empty.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from reference_impl.objectives import group_margins

Slopes = tuple[Tensor, Tensor]


def margin_loss(rewards_P: Tensor, rewards_N: Tensor) -> Tensor:
    """``phi = -log sigma(mean_P u - mean_N u)`` (derived: no source text found)."""
    return -logsigmoid(rewards_P.mean() - rewards_N.mean())


def margin_slopes(rewards_P: Tensor, rewards_N: Tensor) -> Slopes:
    """``c_p = -s/P, c_n = s/N`` with ``s = sigma(mean_N u - mean_P u)`` (derived)."""
    slope = torch.sigmoid(rewards_N.mean() - rewards_P.mean())
    return (-slope / len(rewards_P)).expand(len(rewards_P)), (slope / len(rewards_N)).expand(len(rewards_N))


def mpo_loss(rewards_P: Tensor, rewards_N: Tensor) -> Tensor:
    """``phi = lse_{P+N}(u) - lse_P(u) = -log sigma(lse_P(u) - lse_N(u))``.

    Minus the log of the share that positives have in the sum of all ``e^u``. Computed by the second form: of rewards
    around 10,000 the first keeps twelve decimals only.

    Status: published, Gupta et al. 2024, "Multi-Preference Optimization", without its weights by deviation.
    """
    return -logsigmoid(rewards_P.logsumexp(0) - rewards_N.logsumexp(0))


def mpo_slopes(rewards_P: Tensor, rewards_N: Tensor) -> Slopes:
    """``c_p = softmax_{P+N}(u)_p - softmax_P(u)_p, c_n = softmax_{P+N}(u)_n`` (derived).

    With w the share of negatives in the sum of all ``e^u``, ``softmax_{P+N}(u)_p = (1 - w) softmax_P(u)_p`` and
    ``softmax_{P+N}(u)_n = w softmax_N(u)_n``, hence ``c_p = -w softmax_P(u)_p``.
    """
    share = torch.sigmoid(rewards_N.logsumexp(0) - rewards_P.logsumexp(0))
    return -share * rewards_P.softmax(0), share * rewards_N.softmax(0)


def softmax_loss(rewards_P: Tensor, rewards_N: Tensor) -> Tensor:
    """``phi = (1/P) sum_p softplus(lse_N(u) - u_p)``: every positive alone against all negatives.

    Status: published for one positive (Chen et al. 2024, "On Softmax Direct Preference Optimization"); the mean over
    positives is derived.
    """
    return -logsigmoid(rewards_P - rewards_N.logsumexp(0)).mean()


def softmax_slopes(rewards_P: Tensor, rewards_N: Tensor) -> Slopes:
    """``c_p = -(1 - pi_p)/P, c_n = (1/P) sum_p e^{u_n} / (e^{u_p} + sum_N e^u)`` (derived).

    ``pi_p = e^{u_p} / (e^{u_p} + sum_N e^u)``, so that ``1 - pi_p = sigma(lse_N(u) - u_p)``, which softmax_N(u) spreads
    over the negatives.
    """
    lost_P = torch.sigmoid(rewards_N.logsumexp(0) - rewards_P)
    return -lost_P / len(rewards_P), lost_P.mean() * rewards_N.softmax(0)


def all_pairs_loss(rewards_P: Tensor, rewards_N: Tensor) -> Tensor:
    """``phi = (1/(P N)) sum_p sum_n -log sigma(u_p - u_n)`` (published)."""
    return -logsigmoid(group_margins(rewards_P, rewards_N)).mean()


def all_pairs_slopes(rewards_P: Tensor, rewards_N: Tensor) -> Slopes:
    """``c_p = -(1/(P N)) sum_n sigma(u_n - u_p), c_n = (1/(P N)) sum_p sigma(u_n - u_p)`` (derived)."""
    lost_PN = torch.sigmoid(-group_margins(rewards_P, rewards_N))
    return -lost_PN.sum(dim=1) / lost_PN.numel(), lost_PN.sum(dim=0) / lost_PN.numel()
