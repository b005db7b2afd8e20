"""GroupDPO's two-pass step as a subject: it runs backward itself, over micro-batches of packed branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from packed_impl import step
from packed_impl.attention import gradient_support
from packed_impl.two_pass import two_pass_step
from verify.cases import Case, CaseKind
from verify.frozen_policy import REFERENCE_NAMES, ReferenceName
from verify.groups import PreferenceGroup
from verify.objective import PREFERENCE_NAMES, ObjectiveName, Preference
from verify.subject import Support
from verify.subjects.packed import packed_reference


@dataclass(frozen=True, slots=True)
class TwoPassLoss:
    """What a two-pass step gives back.

    Args:
        loss: The loss of the batch, without a graph.
        rewards: One per completion.
        backward_done: The gradients of the batch are in ``.grad``.
    """

    loss: Tensor
    rewards: Tensor
    backward_done: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPassSubject:
    """Coefficients from a pass over the batch without gradients, then a replay in micro-batches.

    It saves activations, not token slots, since each branch runs twice: it makes no claim to be packed.

    Args:
        backend: "dense-sdpa" or "split".
        branches: The most branches of a micro-batch.
        layout: As in the contract of a subject.
        takes: Kinds of case.
        objectives: What its loss computes.
        references: The frozen policies that it takes.
    """

    backend: str
    branches: int = 2
    layout: str = "unpacked"
    takes: tuple[CaseKind, ...] = ("pairs", "groups")
    objectives: tuple[ObjectiveName, ...] = PREFERENCE_NAMES
    references: tuple[ReferenceName, ...] = REFERENCE_NAMES

    @property
    def name(self) -> str:
        """Backend and what it is."""
        return f"{self.backend}/two-pass"

    def supports(self, case: Case) -> Support:
        """Only groups without a response twice: the step refuses them."""
        if any(len(set(group.completions)) < len(group.completions) for group in case.groups):
            return Support(False, "a response is in one group twice, which the two-pass step refuses")
        return Support(True)

    def supports_gradients(self, model: Any) -> Support:
        """Whether the backend has a backward pass on the model's device."""
        supported, reason = gradient_support(self.backend, next(model.parameters()).device.type)
        return Support(supported, reason)

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion, from one packed row."""
        return step.per_token_logps(model, groups, backend=self.backend)

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Preference) -> TwoPassLoss:
        """The step; gradients are in ``.grad`` afterwards."""
        done = two_pass_step(
            model,
            groups,
            backend=self.backend,
            beta=objective.beta,
            label_smoothing=objective.label_smoothing,
            objective=objective.name,
            nll_weight=objective.nll_weight,
            branches_per_micro_batch=self.branches,
            reference=packed_reference(objective.reference, groups),
        )
        return TwoPassLoss(done.loss, done.rewards)


TWO_PASS_SUBJECTS = (TwoPassSubject(backend="dense-sdpa"), TwoPassSubject(backend="split"))
