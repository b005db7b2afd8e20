"""Measured differences held against budgets: what is not a number fails, and what cannot be budgeted is not passed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verify.comparison import compare_observations
from verify.groups import PreferenceGroup
from verify.judgement import Judgement, JudgingContext, judge, ratio_of
from verify.noise import BudgetKind, Noise, NoiseFloor
from verify.objective import Preference
from verify.observation import Observation
from verify.tolerance import Policy
from verify.verdict import Verdict

GROUPS = (PreferenceGroup((1, 2), ((3, 4, 5),), ((6,),)),)
NAMES = ("a.lora_A", "b.lora_A", "c.lora_A")
MEASURED = ("per_token_logps", "ref_per_token_logps", "margins")
ORDER = [
    ("per_token_logps", "max"), ("per_token_logps", "rms"),
    ("ref_per_token_logps", "max"), ("ref_per_token_logps", "rms"),
    ("rewards", "max"), ("margins", "max"), ("loss", "max"),
    ("gradients", "max"), ("gradients", "rms"),
]  # fmt: skip

Judge = Callable[..., dict[tuple[str, str], Judgement]]


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def expected() -> Observation:
    logps = (tensor(-1, -2, -3), tensor(-4))
    return Observation(
        per_token_logps=logps,
        ref_per_token_logps=logps,
        rewards=tensor(0.2, 0.1),
        margins=tensor(0.1),
        loss=tensor(0.64)[0],
        gradients={name: tensor(1, -1, 1, -1).reshape(2, 2) for name in NAMES},
    )


def noise_floor(kind: BudgetKind, size: float, gradients: float | None = None) -> NoiseFloor:
    own = {(q, ""): size for q in MEASURED}
    own |= {("gradients", name): size if gradients is None else gradients for name in NAMES}
    return NoiseFloor(
        {("c", kind, q, part): Noise(value, value, "eager") for (q, part), value in own.items()},  # type: ignore[misc]
        {(kind, q, part): value for (q, part), value in own.items()},  # type: ignore[misc]
    )


@pytest.fixture
def judged(expected: Observation, policy: Policy) -> Judge:
    """Judgements by quantity and statistic, under noise of one size; without a floor the budget is the noise alone."""

    def run(
        actual: Observation,
        noise: float | NoiseFloor = 1e-6,
        *,
        kind: BudgetKind = "oracle",
        epsilons: float = 0.0,
        absent: str = "",
    ) -> dict[tuple[str, str], Judgement]:
        exact = policy.model_copy(update={"floor": policy.floor.model_copy(update={"epsilons": epsilons})})
        context = JudgingContext(
            case="c",
            groups=GROUPS,
            dtype_name="float32",
            objective=Preference(),
            policy=exact,
            noise=noise if isinstance(noise, NoiseFloor) else noise_floor(kind, noise),
        )
        comparisons = compare_observations(actual, expected, GROUPS)
        found = judge(comparisons, kind, expected, context, gradients_absent_because=absent)
        assert [(j.quantity, j.statistic) for j in found] == ORDER
        assert {j.kind for j in found} == {kind}
        return {(j.quantity, j.statistic): j for j in found}

    return run


def with_logp(observation: Observation, value: float) -> Observation:
    """The second token of the chosen response."""
    (first, second) = observation.per_token_logps
    first = first.clone()
    first[1] = value
    return replace(observation, per_token_logps=(first, second))


def with_gradient(observation: Observation, **factors: float) -> Observation:
    assert observation.gradients is not None
    changed = {f"{name}.lora_A": observation.gradients[f"{name}.lora_A"] * factor for name, factor in factors.items()}
    return replace(observation, gradients={**observation.gradients, **changed})


@pytest.mark.parametrize("kind", ["oracle", "differential"])
def test_equal_observations_pass_in_every_quantity(judged: Judge, expected: Observation, kind: BudgetKind) -> None:
    for judgement in judged(expected, kind=kind).values():
        assert (judgement.verdict, judgement.reason, judgement.measured) == (Verdict.PASS, "", 0.0)
        assert judgement.ratio == 0.0
        assert judgement.num_compared > 0


def test_a_budget_of_zero_passes_what_is_exact_and_nothing_else(judged: Judge, expected: Observation) -> None:
    exact = judged(expected, 0.0)
    for key in (("per_token_logps", "max"), ("per_token_logps", "rms"), ("gradients", "max")):
        assert exact[key].budget is not None
        assert exact[key].budget.value == 0.0  # type: ignore[union-attr]
        assert exact[key].verdict is Verdict.PASS
    off = judged(with_logp(expected, math.nextafter(-2.0, 0.0)), 0.0)
    assert {off["per_token_logps", s].verdict for s in ("max", "rms")} == {Verdict.FAIL}
    assert off["per_token_logps", "max"].ratio == math.inf
    assert off["ref_per_token_logps", "max"].verdict is Verdict.PASS


def test_a_difference_just_within_the_budget_passes_and_just_beyond_fails(judged: Judge, expected: Observation) -> None:
    bound = judged(expected)["per_token_logps", "max"].budget
    assert bound is not None
    for factor, verdict in ((0.999, Verdict.PASS), (1.001, Verdict.FAIL)):
        found = judged(with_logp(expected, -2.0 + factor * bound.value))["per_token_logps", "max"]
        assert found.verdict is verdict
        assert found.ratio == pytest.approx(factor, rel=1e-4)


def test_a_drift_below_the_largest_error_is_caught_by_the_rms(judged: Judge, expected: Observation) -> None:
    """The same small error on every token: no maximum is out of line, the RMS is."""
    bounds = judged(expected)
    largest, rms = (bounds["per_token_logps", s].budget for s in ("max", "rms"))
    assert largest is not None
    assert rms is not None
    assert largest.value > 1.2 * rms.value
    drift = 1.1 * rms.value
    found = judged(replace(expected, per_token_logps=tuple(logp + drift for logp in expected.per_token_logps)))
    assert found["per_token_logps", "max"].verdict is Verdict.PASS
    assert found["per_token_logps", "rms"].verdict is Verdict.FAIL
    assert found["per_token_logps", "rms"].signed_mean == pytest.approx(drift)


def test_a_reason_says_how_far_how_far_it_may_be_and_where(judged: Judge, expected: Observation) -> None:
    reason = judged(with_logp(expected, -1.0))["per_token_logps", "max"].reason
    assert reason.startswith("per_token_logps: max distance to the oracle 1, budget ")
    assert reason.endswith(" x); worst at group 0, chosen, token 1, predicted from its token 0")
    reason = judged(with_logp(expected, -1.0), kind="differential")["per_token_logps", "rms"].reason
    assert reason.startswith("per_token_logps: rms distance to the unpacked path 0.5, budget ")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e100, math.inf, math.nan])
def test_what_is_not_a_number_fails_whatever_the_noise(
    judged: Judge, expected: Observation, value: float, noise: float
) -> None:
    found = judged(with_logp(expected, value), noise)
    for statistic in ("max", "rms"):
        judgement = found["per_token_logps", statistic]
        assert judgement.verdict is Verdict.FAIL
        assert judgement.ratio == math.inf
        assert judgement.reason == (
            f"per_token_logps: {value} at group 0, chosen, token 1, predicted from its token 0 (expected -2)"
        )


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_without_a_noise_floor_nothing_is_passed(judged: Judge, expected: Observation, noise: float) -> None:
    """An infinite budget would pass everything, one that is not a number would fail what is exact."""
    for (quantity, _), judgement in judged(expected, noise).items():
        assert judgement.verdict is Verdict.INCONCLUSIVE, quantity
        assert "there is no budget" in judgement.reason


def test_rewards_margins_and_loss_are_bounded_by_the_log_probs(judged: Judge, expected: Observation) -> None:
    """RMS budget b of 4 tokens: a reward of 3 of them is within beta sqrt(3 * 4) 2 b, a margin within both rewards."""
    found = judged(expected)
    logps = found["per_token_logps", "rms"].budget
    assert logps is not None
    eps32 = 2.0**-23
    chosen = 0.1 * (math.sqrt(12) * 2 * logps.value + 2 * eps32 * 12)
    rejected = 0.1 * (math.sqrt(4) * 2 * logps.value + 1 * eps32 * 8)
    bounds = {"rewards": chosen, "margins": chosen + rejected, "loss": chosen + rejected + eps32 * 0.64}
    for quantity, bound in bounds.items():
        budget = found[quantity, "max"].budget
        assert budget is not None
        assert budget.value == pytest.approx(bound)
        assert budget.source == "from the log-prob budgets"
    off = judged(replace(expected, margins=expected.margins + 2 * bounds["margins"]))
    assert off["margins", "max"].verdict is Verdict.FAIL
    assert off["margins", "max"].reason.endswith("worst at group 0")
    assert off["rewards", "max"].verdict is Verdict.PASS


def test_the_worst_lora_tensor_stands_for_all(judged: Judge, expected: Observation) -> None:
    found = judged(with_gradient(expected, a=1.001, b=1.5, c=1.0))
    for statistic in ("max", "rms"):
        judgement = found["gradients", statistic]
        assert judgement.verdict is Verdict.FAIL
        assert judgement.measured == pytest.approx(0.5)
        assert judgement.worst[0].where.startswith("b.lora_A[")
        assert judgement.reason.endswith("(2 of 3 tensors)")
        assert judgement.num_compared == 12


def test_the_worst_tensor_is_the_one_furthest_beyond_its_own_budget(judged: Judge, expected: Observation) -> None:
    """A noisy tensor may differ more in absolute terms and yet be within what it is allowed."""
    quiet = noise_floor("oracle", 1e-6)
    by_case = {**quiet.by_case, ("c", "oracle", "gradients", "b.lora_A"): Noise(1.0, 1.0, "eager")}
    noise = NoiseFloor(by_case, quiet.pooled_rms)
    judgement = judged(with_gradient(expected, a=1.001, b=1.5), noise)["gradients", "rms"]
    assert judgement.worst[0].where.startswith("a.lora_A[")
    assert judgement.reason.endswith("(1 of 3 tensors)")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_one_tensor_that_is_not_a_number_is_never_outvoted(judged: Judge, expected: Observation, name: str) -> None:
    for statistic in ("max", "rms"):
        judgement = judged(with_gradient(expected, **{name: math.nan}))["gradients", statistic]
        assert judgement.verdict is Verdict.FAIL
        assert f"nan at {name}.lora_A[0, 0]" in judgement.reason
        assert judgement.reason.endswith("(1 of 3 tensors)")


def test_one_tensor_without_a_budget_is_not_outvoted_by_passes_and_not_stronger_than_a_failure(
    judged: Judge, expected: Observation
) -> None:
    quiet = noise_floor("oracle", 1e-6)
    by_case = {**quiet.by_case, ("c", "oracle", "gradients", "b.lora_A"): Noise(math.inf, math.inf, "eager")}
    noise = NoiseFloor(by_case, quiet.pooled_rms)
    assert judged(expected, noise)["gradients", "rms"].verdict is Verdict.INCONCLUSIVE
    assert judged(with_gradient(expected, a=2.0), noise)["gradients", "rms"].verdict is Verdict.FAIL


def test_an_expected_gradient_of_zero_is_no_scale_to_pass_by(
    judged: Judge, expected: Observation, policy: Policy
) -> None:
    assert expected.gradients is not None
    zero = replace(expected, gradients={name: torch.zeros(2, 2, dtype=torch.float64) for name in NAMES})
    context = JudgingContext(
        case="c", groups=GROUPS, dtype_name="float32", objective=Preference(), policy=policy,
        noise=noise_floor("oracle", 1e-6),
    )  # fmt: skip
    comparisons = compare_observations(expected, zero, GROUPS)
    found = judge(comparisons, "oracle", zero, context, gradients_absent_because="")
    assert [j.verdict for j in found if j.quantity == "gradients"] == [Verdict.FAIL, Verdict.FAIL]


def test_gradients_that_are_absent_are_not_applicable_and_not_counted(judged: Judge, expected: Observation) -> None:
    without = replace(expected, gradients=None, gradients_absent_because="no backward pass")
    found = judged(without, absent="no backward pass")
    for statistic in ("max", "rms"):
        judgement = found["gradients", statistic]
        assert (judgement.verdict, judgement.reason) == (Verdict.NOT_APPLICABLE, "no backward pass")
        assert (judgement.num_compared, judgement.measured, judgement.budget) == (0, None, None)
        assert math.isnan(judgement.ratio)


def test_no_comparison_is_nothing_to_judge(expected: Observation, policy: Policy) -> None:
    context: Any = JudgingContext(
        case="c", groups=GROUPS, dtype_name="float32", objective=Preference(), policy=policy,
        noise=noise_floor("oracle", 0.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="case c: nothing was compared"):
        judge((), "oracle", expected, context, gradients_absent_because="")


@given(st.floats(min_value=0) | st.just(math.nan), st.floats(min_value=0) | st.just(math.nan))
def test_a_ratio_is_at_most_one_only_where_the_budget_holds(measured: float, budget: float) -> None:
    ratio = ratio_of(measured, budget)
    assert not math.isnan(ratio)
    if ratio < 1:
        assert measured <= budget
    if not (math.isfinite(measured) and math.isfinite(budget)):
        assert ratio == math.inf


@pytest.mark.parametrize(
    ("length", "nats", "dtype_name", "verdict"),
    [
        (500, 12.0, "float32", Verdict.PASS),  # 6,000 nats in float32: an epsilon of them is 7e-4
        (500, 12.0, "float64", Verdict.FAIL),
        (20, 2.0, "float32", Verdict.FAIL),
    ],
)
def test_gradients_that_are_off_by_the_rounding_of_long_sums_pass(
    length: int, nats: float, dtype_name: str, verdict: Verdict, policy: Policy
) -> None:
    """All by one factor of 6e-5, while every log-prob is right: what the sum of 500 log-probs leaves in float32."""
    logps = (torch.full((length,), -nats).double(),) * 2
    groups = (PreferenceGroup((1, 2), ((3,) * length,), ((6,) * length,)),)
    expected = Observation(
        per_token_logps=logps,
        ref_per_token_logps=logps,
        rewards=tensor(0.0, 0.0),
        margins=tensor(0.0),
        loss=tensor(math.log(2))[0],
        gradients={name: tensor(1, -1, 1, -1).reshape(2, 2) for name in NAMES},
    )
    context = JudgingContext(
        case="c",
        groups=groups,
        dtype_name=dtype_name,
        objective=Preference(),
        policy=policy,
        noise=noise_floor("oracle", 1e-7),
    )
    actual = with_gradient(expected, a=1 + 6e-5, b=1 + 6e-5, c=1 + 6e-5)
    found = judge(
        compare_observations(actual, expected, groups), "oracle", expected, context, gradients_absent_because=""
    )
    assert {j.verdict for j in found if j.quantity == "gradients"} == {verdict}
    assert {j.verdict for j in found if j.quantity != "gradients"} == {Verdict.PASS}
