"""The part of a staged step that a reward model has in place of log-probs.

Shape letters: B rows, T slots, D model, K completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from packed_impl.attention import pretrained_model
from packed_impl.reward_model import bradley_terry
from verify.faults.rows import Rows
from verify.faults.stages import Batch, Parameters, Stages, Terms


class _BlocksAndHead(nn.Module):
    """A reward model's final hidden states of all slots, [B, T, D], and its head, [1, D]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        classifier = pretrained_model(self.model)
        blocks = getattr(classifier, classifier.base_model_prefix)
        return blocks(**inputs).last_hidden_state, classifier.score.weight


def staged_rewards(
    stages: Stages, model: Any, rows: Rows, parameters: Parameters, inputs: Mapping[str, Any], batch: Batch
) -> Tensor:
    """Rewards of all completions, through the stages readout and scores.

    Args:
        stages: The stages.
        model: The reward model, with the attention that the step runs under.
        rows: The rows.
        parameters: Tensors that stand for the model's own, by name.
        inputs: Keyword arguments of the forward pass.
        batch: The batch.

    Returns:
        float32, or float64 of a float64 model; [K].
    """
    in_place = {f"model.{name}": tensor for name, tensor in parameters.items()}
    hidden_BTD, head = functional_call(_BlocksAndHead(model), in_place, kwargs=dict(inputs), tie_weights=False)  # noqa: N806
    rows_K, slots_K = stages.readout(rows).to(hidden_BTD.device).unbind(1)  # noqa: N806
    rewards = stages.scores(hidden_BTD[rows_K, slots_K], head, batch)
    return rewards if rewards.dtype == torch.float64 else rewards.float()


def readout(rows: Rows) -> Tensor:
    """The last token of each completion; of one in several pieces that of the last piece."""
    last = {branch.completion: (branch.row, branch.tokens[-1]) for branch in rows.branches()}
    return torch.tensor([last[completion] for completion in sorted(last)])


def scores(hidden_KD: Tensor, head: Tensor, batch: Batch) -> Tensor:  # noqa: N803
    """The head applied to hidden states; [K]."""
    return nn.functional.linear(hidden_KD, head)[:, 0]


def reward_terms(rewards: Tensor, batch: Batch) -> Terms:
    """The Bradley-Terry loss of each group."""
    sizes = [(len(group.positives), len(group.negatives)) for group in batch.groups]
    losses = torch.stack(
        [
            bradley_terry(of_group, [size]).loss
            for of_group, size in zip(torch.split(rewards, [sum(size) for size in sizes]), sizes, strict=True)
        ]
    )
    return Terms(losses, torch.ones_like(losses), rewards)
