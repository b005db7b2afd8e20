"""Which expert choices are undecided, what they touch, and which failures they excuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.budget import Budget, Statistic
from verify.comparison import Quantity
from verify.groups import PreferenceGroup
from verify.judgement import Judgement
from verify.observation import Observation
from verify.router_flips import excuse_flips
from verify.router_ties import RouterTies, find_ties, ties_note, untouched_max
from verify.tolerance import load_policy
from verify.verdict import Verdict

# Two sequences of five and four tokens: a prompt of two, responses of three and two.
GROUPS = [PreferenceGroup((1, 2), ((3, 4, 5),), ((6, 7),))]
NONE = torch.zeros(0, dtype=torch.float64)


def form(*scores: Tensor) -> Observation:
    logps = (torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    return Observation(
        per_token_logps=logps, ref_per_token_logps=logps, rewards=NONE, margins=NONE, loss=NONE, gradients=None,
        router_scores=scores,
    )  # fmt: skip


def clear_scores() -> Tensor:
    """Two layers, nine tokens, four experts, of which the first two are clearly chosen."""
    return torch.tensor([4.0, 3.0, 1.0, 0.0], dtype=torch.float64).repeat(2, 9, 1)


def noisy(scores: Tensor, seed: int) -> Tensor:
    return scores + 1e-6 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ties_of(policy: Tensor, reference: Tensor) -> RouterTies:
    forms = [
        form(*(noisy(scores, seed + place) for place, scores in enumerate((policy, reference)))) for seed in (1, 9)
    ]
    return find_ties(forms, GROUPS, 2, policy=load_policy(None), epsilon=1e-7)


def test_clear_choices_are_decided_and_a_near_one_is_not() -> None:
    scores = clear_scores()
    ties = ties_of(scores, scores)
    assert (ties.num_choices, ties.num_undecided, ties.num_flipped) == (36, 0, 0)
    assert ties_note("float32", [ties]) == ""
    scores[1, 3, 2] = 3.0 - 2e-6
    near = ties_of(scores, clear_scores())
    assert near.num_undecided == 1
    assert near.share_of_undecided == pytest.approx(1 / 18)
    assert "1 of 36 expert choices" in ties_note("float32", [near])


def test_a_choice_touches_all_later_predictions_of_its_sequence_and_no_others() -> None:
    """Token 3 of the first sequence predicts its last token; the last token of the second predicts nothing."""
    policy, reference = clear_scores(), clear_scores()
    policy[0, 3, 2] = 3.0
    reference[1, 8, 2] = 3.0
    ties = ties_of(policy, reference)
    assert ties.num_undecided == 2
    assert [untouched.tolist() for untouched in ties.untouched] == [[True, True, False], [True, True]]
    in_prompt = clear_scores()
    in_prompt[0, 5, 2] = 3.0  # the first token of the second sequence
    assert [u.tolist() for u in ties_of(in_prompt, clear_scores()).untouched] == [[True] * 3, [False, False]]


def test_a_choice_that_flipped_is_undecided_however_far_apart_its_scores_are() -> None:
    one, other = clear_scores(), clear_scores()
    other[0, 0] = torch.tensor([4.0, 1.0, 3.0, 0.0])
    ties = find_ties([form(one), form(other)], GROUPS, 2, policy=load_policy(None), epsilon=1e-7)
    assert (ties.num_undecided, ties.num_flipped) == (1, 1)


def test_the_largest_untouched_distance_leaves_touched_tokens_out() -> None:
    policy = clear_scores()
    policy[0, 3, 2] = 3.0
    ties = ties_of(policy, clear_scores())
    actual = replace(form(), per_token_logps=(torch.tensor([0.0, 0.5, 9.0]).double(), torch.zeros(2).double()))
    assert untouched_max(actual, form(), ties) == {"per_token_logps": 0.5, "ref_per_token_logps": 0.0}
    nan = replace(form(), per_token_logps=(torch.tensor([float("nan"), 0.5, 9.0]).double(), torch.zeros(2).double()))
    assert untouched_max(nan, form(), ties)["per_token_logps"] == float("inf")


TIES = RouterTies(
    num_choices=36, num_undecided=1, num_flipped=0, share_of_undecided=1 / 18, untouched=(torch.ones(3).bool(),)
)


def judged(quantity: Quantity, measured: float, budget: float, *, floor: float = 0.0) -> Judgement:
    statistic: Statistic = "max"
    return Judgement(
        quantity=quantity,
        kind="oracle",
        statistic=statistic,
        verdict=Verdict.PASS if measured <= budget else Verdict.FAIL,
        reason="" if measured <= budget else "beyond",
        num_compared=1,
        measured=measured,
        budget=Budget(value=budget, factor=1.0, floor=floor, noise=budget, source="x"),
    )


def verdicts(untouched: float = 0.0, ties: RouterTies | None = TIES, **measured: float) -> dict[str, str]:
    """Verdicts by quantity; every budget is 1, that of shares with a floor of 0.1."""
    within: dict[Any, float] = {"per_token_logps": 0.5, "router_shares": 0.0, "loss": 0.5, "gradients": 0.5, **measured}
    judgements = [
        judged(name, value, 1.0, floor=0.1 if name == "router_shares" else 0.0) for name, value in within.items()
    ]
    return {j.quantity: j.verdict.name for j in excuse_flips(judgements, ties, {"per_token_logps": untouched})}


def test_log_probs_that_a_tie_touches_and_what_follows_are_inconclusive() -> None:
    found = verdicts(per_token_logps=5.0, loss=3.0, gradients=7.0)
    assert set(found.values()) == {"INCONCLUSIVE", "PASS"}
    assert [name for name, verdict in found.items() if verdict == "PASS"] == ["router_shares"]


def test_gradients_are_excused_by_shares_that_moved_within_the_undecided_choices() -> None:
    assert verdicts(router_shares=0.9, gradients=7.0)["gradients"] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "measured",
    [
        {"per_token_logps": 5.0, "untouched": 2.0},
        {"per_token_logps": 5.0, "router_shares": 2.0},
        {"gradients": 7.0},
        {"loss": 7.0, "gradients": 7.0},
        {"per_token_logps": 5.0, "ties": None},
        {"per_token_logps": 5.0, "ties": replace(TIES, num_undecided=0)},
        {"per_token_logps": float("nan")},
        {"per_token_logps": float("inf")},
    ],
    ids=str,
)
def test_nothing_else_is_excused(measured: dict[str, Any]) -> None:
    found = verdicts(**measured)
    assert "FAIL" in found.values()
    assert "INCONCLUSIVE" not in found.values()
