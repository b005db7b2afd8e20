"""The packed computation taken apart into stages, any one of which a fault may replace, as a subject.

The honest stages are in ``verify.subjects.honest_stages``; attention goes through a dense SDPA mask, so that any mask
can be expressed. Meant for small vocabularies: logits of all slots exist at one time.

Shape letters: B rows, T slots, V vocabulary, N targets, K completions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from packed_impl.attention import attention_implementation, pretrained_model
from packed_impl.images import PlacedImages, image_kwargs
from packed_impl.windows import layer_windows
from verify.cases import CASE_KINDS, Case, CaseKind
from verify.checks.packed_rows import PackedRows
from verify.faults.fault import Mutation, Packing
from verify.faults.rows import Rows
from verify.faults.stages import Batch, Forward, Parameters, Stages, Targets
from verify.frozen_policy import (
    ADAPTERS_OFF,
    REFERENCE_NAMES,
    AdaptersOff,
    CachedLogps,
    FrozenAdapter,
    FrozenPolicy,
    ReferenceName,
    SeparateModel,
)
from verify.groups import PreferenceGroup
from verify.handed_out import on_copies
from verify.module_walk import named_modules
from verify.objective import OBJECTIVE_NAMES, Objective, ObjectiveName, Preference, RewardModel
from verify.router_balance import RouterBalance
from verify.subject import Support
from verify.subjects.forward_cache import ForwardCache
from verify.subjects.honest_stages import attended, honest_activations, honest_gradients, honest_stages
from verify.subjects.staged_rewards import staged_rewards
from verify.subjects.staged_routers import logged_routers


@dataclass(frozen=True, eq=False)
class StagedLoss:
    """One step; completions in the standard order.

    Args:
        loss: Differentiable scalar.
        rewards: ``beta * (logp - ref_logp)`` of each completion, or that of a reward model, [K]; none under SFT.
        per_token_logps: Policy log-probs, one tensor per completion; empty of a reward model.
        ref_per_token_logps: The same under the frozen policy; empty where there is none.
        router_balance: That of the routers, where their loss is part of the step.
    """

    loss: Tensor
    rewards: Tensor
    per_token_logps: list[Tensor]
    ref_per_token_logps: list[Tensor]
    router_balance: RouterBalance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySubject:
    """A packed step with one stage replaced, or with none.

    Args:
        mutation: What is replaced and by what; None for the honest step.
        cases: Names of the cases it is run on; None for all.
        gradients: Whether gradients are computed; without them a step costs two forward passes.
        role: What its name begins with.
        layout: As in the contract of a subject.
        forwards: Passes without gradients that other subjects of the run may share.
        objectives: As in the contract of a subject.
        references: As in the contract of a subject.
        adds_router_loss: As in the contract of a subject.
        kept: What a mutation that remembers keeps from call to call.
    """

    mutation: Mutation | None = None
    cases: frozenset[str] | None = None
    gradients: bool = True
    role: str = "fault"
    layout: str = "packed"
    forwards: ForwardCache | None = field(default=None, compare=False, repr=False)
    objectives: tuple[ObjectiveName, ...] = OBJECTIVE_NAMES
    references: tuple[ReferenceName, ...] = REFERENCE_NAMES
    adds_router_loss: bool = True
    kept: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Its role and the name of the mutation, ``fault:none`` where nothing is replaced."""
        return f"{self.role}:{self.mutation.name if self.mutation else 'none'}"

    @property
    def takes(self) -> tuple[CaseKind, ...]:
        """The kinds of case that the mutation is planted on; all of them where nothing is replaced."""
        return self.mutation.kinds if self.mutation else CASE_KINDS

    @property
    def calls_foreign_code(self) -> bool:
        """Whether the replacement comes from outside the catalogue."""
        if self.mutation is None:
            return False
        replacement = self.mutation.replacement
        while isinstance(replacement, partial):
            replacement = replacement.func
        return not getattr(replacement, "__module__", "").startswith("verify.")

    def supports(self, case: Case) -> Support:
        """Only the cases that it was given, under objectives whose step has the stage."""
        if self.mutation is not None and not self.mutation.runs_under(case.objective_name):
            return Support(
                False, f"stage {self.mutation.stage} as replaced is no part of a step of {case.objective_name}"
            )
        if self.cases is None or case.name in self.cases:
            return Support(True)
        return Support(False, f"run on {', '.join(sorted(self.cases)) or 'no case'} only")

    def supports_gradients(self, model: Any) -> Support:
        """Whether gradients are wanted."""
        return Support(True) if self.gradients else Support(False, "planted for what the forward passes show")

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion."""
        stages = self._stages()
        rows = stages.layout(groups)
        parameters = _policy_parameters(stages, model, rows)
        return _by_completion(_logps(stages, model, rows, parameters, forwards=self.forwards), groups)

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Objective) -> StagedLoss:
        """The whole step."""
        stages = self._stages(objective.reference, groups) if isinstance(objective, Preference) else self._stages()
        rows = stages.layout(groups)
        coefficient = objective.router_aux_loss_coef
        if not coefficient and self.mutation is not None and self.mutation.stage == "routers":
            raise ValueError("the stage routers is part of steps with the loss of routers: give --router-loss")
        if isinstance(objective, RewardModel):
            return self._reward_model_loss(stages, model, rows, groups, objective)
        fed = _Fed.by(stages, rows)
        forwards = None if coefficient else self.forwards
        forward = partial(_logps, stages, model, forwards=forwards, known=fed)
        with logged_routers(_routed_models(model, objective) if coefficient else ()) as log:
            # The frozen policy goes first: PEFT's switches, which a replacement may use, reset requires_grad.
            ref_logps = stages.reference(model, forward, rows) if isinstance(objective, Preference) else None
            ref_routers = tuple(log.logits)
            logps = forward(rows, _policy_parameters(stages, model, rows))
        targets = fed.targets
        sums = stages.reduction(logps, targets)
        ref_sums = sums.new_empty(0) if ref_logps is None else stages.reduction(ref_logps, targets)
        batch = Batch(groups, targets.completions[targets.counted].bincount(minlength=len(sums)))
        terms = stages.objective(sums, ref_sums, batch, objective)
        loss, balance = stages.accumulation(terms, batch, rows), None
        if coefficient:
            term = stages.routers(log.passes(model, rows, ref_routers, coefficient))
            loss, balance = loss + term.value, term.balance
        return StagedLoss(
            loss=loss,
            rewards=terms.rewards,
            per_token_logps=_by_completion(logps, groups),
            ref_per_token_logps=[] if ref_logps is None else _by_completion(ref_logps, groups),
            router_balance=balance,
        )

    def _reward_model_loss(
        self, stages: Stages, model: Any, rows: Rows, groups: Sequence[PreferenceGroup], objective: RewardModel
    ) -> StagedLoss:
        batch = Batch(groups, torch.tensor([len(ids) for group in groups for ids in group.completions]))
        parameters = _policy_parameters(stages, model, rows)
        with _as_staged(stages, model, rows):
            rewards = staged_rewards(
                stages, model, rows, parameters, _inputs(stages, _Fed.by(stages, rows), model), batch
            )
        terms = stages.objective(rewards, rewards.new_empty(0), batch, objective)
        return StagedLoss(
            loss=stages.accumulation(terms, batch, rows),
            rewards=terms.rewards,
            per_token_logps=[],
            ref_per_token_logps=[],
        )

    def packed_rows(self, groups: Sequence[PreferenceGroup]) -> PackedRows:
        """What the stages from layout to supervision say."""
        stages = self._stages()
        rows = stages.layout(groups)
        targets = stages.supervision(rows, stages.predictors(rows))
        return PackedRows(
            input_ids=rows.input_ids,
            position_ids=stages.positions(rows),
            attended=attended(stages.mask(rows)),
            supervised=_supervised(targets, rows),
        )

    def _stages(self, frozen: FrozenPolicy = ADAPTERS_OFF, groups: Sequence[PreferenceGroup] = ()) -> Stages:
        stages = self._with_fault(honest_stages(self.mutation.packing if self.mutation else Packing()))
        if isinstance(frozen, AdaptersOff):
            return stages
        # What is replaced sits in the reference pass too, unless it is that pass.
        honest = replace(stages, reference=partial(_reference_by, frozen, stages, self.forwards, groups))
        at_fault = self.mutation is not None and self.mutation.stage == "reference"
        return self._with_fault(honest) if at_fault else honest

    def _with_fault(self, honest: Stages) -> Stages:
        if self.mutation is None:
            return honest
        replacement = self.mutation.replacement
        if self.mutation.remembers:
            replacement = partial(replacement, kept=self.kept)
        if self.calls_foreign_code:
            replacement = on_copies(self.name, replacement)
        return honest.replaced(self.mutation.stage, replacement)


def _routed_models(model: Any, objective: Objective) -> tuple[Any, ...]:
    """Those that a step runs."""
    frozen = objective.reference if isinstance(objective, Preference) else None
    return (model, frozen.model) if isinstance(frozen, SeparateModel) else (model,)


def _supervised(targets: Targets, rows: Rows) -> Tensor:
    """Completion, row, slot and predictor slot of all that is counted. The completions' own tokens come first.

    From where other terms take their token is not written down; it is taken to be the slot after the predictor.
    """
    own = [slot for branch in rows.branches() for slot in branch.tokens]
    after = (targets.predictor_slots[len(own) :] + 1) % rows.num_slots
    slots = torch.cat((torch.tensor(own), after))
    return torch.stack((targets.completions, targets.rows, slots, targets.predictor_slots), dim=1)[targets.counted]


@dataclass(frozen=True, eq=False, slots=True)
class _Fed:
    """What a pass over rows is told by the stages, whichever policy it is of; the rows, to know them again."""

    rows: Rows
    input_ids: Tensor
    positions: Tensor
    mask: Tensor
    targets: Targets

    @staticmethod
    def by(stages: Stages, rows: Rows) -> _Fed:
        targets = stages.supervision(rows, stages.predictors(rows))
        return _Fed(rows, rows.input_ids, stages.positions(rows), stages.mask(rows), targets)


def _logps(
    stages: Stages,
    model: Any,
    rows: Rows,
    parameters: Parameters,
    *,
    forwards: ForwardCache | None = None,
    known: _Fed | None = None,
) -> Tensor:
    """Log-probs of all targets; [N]. What is known of other rows than these is of no use."""
    device = model.device
    fed = known if known is not None and known.rows is rows else _Fed.by(stages, rows)
    targets, inputs = fed.targets, _inputs(stages, fed, model)
    if rows.images:
        forwards = None  # which tells passes apart by their tokens
    if forwards is None or torch.is_grad_enabled() or parameters or stages.activations is not honest_activations:
        logits_BTV = _logits(stages, model, rows, parameters, inputs)  # noqa: N806
    else:
        logits_BTV = forwards.logits(model, inputs, partial(_logits, stages, model, rows, {}))  # noqa: N806
    picked = logits_BTV[targets.rows.to(device), targets.predictor_slots.to(device)]
    # A copy: a replacement may write into what it is handed, and the other pass takes the same targets.
    return stages.token_logps(picked, targets.token_ids.to(device, copy=True))


def _inputs(stages: Stages, fed: _Fed, model: Any) -> dict[str, Any]:
    """Keyword arguments of a forward pass."""
    rows = fed.rows
    placed = PlacedImages(rows.images, rows.per_image, rows.features) if rows.images else None
    return {
        "input_ids": fed.input_ids.to(model.device),
        "position_ids": fed.positions.to(model.device),
        "attention_mask": layer_windows(pretrained_model(model)).handed_out(partial(_told, stages, fed, model)),
        "use_cache": False,
        **({} if placed is None else image_kwargs(model, fed.input_ids, placed)),
    }


def _told(stages: Stages, fed: _Fed, model: Any, window: int | None) -> Tensor:
    """The mask for layers of one window, where the model wants it; [B, 1, T query, T key]."""
    mask = fed.mask if window is None else stages.window(fed.rows, fed.mask, window)
    return mask[:, None].to(model.device, model.dtype if mask.is_floating_point() else torch.bool)


def _logits(stages: Stages, model: Any, rows: Rows, parameters: Parameters, inputs: Mapping[str, Any]) -> Tensor:
    """Logits of all slots; [B, T, V]."""
    with _as_staged(stages, model, rows):
        output = _with_parameters(model, parameters, inputs) if parameters else model(**inputs)
    logits: Tensor = output.logits
    return logits


def _with_parameters(model: Any, parameters: Parameters, inputs: Mapping[str, Any]) -> Any:
    """A pass in which tensors stand for parameters, for each use of a tied one its own."""
    return functional_call(model, dict(parameters), kwargs=dict(inputs), tie_weights=False)


@contextmanager
def _as_staged(stages: Stages, model: Any, rows: Rows) -> Iterator[None]:
    """The attention of a staged step, and its activations."""
    with ExitStack() as stack:
        stack.enter_context(attention_implementation(model, "dense-sdpa"))
        if stages.activations is not honest_activations:  # hundreds of hooks take longer than a tiny model's pass
            for name, module in model.named_modules():
                hook = partial(_pass_on, stages, rows, f".{name}")  # so that ".model.norm" ends it, wrapped or not
                stack.callback(module.register_forward_hook(hook).remove)
        yield


def _pass_on(stages: Stages, rows: Rows, name: str, module: nn.Module, args: object, output: object) -> object:
    return stages.activations(rows, name, output) if isinstance(output, Tensor) else output


def _policy_parameters(stages: Stages, model: Any, rows: Rows) -> Parameters:
    if not torch.is_grad_enabled() or stages.gradients is honest_gradients:  # parameters that stand for themselves
        return {}
    uses = [
        (f"{prefix}.{name}" if prefix else name, parameter)
        for prefix, module in named_modules(model)
        for name, parameter in module._parameters.items()
    ]
    return {name: stages.gradients(name, p, rows) for name, p in uses if p is not None and p.requires_grad}


def _by_completion(logps: Tensor, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
    lengths = [len(ids) for group in groups for ids in group.completions]
    return list(torch.split(logps[: sum(lengths)], lengths))


def _reference_by(
    frozen: FrozenAdapter | SeparateModel | CachedLogps,
    stages: Stages,
    forwards: ForwardCache | None,
    groups: Sequence[PreferenceGroup],
    model: Any,
    forward: Forward,
    rows: Rows,
    shared: Parameters = MappingProxyType({}),
) -> Tensor:
    """The reference pass of another frozen policy than the model with its adapters off.

    Nothing was cached for what a fault predicts beside the completions' own tokens. What a fault shares with the policy
    stands in another model for its own tensors.
    """
    if isinstance(frozen, CachedLogps):
        cached = torch.cat(frozen.look_up(groups))
        return pad(cached, (0, len(stages.supervision(rows, stages.predictors(rows)).counted) - len(cached)))
    with torch.no_grad(), frozen.standing_in(model) as stand_in:
        return _logps(stages, stand_in, rows, shared, forwards=forwards)
