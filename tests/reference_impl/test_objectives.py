from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.objectives import (
    Accuracy,
    accuracy,
    group_margins,
    group_sigmoid_loss,
    group_token_coefficients,
    margins,
    mean_loss,
    rewards,
    sequence_logps,
    sft_example_mean,
    sft_token_mean,
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


def test_a_group_of_two_positives_and_one_negative_worked_out_by_hand() -> None:
    # Rewards 2 and 0 against 1: margins 1 and -1, losses log(1 + e^-1) and log(1 + e), which differ by 1.
    margins_PN = group_margins(tensor(2.0, 0.0), tensor(1.0))
    assert margins_PN.tolist() == [[1.0], [-1.0]]
    assert float(group_sigmoid_loss(margins_PN, 0.0)) == pytest.approx(0.31326168751822286 + 0.5, abs=1e-15)
    # sigma(-1) = 0.268941..., sigma(1) = 0.731058...; they sum to 1.
    positives, negatives = group_token_coefficients(margins_PN, 1, beta=0.4, label_smoothing=0.0)
    assert positives.tolist() == pytest.approx([-0.2 * 0.2689414213699951, -0.2 * 0.7310585786300049], abs=1e-15)
    assert negatives.tolist() == pytest.approx([0.2], abs=1e-15)


def test_margins_stand_positive_by_positive() -> None:
    assert group_margins(tensor(10.0, 20.0), tensor(1.0, 2.0, 3.0)).tolist() == [[9.0, 8.0, 7.0], [19.0, 18.0, 17.0]]


@given(
    positives=st.lists(st.floats(-5, 5), min_size=1, max_size=4),
    negatives=st.lists(st.floats(-5, 5), min_size=1, max_size=4),
)
def test_coefficients_are_those_published_for_all_pairs(positives, negatives) -> None:
    """``c_p = -(1/(PN)) sum_n sigma(u_n - u_p)`` and ``c_n = (1/(PN)) sum_p sigma(u_n - u_p)``, per unit of beta."""

    def sigma(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    pairs = len(positives) * len(negatives)
    expected_p = [-sum(sigma(u_n - u_p) for u_n in negatives) / pairs for u_p in positives]
    expected_n = [sum(sigma(u_n - u_p) for u_p in positives) / pairs for u_n in negatives]
    margins_PN = group_margins(tensor(*positives), tensor(*negatives))
    actual_p, actual_n = group_token_coefficients(margins_PN, 1, beta=1.0, label_smoothing=0.0)
    assert actual_p.tolist() == pytest.approx(expected_p, abs=1e-14)
    assert actual_n.tolist() == pytest.approx(expected_n, abs=1e-14)
    assert float(actual_p.sum() + actual_n.sum()) == pytest.approx(0, abs=1e-14)


def test_a_group_without_pairs_has_no_loss() -> None:
    with pytest.raises(ValueError, match=r"margins of shape \(2, 0\): a group needs positives and negatives"):
        group_sigmoid_loss(group_margins(tensor(1.0, 2.0), tensor()), 0.0)


def test_the_two_means_of_sft_worked_out_by_hand() -> None:
    # One completion of one token, one of three: (8 + 2 + 2 + 2) / 4 against (8 + 2) / 2.
    logps = [tensor(-8.0), tensor(-2.0, -1.0, -3.0)]
    assert float(sft_token_mean(logps, 4)) == 3.5
    assert float(sft_example_mean(logps, 2)) == 5.0


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
