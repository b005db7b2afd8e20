"""What a training step of the planned batch takes on one rank, from shapes alone. An estimate, and rounded up.

Nothing is allocated. Status: derived; activations are counted as what autograd keeps of a layer with adapters on every
linear layer, without gradient checkpointing.

Letters: D hidden size, I intermediate size, N query heads, K key heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights

_ADAM_STATES = 2
_LOGIT_CHUNK = 1024
"""Predictors whose logits exist at one time; twice as many while gradients are needed."""
_LAYERS_IN_FLIGHT = 2
"""Whole layers on a rank at one time: the one that computes, and the next, which is gathered meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """What one rank packs into one step.

    Args:
        groups: Preference pairs of the step on one rank.
        prompt_tokens: Of the prompt of each.
        response_tokens: Of each of the two responses.
    """

    groups: int
    prompt_tokens: int
    response_tokens: int

    @property
    def tokens(self) -> int:
        """Slots of the packed row: every prompt once."""
        return self.groups * (self.prompt_tokens + 2 * self.response_tokens)

    @property
    def predictors(self) -> int:
        """Slots whose logits are needed."""
        return self.groups * 2 * self.response_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededBytes:
    """Bytes on one rank at the peak of a step, by what they are for.

    Args:
        weights: This rank's share of weights, gradients and optimizer states.
        in_flight: Layers that are gathered whole, embedding and output head among them.
        activations: What autograd keeps of all layers until the backward pass.
        logits: Logits and their gradients.
        loading: Of the host: the whole model, which every rank holds while it is built and sharded.
    """

    weights: int
    in_flight: int
    activations: int
    logits: int
    loading: int

    @property
    def peak(self) -> int:
        """Of a step."""
        return self.weights + self.in_flight + self.activations + self.logits


def needed_bytes(
    config: NamedConfig, lora: LoraSpec, batch: PlannedBatch, *, num_layers: int, itemsize: int, world_size: int
) -> NeededBytes:
    """Estimate the memory of a step.

    Args:
        config: Sizes of the model.
        lora: The adapters.
        batch: The batch of one rank.
        num_layers: Depth.
        itemsize: Bytes of a weight, and of an activation.
        world_size: Ranks that the weights are shared among.

    Returns:
        Bytes by what they are for.
    """
    with_adapters = num_weights(config, num_layers, lora)
    adapters = with_adapters - num_weights(config, num_layers, replace(lora, rank=0))
    layer = num_weights(config, 2, lora) - num_weights(config, 1, lora)
    outside = with_adapters - num_layers * layer
    states = with_adapters + adapters * (1 + _ADAM_STATES)
    kept = num_layers * _kept_per_token(config, lora, itemsize) * batch.tokens
    rows = min(batch.predictors, 2 * _LOGIT_CHUNK)
    return NeededBytes(
        weights=-(-states // world_size) * itemsize,
        in_flight=(outside + _LAYERS_IN_FLIGHT * layer) * itemsize,
        activations=kept,
        logits=rows * config.vocab_size * (itemsize + 2 * max(4, itemsize)),
        loading=with_adapters * itemsize,
    )


def _kept_per_token(config: NamedConfig, lora: LoraSpec, itemsize: int) -> int:
    """Bytes that autograd keeps of one token in one layer.

    In the dtype of the weights: the input of each of the seven linear layers' adapters and their low-rank products; of
    attention queries, keys, values (before and after rotation) and the output; of the MLP gate, its activation, up and
    their product. In float32: both layer norms keep what they normalise, and so do the norms of queries and keys.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    own = 6 * hidden + 3 * queries + 5 * keys + 4 * inner + 7 * lora.rank
    exact = 4 * hidden + 2 * (queries + keys)
    return own * itemsize + exact * max(4, itemsize)
