"""Measured proof that a packed path ran: token slots that pass the embedding, and those that pass the first layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from verify.groups import PreferenceGroup
from verify.models.vision import VISION_TOWER
from verify.module_walk import NamedModules, named_modules
from verify.policy_passes import FedPass, split_into_passes


@dataclass(slots=True)
class SlotCount:
    """Token slots, rows and calls that passed the embedding while it was being counted.

    ``slots_with_grad`` and ``rows_with_grad`` are those that were fed with gradients enabled: the policy pass, not the
    reference pass. ``slots_tried`` and ``rows_tried`` are those that the policy was fed without gradients, as in the
    first pass of a two-pass step, and ``tried`` are the passes that they were, where there were several and they can be
    told apart. ``slots_again`` were fed within a backward pass, where checkpoints run again what ran before; they count
    nowhere else. ``layer_slots`` passed the first decoder layer: more than ``slots`` where hidden
    states were made past the embedding. ``images`` passed the tower that sees them, where the model has one.
    """

    slots: int = 0
    rows: int = 0
    forward_calls: int = 0
    slots_with_grad: int = 0
    rows_with_grad: int = 0
    slots_tried: int = 0
    rows_tried: int = 0
    slots_again: int = 0
    layer_slots: int = 0
    images: int = 0
    tried: tuple[FedPass, ...] = ()

    def add(self, other: SlotCount) -> None:
        """Count what another model was fed as well."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@contextmanager
def count_slots(model: Any, groups: Sequence[PreferenceGroup] = ()) -> Iterator[SlotCount]:
    """Count what is fed to the model's input embedding, and what reaches its first decoder layer.

    A packed row of the pair (prompt 3, chosen 2, rejected 1) feeds 6 slots, the two unpacked rows feed 5 + 4 = 9.

    Args:
        model: A model with ``get_input_embeddings()``.
        groups: What the passes are about; without them passes of the policy without gradients are not told apart.

    Yields:
        The count, which grows while the context is open.

    Raises:
        ValueError: The model has no input embedding module, so that nothing could be proven.
    """
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Module):
        raise ValueError(f"{type(model).__name__}.get_input_embeddings() is not a module: slots cannot be counted")
    count = SlotCount()
    is_policy = _policy_probe(model)
    tried: list[Tensor] = []

    def add(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        input_ids = args[0] if args else kwargs["input"]
        slots = input_ids.numel()
        if _is_in_backward():
            count.slots_again += slots
            return
        rows = slots // input_ids.shape[-1] if slots else 0
        count.slots += slots
        count.rows += rows
        count.forward_calls += 1
        if torch.is_grad_enabled():
            count.slots_with_grad += slots
            count.rows_with_grad += rows
        elif is_policy():
            count.slots_tried += slots
            count.rows_tried += rows
            tried.append(input_ids.detach().clone())

    def add_layer(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        hidden_states = args[0] if args else kwargs["hidden_states"]
        if not _is_in_backward():
            count.layer_slots += hidden_states.shape[:-1].numel()

    def add_images(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        if not _is_in_backward():
            count.images += len(args[0] if args else kwargs["pixel_values"])

    modules = named_modules(model) if isinstance(model, nn.Module) else []
    handles = [embedding.register_forward_hook(add, with_kwargs=True)]
    if (layer := _first_decoder_layer(modules, embedding)) is not None:
        handles.append(layer.register_forward_hook(add_layer, with_kwargs=True))
    if (tower := _vision_tower(modules)) is not None:
        handles.append(tower.register_forward_hook(add_images, with_kwargs=True))
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()
    if groups and len(tried) > 1:
        calls = [ids.reshape(-1, ids.shape[-1]).tolist() for ids in tried if ids.numel()]
        count.tried = split_into_passes(calls, groups)


def _is_in_backward() -> bool:
    """Whether autograd is at work, so that what runs is run again: as ``torch.utils.checkpoint`` itself tells it."""
    return bool(torch._C._current_graph_task_id() != -1)


def _policy_probe(model: Any) -> Callable[[], bool]:
    """Says whether the model is the policy at the moment: whether the adapters that are trained now are on then.

    A model without adapters is where anything of it is trained; a separate frozen model is not.
    """
    if not isinstance(model, nn.Module):
        return lambda: False
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            factors = layer.lora_A.items()
            trained = {name for name, factor in factors if any(p.requires_grad for p in factor.parameters())}
            return lambda: not layer.disable_adapters and bool(trained.intersection(layer.active_adapters))
    is_trained = any(parameter.requires_grad for parameter in model.parameters())
    return lambda: is_trained


def _vision_tower(modules: NamedModules) -> nn.Module | None:
    return next((module for name, module in modules if f".{name}".endswith(f".{VISION_TOWER}")), None)


def _first_decoder_layer(modules: NamedModules, embedding: nn.Module) -> nn.Module | None:
    """The module called ``layers.0``, as every decoder of transformers calls it; None where there is none.

    A tower that sees images has layers of that name too; those of the decoder stand beside its embedding.
    """
    named_so = [(name, module) for name, module in modules if f".{name}".endswith(".layers.0")]
    if len(named_so) > 1:
        beside = next((name for name, module in modules if module is embedding), "")
        named_so.sort(key=lambda named: not beside.startswith(named[0].removesuffix("layers.0")))
    return named_so[0][1] if named_so else None
