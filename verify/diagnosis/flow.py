"""What passes through the model while a subject works: ids, positions, hidden states and their gradients.

Hooks read and change nothing. Places are named after what has just been computed, so that the first place that
differs names the culprit: "embedding", "layer 0 attention", "layer 0 mlp", ..., "final norm".

Shape letters: B rows, T slots, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


@dataclass(slots=True)
class ForwardCall:
    """One forward pass.

    Args:
        input_ids: As fed to the embedding; int64, [B, T].
        positions: As given to the rotary embedding, [B, T], or None where the model has none.
        hidden: Place to hidden states, [B, T, D].
        gradients: Place to d loss / d hidden states, [B, T, D], where they were computed.
    """

    input_ids: Tensor
    positions: Tensor | None = None
    hidden: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The modules of a decoder that are looked at.

    Args:
        embedding: Token ids to vectors.
        rotary: Given the positions, or None.
        layers: The decoder layers.
        norm: Behind the last layer.
        head: Hidden states to logits.
    """

    embedding: nn.Module
    rotary: nn.Module | None
    layers: tuple[nn.Module, ...]
    norm: nn.Module
    head: nn.Module

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the places, in the order of computation."""
        of_layers = [f"layer {i} {part}" for i in range(len(self.layers)) for part in ("attention", "mlp")]
        return ("embedding", *of_layers, "final norm")


def find_decoder(model: Any) -> Decoder | None:
    """The decoder within a wrapped causal LM, by transformers' names (Llama, Qwen2, Qwen3, ...).

    Args:
        model: The model.

    Returns:
        Its modules, or None where it is built otherwise.
    """
    for module in model.modules():
        layers, norm = getattr(module, "layers", None), getattr(module, "norm", None)
        if isinstance(layers, nn.ModuleList) and len(layers) and isinstance(norm, nn.Module):
            embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
            parts = all(
                isinstance(getattr(layer, name, None), nn.Module)
                for layer in layers
                for name in ("self_attn", "post_attention_layernorm")
            )
            if parts and isinstance(embedding, nn.Module) and isinstance(head, nn.Module):
                return Decoder(embedding, getattr(module, "rotary_emb", None), tuple(layers), norm, head)
    return None


@contextmanager
def record_flow(decoder: Decoder, recorded: Callable[[], bool]) -> Iterator[list[ForwardCall]]:
    """Record forward passes while the context is open.

    Args:
        decoder: The modules to look at.
        recorded: Asked when a pass begins; e.g. whether it is the policy's.

    Yields:
        The passes, which fill up; gradients come with the backward pass.
    """
    calls: list[ForwardCall] = []
    current: list[ForwardCall | None] = [None]

    def begin(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs["input"]
        current[0] = ForwardCall(ids.detach().cpu()) if recorded() and ids.ndim == 2 else None
        if current[0] is not None:
            calls.append(current[0])

    def position(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        call = current[0]
        if call is not None and isinstance(given, Tensor) and given.ndim == 2:
            call.positions = given.detach().cpu().expand(call.input_ids.shape)

    def enters(place: str, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(place, args[0] if args else kwargs.get("hidden_states"))

    def leaves(place: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        keep(place, output)

    def gradient_of(place: str, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        keep(place, output, hidden=False)

    def keep(place: str, value: Any, hidden: bool = True) -> None:
        call = current[0]
        if call is None or not isinstance(value, Tensor) or value.shape[:-1] != call.input_ids.shape:
            return
        if hidden:
            call.hidden[place] = value.detach()
        if value.requires_grad:
            value.register_hook(partial(_keep_gradient, call, place))  # type: ignore[no-untyped-call]

    with ExitStack() as stack:

        def before(module: nn.Module, hook: Callable[..., None]) -> None:
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

        before(decoder.embedding, begin)
        if decoder.rotary is not None:
            before(decoder.rotary, position)
        before(decoder.layers[0], partial(enters, "embedding"))
        following = [*decoder.layers[1:], decoder.norm]
        for i, (layer, after) in enumerate(zip(decoder.layers, following, strict=True)):
            before(layer.post_attention_layernorm, partial(enters, f"layer {i} attention"))  # type: ignore[arg-type]
            before(after, partial(enters, f"layer {i} mlp"))
            for name in _PROJECTIONS:
                projection = getattr(layer.self_attn, name, None)
                if isinstance(projection, nn.Module):
                    hook = projection.register_forward_hook(partial(gradient_of, f"layer {i} {name}"))
                    stack.callback(hook.remove)
        stack.callback(decoder.norm.register_forward_hook(partial(leaves, "final norm")).remove)
        before(decoder.head, partial(enters, "final norm"))
        yield calls


def _keep_gradient(call: ForwardCall, place: str, gradient: Tensor) -> None:
    call.gradients[place] = gradient.detach()


def policy_pass(model: Any, *, differentiable: bool) -> Callable[[], bool]:
    """Tells passes of the policy from those of the frozen policy.

    Args:
        model: The model, wrapped or not.
        differentiable: Whether the policy runs with gradients; if not, its adapters tell.

    Returns:
        A question to ask when a pass begins.
    """
    adapted = [module for module in model.modules() if hasattr(module, "lora_A")]

    def is_policy() -> bool:
        if differentiable:
            return torch.is_grad_enabled()
        return not any(bool(getattr(module, "disable_adapters", False)) for module in adapted)

    return is_policy
