"""The noise floor is the largest difference among harmless forms of the unpacked path."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from verify.comparison import Comparison, Quantity
from verify.noise import MEASURED_QUANTITIES, NoiseFloor, NoiseSample, measure_noise

Make = Callable[..., Comparison]


def sample(case: str, to_oracle: dict[str, list[Comparison]], between: dict[str, list[Comparison]]) -> NoiseSample:
    return NoiseSample(case, to_oracle, between)


def test_the_form_that_differs_most_counts_and_is_named(make_comparison: Make) -> None:
    """Largest and RMS each for themselves: they need not come from the same form."""
    forms = {
        "pairwise": [make_comparison("per_token_logps", 2e-6, max=9e-6)],
        "padded-left": [make_comparison("per_token_logps", 3e-6, max=4e-6)],
        "eager": [make_comparison("per_token_logps", 1e-6, max=5e-6)],
    }
    noise = measure_noise([sample("c", forms, {"eager against pairwise": [make_comparison("per_token_logps", 1e-7)]})])
    oracle = noise.by_case["c", "oracle", "per_token_logps", ""]
    assert (oracle.max, oracle.rms, oracle.source) == (9e-6, 3e-6, "padded-left")
    differential = noise.by_case["c", "differential", "per_token_logps", ""]
    assert (differential.rms, differential.source) == (1e-7, "eager against pairwise")


def test_over_all_cases_squares_are_averaged_by_the_number_of_values(make_comparison: Make) -> None:
    """3e-6 over 10 values and 1e-6 over 30: sqrt((10 * 9 + 30 * 1) / 40) = sqrt(3)."""
    samples = [
        sample(
            case,
            {"pairwise": [make_comparison("per_token_logps", rms, num_compared=count)]},
            {"eager against pairwise": [make_comparison("per_token_logps", 2 * rms, num_compared=count)]},
        )
        for case, rms, count in (("short", 3e-6, 10), ("long", 1e-6, 30))
    ]
    noise = measure_noise(samples)
    assert noise.pooled_rms["oracle", "per_token_logps", ""] == pytest.approx(math.sqrt(3) * 1e-6)
    assert noise.pooled_rms["differential", "per_token_logps", ""] == pytest.approx(2 * math.sqrt(3) * 1e-6)


def test_over_all_cases_one_form_counts_and_not_the_worst_form_of_each_case(make_comparison: Make) -> None:
    """Each form is pooled for itself. The worst of each case together would be noise that no form has: 4, not 3."""
    eager, left = (3.0, 1.0), (1.0, 4.0)
    samples = [
        sample(
            f"c{i}",
            {"eager": [make_comparison("margins", eager[i])], "left": [make_comparison("margins", left[i])]},
            {"eager against left": [make_comparison("margins", 1.0)]},
        )
        for i in range(2)
    ]
    assert measure_noise(samples).pooled_rms["oracle", "margins", ""] == pytest.approx(math.sqrt((1 + 16) / 2))


def test_every_lora_tensor_has_noise_of_its_own(make_comparison: Make) -> None:
    sizes = {"m.lora_A": 1e-6, "m.lora_B": 5e-6}
    gradients = [make_comparison("gradients", rms, part=part) for part, rms in sizes.items()]
    noise = measure_noise([sample("c", {"pairwise": gradients}, {"eager against pairwise": gradients})])
    assert noise.by_case["c", "oracle", "gradients", "m.lora_A"].rms == 1e-6
    assert noise.pooled_rms["differential", "gradients", "m.lora_B"] == pytest.approx(5e-6)


def test_what_follows_from_the_log_probs_has_no_noise_of_its_own(make_comparison: Make) -> None:
    quantities: list[Quantity] = ["per_token_logps", "ref_per_token_logps", "margins", "gradients", "rewards", "loss"]
    everything = [make_comparison(quantity, 1.0) for quantity in quantities]
    of_routers: tuple[Quantity, ...] = ("router_probs", "router_shares")
    everything += [replace(make_comparison("per_token_logps", 1.0), quantity=quantity) for quantity in of_routers]
    noise = measure_noise([sample("c", {"pairwise": everything}, {"eager against pairwise": everything})])
    assert {quantity for _, _, quantity, _ in noise.by_case} == set(MEASURED_QUANTITIES)
    assert not set(MEASURED_QUANTITIES) & {"rewards", "loss"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_noise_that_is_not_a_number_is_not_hidden_by_another_form(
    make_comparison: Make, value: float, position: int
) -> None:
    """``max(1.0, nan)`` is 1.0 in Python: a broken form would drop out of the floor in silence."""
    values = [1e-6, 2e-6, 3e-6]
    values[position] = value
    forms = {f"form{i}": [make_comparison("per_token_logps", rms)] for i, rms in enumerate(values)}
    noise = measure_noise([sample("c", forms, forms)])
    of_case = noise.by_case["c", "oracle", "per_token_logps", ""]
    for found in (of_case.max, of_case.rms, noise.pooled_rms["differential", "per_token_logps", ""]):
        assert not math.isfinite(found)


def test_no_case_and_no_variation_leave_no_floor(make_comparison: Make) -> None:
    only = {"pairwise": [make_comparison("per_token_logps", 1.0)]}
    with pytest.raises(ValueError, match="no cases: there is no noise to measure"):
        measure_noise([])
    with pytest.raises(ValueError, match="case c: no harmless variation of the unpacked path was measured"):
        measure_noise([sample("c", only, {})])
    assert isinstance(measure_noise([sample("c", only, only)]), NoiseFloor)
