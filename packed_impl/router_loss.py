"""The load balancing loss of the routers of a mixture of experts, from packed rows.

``L = E sum_e f_e P_e``: ``f_e`` is the share of tokens that are sent to expert e (the f_e add up to k, the experts of a
token), ``P_e`` the mean probability that routers give it; both are means over the tokens of all layers with routers
(Fedus et al. 2021, https://arxiv.org/abs/2101.03961, eq. 4 to 6, with k experts for a token and all layers in one mean,
as transformers' ``load_balancing_loss_func``). Choices have no gradient: it flows through the P_e alone.

The tokens are those that unpacked training feeds: one batch in which every completion stands behind its own copy of
the prompt, its last token included, padding left out, in the policy's pass. The loss is no mean of the losses of parts:
of a step in several micro-batches, or on several ranks, each has its own, as in transformers and TRL. All rows of a
packed batch are one batch, however many they are. A shared slot stands for as many tokens as there are completions
behind it; a prompt ``a b`` with the responses ``c`` and ``d e`` in a row of six slots::

    slot             0  1  2  3  4  5
    token            a  b  c  d  e  -
    completions      2  2  1  1  1  0       7 tokens in all, as in ``a b c`` and ``a b d e``

Shape letters: B rows, T slots of a row, N slots of all rows, E experts, k of them for each token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import OutputRecorder

from packed_impl.attention import pretrained_model
from packed_impl.layout import PackedLayout


@dataclass(frozen=True, eq=False)
class RouterBalance:
    """How evenly routers use their experts.

    Args:
        loss: ``E sum_e f_e P_e``, without a coefficient; differentiable scalar, k where all is even.
        shares: f_e, the share of tokens that each expert is given; float64, [E].
        probs: P_e, the mean probability of each expert; differentiable, [E].
    """

    loss: Tensor
    shares: Tensor
    probs: Tensor


class RouterTap:
    """Keeps the logits of a model's routers while it runs.

    Args:
        top_k: Experts for each token.
    """

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._logits_of_layers: list[Tensor] = []

    def keep(self, logits: Tensor) -> None:
        """Take the logits of one router for all slots of a pass; [..., E]."""
        self._logits_of_layers.append(logits.flatten(0, -2))

    def balance(self, layout: PackedLayout) -> RouterBalance:
        """The balance of the one pass over a packed layout that was run.

        Raises:
            ValueError: As `balance`; another number of slots than the layout's, where it was not one pass over it.
        """
        return balance(self._logits_of_layers, num_completions(layout).flatten(), top_k=self._top_k)


def check_coefficient(router_aux_loss_coef: float) -> None:
    """Refuse a coefficient that is not a finite number of at least 0.

    Raises:
        ValueError: With its value.
    """
    if not 0 <= router_aux_loss_coef < math.inf:
        raise ValueError(f"router_aux_loss_coef is {router_aux_loss_coef}: expected a finite number, at least 0")


def balance(logits_of_layers: Sequence[Tensor], counts_N: Tensor, *, top_k: int) -> RouterBalance:
    """``E sum_e f_e P_e`` of slots that count so often.

    Softmax is taken in float32, or float64 where the logits are: what routers themselves choose by.

    Args:
        logits_of_layers: Router logits of each layer, [N, E].
        counts_N: For how many tokens each slot stands; int64, [N].
        top_k: Experts for each token.

    Returns:
        The balance, on the device of the first layer.

    Raises:
        ValueError: No layer, or one with another number of slots, or ``top_k`` out of range.
    """
    if not logits_of_layers:
        raise ValueError("no router ran: expected the logits of one layer at least")
    num_experts, device = logits_of_layers[0].shape[-1], logits_of_layers[0].device
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k is {top_k}: expected 1 to {num_experts}, the number of experts")
    counts_N = counts_N.to(device)
    assigned_E = torch.zeros(num_experts, dtype=torch.int64, device=device)
    weighed_E: Tensor | None = None
    for layer, logits_NE in enumerate(logits_of_layers):
        if logits_NE.shape != (expected := (len(counts_N), num_experts)):
            raise ValueError(f"router logits of shape {tuple(logits_NE.shape)} in layer {layer}: expected {expected}")
        dtype = torch.float64 if logits_NE.dtype == torch.float64 else torch.float32
        probs_NE = torch.softmax(logits_NE.to(device), dim=-1, dtype=dtype)
        chosen_Nk = probs_NE.detach().topk(top_k, dim=-1).indices
        assigned_E.index_add_(0, chosen_Nk.flatten(), counts_N.repeat_interleave(top_k))
        of_layer_E = counts_N.to(dtype) @ probs_NE
        weighed_E = of_layer_E if weighed_E is None else weighed_E + of_layer_E
    assert weighed_E is not None
    num_tokens = len(logits_of_layers) * int(counts_N.sum())
    if not num_tokens:
        raise ValueError("no slot counts: expected one token at least")
    shares_E, probs_E = assigned_E.double() / num_tokens, weighed_E / num_tokens
    return RouterBalance(num_experts * (shares_E.to(probs_E.dtype) * probs_E).sum(), shares_E, probs_E)


def num_completions(layout: PackedLayout) -> Tensor:
    """The number of completions whose path runs through each slot, 0 of padding; int64, [B, T].

    That is how often unpacked training feeds the token that stands there.
    """
    last_K = torch.tensor(layout.completion_lengths).cumsum(0) - 1
    ends_BT = torch.zeros_like(layout.input_ids)
    ends_BT.index_put_(
        (layout.token_rows[last_K], layout.token_slots[last_K]), torch.ones_like(last_K), accumulate=True
    )
    through_BT = torch.empty_like(ends_BT)
    for forest, ends_T, through_T in zip(layout.forests, ends_BT, through_BT, strict=True):
        handed_up = [0] * len(forest.segments)  # to each segment by its children, who all come after it
        for index in reversed(range(len(forest.segments))):
            start, length, parent = forest.segments[index]
            of_segment = slice(start, start + length)
            through_T[of_segment] = ends_T[of_segment].flip(0).cumsum(0).flip(0) + handed_up[index]
            if parent is not None:
                handed_up[parent] += int(through_T[start])
    return through_BT


@contextmanager
def tapped_routers(model: nn.Module) -> Iterator[RouterTap]:
    """Keep what the routers of a model say within the context.

    Args:
        model: The causal LM, wrapped or not.

    Yields:
        The tap.

    Raises:
        ValueError: A model without routers, or without a load balancing loss in transformers, or reentrant gradient
            checkpointing, which lets no gradient out of a layer but through its output.
    """
    outermost = pretrained_model(model)
    config = outermost.config.get_text_config()
    routers = router_modules(model)
    top_k = getattr(config, "num_experts_per_tok", None)
    if not routers or top_k is None or not hasattr(config, "router_aux_loss_coef"):
        raise ValueError(
            f"{type(outermost).__name__} has no load balancing loss: its config needs router_aux_loss_coef and "
            "num_experts_per_tok, and transformers has to know its routers"
        )
    if torch.is_grad_enabled() and any(map(_is_reentrant, model.modules())):
        raise ValueError(
            "reentrant gradient checkpointing would cut the router loss off its gradient: set "
            "gradient_checkpointing_kwargs={'use_reentrant': False}, or router_aux_loss_coef to 0"
        )
    tap = RouterTap(top_k)
    with ExitStack() as hooks:
        for router, place in routers:
            hook = _Hook(tap, place)
            hooks.callback(router.register_forward_hook(hook).remove)
        yield tap


class _Hook:
    def __init__(self, tap: RouterTap, place: int) -> None:
        self._tap, self._place = tap, place

    def __call__(self, router: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        self._tap.keep(output if isinstance(output, Tensor) else output[self._place])


def _is_reentrant(module: nn.Module) -> bool:
    if not (module.training and getattr(module, "gradient_checkpointing", False)):
        return False
    function = getattr(module, "_gradient_checkpointing_func", None)
    return isinstance(function, partial) and bool(function.keywords.get("use_reentrant"))


def router_modules(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """The routers that transformers knows a model to have, and which of their outputs are the logits.

    Args:
        model: The model, wrapped or not.

    Returns:
        In the order of the layers; empty of a dense model.
    """
    recorders = [
        recorder
        for known in [getattr(module, "_can_record_outputs", None) for module in model.modules()]
        for recorder in _as_list((known or {}).get("router_logits"))
    ]
    found: dict[nn.Module, int] = {}
    for name, module in model.named_modules():
        for recorder in recorders:
            if isinstance(module, recorder.target_class) and f".{recorder.layer_name or ''}" in f".{name}":
                found[module] = recorder.index
    return list(found.items())


def _as_list(recorders: object) -> list[OutputRecorder]:
    if recorders is None:
        return []
    listed = recorders if isinstance(recorders, list) else [recorders]
    return [each if isinstance(each, OutputRecorder) else OutputRecorder(each) for each in listed]
