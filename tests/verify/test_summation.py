"""Rounding of summed log-probs, against sums that were rounded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from packed_impl.preference import preference_terms
from verify.groups import PreferenceGroup
from verify.objective import PREFERENCE_NAMES, SMOOTHED, Preference, PreferenceName
from verify.observation import Observation
from verify.subjects.oracle import apply_objective
from verify.summation import coefficient_rounding, score_deviations
from verify.supervised_values import pair_margins
from verify.tolerance import Policy

EPS32 = 2.0**-23


def in_turn(values: Tensor) -> Tensor:
    """Sum in the dtype of the values, one after the other; [..., T] to [...]."""
    total = torch.zeros_like(values[..., 0])
    for step in range(values.shape[-1]):
        total = total + values[..., step]
    return total


def drawn_logps(length: int, *, nats: float, seed: int, copies: int = 1) -> Tensor:
    """Log-probs of tokens as float32 numbers, between nothing and twice ``nats``; [copies, T]."""
    generator = torch.Generator().manual_seed(seed)
    return -2 * nats * torch.rand(copies, length, generator=generator)


@pytest.mark.parametrize("length", [2, 16, 100, 700])
def test_sums_one_after_the_other_are_off_by_as_much_as_derived(length: int) -> None:
    logps, refs = (drawn_logps(length, nats=12.0, seed=seed, copies=500) for seed in (1, 2))
    exact = logps.double().sum(1) - refs.double().sum(1)
    off = (in_turn(logps) - in_turn(refs)).double() - exact
    derived = score_deviations(list(logps.double()), list(refs.double()), EPS32)
    ratio = float((off / derived).square().mean().sqrt())
    assert 0.3 < ratio < 1  # a number is stored to half an epsilon of it, or to a quarter
    assert float((off / derived).abs().max()) < 5


def test_a_deviation_by_hand() -> None:
    """Three tokens of -4 nats, no reference: eps sqrt(144 * 3 / 36 + 144 / 4)."""
    found = score_deviations([torch.full((3,), -4.0).double()], [torch.zeros(3).double()], EPS32)
    assert found.tolist() == pytest.approx([EPS32 * math.sqrt(48)])


GROUPS = (
    PreferenceGroup((1,), ((2,) * 300,), ((3,) * 500,)),
    PreferenceGroup((1,), ((2,) * 40, (4,) * 90), ((3,) * 200, (5,), (6,) * 10)),
)
COUNTS = [300, 500, 40, 90, 200, 1, 10]


def drawn(nats: float, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Policy and reference of every completion, nearly alike so that no margin is extreme; float32."""
    logps = [drawn_logps(count, nats=nats, seed=seed + k)[0] for k, count in enumerate(COUNTS)]
    refs = [
        logp + 0.02 * drawn_logps(len(logp), nats=1.0, seed=seed + 100 + k)[0] + 0.02 for k, logp in enumerate(logps)
    ]
    return logps, refs


def objective_of(name: PreferenceName) -> Preference:
    return Preference(name=name, beta=0.1, label_smoothing=0.2 if name in SMOOTHED else 0.0)


def expectation(logps: list[Tensor], refs: list[Tensor], objective: Preference) -> Observation:
    logps, refs = [logp.double() for logp in logps], [ref.double() for ref in refs]
    values = apply_objective(logps, refs, GROUPS, objective)
    return Observation(
        per_token_logps=tuple(logps),
        ref_per_token_logps=tuple(refs),
        rewards=values.rewards,
        margins=pair_margins(values.rewards, GROUPS),
        loss=values.loss,
        gradients=None,
    )


def coefficients(sums: Tensor, ref_sums: Tensor, objective: Preference) -> Tensor:
    """Derivative of the loss with respect to each completion's sum, in the dtype of the sums."""
    leaves = sums.clone().requires_grad_()
    sizes = [(len(group.positives), len(group.negatives)) for group in GROUPS]
    terms = preference_terms(
        leaves, ref_sums, torch.tensor(COUNTS), sizes,
        objective=objective.name, beta=objective.beta, label_smoothing=objective.label_smoothing,
        nll_weight=objective.nll_weight,
    )  # fmt: skip
    (found,) = torch.autograd.grad(terms.loss, leaves)
    return found.double()


@pytest.mark.parametrize("name", PREFERENCE_NAMES)
def test_coefficients_from_float32_sums_are_within_what_rounding_explains(name: PreferenceName, policy: Policy) -> None:
    """As a trainer sums whose packed rows are added up by index, at 12 nats a token."""
    objective, ratios = objective_of(name), []
    for seed in range(0, 10_000, 1_000):
        logps, refs = drawn(12.0, seed)
        bound = coefficient_rounding(
            GROUPS, expectation(logps, refs, objective), objective, dtype_name="float32", policy=policy
        )
        rounded = coefficients(*(torch.stack([in_turn(v) for v in values]) for values in (logps, refs)), objective)
        exact = coefficients(*(torch.stack([v.double().sum() for v in values]) for values in (logps, refs)), objective)
        for of_group, true in zip(torch.split(rounded, [2, 5]), torch.split(exact, [2, 5]), strict=True):
            distance, size = float((of_group - true).norm()), float(true.norm())
            ratios.append(distance / size / bound if bound and size else distance)
    assert max(ratios) <= 1
    if name != "hinge":
        assert max(ratios) > 0.02, "so wide that it says nothing"


def test_sums_of_a_float64_run_are_kept_in_float64(policy: Policy) -> None:
    objective = Preference(beta=0.1)
    expected = expectation(*drawn(12.0, 3), objective)
    float64, float32, bfloat16, autocast = (
        coefficient_rounding(GROUPS, expected, objective, dtype_name=name, policy=policy)
        for name in ("float64", "float32", "bfloat16", "autocast-bfloat16")
    )
    assert float64 == pytest.approx(float32 * 2.0**-29)
    assert bfloat16 == autocast == float32


def test_at_the_kink_of_the_hinge_no_rounding_is_bounded(policy: Policy) -> None:
    objective = objective_of("hinge")
    refs = [torch.full((count,), -12.0) for count in COUNTS]
    at_kink = [ref + (10 / 300 if k == 0 else 0.0) for k, ref in enumerate(refs)]  # 0.1 * 10 nats: a margin of 1
    found = coefficient_rounding(
        GROUPS, expectation(at_kink, refs, objective), objective, dtype_name="float32", policy=policy
    )
    assert found == math.inf
