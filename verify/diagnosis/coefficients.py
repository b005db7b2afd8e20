"""A gradient taken apart: how much each token's log-prob contributed to it.

The gradient of a loss over log-probs is sum_t w_t grad logp_t with w_t = d loss / d logp_t. The gradients grad logp_t
of the unpacked path span it, if the backward pass is right; least squares gives the weights. What is left over did not
come from these log-probs: other tokens were counted, or the backward pass itself is wrong.

One weight for each response is tried first, which takes a backward pass for each response; only where that does not
explain the gradient is a weight for each token looked for.

Shape letters: M rows of a basis (responses or tokens), P elements of all LoRA tensors.
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
from verify.observation import ApplyObjective, lora_tensor_name
from verify.subject import Subject

_IN_SPAN = 0.05
_AT_A_TIME = 32


@dataclass(frozen=True, slots=True)
class Basis:
    """Gradients of log-probs under the unpacked path: of every response's sum, or of every token.

    Args:
        names: LoRA tensors, in the order of the columns.
        sizes: Elements of each.
        rows: float64, [M, P].
        weights: d loss / d each of these log-probs, of the right objective; float64, [M].
        lengths: Rows that belong to each response.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: Tensor
    weights: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that explain a gradient.

    Args:
        ratios: Weight over right weight, one vector per response: of all its tokens, or of one for all.
        left_over: Share of the difference to the right gradient that no weights explain, in [0, 1].
    """

    ratios: tuple[Tensor, ...]
    left_over: float

    @property
    def explained(self) -> bool:
        """Whether the gradient is one of these log-probs, with whatever weights."""
        return self.left_over <= _IN_SPAN

    @property
    def by_response(self) -> bool:
        """Whether one weight for each response explains it."""
        return self.explained and all(len(ratio) == 1 for ratio in self.ratios)

    @property
    def response_ratios(self) -> tuple[float, ...]:
        """Mean ratio of each response."""
        return tuple(float(ratio.mean()) for ratio in self.ratios)


def gradient_basis(
    witness: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: DpoSigmoid,
    *,
    per_token: bool,
    apply_objective: ApplyObjective,
    ref_logps: Sequence[Tensor],
    baseline: Baseline,
) -> Basis:
    """Gradients of the unpacked path's log-probs, many of them in one backward pass.

    Args:
        witness: The unpacked path; its attention must be one whose backward pass can be batched, such as eager.
        model: The PEFT-wrapped model.
        groups: The groups.
        objective: beta and label smoothing.
        per_token: For every token rather than for every response.
        apply_objective: The right objective.
        ref_logps: Reference log-probs of the unpacked path.
        baseline: What the model is.

    Returns:
        The gradients and the right weights.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    with restored_model(model, witness.name, seed=0, baseline=baseline):
        logps = list(witness.per_token_logps(model, groups))
        rows = [
            _gradient_rows(logp, directions, [p for _, p in trained])
            for logp in logps
            for directions in _directions(logp, per_token)
        ]
    leaves = [logp.detach().cpu().double().requires_grad_() for logp in logps]
    loss = apply_objective(leaves, ref_logps, groups, objective).loss
    weights = torch.autograd.grad(loss, leaves)
    return Basis(
        names=tuple(lora_tensor_name(name) for name, _ in trained),
        sizes=tuple(p.numel() for _, p in trained),
        rows=torch.cat(rows),
        # All tokens of a response have one and the same right weight: DPO sums.
        weights=torch.cat(weights) if per_token else torch.stack([weight[0] for weight in weights]),
        lengths=tuple(len(logp) if per_token else 1 for logp in logps),
    )


def _directions(logp: Tensor, per_token: bool) -> tuple[Tensor, ...]:
    """What to differentiate a response along: all tokens together, or each on its own, some at a time; [n, tokens]."""
    if not per_token:
        return (torch.ones_like(logp)[None],)
    return torch.split(torch.eye(len(logp), dtype=logp.dtype, device=logp.device), _AT_A_TIME)


def _gradient_rows(logp: Tensor, directions: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Gradients of a response along each direction; float64, [n, P]."""
    parts = torch.autograd.grad(
        logp, parameters, directions, retain_graph=True, is_grads_batched=True, materialize_grads=True
    )
    return torch.cat([part.reshape(len(directions), -1) for part in parts], dim=1).cpu().double()


def explain_gradient(actual: Mapping[str, Tensor], basis: Basis) -> Weights | None:
    """Weights of the log-probs in a gradient. Every LoRA tensor counts alike, however large its gradient is.

    Args:
        actual: The subject's gradients by LoRA tensor; zeros where one is missing.
        basis: Gradients of the log-probs.

    Returns:
        The weights, or None where the gradient is not finite or no different from the right one.

    Raises:
        ValueError: A tensor without gradient.
    """
    right = basis.weights @ basis.rows
    scale = _one_over_norms(right, basis.sizes)
    rows, difference = basis.rows * scale, (_flat(actual, basis.names) - right) * scale
    size = float(difference.norm())
    if not math.isfinite(size) or size == 0:
        return None
    solution = torch.linalg.lstsq(rows.T, difference[:, None]).solution[:, 0]
    ratios = torch.split(1 + solution / basis.weights, list(basis.lengths))
    return Weights(tuple(ratios), float((solution @ rows - difference).norm()) / size)


def _one_over_norms(gradient: Tensor, sizes: Sequence[int]) -> Tensor:
    """For every element 1 over the norm of its tensor; 0 where that is 0."""
    norms = torch.stack([part.norm() for part in torch.split(gradient, list(sizes))])
    return torch.repeat_interleave(torch.where(norms > 0, 1 / norms, 0.0), torch.tensor(sizes))


def _flat(gradients: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    missing = [name for name in names if name not in gradients]
    if missing:
        raise ValueError(f"no gradient of {missing[0]}: a missing one has to be filled with zeros")
    return torch.cat([gradients[name].reshape(-1) for name in names])
