"""Budgets against numbers worked out by hand, and against errors drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from verify.budget import Budget, direct_budget, sft_loss_budget
from verify.comparison import Quantity
from verify.groups import PreferenceGroup
from verify.noise import BudgetKind, Noise, NoiseFloor
from verify.objective import Preference, Sft
from verify.observation import Observation
from verify.preference_budget import coefficient_noise, loss_budget, margin_budgets, reward_budgets
from verify.tolerance import Policy, load_policy

EPS32 = 2.0**-23


def policy_with(*, oracle: float = 2.0, differential: float = 3.0, epsilons: float = 1.0) -> Policy:
    """Round numbers, so that a budget can be worked out by hand."""
    default = load_policy(None)
    small = {"standard_errors": 3.0, "max_sigmas": 4.0, "coefficient_sigmas": 5.0}
    return default.model_copy(
        update={
            "oracle": default.oracle.model_copy(update={"factor": oracle}),
            "differential": default.differential.model_copy(update={"factor": differential}),
            "small_sample": default.small_sample.model_copy(update=small),
            "floor": default.floor.model_copy(update={"epsilons": epsilons}),
        }
    )


def floor(kind: BudgetKind, *, own_max: float, own_rms: float, pooled: float) -> NoiseFloor:
    quantities: tuple[Quantity, ...] = ("per_token_logps", "ref_per_token_logps", "margins", "gradients")
    return NoiseFloor(
        {("c", kind, q, ""): Noise(own_max, own_rms, "eager") for q in quantities},
        {(kind, q, ""): pooled for q in quantities},
    )


def budget(noise: NoiseFloor, kind: BudgetKind = "oracle", **changes: Any) -> dict[Any, Budget]:
    settings: dict[str, Any] = {
        "case": "c",
        "num_values": 18,  # 1 + 3 / sqrt(2 * 18) = 1.5
        "size": {"max": 10.0, "rms": 2.0},
        "dtype_name": "float32",
        "policy": policy_with(),
    }
    return direct_budget(kind, "per_token_logps", "", noise=noise, **{**settings, **changes})


# Log-probs and gradients.


def test_a_case_with_more_noise_than_the_others_has_its_own_budget() -> None:
    found = budget(floor("oracle", own_max=50e-6, own_rms=9e-6, pooled=2e-6))
    assert found["max"].value == pytest.approx(2 * 50e-6 + 15 * EPS32)
    assert found["rms"].value == pytest.approx(2 * 9e-6 + 3 * EPS32)
    assert {b.source for b in found.values()} == {"eager"}


def test_a_case_right_by_luck_is_given_the_noise_of_all_cases_widened_for_its_few_values() -> None:
    """Pooled RMS 2e-6: four sigmas for the maximum, 1.5 times for the RMS of 18 values."""
    found = budget(floor("oracle", own_max=5e-6, own_rms=1e-6, pooled=2e-6))
    assert found["max"].value == pytest.approx(2 * 8e-6 + 15 * EPS32)
    assert found["rms"].value == pytest.approx(2 * 3e-6 + 3 * EPS32)
    assert {b.source for b in found.values()} == {"eager, pooled over the cases"}


def test_a_budget_says_what_it_is_made_of() -> None:
    found = budget(floor("oracle", own_max=50e-6, own_rms=9e-6, pooled=2e-6))["max"]
    assert (found.factor, found.noise, found.floor) == (2.0, 50e-6, 15 * EPS32)
    assert found.value == pytest.approx(found.factor * found.noise + found.floor)


def test_each_kind_of_budget_has_its_factor() -> None:
    oracle = budget(floor("oracle", own_max=1.0, own_rms=1.0, pooled=0.0), size={"max": 0.0, "rms": 0.0})
    differential = budget(
        floor("differential", own_max=1.0, own_rms=1.0, pooled=0.0), "differential", size={"max": 0.0, "rms": 0.0}
    )
    assert (oracle["rms"].value, differential["rms"].value) == (2.0, 3.0)


def test_fewer_values_scatter_more() -> None:
    noise = floor("oracle", own_max=0.0, own_rms=0.0, pooled=1.0)
    values = [budget(noise, num_values=n, policy=policy_with(epsilons=0))["rms"].value for n in (1, 2, 50, 5000)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(2 * (1 + 3 / math.sqrt(2)))
    assert values[-1] == pytest.approx(2 * 1.03)


@pytest.mark.parametrize(("dtype", "epsilon"), [("float64", 2.0**-52), ("float32", 2.0**-23), ("bfloat16", 2.0**-7)])
def test_without_noise_only_the_epsilon_of_the_dtype_is_left(dtype: str, epsilon: float) -> None:
    found = budget(floor("oracle", own_max=0.0, own_rms=0.0, pooled=0.0), dtype_name=dtype)
    assert (found["max"].value, found["rms"].value) == (15 * epsilon, 3 * epsilon)


def test_two_log_softmaxes_of_float32_lie_within_the_floor_of_each_other_and_of_float64() -> None:
    """One of PyTorch and one that is written out, of the same logits: neither is more right, and no form shows it."""
    logits = torch.randn(20_000, 257, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    one = logits.log_softmax(-1)[:, 0].double()
    two = (logits[:, 0] - (logits.amax(-1) + (logits - logits.amax(-1, keepdim=True)).exp().sum(-1).log())).double()
    true = logits.double().log_softmax(-1)[:, 0]
    size, no_noise = {"max": float(true.abs().max()), "rms": 1.0}, {"own_max": 0.0, "own_rms": 0.0, "pooled": 0.0}
    between = budget(floor("differential", **no_noise), "differential", num_values=20_000, size=size)["max"]
    to_oracle = budget(floor("oracle", **no_noise), "oracle", num_values=20_000, size=size)["max"]
    assert float((one - two).abs().max()) <= between.value < 3 * float((one - two).abs().max())
    assert float((two - true).abs().max()) <= to_oracle.value
    assert between.floor == pytest.approx(2 * to_oracle.floor)


def test_without_noise_and_without_a_floor_the_budget_is_zero() -> None:
    found = budget(floor("oracle", own_max=0.0, own_rms=0.0, pooled=0.0), policy=policy_with(epsilons=0))
    assert [b.value for b in found.values()] == [0.0, 0.0]


def test_the_largest_entry_of_a_gradient_is_given_room_for_its_size() -> None:
    """An entry 6 times the RMS of its tensor: 6 sigmas rather than 4. The RMS is not touched."""
    noise = floor("oracle", own_max=0.0, own_rms=0.0, pooled=1e-6)
    plain, peaked = budget(noise, peak=1.0), budget(noise, peak=6.0)
    assert peaked["max"].noise == pytest.approx(6e-6)
    assert plain["max"].noise == pytest.approx(4e-6)
    assert peaked["rms"] == plain["rms"]


def test_noise_shared_by_all_entries_is_added() -> None:
    noise = floor("oracle", own_max=0.0, own_rms=0.0, pooled=1e-6)
    found = budget(noise, peak=6.0, shared_noise=1e-5)
    assert found["rms"].noise == pytest.approx(1.5e-6 + 1e-5)
    assert found["max"].noise == pytest.approx(6e-6 + 6e-5)


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_noise_that_is_not_a_number_leaves_no_finite_budget(noise: float) -> None:
    found = budget(floor("oracle", own_max=noise, own_rms=noise, pooled=noise))
    assert not any(math.isfinite(b.value) for b in found.values())


# The coefficient d loss / d margin.


def observation(margins: list[float], logps: list[Tensor] | None = None, loss: float = 0.7) -> Observation:
    zeros = [torch.zeros(1, dtype=torch.float64)] * (2 * len(margins))
    return Observation(
        per_token_logps=tuple(logps or zeros),
        ref_per_token_logps=tuple(logps or zeros),
        rewards=torch.zeros(2 * len(margins), dtype=torch.float64),
        margins=torch.tensor(margins, dtype=torch.float64),
        loss=torch.tensor(loss, dtype=torch.float64),
        gradients=None,
    )


def groups_of(*lengths: tuple[int, int]) -> list[PreferenceGroup]:
    return [PreferenceGroup((1,), ((2,) * chosen,), ((3,) * rejected,)) for chosen, rejected in lengths]


def slope(margin: Tensor, smoothing: float) -> Tensor:
    """d loss / d margin by autograd."""
    leaf = margin.clone().requires_grad_()
    loss = -(1 - smoothing) * torch.nn.functional.logsigmoid(leaf) - smoothing * torch.nn.functional.logsigmoid(-leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("margin", [-3.0, -0.2, 0.0, 0.4, 1.5])
def test_the_noise_of_the_coefficient_is_what_a_shift_of_the_margin_does_to_it(margin: float, smoothing: float) -> None:
    """Margin noise 1e-4: |c(z + 1e-4) - c(z)| / |c(z)|, from the loss by autograd."""
    z = torch.tensor(margin, dtype=torch.float64)
    expected = abs(float((slope(z + 1e-4, smoothing) - slope(z, smoothing)) / slope(z, smoothing)))
    found = coefficient_noise(
        "oracle",
        groups_of((3, 4)),
        observation([margin]),
        Preference(beta=0.1, label_smoothing=smoothing),
        case="c",
        noise=floor("oracle", own_max=1e-4, own_rms=0.0, pooled=0.0),
        policy=policy_with(),
    )
    assert found == pytest.approx(expected, rel=2e-3)


def test_a_margin_right_by_luck_is_given_the_noise_of_the_sum_over_its_tokens() -> None:
    """RMS 2e-6 under policy and reference, 3 + 5 tokens, beta 0.5: five times 0.5 * sqrt(8 * 8e-12), times sigma(0)."""
    found = coefficient_noise(
        "oracle",
        groups_of((3, 5)),
        observation([0.0]),
        Preference(beta=0.5),
        case="c",
        noise=floor("oracle", own_max=1e-9, own_rms=2e-6, pooled=1e-6),
        policy=policy_with(),
    )
    assert found == pytest.approx(5 * 0.5 * math.sqrt(8 * 8e-12) * 0.5)


def test_the_pair_with_the_noisiest_coefficient_counts() -> None:
    """sigma(z) with z = 2 rather than z = -2, for the same noise of the margin."""
    found = coefficient_noise(
        "differential",
        groups_of((1, 1), (1, 1)),
        observation([-2.0, 2.0]),
        Preference(),
        case="c",
        noise=floor("differential", own_max=1e-5, own_rms=0.0, pooled=0.0),
        policy=policy_with(),
    )
    assert found == pytest.approx(1e-5 / (1 + math.exp(-2)))


@pytest.mark.parametrize(("margin", "expected"), [(-2000.0, 0.0), (-700.0, 0.0), (30.0, 1e-5), (2000.0, math.inf)])
def test_a_margin_of_any_size_can_be_budgeted(margin: float, expected: float) -> None:
    """Where d loss / d margin underflows to zero, nothing is left that a gradient could be compared by."""
    found = coefficient_noise(
        "oracle",
        groups_of((1, 1)),
        observation([margin]),
        Preference(beta=50.0),
        case="c",
        noise=floor("oracle", own_max=1e-5, own_rms=0.0, pooled=0.0),
        policy=policy_with(),
    )
    assert found == pytest.approx(expected)


# What follows from the log-probs: rewards, margins, loss.


def test_reward_budgets_by_hand() -> None:
    """Lengths 4 and 12 of 16 tokens, beta 0.5, RMS 1e-6 and 3e-6, log-probs of -1: pairwise sums of 2 and 4 levels."""
    logps = [-torch.ones(4, dtype=torch.float64), -torch.ones(12, dtype=torch.float64)]
    found = reward_budgets(
        groups_of((4, 12)), observation([0.0], logps), Preference(beta=0.5), logps_rms=1e-6, ref_logps_rms=3e-6
    )
    assert found == pytest.approx(
        [0.5 * (8 * 4e-6 + 2 * EPS32 * 8), 0.5 * (math.sqrt(192) * 4e-6 + 4 * EPS32 * 24)]
    )  # fmt: skip
    assert margin_budgets(found, groups_of((4, 12))) == [[found[0] + found[1]]]


def test_the_loss_is_budgeted_by_the_mean_of_its_margins_and_its_own_rounding() -> None:
    groups = groups_of((1, 1), (1, 1))
    expected = observation([0.0, 0.0], [-torch.ones(1, dtype=torch.float64)] * 4, loss=0.7)
    found = loss_budget(Preference(), groups, expected, rewards=[4e-7, 6e-7, 1e-6, 2e-6], logps_rms=1.0)
    assert found == pytest.approx(2e-6 + EPS32 * 0.7)


def test_a_group_of_many_pairs_weighs_no_more_in_the_loss_than_one_of_one_pair() -> None:
    """Means 2e-6 and 8e-6 of the two groups; a mean over all four pairs would be 3.5e-6."""
    groups = [PreferenceGroup((1,), ((2,),), ((3,), (4,), (5,))), *groups_of((1, 1))]
    expected = observation([0.0] * 4, [-torch.ones(1, dtype=torch.float64)] * 6)
    rewards = [5e-7, 5e-7, 1.5e-6, 2.5e-6, 3e-6, 5e-6]
    assert loss_budget(Preference(), groups, expected, rewards=rewards, logps_rms=1.0) == pytest.approx(
        5e-6 + EPS32 * 0.7
    )


lengths = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=3)
sizes = st.floats(1e-8, 0.5)


@given(st.data(), lengths, sizes, sizes, st.floats(0.01, 5.0), st.floats(0.0, 0.45))
def test_no_errors_within_the_log_prob_budget_leave_the_budgets_that_follow_from_it(
    data: st.DataObject,
    layout: list[tuple[int, int]],
    rms: float,
    ref_rms: float,
    beta: float,
    smoothing: float,
) -> None:
    """Errors of any direction whose RMS over the case is at most the budget."""
    groups, objective = groups_of(*layout), Preference(beta=beta, label_smoothing=smoothing)
    counts = [count for pair in layout for count in pair]

    def errors(size: float) -> list[Tensor]:
        raw = torch.tensor(data.draw(st.lists(st.floats(-1, 1), min_size=sum(counts), max_size=sum(counts))))
        raw = raw.double()
        norm = float(raw.square().mean().sqrt())
        share = data.draw(st.floats(0.0, 1.0))
        return list(torch.split(raw * (share * size / norm) if norm > 1e-12 else raw * 0, counts))

    policy_errors, ref_errors = errors(rms), errors(ref_rms)
    margins = torch.tensor(data.draw(st.lists(st.floats(-4, 4), min_size=len(groups), max_size=len(groups)))).double()
    reward_errors = [beta * float(p.sum() - r.sum()) for p, r in zip(policy_errors, ref_errors, strict=True)]
    margin_errors = [c - r for c, r in zip(reward_errors[0::2], reward_errors[1::2], strict=True)]

    def loss_of(z: Tensor) -> float:
        terms = (1 - smoothing) * torch.nn.functional.logsigmoid(z) + smoothing * torch.nn.functional.logsigmoid(-z)
        return -float(terms.mean())

    zeros = [torch.zeros(count, dtype=torch.float64) for count in counts]
    rewards = reward_budgets(
        groups, observation(margins.tolist(), zeros), objective, logps_rms=rms, ref_logps_rms=ref_rms
    )
    room = 1 + 1e-9  # of this test's own arithmetic
    assert all(abs(error) <= bound * room for error, bound in zip(reward_errors, rewards, strict=True))
    bounds = margin_budgets(rewards, groups)
    assert all(abs(error) <= bound * room for error, [bound] in zip(margin_errors, bounds, strict=True))
    loss_error = abs(loss_of(margins + torch.tensor(margin_errors).double()) - loss_of(margins))
    expected = observation(margins.tolist(), zeros, loss=loss_of(margins))
    assert loss_error <= loss_budget(objective, groups, expected, rewards=rewards, logps_rms=rms) * room + 1e-12


@given(lengths, st.integers(0, 5), sizes)
def test_the_reward_budget_is_no_larger_than_need_be(layout: list[tuple[int, int]], chosen: int, rms: float) -> None:
    """Equal errors on one completion and none elsewhere use all of it, to rounding."""
    counts = [count for pair in layout for count in pair]
    index = chosen % len(counts)
    total, own = sum(counts), counts[index]
    error = rms * math.sqrt(total / own)  # on each token of this completion: RMS over the case is then exactly rms
    zeros = [torch.zeros(count, dtype=torch.float64) for count in counts]
    groups = groups_of(*layout)
    expected = observation([0.0] * len(groups), zeros)
    found = reward_budgets(groups, expected, Preference(beta=1.0), logps_rms=rms, ref_logps_rms=0.0)
    assert found[index] == pytest.approx(own * error)


# Groups of any number of responses, and SFT.


def group_of(positives: Sequence[int], negatives: Sequence[int]) -> PreferenceGroup:
    return PreferenceGroup((1,), tuple((2,) * n for n in positives), tuple((3,) * n for n in negatives))


def test_margins_of_a_group_are_budgeted_positive_by_positive_and_negative_by_negative() -> None:
    groups = [group_of([1, 1], [1, 1, 1]), group_of([1], [1])]
    assert margin_budgets([1, 2, 10, 20, 30, 100, 200], groups) == [[11, 21, 31, 12, 22, 32], [300]]


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.2]))
def test_coefficient_noise_of_a_group_is_that_of_finite_differences_in_its_margins(
    data: st.DataObject, num_positives: int, num_negatives: int, smoothing: float
) -> None:
    """The witness's own margin error moves every margin by as much; each completion's slope is a sum over its pairs."""
    size, step = num_positives * num_negatives, 1e-4
    z = torch.tensor(data.draw(st.lists(st.floats(-1.0, 1.0), min_size=size, max_size=size))).double()
    table = z.view(num_positives, num_negatives)

    def slopes(margins: Tensor) -> Tensor:
        rewards = torch.zeros(num_positives + num_negatives, dtype=torch.float64, requires_grad=True)
        shifted = margins + rewards[:num_positives, None] - rewards[None, num_positives:]
        loss = -((1 - smoothing) * logsigmoid(shifted) + smoothing * logsigmoid(-shifted)).mean()
        return torch.autograd.grad(loss, rewards)[0]

    moved = (slopes(table + step) - slopes(table - step)) / (2 * step)
    # Errors of opposite sign in the pairs of one completion cannot add up to more than all of one sign do.
    bound = torch.sigmoid(table) * torch.sigmoid(-table) / size
    largest = torch.cat((bound.sum(1), bound.sum(0)))
    assert bool((moved.abs() <= largest + 1e-9).all())
    found = coefficient_noise(
        "oracle",
        [group_of([1] * num_positives, [1] * num_negatives)],
        observation(z.tolist()),
        Preference(beta=0.1, label_smoothing=smoothing),
        case="c",
        noise=floor("oracle", own_max=1e-5, own_rms=0.0, pooled=0.0),
        policy=policy_with(),
    )
    assert found == pytest.approx(1e-5 * float(largest.norm() / slopes(table).norm()), rel=1e-6)


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=4), sizes, st.sampled_from(["token", "example"]))
def test_no_errors_within_the_log_prob_budget_leave_the_budget_of_an_sft_loss(
    data: st.DataObject, counts: list[int], rms: float, mean: Literal["token", "example"]
) -> None:
    raw = torch.tensor(data.draw(st.lists(st.floats(-1, 1), min_size=sum(counts), max_size=sum(counts)))).double()
    norm = float(raw.square().mean().sqrt())
    errors = torch.split(raw * (rms / norm) if norm > 1e-12 else raw * 0, counts)
    zeros = [torch.zeros(count, dtype=torch.float64) for count in counts]
    moved = float(torch.cat(errors).mean()) if mean == "token" else sum(float(e.mean()) for e in errors) / len(counts)
    expected = observation([], zeros)
    assert abs(moved) <= sft_loss_budget(Sft(mean=mean), expected, logps_rms=rms) * (1 + 1e-9)


def test_the_sft_budgets_of_the_two_means_differ_as_their_weights_do() -> None:
    """Two completions of 1 and 3 tokens: equal weights, or 1/2 and three times 1/6, whose squares sum to 1/3."""
    expected = observation([], [torch.zeros(1, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)])
    assert sft_loss_budget(Sft(mean="token"), expected, logps_rms=1e-3) == pytest.approx(1e-3)
    assert sft_loss_budget(Sft(mean="example"), expected, logps_rms=1e-3) == pytest.approx(1e-3 * math.sqrt(4 / 3))
