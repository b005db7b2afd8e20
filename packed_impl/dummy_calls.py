"""Calls of a sharded model that add nothing.

Sharding needs as many forward and backward passes on every rank, since each gathers parameters from all ranks and
leaves gradients with them. A rank that has run out of groups makes a call whose gradients are thrown away.

Multiplying its loss by zero is not enough: ``0 * inf`` is NaN, in the loss or anywhere on the way back, and one NaN on
one rank is a NaN on all. Here the gradients themselves are replaced, whatever they are, before they are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from packed_impl.modules import all_modules


@contextmanager
def adds_nothing(model: nn.Module) -> Iterator[None]:
    """Let forward and backward passes run as ever, and leave zeros in place of their gradients.

    A backward pass has to end inside the context. Parameters are found where modules are called: under FSDP2 they are
    whole only then, and their gradients are replaced before they are reduced over ranks.

    Args:
        model: The model, sharded or not.

    Yields:
        Nothing.
    """
    with ExitStack() as hooks:
        known: set[nn.Parameter] = set()

        def watch(module: nn.Module, args: object) -> None:
            if not torch.is_grad_enabled():
                return
            for parameter in module._parameters.values():
                if parameter is not None and parameter.requires_grad and parameter not in known:
                    known.add(parameter)
                    hooks.callback(parameter.register_hook(_zeros).remove)  # type: ignore[no-untyped-call]

        for module in all_modules(model):
            if any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values()):
                hooks.callback(module.register_forward_pre_hook(watch).remove)
        yield


def _zeros(gradient: Tensor) -> Tensor:
    return torch.zeros_like(gradient)
