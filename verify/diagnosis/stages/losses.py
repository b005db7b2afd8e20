"""Suspects where rewards are exact and the loss is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, POSSIBLE, Suspect
from verify.diagnosis.stages.token_weights import describe_ratios
from verify.faults.stages import StageName
from verify.objective import PREFERENCE_NAMES, SMOOTHED, Preference
from verify.subjects.oracle import apply_objective
from verify.supervised_values import all_supervised

_TOLERANCE = 0.01
_SAME = 1e-4
_SAME_NUMBER = 1e-6


def loss_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """The objective, or how groups are put together.

    Groups that merely weigh differently do so in the loss and in the gradient alike.
    """
    weights = evidence.weights
    if weights is None:
        yield Suspect("objective", POSSIBLE, "rewards are exact, the loss is not")
        yield Suspect("accumulation", POSSIBLE, "rewards are exact, the loss is not")
        return
    if not weights.by_response:
        stage: StageName = "supervision" if weights.explained else "gradients"
        yield Suspect(stage, INFERRED, "the loss was not made of the rewards: tokens of one response weigh differently")
        yield Suspect("objective", POSSIBLE, "rewards are exact, the loss is not")
        return
    sizes = [len(group.completions) for group in evidence.groups]
    by_group = torch.split(torch.tensor(weights.response_ratios, dtype=torch.float64), sizes)
    ratios = torch.stack([of_group.mean() for of_group in by_group])
    largest = max(float(of_group.abs().max()) for of_group in by_group)
    balanced = all(
        float((r - mean).abs().max()) <= _TOLERANCE * largest for r, mean in zip(by_group, ratios, strict=True)
    )
    reweighted = float((ratios * evidence.group_losses).mean())
    if balanced and abs(reweighted - float(evidence.actual.loss)) <= _TOLERANCE * abs(reweighted):
        weigh = describe_ratios("groups", ratios.tolist())
        yield Suspect("accumulation", MEASURED, f"{weigh}, in loss and gradient alike")
        return
    known = _other_objective(evidence) or _known_pairing(evidence)
    if known:
        yield Suspect("objective", MEASURED, f"rewards are exact, the loss is another one: {known}")
        return
    yield Suspect("objective", INFERRED, "rewards are exact; no weights of the groups explain loss and gradient")
    yield Suspect("accumulation", POSSIBLE, "rewards are exact, the loss is not")


def _other_objective(evidence: Evidence) -> str:
    """The objective whose loss came out of the same log-probs instead of the one that was asked for; "" for none."""
    asked, loss = evidence.objective, float(evidence.actual.loss)
    assert isinstance(asked, Preference)
    logps, refs = evidence.expected.per_token_logps, evidence.expected.ref_per_token_logps
    groups, found = all_supervised(evidence.groups), []
    for name in PREFERENCE_NAMES:
        for smoothing in sorted({0.0, asked.label_smoothing} if name in SMOOTHED else {0.0}):
            for nll_weight in sorted({0.0, 1.0, asked.nll_weight}):
                other = Preference(name=name, beta=asked.beta, label_smoothing=smoothing, nll_weight=nll_weight)
                value = float(apply_objective(logps, refs, groups, other).loss)
                if other != asked and abs(value - loss) <= _SAME_NUMBER * abs(loss):
                    with_nll = f" with {nll_weight:g} times the NLL" if nll_weight else ""
                    found.append(f"{name}{with_nll}" + (f", label_smoothing {smoothing:g}" if smoothing else ""))
    return f"that of {found[0]}" if found else ""


def _known_pairing(evidence: Evidence) -> str:
    """The wrong way of pairing responses whose loss came out, in words; "" where none did, or all groups are pairs."""
    assert isinstance(evidence.objective, Preference)
    if evidence.objective.name != "sigmoid" or all(group.is_pair for group in evidence.groups):
        return ""
    loss = float(evidence.actual.loss)
    near = [(abs(value - loss), what) for what, value in _pairings(evidence) if abs(value - loss) <= _SAME * abs(loss)]
    near.sort()
    return ", or ".join(what for distance, what in near if distance <= 2 * near[0][0] + _SAME_NUMBER * abs(loss))


def _pairings(evidence: Evidence) -> Iterator[tuple[str, float]]:
    """Losses of responses paired otherwise than all with all."""
    assert isinstance(evidence.objective, Preference)
    smoothing = evidence.objective.label_smoothing

    def loss(margins: Tensor) -> Tensor:
        return -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)

    def mean_over_groups(margins_of: Callable[[Tensor, Tensor], Tensor]) -> float:
        return float(torch.stack([loss(margins_of(p, n)).mean() for p, n in rewards]).mean())

    sizes = [len(part) for group in evidence.groups for part in (group.positives, group.negatives)]
    parts = torch.split(evidence.expected.rewards, sizes)
    rewards = list(zip(parts[0::2], parts[1::2], strict=True))
    yield "the mean over all pairs of the batch, not over groups", float(loss(evidence.expected.margins).mean())
    yield (
        "the sum over the pairs of a group",
        float(torch.stack([loss(p[:, None] - n).sum() for p, n in rewards]).mean()),
    )
    yield "the first response of either side only", mean_over_groups(lambda p, n: p[:1] - n[:1])
    yield "the last response of either side only", mean_over_groups(lambda p, n: p[-1:] - n[-1:])
    yield "the first positive only", mean_over_groups(lambda p, n: p[:1] - n)
    yield "the first negative only", mean_over_groups(lambda p, n: p - n[:1])
    yield "each positive against the best negative only", mean_over_groups(lambda p, n: p - n.max())
    yield "each negative against the best positive only", mean_over_groups(lambda p, n: p.max() - n)
    yield "the i-th positive against the i-th negative", mean_over_groups(_zipped)
    yield "the mean reward of either side", mean_over_groups(lambda p, n: p.mean()[None] - n.mean())
    yield "the sum of the rewards of either side", mean_over_groups(lambda p, n: p.sum()[None] - n.sum())
    yield "the best positive against the best negative", mean_over_groups(lambda p, n: p.max()[None] - n.max())
    yield "the worst positive against the best negative", mean_over_groups(lambda p, n: p.min()[None] - n.max())
    yield "the best positive against the worst negative", mean_over_groups(lambda p, n: p.max()[None] - n.min())


def _zipped(positives: Tensor, negatives: Tensor) -> Tensor:
    count = min(len(positives), len(negatives))
    return positives[:count] - negatives[:count]
