"""Budgets of preference objectives: rewards, margins, the loss, and the coefficients of gradients.

A reward is beta times a sum or mean of log-probs, so its budget follows from theirs. From there to the loss goes how
steep the objective is: a sigmoid loss moves by no more than its margin does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.noise import BudgetKind, NoiseFloor
from verify.objective import Preference
from verify.observation import Observation
from verify.subjects.oracle import apply_objective
from verify.supervised_values import all_supervised
from verify.tolerance import Policy

EPSILON = float(torch.finfo(torch.float32).eps)
"""The least that a trainer sums in."""


def coefficient_noise(
    kind: BudgetKind,
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    objective: Preference,
    *,
    case: str,
    noise: NoiseFloor,
    policy: Policy,
) -> float:
    """Relative noise of the coefficients d loss / d reward, which weight the gradients of a group's completions.

    For one pair c(z) = -[(1-e) sigma(-z) - e sigma(z)], so |dc| = sigma(z) sigma(-z) |dz| (derived). The margin z sums
    the errors of T tokens under policy and reference: |dz| is taken as ``coefficient_sigmas`` standard deviations of
    that sum, beta sqrt(T (b^2 + b_ref^2)), or as the witness's own error where that is larger. One number may be right
    by luck, which is why the witness's own error alone is no measure. A completion's coefficient is the sum over its
    pairs; the relative noise of a group is ||dc|| / ||c|| over its completions, which for a pair is |dc / c|. Other
    objectives than the sigmoid loss are differentiated twice instead: :func:`coefficient_noises`.

    Args:
        kind: Distance to the oracle or to the witness.
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: beta and label smoothing.
        case: Name of the case.
        noise: The noise floor of this dtype.
        policy: For the number of standard deviations.

    Returns:
        The largest relative noise over the groups.
    """
    variance = sum(
        max(noise.by_case[case, kind, quantity, ""].rms, noise.pooled_rms[kind, quantity, ""]) ** 2
        for quantity in ("per_token_logps", "ref_per_token_logps")
    )
    own = noise.by_case[case, kind, "margins", ""].max
    if objective.name != "sigmoid" or objective.nll_weight:
        spread = policy.small_sample.coefficient_sigmas * math.sqrt(variance)
        return max(coefficient_noises(groups, expected, objective, spread=spread, own=own))
    smoothing, largest = objective.label_smoothing, 0.0
    for group, margins in zip(groups, margins_by_group(expected.margins, groups), strict=True):
        tokens = torch.tensor(group.num_supervised, dtype=torch.float64)
        num_tokens = tokens[: len(group.positives), None] + tokens[None, len(group.positives) :]
        spreads = policy.small_sample.coefficient_sigmas * objective.beta * (num_tokens * variance).sqrt()
        up, down = torch.sigmoid(margins), torch.sigmoid(-margins)
        coefficients = (1 - smoothing) * down - smoothing * up
        noises = spreads.clamp(min=own) * up * down
        largest = max(largest, relative_noise(coefficients, noises))
    return largest


def coefficient_noises(
    groups: Sequence[PreferenceGroup], expected: Observation, objective: Preference, *, spread: float, own: float
) -> list[float]:
    """Relative noise of the coefficients of each group, from the second derivative of any preference objective.

    The coefficient of completion i is a_i = d loss / d logp of each of its tokens. Errors of its T tokens shift its
    score as if every log-prob were off by t_i = spread / sqrt(T_i), and a_i by sqrt(sum_j (d a_i / d t_j)^2 t_j^2)
    (first order; derived). Where the hinge's kink lies within the spread of a margin the coefficient is any.

    Args:
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: The objective.
        spread: Errors of a log-prob that are allowed for, policy and reference together, in nats.
        own: Margin error of the witness itself, in units of the reward.

    Returns:
        ||da|| / ||a|| of each group, over its completions; infinite where no bound can be given.
    """
    lengths = _lengths(expected)
    offsets = torch.maximum(spread / lengths.sqrt(), own / _reward_of_shift(expected, objective))
    return moved_coefficients(groups, expected, objective, offsets)


def moved_coefficients(
    groups: Sequence[PreferenceGroup], expected: Observation, objective: Preference, offsets: Tensor
) -> list[float]:
    """How far the coefficients of each group move where all log-probs of a completion are off by as much.

    Args:
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: The objective.
        offsets: How far off each log-prob of a completion may be, in nats; [K], independent of one another.

    Returns:
        ||da|| / ||a|| of each group, over its completions; infinite where no bound can be given.
    """
    counted, lengths = all_supervised(groups), _lengths(expected)
    shifts = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in expected.per_token_logps]
    logps = [logp + shift for logp, shift in zip(expected.per_token_logps, shifts, strict=True)]
    with torch.enable_grad():
        loss = apply_objective(logps, expected.ref_per_token_logps, counted, objective).loss
        of_tokens = torch.stack(torch.autograd.grad(loss, shifts, create_graph=True)) / lengths
        rows = [_derivatives(of_completion, shifts) for of_completion in of_tokens]
    errors = (torch.stack(rows) * offsets).square().sum(1).sqrt()
    sizes = [len(group.completions) for group in groups]
    noises = [
        _relative(of_group, error)
        for of_group, error in zip(torch.split(of_tokens.detach(), sizes), torch.split(errors, sizes), strict=True)
    ]
    if objective.name != "hinge":
        return noises
    rewards = torch.split(offsets * _reward_of_shift(expected, objective), sizes)
    at_kink = [
        bool((((1 - margins).abs()) <= offset[: len(margins), None] + offset[None, len(margins) :]).any())
        for margins, offset in zip(margins_by_group(expected.margins, groups), rewards, strict=True)
    ]
    return [math.inf if kink else noise for kink, noise in zip(at_kink, noises, strict=True)]


def _lengths(expected: Observation) -> Tensor:
    return torch.tensor([len(logp) for logp in expected.per_token_logps], dtype=torch.float64)


def _reward_of_shift(expected: Observation, objective: Preference) -> Tensor:
    """How far the reward of each completion moves where all its log-probs move by one nat; [K]."""
    lengths = _lengths(expected)
    return objective.beta * (lengths if objective.sums_tokens else torch.ones_like(lengths))


def _derivatives(value: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Derivative of a number with respect to others, zero where it does not depend on them."""
    if not value.requires_grad:
        return torch.zeros(len(of), dtype=value.dtype)
    found = torch.autograd.grad(value, list(of), retain_graph=True, materialize_grads=True)
    return torch.stack(found)


def _relative(coefficients: Tensor, errors: Tensor) -> float:
    size, error = float(coefficients.norm()), float(errors.norm())
    return error / size if size > 0 else math.inf if error else 0.0


def margins_by_group(margins: Tensor, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
    """The margins of each group as a table, [positives, negatives]."""
    shapes = [(len(group.positives), len(group.negatives)) for group in groups]
    parts = torch.split(margins, [positives * negatives for positives, negatives in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def relative_noise(coefficients: Tensor, noises: Tensor) -> float:
    """Noise of the coefficients of a group over their size, ||dc|| / ||c|| over its completions.

    Args:
        coefficients: Of each pair, [positives, negatives].
        noises: How far off each may be; of the same shape.

    Returns:
        The quotient; infinite where all coefficients are zero.
    """
    size, error = _over_completions(coefficients), _over_completions(noises)
    return error / size if size > 0 else math.inf


def _over_completions(pairs: Tensor) -> float:
    """L2 norm over the completions of a group of the sum over each one's pairs; [positives, negatives] to a number."""
    return math.sqrt(float(pairs.sum(1).square().sum() + pairs.sum(0).square().sum()))


def reward_budgets(
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    objective: Preference,
    *,
    logps_rms: float,
    ref_logps_rms: float,
) -> list[float]:
    """Budget of each completion's reward, from the RMS budgets of its log-probs.

    |error| <= beta (sqrt(T N) (b + b_ref) + ceil(log2 T) eps32 sum_t (|logp_t| + |ref_logp_t|)), T the tokens of the
    completion, N those of the case; the last term is a pairwise sum in float32, the least that a trainer sums in. Where
    the score is a mean, a T-th of that.

    Args:
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: For beta, and whether log-probs are summed.
        logps_rms: RMS budget of the policy log-probs, in nats.
        ref_logps_rms: RMS budget of the reference log-probs, in nats.

    Returns:
        One budget per completion, in nats.
    """
    lengths = [length for group in groups for length in group.num_supervised]
    total = sum(lengths)
    budgets = []
    for length, logps, refs in zip(lengths, expected.per_token_logps, expected.ref_per_token_logps, strict=True):
        noise = math.sqrt(length * total) * (logps_rms + ref_logps_rms)
        levels = max(1, math.ceil(math.log2(length)))
        summation = levels * EPSILON * float(logps.abs().sum() + refs.abs().sum())
        budgets.append(objective.beta * (noise + summation) / (1 if objective.sums_tokens else length))
    return budgets


def margin_budgets(rewards: Sequence[float], groups: Sequence[PreferenceGroup]) -> list[list[float]]:
    """Budget of each pair's margin, group by group: the sum of its two reward budgets.

    Args:
        rewards: One budget per completion.
        groups: The groups.

    Returns:
        For each group, positive by positive and negative by negative.
    """
    budgets, start = [], 0
    for group in groups:
        negatives = start + len(group.positives)
        stop = start + len(group.completions)
        budgets.append([p + n for p in rewards[start:negatives] for n in rewards[negatives:stop]])
        start = stop
    return budgets


def loss_budget(
    objective: Preference,
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    *,
    rewards: Sequence[float],
    logps_rms: float,
) -> float:
    """Budget of a preference loss: how far its rewards' budgets move it, and its rounding in float32.

    A mean over pairs moves by the mean of slope times the budget of each margin; the slope is at most 1 for the sigmoid
    losses and the hinge, (1 - e) / (1 - 2e) for the robust loss. IPO's square moves by |2 r| d + d^2, r its root, d the
    budget of margin / beta. In the objectives of GroupDPO the coefficients of either side add up to at most 1, so
    that they move by the largest budget of a positive and that of a negative. The NLL is a weighted sum of log-probs.

    Args:
        objective: The objective.
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        rewards: Budget of each completion's reward.
        logps_rms: RMS budget of the policy log-probs, in nats.

    Returns:
        The budget, in nats.
    """
    budget = moved_by(objective, groups, expected.margins, rewards, EPSILON) + EPSILON * abs(float(expected.loss))
    if not objective.nll_weight:
        return budget
    total = sum(map(len, expected.per_token_logps))
    remaining, nll = iter(expected.per_token_logps), 0.0
    for group in groups:
        of_group = [next(remaining) for _ in group.completions][: len(group.positives)]
        for logps in of_group:
            levels = max(1, math.ceil(math.log2(len(logps))))
            error = math.sqrt(total / len(logps)) * logps_rms + (levels + 1) * EPSILON * float(logps.abs().mean())
            nll += error / len(of_group)
    return budget + objective.nll_weight * nll / len(groups)


def moved_by(
    objective: Preference, groups: Sequence[PreferenceGroup], margins: Tensor, rewards: Sequence[float], epsilon: float
) -> float:
    """How far errors of rewards move a preference loss without its NLL, as :func:`loss_budget` says.

    Args:
        objective: The objective.
        groups: The groups.
        margins: The margins, [pairs].
        rewards: Largest error of each completion's reward.
        epsilon: Of the dtype that the objective is computed in.

    Returns:
        The bound, in nats.
    """
    by_group = zip(margin_budgets(rewards, groups), margins_by_group(margins, groups), strict=True)
    moves = [_moved(objective, budgets, values.flatten().tolist(), epsilon) for budgets, values in by_group]
    return math.fsum(moves) / len(moves)


def _moved(objective: Preference, budgets: Sequence[float], margins: Sequence[float], epsilon: float) -> float:
    """How far the budgets of its margins move the loss of a group."""
    if objective.name == "ipo":
        by_pair = []
        for budget, margin in zip(budgets, margins, strict=True):
            root, off = margin / objective.beta - 1 / (2 * objective.beta), budget / objective.beta
            off += epsilon * (abs(margin) / objective.beta + 1 / objective.beta)
            by_pair.append(2 * abs(root) * off + off**2)
        return math.fsum(by_pair) / len(by_pair)
    if objective.name.startswith("groupdpo"):
        # A logsumexp in float32 rounds its largest term, whose size no margin is a bound of: two roundings of either.
        return max(budgets) + 4 * epsilon * (1 + max(map(abs, margins)))
    smoothing = objective.label_smoothing if objective.name == "robust" else 0.0
    return (1 - smoothing) / (1 - 2 * smoothing) * (math.fsum(budgets) / len(budgets))
