"""A gradient taken apart: how much each token's log-prob contributed to it.

The gradient of a loss over log-probs is sum_t w_t grad logp_t with w_t = d loss / d logp_t. The gradients grad logp_t
of the unpacked path span it, if the backward pass is right; least squares gives the weights. What is left over did not
come from these log-probs: other tokens were counted, or the backward pass itself is wrong.

One weight for each response is tried first, which takes a backward pass for each response; only where that does not
explain the gradient is a weight for each token looked for, supervised or not.

Shape letters: M rows of a basis (responses or tokens), P elements of all trained tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verify.diagnosis.tokens import path_numbers, sequences
from verify.groups import PreferenceGroup
from verify.model_state import Baseline, restored_model
from verify.objective import Objective
from verify.passes import ApplyObjective
from verify.subject import Subject
from verify.trained_gradients import trained_name

_IN_SPAN = 0.05
_CANCELS = 1e-6
_AT_A_TIME = 32


@dataclass(frozen=True, slots=True)
class Basis:
    """Gradients of log-probs under the unpacked path: of every response's supervised sum, or of every token.

    Completions that begin alike share those tokens, and their rows: nothing in a gradient tells such tokens apart.

    Args:
        names: Trained tensors, in the order of the columns.
        sizes: Elements of each.
        rows: float64, [M, P].
        weights: d loss / d each of these log-probs, of the right objective; float64, [M].
        units: What a weight is held against, that of a supervised token of the completion (summed where several share
            the row); float64, [M].
        members: For each completion the rows that belong to it: one of its sum, or one for each of its tokens,
            supervised or not.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: Tensor
    weights: Tensor
    units: Tensor
    members: tuple[Tensor, ...]

    def ratios(self, weights: Tensor) -> tuple[Tensor, ...]:
        """Weights by completion, in units of a supervised token's; NaN where those that share a row cancel."""
        ratios = torch.where(self.units.abs() > _CANCELS * self.units.abs().max(), weights / self.units, torch.nan)
        return tuple(ratios[rows] for rows in self.members)

    def weights_of(self, by_token: Sequence[Tensor], supervised: Sequence[Sequence[int]]) -> Tensor | None:
        """Weights of all completion tokens, put on the rows.

        Args:
            by_token: One vector per completion, a value for each of its tokens.
            supervised: Places of the supervised tokens of each completion.

        Returns:
            [M]; None where rows of sums cannot hold them, since tokens of one completion weigh differently.
        """
        found = torch.zeros_like(self.weights)
        for rows, weights, places in zip(self.members, by_token, supervised, strict=True):
            if len(rows) == len(weights):
                found.index_add_(0, rows, weights)
                continue
            counted = torch.zeros_like(weights)
            counted[list(places)] = weights[places[0]]
            if not torch.equal(counted, weights):
                return None
            found[rows] += weights[places[0]]
        return found


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that explain a gradient.

    Args:
        basis: The gradients that were put together.
        values: The weight of each of its rows; float64, [M].
        left_over: Share of the difference to the right gradient that no weights explain, in [0, 1].
    """

    basis: Basis
    values: Tensor
    left_over: float

    @property
    def ratios(self) -> tuple[Tensor, ...]:
        """Weight over that of a supervised token, one vector per response: of all its tokens, or of one for all."""
        return self.basis.ratios(self.values)

    @property
    def right_ratios(self) -> tuple[Tensor, ...]:
        """What the ratios should be: 1 at supervised tokens, 0 at others, in between where completions share one."""
        return self.basis.ratios(self.basis.weights)

    @property
    def explained(self) -> bool:
        """Whether the gradient is one of these log-probs, with whatever weights."""
        return self.left_over <= _IN_SPAN

    @property
    def by_response(self) -> bool:
        """Whether one weight for each response explains it."""
        return self.explained and all(len(rows) == 1 for rows in self.basis.members)

    @property
    def response_ratios(self) -> tuple[float, ...]:
        """Mean ratio of each response."""
        return tuple(float(ratio.nanmean()) for ratio in self.ratios)


def gradient_basis(
    witness: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    *,
    per_token: bool,
    apply_objective: ApplyObjective,
    ref_logps: Sequence[Tensor],
    baseline: Baseline,
) -> Basis:
    """Gradients of the unpacked path's log-probs, many of them in one backward pass.

    Args:
        witness: The unpacked path; its attention must be one whose backward pass can be batched, such as eager.
        model: The model, wrapped or not.
        groups: The groups.
        objective: The objective of the case.
        per_token: For every token rather than for every response.
        apply_objective: The right objective.
        ref_logps: Reference log-probs of the unpacked path, a value for every completion token; none under SFT.
        baseline: What the model is.

    Returns:
        The gradients and the right weights.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    places = [list(of_completion) for group in groups for of_completion in group.supervised]
    members, is_new = _rows_of_tokens(groups) if per_token else _rows_of_sums(len(places))
    with restored_model(model, witness.name, seed=0, baseline=baseline):
        logps = list(witness.per_token_logps(model, groups))
        rows = [
            _gradient_rows(logp, directions, [p for _, p in trained])
            for logp, supervised, new in zip(logps, places, is_new, strict=True)
            for directions in _directions(logp, new if per_token else None, supervised)
        ]
    leaves = [logp.detach().cpu().double().requires_grad_() for logp in logps]
    loss = apply_objective(leaves, ref_logps, groups, objective).loss
    by_token = torch.autograd.grad(loss, leaves)
    units = [weight[of_completion[0]] for weight, of_completion in zip(by_token, places, strict=True)]
    num_rows = sum(len(part) for part in rows)
    basis = Basis(
        names=tuple(trained_name(name) for name, _ in trained),
        sizes=tuple(p.numel() for _, p in trained),
        rows=torch.cat(rows),
        weights=torch.zeros(num_rows, dtype=torch.float64),
        units=_summed(num_rows, members, [unit.expand(len(rows)) for unit, rows in zip(units, members, strict=True)]),
        members=members,
    )
    # All supervised tokens of a response have one and the same right weight: DPO sums, and a mean has one divisor.
    right = by_token if per_token else [unit[None] for unit in units]
    return replace(basis, weights=_summed(num_rows, members, right))


def _rows_of_tokens(groups: Sequence[PreferenceGroup]) -> tuple[tuple[Tensor, ...], list[list[int]]]:
    """For each completion the rows of its tokens, and the places of those that no completion before it has."""
    numbers: dict[int, int] = {}
    members, is_new = [], []
    for (g, _, _), path in zip(sequences(groups), path_numbers(groups), strict=True):
        own = path[len(groups[g].prompt_ids) :]
        is_new.append([place for place, number in enumerate(own) if number not in numbers])
        members.append(torch.tensor([numbers.setdefault(number, len(numbers)) for number in own]))
    return tuple(members), is_new


def _rows_of_sums(count: int) -> tuple[tuple[Tensor, ...], list[list[int]]]:
    return tuple(torch.tensor([number]) for number in range(count)), [[]] * count


def _summed(count: int, members: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    return torch.zeros(count, dtype=torch.float64).index_add(0, torch.cat(list(members)), torch.cat(list(values)))


def _directions(logp: Tensor, tokens: Sequence[int] | None, supervised: Sequence[int]) -> tuple[Tensor, ...]:
    """What to differentiate a response along: its supervised tokens together, or each of some tokens; [n, T]."""
    each = torch.eye(len(logp), dtype=logp.dtype, device=logp.device)
    if tokens is None:
        return (each[list(supervised)].sum(0)[None],)
    return torch.split(each[list(tokens)], _AT_A_TIME) if tokens else ()


def _gradient_rows(logp: Tensor, directions: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Gradients of a response along each direction; float64, [n, P]."""
    parts = torch.autograd.grad(
        logp, parameters, directions, retain_graph=True, is_grads_batched=True, materialize_grads=True
    )
    return torch.cat([part.reshape(len(directions), -1) for part in parts], dim=1).cpu().double()


def explain_gradient(actual: Mapping[str, Tensor], basis: Basis) -> Weights | None:
    """Weights of the log-probs in a gradient. Every trained tensor counts alike, however large its gradient is.

    Args:
        actual: The subject's gradients by trained tensor; zeros where one is missing.
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
    return Weights(basis, basis.weights + solution, float((solution @ rows - difference).norm()) / size)


def _one_over_norms(gradient: Tensor, sizes: Sequence[int]) -> Tensor:
    """For every element 1 over the norm of its tensor; 0 where that is 0."""
    norms = torch.stack([part.norm() for part in torch.split(gradient, list(sizes))])
    return torch.repeat_interleave(torch.where(norms > 0, 1 / norms, 0.0), torch.tensor(sizes))


def _flat(gradients: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    missing = [name for name in names if name not in gradients]
    if missing:
        raise ValueError(f"no gradient of {missing[0]}: a missing one has to be filled with zeros")
    return torch.cat([gradients[name].reshape(-1) for name in names])
