"""The sharded model of a precision, and the same model whole, as each rank computes with it; with its frozen policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from verify.frozen_policy import ADAPTERS_OFF, FrozenPolicy, SeparateModel
from verify.models.dtypes import DTYPES
from verify.models.request import ModelRequest, ModelUnderTest, build_model
from verify.sharded.scenarios import PRECISIONS
from verify.subjects.sharded import ShardedStages, shard


@dataclass(frozen=True, slots=True)
class PolicyAndFrozen:
    """A model, and the frozen policy that goes with it: its own weights without adapters, or another model alike."""

    policy: Any
    frozen: FrozenPolicy = ADAPTERS_OFF

    @staticmethod
    def of(built: ModelUnderTest) -> PolicyAndFrozen:
        """What was built."""
        return PolicyAndFrozen(built.model, ADAPTERS_OFF if built.other is None else SeparateModel(built.other))

    @property
    def models(self) -> tuple[Any, ...]:
        """The model, and the other where there is one."""
        return (self.policy, self.frozen.model) if isinstance(self.frozen, SeparateModel) else (self.policy,)

    def trained_though_frozen(self) -> tuple[str, ...]:
        """Weights of the frozen model that require grad, or that a gradient came to."""
        if not isinstance(self.frozen, SeparateModel):
            return ()
        named = self.frozen.model.named_parameters()
        return tuple(name for name, weight in named if weight.requires_grad or weight.grad is not None)


def sharded_model(
    request: ModelRequest,
    precision: str,
    stages: ShardedStages,
    *,
    reshard_after_forward: bool = True,
    built: ModelUnderTest | None = None,
) -> Any:
    """As :func:`sharded_models`, of a request whose frozen policy needs no other model; the model alone."""
    return sharded_models(request, precision, stages, reshard_after_forward=reshard_after_forward, built=built).policy


def sharded_models(
    request: ModelRequest,
    precision: str,
    stages: ShardedStages,
    *,
    reshard_after_forward: bool = True,
    built: ModelUnderTest | None = None,
) -> PolicyAndFrozen:
    """Build a model and shard it, and the frozen one where it is another. A collective.

    Args:
        request: The model.
        precision: One of ``PRECISIONS``.
        stages: Whose ``reduce_dtype`` counts, where it has one.
        reshard_after_forward: As in ``shard``.
        built: What is built of the request in the dtype of shards, where it is there already; it is sharded itself.

    Returns:
        The sharded models.
    """
    of = PRECISIONS[precision]
    models = PolicyAndFrozen.of(build_model(request, of.weights) if built is None else built)
    for model in models.models:
        shard(
            model,
            param_dtype=None if of.computes == of.weights else DTYPES[of.computes],
            reduce_dtype=stages.reduce_dtype or DTYPES[of.reduces],
            reshard_after_forward=reshard_after_forward,
        )
    return models


def whole_models(request: ModelRequest, precision: str) -> PolicyAndFrozen:
    """The model as a rank of the sharded one computes with it: where FSDP casts parameters they are cast, no buffers.

    PEFT keeps adapters of a bfloat16 model in float32, and so does a model that is sharded as it is.

    Args:
        request: The model.
        precision: One of ``PRECISIONS``.

    Returns:
        The whole models.
    """
    of = PRECISIONS[precision]
    built = PolicyAndFrozen.of(build_model(request, of.weights))
    if of.computes != of.weights:
        for model in built.models:
            _cast_parameters(model, DTYPES[of.computes])
    return built


def _cast_parameters(model: Any, dtype: torch.dtype) -> None:
    """Put new parameters in place of all: one whose data alone is cast still takes gradients of its former dtype."""
    cast: dict[nn.Parameter, nn.Parameter] = {}  # tied ones stay tied
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)
                module._parameters[name] = cast.setdefault(parameter, new)
