"""What was measured about one subject on one case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from verify.diagnosis.coefficients import Weights
from verify.diagnosis.differences import Differences
from verify.diagnosis.examples import Example
from verify.diagnosis.layers import PlaceDifference
from verify.diagnosis.sight import Sight
from verify.diagnosis.sources import Sources
from verify.diagnosis.tokens import CaseToken
from verify.groups import PreferenceGroup
from verify.objective import Objective
from verify.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured on one case.

    Args:
        differences: From the unpacked path.
        actual: The subject's observation.
        expected: The unpacked path's.
        objective: The objective of the case.
        group_losses: Right loss of each group, [G]; empty where it was not looked at.
        examples: Every sequence under the unpacked path; none where the loss was not looked at, or under DPO.
        hidden: Hidden states, place by place; empty where they could not be read.
        backward: Gradients of hidden states, in backward order.
        stray_gradient: Largest gradient at a slot that holds no token of the case.
        sight: What tokens see and where they stand; None where it could not be measured.
        sources: Where wrong log-probs come from; None where it was not looked for.
        weights: The tokens' weights in the gradient; None where they were not looked for.
        tokens: Tracked tokens by id.
    """

    differences: Differences
    actual: Observation
    expected: Observation
    objective: Objective
    group_losses: Tensor
    examples: Sequence[Example] = ()
    hidden: Sequence[PlaceDifference] = ()
    backward: Sequence[PlaceDifference] = ()
    stray_gradient: float = 0.0
    sight: Sight | None = None
    sources: Sources | None = None
    weights: Weights | None = None
    tokens: Mapping[int, CaseToken]

    @property
    def groups(self) -> Sequence[PreferenceGroup]:
        """The groups of the case."""
        return self.differences.groups
