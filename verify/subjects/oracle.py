"""The float64 oracle as an observation: weights and adapters are read off the model under test.

A model without adapters is one whose every weight is trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, assert_never

import torch
from torch import Tensor

from reference_impl import batch_objective, ref_policy
from reference_impl.config import from_hf_config
from reference_impl.gradients import Train
from reference_impl.lora import Lora, LoraFactors
from reference_impl.parameters import EMBEDDING, HEAD
from reference_impl.reward_model import SCORE, bradley_terry, oracle_reward_step
from reference_impl.router_loss import oracle_router_loss
from reference_impl.step import oracle_step
from verify.frozen_policy import AdaptersOff, CachedLogps, FrozenAdapter, FrozenPolicy, SeparateModel
from verify.groups import PreferenceGroup
from verify.objective import Objective, Preference, RewardModel
from verify.observation import Observation
from verify.passes import ObjectiveValues
from verify.router_balance import NO_BALANCE, RouterBalance
from verify.supervised_values import supervised_logps
from verify.trained_gradients import to_float64

_PEFT_PREFIX = "base_model.model."


def observe_oracle(model: Any, groups: Sequence[PreferenceGroup], objective: Objective) -> Observation:
    """What the model's weights and adapters mean, in float64.

    Args:
        model: The model; only its tensors and its config are used, none of its code.
        groups: The groups.
        objective: The objective.

    Returns:
        The expected observation.

    Raises:
        ValueError: A model that the oracle does not know, or groups that the objective has no meaning for.
    """
    if isinstance(objective, RewardModel):
        return _observe_reward_model(model, groups)
    start = time.perf_counter()
    weights, lora = read_tensors(model)
    config = from_hf_config(model.config.to_dict())
    step = oracle_step(
        groups,
        weights,
        config,
        lora,
        train=_train(lora),
        objective=objective.name,
        ref_policy=_ref_policy(objective.reference, model, groups) if isinstance(objective, Preference) else None,
        **_parameters(objective),
    )
    loss, gradients, balance = step.loss, dict(step.gradients or {}), NO_BALANCE
    if coefficient := objective.router_aux_loss_coef:
        routers = oracle_router_loss(groups, weights, config, lora, train=_train(lora))
        loss = loss + coefficient * routers.loss
        for name, gradient in (routers.gradients or {}).items():
            gradients[name] = gradients[name] + coefficient * gradient
        balance = RouterBalance(to_float64(routers.load_E), to_float64(routers.probability_E))
    return Observation(
        per_token_logps=supervised_logps(tuple(map(to_float64, step.per_token_logps)), groups),
        ref_per_token_logps=supervised_logps(tuple(map(to_float64, step.ref_per_token_logps)), groups)
        if step.ref_per_token_logps
        else (),
        rewards=to_float64(step.rewards),
        margins=to_float64(step.margins),
        loss=to_float64(loss),
        gradients={name: to_float64(gradient) for name, gradient in gradients.items()},
        balance=balance,
        looked_up=f"{EMBEDDING}.weight" if f"{HEAD}.weight" in weights else "",
        elapsed_s=time.perf_counter() - start,
    )


def _observe_reward_model(model: Any, groups: Sequence[PreferenceGroup]) -> Observation:
    start = time.perf_counter()
    weights, lora = read_tensors(model)
    head = weights.pop(SCORE)
    step = oracle_reward_step(groups, weights, from_hf_config(model.config.to_dict()), lora, head, train=_train(lora))
    return Observation(
        per_token_logps=(),
        ref_per_token_logps=(),
        rewards=to_float64(step.rewards),
        margins=to_float64(step.margins),
        loss=to_float64(step.loss),
        gradients={name: to_float64(gradient) for name, gradient in (step.gradients or {}).items()},
        looked_up=f"{EMBEDDING}.weight",
        elapsed_s=time.perf_counter() - start,
    )


def _train(lora: Lora) -> Train:
    return "lora" if lora else "all"


def _ref_policy(frozen: FrozenPolicy, model: Any, groups: Sequence[PreferenceGroup]) -> ref_policy.RefPolicy:
    match frozen:
        case AdaptersOff():
            return ref_policy.AdaptersOff()
        case FrozenAdapter(adapter):
            return ref_policy.FrozenAdapter(read_tensors(model, adapter)[1])
        case SeparateModel(other):
            return ref_policy.SeparateModel(read_tensors(other)[0], from_hf_config(other.config.to_dict()))
        case CachedLogps():
            return ref_policy.Cached(frozen.look_up(groups))
        case _:
            assert_never(frozen)


class _Parameters(TypedDict, total=False):
    beta: float
    label_smoothing: float
    nll_weight: float


def _parameters(objective: Objective) -> _Parameters:
    if isinstance(objective, Preference):
        return {
            "beta": objective.beta,
            "label_smoothing": objective.label_smoothing,
            "nll_weight": objective.nll_weight,
        }
    return {}


def unknown_to_oracle(config: Any) -> str:
    """Why the oracle has no decoder for a model; "" where it has.

    Args:
        config: The transformers config.

    Returns:
        The reason, with what the oracle knows.
    """
    try:
        from_hf_config(config.to_dict())
    except ValueError as error:
        return str(error)
    return ""


def read_tensors(model: Any, adapter: str = "default") -> tuple[dict[str, Tensor], dict[str, LoraFactors]]:
    """Weights under their names before wrapping, and LoRA factors by module.

    Args:
        model: The model, PEFT-wrapped or not.
        adapter: The adapter whose factors are read.

    Returns:
        Base weights without duplicates (a tied head appears once), and the factors.
    """
    weights: dict[str, Tensor] = {}
    factors: dict[str, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        plain = name.removeprefix(_PEFT_PREFIX)
        if ".lora_" in plain:
            module, factor, name_of_adapter, _ = plain.rsplit(".", 3)
            if name_of_adapter == adapter:
                factors.setdefault(module, {})[factor] = parameter.detach()
        else:
            weights[plain.replace(".base_layer.", ".")] = parameter.detach()
    scalings = _scalings(model, adapter)
    lora = {
        module: LoraFactors(A=parts["lora_A"], B=parts["lora_B"], scaling=scalings[module])
        for module, parts in factors.items()
    }
    return weights, lora


def _scalings(model: Any, adapter: str) -> Mapping[str, float]:
    return {
        name.removeprefix(_PEFT_PREFIX): float(module.scaling[adapter])
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and adapter in module.lora_A
    }


def apply_objective(
    logps: Sequence[Tensor], refs: Sequence[Tensor], groups: Sequence[PreferenceGroup], objective: Objective
) -> ObjectiveValues:
    """The published objective on a subject's log-probs or rewards, in float64.

    Args:
        logps: Policy log-probs, one vector per completion, a value for each of its tokens; under a reward model the
            reward of each completion, a scalar.
        refs: Reference log-probs; none under SFT and a reward model.
        groups: The groups.
        objective: The objective.

    Returns:
        The loss (differentiable through ``logps``) and, under a preference objective, the rewards.

    Raises:
        ValueError: Groups that the objective has no meaning for.
    """
    if isinstance(objective, RewardModel):
        rewards = torch.stack([reward.double() for reward in logps])
        return ObjectiveValues(loss=bradley_terry(rewards, groups), rewards=rewards)
    values = batch_objective.apply_objective(
        [logp.double() for logp in logps],
        [ref.double() for ref in refs],
        groups,
        objective=objective.name,
        **_parameters(objective),
    )
    return ObjectiveValues(loss=values.loss, rewards=values.rewards)
