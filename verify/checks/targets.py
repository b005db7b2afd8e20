"""Which tokens the loss of a subject counts as targets, and how often: by its gradient at the logits, and by its rows.

Where a slot predicts the tokens y with weights c_y, the gradient of the loss sum_y c_y (-log p_y) at its logits is
``g_v = C p_v - c_v`` with ``C = sum_y c_y`` (derived). It is negative at targets alone as long as none of them is more
likely than its share c_y / C. Over all others it adds up to ``C (1 - sum_y p_y)``, which gives C, and then every c_y.
Nothing of that comes from what the subject says about itself.

Shape letters: S slots, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import NotApplicableError
from verify.checks.packed_rows import check_packed_rows
from verify.models.dtypes import DTYPES
from verify.precision import rounds_in
from verify.returned_values import backward_done, check_loss
from verify.subject import gradient_support, owns_loss
from verify.trained_gradients import to_float64

_ADDS_UP = 0.05
"""What a gradient at logits may add up to, relative to its size: it is 0 but for the rounding of the dtype."""
_EPSILONS, _SMALLEST = 16, 1e-3
"""How far a count may be off: so many epsilons of the dtype of the logits, a thousandth of a target at least."""


@dataclass(frozen=True, slots=True)
class CountedTargets:
    """What one source says about the targets of a loss that is a mean over N tokens.

    Args:
        source: Where it is read: "the gradient of the loss at the logits" or "the rows that it shows".
        times: For each token id how often it counts: its weight times N. Ids that do not count are left out.
        rounding: How far a count may be off.
    """

    source: str
    times: Mapping[int, float]
    rounding: float = 0.0


def expected_targets(case: Case) -> dict[int, float]:
    """How often each token id of a case is supervised: twice where two examples share it."""
    return dict(
        Counter(
            ids[place]
            for group in case.groups
            for ids, supervised in zip(group.completions, group.supervised, strict=True)
            for place in supervised
        )
    )


def counted_targets(bench: Bench, case: Case) -> tuple[CountedTargets, ...]:
    """What can be seen of the targets, read once for all checks.

    Args:
        bench: The subject and its model.
        case: A case of the token mean, in which an id says which token it is.

    Returns:
        One entry for each source that the subject offers, at least one.

    Raises:
        NotApplicableError: It offers none, or the model hides it.
        SubjectError: It broke its contract.
    """
    found = bench.once(("targets", case.name), lambda: _read_targets(bench, case))
    if not found:
        raise NotApplicableError(
            "its targets cannot be seen: no packed_rows, and no loss of its own whose gradient passes the output head "
            "of a model whose logits are what that gives, or a multiple of it (without a loss of its own the runner "
            "counts exactly the supervised tokens)"
        )
    return found


def _read_targets(bench: Bench, case: Case) -> tuple[CountedTargets, ...]:
    found = []
    if owns_loss(bench.subject) and gradient_support(bench.subject, bench.model).supported:
        weights = _weights(bench, case)
        if weights is not None:
            times = {token: weight * case.num_completion_tokens for token, weight in weights.items()}
            rounding = max(_SMALLEST, _EPSILONS * float(torch.finfo(DTYPES[rounds_in(bench.setting.dtype)]).eps))
            found.append(CountedTargets("the gradient of the loss at the logits", times, rounding))
    packed_rows = getattr(bench.subject, "packed_rows", None)
    if packed_rows is not None:
        shown = bench.call(lambda: packed_rows(case.groups))
        rows = check_packed_rows(shown, case.groups, subject=bench.subject.name)
        tokens = rows.input_ids[rows.supervised[:, 1], rows.supervised[:, 2]].tolist()
        found.append(CountedTargets("the rows that it shows", Counter(tokens)))
    return tuple(found)


def _weights(bench: Bench, case: Case) -> dict[int, float] | None:
    """The weight of each target in the loss; None where the gradient at the logits does not show it."""
    subject, objective = bench.subject, bench.objective_of(case)
    scale = bench.once("scale of the logits", lambda: scale_of_logits(bench.model))
    if scale is None:
        return None
    with _logits_as_leaves(bench.model) as leaves:
        output = bench.call(lambda: subject.loss(bench.model, case.groups, objective))  # type: ignore[attr-defined]
        loss, _ = check_loss(output, subject=subject.name, num_completions=0, differentiable=True)
        if not backward_done(output, subject.name):
            bench.call(loss.backward, seeded=False)
    bench.drop_gradients()
    weights: dict[int, float] = {}
    for leaf in leaves:
        if leaf.grad is None:
            continue
        # By the chain rule a gradient at what the head gives is that at the logits, times their scale.
        read = weights_of_targets(to_float64(leaf).flatten(0, -2) * scale, to_float64(leaf.grad).flatten(0, -2) / scale)
        if read is None:
            return None
        for token, weight in read:
            weights[token] = weights.get(token, 0.0) + weight
    return weights or None


def weights_of_targets(logits_SV: Tensor, gradients_SV: Tensor) -> list[tuple[int, float]] | None:  # noqa: N803
    """Targets and their weights.

    Args:
        logits_SV: Logits of some slots, float64.
        gradients_SV: The gradient of a loss at them, float64.

    Returns:
        Token id and weight of every target of every slot, slot by slot; None where the gradients are not those of a
        sum of weighted -log p.
    """
    found = []
    for logits_V, gradient_V in zip(logits_SV, gradients_SV, strict=True):  # noqa: N806
        size = float(gradient_V.abs().sum())
        if size == 0:
            continue
        targets = gradient_V < 0
        if not abs(float(gradient_V.sum())) <= _ADDS_UP * size or not bool(targets.any()):
            return None
        p_V = logits_V.softmax(-1)  # noqa: N806
        total = gradient_V[~targets].sum() / (1 - p_V[targets].sum())
        weights = total * p_V[targets] - gradient_V[targets]
        found += list(zip(targets.nonzero()[:, 0].tolist(), weights.tolist(), strict=True))
    return found


def scale_of_logits(model: Any) -> float | None:
    """What a model multiplies the output of its head with to make logits: 1 in most, less in Cohere's and Granite.

    Args:
        model: A causal LM.

    Returns:
        The factor, measured on one short sequence; None where logits are no multiple of that output (Gemma 2 caps
        them), or where no module is the head.
    """
    head, given = model.get_output_embeddings(), list[Tensor]()
    if not isinstance(head, nn.Module):
        return None
    handle = head.register_forward_hook(lambda _module, _args, output: given.append(output.detach()))
    try:
        with torch.no_grad():
            logits = model(input_ids=torch.arange(4, device=model.device)[None], use_cache=False).logits
    finally:
        handle.remove()
    if len(given) != 1 or given[0].shape != logits.shape:
        return None
    output, logits = given[0].double().cpu(), logits.double().cpu()
    scale = float((output * logits).sum() / output.square().sum())
    rounding = _EPSILONS * float(torch.finfo(given[0].dtype).eps) * float(logits.abs().max())
    return scale if scale > 0 and float((logits - scale * output).abs().max()) <= rounding else None


@contextmanager
def _logits_as_leaves(model: Any) -> Iterator[list[Tensor]]:
    """Cut the graph at the output head: what comes out of each call is a leaf whose gradient can be read."""
    leaves: list[Tensor] = []

    def cut(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    head = model.get_output_embeddings()
    handles = [head.register_forward_hook(cut)] if isinstance(head, nn.Module) else []
    try:
        with torch.enable_grad():
            yield leaves
    finally:
        for handle in handles:
            handle.remove()
