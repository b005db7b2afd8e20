"""What follows from the budgets of rewards is never too little: margins, the loss and the noise of coefficients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from verify.budget import Budget
from verify.groups import PreferenceGroup
from verify.noise import Noise, NoiseFloor
from verify.objective import RewardModel
from verify.observation import Observation
from verify.reward_budget import loss_rounding, reward_coefficient_noise, reward_model_budgets
from verify.subjects.oracle import apply_objective
from verify.supervised_values import pair_margins
from verify.tolerance import Policy

Sizes = list[tuple[int, int]]
SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4)


def groups_of(sizes: Sizes) -> list[PreferenceGroup]:
    return [PreferenceGroup((1,), tuple((2, k) for k in range(p)), tuple((3, k) for k in range(n))) for p, n in sizes]


def expected_of(rewards: torch.Tensor, groups: list[PreferenceGroup]) -> Observation:
    return Observation(
        per_token_logps=(),
        ref_per_token_logps=(),
        rewards=rewards,
        margins=pair_margins(rewards, groups),
        loss=apply_objective(list(rewards), (), groups, RewardModel()).loss,
        gradients=None,
    )


def budgets(largest: float, rms: float) -> dict[str, Budget]:
    return {
        statistic: Budget(value=value, factor=3.0, floor=0.0, noise=value, source="")
        for statistic, value in (("max", largest), ("rms", rms))
    }


@given(SIZES, st.floats(0.01, 30), st.floats(1e-6, 1), st.integers(0, 1000))
def test_errors_within_the_budgets_of_rewards_stay_within_those_that_follow(
    sizes: Sizes, spread: float, largest: float, seed: int
) -> None:
    groups, generator = groups_of(sizes), torch.Generator().manual_seed(seed)
    count = sum(map(sum, sizes))
    rewards = spread * torch.randn(count, generator=generator, dtype=torch.float64)
    errors = torch.rand(count, generator=generator, dtype=torch.float64) * 2 - 1
    errors = largest * torch.where(torch.rand(count, generator=generator) < 0.5, errors.sign(), errors)
    true, off = expected_of(rewards, groups), expected_of(rewards + errors, groups)
    found = reward_model_budgets(true, budgets(largest, float(errors.square().mean().sqrt())))  # type: ignore[arg-type]
    slack = 1e-9 * (1 + spread)
    assert float((off.margins - true.margins).abs().max()) <= found["margins"] + slack
    assert abs(float(off.loss - true.loss)) <= found["loss"] + slack


def test_one_reward_off_by_the_whole_rms_fills_the_budget_of_the_loss() -> None:
    """A pair whose rejected response leads by far has slope 1: nothing smaller would do."""
    groups = groups_of([(1, 1)])
    true = expected_of(torch.tensor([-50.0, 50.0], dtype=torch.float64), groups)
    off = expected_of(torch.tensor([-50.1, 50.1], dtype=torch.float64), groups)
    found = reward_model_budgets(true, budgets(0.1, 0.1))  # type: ignore[arg-type]
    assert float(off.loss - true.loss) == pytest.approx(0.2)
    assert found["margins"] == pytest.approx(0.2)
    assert found["loss"] == pytest.approx(0.2, rel=1e-2)


@given(SIZES, st.floats(0.01, 100), st.integers(0, 1000))
def test_rounding_in_float32_stays_within_its_bound(sizes: Sizes, spread: float, seed: int) -> None:
    groups = groups_of(sizes)
    rewards = spread * torch.randn(sum(map(sum, sizes)), generator=torch.Generator().manual_seed(seed))
    wide = expected_of(rewards.double(), groups)
    parts = torch.split(rewards, [size for pair in sizes for size in pair])
    losses = [-logsigmoid(p[:, None] - n).mean() for p, n in zip(parts[::2], parts[1::2], strict=True)]
    narrow = float(torch.stack(losses).mean())
    bound = loss_rounding(wide.margins, float(wide.loss), float(torch.finfo(torch.float32).eps))
    assert abs(narrow - float(wide.loss)) <= bound


def test_coefficients_move_as_their_noise_says(policy: Policy) -> None:
    """The relative change of d loss / d reward, by autograd, when a margin is off by so much."""
    groups, rewards = groups_of([(1, 1)]), torch.tensor([0.7, -0.4], dtype=torch.float64)
    rms = 1e-6
    noise = NoiseFloor(
        {("case", "oracle", quantity, ""): Noise(rms, rms, "eager") for quantity in ("rewards", "margins")},
        {("oracle", "rewards", ""): rms},
    )
    found = reward_coefficient_noise(
        "oracle", groups, expected_of(rewards, groups), case="case", noise=noise, policy=policy
    )

    def coefficient(margin: float) -> float:
        leaf = torch.tensor([margin, 0.0], dtype=torch.float64, requires_grad=True)
        apply_objective(list(leaf.unbind()), (), groups, RewardModel()).loss.backward()
        assert leaf.grad is not None
        return float(leaf.grad[0])

    moved = policy.small_sample.coefficient_sigmas * math.sqrt(2) * rms
    assert found == pytest.approx(abs(coefficient(1.1 + moved) / coefficient(1.1) - 1), rel=1e-4)
