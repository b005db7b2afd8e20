"""Whether a model whose layers have a sliding window can show a mutation at all."""

from __future__ import annotations

import torch

from verify.cases import Case
from verify.faults.fault import Mutation
from verify.subjects.honest_stages import attended, honest_stages


def shows_within(window: int, mutation: Mutation, case: Case) -> bool:
    """Whether a model with a window shows a mutation on a case on which it bites.

    Args:
        window: The window of its layers.
        mutation: What is replaced.
        case: A case where the mutation bites.

    Returns:
        False where the mask is replaced, or what the window makes of it, and nothing is different to any slot that
        predicts.
    """
    if mutation.stage not in ("mask", "window"):
        return True
    honest = honest_stages(mutation.packing)
    rows = honest.layout(case.groups)
    targets = honest.supervision(rows, honest.predictors(rows))
    kept, wrong = (
        stages.window(rows, stages.mask(rows), window)[targets.rows, targets.predictor_slots]
        for stages in (honest, honest.replaced(mutation.stage, mutation.replacement))
    )
    return not torch.equal(attended(kept), attended(wrong)) or kept.dtype != wrong.dtype
