"""One packed step: log-probs of every completion, and a loss over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from packed_impl.attention import attention_implementation, backend_named
from packed_impl.forward import check_gradients, layout_logps
from packed_impl.groups import check_negatives, group_sizes
from packed_impl.layout import Group, PackedLayout, pack
from packed_impl.logps import DEFAULT_LOGIT_CHUNK
from packed_impl.objectives import SFT_MEANS, sft_mean, supervised_counts, supervised_sums
from packed_impl.preference import PreferenceObjective
from packed_impl.reference_policy import ADAPTERS_OFF, Forward, ReferencePolicy
from packed_impl.router_loss import RouterBalance, check_coefficient, tapped_routers


@dataclass(frozen=True, eq=False)
class PackedLoss:
    """The loss of a batch under a preference objective, and what it was made of.

    Args:
        loss: Mean over the groups, the NLL term included; differentiable scalar.
        rewards: ``beta * (score - ref_score)`` of each of the K completions, in the standard order; [K].
        margins: Positive minus negative reward of each pair, in the order group, positive, negative.
        per_token_logps: Policy log-probs of all tokens, one differentiable 1-D tensor per completion.
        ref_per_token_logps: The same under the frozen policy, without gradient.
        router_balance: The balance of the routers in the policy's pass, where its loss is part of ``loss``, else None.
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor
    per_token_logps: list[Tensor]
    ref_per_token_logps: list[Tensor]
    router_balance: RouterBalance | None = None


@dataclass(frozen=True, eq=False)
class SftLoss:
    """The loss of supervised fine-tuning, and what it was made of.

    Args:
        loss: Differentiable scalar.
        per_token_logps: Log-probs of all tokens, supervised or not, one differentiable 1-D tensor per completion.
        num_supervised: Number of supervised tokens of the batch.
        router_balance: The balance of the routers, where its loss is part of ``loss``, else None.
    """

    loss: Tensor
    per_token_logps: list[Tensor]
    num_supervised: int
    router_balance: RouterBalance | None = None


def per_token_logps(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    backend: str,
    layout: str = "shared-prompt",
    rows: str | Sequence[Sequence[int]] = "one-row",
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> list[Tensor]:
    """Log-probs of the tokens of every completion, computed on packed rows.

    Args:
        model: The causal LM, wrapped or not.
        groups: The preference groups.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        rows: One of ``layout.ROWS``, or the groups of each row.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        One differentiable 1-D tensor per completion: group by group, positives before negatives; float32, or float64
        for a float64 model.

    Raises:
        ValueError: As ``layout.pack`` and ``layout_logps``.
    """
    backend_named(backend)
    return layout_logps(model, pack(groups, layout=layout, rows=rows), backend=backend, logit_chunk=logit_chunk)


def dpo_loss(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    backend: str,
    layout: str = "shared-prompt",
    rows: str | Sequence[Sequence[int]] = "one-row",
    beta: float,
    label_smoothing: float = 0.0,
    objective: str = "sigmoid",
    nll_weight: float | None = None,
    reference: ReferencePolicy = ADAPTERS_OFF,
    router_aux_loss_coef: float = 0.0,
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> PackedLoss:
    """The loss of a batch under a preference objective.

    Args:
        model: The causal LM, wrapped or not.
        groups: Groups with at least one positive and one negative each; a pair is 1+1.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        rows: One of ``layout.ROWS``, or the groups of each row.
        beta: Scale of the rewards; finite, above 0.
        label_smoothing: At least 0 and below 0.5; 0 for an objective without it.
        objective: One of ``preference.PREFERENCES``.
        nll_weight: Weight of the positives' NLL, at least 0; None for 1 under "rpo" and GroupDPO, else 0.
        reference: The frozen policy.
        router_aux_loss_coef: Weight of the load balancing loss of the policy's routers over the whole batch, as
            `router_loss` defines it; at least 0.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: A group without a negative, or as ``PreferenceObjective``, the reference policy, ``layout.pack``,
            ``layout_logps`` and `router_loss.tapped_routers`.
    """
    check_coefficient(router_aux_loss_coef)
    preference = PreferenceObjective(objective, beta, label_smoothing, nll_weight)
    check_negatives(groups, objective)
    backend_named(backend)
    packed = pack(groups, layout=layout, rows=rows)
    check_gradients(model, backend)
    forward = partial(layout_logps, backend=backend, logit_chunk=logit_chunk)
    with attention_implementation(model, backend):
        with reference.frozen(model, groups, forward) as ref_logps:
            ref = ref_logps(groups, packed)
        policy, balance = _with_routers(model, packed, forward, router_aux_loss_coef)
    found = packed_loss(policy, ref, packed.supervised, preference, groups)
    if balance is None:
        return found
    return replace(found, loss=found.loss + router_aux_loss_coef * balance.loss, router_balance=balance)


def packed_loss(
    policy: list[Tensor],
    ref: list[Tensor],
    supervised_C: Tensor,
    preference: PreferenceObjective,
    groups: Sequence[Group],
) -> PackedLoss:
    """A preference objective over the log-probs of a batch, however they were computed.

    Args:
        policy: Policy log-probs of all tokens, one 1-D tensor per completion, in the standard order.
        ref: The same under the frozen policy.
        supervised_C: Which tokens count; bool, [C].
        preference: The objective.
        groups: The batch.

    Returns:
        The loss and its parts.
    """
    supervised_C, lengths = supervised_C.to(policy[0].device), [len(logps) for logps in policy]
    logp_sums_K, ref_logp_sums_K = (supervised_sums(torch.cat(logps), supervised_C, lengths) for logps in (policy, ref))
    counts_K = supervised_counts(supervised_C, lengths)
    terms = preference.terms(logp_sums_K, ref_logp_sums_K, counts_K, group_sizes(groups))
    return PackedLoss(terms.loss, terms.rewards, terms.margins, policy, ref)


def sft_loss(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    backend: str,
    layout: str = "block-diagonal",
    rows: str | Sequence[Sequence[int]] = "one-row",
    mean: str = "token",
    router_aux_loss_coef: float = 0.0,
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> SftLoss:
    """The loss of supervised fine-tuning; no frozen policy takes part.

    Args:
        model: The causal LM, wrapped or not.
        groups: Examples: groups with positives only.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        rows: One of ``layout.ROWS``, or the groups of each row.
        mean: "token" or "example", as in ``objectives.sft_mean``.
        router_aux_loss_coef: As in `dpo_loss`.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: A group with a negative response, an unknown ``mean``, or as ``layout.pack``, ``layout_logps`` and
            `router_loss.tapped_routers`.
    """
    check_coefficient(router_aux_loss_coef)
    if mean not in SFT_MEANS:
        raise ValueError(f"unknown mean {mean!r}: expected one of {', '.join(SFT_MEANS)}")
    for index, group in enumerate(groups):
        if group.negatives:
            raise ValueError(
                f"group {index} has {len(group.negatives)} negative responses: an SFT example has positives only"
            )
    packed = pack(groups, layout=layout, rows=rows)
    forward = partial(layout_logps, backend=backend, logit_chunk=logit_chunk)
    logps, balance = _with_routers(model, packed, forward, router_aux_loss_coef)
    supervised_C = packed.supervised.to(logps[0].device)
    loss = sft_mean(torch.cat(logps), supervised_C, packed.completion_lengths, mean=mean)
    if balance is not None:
        loss = loss + router_aux_loss_coef * balance.loss
    return SftLoss(loss, logps, int(packed.supervised.sum()), balance)


def _with_routers(
    model: nn.Module, packed: PackedLayout, forward: Forward, router_aux_loss_coef: float
) -> tuple[list[Tensor], RouterBalance | None]:
    """The policy's pass and, where the routers' loss is part of the step, their balance in it."""
    if not router_aux_loss_coef:
        return forward(model, packed), None
    with tapped_routers(model) as tap:
        logps = forward(model, packed)
    return logps, tap.balance(packed)
