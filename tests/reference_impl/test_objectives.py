from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.objectives import (
    Accuracy,
    accuracy,
    margins,
    mean_loss,
    rewards,
    sequence_logps,
    sigmoid_losses,
    token_coefficients,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_pair_worked_out_by_hand() -> None:
    # Sums: chosen -3 against -4 before, rejected -7 against -5. Rewards 0.5 * 1 and 0.5 * -2, margin 1.5.
    logps = sequence_logps([tensor(-1, -2), tensor(-3, -4)])
    reward = rewards(logps, tensor(-4, -5), beta=0.5)
    margin = margins(reward[:1], reward[1:])
    assert reward.tolist() == [0.5, -1.0]
    assert margin.tolist() == [1.5]
    # log(1 + e^-1.5) = 0.201413..., log(1 + e^1.5) = 1.701413...; 0.9 of one and 0.1 of the other.
    assert float(sigmoid_losses(margin, 0.0)) == pytest.approx(0.20141327798275246, abs=1e-15)
    assert float(sigmoid_losses(margin, 0.1)) == pytest.approx(0.35141327798275246, abs=1e-15)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.49])
def test_a_policy_equal_to_its_reference_costs_log_two(label_smoothing) -> None:
    assert float(sigmoid_losses(tensor(0.0), label_smoothing)) == pytest.approx(math.log(2), abs=1e-15)


def test_losses_stay_finite_where_the_sigmoid_underflows() -> None:
    assert sigmoid_losses(tensor(-800.0, 800.0), 0.0).tolist() == [800.0, 0.0]
    assert sigmoid_losses(tensor(-800.0, 800.0), 0.25).tolist() == [600.0, 200.0]


def test_the_mean_is_over_all_pairs_of_the_batch() -> None:
    losses = tensor(1.0, 2.0, 6.0)
    assert float(mean_loss(losses[:1], 3) + mean_loss(losses[1:], 3)) == float(mean_loss(losses, 3)) == 3.0


@given(
    logps=st.lists(st.floats(-20, 20), min_size=2, max_size=6).filter(lambda values: len(values) % 2 == 0),
    beta=st.floats(0.01, 2),
    label_smoothing=st.floats(0, 0.49),
)
def test_token_coefficients_are_the_derivative_of_the_loss(logps, beta, label_smoothing) -> None:
    leaf = tensor(*logps).requires_grad_()
    reward = rewards(leaf, torch.zeros_like(leaf), beta)
    margin = margins(reward[0::2], reward[1::2])
    mean_loss(sigmoid_losses(margin, label_smoothing), len(margin)).backward()
    chosen, rejected = token_coefficients(margin.detach(), beta, label_smoothing)
    torch.testing.assert_close(leaf.grad[0::2], chosen, rtol=0, atol=1e-14)
    torch.testing.assert_close(leaf.grad[1::2], rejected, rtol=0, atol=1e-14)


def test_ties_count_one_half_and_are_counted_on_their_own() -> None:
    counted = accuracy(tensor(0.3, 0.0, -0.0, -1.0, 2.0))
    assert counted == Accuracy(wins=2, ties=2, losses=1)
    assert counted.value == 0.6


@pytest.mark.parametrize("bad", [(), (1.0, math.nan), (math.inf,)])
def test_accuracy_of_nothing_or_of_no_number_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="accuracy of margins"):
        accuracy(tensor(*bad))


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf])
def test_a_beta_that_is_no_strength_is_refused(beta) -> None:
    with pytest.raises(ValueError, match="beta is"):
        rewards(tensor(1.0), tensor(0.0), beta)


@pytest.mark.parametrize("label_smoothing", [-0.1, 0.5, math.nan])
def test_label_smoothing_outside_its_range_is_refused(label_smoothing) -> None:
    with pytest.raises(ValueError, match="label_smoothing is"):
        sigmoid_losses(tensor(1.0), label_smoothing)


def test_an_empty_completion_has_no_log_prob() -> None:
    with pytest.raises(ValueError, match="empty completion"):
        sequence_logps([tensor(1.0), tensor()])
