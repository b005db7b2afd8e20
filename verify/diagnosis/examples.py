"""Every sequence of a case as the unpacked path sees it: log-probs of prompt and unsupervised tokens too.

A wrong loss of supervised fine-tuning counts tokens that it should not, or divides by another number. What it counts
may lie in the prompt, on the turns of others, or behind the end, where the next sequence of the row begins.

Shape letters: L tokens of one sequence, prompt and completion; C tokens of its completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.diagnosis.tokens import path_numbers, sequences
from verify.groups import PreferenceGroup
from verify.model_state import Baseline, restored_model
from verify.subject import Subject


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence.

    Args:
        group: Its group.
        losses: -log p of each token but the first, and last of what stands behind the end: the first token of the next
            sequence (behind the last one, of the first); float64, [L].
        supervised: Which of these a loss counts; bool, [L].
        num_prompt: Number of prompt tokens; entry ``num_prompt - 1`` is the first completion token.
        path: Number of each completion token, equal where completions share it; [C].
    """

    group: int
    losses: Tensor
    supervised: Tensor
    num_prompt: int
    path: tuple[int, ...]

    @property
    def own(self) -> slice:
        """The entries of completion tokens."""
        return slice(self.num_prompt - 1, len(self.losses) - 1)


def read_examples(
    witness: Subject, model: Any, groups: Sequence[PreferenceGroup], baseline: Baseline
) -> tuple[Example, ...]:
    """Run the unpacked path on whole sequences.

    Args:
        witness: The unpacked path.
        model: The PEFT-wrapped model.
        groups: The groups of a case.
        baseline: What the model is.

    Returns:
        One for every completion, in completion order.
    """
    whole = list(sequences(groups))
    behind = [*(ids[0] for _, _, ids in whole[1:]), whole[0][2][0]]
    texts = [PreferenceGroup(ids[:1], ((*ids[1:], then),)) for (_, _, ids), then in zip(whole, behind, strict=True)]
    with torch.no_grad(), restored_model(model, witness.name, seed=0, baseline=baseline):
        logps = [values.cpu().double() for values in witness.per_token_logps(model, texts)]
    examples = []
    for (g, c, ids), values, path in zip(whole, logps, path_numbers(groups), strict=True):
        num_prompt, supervised = len(groups[g].prompt_ids), torch.zeros(len(ids), dtype=torch.bool)
        supervised[[num_prompt - 1 + place for place in groups[g].supervised[c]]] = True
        examples.append(Example(g, -values, supervised, num_prompt, tuple(path[num_prompt:])))
    return tuple(examples)
