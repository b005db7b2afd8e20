"""Rounding of summed log-probs: what adding up a completion does to the gradients of a preference objective.

A sum of float32 numbers is kept to one epsilon of its own size, however exact its terms are: of 500 tokens at 12 nats
each, 6,000 nats, to 5e-4. Times beta that moves a pair's margin, and with it the one number that every gradient of the
pair is multiplied with. The unpacked forms do not show it, since their losses are computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.models.dtypes import DTYPES
from verify.objective import Preference
from verify.observation import Observation
from verify.precision import rounds_in
from verify.preference_budget import EPSILON, moved_coefficients
from verify.tolerance import Policy


def score_deviations(logps: Sequence[Tensor], ref_logps: Sequence[Tensor], epsilon: float) -> Tensor:
    """Standard deviation of the rounding of sum(logp) - sum(ref_logp), of each completion.

    Log-probs have one sign. Adding T of them one after the other, the sum is t S / T after t of them, rounded by
    anything up to half of epsilon times that, evenly: variance (eps t S / T)^2 / 12, over all t about eps^2 S^2 T / 36
    (derived; a pairwise sum has eps^2 S^2 / 6 for any T, which is less from 6 tokens on). The difference of
    the two sums, the product with beta and the margin round once each: eps^2 (S - S_ref)^2 / 4.

        three tokens of -4 nats, S = -12, and no reference: eps sqrt(144 * 3 / 36 + 144 / 4) = 6.9 eps

    Args:
        logps: Of the policy, one vector for each completion.
        ref_logps: Of the frozen policy, likewise.
        epsilon: Of the dtype that sums are kept in.

    Returns:
        In nats; float64, [K].
    """
    variances = []
    for logp, ref_logp in zip(logps, ref_logps, strict=True):
        total, ref_total = float(logp.abs().sum()), float(ref_logp.abs().sum())
        sums = (total**2 + ref_total**2) * len(logp) / 36
        variances.append(sums + float(logp.sum() - ref_logp.sum()) ** 2 / 4)
    return epsilon * torch.tensor(variances, dtype=torch.float64).sqrt()


def coefficient_rounding(
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    objective: Preference,
    *,
    dtype_name: str,
    policy: Policy,
) -> float:
    """Relative rounding of the coefficients d loss / d logp, which weight the gradients of a group's completions.

    ``coefficient_sigmas`` standard deviations of each completion's score, through the second derivative of the
    objective. Derived and not measured: it is added to a budget, and no factor multiplies it.

    Args:
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: The objective.
        dtype_name: What the run computes in. Sums are kept in float32 at least, as every trainer does.
        policy: For the number of standard deviations, and of epsilons in a rounding.

    Returns:
        The largest over the groups; infinite where no bound can be given.
    """
    epsilon = policy.floor.epsilons * min(EPSILON, float(torch.finfo(DTYPES[rounds_in(dtype_name)]).eps))
    deviations = score_deviations(expected.per_token_logps, expected.ref_per_token_logps, epsilon)
    lengths = torch.tensor([len(logp) for logp in expected.per_token_logps], dtype=torch.float64)
    offsets = policy.small_sample.coefficient_sigmas * deviations / lengths
    found = moved_coefficients(groups, expected, objective, offsets)
    return math.nan if any(map(math.isnan, found)) else max(found)
