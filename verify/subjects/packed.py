"""This project's packed implementations as subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Any, assert_never

import torch
from torch import Tensor

from packed_impl import reference_policy, step
from packed_impl.attention import attention_implementation, backend_named, gradient_support
from packed_impl.bins import Rows, first_fit_decreasing, packed_length
from packed_impl.layout import PackedLayout, pack
from packed_impl.reference_cache import ReferenceCache, row_identity
from packed_impl.reference_policy import ReferencePolicy
from packed_impl.reward_model import RewardLoss, reward_loss
from packed_impl.router_loss import RouterBalance
from packed_impl.split import RowCalls
from verify.cases import CASE_KINDS, Case, CaseKind
from verify.checks.checkpointed import is_checkpointed
from verify.checks.packed_rows import PackedRows
from verify.frozen_policy import (
    REFERENCE_NAMES,
    AdaptersOff,
    CachedLogps,
    FrozenAdapter,
    FrozenPolicy,
    ReferenceName,
    SeparateModel,
)
from verify.groups import PreferenceGroup
from verify.objective import OBJECTIVE_NAMES, Objective, ObjectiveName, RewardModel, Sft
from verify.subject import Support


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StepDone:
    """A step whose gradients are in ``.grad``.

    Args:
        loss: Without a graph, as all else.
        rewards: One per completion; None under SFT.
        per_token_logps: One tensor per completion; None of a reward model.
        ref_per_token_logps: The same of the frozen policy; None without one.
        router_balance: That of the routers; None where their loss is no part of the step.
        backward_done: The gradients are there.
    """

    loss: Tensor
    rewards: Tensor | None
    per_token_logps: list[Tensor] | None
    ref_per_token_logps: list[Tensor] | None
    router_balance: RouterBalance | None = None
    backward_done: bool = True

    @staticmethod
    def of(output: step.PackedLoss | step.SftLoss | RewardLoss) -> StepDone:
        """What a step returned, after its backward pass."""
        return StepDone(
            loss=output.loss.detach(),
            rewards=None if isinstance(output, step.SftLoss) else output.rewards.detach(),
            per_token_logps=None
            if isinstance(output, RewardLoss)
            else [logp.detach() for logp in output.per_token_logps],
            ref_per_token_logps=output.ref_per_token_logps if isinstance(output, step.PackedLoss) else None,
            router_balance=None if isinstance(output, RewardLoss) else output.router_balance,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSubject:
    """Sequences as a forest of segments, through one attention backend.

    Args:
        backend: "dense-eager", "dense-sdpa", "flex" or "split".
        segments: "shared-prompt", "repeat-prompt-token" (the same tree, split one token earlier), "prefix-tree" (shares
            whatever tokens sequences begin with, in any depth) or "block-diagonal" (shares nothing: SFT packing).
        rows: "one-row" (all groups of a case in one row), "row-per-group", or "bins" (whole groups by first-fit
            decreasing, in about half as many rows as groups).
        takes: Kinds of case.
        objectives: What its loss computes.
        references: The frozen policies that it takes.
        adds_router_loss: Its loss adds that of routers.
    """

    backend: str
    segments: str = "shared-prompt"
    rows: str = "one-row"
    layout: str = "packed"
    takes: tuple[CaseKind, ...] = CASE_KINDS
    objectives: tuple[ObjectiveName, ...] = OBJECTIVE_NAMES
    references: tuple[ReferenceName, ...] = REFERENCE_NAMES
    adds_router_loss: bool = True

    @property
    def name(self) -> str:
        """Backend, with what differs from the default layout behind slashes."""
        parts = [self.backend]
        parts += [part for part in (self.segments, self.rows) if part not in ("shared-prompt", "one-row")]
        return "/".join(parts)

    def supports(self, case: Case) -> Support:
        """Only where the layout is another one than that of the other subjects."""
        if self.rows == "row-per-group" and len(case.groups) == 1:
            return Support(False, "one group: the row is the same as with all groups in one row")
        if self.rows == "bins" and (why := self._useless_bins(case)):
            return Support(False, why)
        if self.segments == "prefix-tree" and not shares_more_than_prompts(case.groups):
            return Support(False, "no responses of a prompt begin alike: the tree is that of shared prompts")
        shares_nothing = all(len(group.completions) == 1 for group in case.groups)
        if self.segments == "shared-prompt" and case.kind == "examples" and shares_nothing and self.rows == "one-row":
            return Support(False, "one response for each prompt: nothing is shared")
        return Support(True)

    def _useless_bins(self, case: Case) -> str:
        """Why bins would be no packing of its own on a case; "" where they are."""
        lengths = self._packed_lengths(case.groups)
        rows = rows_of_bins(lengths)
        if len(rows) in (1, len(lengths)):
            return "bins of one row, or of one group each: the rows are those of other subjects"
        slots = len(rows) * max(sum(lengths[index] for index in row) for row in rows)
        if case.kind != "examples" and slots >= case.pairwise_slots:
            return "padding of uneven rows takes as much as shared prompts save"
        return ""

    def _packed_lengths(self, groups: Sequence[PreferenceGroup]) -> list[int]:
        return [
            packed_length(len(group.prompt_ids), [len(ids) for ids in group.completions], layout=self.segments)
            for group in groups
        ]

    def _rows(self, groups: Sequence[PreferenceGroup]) -> str | Rows:
        return rows_of_bins(self._packed_lengths(groups)) if self.rows == "bins" else self.rows

    def supports_gradients(self, model: Any) -> Support:
        """Whether the backend has a backward pass on the model's device."""
        device = next(model.parameters()).device.type
        supported, reason = gradient_support(self.backend, device)
        return Support(supported, reason)

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion, from packed rows."""
        return step.per_token_logps(model, groups, backend=self.backend, layout=self.segments, rows=self._rows(groups))

    def loss(
        self, model: Any, groups: Sequence[PreferenceGroup], objective: Objective
    ) -> step.PackedLoss | step.SftLoss | RewardLoss | StepDone:
        """The packed step: loss and, where responses are compared, rewards.

        Under gradient checkpointing layers are run again in the backward pass, and the attention of the backend has to
        be there still: then backward is run here.
        """
        if not torch.is_grad_enabled() or not is_checkpointed(model):
            return self._loss(model, groups, objective)
        with attention_implementation(model, self.backend):
            output = self._loss(model, groups, objective)
            output.loss.backward()  # type: ignore[no-untyped-call]
        return StepDone.of(output)

    def _loss(
        self, model: Any, groups: Sequence[PreferenceGroup], objective: Objective
    ) -> step.PackedLoss | step.SftLoss | RewardLoss:
        rows = self._rows(groups)
        if isinstance(objective, RewardModel):
            return reward_loss(model, groups, backend=self.backend, layout=self.segments, rows=rows)
        if isinstance(objective, Sft):
            return step.sft_loss(
                model,
                groups,
                backend=self.backend,
                layout=self.segments,
                rows=rows,
                mean=objective.mean,
                router_aux_loss_coef=objective.router_aux_loss_coef,
            )
        return step.dpo_loss(
            model,
            groups,
            backend=self.backend,
            layout=self.segments,
            rows=rows,
            beta=objective.beta,
            label_smoothing=objective.label_smoothing,
            objective=objective.name,
            nll_weight=objective.nll_weight,
            reference=packed_reference(objective.reference, groups),
            router_aux_loss_coef=objective.router_aux_loss_coef,
        )

    def packed_rows(self, groups: Sequence[PreferenceGroup]) -> PackedRows:
        """The rows, with what the backend is told about who attends to whom, read back from its own form."""
        packed = pack(groups, layout=self.segments, rows=self._rows(groups))
        told = backend_named(self.backend).model_kwargs(packed.forests, torch.device("cpu"), torch.float32)
        lengths = torch.tensor(packed.completion_lengths)
        completions = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        return PackedRows(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            attended=_attended(told, packed),
            supervised=torch.stack((completions, packed.token_rows, packed.token_slots, packed.predictor_slots), dim=1)[
                packed.supervised
            ],
        )


def packed_reference(frozen: FrozenPolicy, groups: Sequence[PreferenceGroup]) -> ReferencePolicy:
    """The frozen policy of a run as the packed step takes it; cached log-probs go into its own kind of cache."""
    match frozen:
        case AdaptersOff():
            return reference_policy.ADAPTERS_OFF
        case FrozenAdapter(adapter):
            return reference_policy.FrozenAdapter(adapter)
        case SeparateModel(other):
            return reference_policy.SeparateModel(other)
        case CachedLogps():
            return reference_policy.CachedLogps(ReferenceCache(_by_identity(frozen, groups), frozen.name))
        case _:
            assert_never(frozen)


def _by_identity(frozen: CachedLogps, groups: Sequence[PreferenceGroup]) -> dict[str, Tensor]:
    logps = iter(frozen.look_up(groups))
    return {
        row_identity(group.prompt_ids, completion, mask or (True,) * len(completion), group.images): next(logps).cpu()
        for group in groups
        for completion, mask in zip_longest(group.completions, group.completion_masks, fillvalue=())
    }


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
        allowed[queries[:, None], keys[None, :]] = square if call.bias is None else call.bias == 0
    return allowed


def rows_of_bins(lengths: Sequence[int]) -> Rows:
    """Rows by first-fit decreasing, of the smallest limit under which they are at most half as many as groups.

    Args:
        lengths: Slots that each group takes in a packed row.

    Returns:
        The groups of each row; two rows at least, where there are as many groups.
    """
    wanted = max(2, len(lengths) // 2)
    for limit in range(max(lengths), sum(lengths)):
        rows = first_fit_decreasing(lengths, limit)
        if len(rows) <= wanted:
            return rows
    return first_fit_decreasing(lengths, sum(lengths))


def shares_more_than_prompts(groups: Sequence[PreferenceGroup]) -> bool:
    """Whether some sequences begin alike for longer than a prompt that they share."""
    within = any(one[0] == other[0] for group in groups for one, other in combinations(group.completions, 2))
    between = any(one.prompt_ids[0] == other.prompt_ids[0] for one, other in combinations(groups, 2))
    return within or between


PACKED_SUBJECTS: tuple[PackedSubject, ...] = (
    PackedSubject(backend="dense-eager"),
    PackedSubject(backend="dense-sdpa"),
    PackedSubject(backend="flex"),
    PackedSubject(backend="split"),
    PackedSubject(backend="dense-sdpa", segments="repeat-prompt-token"),
    PackedSubject(backend="split", segments="repeat-prompt-token"),
    PackedSubject(backend="dense-sdpa", rows="row-per-group", takes=("pairs", "groups")),
    PackedSubject(backend="split", rows="row-per-group", takes=("pairs", "groups")),
    PackedSubject(backend="dense-sdpa", rows="bins", takes=("pairs", "groups")),
    PackedSubject(backend="split", rows="bins", takes=("pairs", "groups")),
    PackedSubject(backend="dense-sdpa", segments="prefix-tree"),
    PackedSubject(backend="flex", segments="prefix-tree"),
    PackedSubject(backend="split", segments="prefix-tree"),
    PackedSubject(backend="dense-sdpa", segments="block-diagonal", takes=("examples",)),
    PackedSubject(backend="flex", segments="block-diagonal", takes=("examples",)),
    PackedSubject(backend="split", segments="block-diagonal", takes=("examples",)),
    PackedSubject(backend="dense-sdpa", segments="block-diagonal", rows="bins", takes=("examples",)),
)
