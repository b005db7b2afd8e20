"""The distance of signatures: 0 for the same, 1 for nothing in common, symmetric, deaf to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verify.diagnosis.signature import Signature, distance, nearest


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


NONE = Signature(
    logps=torch.zeros(6, dtype=torch.float64),
    logps_beyond=torch.zeros(6, dtype=torch.bool),
    ref_logps=torch.zeros(6, dtype=torch.float64),
    ref_logps_beyond=torch.zeros(6, dtype=torch.bool),
    rewards=vector(0, 0),
    loss=vector(0),
    gradients=torch.zeros(4, dtype=torch.float64),
    tensors=torch.tensor([[0.5, 1.0]] * 2, dtype=torch.float64),
)


def of_logps(*values: float) -> Signature:
    return replace(NONE, logps=vector(*values), logps_beyond=vector(*values) != 0)


def of_gradients(*values: float) -> Signature:
    return replace(NONE, gradients=vector(*values), tensors=torch.tensor([[0.5, 1.0], [0.9, 0.2]], dtype=torch.float64))


SIGNATURES = st.builds(
    lambda logps, rewards, gradients: replace(of_logps(*logps), rewards=vector(*rewards), gradients=vector(*gradients)),
    *(st.lists(st.sampled_from([-3.0, -0.5, 0.0, 1.0, 2.0]), min_size=n, max_size=n) for n in (6, 2, 4)),
)


@given(one=SIGNATURES, other=SIGNATURES)
def test_the_distance_is_symmetric_and_within_its_range(one: Signature, other: Signature) -> None:
    assert distance(one, one) == 0
    assert distance(one, other) == distance(other, one)
    assert 0 <= distance(one, other) <= 1 + 1e-12


def test_signatures_in_different_quantities_have_nothing_in_common() -> None:
    assert distance(of_logps(0, 1, 2, 0, 0, 0), replace(NONE, rewards=vector(1, 0))) == 1


def test_what_neither_side_has_does_not_make_them_alike() -> None:
    """Parts that are exact on both sides are left out of the mean, or everything would be near."""
    assert distance(of_logps(1, 0, 0, 0, 0, 0), of_logps(0, 0, 0, 0, 0, 1)) == pytest.approx((2**0.5 / 2 + 1) / 2)


def test_log_probs_of_other_passes_than_the_loss_count_only_where_they_are_wrong() -> None:
    fault = replace(of_logps(1, 0, 0, 0, 0, 0), rewards=vector(1, 0))
    right, wrong = replace(NONE, rewards=vector(1, 0)), replace(of_logps(0, 1, 0, 0, 0, 0), rewards=vector(1, 0))
    assert distance(replace(right, logps_apart=True), fault) == 0
    assert distance(right, fault) == 0.5
    assert distance(replace(wrong, logps_apart=True), fault) == distance(wrong, fault) > 0


def test_the_same_tokens_by_another_amount_are_nearer_than_other_tokens() -> None:
    seen = of_logps(0, 1, 1, 0, 0, 0)
    order = nearest(seen, {"other tokens": of_logps(0, 0, 0, 1, 1, 0), "other amount": of_logps(0, 2, 3, 0, 0, 0)})
    assert [name for name, _ in order] == ["other amount", "other tokens"]


def test_gradients_differ_in_values_and_in_shape() -> None:
    assert distance(of_gradients(0, 0, 1, 1), of_gradients(0, 0, 1, 1)) == 0
    assert distance(of_gradients(0, 0, 1, 1), NONE) > 0.5


def test_a_fault_that_changes_nothing_here_is_nobodys_neighbour() -> None:
    """Label smoothing that is ignored changes no value where it is 0, which is not the signature of any subject."""
    seen = of_logps(0, 1, 0, 0, 0, 0)
    assert [name for name, _ in nearest(seen, {"ignored": NONE, "seen": seen})] == ["seen"]
    assert nearest(NONE, {"ignored": NONE, "seen": seen}) == []
    for other in (of_gradients(0, 0, 0, 0), replace(NONE, loss=vector(1)), replace(NONE, rewards=vector(0, 1))):
        assert not other.tells_nothing
