"""Expert choices that rounding may turn: where a token's k-th expert is as good as the next, values jump.

A choice is undecided where the scores of the two experts are as near as rounding moves them between the forms of the
unpacked path, or where it flipped between these. An undecided choice of a token touches what comes after it: the same
token in later layers, and all later tokens of the sequence. In ``a b c``, with a choice of ``b`` undecided, the
log-prob of ``b`` itself (predicted from ``a``) is untouched, that of ``c`` is not.

Legend: F forms of the unpacked path, L layers with routers, N tokens of all sequences, T of one, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.comparison import Quantity
from verify.groups import PreferenceGroup
from verify.observation import Observation
from verify.tolerance import Policy

_SIGMAS_OF_MEDIAN = 1.4826
"""Standard deviation of a normal error over the median of its size, which is not moved by what a flip disturbs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTies:
    """The expert choices of a case that rounding may turn, in the passes of policy and frozen policy.

    Args:
        num_choices: Tokens times layers.
        num_undecided: Those that rounding may turn.
        num_flipped: Those that it did turn between two forms of the unpacked path.
        share_of_undecided: Of the policy's choices; no share of an expert is off by more for them.
        untouched: For each completion, which of its supervised tokens no undecided choice touches.
    """

    num_choices: int
    num_undecided: int
    num_flipped: int
    share_of_undecided: float
    untouched: tuple[Tensor, ...]


def find_ties(
    forms: Sequence[Observation], groups: Sequence[PreferenceGroup], per_token: int, *, policy: Policy, epsilon: float
) -> RouterTies:
    """The ties of a case.

    Two scores are a tie within ``max_sigmas`` standard deviations of how their difference changes between forms, and
    machine epsilons of their size.

    Args:
        forms: Observations of the unpacked path with the scores of routers, the witness first; at least two.
        groups: The groups.
        per_token: Experts that a token takes.
        policy: For these numbers.
        epsilon: Of the dtype.

    Returns:
        The ties.
    """
    passes = [
        _undecided(torch.stack(scores), per_token, policy, epsilon)
        for scores in zip(*(form.router_scores for form in forms), strict=True)
    ]
    of_policy = passes[0][0]
    by_pass = [_touched(undecided, groups) for undecided, _ in passes]
    untouched = [~torch.stack(of_sequence).any(0) for of_sequence in zip(*by_pass, strict=True)]
    return RouterTies(
        num_choices=sum(undecided.numel() for undecided, _ in passes),
        num_undecided=sum(int(undecided.sum()) for undecided, _ in passes),
        num_flipped=sum(int(flipped.sum()) for _, flipped in passes),
        share_of_undecided=float(of_policy.double().mean()),
        untouched=_of_supervised(untouched, groups),
    )


def untouched_max(actual: Observation, expected: Observation, ties: RouterTies) -> dict[Quantity, float]:
    """Largest distance among log-probs that no undecided choice touches; 0 where all are touched.

    Args:
        actual: What a subject observed.
        expected: The oracle's or the witness's observation.
        ties: The ties of the case.

    Returns:
        For the policy and, where there is one, the frozen policy.
    """
    sides: dict[Quantity, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {
        "per_token_logps": (actual.per_token_logps, expected.per_token_logps),
        "ref_per_token_logps": (actual.ref_per_token_logps, expected.ref_per_token_logps),
    }
    largest: dict[Quantity, float] = {}
    for quantity, (ours, theirs) in sides.items():
        distances = (
            [
                (a - e).abs()[untouched].nan_to_num(math.inf)
                for a, e, untouched in zip(ours, theirs, ties.untouched, strict=True)
            ]
            if theirs
            else []
        )
        largest[quantity] = max((float(of.max()) for of in distances if len(of)), default=0.0)
    return largest


def ties_note(dtype: str, ties: Sequence[RouterTies]) -> str:
    """How many choices of a run are undecided and flipped, in a line for its report; "" where none is.

    Args:
        dtype: Name of the dtype.
        ties: Those of each case.

    Returns:
        The line.
    """
    undecided, flipped, choices = (
        sum(getattr(of_case, name) for of_case in ties) for name in ("num_undecided", "num_flipped", "num_choices")
    )
    if not undecided:
        return ""
    return (
        f"{dtype}: {undecided:,} of {choices:,} expert choices of the unpacked path are as near to a tie as rounding "
        f"moves them, and {flipped:,} flipped between its forms; where one flips values jump, and what it touches is "
        "INCONCLUSIVE rather than FAIL"
    )


def _undecided(scores_FLNE: Tensor, per_token: int, policy: Policy, epsilon: float) -> tuple[Tensor, Tensor]:  # noqa: N803
    """Which choices of a pass are undecided, and which flipped between forms; bool, [L, N] each."""
    chosen = scores_FLNE.topk(per_token, dim=-1).indices.sort(-1).values
    flipped_LN = (chosen != chosen[0]).any(-1).any(0)  # noqa: N806
    if per_token == scores_FLNE.shape[-1]:
        return flipped_LN, flipped_LN
    ranked = scores_FLNE[0].argsort(-1, descending=True)[..., per_token - 1 : per_token + 1]
    of_two = scores_FLNE.gather(-1, ranked.expand(len(scores_FLNE), *ranked.shape))
    gaps_FLN = of_two[..., 0] - of_two[..., 1]  # noqa: N806
    noise_L = (gaps_FLN[1:] - gaps_FLN[0]).abs().median(-1).values.amax(0)  # noqa: N806
    sigmas = policy.small_sample.max_sigmas * _SIGMAS_OF_MEDIAN
    within_LN = sigmas * noise_L[:, None] + policy.floor.epsilons * epsilon * of_two[0].abs().amax(-1)  # noqa: N806
    return (gaps_FLN[0] <= within_LN) | flipped_LN, flipped_LN


def _touched(undecided_LN: Tensor, groups: Sequence[PreferenceGroup]) -> list[Tensor]:  # noqa: N803
    """Which tokens of each sequence have an undecided choice at or before them, in any layer; bool, [T] each."""
    lengths = [len(group.prompt_ids) + len(ids) for group in groups for ids in group.completions]
    return [of_sequence.int().cummax(0).values.bool() for of_sequence in torch.split(undecided_LN.any(0), lengths)]


def _of_supervised(untouched: Sequence[Tensor], groups: Sequence[PreferenceGroup]) -> tuple[Tensor, ...]:
    """From tokens of sequences to the supervised tokens of completions: each is untouched if its predictor is."""
    places = [(len(group.prompt_ids), supervised) for group in groups for supervised in group.supervised]
    return tuple(
        of_sequence[[prompt + token - 1 for token in supervised]]
        for of_sequence, (prompt, supervised) in zip(untouched, places, strict=True)
    )
