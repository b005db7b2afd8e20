"""The sharded model of a precision, and the same model whole, as each rank computes with it; with its frozen policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from verify.frozen_policy import ADAPTERS_OFF, CachedLogps, FrozenAdapter, FrozenPolicy, ReferenceName, SeparateModel
from verify.groups import PreferenceGroup
from verify.models.dtypes import DTYPES
from verify.models.request import FROZEN_ADAPTER, ModelRequest, ModelUnderTest, build_model, build_reward_model
from verify.sharded.scenarios import PRECISIONS
from verify.subjects.sharded import ShardedStages, shard


@dataclass(frozen=True, slots=True)
class PolicyAndFrozen:
    """A model, and the frozen policy that goes with it.

    Args:
        policy: The model.
        frozen: Its own weights without adapters or with another one, another model alike, or what is looked up beside
            the data and never computed.
    """

    policy: Any
    frozen: FrozenPolicy = ADAPTERS_OFF

    @staticmethod
    def of(built: ModelUnderTest, reference: ReferenceName) -> PolicyAndFrozen:
        """What was built over a frozen policy; a reward model has none, whatever it says."""
        return PolicyAndFrozen(built.model, _frozen_policy(built, reference))

    @property
    def models(self) -> tuple[Any, ...]:
        """The model, and the other where there is one."""
        return (self.policy, self.frozen.model) if isinstance(self.frozen, SeparateModel) else (self.policy,)

    def trained_though_frozen(self) -> tuple[str, ...]:
        """Weights of the frozen model or adapter that require grad, or that a gradient came to."""
        match self.frozen:
            case SeparateModel(model):
                named = list(model.named_parameters())
            case FrozenAdapter(adapter):
                named = [each for each in self.policy.named_parameters() if f".{adapter}." in each[0]]
            case _:
                named = []
        return tuple(name for name, weight in named if weight.requires_grad or weight.grad is not None)


def _frozen_policy(built: ModelUnderTest, reference: ReferenceName) -> FrozenPolicy:
    match reference:
        case "adapters-off":
            return ADAPTERS_OFF
        case "frozen-adapter":
            return FrozenAdapter(FROZEN_ADAPTER)
        case "separate-model":
            return ADAPTERS_OFF if built.other is None else SeparateModel(built.other)
        case "cached":
            return CachedLogps(nothing_is_computed)
        case _:
            assert_never(reference)


def nothing_is_computed(groups: Sequence[PreferenceGroup]) -> Sequence[Tensor]:
    """What a step does for groups of which nothing stands beside the data: it ends."""
    raise ValueError(f"{len(groups)} groups are not in the cache")


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
    is_reward_model: bool = False,
) -> PolicyAndFrozen:
    """Build a model and shard it, and the frozen one where it is another. A collective.

    Args:
        request: The model.
        precision: One of ``PRECISIONS``.
        stages: Whose ``reduce_dtype`` counts, where it has one.
        reshard_after_forward: As in ``shard``.
        built: What is built of the request in the dtype of shards, where it is there already; it is sharded itself.
        is_reward_model: Build a reward model rather than a causal LM.

    Returns:
        The sharded models.
    """
    of = PRECISIONS[precision]
    if built is None:
        built = _built(request, of.weights, is_reward_model=is_reward_model)
    models = PolicyAndFrozen.of(built, request.reference)
    for model in models.models:
        shard(
            model,
            param_dtype=None if of.computes == of.weights else DTYPES[of.computes],
            reduce_dtype=stages.reduce_dtype or DTYPES[of.reduces],
            reshard_after_forward=reshard_after_forward,
        )
    return models


def whole_models(request: ModelRequest, precision: str, *, is_reward_model: bool = False) -> PolicyAndFrozen:
    """The model as a rank of the sharded one computes with it: where FSDP casts parameters they are cast, no buffers.

    PEFT keeps adapters of a bfloat16 model in float32, and so does a model that is sharded as it is.

    Args:
        request: The model.
        precision: One of ``PRECISIONS``.
        is_reward_model: Build a reward model rather than a causal LM.

    Returns:
        The whole models.
    """
    of = PRECISIONS[precision]
    built = PolicyAndFrozen.of(_built(request, of.weights, is_reward_model=is_reward_model), request.reference)
    if of.computes != of.weights:
        for model in built.models:
            _cast_parameters(model, DTYPES[of.computes])
    return built


def _built(request: ModelRequest, dtype: str, *, is_reward_model: bool) -> ModelUnderTest:
    return (build_reward_model if is_reward_model else build_model)(request, dtype)


def _cast_parameters(model: Any, dtype: torch.dtype) -> None:
    """Put new parameters in place of all: one whose data alone is cast still takes gradients of its former dtype."""
    cast: dict[nn.Parameter, nn.Parameter] = {}  # tied ones stay tied
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)
                module._parameters[name] = cast.setdefault(parameter, new)
