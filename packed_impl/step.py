"""One packed step: log-probs of every completion, and the DPO loss over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from packed_impl.attention import attention_implementation, backend_named, causal_lm, gradient_support
from packed_impl.layout import Group, PackedLayout, pack
from packed_impl.logps import completion_logps
from packed_impl.objectives import dpo_sigmoid

DEFAULT_LOGIT_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class PackedLoss:
    """The DPO loss of a batch of pairs, and what it was made of; completions are chosen, rejected, chosen, ...

    Args:
        loss: Mean over the pairs; differentiable scalar.
        rewards: ``beta * (logp - ref_logp)`` of each completion; [2 G].
        margins: Chosen minus rejected reward of each pair; [G].
        per_token_logps: Policy log-probs, one differentiable 1-D tensor per completion.
        ref_per_token_logps: The same under the frozen policy, without gradient.
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor
    per_token_logps: list[Tensor]
    ref_per_token_logps: list[Tensor]


def layout_logps(
    model: nn.Module, layout: PackedLayout, *, backend: str, logit_chunk: int = DEFAULT_LOGIT_CHUNK
) -> list[Tensor]:
    """Log-probs of every completion of a packed layout.

    Args:
        model: The causal LM, wrapped or not.
        layout: The packed rows.
        backend: One of ``attention.BACKENDS``.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        One 1-D tensor per completion, in the standard order, on the model's device.

    Raises:
        ValueError: An unknown backend, gradients asked of a backend that has none on the model's device, gradient
            checkpointing without an outer ``attention_implementation``, or a model that cannot be run packed.
    """
    language_model = causal_lm(model)
    _check_gradients(model, backend)
    model_kwargs = backend_named(backend).model_kwargs(layout.forests, language_model.device, language_model.dtype)
    with attention_implementation(model, backend):
        logps_C = completion_logps(model, layout, model_kwargs, logit_chunk=logit_chunk)
    return list(torch.split(logps_C, list(layout.completion_lengths)))


def _check_gradients(model: nn.Module, backend: str) -> None:
    """Refuse gradients that would be missing or wrong."""
    if not torch.is_grad_enabled() or not any(parameter.requires_grad for parameter in model.parameters()):
        return
    language_model = causal_lm(model)
    supported, reason = gradient_support(backend, language_model.device.type)
    if not supported:
        raise ValueError(f"backend {backend!r}: {reason}; use torch.no_grad() or another backend")
    switched = language_model.config._attn_implementation != backend_named(backend).implementation
    if not switched or not model.training:
        return
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "gradient checkpointing computes the forward pass again during the backward pass, when the attention of "
            f"backend {backend!r} would be switched off: enter attention_implementation(model, {backend!r}) around both"
        )


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
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> PackedLoss:
    """The DPO loss of a batch of pairs; the frozen policy is the model with its adapter off.

    Args:
        model: The PEFT-wrapped causal LM.
        groups: Pairs: groups with one positive and one negative.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        rows: One of ``layout.ROWS``, or the groups of each row.
        beta: Scale of the rewards, above 0.
        label_smoothing: At least 0 and below 0.5.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: A group that is not 1+1, a model without an adapter to switch off, or as ``dpo_sigmoid``,
            ``layout.pack`` and ``layout_logps``.
    """
    for index, group in enumerate(groups):
        counts = (len(group.positives), len(group.negatives))
        if counts != (1, 1):
            raise ValueError(f"group {index} has {counts[0]}+{counts[1]} responses: DPO needs pairs, 1+1")
    disable_adapter = getattr(model, "disable_adapter", None)
    if disable_adapter is None:
        raise ValueError(f"{type(model).__name__} has no disable_adapter(): DPO takes the frozen policy from PEFT's")
    packed = pack(groups, layout=layout, rows=rows)
    # The frozen policy goes first: switching the adapter back on resets requires_grad, which a graph would not survive.
    with torch.no_grad(), disable_adapter():
        ref = layout_logps(model, packed, backend=backend, logit_chunk=logit_chunk)
    policy = layout_logps(model, packed, backend=backend, logit_chunk=logit_chunk)
    sums, ref_sums = (torch.stack([logps.sum() for logps in x]).view(-1, 2) for x in (policy, ref))
    terms = dpo_sigmoid(sums, ref_sums, beta=beta, label_smoothing=label_smoothing)
    return PackedLoss(terms.loss, terms.rewards.flatten(), terms.margins, policy, ref)
