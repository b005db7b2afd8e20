from __future__ import annotations

import math

import pytest
import torch

from packed_impl.objectives import dpo_sigmoid

LOGPS = torch.tensor([[-3.0, -5.0], [-2.0, -1.0]], dtype=torch.float64)
REF = torch.tensor([[-4.0, -4.5], [-2.5, -2.5]], dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.49])
def test_loss_rewards_and_margins_are_the_published_ones(smoothing: float) -> None:
    beta, expected = 0.3, []
    for (chosen, rejected), (ref_chosen, ref_rejected) in zip(LOGPS.tolist(), REF.tolist(), strict=True):
        z = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
        prefers = 1 / (1 + math.exp(-z))
        expected.append(-(1 - smoothing) * math.log(prefers) - smoothing * math.log(1 - prefers))
    terms = dpo_sigmoid(LOGPS, REF, beta=beta, label_smoothing=smoothing)
    assert terms.loss.item() == pytest.approx(sum(expected) / 2, rel=1e-14)
    assert terms.rewards.tolist() == [pytest.approx([0.3, -0.15]), pytest.approx([0.15, 0.45])]
    assert terms.margins.tolist() == pytest.approx([0.45, -0.3])


def test_a_huge_margin_stays_finite() -> None:
    terms = dpo_sigmoid(torch.tensor([[-1e6, 0.0]]), torch.zeros(1, 2), beta=1.0)
    assert terms.loss.item() == 1e6


@pytest.mark.parametrize("beta", [0.0, -0.1, math.nan])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(ValueError, match=f"beta is {beta}"):
        dpo_sigmoid(LOGPS, REF, beta=beta)


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, math.nan])
def test_smoothing_stays_below_one_half(smoothing: float) -> None:
    with pytest.raises(ValueError, match=f"label_smoothing is {smoothing}"):
        dpo_sigmoid(LOGPS, REF, beta=0.1, label_smoothing=smoothing)


@pytest.mark.parametrize("shape", [(0, 2), (2, 3), (4,)])
def test_anything_but_pairs_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \[groups, 2\]"):
        dpo_sigmoid(torch.zeros(shape), torch.zeros(shape), beta=0.1)


def test_policy_and_frozen_policy_need_the_same_shape() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2\) and ref_logps of shape \(1, 2\)"):
        dpo_sigmoid(LOGPS, REF[:1], beta=0.1)
