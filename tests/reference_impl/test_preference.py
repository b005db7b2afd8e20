from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_impl.pair_losses import sigmoid_losses
from reference_impl.preference import (
    PREFERENCE_NAMES,
    Preference,
    default_nll_weight,
    group_loss,
    reward_slopes,
    scores,
)

SMOOTHED = ("sigmoid", "robust", "sigmoid_norm", "rpo")
OBJECTIVES = [Preference(name, 0.4, 0.1 if name in SMOOTHED else 0.0, 0.0) for name in PREFERENCE_NAMES]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=PREFERENCE_NAMES)
every_group_objective = pytest.mark.parametrize("objective", OBJECTIVES[6:], ids=PREFERENCE_NAMES[6:])
sides = st.lists(st.floats(-5, 5), min_size=1, max_size=4)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@every_objective
@settings(max_examples=15, deadline=None)
@given(positives=sides, negatives=sides)
def test_the_closed_form_is_what_differentiation_gives(objective, positives, negatives) -> None:
    rewards_P, rewards_N = tensor(*positives).requires_grad_(), tensor(*negatives).requires_grad_()
    expected = torch.autograd.grad(group_loss(rewards_P, rewards_N, objective), (rewards_P, rewards_N))
    actual = reward_slopes(rewards_P.detach(), rewards_N.detach(), objective)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


@every_objective
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 1)])
def test_differentiation_gives_what_finite_differences_measure(objective, shape) -> None:
    generator = torch.Generator().manual_seed(3)
    rewards_P, rewards_N = (
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in shape
    )
    assert torch.autograd.gradcheck(lambda p, n: group_loss(p, n, objective), (rewards_P, rewards_N))


@every_objective
@settings(max_examples=15, deadline=None)
@given(positives=sides, negatives=sides, shift=st.floats(-3, 3))
def test_only_differences_of_rewards_count_so_slopes_sum_to_zero(objective, positives, negatives, shift) -> None:
    rewards_P, rewards_N = tensor(*positives), tensor(*negatives)
    shifted = group_loss(rewards_P + shift, rewards_N + shift, objective)
    assert float(shifted) == pytest.approx(float(group_loss(rewards_P, rewards_N, objective)), abs=1e-11)
    slopes_P, slopes_N = reward_slopes(rewards_P, rewards_N, objective)
    assert float(slopes_P.sum() + slopes_N.sum()) == pytest.approx(0, abs=1e-12)


@every_group_objective
@given(positive=st.floats(-50, 50), negative=st.floats(-50, 50))
def test_every_groupdpo_objective_is_dpo_on_a_pair(objective, positive, negative) -> None:
    rewards_P, rewards_N = tensor(positive), tensor(negative)
    expected = replace(objective, name="sigmoid_norm")
    torch.testing.assert_close(
        group_loss(rewards_P, rewards_N, objective), group_loss(rewards_P, rewards_N, expected), rtol=1e-13, atol=1e-15
    )
    for actual, wanted in zip(
        reward_slopes(rewards_P, rewards_N, objective), reward_slopes(rewards_P, rewards_N, expected), strict=True
    ):
        torch.testing.assert_close(actual, wanted, rtol=1e-13, atol=1e-15)


def test_the_objectives_of_groupdpo_differ_on_two_and_two() -> None:
    rewards_P, rewards_N = tensor(1.0, -0.5), tensor(0.5, -2.0)
    losses = {float(group_loss(rewards_P, rewards_N, objective)) for objective in OBJECTIVES[6:]}
    assert len({round(loss, 6) for loss in losses}) == 4


@every_objective
def test_rewards_of_ten_thousand_have_finite_losses_and_slopes(objective) -> None:
    for won in (1e4, -1e4):
        rewards_P, rewards_N = tensor(won, won - 1, 3.0).requires_grad_(), tensor(-won, 0.0).requires_grad_()
        loss = group_loss(rewards_P, rewards_N, objective)
        by_autograd = torch.autograd.grad(loss, (rewards_P, rewards_N))
        closed = reward_slopes(rewards_P.detach(), rewards_N.detach(), objective)
        assert all(bool(torch.isfinite(t).all()) for t in (loss, *by_autograd, *closed))
        torch.testing.assert_close(closed, by_autograd, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "won", "lost"),
    [
        ("sigmoid", 0.1 * 2e4, 0.9 * 2e4),
        ("sigmoid_norm", 0.1 * 2e4, 0.9 * 2e4),
        ("rpo", 0.1 * 2e4, 0.9 * 2e4),
        ("robust", -0.125 * 2e4, 1.125 * 2e4),
        ("hinge", 0.0, 20001.0),
        ("ipo", (5e4 - 1.25) ** 2, (5e4 + 1.25) ** 2),
        *((name, 0.0, 2e4) for name in PREFERENCE_NAMES[6:]),
    ],
)
def test_what_a_pair_costs_that_is_won_or_lost_by_twenty_thousand(name, won, lost) -> None:
    objective = OBJECTIVES[PREFERENCE_NAMES.index(name)]
    assert float(group_loss(tensor(1e4), tensor(-1e4), objective)) == pytest.approx(won, rel=1e-15)
    assert float(group_loss(tensor(-1e4), tensor(1e4), objective)) == pytest.approx(lost, rel=1e-15)


def test_rpo_and_sigmoid_norm_are_the_sigmoid_loss_of_their_rewards() -> None:
    rewards_P, rewards_N = tensor(1.0, -0.5), tensor(0.5)
    expected = float(sigmoid_losses(tensor(0.5, -1.0), 0.1).mean())
    for name in ("sigmoid", "sigmoid_norm", "rpo"):
        assert float(group_loss(rewards_P, rewards_N, Preference(name, 0.4, 0.1, 0.0))) == pytest.approx(expected)


def test_scores_sum_or_average_tokens() -> None:
    logps = [tensor(-1, -2, -6), tensor(-5)]
    found = {objective.name: scores(logps, objective).tolist() for objective in OBJECTIVES}
    summed = ("sigmoid", "robust", "hinge", "rpo")
    assert found == {name: [-9.0 if name in summed else -3.0, -5.0] for name in PREFERENCE_NAMES}


def test_only_rpo_and_groupdpo_come_with_a_likelihood_term() -> None:
    assert {name: default_nll_weight(name) for name in PREFERENCE_NAMES} == {
        name: float(name == "rpo" or name.startswith("groupdpo-")) for name in PREFERENCE_NAMES
    }


@every_objective
@pytest.mark.parametrize("empty", ["positive", "negative"])
def test_a_group_with_one_side_has_no_loss(objective, empty) -> None:
    rewards_P, rewards_N = (tensor(), tensor(1.0)) if empty == "positive" else (tensor(1.0), tensor())
    for function in (group_loss, reward_slopes):
        with pytest.raises(ValueError, match="a group needs at least one of each"):
            function(rewards_P, rewards_N, objective)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dpo", 0.1, 0.0, 0.0), f"preference objective 'dpo': expected one of {', '.join(PREFERENCE_NAMES)}"),
        (("sft-token-mean", 0.1, 0.0, 0.0), "preference objective 'sft-token-mean': expected one of sigmoid, robust"),
        (("hinge", 0.0, 0.0, 0.0), r"beta is 0\.0: it must be positive and finite"),
        (("robust", 0.1, 0.5, 0.0), r"label_smoothing is 0\.5: it must lie in \[0, 0\.5\)"),
        (
            ("groupdpo-margin", 0.1, 0.1, 0.0),
            "groupdpo-margin has none, so it must be 0; it is part of sigmoid, robust",
        ),
        (("ipo", 0.1, 0.0, math.inf), "nll_weight is inf: it must be finite and at least 0"),
    ],
)
def test_parameters_without_meaning_are_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        Preference(*arguments)
