"""Log-probs of a completion given its prompt.

Legend: P predictor places (one per completion token), V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.config import DecoderConfig
from reference_impl.decoder import hidden_states, logits_at
from reference_impl.groups import UnpackedSequence
from reference_impl.lora import Lora
from reference_impl.parameters import Weights


def target_logps(logits_PV: Tensor, target_ids: tuple[int, ...]) -> Tensor:
    """Log-softmax at the target, ``logits[t, y_t] - log sum_v exp logits[t, v]``, without the full [P, V].

    Args:
        logits_PV: Logits at each target's predictor, [P, V].
        target_ids: The P token ids that they predict.

    Returns:
        Log-probs in nats, [P], in the dtype of the logits.
    """
    targets_P = torch.tensor(target_ids, dtype=torch.int64, device=logits_PV.device)
    return logits_PV.gather(1, targets_P[:, None]).squeeze(1) - logits_PV.logsumexp(dim=1)


def completion_logps(
    sequence: UnpackedSequence, weights: Weights, config: DecoderConfig, lora: Lora | None = None
) -> Tensor:
    """Log-prob of every completion token: log-softmax of the logits at its predictor, taken at the token.

    Args:
        sequence: A prompt and one completion.
        weights: Frozen weights by name.
        config: The decoder.
        lora: Adapters by module name; None for the frozen model.

    Returns:
        Log-probs in nats, float64, one per completion token; differentiable in the adapters' factors.

    Raises:
        ValueError: A prompt with images, or see :func:`reference_impl.decoder.hidden_states`.
    """
    if sequence.images:
        raise ValueError(f"a prompt with {len(sequence.images)} images: the oracle computes decoders of text alone")
    # The last token predicts nothing that is asked for, so it is not fed.
    hidden_TD = hidden_states(sequence.ids[:-1], weights, config, lora)
    return target_logps(logits_at(hidden_TD, sequence.predictors, weights, lora), sequence.completion_ids)
