"""The sharded model of a precision, and the same model whole, as each rank computes with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from verify.models.dtypes import DTYPES
from verify.models.request import ModelRequest, build_model
from verify.sharded.scenarios import PRECISIONS
from verify.subjects.sharded import ShardedStages, shard


def sharded_model(
    request: ModelRequest,
    precision: str,
    stages: ShardedStages,
    *,
    reshard_after_forward: bool = True,
    built: Any = None,
) -> Any:
    """Build a model and shard it. A collective.

    Args:
        request: The model.
        precision: One of ``PRECISIONS``.
        stages: Whose ``reduce_dtype`` counts, where it has one.
        reshard_after_forward: As in ``shard``.
        built: The whole model, as it is built of the request in the dtype of shards; it becomes the sharded one.

    Returns:
        The sharded model.
    """
    of = PRECISIONS[precision]
    model = build_model(request, of.weights).model if built is None else built
    shard(
        model,
        param_dtype=None if of.computes == of.weights else DTYPES[of.computes],
        reduce_dtype=stages.reduce_dtype or DTYPES[of.reduces],
        reshard_after_forward=reshard_after_forward,
    )
    return model


def whole_model(request: ModelRequest, precision: str) -> Any:
    """The model as a rank of the sharded one computes with it: where FSDP casts parameters they are cast, no buffers.

    PEFT keeps adapters of a bfloat16 model in float32, and so does a model that is sharded as it is.

    Args:
        request: The model.
        precision: One of ``PRECISIONS``.

    Returns:
        The whole model.
    """
    of = PRECISIONS[precision]
    model = build_model(request, of.weights).model
    if of.computes != of.weights:
        _cast_parameters(model, DTYPES[of.computes])
    return model


def _cast_parameters(model: Any, dtype: torch.dtype) -> None:
    """Put new parameters in place of all: one whose data alone is cast still takes gradients of its former dtype."""
    cast: dict[nn.Parameter, nn.Parameter] = {}  # tied ones stay tied
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)
                module._parameters[name] = cast.setdefault(parameter, new)
