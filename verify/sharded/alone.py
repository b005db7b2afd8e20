"""A subject on a whole model computes alone: other ranks have other work then, and would not answer.

A collective of its own would wait until the run ends, or be answered by what another rank asks for another case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor

_COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "broadcast_object_list", "all_gather",
    "all_gather_into_tensor", "all_gather_object", "all_gather_coalesced", "gather", "gather_object", "scatter",
    "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier", "send", "recv", "isend", "irecv", "new_group",
)  # fmt: skip


class CollectiveAloneError(Exception):
    """A subject called a collective on a whole model."""


def is_sharded(model: nn.Module) -> bool:
    """Whether a rank holds shares of the model's parameters."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextmanager
def alone() -> Iterator[None]:
    """Refuse collectives by their names in ``torch.distributed`` while the context is open.

    Names that a subject has imported before are not seen.
    """
    with ExitStack() as stack:
        for name in _COLLECTIVES:
            for module in (dist, distributed_c10d):
                if (collective := getattr(module, name, None)) is not None:
                    stack.callback(setattr, module, name, collective)
                    setattr(module, name, _refused(name, collective))
        yield


def _refused(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def refuse(*_: object, **__: object) -> None:
        raise CollectiveAloneError(
            f"{name} on a whole model, where other ranks have other work: call collectives only where a parameter of "
            "the model is a DTensor; a loss is the mean over the groups that it is given, and the step weighs it by "
            "their share of those of all ranks"
        )

    return refuse
