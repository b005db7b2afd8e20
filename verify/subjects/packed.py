"""This project's packed implementations as subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from packed_impl import step
from packed_impl.attention import gradient_support
from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.objective import DpoSigmoid
from verify.subject import Support


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSubject:
    """Shared prompts as a forest of segments, through one attention backend.

    Args:
        backend: "dense-eager", "dense-sdpa", "flex" or "split".
        segments: "shared-prompt" or "repeat-prompt-token" (the same tree, split one token earlier).
        rows: "one-row" (all groups of a case in one row) or "row-per-group".
    """

    backend: str
    segments: str = "shared-prompt"
    rows: str = "one-row"
    layout: str = "packed"

    @property
    def name(self) -> str:
        """Backend, with what differs from the default layout behind slashes."""
        parts = [self.backend]
        parts += [part for part in (self.segments, self.rows) if part not in ("shared-prompt", "one-row")]
        return "/".join(parts)

    def supports(self, case: Case) -> Support:
        """One row per group differs from one row only where there are several groups."""
        if self.rows == "row-per-group" and len(case.groups) == 1:
            return Support(False, "one group: the row is the same as with all groups in one row")
        return Support(True)

    def supports_gradients(self, model: Any) -> Support:
        """Whether the backend has a backward pass on the model's device."""
        device = next(model.parameters()).device.type
        supported, reason = gradient_support(self.backend, device)
        return Support(supported, reason)

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion, from packed rows."""
        return step.per_token_logps(model, groups, backend=self.backend, layout=self.segments, rows=self.rows)

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: DpoSigmoid) -> step.PackedLoss:
        """The packed DPO step: loss and rewards."""
        return step.dpo_loss(
            model,
            groups,
            backend=self.backend,
            layout=self.segments,
            rows=self.rows,
            beta=objective.beta,
            label_smoothing=objective.label_smoothing,
        )


PACKED_SUBJECTS: tuple[PackedSubject, ...] = (
    PackedSubject(backend="dense-eager"),
    PackedSubject(backend="dense-sdpa"),
    PackedSubject(backend="flex"),
    PackedSubject(backend="split"),
    PackedSubject(backend="dense-sdpa", segments="repeat-prompt-token"),
    PackedSubject(backend="split", segments="repeat-prompt-token"),
    PackedSubject(backend="dense-sdpa", rows="row-per-group"),
    PackedSubject(backend="split", rows="row-per-group"),
)
