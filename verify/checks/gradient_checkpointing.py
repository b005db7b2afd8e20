"""Under gradient checkpointing loss and gradients are what they are without it.

Layers are run again in the backward pass, when whatever a packed step had set up around its forward pass may be gone:
the attention implementation, hooks, a mask that lies in a buffer. What is computed then is another function, silently
where torch does not compare the two runs.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

from torch.utils.checkpoint import CheckpointError

from verify.cases import Case
from verify.checks.accumulation import Accumulated, BackwardError, accumulated
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.checkpointed import checkpointed, training_mode
from verify.checks.dropout import drops_by_place
from verify.checks.gradient_distance import Distance, distances, held_against
from verify.checks.gradient_yardsticks import GradientYardstick
from verify.checks.yardsticks import measured
from verify.subject import SubjectError, gradient_support, said_by

_KINDS = {True: "reentrant", False: "not reentrant"}


def _measure(bench: Bench, case: Case) -> Measured:
    support = gradient_support(bench.subject, bench.model)
    if not support.supported:
        raise NotApplicableError(support.reason)
    budgets = measured(bench.setting.training.trajectories.get(case.name)).steps[0].yardstick
    # Where the model has dropout of its own, the same seed draws the same masks with checkpoints and without.
    with training_mode(bench.model) if drops_by_place(bench.model) else nullcontext():
        plain = _unless_refused(bench, case)
    expected = GradientYardstick(
        loss=plain.loss,
        gradients=plain.gradients,
        loss_budget=budgets.loss_budget,
        gradient_budgets=budgets.gradient_budgets,
    )
    found: list[Distance] = []
    for use_reentrant, kind in _KINDS.items():
        where = f"with checkpoints ({kind}): "
        try:
            found += distances(_checkpointed(bench, case, use_reentrant=use_reentrant), expected, where)
        except BackwardError as error:
            if not isinstance(error.__cause__, CheckpointError):
                raise
            so_far = held_against(found) if found else None
            if so_far is not None and so_far.num_differing:
                return so_far
            return Measured(
                num_compared=len(found) + 1,
                num_differing=1,
                worst=f"{where}torch finds that other things are run again: {said_by(error.__cause__)}",
                ratio=math.inf,
            )
    return held_against(found)


def _checkpointed(bench: Bench, case: Case, *, use_reentrant: bool) -> Accumulated:
    with checkpointed(bench.model, use_reentrant=use_reentrant) as counted:
        support = gradient_support(bench.subject, bench.model)
        if not support.supported:
            raise NotApplicableError(support.reason)
        actual = _unless_refused(bench, case)
    if counted.runs == counted.layers:
        raise NotApplicableError(
            f"none of {counted.layers} layers was run again: it runs layers of its own, or sets the model to evaluation"
        )
    return actual


def _unless_refused(bench: Bench, case: Case) -> Accumulated:
    try:
        return accumulated(bench, (case.groups,), bench.objective_of(case))
    except BackwardError:
        raise
    except SubjectError as error:
        if isinstance(error.__cause__, ValueError | NotImplementedError):
            raise NotApplicableError(f"it refuses: {error}") from error
        raise


GRADIENT_CHECKPOINTING = ExactCheck(
    name="gradient-checkpointing",
    claims=(
        "In training mode with gradient checkpointing in every layer, reentrant or not, loss and gradient of every "
        "LoRA tensor are those without it but for rounding, and layers were run again."
    ),
    cannot_see=(
        "Subjects that refuse (NOT_APPLICABLE with their words), or whose layers are not the model's; memory; "
        "checkpoints that a trainer places itself."
    ),
    cases=("distinct-tokens", "distinct-turns", "distinct-examples"),
    measure=_measure,
)
