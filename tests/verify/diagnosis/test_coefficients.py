"""Weights of tokens are read off a gradient that was put together from known ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verify.diagnosis.coefficients import Basis, Weights, explain_gradient

LENGTHS = (3, 2, 4, 1)
SIZES = (20, 30)
RIGHT = (-0.2, 0.2, -0.3, 0.3)


def each_token(of_responses: Sequence[float]) -> Tensor:
    return torch.repeat_interleave(torch.tensor(of_responses, dtype=torch.float64), torch.tensor(LENGTHS))


def token_rows() -> Tensor:
    rows = torch.randn(sum(LENGTHS), sum(SIZES), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, : SIZES[0]] *= 1e3
    return rows


BY_TOKEN = Basis(
    ("a", "b"), SIZES, token_rows(), each_token(RIGHT), each_token(RIGHT), torch.arange(sum(LENGTHS)).split(LENGTHS)
)
BY_RESPONSE = Basis(
    ("a", "b"),
    SIZES,
    torch.stack([part.sum(0) for part in token_rows().split(LENGTHS)]),
    torch.tensor(RIGHT, dtype=torch.float64),
    torch.tensor(RIGHT, dtype=torch.float64),
    torch.arange(4).split(1),
)


def gradient(ratios: Tensor, extra: Tensor | float = 0.0) -> dict[str, Tensor]:
    flat = (ratios * each_token(RIGHT)) @ token_rows() + extra
    return dict(zip("ab", flat.split(SIZES), strict=True))


def explained(actual: dict[str, Tensor], basis: Basis) -> Weights:
    weights = explain_gradient(actual, basis)
    assert weights is not None
    return weights


@given(st.lists(st.floats(-3, 3).filter(lambda x: abs(x - 1) > 0.01), min_size=4, max_size=4))
def test_weights_of_whole_responses_come_out(ratios: list[float]) -> None:
    for basis in (BY_RESPONSE, BY_TOKEN):
        weights = explained(gradient(each_token(ratios)), basis)
        assert weights.explained
        assert weights.by_response is (basis is BY_RESPONSE)
        assert weights.response_ratios == pytest.approx(ratios, abs=1e-5)


def test_a_token_without_weight_is_found_token_by_token_only() -> None:
    ratios = torch.ones(sum(LENGTHS), dtype=torch.float64)
    ratios[6] = 0
    assert not explained(gradient(ratios), BY_RESPONSE).explained
    weights = explained(gradient(ratios), BY_TOKEN)
    assert weights.explained
    assert weights.ratios[2].tolist() == pytest.approx([1, 0, 1, 1], abs=1e-6)


def test_what_no_token_gives_is_left_over() -> None:
    extra = torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert not explained(gradient(each_token([1, 1, 1, 1]), extra), BY_TOKEN).explained


def test_a_change_of_the_smaller_tensor_is_not_drowned_by_the_larger_one() -> None:
    """Each tensor is scaled by its own factor: no weights of responses do that, though the large one alone obeys."""
    right = gradient(each_token([1, 1, 1, 1]))
    assert not explained({"a": 0.5 * right["a"], "b": 0.9 * right["b"]}, BY_TOKEN).explained


def test_nan_has_no_explanation_and_a_missing_tensor_is_refused() -> None:
    right = gradient(each_token([1, 1, 1, 1]))
    assert explain_gradient({name: torch.nan * part for name, part in right.items()}, BY_TOKEN) is None
    with pytest.raises(ValueError, match="no gradient of b"):
        explain_gradient({"a": right["a"]}, BY_TOKEN)
