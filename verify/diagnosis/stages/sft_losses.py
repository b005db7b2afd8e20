"""Suspects where log-probs are exact and the loss of supervised fine-tuning is not."""

from __future__ import annotations

import math
from collections.abc import Iterator

from verify.diagnosis.coefficients import Weights
from verify.diagnosis.sft_formulas import Formula, formulas
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, POSSIBLE, Suspect
from verify.diagnosis.stages.token_weights import describe_ratios, out_of_place
from verify.objective import Sft

_SAME_VALUE = 1e-4
_SAME_WEIGHTS = 0.02


def sft_loss_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """A known wrong loss, by value and by the tokens' weights in the gradient; else what the weights say."""
    weights = evidence.weights
    matches = list(_matching(evidence))
    if matches:
        both = weights is not None and weights.explained
        what = "loss and gradient are those of another one" if both else "the loss is another one"
        yield Suspect(matches[0].stage, MEASURED, f"{what}: {matches[0].what}")
        # A mean over the wrong whole may be chosen by an option or made by adding up micro-batches.
        if matches[0].stage == "objective":
            yield Suspect("accumulation", INFERRED, f"the loss is another mean: {matches[0].what}")
        return
    if weights is None:
        yield Suspect("objective", POSSIBLE, "log-probs are exact, the loss is not")
        yield Suspect("accumulation", POSSIBLE, "log-probs are exact, the loss is not")
        yield Suspect("supervision", POSSIBLE, "log-probs are exact, the loss is not")
    elif weights.by_response:
        yield from _by_response(weights, evidence)
    elif weights.explained:
        which = out_of_place(weights, evidence)
        yield Suspect("supervision", INFERRED, f"tokens of one response weigh differently in the gradient{which}")
        yield Suspect("reduction", POSSIBLE, "a sum that leaves tokens out looks the same")
    else:
        yield Suspect(
            "supervision", INFERRED,
            f"{weights.left_over:.0%} of the gradient's error come from no response token: something else is counted",
        )  # fmt: skip


def _by_response(weights: Weights, evidence: Evidence) -> Iterator[Suspect]:
    """Responses as a whole weigh differently: in loss and gradient alike, or in the gradient alone."""
    ratios = weights.response_ratios
    weigh = describe_ratios("responses", ratios)
    right = formulas(evidence.examples, _sft(evidence))[0].weights
    reweighted = sum(ratio * float(w @ x.losses) for ratio, w, x in zip(ratios, right, evidence.examples, strict=True))
    if math.isclose(reweighted, float(evidence.actual.loss), rel_tol=_SAME_WEIGHTS):
        alike = max(ratios) - min(ratios) <= _SAME_WEIGHTS * max(map(abs, ratios))
        words = (
            f"loss and gradient are {ratios[0]:.4g} times the right ones"
            if alike
            else f"{weigh}, in loss and gradient alike"
        )
        yield Suspect("accumulation", MEASURED, words)
        if not alike:
            yield Suspect("reduction", INFERRED, words)
    else:
        yield Suspect("objective", INFERRED, "no weights of the responses explain loss and gradient")
        yield Suspect("accumulation", POSSIBLE, f"{weigh} in the gradient")


def _matching(evidence: Evidence) -> Iterator[Formula]:
    """Formulas that have the value of the loss, and its gradient where that was taken apart; nearest value first."""
    loss, examples = float(evidence.actual.loss), evidence.examples
    known = [(abs(formula.value(examples) - loss), formula) for formula in formulas(examples, _sft(evidence))[1:]]
    near = [item for item in known if item[0] <= _SAME_VALUE * abs(loss)]
    for _, formula in sorted(near, key=lambda item: item[0]):
        if evidence.weights is None or _has_gradient(formula, evidence.weights, evidence):
            yield formula


def _has_gradient(formula: Formula, weights: Weights, evidence: Evidence) -> bool:
    if formula.counts_others(evidence.examples):
        return not weights.explained
    supervised = [places for group in evidence.groups for places in group.supervised]
    expected = weights.basis.weights_of(formula.of_completions(evidence.examples), supervised)
    if expected is None or not weights.explained:
        return False
    return float((expected - weights.values).norm()) <= _SAME_WEIGHTS * float(expected.norm())


def _sft(evidence: Evidence) -> Sft:
    assert isinstance(evidence.objective, Sft)
    return evidence.objective
