"""Budgets of every preference objective hold for errors within the budgets that they are derived from."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.objective import PREFERENCE_NAMES, SMOOTHED, Preference, PreferenceName
from verify.observation import Observation
from verify.preference_budget import coefficient_noises, loss_budget, reward_budgets
from verify.subjects.oracle import apply_objective
from verify.supervised_values import pair_margins

Shape = tuple[list[int], list[int]]
"""Lengths of the positives and of the negatives of a group."""


def groups_of(*shapes: Shape) -> list[PreferenceGroup]:
    return [
        PreferenceGroup(
            (1,),
            tuple((index,) * length for index, length in enumerate(positives)),
            tuple((index,) * length for index, length in enumerate(negatives, 100)),
        )
        for positives, negatives in shapes
    ]


def observed(
    logps: list[Tensor], refs: list[Tensor], groups: list[PreferenceGroup], objective: Preference
) -> Observation:
    values = apply_objective(logps, refs, groups, objective)
    return Observation(
        per_token_logps=tuple(logps),
        ref_per_token_logps=tuple(refs),
        rewards=values.rewards,
        margins=pair_margins(values.rewards, groups),
        loss=values.loss,
        gradients=None,
    )


def objective_of(name: PreferenceName, beta: float = 0.3, nll_weight: float = 0.7) -> Preference:
    return Preference(name=name, beta=beta, label_smoothing=0.2 if name in SMOOTHED else 0.0, nll_weight=nll_weight)


shapes = st.lists(
    st.tuples(*[st.lists(st.integers(1, 6), min_size=1, max_size=3)] * 2),
    min_size=1,
    max_size=3,
)  # fmt: skip


@given(
    st.sampled_from(PREFERENCE_NAMES),
    shapes,
    st.floats(0.05, 3.0),
    st.sampled_from([0.0, 1.0]),
    st.floats(1e-7, 0.3),
    st.integers(0, 2**32 - 1),
)
def test_no_errors_within_the_log_prob_budgets_leave_the_budgets_that_follow(
    name: PreferenceName, lengths: list[Shape], beta: float, nll_weight: float, rms: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups, objective = groups_of(*lengths), objective_of(name, beta, nll_weight)
    counts = [len(ids) for group in groups for ids in group.completions]

    def drawn(scale: float) -> list[Tensor]:
        values = torch.randn(sum(counts), generator=generator, dtype=torch.float64)
        return list(torch.split(scale * values / values.square().mean().sqrt(), counts))

    logps, refs = ([value - 2 for value in drawn(1.0)] for _ in range(2))
    moved, moved_refs = (
        [value + error for value, error in zip(values, drawn(rms), strict=True)] for values in (logps, refs)
    )
    expected, actual = observed(logps, refs, groups, objective), observed(moved, moved_refs, groups, objective)
    rewards = reward_budgets(groups, expected, objective, logps_rms=rms, ref_logps_rms=rms)
    errors = (actual.rewards - expected.rewards).abs().tolist()
    assert all(error <= bound for error, bound in zip(errors, rewards, strict=True))
    budget = loss_budget(objective, groups, expected, rewards=rewards, logps_rms=rms)
    assert abs(float(actual.loss - expected.loss)) <= budget


@pytest.mark.parametrize("name", PREFERENCE_NAMES)
def test_the_coefficients_move_as_their_noise_says(name: PreferenceName) -> None:
    """Every single completion is shifted by its share of the spread: together they make the quadratic sum."""
    groups, objective, spread = groups_of(([3, 1], [2, 4, 1]), ([2], [5])), objective_of(name), 1e-5
    generator = torch.Generator().manual_seed(7)
    counts = [len(ids) for group in groups for ids in group.completions]
    logps, refs = ([torch.randn(n, generator=generator, dtype=torch.float64) - 2 for n in counts] for _ in range(2))

    def coefficients(values: list[Tensor]) -> Tensor:
        leaves = [value.clone().requires_grad_() for value in values]
        loss = apply_objective(leaves, refs, groups, objective).loss
        return torch.stack([gradient[0] for gradient in torch.autograd.grad(loss, leaves)])

    before, squares = coefficients(logps), torch.zeros(len(counts), dtype=torch.float64)
    for shifted, count in enumerate(counts):
        offset = spread / math.sqrt(count)
        after = coefficients([value + offset * (k == shifted) for k, value in enumerate(logps)])
        squares += (after - before).square()
    wanted = [
        float(error.norm() / size.norm())
        for error, size in zip(torch.split(squares.sqrt(), [5, 2]), torch.split(before, [5, 2]), strict=True)
    ]
    found = coefficient_noises(groups, observed(logps, refs, groups, objective), objective, spread=spread, own=0.0)
    assert found == pytest.approx(wanted, rel=1e-3, abs=1e-12)


def test_at_the_kink_of_the_hinge_a_coefficient_has_no_bound() -> None:
    groups, objective = groups_of(([1], [1])), Preference(name="hinge", beta=0.5)
    refs = [torch.zeros(1, dtype=torch.float64)] * 2
    near = [torch.tensor([-1.0 - 1e-6], dtype=torch.float64), torch.tensor([-3.0], dtype=torch.float64)]
    assert coefficient_noises(groups, observed(near, refs, groups, objective), objective, spread=1e-5, own=0.0) == [
        math.inf
    ]
    assert coefficient_noises(groups, observed(near, refs, groups, objective), objective, spread=1e-7, own=0.0) == [0.0]


def test_the_second_derivative_agrees_with_what_the_sigmoid_loss_has_in_closed_form() -> None:
    """1+1 group of 3 and 5 tokens: |dc / c| = sigma(z) beta spread sqrt(3 + 5)."""
    groups, objective = groups_of(([3], [5])), Preference(beta=0.4)
    generator = torch.Generator().manual_seed(3)
    logps, refs = ([torch.randn(n, generator=generator, dtype=torch.float64) - 2 for n in (3, 5)] for _ in range(2))
    expected = observed(logps, refs, groups, objective)
    wanted = float(torch.sigmoid(expected.margins)) * 0.4 * 1e-5 * math.sqrt(8)
    assert coefficient_noises(groups, expected, objective, spread=1e-5, own=0.0) == pytest.approx([wanted])
