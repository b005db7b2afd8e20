from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference_impl.batch_objective import (
    Sft,
    apply_objective,
    batch_token_coefficients,
    check_groups,
    group_share,
)
from reference_impl.objectives import margins, mean_loss, rewards, sequence_logps
from reference_impl.pair_losses import sigmoid_losses
from reference_impl.preference import PREFERENCE_NAMES, Preference

BETA, SMOOTHING = 0.4, 0.1
SIGMOID = {"objective": "sigmoid", "beta": BETA, "label_smoothing": SMOOTHING}
SFT = [{"objective": "sft-token-mean"}, {"objective": "sft-example-mean"}]
SMOOTHED = ("sigmoid", "robust", "sigmoid_norm", "rpo")
PREFERENCES = [
    {"objective": name, "beta": BETA, "label_smoothing": SMOOTHING if name in SMOOTHED else None}
    for name in PREFERENCE_NAMES
]
# A weight of its own also where the default is none.
PREFERENCES += [{**PREFERENCES[0], "nll_weight": 0.3}, {**PREFERENCES[3], "nll_weight": 2.0}]
every_objective = pytest.mark.parametrize(
    ("arguments", "negatives"),
    [*((of, True) for of in PREFERENCES), (SFT[0], False), (SFT[1], False)],
    ids=lambda of: "-".join(map(str, of.values())) if isinstance(of, dict) else "",
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def group(positives, negatives=(), masks=()) -> SimpleNamespace:
    """Only the lengths matter here: a completion is given by its number of tokens."""
    completions = [tuple((1,) * length for length in lengths) for lengths in (positives, negatives)]
    return SimpleNamespace(
        prompt_ids=(1,), positives=completions[0], negatives=completions[1], completion_masks=masks, images=()
    )


def draw_logps(groups, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [-3 * torch.rand(len(each), generator=generator, dtype=torch.float64) for each in every_completion(groups)]


def every_completion(groups) -> list[tuple[int, ...]]:
    return [completion for each in groups for completion in (*each.positives, *each.negatives)]


@st.composite
def batches(draw: st.DrawFn, *, negatives: bool):
    """Groups of all shapes, some with masks, and log-probs for two policies."""
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
        of_group = [draw(sizes), draw(sizes) if negatives else []]
        masks = ()
        if draw(st.booleans()):
            masks = tuple(
                draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any).map(tuple))
                for length in (*of_group[0], *of_group[1])
            )
        groups.append(group(*of_group, masks))
    seed = draw(st.integers(0, 2**16))
    return groups, draw_logps(groups, seed), draw_logps(groups, seed + 1) if negatives else []


def flat_masks(groups) -> list[tuple[bool, ...]]:
    return [
        mask
        for each in groups
        for mask in each.completion_masks or [(True,) * len(y) for y in (*each.positives, *each.negatives)]
    ]


def by_scalars(groups, logps, ref_logps, arguments) -> float:
    """The loss in Python floats, token by token and pair by pair, from the words of its definition."""
    counted, ref_counted = (
        [
            [float(value) for value, counts in zip(of, mask, strict=True) if counts]
            for of, mask in zip(values, flat_masks(groups), strict=True)
        ]
        for values in (logps, ref_logps or logps)
    )
    objective = arguments["objective"]
    if objective == "sft-token-mean":
        tokens = [value for of in counted for value in of]
        return -math.fsum(tokens) / len(tokens)
    if objective == "sft-example-mean":
        return -math.fsum(mean(of) for of in counted) / len(counted)
    sums = objective in ("sigmoid", "robust", "hinge", "rpo")
    nll_weight = arguments.get("nll_weight", 1.0 if objective == "rpo" or "groupdpo" in objective else 0.0)
    score = math.fsum if sums else mean
    gains = iter([score(a) - score(b) for a, b in zip(counted, ref_counted, strict=True)])
    token_means = iter([mean(of) for of in counted])
    of_groups = []
    for each in groups:
        up, down = ([BETA * next(gains) for _ in side] for side in (each.positives, each.negatives))
        likelihoods = [next(token_means) for _ in (*each.positives, *each.negatives)][: len(up)]
        of_groups.append(phi_by_scalars(objective, up, down) - nll_weight * mean(likelihoods))
    return mean(of_groups)


def mean(values) -> float:
    return math.fsum(values) / len(values)


def phi_by_scalars(objective: str, up: list[float], down: list[float]) -> float:
    """The loss of one group of small rewards, without its likelihood term."""

    def cost(z: float) -> float:
        return math.log(1 + math.exp(-z))

    if objective == "groupdpo-margin":
        return cost(mean(up) - mean(down))
    if objective == "groupdpo-mpo":
        return -math.log(math.fsum(map(math.exp, up)) / math.fsum(map(math.exp, up + down)))
    if objective == "groupdpo-softmax":
        return mean([-math.log(math.exp(u) / math.fsum(map(math.exp, [u, *down]))) for u in up])
    keep, swap = 1 - SMOOTHING, SMOOTHING
    of_pair = {
        "robust": lambda z: (keep * cost(z) - swap * cost(-z)) / (keep - swap),
        "hinge": lambda z: max(0.0, 1 - z),
        "ipo": lambda z: (z / BETA - 1 / (2 * BETA)) ** 2,
        "groupdpo-all-pairs": cost,
    }.get(objective, lambda z: keep * cost(z) + swap * cost(-z))
    return mean([of_pair(p - n) for p in up for n in down])


@every_objective
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_loss_is_its_definition_in_scalars(arguments, negatives, data) -> None:
    groups, logps, ref_logps = data.draw(batches(negatives=negatives))
    actual = apply_objective(logps, ref_logps, groups, **arguments)
    assert float(actual.loss) == pytest.approx(by_scalars(groups, logps, ref_logps, arguments), abs=1e-13)


def steepest(arguments, margins) -> float:
    """The largest slope of a pair's loss in a log-prob, 0 where no square makes it exceed 1."""
    return float((2 * (margins.detach() - 0.5) / BETA).abs().max()) if arguments["objective"] == "ipo" else 0.0


@every_objective
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_token_coefficients_are_the_slope_of_the_loss(arguments, negatives, data) -> None:
    """Central differences of fourth order, one token moved at a time, against the closed form and differentiation."""
    groups, logps, ref_logps = data.draw(batches(negatives=negatives))
    leaves = [each.clone().requires_grad_() for each in logps]
    values = apply_objective(leaves, ref_logps, groups, **arguments)
    # Across the kink of the hinge a difference is no slope.
    assume(arguments["objective"] != "hinge" or float((values.margins.detach() - 1).abs().min()) > 0.01)
    values.loss.backward()
    coefficients = batch_token_coefficients(values.rewards.detach(), groups, **arguments)
    assert [c.shape for c in coefficients] == [each.shape for each in logps]
    h = 1e-2
    for place, of_completion in enumerate(logps):
        for token in range(len(of_completion)):

            def loss(steps: int, place: int = place, token: int = token) -> float:
                moved = [each.clone() for each in logps]
                moved[place][token] += steps * h
                return float(apply_objective(moved, ref_logps, groups, **arguments).loss)

            slope = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * h)
            assert float(coefficients[place][token]) == pytest.approx(slope, abs=1e-9)
            # A few roundings, of numbers that only IPO's square takes above 1.
            few_ulps = 1e-15 * max(1.0, steepest(arguments, values.margins))
            assert float(leaves[place].grad[token]) == pytest.approx(float(coefficients[place][token]), abs=few_ulps)


def test_three_tokens_with_the_middle_one_masked_worked_out_by_hand() -> None:
    groups = [group([3, 1], masks=((True, False, True), (True,)))]
    logps = [tensor(-1, -2, -3), tensor(-5)]
    token_mean = apply_objective(logps, [], groups, objective="sft-token-mean")
    example_mean = apply_objective(logps, [], groups, objective="sft-example-mean")
    assert float(token_mean.loss) == (1 + 3 + 5) / 3
    assert float(example_mean.loss) == ((1 + 3) / 2 + 5) / 2
    assert [c.tolist() for c in batch_token_coefficients(tensor(), groups, objective="sft-token-mean")] == [
        [-1 / 3, 0, -1 / 3],
        [-1 / 3],
    ]
    assert [c.tolist() for c in batch_token_coefficients(tensor(), groups, objective="sft-example-mean")] == [
        [-1 / 4, 0, -1 / 4],
        [-1 / 2],
    ]


def test_a_masked_pair_worked_out_by_hand() -> None:
    # Supervised sums -4 and -7 against -5 and -5: gains 1 and -2, beta 1/2, margin 1.5 and loss log(1 + e^-1.5).
    groups = [group([3], [2], ((True, False, True), (True, True)))]
    values = apply_objective(
        [tensor(-1, -50, -3), tensor(-3, -4)],
        [tensor(-2, -70, -3), tensor(-4, -1)],
        groups,
        objective="sigmoid",
        beta=0.5,
        label_smoothing=0.0,
    )
    assert values.rewards.tolist() == [0.5, -1.0]
    assert values.margins.tolist() == [1.5]
    assert float(values.loss) == pytest.approx(0.20141327798275246, abs=1e-15)


def test_rewards_follow_the_completions_and_margins_the_pairs() -> None:
    groups = [group([1, 1], [1, 1]), group([1], [1])]
    logps = [tensor(value) for value in (10.0, 20.0, 1.0, 2.0, 500.0, 400.0)]
    values = apply_objective(logps, [tensor(0.0)] * 6, groups, objective="sigmoid", beta=1.0, label_smoothing=0.0)
    assert values.rewards.tolist() == [10, 20, 1, 2, 500, 400]
    assert values.margins.tolist() == [9, 8, 19, 18, 100]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4), seed=st.integers(0, 999)
)
def test_groups_of_one_and_one_are_dpo(lengths, seed) -> None:
    groups = [group([c], [r]) for c, r in lengths]
    logps, refs = draw_logps(groups, seed), draw_logps(groups, seed + 1)
    values = apply_objective(logps, refs, groups, **SIGMOID)
    expected_rewards = rewards(sequence_logps(logps), sequence_logps(refs), BETA)
    expected_margins = margins(expected_rewards[0::2], expected_rewards[1::2])
    assert torch.equal(values.rewards, expected_rewards)
    assert torch.equal(values.margins, expected_margins)
    expected = mean_loss(sigmoid_losses(expected_margins, SMOOTHING), len(lengths))
    assert float(values.loss) == pytest.approx(float(expected), abs=1e-15)


def test_the_mean_is_over_groups_not_over_their_pairs() -> None:
    groups = [group([1], [1]), group([1, 1, 1], [1, 1, 1])]
    logps = [tensor(value) for value in (0.0, 0.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0)]
    values = apply_objective(logps, [tensor(0.0)] * 8, groups, objective="sigmoid", beta=1.0, label_smoothing=0.0)
    assert float(values.loss) == pytest.approx((math.log(2) + math.log(1 + math.exp(-8))) / 2, abs=1e-15)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 4), (2, 3)])
def test_a_policy_equal_to_its_reference_costs_log_two_in_any_group(shape) -> None:
    groups = [group([2] * shape[0], [3] * shape[1])]
    logps = draw_logps(groups, 3)
    assert float(apply_objective(logps, logps, groups, **SIGMOID).loss) == pytest.approx(math.log(2), abs=1e-15)


@settings(max_examples=25, deadline=None)
@given(order=st.tuples(st.permutations(range(3)), st.permutations(range(2))), seed=st.integers(0, 999))
def test_the_order_of_responses_moves_coefficients_with_them_and_nothing_else(order, seed) -> None:
    lengths = (3, 1, 4, 2, 3)
    masks = ((True, False, True), (True,), (False, True, True, False), (True, True), (False, False, True))
    given_order = [group(lengths[:3], lengths[3:])]
    logps, refs = draw_logps(given_order, seed), draw_logps(given_order, seed + 1)
    places = [*order[0], *(3 + place for place in order[1])]

    def of(places) -> tuple[float, list[list[float]]]:
        sizes, chosen_masks = [lengths[i] for i in places], tuple(masks[i] for i in places)
        groups = [group(sizes[:3], sizes[3:], chosen_masks)]
        values = apply_objective([logps[i] for i in places], [refs[i] for i in places], groups, **SIGMOID)
        return float(values.loss), [c.tolist() for c in batch_token_coefficients(values.rewards, groups, **SIGMOID)]

    (loss, coefficients), (moved_loss, moved_coefficients) = of(range(5)), of(places)
    assert moved_loss == pytest.approx(loss, abs=1e-15)
    for moved, place in zip(moved_coefficients, places, strict=True):
        assert moved == pytest.approx(coefficients[place], abs=1e-16)


@every_objective
def test_the_log_prob_of_a_masked_token_does_not_matter(arguments, negatives) -> None:
    masks = ((True, False, True), (False, True))
    groups = [group([3], [2], masks) if negatives else group([3, 2], masks=masks)]
    refs = [tensor(-1, -1, -1), tensor(-1, -1)] if negatives else []

    def of(junk: float):
        logps = [tensor(-1, junk, -3).requires_grad_(), tensor(junk, -4).requires_grad_()]
        values = apply_objective(logps, refs, groups, **arguments)
        return values, torch.autograd.grad(values.loss, logps)

    (values, gradients), (with_junk, junk_gradients) = of(-2.0), of(math.nan)
    assert torch.equal(values.loss, with_junk.loss)
    assert torch.equal(values.rewards, with_junk.rewards)
    assert all(map(torch.equal, gradients, junk_gradients))
    assert (float(gradients[0][1]), float(gradients[1][0])) == (0, 0)
    assert all(float(gradients[at][token]) != 0 for at, token in ((0, 0), (0, 2), (1, 1)))


@settings(max_examples=40, deadline=None)
@given(batch=batches(negatives=False))
def test_the_two_means_differ_by_what_the_lengths_say(batch) -> None:
    """``token - example = sum_y (T_y / T - 1 / C) l_y``, l_y the mean loss of completion y: 0 at equal lengths."""
    groups, logps, _ = batch
    counted = [of[torch.tensor(mask)] for of, mask in zip(logps, flat_masks(groups), strict=True)]
    lengths = [len(of) for of in counted]
    weights = [length / sum(lengths) - 1 / len(lengths) for length in lengths]
    expected = sum(weight * -float(of.mean()) for weight, of in zip(weights, counted, strict=True))
    token_mean, example_mean = (float(apply_objective(logps, [], groups, **arguments).loss) for arguments in SFT)
    assert token_mean - example_mean == pytest.approx(expected, abs=1e-14)


def test_how_examples_are_grouped_does_not_matter_for_sft() -> None:
    logps = [tensor(-1, -2), tensor(-7), tensor(-3, -4, -8)]
    for arguments in SFT:
        together = apply_objective(logps, [], [group([2, 1, 3])], **arguments).loss
        apart = apply_objective(logps, [], [group([2]), group([1, 3])], **arguments).loss
        assert float(together) == pytest.approx(float(apart), abs=1e-15)


def test_shares_of_groups_add_up_to_the_batch() -> None:
    preferences, examples = [group([2, 1], [3]), group([1], [2])], [group([2, 1]), group([3])]
    for groups, objective, arguments in (
        (preferences, Preference("sigmoid", BETA, SMOOTHING, 0.0), SIGMOID),
        (preferences, Preference("groupdpo-mpo", BETA, 0.0, 1.0), {"objective": "groupdpo-mpo", "beta": BETA}),
        (examples, Sft("tokens"), SFT[0]),
        (examples, Sft("examples"), SFT[1]),
    ):
        sizes = check_groups(groups, objective)
        logps = draw_logps(groups, 3)
        refs = [logp / 2 for logp in logps] if isinstance(objective, Preference) else []
        first = len(every_completion(groups[:1]))
        parts = [
            group_share(logps[:first], refs[:first], groups[0], objective, sizes),
            group_share(logps[first:], refs[first:], groups[1], objective, sizes),
        ]
        whole = apply_objective(logps, refs, groups, **arguments)
        assert float(parts[0].loss + parts[1].loss) == pytest.approx(float(whole.loss), abs=1e-15)


def test_no_gradient_flows_into_the_frozen_policy() -> None:
    logps, refs = ([tensor(-1.0).requires_grad_(), tensor(-2.0).requires_grad_()] for _ in range(2))
    apply_objective(logps, refs, [group([1], [1])], **SIGMOID).loss.backward()
    assert all(logp.grad is not None for logp in logps)
    assert all(ref.grad is None for ref in refs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_the_log_probs_is_kept(dtype) -> None:
    logps = [tensor(-1, -2).to(dtype), tensor(-3).to(dtype)]
    preference = apply_objective(logps, logps, [group([2], [1])], **SIGMOID)
    sft = [apply_objective(logps, [], [group([2, 1])], **arguments) for arguments in SFT]
    assert all(t.dtype == dtype for values in (preference, *sft) for t in (values.loss, values.rewards, values.margins))
    assert all(values.rewards.shape == values.margins.shape == (0,) for values in sft)
    assert {c.dtype for c in batch_token_coefficients(preference.rewards, [group([2], [1])], **SIGMOID)} == {dtype}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"objective": "dpo"},
            "objective 'dpo': expected one of sigmoid, robust, hinge, ipo, sigmoid_norm, rpo, groupdpo-margin, "
            "groupdpo-mpo, groupdpo-softmax, groupdpo-all-pairs, sft-token-mean, sft-example-mean",
        ),
        ({"beta": None}, r"sigmoid with beta None and label_smoothing 0\.1: it needs both"),
        ({"label_smoothing": None}, r"sigmoid with beta 0\.4 and label_smoothing None: it needs both"),
        ({"objective": "ipo", "beta": None}, "ipo with beta None: it needs one, positive and finite"),
        ({"beta": -1.0}, "beta is -1"),
        (
            {"objective": "hinge"},
            r"label_smoothing is 0\.1: hinge has none, so it must be 0; it is part of sigmoid, robust, sigmoid_norm",
        ),
        ({"objective": "ipo"}, "ipo has none"),
        ({"objective": "groupdpo-mpo"}, "groupdpo-mpo has none"),
        ({"nll_weight": -1.0}, r"nll_weight is -1\.0: it must be finite and at least 0"),
        ({"nll_weight": math.nan}, "nll_weight is nan: it must be finite and at least 0"),
        ({"label_smoothing": 0.5}, r"label_smoothing is 0\.5"),
        ({"objective": "sft-token-mean"}, "group 0 has 1 positives and 1 negatives: SFT learns from positives only"),
        ({"groups": []}, "no groups"),
        ({"groups": [group([2, 1])]}, "group 0 has 2 positives and 0 negatives: the sigmoid loss compares them"),
        (
            {"objective": "groupdpo-mpo", "label_smoothing": None, "groups": [group([], [2, 1])]},
            "group 0 has 0 positives and 2 negatives: the groupdpo-mpo loss compares them, so it needs at least one of",
        ),
        ({"logps": [tensor(-1, -2)]}, "log-probs of 1 completions: the groups have 2"),
        ({"logps": [tensor(-1), tensor(-1)]}, r"log-probs of completion 0 have shape \(1,\): expected one for each of"),
        ({"ref_logps": []}, "reference log-probs of 0 completions: the groups have 2"),
        ({"ref_logps": [tensor(-1, -2), tensor()]}, r"reference log-probs of completion 1 have shape \(0,\)"),
        (
            {"objective": "sft-token-mean", "groups": [group([2, 1])]},
            "2 reference log-probs for sft-token-mean: SFT has no frozen policy",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(change, message) -> None:
    logps = [tensor(-1, -2), tensor(-3)]
    arguments = {"logps": logps, "ref_logps": logps, "groups": [group([2], [1])], **SIGMOID, **change}
    with pytest.raises(ValueError, match=message):
        apply_objective(**arguments)


@pytest.mark.parametrize("bad", [tensor(), tensor(1.0), torch.zeros(1, 2, dtype=torch.float64)])
def test_coefficients_of_another_number_of_rewards_are_refused(bad) -> None:
    with pytest.raises(ValueError, match=r"sigmoid gives 2 to the 2 completions of these groups, so \(2,\)"):
        batch_token_coefficients(bad, [group([2], [1])], **SIGMOID)
    with pytest.raises(ValueError, match=r"sft-token-mean gives 0 to the 2 completions of these groups, so \(0,\)"):
        batch_token_coefficients(tensor(1.0, 2.0), [group([2, 1])], objective="sft-token-mean")
