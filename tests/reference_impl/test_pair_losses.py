from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_impl.objectives import group_margins, margins, mean_loss, rewards
from reference_impl.pair_losses import (
    hinge_losses,
    hinge_slopes,
    ipo_losses,
    ipo_slopes,
    mean_over_pairs,
    reward_slopes_of_pairs,
    robust_losses,
    robust_slopes,
    sigmoid_losses,
    sigmoid_slopes,
)

LOSSES_AND_SLOPES = {
    "sigmoid": (lambda z: sigmoid_losses(z, 0.2), lambda z: sigmoid_slopes(z, 0.2)),
    "robust": (lambda z: robust_losses(z, 0.2), lambda z: robust_slopes(z, 0.2)),
    "hinge": (hinge_losses, hinge_slopes),
    "ipo": (lambda z: ipo_losses(z, 0.3), lambda z: ipo_slopes(z, 0.3)),
}
every_loss = pytest.mark.parametrize(("losses", "slopes"), LOSSES_AND_SLOPES.values(), ids=LOSSES_AND_SLOPES)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_pair_worked_out_by_hand() -> None:
    # log(1 + e^-1.5) = 0.201413... and log(1 + e^1.5) = 1.701413..., which differ by 1.5.
    margin, won, lost = tensor(1.5), 0.20141327798275246, 1.7014132779827524
    assert float(sigmoid_losses(margin, 0.0)) == pytest.approx(won, abs=1e-15)
    assert float(sigmoid_losses(margin, 0.1)) == pytest.approx(0.9 * won + 0.1 * lost, abs=1e-15)
    assert float(robust_losses(margin, 0.0)) == pytest.approx(won, abs=1e-15)
    assert float(robust_losses(margin, 0.1)) == pytest.approx((0.9 * won - 0.1 * lost) / 0.8, abs=1e-15)
    assert hinge_losses(tensor(1.5, 1.0, 0.25, -2.0)).tolist() == [0.0, 0.0, 0.75, 3.0]
    # A gap of 3 nats at beta 0.5, which wants one of 1.
    assert ipo_losses(margin, 0.5).tolist() == [4.0]
    assert ipo_losses(tensor(0.5), 0.5).tolist() == [0.0]


def test_slopes_worked_out_by_hand() -> None:
    # sigma(-1.5) = 0.182425..., sigma(1.5) = 0.817574...
    margin, down, up = tensor(1.5), 0.18242552380635635, 0.8175744761936437
    assert float(sigmoid_slopes(margin, 0.1)) == pytest.approx(-0.9 * down + 0.1 * up, abs=1e-15)
    assert float(robust_slopes(margin, 0.1)) == pytest.approx((-0.9 * down - 0.1 * up) / 0.8, abs=1e-15)
    assert hinge_slopes(tensor(1.5, 1.0, 0.25, -2.0)).tolist() == [0.0, 0.0, -1.0, -1.0]
    # d (h - 1)^2 / d h = 2 (3 - 1), and h = z / 0.5.
    assert ipo_slopes(margin, 0.5).tolist() == [8.0]


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.49])
def test_a_policy_equal_to_its_reference_costs_log_two(label_smoothing) -> None:
    assert float(sigmoid_losses(tensor(0.0), label_smoothing)) == pytest.approx(math.log(2), abs=1e-15)
    assert float(robust_losses(tensor(0.0), label_smoothing)) == pytest.approx(math.log(2), abs=1e-14)


@settings(deadline=None)
@given(margin=st.floats(-30, 30), label_smoothing=st.floats(0, 0.45))
def test_the_robust_loss_is_on_average_that_of_labels_without_swaps(margin, label_smoothing) -> None:
    """What it is for: over labels swapped at rate e its mean is the sigmoid loss of the right label."""
    right, swapped = (float(robust_losses(tensor(z), label_smoothing)) for z in (margin, -margin))
    expected = math.log1p(math.exp(-margin))
    assert (1 - label_smoothing) * right + label_smoothing * swapped == pytest.approx(expected, abs=1e-12)


@every_loss
def test_slopes_are_the_derivative_of_the_loss(losses, slopes) -> None:
    leaf = tensor(-800, -30, -2.5, -1, 0, 0.3, 1, 1.7, 25, 800).requires_grad_()
    losses(leaf).sum().backward()
    torch.testing.assert_close(slopes(leaf.detach()), leaf.grad, rtol=1e-14, atol=0)
    # Away from the kink of the hinge, where no difference is a derivative.
    assert torch.autograd.gradcheck(losses, (tensor(-2.5, -0.4, 0.3, 1.7).requires_grad_(),))


def test_losses_stay_exact_where_the_sigmoid_underflows() -> None:
    margins = tensor(-1e4, 1e4)
    assert sigmoid_losses(margins, 0.0).tolist() == [1e4, 0.0]
    assert sigmoid_losses(margins, 0.25).tolist() == [7500.0, 2500.0]
    assert robust_losses(margins, 0.25).tolist() == [15000.0, -5000.0]
    assert hinge_losses(margins).tolist() == [10001.0, 0.0]
    assert ipo_losses(margins, 0.5).tolist() == [20001.0**2, 19999.0**2]
    assert sigmoid_slopes(margins, 0.25).tolist() == [-0.75, 0.25]
    assert robust_slopes(margins, 0.25).tolist() == [-1.5, -0.5]


@settings(deadline=None)
@given(
    logps=st.lists(st.floats(-20, 20), min_size=2, max_size=6).filter(lambda values: len(values) % 2 == 0),
    beta=st.floats(0.01, 2),
    label_smoothing=st.floats(0, 0.49),
)
def test_slopes_reach_the_log_probs_of_pairs(logps, beta, label_smoothing) -> None:
    """Rafailov et al. 2023, the gradient in section 4: beta times the slope, up for chosen and down for rejected."""
    leaf = tensor(*logps).requires_grad_()
    reward = rewards(leaf, torch.zeros_like(leaf), beta)
    margin = margins(reward[0::2], reward[1::2])
    mean_loss(sigmoid_losses(margin, label_smoothing), len(margin)).backward()
    expected = beta * sigmoid_slopes(margin.detach(), label_smoothing) / len(margin)
    torch.testing.assert_close(leaf.grad[0::2], expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(leaf.grad[1::2], -expected, rtol=0, atol=1e-14)


def test_a_group_of_two_positives_and_one_negative_worked_out_by_hand() -> None:
    # Rewards 2 and 0 against 1: margins 1 and -1, losses log(1 + e^-1) and log(1 + e), which differ by 1.
    margins_PN = group_margins(tensor(2.0, 0.0), tensor(1.0))
    assert margins_PN.tolist() == [[1.0], [-1.0]]
    loss = mean_over_pairs(sigmoid_losses(margins_PN, 0.0))
    assert float(loss) == pytest.approx(0.31326168751822286 + 0.5, abs=1e-15)
    # sigma(-1) = 0.268941..., sigma(1) = 0.731058...; they sum to 1.
    positives, negatives = reward_slopes_of_pairs(sigmoid_slopes(margins_PN, 0.0))
    assert positives.tolist() == pytest.approx([-0.5 * 0.2689414213699951, -0.5 * 0.7310585786300049], abs=1e-15)
    assert negatives.tolist() == pytest.approx([0.5], abs=1e-15)


@pytest.mark.parametrize("function", [sigmoid_losses, sigmoid_slopes, robust_losses, robust_slopes])
@pytest.mark.parametrize("label_smoothing", [-0.1, 0.5, math.nan])
def test_label_smoothing_outside_its_range_is_refused(function, label_smoothing) -> None:
    with pytest.raises(ValueError, match="label_smoothing is"):
        function(tensor(1.0), label_smoothing)


@pytest.mark.parametrize("function", [ipo_losses, ipo_slopes])
def test_a_beta_that_is_no_strength_is_refused(function) -> None:
    with pytest.raises(ValueError, match="beta is 0"):
        function(tensor(1.0), 0.0)
