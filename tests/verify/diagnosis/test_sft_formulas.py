"""Wrong losses of supervised fine-tuning, against numbers worked out by hand, and as one another's weights."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from verify.diagnosis.examples import Example
from verify.diagnosis.sft_formulas import Formula, formulas
from verify.objective import Sft

# Entries are losses of: p1 | a b c of the first, p1 | d e of the second; behind the ends stands what comes next.
FIRST = Example(0, torch.tensor([7.0, 1.0, 2.0, 4.0, 50.0]).double(), torch.tensor([False, True, False, True, False]),
                num_prompt=2, path=(0, 1, 2))  # fmt: skip
SECOND = Example(1, torch.tensor([9.0, 8.0, 16.0, 60.0]).double(), torch.tensor([False, True, True, False]),
                 num_prompt=2, path=(3, 4))  # fmt: skip
EXAMPLES = (FIRST, SECOND)


def known(mean: str) -> dict[str, Formula]:
    found = formulas(EXAMPLES, Sft(mean="token" if mean == "token" else "example"))
    return {formula.what: formula for formula in found}


@pytest.mark.parametrize(
    ("mean", "what", "value", "stage"),
    [
        ("token", "the right loss", (1 + 4 + 8 + 16) / 4, "objective"),
        ("example", "the right loss", ((1 + 4) / 2 + (8 + 16) / 2) / 2, "objective"),
        ("token", "tokens that are not supervised count", (1 + 2 + 4 + 8 + 16) / 5, "supervision"),
        ("example", "tokens that are not supervised count", ((1 + 2 + 4) / 3 + 12) / 2, "supervision"),
        ("token", "prompt tokens count too", (7 + 1 + 4 + 9 + 8 + 16) / 6, "supervision"),
        ("token", "the end of each sequence predicts the start of the next", (1 + 4 + 50 + 8 + 16) / 5, "supervision"),
        ("token", "the end of each sequence predicts the start of another", (29 + 50 + 60) / 6, "supervision"),
        ("token", "the mask of supervised tokens lies one token early", (7 + 2 + 9 + 8) / 4, "supervision"),
        ("token", "only the last run of supervised tokens counts", (4 + 8 + 16) / 3, "supervision"),
        ("token", "the first supervised token of each response is not counted", (4 + 16) / 2, "supervision"),
        ("token", "the sum over all tokens, divided by nothing", 29, "accumulation"),
        ("token", "the sum over supervised tokens, divided by the number of all response tokens", 29 / 5, "reduction"),
        ("token", "the mean of the means of all runs of supervised tokens", (1 + 4 + 12) / 3, "reduction"),
        ("example", "the mean over all tokens of the batch, not over examples", 29 / 4, "objective"),
    ],
)
def test_a_wrong_loss_has_the_value_that_was_worked_out(mean: str, what: str, value: float, stage: str) -> None:
    formula = known(mean).get(what)
    if formula is None:  # the same numbers under another name: both examples have two supervised tokens
        assert what.startswith("the mean over all tokens")
        formula = known(mean)["the right loss"]
    assert formula.value(EXAMPLES) == pytest.approx(value)
    assert formula.stage == stage


@pytest.mark.parametrize("mean", ["token", "example"])
def test_no_two_formulas_are_the_same_loss(mean: str) -> None:
    for one, other in combinations(known(mean).values(), 2):
        assert any(not torch.allclose(a, b) for a, b in zip(one.weights, other.weights, strict=True))


def test_what_counts_tokens_of_no_response_says_so() -> None:
    counting = {what for what, formula in known("token").items() if formula.counts_others(EXAMPLES)}
    assert "prompt tokens count too" in counting
    assert "the end of each sequence predicts the start of the next" in counting
    assert counting.isdisjoint({"the right loss", "tokens that are not supervised count"})


def test_a_shared_token_counts_once_where_the_first_response_supervises_it() -> None:
    """p a b and p a c share a."""
    shared = (
        Example(0, torch.tensor([1.0, 2.0, 0.0]).double(), torch.tensor([True, True, False]), 1, (0, 1)),
        Example(0, torch.tensor([1.0, 8.0, 0.0]).double(), torch.tensor([True, True, False]), 1, (0, 2)),
    )
    (once,) = [f for f in formulas(shared, Sft()) if f.what == "tokens that several responses share count once"]
    assert once.value(shared) == pytest.approx((1 + 2 + 8) / 3)
