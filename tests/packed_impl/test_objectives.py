from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from packed_impl.objectives import dpo_sigmoid, group_sigmoid, sft_mean, supervised_sums

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_are_not_a_bit_apart_from_the_equation_written_out(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    logps = torch.randn(37, 2, generator=generator, dtype=dtype).mul_(50).requires_grad_()
    ref = torch.randn(37, 2, generator=generator, dtype=dtype) * 50
    terms = dpo_sigmoid(logps, ref, beta=0.1, label_smoothing=0.2)
    z = 0.1 * (logps[:, 0] - ref[:, 0]) - 0.1 * (logps[:, 1] - ref[:, 1])
    expected = (-0.8 * logsigmoid(z) - 0.2 * logsigmoid(-z)).mean()
    assert torch.equal(terms.margins, z)
    assert torch.equal(terms.loss, expected)
    assert torch.equal(*torch.autograd.grad(terms.loss, logps), *torch.autograd.grad(expected, logps))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 2**31),
)
def test_the_loss_of_groups_is_the_mean_over_their_pairs_then_over_groups(
    sizes: list[tuple[int, int]], smoothing: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logps, ref = torch.randn(2, sum(map(sum, sizes)), generator=generator, dtype=torch.float64)
    logps.requires_grad_()
    terms = group_sigmoid(logps, ref, sizes, beta=0.7, label_smoothing=smoothing)
    rewards = [0.7 * (p - r) for p, r in zip(logps.tolist(), ref.tolist(), strict=True)]
    margins, losses, slopes, first = [], [], [0.0] * len(rewards), 0
    for m, n in sizes:
        pairs = [(first + i, first + m + j) for i in range(m) for j in range(n)]
        z_of_pairs = [rewards[i] - rewards[j] for i, j in pairs]
        margins += z_of_pairs
        losses.append(
            sum((1 - smoothing) * math.log1p(math.exp(-z)) + smoothing * math.log1p(math.exp(z)) for z in z_of_pairs)
            / len(pairs)
        )
        for (i, j), z in zip(pairs, z_of_pairs, strict=True):
            slope = smoothing / (1 + math.exp(-z)) - (1 - smoothing) / (1 + math.exp(z))
            slopes[i] += 0.7 * slope / len(pairs) / len(sizes)
            slopes[j] -= 0.7 * slope / len(pairs) / len(sizes)
        first += m + n
    assert terms.rewards.tolist() == pytest.approx(rewards, rel=1e-13)
    assert terms.margins.tolist() == pytest.approx(margins, rel=1e-13, abs=1e-13)
    assert terms.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-13)
    assert torch.autograd.grad(terms.loss, logps)[0].tolist() == pytest.approx(slopes, rel=1e-12, abs=1e-14)


def test_margins_come_by_group_then_positive_then_negative() -> None:
    logps = torch.tensor([10.0, 20.0, 1.0, 2.0, 3.0, 7.0, 5.0])
    terms = group_sigmoid(logps, torch.zeros(7), [(2, 3), (1, 1)], beta=1.0)
    assert terms.margins.tolist() == [9.0, 8.0, 7.0, 19.0, 18.0, 17.0, 2.0]


@pytest.mark.parametrize(
    ("num_logps", "sizes", "message"),
    [
        (3, [(1, 1), (1, 0)], r"group 1 has 1\+0 responses: a preference needs"),
        (3, [(0, 3)], r"group 0 has 0\+3 responses"),
        (3, [(1, 1)], r"shapes \(3,\), .* expected \(2,\)"),
        (0, [], "at least one group"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(num_logps: int, sizes: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_sigmoid(torch.zeros(num_logps), torch.zeros(num_logps), sizes, beta=0.1)


# One completion of one supervised token and one of three, as in the docstring: a = 1, b = 4, and a token masked out.
SFT_LOGPS = torch.tensor([-1.0, -100.0, -4.0, -4.0, -4.0], dtype=torch.float64)
COUNTED = torch.tensor([True, False, True, True, True])


@pytest.mark.parametrize(("mean", "expected"), [("token", 13 / 4), ("example", 5 / 2)])
def test_the_two_means_weigh_examples_differently(mean: str, expected: float) -> None:
    assert sft_mean(SFT_LOGPS, COUNTED, [2, 3], mean=mean).item() == expected


@pytest.mark.parametrize("mean", ["token", "example"])
def test_a_token_that_is_masked_out_has_no_part_in_the_loss(mean: str) -> None:
    logps = SFT_LOGPS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sft_mean(logps, COUNTED, [2, 3], mean=mean), logps)
    assert gradient.eq(0).tolist() == (~COUNTED).tolist()
    assert gradient.sum().item() == pytest.approx(-1.0)


def test_masks_that_are_true_throughout_change_no_bit_of_a_sum() -> None:
    logps = torch.randn(1000, generator=torch.Generator().manual_seed(5))
    sums = supervised_sums(logps, torch.ones(1000, dtype=torch.bool), [1, 600, 399])
    assert torch.equal(sums, torch.stack([logps[:1].sum(), logps[1:601].sum(), logps[601:].sum()]))


def test_an_unknown_mean_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown mean 'batch': expected one of token, example"):
        sft_mean(SFT_LOGPS, COUNTED, [2, 3], mean="batch")
