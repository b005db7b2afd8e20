"""The optimised unpacked steps as subjects: what packing has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from packed_impl import unshared
from packed_impl.step import PackedLoss
from verify.cases import CaseKind
from verify.groups import PreferenceGroup
from verify.objective import PREFERENCE_NAMES, ObjectiveName, Preference


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsharedSubject:
    """Every completion behind its own copy of the prompt, with causal SDPA and no mask.

    Args:
        rows: "padded" (one forward call) or "row-per-sequence" (a call for each, nothing padded).
        layout: As in the contract of a subject.
        takes: Kinds of case.
        objectives: What its loss computes.
    """

    rows: str
    layout: str = "unpacked"
    takes: tuple[CaseKind, ...] = ("pairs", "groups")
    objectives: tuple[ObjectiveName, ...] = PREFERENCE_NAMES

    @property
    def name(self) -> str:
        """Its rows, behind what they have in common."""
        return f"unshared/{self.rows}"

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion, unpacked."""
        return unshared.unshared_logps(model, unshared.unshared_layouts(groups, self.rows))

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Preference) -> PackedLoss:
        """The unpacked step: loss, rewards and margins."""
        return unshared.unshared_loss(
            model,
            groups,
            rows=self.rows,
            beta=objective.beta,
            label_smoothing=objective.label_smoothing,
            objective=objective.name,
            nll_weight=objective.nll_weight,
        )


PADDED, ROW_PER_SEQUENCE = UnsharedSubject(rows="padded"), UnsharedSubject(rows="row-per-sequence")
