"""A layer of gated experts of which each token takes a few (Shazeer et al. 2017; Qwen3 technical report, 2025).

Only what the forward pass computes: the auxiliary loss that keeps the load of experts even is in
:mod:`reference_impl.router_loss`.

Legend: T tokens, C tokens that chose an expert, D model width, E experts, X experts per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from reference_impl.frozen import product

Layers = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The layers of a decoder that have experts, and what these are.

    Args:
        count: Experts per layer, E.
        per_token: Experts that a token takes, X.
        intermediate_size: Width inside one expert.
        shares_sum_to_one: The X shares are divided by their sum.
        layers: Indices of the layers with experts; the others have one dense MLP.

    Raises:
        ValueError: A size that is not positive, or more experts per token than there are.
    """

    count: int
    per_token: int
    intermediate_size: int
    shares_sum_to_one: bool
    layers: Layers

    def __post_init__(self) -> None:
        for name in ("count", "per_token", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of the experts is {getattr(self, name)!r}: it must be positive")
        if self.per_token > self.count:
            raise ValueError(f"{self.per_token} experts per token: a layer has {self.count}")


def experts_mlp(x_TD: Tensor, scores_TE: Tensor, gate_up: Tensor, down: Tensor, experts: Experts) -> Tensor:
    """``y_t = sum_e share_te down_e(silu(gate_e(x_t)) * up_e(x_t))`` over the X experts of largest share.

    Shares are the softmax of the router's scores over all E experts, divided by the sum of the chosen ones if the
    decoder says so.

    Args:
        x_TD: Input, float64.
        scores_TE: What the router makes of the input.
        gate_up: For each expert its gate's rows and then those of its up projection, [E, 2 * intermediate, D].
        down: Down projection of each expert, [E, D, intermediate].
        experts: Their number, and how shares are taken.

    Returns:
        Output, float64, [T, D].
    """
    shares_TE = scores_TE.softmax(dim=-1)
    shares_TX, chosen_TX = shares_TE.topk(experts.per_token, dim=-1)
    if experts.shares_sum_to_one:
        shares_TX = shares_TX / shares_TX.sum(dim=-1, keepdim=True)
    y_TD = torch.zeros_like(x_TD)
    for expert in range(experts.count):
        token_C, rank_C = torch.where(chosen_TX == expert)
        if not len(token_C):
            continue
        gate, up = product(x_TD[token_C], gate_up[expert]).chunk(2, dim=-1)
        out_CD = product(silu(gate) * up, down[expert])
        y_TD = y_TD.index_add(0, token_C, shares_TX[token_C, rank_C, None] * out_CD)
    return y_TD
