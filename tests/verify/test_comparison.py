"""The comparison as a product: first the corners in which comparators of admired code bases compared nothing.

F1 to F10 are such corners: a result dropped, an empty result that is true, the shorter side deciding, a metric that
could not be computed, extra keys, parameters paired by unguarded zip, NaN on both sides, NaN below every tolerance.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verify.comparison import (
    QUANTITIES,
    Comparison,
    Place,
    StructureError,
    compare_logps,
    compare_observations,
    gradient_sizes,
)
from verify.groups import PreferenceGroup
from verify.observation import Observation
from verify.router_balance import RouterBalance

NAN, INF = math.nan, math.inf
GROUPS = (
    PreferenceGroup((1, 2), ((3, 4, 5),), ((6, 7),)),
    PreferenceGroup((8,), ((9,),), ((10, 11, 12, 13),)),
)
LENGTHS = (3, 2, 1, 4)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def observation() -> Observation:
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return Observation(
        per_token_logps=tuple(draw(n) for n in LENGTHS),
        ref_per_token_logps=tuple(draw(n) for n in LENGTHS),
        rewards=draw(4),
        margins=draw(2),
        loss=draw(1).reshape(()),
        gradients={"layer.lora_A": draw(2, 3), "layer.lora_B": draw(4, 2)},
    )


def compare(actual: Observation, expected: Observation) -> dict[str, Comparison]:
    return {c.part or c.quantity: c for c in compare_observations(actual, expected, GROUPS)}


def with_logp(observation: Observation, completion: int, token: int, value: float) -> Observation:
    logps = [logp.clone() for logp in observation.per_token_logps]
    logps[completion][token] = value
    return replace(observation, per_token_logps=tuple(logps))


def with_gradient(observation: Observation, name: str, gradient: Tensor) -> Observation:
    assert observation.gradients is not None
    return replace(observation, gradients={**observation.gradients, name: gradient})


# The corners in which a comparator passes without having compared.


def test_equal_observations_are_at_distance_zero_in_every_quantity_and_the_values_are_counted(
    observation: Observation,
) -> None:
    shares, probs = torch.tensor([[1.0, 0.5, 0.5], [0.4, 0.3, 0.3]], dtype=torch.float64)
    observation = replace(observation, balance=RouterBalance(shares, probs))
    comparisons = compare_observations(observation, observation, GROUPS)
    assert {c.quantity for c in comparisons} == set(QUANTITIES)
    assert all((c.max, c.rms, c.signed_mean, c.non_finite) == (0.0, 0.0, 0.0, None) for c in comparisons)
    assert [c.num_compared for c in comparisons] == [10, 10, 3, 3, 4, 2, 1, 6, 8]


def test_a_comparison_has_no_opinion() -> None:
    """F1, F2: whoever wants a verdict has to hold the numbers against a budget."""
    names = {field.name for field in fields(Comparison)}
    assert not names & {"ok", "passed", "verdict", "tolerance", "threshold", "budget"}


def test_every_quantity_is_looked_at(observation: Observation) -> None:
    """F1: a difference of 1 anywhere shows as a difference of 1 there, and nowhere else."""
    first, *others = observation.ref_per_token_logps
    shifted: dict[str, Observation] = {
        "per_token_logps": with_logp(observation, 3, 2, float(observation.per_token_logps[3][2]) + 1),
        "ref_per_token_logps": replace(observation, ref_per_token_logps=(first + 1, *others)),
        "rewards": replace(observation, rewards=observation.rewards + vector(0, 0, 1, 0)),
        "margins": replace(observation, margins=observation.margins + vector(0, 1)),
        "loss": replace(observation, loss=observation.loss + 1),
    }
    for name, actual in shifted.items():
        distances = {key: c.max for key, c in compare(actual, observation).items()}
        assert distances.pop(name) == pytest.approx(1.0)
        assert set(distances.values()) == {0.0}


def test_empty_vectors_are_refused(observation: Observation) -> None:
    """F2: a comparison of nothing is not a small difference."""
    empty = replace(observation, per_token_logps=(), ref_per_token_logps=(), rewards=vector(), margins=vector())
    with pytest.raises(StructureError, match="per_token_logps: empty, nothing would be compared"):
        compare_observations(empty, empty, ())


def test_an_empty_gradient_tensor_is_refused(observation: Observation) -> None:
    empty = with_gradient(observation, "layer.lora_A", torch.zeros(0, 3, dtype=torch.float64))
    with pytest.raises(StructureError, match=r"gradient of layer\.lora_A: empty"):
        compare_observations(empty, empty, GROUPS)


def test_no_expected_gradients_at_all_are_refused(observation: Observation) -> None:
    for expected in (replace(observation, gradients={}), replace(observation, gradients=None)):
        with pytest.raises(StructureError, match="expected gradients are missing or empty"):
            compare_observations(observation, expected, GROUPS)
    empty = replace(observation, gradients={})
    with pytest.raises(StructureError, match="expected gradients are missing or empty"):
        compare_observations(empty, empty, GROUPS)


@pytest.mark.parametrize("quantity", ["per_token_logps", "ref_per_token_logps"])
@pytest.mark.parametrize("shorter", ["actual", "expected"])
def test_the_shorter_side_does_not_decide_how_much_is_compared(
    observation: Observation, quantity: str, shorter: str
) -> None:
    """F3: one completion less on either side."""
    cut = replace(observation, **{quantity: getattr(observation, quantity)[:-1]})
    sides = (cut, observation) if shorter == "actual" else (observation, cut)
    with pytest.raises(StructureError, match=rf"^{quantity}: shapes .*; expected"):
        compare_observations(*sides, GROUPS)


@pytest.mark.parametrize("quantity", ["rewards", "margins"])
@pytest.mark.parametrize("shorter", ["actual", "expected"])
def test_a_shorter_vector_is_refused_on_either_side(observation: Observation, quantity: str, shorter: str) -> None:
    cut = replace(observation, **{quantity: getattr(observation, quantity)[:-1]})
    sides = (cut, observation) if shorter == "actual" else (observation, cut)
    with pytest.raises(StructureError, match=rf"^{quantity}: shapes"):
        compare_observations(*sides, GROUPS)


def test_both_sides_short_of_the_case_are_refused(observation: Observation) -> None:
    """F3: equally short sides agree with each other, not with the case."""
    for quantity in ("per_token_logps", "rewards", "margins"):
        cut = replace(observation, **{quantity: getattr(observation, quantity)[:-1]})
        with pytest.raises(StructureError, match=rf"{quantity}: \d+ values for \d+ places"):
            compare_observations(cut, cut, GROUPS)


def test_tokens_moved_from_one_completion_to_another_are_refused(observation: Observation) -> None:
    """As many values in all, in other completions."""
    values = torch.cat(observation.per_token_logps)
    moved = replace(observation, per_token_logps=tuple(torch.split(values, [2, 3, 1, 4])))
    with pytest.raises(StructureError, match="per_token_logps: shapes"):
        compare_observations(moved, observation, GROUPS)


def test_a_value_that_would_broadcast_is_refused(observation: Observation) -> None:
    with pytest.raises(StructureError, match="margins: shapes"):
        compare_observations(replace(observation, margins=vector(0.5)), observation, GROUPS)
    with pytest.raises(StructureError, match=r"gradient of layer\.lora_A: shape \(1, 3\); expected \(2, 3\)"):
        compare_observations(
            with_gradient(observation, "layer.lora_A", torch.zeros(1, 3, dtype=torch.float64)), observation, GROUPS
        )


def test_a_transposed_gradient_is_refused(observation: Observation) -> None:
    assert observation.gradients is not None
    transposed = with_gradient(observation, "layer.lora_A", observation.gradients["layer.lora_A"].T)
    with pytest.raises(StructureError, match=r"shape \(3, 2\); expected \(2, 3\)"):
        compare_observations(transposed, observation, GROUPS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["layer.lora_A"], r"missing layer\.lora_B \(1\)"),
        (["layer.lora_A", "layer.lora_B", "head.lora_A"], r"unexpected head\.lora_A \(1\)"),
        (["layer.lora_A", "head.lora_A"], r"missing layer\.lora_B \(1\); unexpected head\.lora_A \(1\)"),
        ([], r"missing layer\.lora_A, layer\.lora_B \(2\)"),
    ],
    ids=["missing", "extra", "renamed", "none"],
)
def test_gradients_of_other_tensors_are_refused(observation: Observation, names: list[str], message: str) -> None:
    """F5, F7: a missing and an extra tensor are found, whatever the other ones hold."""
    assert observation.gradients is not None
    other = torch.zeros(2, 2, dtype=torch.float64)
    actual = replace(observation, gradients={name: observation.gradients.get(name, other) for name in names})
    with pytest.raises(StructureError, match=message):
        compare_observations(actual, observation, GROUPS)


def test_gradients_may_be_absent_only_with_a_reason(observation: Observation) -> None:
    without = replace(observation, gradients=None)
    with pytest.raises(StructureError, match="without a reason"):
        compare_observations(without, observation, GROUPS)
    excused = replace(without, gradients_absent_because="no backward pass here")
    assert not [c for c in compare_observations(excused, observation, GROUPS) if c.quantity == "gradients"]


def test_gradients_are_paired_by_name_and_not_by_order(observation: Observation) -> None:
    assert observation.gradients is not None
    turned = replace(observation, gradients=dict(reversed(list(observation.gradients.items()))))
    assert all(c.max == 0 for c in compare_observations(turned, observation, GROUPS))


def test_nan_on_both_sides_is_not_agreement(observation: Observation) -> None:
    """F8, F10: an expectation that is not a number cannot be met."""
    both = with_logp(observation, 0, 1, NAN)
    with pytest.raises(StructureError, match="per_token_logps: the expected value itself is not finite"):
        compare_observations(both, both, GROUPS)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_non_finite_expectation_is_refused_in_every_quantity(observation: Observation, value: float) -> None:
    refs = (vector(0, value, 0), *observation.ref_per_token_logps[1:])
    gradient = torch.full((4, 2), value, dtype=torch.float64)
    broken: dict[str, Observation] = {
        "per_token_logps": with_logp(observation, 2, 0, value),
        "ref_per_token_logps": replace(observation, ref_per_token_logps=refs),
        "rewards": replace(observation, rewards=vector(0, 0, value, 0)),
        "margins": replace(observation, margins=vector(value, 0)),
        "loss": replace(observation, loss=vector(value)[0]),
        "gradient of layer.lora_B": with_gradient(observation, "layer.lora_B", gradient),
    }
    for name, expected in broken.items():
        with pytest.raises(StructureError, match=f"{name}: the expected value itself is not finite"):
            compare_observations(observation, expected, GROUPS)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_non_finite_actual_value_is_named_and_is_never_a_small_difference(
    observation: Observation, value: float
) -> None:
    """F9: the maximum and the mean of NaN exceed no bound, so the place is kept apart from the numbers."""
    comparison = compare(with_logp(observation, 3, 1, value), observation)["per_token_logps"]
    assert comparison.non_finite is not None
    assert comparison.non_finite.where == "group 1, rejected, token 1, predicted from its token 0"
    assert not comparison.max <= 1e300
    assert not comparison.rms <= 1e300
    assert comparison.worst[0].where == comparison.non_finite.where
    assert not math.isfinite(comparison.worst[0].difference)


def test_the_first_of_several_non_finite_values_is_named(observation: Observation) -> None:
    actual = with_logp(with_logp(observation, 3, 3, NAN), 1, 0, INF)
    place = compare(actual, observation)["per_token_logps"].non_finite
    assert place is not None
    assert place.where == "group 0, rejected, token 0, predicted from the last prompt token"
    assert place.actual == INF


def test_nan_in_one_gradient_entry_is_named_by_row_and_column(observation: Observation) -> None:
    assert observation.gradients is not None
    gradient = observation.gradients["layer.lora_B"].clone()
    gradient[2, 1] = NAN
    comparison = compare(with_gradient(observation, "layer.lora_B", gradient), observation)["layer.lora_B"]
    assert comparison.non_finite is not None
    assert comparison.non_finite.where == "layer.lora_B[2, 1]"
    assert not comparison.rms <= 1e300


@pytest.mark.parametrize("nearly", [0.0, 1e-14])
def test_a_gradient_that_cancels_to_nothing_is_measured_by_the_size_of_all_gradients(
    observation: Observation, nearly: float
) -> None:
    """Six zeros beside lora_B: an error of 1e-9 is small if the RMS of all is near 1, and 1 is not."""
    assert observation.gradients is not None
    nothing = torch.full((2, 3), nearly, dtype=torch.float64)
    truth = with_gradient(observation, "layer.lora_A", nothing)
    assert truth.gradients is not None
    of_all = float(torch.cat([t.flatten() for t in truth.gradients.values()]).square().mean().sqrt())
    equal = compare(truth, truth)["layer.lora_A"]
    assert (equal.max, equal.rms, equal.signed_mean) == (0.0, 0.0, 0.0)
    for error in (1e-9, 1.0):
        other = nothing.clone()
        other[1, 2] += error
        found = compare(with_gradient(observation, "layer.lora_A", other), truth)["layer.lora_A"]
        assert found.max == pytest.approx(error / of_all)
        assert found.rms == pytest.approx(error / of_all / math.sqrt(6))
        assert found.peak == 1.0
    missing = with_gradient(observation, "layer.lora_A", torch.full((2, 3), NAN, dtype=torch.float64))
    assert compare(missing, truth)["layer.lora_A"].non_finite is not None


def test_what_cancels_in_truth_is_no_scale_between_two_that_round_otherwise(observation: Observation) -> None:
    """1e-9 against 2e-9: infinitely far if the true zero were not known, half if one were held against the other."""
    truth, one, other = (
        with_gradient(observation, "layer.lora_A", torch.full((2, 3), v, dtype=torch.float64))
        for v in (0.0, 1e-9, 2e-9)
    )
    sizes = gradient_sizes(truth.gradients or {})
    found = {c.part: c for c in compare_observations(one, other, GROUPS, sizes=sizes)}["layer.lora_A"]
    assert found.rms < 1e-8
    assert {c.part: c for c in compare_observations(one, other, GROUPS)}["layer.lora_A"].rms == pytest.approx(0.5)


def test_where_all_gradients_are_zero_there_is_no_scale_to_hide_behind(observation: Observation) -> None:
    assert observation.gradients is not None
    zeros = {name: torch.zeros_like(tensor) for name, tensor in observation.gradients.items()}
    expected = replace(observation, gradients=zeros)
    equal = compare(expected, expected)["layer.lora_A"]
    assert (equal.max, equal.rms, equal.signed_mean) == (0.0, 0.0, 0.0)
    assert math.isnan(equal.cosine)
    assert math.isnan(equal.norm_ratio)
    almost = zeros["layer.lora_A"].clone()
    almost[1, 2] = 1e-30
    other = compare(with_gradient(expected, "layer.lora_A", almost), expected)["layer.lora_A"]
    assert (other.max, other.rms) == (INF, INF)


# What is measured.


def test_signed_mean_tells_drift_from_scatter(observation: Observation) -> None:
    drifted = replace(observation, rewards=observation.rewards + vector(0.5, 0.5, 0.5, 0.5))
    scattered = replace(observation, rewards=observation.rewards + vector(0.5, -0.5, 0.5, -0.5))
    drift, scatter = compare(drifted, observation)["rewards"], compare(scattered, observation)["rewards"]
    assert drift.rms == pytest.approx(scatter.rms) == pytest.approx(0.5)
    assert drift.signed_mean == pytest.approx(0.5)
    assert scatter.signed_mean == pytest.approx(0.0, abs=1e-15)
    assert compare(observation, drifted)["rewards"].signed_mean == pytest.approx(-0.5)


finite = st.floats(-5, 5, allow_nan=False, width=32)


@given(st.lists(st.tuples(finite, finite), min_size=4, max_size=4))
def test_distances_of_vectors_agree_with_numpy(pairs: list[tuple[float, float]]) -> None:
    base = Observation(
        per_token_logps=tuple(torch.ones(n, dtype=torch.float64) for n in LENGTHS),
        ref_per_token_logps=tuple(torch.ones(n, dtype=torch.float64) for n in LENGTHS),
        rewards=vector(*(e for _, e in pairs)),
        margins=vector(1, 2),
        loss=vector(1)[0],
        gradients={"m.lora_A": torch.ones(1, 2, dtype=torch.float64)},
    )
    comparison = compare(replace(base, rewards=vector(*(a for a, _ in pairs))), base)["rewards"]
    difference = np.array([a - e for a, e in pairs])
    assert comparison.max == pytest.approx(np.abs(difference).max())
    assert comparison.rms == pytest.approx(np.sqrt(np.mean(difference**2)))
    assert comparison.signed_mean == pytest.approx(difference.mean(), abs=1e-12)
    assert comparison.worst[0].difference == comparison.max


@given(st.lists(st.tuples(finite, finite), min_size=6, max_size=6).filter(lambda p: any(abs(e) > 1e-3 for _, e in p)))
def test_distances_of_gradients_are_relative_and_agree_with_numpy(pairs: list[tuple[float, float]]) -> None:
    a, e = (np.array([pair[i] for pair in pairs], dtype=np.float64) for i in range(2))
    base = Observation(
        per_token_logps=tuple(torch.ones(n, dtype=torch.float64) for n in LENGTHS),
        ref_per_token_logps=tuple(torch.ones(n, dtype=torch.float64) for n in LENGTHS),
        rewards=vector(1, 1, 1, 1),
        margins=vector(1, 2),
        loss=vector(1)[0],
        gradients={"m.lora_A": torch.from_numpy(e.reshape(2, 3))},
    )
    comparison = compare(replace(base, gradients={"m.lora_A": torch.from_numpy(a.reshape(2, 3))}), base)["m.lora_A"]
    scale = np.sqrt(np.mean(e**2))
    assert comparison.rms == pytest.approx(np.linalg.norm(a - e) / np.linalg.norm(e))
    assert comparison.max == pytest.approx(np.abs(a - e).max() / scale)
    assert comparison.signed_mean == pytest.approx((a - e).mean() / scale, abs=1e-12)
    assert comparison.norm_ratio == pytest.approx(np.linalg.norm(a) / np.linalg.norm(e))
    if np.linalg.norm(a) > 1e-3:
        assert comparison.cosine == pytest.approx(np.dot(a, e) / np.linalg.norm(a) / np.linalg.norm(e), abs=1e-12)


def test_the_distance_of_a_gradient_does_not_depend_on_its_size(observation: Observation) -> None:
    """A budget is relative, so a small tensor may not hide beside a large one."""
    assert observation.gradients is not None
    small = {name: g * 1e-9 for name, g in observation.gradients.items()}
    off = {name: g * 1.01 for name, g in small.items()}
    comparisons = compare(replace(observation, gradients=off), replace(observation, gradients=small))
    assert comparisons["layer.lora_A"].rms == pytest.approx(0.01)
    assert comparisons["layer.lora_B"].norm_ratio == pytest.approx(1.01)
    assert comparisons["layer.lora_B"].cosine == pytest.approx(1.0)


def test_a_gradient_of_the_opposite_sign_is_as_far_as_can_be(observation: Observation) -> None:
    assert observation.gradients is not None
    turned = replace(observation, gradients={name: -g for name, g in observation.gradients.items()})
    comparison = compare(turned, observation)["layer.lora_A"]
    assert comparison.rms == pytest.approx(2.0)
    assert comparison.cosine == pytest.approx(-1.0)
    assert comparison.norm_ratio == pytest.approx(1.0)


# Where it is.


@pytest.mark.parametrize(
    ("completion", "token", "where"),
    [
        (0, 0, "group 0, chosen, token 0, predicted from the last prompt token"),
        (0, 2, "group 0, chosen, token 2, predicted from its token 1"),
        (1, 0, "group 0, rejected, token 0, predicted from the last prompt token"),
        (2, 0, "group 1, chosen, token 0, predicted from the last prompt token"),
        (3, 3, "group 1, rejected, token 3, predicted from its token 2"),
    ],
)
def test_a_token_is_named_by_group_response_and_predictor(
    observation: Observation, completion: int, token: int, where: str
) -> None:
    expected = float(observation.per_token_logps[completion][token])
    comparison = compare(with_logp(observation, completion, token, expected - 3), observation)["per_token_logps"]
    worst = comparison.worst[0]
    assert (worst.where, worst.actual, worst.expected) == (where, expected - 3, expected)
    assert worst.difference == comparison.max


@pytest.mark.parametrize(
    ("quantity", "index", "where"),
    [
        ("rewards", 0, "group 0, chosen"),
        ("rewards", 1, "group 0, rejected"),
        ("rewards", 3, "group 1, rejected"),
        ("margins", 1, "group 1"),
    ],
)
def test_rewards_and_margins_are_named_by_response_and_group(
    observation: Observation, quantity: str, index: int, where: str
) -> None:
    values = getattr(observation, quantity).clone()
    values[index] += 9
    assert compare(replace(observation, **{quantity: values}), observation)[quantity].worst[0].where == where


def test_responses_of_a_group_with_several_are_numbered() -> None:
    groups = (PreferenceGroup((1,), ((2,), (3,)), ((4,), (5,))),)
    values = tuple(vector(v) for v in (1, 2, 3, 4))
    expected = Observation(
        per_token_logps=values,
        ref_per_token_logps=values,
        rewards=vector(1, 2, 3, 4),
        margins=vector(1, 2, 3, 4),
        loss=vector(1)[0],
        gradients=None,
        gradients_absent_because="not needed here",
    )
    actual = replace(expected, rewards=expected.rewards + vector(4, 3, 2, 1))
    with_gradients = replace(expected, gradients={"m.lora_A": torch.ones(1, 1, dtype=torch.float64)})
    (rewards,) = [c for c in compare_observations(actual, with_gradients, groups) if c.quantity == "rewards"]
    assert [place.where for place in rewards.worst] == [
        "group 0, positive 0", "group 0, positive 1", "group 0, negative 0",
    ]  # fmt: skip
    further = replace(expected, margins=expected.margins + vector(0, 3, 2, 1))
    (margins,) = [c for c in compare_observations(further, with_gradients, groups) if c.quantity == "margins"]
    assert [place.where for place in margins.worst] == [
        "group 0, positive 0 against negative 1",
        "group 0, positive 1 against negative 0",
        "group 0, positive 1 against negative 1",
    ]


def test_unsupervised_tokens_keep_their_places_in_names() -> None:
    """The third token of the response is the second that is supervised."""
    groups = (PreferenceGroup((1,), ((2, 3, 4),), completion_masks=((True, False, True),)),)
    expected = (vector(-1, -2),)
    found = compare_logps((vector(-1, -5),), expected, groups)
    assert found.num_compared == 2
    assert found.worst[0].where == "group 0, chosen, token 2, predicted from its token 1"


def test_an_sft_observation_is_compared_in_log_probs_loss_and_gradients_alone() -> None:
    groups = (PreferenceGroup((1,), ((2, 3),)),)
    expected = Observation(
        per_token_logps=(vector(-1, -2),),
        ref_per_token_logps=(),
        rewards=vector(),
        margins=vector(),
        loss=vector(1.5)[0],
        gradients={"m.lora_A": torch.ones(1, 1, dtype=torch.float64)},
    )
    found = compare_observations(expected, expected, groups)
    assert [c.quantity for c in found] == ["per_token_logps", "loss", "gradients"]
    with pytest.raises(StructureError, match="ref_per_token_logps"):
        compare_observations(replace(expected, ref_per_token_logps=(vector(-1, -2),)), expected, groups)


def test_the_three_largest_differences_are_kept_largest_first(observation: Observation) -> None:
    actual = replace(observation, rewards=observation.rewards + vector(0.1, -0.4, 0.2, 0.3))
    worst = compare(actual, observation)["rewards"].worst
    assert [round(place.difference, 6) for place in worst] == [0.4, 0.3, 0.2]


def test_a_gradient_entry_is_named_by_row_and_column(observation: Observation) -> None:
    assert observation.gradients is not None
    gradient = observation.gradients["layer.lora_A"].clone()
    gradient[1, 2] += 5
    comparison = compare(with_gradient(observation, "layer.lora_A", gradient), observation)["layer.lora_A"]
    assert comparison.worst[0].where == "layer.lora_A[1, 2]"


def test_comparing_leaves_both_sides_as_they_were(observation: Observation) -> None:
    before = torch.cat(observation.per_token_logps).clone()
    compare_observations(with_logp(observation, 0, 0, NAN), observation, GROUPS)
    assert torch.equal(torch.cat(observation.per_token_logps), before)


def test_comparisons_are_handed_over_as_they_are(observation: Observation) -> None:
    comparisons = compare_observations(replace(observation, loss=vector(NAN).reshape(())), observation, GROUPS)
    again = pickle.loads(pickle.dumps(comparisons))
    assert repr(again) == repr(comparisons), "NaN never equals"
    assert {type(each) for each in again} == {Comparison}
    assert all(type(place) is Place for each in again for place in (*each.worst, each.non_finite or each.worst[0]))
