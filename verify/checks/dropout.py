"""With dropout before the LoRA factors, and the same masks, loss and gradients are those of the unpacked path.

What training mode changes is seen nowhere else: a step that leaves the model in evaluation mode trains without dropout.
"""

from __future__ import annotations

from torch import nn

from verify.cases import Case
from verify.checks.accumulation import BackwardError, accumulated
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.gradient_distance import distances, held_against
from verify.checks.same_dropout import UnseenSlotsError, same_dropout
from verify.checks.yardsticks import measured
from verify.models.adapters import has_adapters
from verify.subject import SubjectError, gradient_support


def _measure(bench: Bench, case: Case) -> Measured:
    if not has_adapters(bench.model):
        raise NotApplicableError("every weight is trained: there are no adapters, before which features are dropped")
    if why := drops_by_place(bench.model):
        raise NotApplicableError(why)
    support = gradient_support(bench.subject, bench.model)
    if not support.supported:
        raise NotApplicableError(support.reason)
    yardstick = measured(bench.setting.training.under_dropout.get(case.name))
    try:
        with same_dropout(bench.model, seed=bench.setting.seed):
            actual = accumulated(bench, (case.groups,), bench.objective_of(case))
    except SubjectError as error:
        if isinstance(error.__cause__, UnseenSlotsError):
            raise NotApplicableError(f"masks cannot be the same: {error.__cause__}") from error
        if isinstance(error.__cause__, ValueError | NotImplementedError) and not isinstance(error, BackwardError):
            raise NotApplicableError(f"it refuses: {error}") from error
        raise
    return held_against(distances(actual, yardstick, "with dropout: "))


def drops_by_place(model: object) -> str:
    """Why the model has dropout of its own whose masks differ from layout to layout; "" where it has none.

    Args:
        model: The model.

    Returns:
        The reason.
    """
    rate = getattr(getattr(model, "config", None), "attention_dropout", 0.0)
    if rate:
        return f"the model drops attention weights by place (attention_dropout {rate}): masks cannot be the same"
    modules = model.modules() if isinstance(model, nn.Module) else ()
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
        return "the model has dropout of its own, which draws by place: masks cannot be the same"
    return ""


DROPOUT = ExactCheck(
    name="dropout",
    claims=(
        "In training mode, with a quarter of the inputs of every LoRA factor dropped by masks that depend on token and "
        "position alone, loss and gradient of every LoRA tensor are those of the unpacked path under the same masks "
        "but for rounding; the frozen policy drops nothing."
    ),
    cannot_see=(
        "Masks as torch draws them, which differ between layouts; subjects that call the decoder without token ids or "
        "with a cache (NOT_APPLICABLE with the reason); dropout within attention. A shift of all positions, harmless "
        "under rotary attention, gives other masks and fails here as in absolute-positions."
    ),
    cases=("distinct-tokens", "distinct-turns", "distinct-examples"),
    measure=_measure,
)
