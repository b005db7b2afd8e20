from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_impl.objectives import group_sigmoid
from packed_impl.preference import PREFERENCES, preference_terms

DPO_FAMILY = ("sigmoid", "robust", "hinge", "ipo", "sigmoid_norm", "rpo")
GROUP_DPO = ("groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs")
SMOOTHED = ("sigmoid", "robust", "sigmoid_norm", "rpo")
OF_MEANS = ("ipo", "sigmoid_norm", *GROUP_DPO)
WITH_NLL = ("rpo", *GROUP_DPO)


# The definitions, one pair and one number at a time.


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def logsumexp(values: Sequence[float]) -> float:
    return max(values) + math.log(sum(math.exp(value - max(values)) for value in values))


def softmax(values: Sequence[float]) -> list[float]:
    weights = [math.exp(value - max(values)) for value in values]
    return [weight / sum(weights) for weight in weights]


def pair_loss(name: str, z: float, beta: float, e: float) -> tuple[float, float]:
    """Loss of a margin, and its derivative."""
    if name == "hinge":
        return max(0.0, 1 - z), -1.0 if z < 1 else 0.0
    if name == "ipo":
        gap = z / beta - 1 / (2 * beta)
        return gap * gap, 2 * gap / beta
    if name == "robust":
        loss = ((1 - e) * softplus(-z) - e * softplus(z)) / (1 - 2 * e)
        return loss, (-(1 - e) * sigma(-z) - e * sigma(z)) / (1 - 2 * e)
    return (1 - e) * softplus(-z) + e * softplus(z), -(1 - e) * sigma(-z) + e * sigma(z)


def group_loss(
    name: str, positives: Sequence[float], negatives: Sequence[float], beta: float, e: float
) -> tuple[float, list[float]]:
    """Loss phi of the rewards of one group, and d phi / d u of positives, then negatives."""
    m, n = len(positives), len(negatives)
    if name == "groupdpo-margin":
        z = sum(positives) / m - sum(negatives) / n
        return softplus(-z), [-sigma(-z) / m] * m + [sigma(-z) / n] * n
    if name == "groupdpo-mpo":
        z = logsumexp(positives) - logsumexp(negatives)
        swapped = sigma(-z)  # q_N, the share of the negatives in the softmax over the group
        slopes = [-swapped * share for share in softmax(positives)]
        return softplus(-z), slopes + [swapped * share for share in softmax(negatives)]
    if name == "groupdpo-softmax":
        against = [softmax([u, *negatives]) for u in positives]
        slopes = [-sum(shares[1:]) / m for shares in against]
        slopes += [sum(shares[1 + j] for shares in against) / m for j in range(n)]
        return sum(softplus(logsumexp(negatives) - u) for u in positives) / m, slopes
    kind = "sigmoid" if name == "groupdpo-all-pairs" else name
    loss, slopes = 0.0, [0.0] * (m + n)
    for (i, u), (j, v) in product(enumerate(positives), enumerate(negatives)):
        value, slope = pair_loss(kind, u - v, beta, e)
        loss += value / (m * n)
        slopes[i] += slope / (m * n)
        slopes[m + j] -= slope / (m * n)
    return loss, slopes


def by_definition(
    name: str,
    sums: Sequence[float],
    ref_sums: Sequence[float],
    counts: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    beta: float,
    e: float,
    alpha: float,
) -> tuple[float, list[float], list[float], list[float]]:
    """Loss, rewards, margins, and the derivative of the loss by every summed log-prob."""
    lengths = counts if name in OF_MEANS else [1] * len(counts)
    rewards = [beta * (s / k - r / k) for s, r, k in zip(sums, ref_sums, lengths, strict=True)]
    loss, margins, slopes, first = 0.0, [], [], 0
    for m, n in sizes:
        positives, negatives = rewards[first : first + m], rewards[first + m : first + m + n]
        phi, of_rewards = group_loss(name, positives, negatives, beta, e)
        loss += phi / len(sizes)
        margins += [u - v for u in positives for v in negatives]
        for place, slope in enumerate(of_rewards, first):
            slopes.append(slope * beta / lengths[place] / len(sizes))
        for place in range(first, first + m):
            loss += alpha * -(sums[place] / counts[place]) / m / len(sizes)
            slopes[place] -= alpha / counts[place] / m / len(sizes)
        first += m + n
    return loss, rewards, margins, slopes


sizes_of_groups = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6)


@pytest.mark.parametrize("name", PREFERENCES)
@settings(deadline=None, max_examples=60)
@given(sizes_of_groups, st.sampled_from([0.0, 0.3]), st.sampled_from([None, 0.0, 0.7]), st.integers(0, 2**31))
def test_every_objective_is_its_definition_group_by_group(
    name: str, sizes: list[tuple[int, int]], smoothing: float, weight: float | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_completions, smoothing = sum(map(sum, sizes)), smoothing if name in SMOOTHED else 0.0
    scale = 10 ** torch.randint(0, 4, (1,), generator=generator).item()
    sums, refs = torch.randn(2, num_completions, generator=generator, dtype=torch.float64) * scale
    counts = torch.randint(1, 9, (num_completions,), generator=generator)
    sums.requires_grad_()
    terms = preference_terms(
        sums, refs, counts, sizes, objective=name, beta=0.7, label_smoothing=smoothing, nll_weight=weight
    )
    alpha = float(name in WITH_NLL) if weight is None else weight
    loss, rewards, margins, slopes = by_definition(
        name, sums.tolist(), refs.tolist(), counts.tolist(), sizes, 0.7, smoothing, alpha
    )
    assert terms.loss.item() == pytest.approx(loss, rel=1e-12, abs=1e-12 * scale)
    assert terms.rewards.tolist() == pytest.approx(rewards, rel=1e-13)
    assert terms.margins.tolist() == pytest.approx(margins, rel=1e-12, abs=1e-13 * scale)
    largest = max(map(abs, slopes))
    assert torch.autograd.grad(terms.loss, sums)[0].tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-13 * largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("behind", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("name", PREFERENCES)
def test_rewards_in_the_ten_thousands_have_finite_and_exact_losses_and_gradients(
    name: str, behind: bool, dtype: torch.dtype
) -> None:
    """Positives at 10000 and 9999, negatives at -10000 and -9998, or the other way round; beta 1/2."""
    values = [20000.0, 19998.0, -20000.0, -19996.0, 1.0, 1.0]
    if behind:
        values = [-value for value in values]
    sizes, counts, zeros = [(2, 2), (1, 1)], torch.ones(6, dtype=torch.int64), torch.zeros(6, dtype=dtype)
    sums = torch.tensor(values, dtype=dtype, requires_grad=True)
    terms = preference_terms(sums, zeros, counts, sizes, objective=name, beta=0.5, nll_weight=0.0)
    loss, _, margins, slopes = by_definition(name, values, [0.0] * 6, [1] * 6, sizes, 0.5, 0.0, 0.0)
    precision = 8 * torch.finfo(dtype).eps
    assert terms.margins.tolist() == margins
    assert terms.loss.item() == pytest.approx(loss, rel=precision)
    assert torch.autograd.grad(terms.loss, sums)[0].tolist() == pytest.approx(slopes, rel=precision, abs=precision)


@pytest.mark.parametrize("ahead", [5.0, 30.0, 300.0])
@pytest.mark.parametrize("name", GROUP_DPO)
def test_a_loss_far_below_one_keeps_its_digits(name: str, ahead: float) -> None:
    """Every positive ahead of every negative by the same: a loss of about ``e^-ahead``, or twice that."""
    sums = torch.tensor([ahead, ahead, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    terms = preference_terms(
        sums, torch.zeros_like(sums), torch.ones(4), [(2, 2)], objective=name, beta=1.0, nll_weight=0.0
    )
    of_two = 2 if name == "groupdpo-softmax" else 1
    assert terms.loss.item() == pytest.approx(math.log1p(of_two * math.exp(-ahead)), rel=1e-13)
    (gradient,) = torch.autograd.grad(terms.loss, sums)
    slope = of_two * math.exp(-ahead) / (1 + of_two * math.exp(-ahead)) / 2
    assert gradient.tolist() == pytest.approx([-slope, -slope, slope, slope], rel=1e-13)


@pytest.mark.parametrize("name", GROUP_DPO)
def test_group_objectives_are_dpo_on_pairs(name: str) -> None:
    sums, refs = torch.randn(2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 9
    sizes, counts = [(1, 1)] * 4, torch.arange(1, 9)
    terms = preference_terms(sums, refs, counts, sizes, objective=name, beta=0.4, nll_weight=0)
    expected = group_sigmoid(sums / counts, refs / counts, sizes, beta=0.4)
    assert terms.loss.item() == pytest.approx(expected.loss.item(), rel=1e-14)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("groupdpo-margin", math.log(2)),
        ("groupdpo-mpo", math.log(5 / 2)),
        ("groupdpo-softmax", math.log(4)),
        ("groupdpo-all-pairs", math.log(2)),
    ],
)
def test_a_policy_that_has_not_moved_has_the_known_loss(name: str, expected: float) -> None:
    logps = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0], dtype=torch.float64)
    terms = preference_terms(logps, logps, torch.ones(5), [(2, 3)], objective=name, beta=0.1, nll_weight=0)
    assert terms.loss.item() == pytest.approx(expected, rel=1e-14)


def test_hinge_has_no_gradient_at_its_corner() -> None:
    logps = torch.tensor([1.0, 0.0], requires_grad=True)
    terms = preference_terms(logps, torch.zeros(2), torch.ones(2), [(1, 1)], objective="hinge", beta=1.0)
    assert terms.loss.item() == 0
    assert torch.autograd.grad(terms.loss, logps)[0].tolist() == [0.0, 0.0]


def test_the_nll_term_counts_positives_only_and_each_group_once() -> None:
    """Means of -1 and -2 in the first group, -6 in the second: 1.5 and 6, so 3.75 by groups, though 3 by positives."""
    sums, counts = torch.tensor([-2.0, -2.0, -9.0, -6.0, -9.0]), torch.tensor([2, 1, 3, 1, 1])
    with_nll, without = (
        preference_terms(sums, sums, counts, [(2, 1), (1, 1)], objective="sigmoid", beta=0.1, nll_weight=weight).loss
        for weight in (2.0, 0.0)
    )
    assert (with_nll - without).item() == pytest.approx(2 * 3.75)


TWO = torch.zeros(2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"objective": "dpo"}, "unknown preference objective 'dpo': expected one of sigmoid, robust, hinge, ipo, "),
        ({"beta": 0.0}, "beta is 0.0: expected a finite number above 0"),
        ({"beta": math.inf}, "beta is inf"),
        ({"label_smoothing": 0.5}, "label_smoothing is 0.5: expected at least 0 and below 0.5"),
        ({"nll_weight": -1.0}, "nll_weight is -1.0: expected a finite number, at least 0"),
        ({"nll_weight": math.inf}, "nll_weight is inf"),
        ({"nll_weight": math.nan}, "nll_weight is nan"),
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preference_terms(TWO, TWO, TWO + 1, [(1, 1)], **{"objective": "sigmoid", "beta": 0.1, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(set(PREFERENCES) - set(SMOOTHED)))
def test_an_objective_without_smoothing_takes_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"label_smoothing is 0.1: {name} has none, expected 0"):
        preference_terms(TWO, TWO, TWO + 1, [(1, 1)], objective=name, beta=0.1, label_smoothing=0.1)


@pytest.mark.parametrize("name", PREFERENCES)
def test_a_group_without_a_negative_is_refused_by_every_objective(name: str) -> None:
    with pytest.raises(ValueError, match=r"group 1 has 1\+0 responses"):
        preference_terms(torch.zeros(3), torch.zeros(3), torch.ones(3), [(1, 1), (1, 0)], objective=name, beta=0.1)


def test_the_names_are_those_that_everyone_uses() -> None:
    assert (*DPO_FAMILY, *GROUP_DPO) == PREFERENCES
