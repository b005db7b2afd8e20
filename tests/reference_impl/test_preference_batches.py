"""Preference objectives on the tokens of a batch, worked out by hand or taken apart by group and by term."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from reference_impl.batch_objective import apply_objective, batch_token_coefficients
from reference_impl.preference import PREFERENCE_NAMES

BETA, SMOOTHING = 0.4, 0.1
SMOOTHED = ("sigmoid", "robust", "sigmoid_norm", "rpo")
PREFERENCES = [
    {"objective": name, "beta": BETA, "label_smoothing": SMOOTHING if name in SMOOTHED else None}
    for name in PREFERENCE_NAMES
]
every_preference = pytest.mark.parametrize("arguments", PREFERENCES, ids=PREFERENCE_NAMES)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def group(positives, negatives) -> SimpleNamespace:
    """Only the lengths matter here: a completion is given by its number of tokens."""
    completions = [tuple((1,) * length for length in lengths) for lengths in (positives, negatives)]
    return SimpleNamespace(
        prompt_ids=(1,), positives=completions[0], negatives=completions[1], completion_masks=(), images=()
    )


def draw_logps(groups, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = [len(completion) for each in groups for completion in (*each.positives, *each.negatives)]
    return [-3 * torch.rand(length, generator=generator, dtype=torch.float64) for length in lengths]


def test_three_tokens_against_one_under_every_preference_objective_worked_out_by_hand() -> None:
    # Three tokens gain 3 nats in sum and 1 on average, one token loses 1 nat: at beta 1/2 margins of 2 and of 1.
    groups = [group([3], [1])]
    logps, refs = [tensor(-1, -2, -3), tensor(-4)], [tensor(-2, -3, -4), tensor(-3)]
    lost_2, lost_1 = math.log(1 + math.exp(-2)), math.log(1 + math.exp(-1))
    slope_2, slope_1 = 1 / (1 + math.exp(2)), 1 / (1 + math.exp(1))
    # The likelihood term is 2 nats: the mean of 1, 2 and 3.
    expected = {
        "sigmoid": (2.0, lost_2, -slope_2 / 2, slope_2 / 2),
        "robust": (2.0, lost_2, -slope_2 / 2, slope_2 / 2),
        "hinge": (2.0, 0.0, 0.0, 0.0),
        "rpo": (2.0, lost_2 + 2, -slope_2 / 2 - 1 / 3, slope_2 / 2),
        # (2 - 1)^2: a gap of 2 nats, where 1 is wanted.
        "ipo": (1.0, 1.0, 2 / 3, -2.0),
        "sigmoid_norm": (1.0, lost_1, -slope_1 / 6, slope_1 / 2),
        **dict.fromkeys(PREFERENCE_NAMES[6:], (1.0, lost_1 + 2, -slope_1 / 6 - 1 / 3, slope_1 / 2)),
    }
    assert expected.keys() == set(PREFERENCE_NAMES)
    for name, (margin, loss, of_positive, of_negative) in expected.items():
        arguments = {"objective": name, "beta": 0.5, "label_smoothing": 0.0}
        values = apply_objective(logps, refs, groups, **arguments)
        coefficients = batch_token_coefficients(values.rewards, groups, **arguments)
        assert values.margins.tolist() == [margin]
        assert float(values.loss) == pytest.approx(loss, abs=1e-15)
        assert coefficients[0].tolist() == pytest.approx([of_positive] * 3, abs=1e-15)
        assert coefficients[1].tolist() == pytest.approx([of_negative], abs=1e-15)


@every_preference
def test_a_batch_of_uneven_groups_is_no_mean_of_means(arguments) -> None:
    """The loss is the mean of each group's alone, also where one has six pairs; coefficients are half as large."""
    groups = [group([2], [3]), group([1, 4, 2], [3, 1])]
    logps, refs = draw_logps(groups, 5), draw_logps(groups, 6)
    whole = apply_objective(logps, refs, groups, **arguments)
    parts = [
        apply_objective(logps[part], refs[part], [each], **arguments)
        for part, each in zip((slice(2), slice(2, None)), groups, strict=True)
    ]
    assert float(whole.loss) == pytest.approx((float(parts[0].loss) + float(parts[1].loss)) / 2, abs=1e-14)
    assert torch.equal(whole.margins, torch.cat([part.margins for part in parts]))
    together = batch_token_coefficients(whole.rewards, groups, **arguments)
    alone = [
        c
        for part, each in zip(parts, groups, strict=True)
        for c in batch_token_coefficients(part.rewards, [each], **arguments)
    ]
    for of_batch, of_group in zip(together, alone, strict=True):
        torch.testing.assert_close(of_batch, of_group / 2, rtol=1e-14, atol=0)


@every_preference
def test_the_likelihood_weight_scales_one_term_that_only_positives_have(arguments) -> None:
    groups, lengths = [group([2, 4], [3]), group([1], [2])], [2, 4, 3, 1, 2]
    logps, refs = draw_logps(groups, 5), draw_logps(groups, 6)

    def of(nll_weight: float):
        settings = {**arguments, "nll_weight": nll_weight}
        values = apply_objective(logps, refs, groups, **settings)
        return float(values.loss), [float(c[0]) for c in batch_token_coefficients(values.rewards, groups, **settings)]

    (without, coefficients), (with_it, moved) = of(0.0), of(3.0)
    nll = -((float(logps[0].mean()) + float(logps[1].mean())) / 2 + float(logps[3])) / 2
    assert with_it - without == pytest.approx(3 * nll, abs=1e-13)
    differences = [a - b for a, b in zip(moved, coefficients, strict=True)]
    weights = [1 / 4, 1 / 4, 0, 1 / 2, 0]
    expected = [-3 * weight / length for weight, length in zip(weights, lengths, strict=True)]
    assert differences == pytest.approx(expected, abs=1e-14)


def test_without_a_likelihood_term_an_impossible_token_costs_infinity_and_not_nan() -> None:
    values = apply_objective(
        [tensor(-math.inf), tensor(-1)],
        [tensor(-1), tensor(-1)],
        [group([1], [1])],
        objective="sigmoid",
        beta=BETA,
        label_smoothing=SMOOTHING,
    )
    assert float(values.loss) == math.inf
