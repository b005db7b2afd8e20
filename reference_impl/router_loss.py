"""The auxiliary loss that keeps the load of experts even, over a batch of unpacked sequences, in float64.

It is no sum over sequences: two means over all tokens of the batch are multiplied, so that its value for a batch is not
the mean of its values for the parts. It has no part in :func:`reference_impl.step.oracle_step`; where a model adds it
with a coefficient (``router_aux_loss_coef`` under ``output_router_logits``), loss and gradients add up:
``loss + coefficient * router_loss``, each gradient likewise.

What packing changes. Every token of every unpacked sequence counts, so a prompt with K completions counts K times. In a
packed row it stands once, and the same formula over the row gives its tokens a Kth of that weight: another loss, not a
rounding. To compare like with like, either give the tokens of a packed prompt the weight K
(:func:`load_balancing_loss` with ``token_weights``), or ask the oracle for the loss in which each copy of a prompt has
the weight 1/K (:func:`once_per_prompt`).

Legend: T tokens, E experts, X experts per token, L layers with experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from reference_impl.config import DecoderConfig
from reference_impl.decoder import decode
from reference_impl.gradients import Gradients, Policy, Train, added, gradients_of, policy_of
from reference_impl.groups import Group, UnpackedSequence, unpack
from reference_impl.lora import Lora
from reference_impl.parameters import Weights


@dataclass(frozen=True, slots=True)
class RouterLoss:
    """The auxiliary loss of a batch, without its coefficient. All tensors are float64 and detached.

    Args:
        loss: A scalar; X where each expert has the same load or the same probability.
        load_E: How many of the tokens took each expert, as a share; X in sum.
        probability_E: Mean probability of each expert; 1 in sum.
        gradients: Gradient of the loss by factor, ``<module>.lora_A`` and ``.lora_B``, or by the name of the weight
            where every one is trained; 0 for one behind the last router; None if not asked for.
    """

    loss: Tensor
    load_E: Tensor
    probability_E: Tensor
    gradients: Gradients | None


def load_balancing_loss(router_scores: Sequence[Tensor], per_token: int, token_weights: Tensor | None = None) -> Tensor:
    """``E sum_e f_e p_e``, f the share of tokens that take expert e and p its mean probability, over tokens and layers.

    Both means are over all tokens of all layers together, before they are multiplied: an expert that one layer
    overloads and another spares is even. The load has no gradient.

    Status: published, Fedus et al. 2021 (Switch), equations 4 to 6, there for X = 1 and layer by layer; with X experts
    per token and one mean over layers as transformers computes it for Mixtral and Qwen3-MoE.

    Args:
        router_scores: Scores before the softmax, one [T, E] per layer with experts, of any floating dtype.
        per_token: X.
        token_weights: How much each token counts, [T]; None for all the same.

    Returns:
        The loss, a scalar in the dtype of the scores; differentiable in them.

    Raises:
        ValueError: No layers, layers of different shapes, more experts per token than there are, or weights of another
            shape, not finite, negative, or all 0.
    """
    shapes = {tuple(scores.shape) for scores in router_scores}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or not 1 <= per_token <= shape[1]:
        raise ValueError(
            f"router scores of {len(router_scores)} layers with {per_token} experts per token: expected at least one "
            "layer, each of the same shape [tokens, experts], and no more per token than there are"
        )
    num_tokens, num_experts = shape
    weights_T = torch.ones(num_tokens) if token_weights is None else token_weights
    _check_token_weights("token weights", weights_T, num_tokens)
    total = _total(len(router_scores), [weights_T])
    load_E, probability_E = _weighted_sums(router_scores, per_token, weights_T)
    return num_experts * (load_E / total) @ (probability_E / total)


def oracle_router_loss(
    groups: Sequence[Group],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    *,
    train: Train = "lora",
    token_weights: Sequence[Tensor] | None = None,
    gradients: bool = True,
) -> RouterLoss:
    """:func:`load_balancing_loss` over every token of every unpacked sequence of a batch, one sequence at a time.

    Prompts count once per completion, and the last token of a completion counts too. The load is known after a pass
    without gradients; given the load the loss is a sum over sequences, each differentiated on its own.

    Args:
        groups: The groups.
        weights: Weights by Hugging Face name, of any floating dtype.
        config: A decoder with experts.
        lora: The adapters by module name; empty where every weight is trained.
        train: What is trained.
        token_weights: How much each token of each sequence counts, prompt first: one 1-D tensor per completion, group
            by group, positives before negatives; None for all the same.
        gradients: Whether to differentiate.

    Returns:
        The loss without its coefficient.

    Raises:
        ValueError: No groups, a decoder without experts, gradients asked for without adapters, weights that are not one
            finite value that is not negative for each token, or all 0, or an argument that the decoder refuses.
    """
    sequences = unpack(groups)
    if config.experts is None or not config.experts.layers:
        raise ValueError("a decoder without experts: it has no router")
    if gradients and train == "lora" and not lora:
        raise ValueError("gradients without LoRA factors: there is nothing to differentiate with respect to")
    weights_of = _weights_of_sequences(token_weights, sequences)
    total = _total(len(config.experts.layers), weights_of)

    with torch.no_grad():
        sums = [_sequence_sums(*each, weights, config, lora) for each in zip(sequences, weights_of, strict=True)]
    load_E, probability_E = (torch.stack(parts).sum(dim=0) / total for parts in zip(*sums, strict=True))
    of_batch = None
    if gradients:
        policy = policy_of(weights, lora, train, requires_grad=True)
        slope_E = config.experts.count * load_E / total
        of_sequences: Iterable[Gradients | None] = (
            _sequence_gradients(*each, config, policy, slope_E) for each in zip(sequences, weights_of, strict=True)
        )
        of_batch = reduce(added, of_sequences)
    return RouterLoss(config.experts.count * load_E @ probability_E, load_E, probability_E, of_batch)


def once_per_prompt(groups: Sequence[Group]) -> tuple[Tensor, ...]:
    """Token weights under which each prompt counts once, as where it stands once in a packed row.

    Two completions y and z of a prompt of two tokens: ``x0 x1 y0`` has the weights 1/2 1/2 1, ``x0 x1 z0 z1`` 1/2 1/2 1
    1.

    Args:
        groups: The groups.

    Returns:
        One weight per token of each unpacked sequence, float64: group by group, positives before negatives.

    Raises:
        ValueError: See :func:`reference_impl.groups.unpack`.
    """
    found = []
    for group in groups:
        sequences = unpack([group])
        for sequence in sequences:
            of_tokens = torch.ones(len(sequence.ids), dtype=torch.float64)
            of_tokens[: len(sequence.prompt_ids)] = 1 / len(sequences)
            found.append(of_tokens)
    return tuple(found)


def _sequence_sums(
    sequence: UnpackedSequence, weights_T: Tensor, weights: Weights, config: DecoderConfig, lora: Lora
) -> tuple[Tensor, Tensor]:
    assert config.experts is not None
    scores = decode(sequence.ids, weights, config, lora).router_scores
    return _weighted_sums(scores, config.experts.per_token, weights_T)


def _sequence_gradients(
    sequence: UnpackedSequence,
    weights_T: Tensor,
    config: DecoderConfig,
    policy: Policy,
    slope_E: Tensor,
) -> Gradients:
    """Gradient of one sequence's part in the loss; ``slope_E`` is that of the loss in a sum of probabilities."""
    with torch.enable_grad():
        _, probability_E = _sequence_sums(sequence, weights_T, policy.weights, config, policy.lora)
        return gradients_of(slope_E @ probability_E, policy.trained, some_unused=True)


def _weighted_sums(router_scores: Sequence[Tensor], per_token: int, weights_T: Tensor) -> tuple[Tensor, Tensor]:
    """Over tokens and layers: the weight of those that took each expert, and the weighted probabilities, [E] each."""
    weights_T = weights_T.detach().to(router_scores[0])
    loads, probabilities = [], []
    for scores_TE in router_scores:
        probability_TE = scores_TE.softmax(dim=-1)
        chosen_TX = probability_TE.topk(per_token, dim=-1).indices
        loads.append(weights_T @ torch.zeros_like(probability_TE).scatter(1, chosen_TX, 1.0))
        probabilities.append(weights_T @ probability_TE)
    return torch.stack(loads).sum(dim=0), torch.stack(probabilities).sum(dim=0)


def _total(num_layers: int, weights_of: Sequence[Tensor]) -> float:
    """What the means divide by: the weight of all tokens, in each layer."""
    total = num_layers * sum(float(weights_T.double().sum()) for weights_T in weights_of)
    if not total > 0:
        raise ValueError("token weights are all 0: there is nothing to take a mean over")
    return total


def _weights_of_sequences(
    token_weights: Sequence[Tensor] | None, sequences: Sequence[UnpackedSequence]
) -> Sequence[Tensor]:
    if token_weights is None:
        return [torch.ones(len(sequence.ids)) for sequence in sequences]
    if len(token_weights) != len(sequences):
        raise ValueError(f"token weights of {len(token_weights)} sequences: the groups have {len(sequences)}")
    for place, (weights_T, sequence) in enumerate(zip(token_weights, sequences, strict=True)):
        _check_token_weights(f"token weights of sequence {place}", weights_T, len(sequence.ids))
    return token_weights


def _check_token_weights(name: str, weights_T: Tensor, num_tokens: int) -> None:
    if weights_T.shape != (num_tokens,):
        raise ValueError(f"{name} have shape {tuple(weights_T.shape)}: expected one for each of {num_tokens} tokens")
    if wrong := [weight for weight in weights_T.tolist() if not (math.isfinite(weight) and weight >= 0)]:
        raise ValueError(f"{name} have {wrong[0]} among them: expected finite ones that are not negative")
