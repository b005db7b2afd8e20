"""Suspects where log-probs are exact and rewards are not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verify.diagnosis.coefficients import Weights
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, POSSIBLE, Suspect
from verify.diagnosis.stages.token_weights import out_of_place
from verify.objective import Preference
from verify.subjects.oracle import apply_objective
from verify.supervised_values import all_supervised

_TOLERANCE = 2e-3
_LOW_PRECISION = 0.02


def reward_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """Sums, or what is made of them."""
    beyond, weights = evidence.differences.beyond, evidence.weights
    if not beyond & {"loss", "gradients"}:
        if "margins" not in beyond:
            yield Suspect(
                "supervision", INFERRED,
                "all rewards of a group are off by the same amount, as if what they share were counted",
            )  # fmt: skip
        else:
            yield Suspect("objective", INFERRED, "rewards are not those that the loss, which is right, was made of")
        return
    by_value = list(_rewards_by_value(evidence))
    if by_value:
        yield from by_value
        return
    if weights is None:
        yield Suspect("supervision", POSSIBLE, "log-probs are exact, sums are not")
        yield Suspect("reduction", POSSIBLE, "log-probs are exact, sums are not")
    elif not weights.explained:
        yield Suspect(
            "supervision", INFERRED,
            f"{weights.left_over:.0%} of the gradient's error come from no completion token: something else is counted",
        )  # fmt: skip
    elif not weights.by_response:
        which = out_of_place(weights, evidence)
        yield Suspect("supervision", INFERRED, f"tokens of one response weigh differently in the gradient{which}")
        yield Suspect("reduction", POSSIBLE, "a sum that leaves tokens out looks the same")
    elif _follows_from_its_rewards(weights, evidence):
        yield Suspect(
            "reference", INFERRED,
            "the gradient is that of these rewards: the policy's sums are right, what is taken off them is not",
        )  # fmt: skip
        yield Suspect("reduction", POSSIBLE, "wrong sums of the frozen policy alone look the same")
    else:
        yield Suspect(
            "reduction", INFERRED, "tokens of one response weigh alike, but sums are not those of the log-probs"
        )
        yield Suspect("objective", POSSIBLE, "weights of whole responses are wrong")


def _rewards_by_value(evidence: Evidence) -> Iterator[Suspect]:
    """Rewards that equal a known wrong formula of the right sums."""
    assert isinstance(evidence.objective, Preference)
    actual, beta = evidence.actual.rewards, evidence.objective.beta
    sums = torch.stack([logps.sum() for logps in evidence.expected.per_token_logps])
    refs = torch.stack([logps.sum() for logps in evidence.expected.ref_per_token_logps])
    lengths = torch.tensor([float(len(logps)) for logps in evidence.expected.per_token_logps], dtype=torch.float64)
    whole = torch.tensor(
        [float(len(ids)) for group in evidence.groups for ids in group.completions], dtype=torch.float64
    )
    right = beta * (sums - refs)
    if not evidence.objective.sums_tokens:
        right = right / lengths
        if _same(actual, right * lengths):
            yield Suspect(
                "reduction", MEASURED, "each reward is the right one times its number of tokens: a sum, not a mean"
            )
            return
    if evidence.objective.sums_tokens and _same(actual, right / lengths):
        yield Suspect(
            "reduction", MEASURED, "each reward is the right one over its number of tokens: a mean, not a sum"
        )
    elif _same(actual, right / whole):
        yield Suspect("reduction", MEASURED, "each reward is the right one over the whole length of its response")
    elif _same(actual, right / lengths.max()) or _same(actual, right / whole.max()):
        yield Suspect("reduction", MEASURED, "every reward is the right one over the length of the longest response")
    elif _same(actual, torch.zeros_like(actual)):
        yield Suspect("reference", MEASURED, "all rewards are 0: the reference terms are those of the policy")
    elif _same(actual, beta * sums):
        yield Suspect("objective", MEASURED, "rewards are beta times the policy's sums: no reference term")
        yield Suspect("reference", INFERRED, "the reference terms are missing")
    elif _one_ratio(actual, right):
        ratio = float((actual / right).median())
        yield Suspect("objective", MEASURED, f"every reward is {ratio:.6g} times the right one (beta is {beta:g})")
    elif _other_sums(actual, sums, refs, beta):
        yield Suspect("objective", MEASURED, "rewards are made of right sums of other responses")
    elif float(((actual - right) / right).abs().max()) < _LOW_PRECISION:
        yield Suspect("reduction", INFERRED, "rewards are off by less than 2 %: sums in too low a precision")


def _follows_from_its_rewards(weights: Weights, evidence: Evidence) -> bool:
    """Whether responses weigh in the gradient what the right loss of the subject's own rewards makes them weigh.

    What is taken off a policy's sum, such as the sum of another frozen policy, is a constant: it moves the reward, and
    the gradient only through it. A wrong sum of the policy itself changes the gradient otherwise.
    """
    assert isinstance(evidence.objective, Preference)
    expected, logps = evidence.expected, [part.clone().requires_grad_() for part in evidence.expected.per_token_logps]
    off = (expected.rewards - evidence.actual.rewards) / evidence.objective.beta
    refs = [
        part + (extra / len(part) if evidence.objective.sums_tokens else extra)
        for part, extra in zip(expected.ref_per_token_logps, off, strict=True)
    ]
    loss = apply_objective(logps, refs, all_supervised(evidence.groups), evidence.objective).loss
    implied = torch.zeros_like(weights.values)
    for rows, part in zip(weights.basis.members, torch.autograd.grad(loss, logps), strict=True):
        implied[rows] += part[0]
    return _same(weights.values, implied)


def _other_sums(actual: Tensor, sums: Tensor, refs: Tensor, beta: float) -> bool:
    """Whether each reward is beta times a policy sum minus a reference sum, of whichever responses."""
    table = (beta * (sums[:, None] - refs[None, :])).reshape(-1)
    return all(_same(table[(table - value).abs().argmin()][None], value[None]) for value in actual)


def _same(actual: Tensor, expected: Tensor) -> bool:
    size = float(expected.abs().max().clamp(min=1e-3))
    return float((actual - expected).abs().max()) <= _TOLERANCE * size


def _one_ratio(actual: Tensor, expected: Tensor) -> bool:
    ratio = actual / expected
    return float((ratio - ratio.median()).abs().max()) <= _TOLERANCE * float(ratio.median().abs())
