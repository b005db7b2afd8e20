"""A gradient taken apart: how much each token's log-prob contributed to it.

The gradient of a loss over log-probs is sum_t w_t grad logp_t with w_t = d loss / d logp_t. The gradients grad logp_t
of the unpacked path span it, if the backward pass is right; least squares gives the weights. What is left over did not
come from these log-probs: other tokens were counted, or the backward pass itself is wrong.

Shape letters: N completion tokens, P elements of all LoRA tensors, K completions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.model_state import Baseline, restored_model
from verify.objective import DpoSigmoid
from verify.observation import Objective, lora_tensor_name
from verify.subject import Subject

_IN_SPAN = 0.05


@dataclass(frozen=True, slots=True)
class TokenGradients:
    """Gradient of every completion token's log-prob under the unpacked path.

    Args:
        names: LoRA tensors, in the order of the columns.
        sizes: Elements of each.
        basis: float64, [N, P].
        weights: d loss / d logp of the right objective, float64, [N].
        lengths: Tokens of each completion.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    basis: Tensor
    weights: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that explain a gradient.

    Args:
        ratios: Weight over right weight, one vector per completion.
        left_over: Share of the difference to the right gradient that no weights explain, in [0, 1].
        by_completion: One weight for all tokens of each completion explains it as well.
    """

    ratios: tuple[Tensor, ...]
    left_over: float
    by_completion: bool

    @property
    def explained(self) -> bool:
        """Whether the gradient is one of these log-probs, with whatever weights."""
        return self.left_over <= _IN_SPAN

    @property
    def completion_ratios(self) -> tuple[float, ...]:
        """Mean ratio of each completion."""
        return tuple(float(ratio.mean()) for ratio in self.ratios)


def token_gradients(
    witness: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: DpoSigmoid,
    *,
    apply_objective: Objective,
    ref_logps: Sequence[Tensor],
    baseline: Baseline,
) -> TokenGradients:
    """One backward pass of the unpacked path for every completion token.

    Args:
        witness: The unpacked path.
        model: The PEFT-wrapped model.
        groups: The groups.
        objective: beta and label smoothing.
        apply_objective: The right objective.
        ref_logps: Reference log-probs of the unpacked path.
        baseline: What the model is.

    Returns:
        The gradients and the right weights.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    with restored_model(model, witness.name, seed=0, baseline=baseline):
        logps = list(witness.per_token_logps(model, groups))
        rows = []
        for value in torch.cat(logps):
            parts = torch.autograd.grad(value, [p for _, p in trained], retain_graph=True, allow_unused=True)
            flat = [torch.zeros_like(p) if part is None else part for part, (_, p) in zip(parts, trained, strict=True)]
            rows.append(torch.cat([part.detach().reshape(-1).cpu().double() for part in flat]))
    leaves = [logp.detach().cpu().double().requires_grad_() for logp in logps]
    loss = apply_objective(leaves, ref_logps, groups, objective).loss
    return TokenGradients(
        names=tuple(lora_tensor_name(name) for name, _ in trained),
        sizes=tuple(p.numel() for _, p in trained),
        basis=torch.stack(rows),
        weights=torch.cat(torch.autograd.grad(loss, leaves)),
        lengths=tuple(len(logp) for logp in logps),
    )


def explain_gradient(actual: Mapping[str, Tensor], of_tokens: TokenGradients) -> Weights | None:
    """Weights of the tokens in a gradient. Every LoRA tensor counts alike, however large its gradient is.

    Args:
        actual: The subject's gradients by LoRA tensor; zeros where one is missing.
        of_tokens: Gradients of the tokens.

    Returns:
        The weights, or None where the gradient is not finite or no different from the right one.

    Raises:
        ValueError: A tensor without gradient.
    """
    right = of_tokens.weights @ of_tokens.basis
    scale = _one_over_norms(right, of_tokens.sizes)
    basis, difference = of_tokens.basis * scale, (_flat(actual, of_tokens) - right) * scale
    size = float(difference.norm())
    if not math.isfinite(size) or size == 0:
        return None
    of_responses = torch.split(of_tokens.weights[:, None] * basis, list(of_tokens.lengths))
    whole = torch.stack([part.sum(0) for part in of_responses])
    per_completion, left_by_completion = _solve(whole, difference)
    by_completion = left_by_completion <= _IN_SPAN
    if by_completion:
        # Rows of `whole` carry the right weights already, so a solution of 0.5 is a ratio of 1.5.
        ratios = tuple(
            torch.full((length,), 1 + float(x)) for length, x in zip(of_tokens.lengths, per_completion, strict=True)
        )
        return Weights(ratios, left_by_completion, True)
    solution, left_over = _solve(basis, difference)
    ratios = torch.split(1 + solution / of_tokens.weights, list(of_tokens.lengths))
    return Weights(tuple(ratios), left_over, False)


def _one_over_norms(gradient: Tensor, sizes: Sequence[int]) -> Tensor:
    """For every element 1 over the norm of its tensor; 0 where that is 0."""
    norms = torch.stack([part.norm() for part in torch.split(gradient, list(sizes))])
    return torch.repeat_interleave(torch.where(norms > 0, 1 / norms, 0.0), torch.tensor(sizes))


def _solve(basis: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """Least squares over the rows of ``basis``; the solution and the share of the target that is left over."""
    solution = torch.linalg.lstsq(basis.T, target[:, None]).solution[:, 0]
    return solution, float((solution @ basis - target).norm() / target.norm())


def _flat(gradients: Mapping[str, Tensor], of_tokens: TokenGradients) -> Tensor:
    missing = [name for name in of_tokens.names if name not in gradients]
    if missing:
        raise ValueError(f"no gradient of {missing[0]}: a missing one has to be filled with zeros")
    return torch.cat([gradients[name].reshape(-1) for name in of_tokens.names])
