"""What would make a pass empty: reasons why a case proves nothing, found before any subject is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verify.comparison import Comparison
from verify.groups import PreferenceGroup
from verify.models.adapters import has_adapters
from verify.objective import ObjectiveName
from verify.observation import Observation
from verify.places import pair_place
from verify.tolerance import PlausibleErrors


def vacuous_adapters(model: Any) -> tuple[str, ...]:
    """Reasons why what is trained of a model cannot show a fault.

    Args:
        model: The model.

    Returns:
        One reason per kind; empty if every LoRA factor is non-zero. Where every weight is trained one of zeros hides
        nothing: the frozen policy is another model.
    """
    factors = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not factors:
        return ("the model has no tensor that is trained: no gradient would be compared",)
    if not has_adapters(model):
        return ()
    zero = [name for name, factor in factors if not bool(factor.detach().any())]
    if zero:
        return (f"{len(zero)} LoRA tensors are zero ({zero[0]}): policy and reference agree whatever a mask does",)
    return ()


def is_satisfied(expected: Observation, objective_name: ObjectiveName) -> bool:
    """Whether every pair of a case is beyond the kink of the hinge: loss and gradients are exactly 0, and rightly so.

    Args:
        expected: The oracle's observation.
        objective_name: The objective of the case.

    Returns:
        Always False under another objective.
    """
    return objective_name == "hinge" and len(expected.margins) > 0 and bool((expected.margins >= 1).all())


def vacuous_expectation(
    expected: Observation, groups: Sequence[PreferenceGroup], *, objective_name: ObjectiveName
) -> tuple[str, ...]:
    """Reasons why what the oracle computed on a case cannot show a fault.

    Args:
        expected: The oracle's observation.
        groups: The case's groups.
        objective_name: The objective of the case.

    Returns:
        Reasons: policy equal to reference, a margin of zero, a gradient that is zero throughout, unless the hinge makes
        all of them so.
    """
    reasons = []
    if expected.ref_per_token_logps and torch.equal(
        torch.cat(expected.per_token_logps), torch.cat(expected.ref_per_token_logps)
    ):
        reasons.append("the policy equals the reference: every reward is zero whatever a mask does")
    zero_margins = [i for i, margin in enumerate(expected.margins.tolist()) if margin == 0.0]
    if zero_margins:
        reasons.append(f"the margin of {pair_place(groups)(zero_margins[0])} is exactly zero (equal responses?)")
    zero = [name for name, gradient in (expected.gradients or {}).items() if not bool(gradient.any())]
    if zero and not is_satisfied(expected, objective_name):
        reasons.append(f"{len(zero)} expected gradients are zero throughout ({zero[0]})")
    return tuple(reasons)


def implausible_witness(to_oracle: Mapping[str, Sequence[Comparison]], bounds: PlausibleErrors) -> tuple[str, ...]:
    """Reasons to doubt the two witnesses: they differ by more than the dtype explains.

    Every form of the unpacked path is held to the bounds, since each of them widens the budgets.

    Args:
        to_oracle: Name of a form of the unpacked path to its comparison with the oracle.
        bounds: Largest plausible errors of the dtype.

    Returns:
        One reason per quantity out of bounds, of the first form that has one.
    """
    for form, comparisons in to_oracle.items():
        reasons = _out_of_bounds(form, comparisons, bounds)
        if reasons:
            return reasons
    return ()


def _out_of_bounds(form: str, comparisons: Sequence[Comparison], bounds: PlausibleErrors) -> tuple[str, ...]:
    reasons = []
    limits = {
        "per_token_logps": bounds.per_token_logps_rms,
        "ref_per_token_logps": bounds.per_token_logps_rms,
        "gradients": bounds.gradients_rms,
    }
    if not any(comparison.quantity == "per_token_logps" for comparison in comparisons):
        # A reward is a number of about 1 from the same hidden states, a log-prob one of more.
        limits["rewards"] = bounds.per_token_logps_rms
    for comparison in comparisons:
        limit = limits.get(comparison.quantity)
        if limit is not None and not comparison.rms <= limit:
            where = f" of {comparison.part}" if comparison.part else ""
            reasons.append(
                f"oracle and unpacked model ({form}) disagree: RMS distance in {comparison.quantity}{where} is "
                f"{comparison.rms:.3g}, plausible up to {limit:.3g}"
            )
    if len(reasons) > 2:
        reasons = [*reasons[:2], f"and {len(reasons) - 2} more quantities on which they disagree"]
    return tuple(reasons)
