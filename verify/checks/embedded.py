"""What passes the embedding of a model: ids that are read, outputs that become leaves, slots that are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Embedded:
    """One call of the embedding: token ids [rows, slots] and a leaf in place of its output, [rows, slots, width]."""

    input_ids: Tensor
    leaf: Tensor


@contextmanager
def embedded_ids(model: Any) -> Iterator[list[Tensor]]:
    """Note the token ids of each call; copies, on the CPU."""
    calls: list[Tensor] = []

    def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(_ids(args, kwargs).detach().to("cpu", copy=True))

    with _hooked(model, lambda embedding: embedding.register_forward_pre_hook(note, with_kwargs=True)):
        yield calls


@contextmanager
def embeddings_as_leaves(model: Any) -> Iterator[list[Embedded]]:
    """Cut the graph at the embedding: what comes out of each call is a leaf whose gradients can be read.

    To be left only behind the backward pass, which may compute a forward pass again.
    """
    calls: list[Embedded] = []

    def cut(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        calls.append(Embedded(_ids(args, kwargs), leaf))
        return leaf

    with _hooked(model, lambda embedding: embedding.register_forward_hook(cut, with_kwargs=True)), torch.enable_grad():
        yield calls


@contextmanager
def slots_exchanged(model: Any, slots: Sequence[Tensor], token_id: int) -> Iterator[list[Tensor]]:
    """Embed another token at some slots of each call, whatever the ids there are.

    Args:
        model: The model.
        slots: For each call in turn, which slots: bool, [rows, slots] as in that call.
        token_id: What is embedded there.

    Yields:
        Those of the slots that were met, call by call: fewer where a call feeds rows of another shape.
    """
    waiting, met = iter(slots), list[Tensor]()

    def exchange(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        ids, chosen = _ids(args, kwargs), next(waiting, None)
        if chosen is None or chosen.shape != ids.shape:
            return None
        met.append(chosen)
        exchanged = ids.masked_fill(chosen.to(ids.device), token_id)
        return ((exchanged, *args[1:]), kwargs) if args else (args, {**kwargs, "input": exchanged})

    with _hooked(model, lambda embedding: embedding.register_forward_pre_hook(exchange, with_kwargs=True)):
        yield met


def _ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    ids: Tensor = args[0] if args else kwargs["input"]
    return ids


@contextmanager
def _hooked(model: Any, hook: Callable[[nn.Module], Any]) -> Iterator[None]:
    handle = hook(model.get_input_embeddings())
    try:
        yield
    finally:
        handle.remove()
