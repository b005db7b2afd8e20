"""The frozen policy that a preference objective compares with: what it is, and its log-probs.

Four kinds, of which a step has exactly one. They differ before anything is trained: with the policy's own factors as
the frozen adapter all rewards are 0, with the adapters off only where those factors start at B = 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

import torch
from torch import Tensor

from reference_impl.config import DecoderConfig
from reference_impl.groups import Group, UnpackedSequence, unpack
from reference_impl.logps import completion_logps
from reference_impl.lora import Lora, check_lora
from reference_impl.parameters import EMBEDDING, Weights, check_weights

PerTokenLogps = tuple[Tensor, ...]
RefPolicyName = Literal["adapters-off", "frozen-adapter", "separate-model", "cached"]


@dataclass(frozen=True, slots=True)
class AdaptersOff:
    """The policy's own weights without any adapter."""

    name: ClassVar[RefPolicyName] = "adapters-off"


@dataclass(frozen=True, slots=True)
class FrozenAdapter:
    """The policy's own weights with other factors, such as a copy of those that training started from.

    Args:
        lora: Its factors by module name; at least one module, not necessarily those of the policy.
    """

    name: ClassVar[RefPolicyName] = "frozen-adapter"
    lora: Lora


@dataclass(frozen=True, slots=True)
class SeparateModel:
    """Another model without adapters.

    Args:
        weights: Its weights by Hugging Face name, of any floating dtype.
        config: Its decoder, which may be of another size but has the same vocabulary; None for that of the policy.
    """

    name: ClassVar[RefPolicyName] = "separate-model"
    weights: Weights
    config: DecoderConfig | None = None


@dataclass(frozen=True, slots=True)
class Cached:
    """Log-probs that were computed before.

    Args:
        per_token_logps: One 1-D tensor per completion with a value for each of its tokens, unsupervised ones included:
            group by group, positives before negatives.
    """

    name: ClassVar[RefPolicyName] = "cached"
    per_token_logps: Sequence[Tensor]


RefPolicy = AdaptersOff | FrozenAdapter | SeparateModel | Cached


def check_ref_policy(ref_policy: RefPolicy, groups: Sequence[Group], config: DecoderConfig) -> None:
    """Refuse a frozen policy that does not belong to the policy's decoder or to the groups.

    Args:
        ref_policy: The frozen policy.
        groups: The groups of the whole batch.
        config: The decoder of the policy.

    Raises:
        ValueError: A frozen adapter without factors or with some that the decoder has no module for, weights that do
            not fit their config, another vocabulary, or cached log-probs that are not one finite floating-point vector
            per completion with one value per token.
    """
    match ref_policy:
        case AdaptersOff():
            pass
        case FrozenAdapter(lora):
            if not lora:
                raise ValueError("a frozen adapter without factors: the model with its adapters off is AdaptersOff()")
            check_lora(lora, config)
        case SeparateModel(weights, own_config):
            if own_config is not None and own_config.vocab_size != config.vocab_size:
                raise ValueError(
                    f"a frozen model with a vocabulary of {own_config.vocab_size} tokens: the policy has "
                    f"{config.vocab_size}, so that token ids would not mean the same"
                )
            check_weights(weights, own_config or config)
        case Cached(per_token_logps):
            _check_cached(per_token_logps, unpack(groups))
        case _:
            assert_never(ref_policy)


def ref_logps_by_group(
    ref_policy: RefPolicy, groups: Sequence[Group], weights: Weights, config: DecoderConfig
) -> Iterator[PerTokenLogps]:
    """The frozen policy's log-probs, computed when they are asked for.

    Args:
        ref_policy: The frozen policy, which :func:`check_ref_policy` accepts.
        groups: The groups.
        weights: Frozen weights of the policy by name.
        config: The decoder of the policy.

    Yields:
        For each group one 1-D float64 tensor per completion, without a graph.
    """
    first = 0
    for group in groups:
        sequences = unpack([group])
        match ref_policy:
            case AdaptersOff():
                yield _frozen_logps(sequences, weights, config, None)
            case FrozenAdapter(lora):
                yield _frozen_logps(sequences, weights, config, lora)
            case SeparateModel(own_weights, own_config):
                yield _frozen_logps(sequences, own_weights, own_config or config, None)
            case Cached(per_token_logps):
                cached = per_token_logps[first : first + len(sequences)]
                device = weights[f"{EMBEDDING}.weight"].device
                yield tuple(logps.detach().to(device, torch.float64, copy=True) for logps in cached)
            case _:
                assert_never(ref_policy)
        first += len(sequences)


@torch.no_grad()
def _frozen_logps(
    sequences: Sequence[UnpackedSequence], weights: Weights, config: DecoderConfig, lora: Lora | None
) -> PerTokenLogps:
    return tuple(completion_logps(sequence, weights, config, lora) for sequence in sequences)


def _check_cached(per_token_logps: Sequence[Tensor], sequences: Sequence[UnpackedSequence]) -> None:
    if len(per_token_logps) != len(sequences):
        raise ValueError(f"cached log-probs of {len(per_token_logps)} completions: the groups have {len(sequences)}")
    for place, (logps, sequence) in enumerate(zip(per_token_logps, sequences, strict=True)):
        num_tokens = len(sequence.completion_ids)
        if logps.shape != (num_tokens,) or not logps.is_floating_point():
            raise ValueError(
                f"cached log-probs of completion {place} have shape {tuple(logps.shape)} and dtype {logps.dtype}: "
                f"expected a floating-point one for each of its {num_tokens} tokens"
            )
        if not logps.isfinite().all():
            token = int((~logps.isfinite()).nonzero()[0])
            raise ValueError(
                f"cached log-prob of completion {place}, token {token} is {float(logps[token])}: expected a finite one"
            )
