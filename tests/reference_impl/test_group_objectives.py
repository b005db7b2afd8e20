from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_impl.group_objectives import (
    all_pairs_loss,
    all_pairs_slopes,
    margin_loss,
    margin_slopes,
    mpo_loss,
    mpo_slopes,
    softmax_loss,
    softmax_slopes,
)

LOSSES = {"margin": margin_loss, "mpo": mpo_loss, "softmax": softmax_loss, "all-pairs": all_pairs_loss}
SLOPES = {"margin": margin_slopes, "mpo": mpo_slopes, "softmax": softmax_slopes, "all-pairs": all_pairs_slopes}
every_name = pytest.mark.parametrize("name", LOSSES)
moderate = st.lists(st.floats(-8, 8), min_size=1, max_size=4)
extreme = st.lists(st.sampled_from([-1e4, -9999.5, -30.0, -1.0, 0.0, 0.5, 25.0, 9999.25, 1e4]), min_size=1, max_size=4)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mean(values: list[Decimal]) -> Decimal:
    return sum(values, Decimal(0)) / len(values)


def phi(name: str, positives: list[Decimal], negatives: list[Decimal]) -> Decimal:
    """The published forms, on sums of exponentials."""
    down = sum(u.exp() for u in negatives)
    if name == "margin":
        return (1 + (mean(negatives) - mean(positives)).exp()).ln()
    if name == "mpo":
        up = sum(u.exp() for u in positives)
        return (up + down).ln() - up.ln()
    if name == "softmax":
        return mean([(1 + down / u.exp()).ln() for u in positives])
    return mean([(1 + (n - p).exp()).ln() for p in positives for n in negatives])


def coefficients(name: str, positives: list[Decimal], negatives: list[Decimal]) -> tuple[list[Decimal], list[Decimal]]:
    """``d phi / d u_i`` in the same forms, with pi and q the shares of a softmax."""
    up, down = sum(u.exp() for u in positives), sum(u.exp() for u in negatives)
    if name == "margin":
        s = 1 / (1 + (mean(positives) - mean(negatives)).exp())
        return [-s / len(positives)] * len(positives), [s / len(negatives)] * len(negatives)
    if name == "mpo":
        return [u.exp() / (up + down) - u.exp() / up for u in positives], [u.exp() / (up + down) for u in negatives]
    if name == "softmax":
        pi = [u.exp() / (u.exp() + down) for u in positives]
        of_negatives = [mean([n.exp() / (p.exp() + down) for p in positives]) for n in negatives]
        return [-(1 - share) / len(pi) for share in pi], of_negatives
    lost = [[1 / (1 + (p - n).exp()) for n in negatives] for p in positives]
    return (
        [-mean(row) / len(positives) for row in lost],
        [mean(list(column)) / len(negatives) for column in zip(*lost, strict=True)],
    )


@every_name
@settings(deadline=None)
@given(positives=moderate | extreme, negatives=moderate | extreme)
def test_losses_and_slopes_are_the_published_ones_in_decimals(name, positives, negatives) -> None:
    """Decimals go up to 10^999999, and e^10000 has 4343 digits: exponentials can be summed as they stand in print."""
    with localcontext(prec=50):
        u_P, u_N = [Decimal(u) for u in positives], [Decimal(u) for u in negatives]
        loss, (slopes_P, slopes_N) = phi(name, u_P, u_N), coefficients(name, u_P, u_N)
    actual_P, actual_N = SLOPES[name](tensor(*positives), tensor(*negatives))
    assert float(LOSSES[name](tensor(*positives), tensor(*negatives))) == pytest.approx(float(loss), abs=1e-11)
    assert actual_P.tolist() == pytest.approx([float(c) for c in slopes_P], abs=1e-11)
    assert actual_N.tolist() == pytest.approx([float(c) for c in slopes_N], abs=1e-11)


def test_two_positives_and_one_negative_worked_out_by_hand() -> None:
    # u_P = log 2 and log 6, u_N = log 4: e^u = 2, 6 and 4; mean_P u = log sqrt(12).
    rewards_P, rewards_N = tensor(math.log(2), math.log(6)), tensor(math.log(4))
    losses = {name: float(loss(rewards_P, rewards_N)) for name, loss in LOSSES.items()}
    slopes = {name: [c.tolist() for c in coefficients(rewards_P, rewards_N)] for name, coefficients in SLOPES.items()}
    assert losses["margin"] == pytest.approx(math.log(1 + 4 / math.sqrt(12)), abs=1e-15)
    assert losses["mpo"] == pytest.approx(math.log(12 / 8), abs=1e-15)
    assert losses["softmax"] == pytest.approx((math.log(6 / 2) + math.log(10 / 6)) / 2, abs=1e-15)
    assert losses["all-pairs"] == pytest.approx((math.log(6 / 2) + math.log(10 / 6)) / 2, abs=1e-15)
    s = 4 / (4 + math.sqrt(12))
    for name, expected_P, expected_N in (
        ("margin", [-s / 2, -s / 2], [s]),
        ("mpo", [2 / 12 - 2 / 8, 6 / 12 - 6 / 8], [4 / 12]),
        ("softmax", [-(4 / 6) / 2, -(4 / 10) / 2], [(4 / 6 + 4 / 10) / 2]),
        ("all-pairs", [-(4 / 6) / 2, -(4 / 10) / 2], [(4 / 6 + 4 / 10) / 2]),
    ):
        assert slopes[name][0] == pytest.approx(expected_P, abs=1e-15)
        assert slopes[name][1] == pytest.approx(expected_N, abs=1e-15)


def test_one_positive_and_two_negatives_tell_softmax_from_all_pairs() -> None:
    # e^u = 2 against 1 and 3: all negatives at once, or one at a time.
    rewards_P, rewards_N = tensor(math.log(2)), tensor(0.0, math.log(3))
    assert float(softmax_loss(rewards_P, rewards_N)) == pytest.approx(math.log(6 / 2), abs=1e-15)
    assert float(all_pairs_loss(rewards_P, rewards_N)) == pytest.approx(
        (math.log(3 / 2) + math.log(5 / 2)) / 2, abs=1e-15
    )
    assert float(mpo_loss(rewards_P, rewards_N)) == pytest.approx(math.log(6 / 2), abs=1e-15)
    assert softmax_slopes(rewards_P, rewards_N)[1].tolist() == pytest.approx([1 / 6, 3 / 6], abs=1e-15)
    assert all_pairs_slopes(rewards_P, rewards_N)[1].tolist() == pytest.approx([1 / 6, 3 / 10], abs=1e-15)


@pytest.mark.parametrize(("P", "N"), [(1, 1), (3, 1), (1, 4), (2, 5)])
def test_a_policy_equal_to_its_reference_costs_what_the_sizes_say(P, N) -> None:
    at_zero = {name: float(loss(torch.zeros(P).double(), torch.zeros(N).double())) for name, loss in LOSSES.items()}
    assert at_zero == pytest.approx(
        {
            "margin": math.log(2),
            "mpo": math.log((P + N) / P),
            "softmax": math.log(1 + N),
            "all-pairs": math.log(2),
        },
        abs=1e-15,
    )


@every_name
def test_small_losses_of_large_rewards_keep_their_digits(name) -> None:
    """Rewards of 10,000 and 40 less: the loss is e^-40, and a difference of two logarithms near 10,000 would be 0."""
    loss = float(LOSSES[name](tensor(1e4), tensor(1e4 - 40)))
    assert loss == pytest.approx(math.exp(-40), rel=1e-13)
    # Where torch's softplus(x) is x, and its slope 1.
    loss, slopes = LOSSES[name](tensor(-25.0), tensor(0.0)), SLOPES[name](tensor(-25.0), tensor(0.0))
    assert float(loss) - 25 == pytest.approx(math.exp(-25), rel=1e-3)
    assert float(slopes[1]) == pytest.approx(1 - math.exp(-25), abs=1e-15)
