"""The kind of a failure is the first thing that is clearly off, in the order in which things are computed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from verify.budget import Budget
from verify.comparison import Place, Quantity
from verify.gate import Result
from verify.judgement import Judgement
from verify.shrink.failure import Failure, failure_of
from verify.verdict import Verdict


def judgement(quantity: Quantity, measured: float) -> Judgement:
    """Held against a budget of 1."""
    return Judgement(
        quantity=quantity,
        kind="oracle",
        statistic="max",
        verdict=Verdict.PASS if measured <= 1 else Verdict.FAIL,
        reason=f"{quantity} {measured}",
        num_compared=1,
        measured=measured,
        budget=Budget(value=1.0, factor=1.0, floor=0.0, noise=1.0, source=""),
        worst=(Place(f"worst of {quantity}", 3.0, 2.0),),
    )


def result(*judgements: Judgement, verdict: Verdict = Verdict.FAIL, reasons: tuple[str, ...] = ()) -> Result:
    return Result(case="c", subject="s", dtype="float32", verdict=verdict, reasons=reasons, judgements=judgements)


def kind(*judgements: Judgement, **options: Any) -> str | None:
    found = failure_of(result(*judgements), **options)
    return found.kind if found else None


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.FAIL])
def test_only_fail_is_a_failure(verdict: Verdict) -> None:
    """A trial that is ERROR or INCONCLUSIVE must not count, whatever its numbers."""
    assert failure_of(result(judgement("loss", 9.0), verdict=verdict)) is None


def test_what_is_off_early_takes_the_rest_along() -> None:
    late_first = (judgement("gradients", 900.0), judgement("loss", 90.0), judgement("per_token_logps", 9.0))
    assert kind(*late_first) == "log-probs"
    assert kind(*late_first[:2]) == "rewards, margins or loss"
    assert kind(*late_first[:1]) == "gradients"
    assert kind(judgement("ref_per_token_logps", 9.0), *late_first[:2]) == "reference log-probs"


def test_a_difference_of_less_than_two_budgets_does_not_decide_the_kind() -> None:
    assert kind(judgement("per_token_logps", 1.9), judgement("gradients", 50.0)) == "gradients"
    assert kind(judgement("per_token_logps", 1.9)) is None
    assert kind(judgement("per_token_logps", 1.9), at_least=1.0) == "log-probs"
    assert kind(judgement("per_token_logps", 2.0)) == "log-probs"


def test_the_largest_of_a_family_is_shown() -> None:
    found = failure_of(result(judgement("rewards", 3.0), judgement("loss", 30.0), judgement("margins", 4.0)))
    assert found == Failure(
        kind="rewards, margins or loss", reason="loss 30.0", ratio=30.0, quantity="loss", measured=30.0, budget=1.0,
        place="worst of loss", actual=3.0, expected=2.0,
    )  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_a_kind_of_its_own(value: float) -> None:
    assert kind(judgement("per_token_logps", value)) == "log-probs: not finite"


def test_a_difference_of_structure_is_known_by_what_it_says_before_the_names() -> None:
    missing = [f"gradients are not of the same tensors: missing {name} (1)" for name in ("a", "b")]
    kinds = {failure_of(result(reasons=(reason,))).kind for reason in missing}  # type: ignore[union-attr]
    assert kinds == {"structure: gradients are not of the same tensors"}
