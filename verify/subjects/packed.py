"""This project's packed implementations as subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packed_impl import step
from packed_impl.attention import backend_named, gradient_support
from packed_impl.layout import PackedLayout, pack
from packed_impl.split import RowCalls
from verify.cases import Case
from verify.checks.packed_rows import PackedRows
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

    def packed_rows(self, groups: Sequence[PreferenceGroup]) -> PackedRows:
        """The rows, with what the backend is told about who attends to whom, read back from its own form."""
        packed = pack(groups, layout=self.segments, rows=self.rows)
        told = backend_named(self.backend).model_kwargs(packed.forests, torch.device("cpu"), torch.float32)
        lengths = torch.tensor(packed.completion_lengths)
        completions = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        return PackedRows(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            attended=_attended(told, packed),
            supervised=torch.stack((completions, packed.token_rows, packed.token_slots, packed.predictor_slots), dim=1),
        )


def _attended(told: Mapping[str, Any], packed: PackedLayout) -> Any:
    """Bool [rows, slots, slots], or a block mask as it is."""
    if "split_calls" in told:
        return torch.stack([_split_mask(plan, packed.input_ids.shape[1]) for plan in told["split_calls"]])
    mask = told["attention_mask"]
    if not isinstance(mask, Tensor):
        return mask
    return mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0


def _split_mask(plan: RowCalls, num_slots: int) -> Tensor:
    """What the calls of one row compute: queries of a segment over the keys of its path, each call causal."""
    allowed = torch.zeros(num_slots, num_slots, dtype=torch.bool)
    slots = torch.split(torch.arange(num_slots), list(plan.lengths))
    for queries, call in zip(slots, plan.calls, strict=True):
        keys = torch.cat([slots[index] for index in call.path])
        square = torch.ones(len(queries), len(keys), dtype=torch.bool).tril()
        allowed[queries[:, None], keys[None, :]] = square if call.bias is None else call.bias
    return allowed


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
