"""What the routers of a mixture of experts add to a staged step.

Shape letters: B rows, T slots, N slots of all rows, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from packed_impl.router_loss import balance, router_modules
from verify.faults.rows import Branch, Rows
from verify.faults.stages import RoutedPasses, RouterTerm
from verify.router_balance import RouterBalance, experts_per_token


@dataclass(eq=False)
class RouterLog:
    """Router logits of the passes of one step, in the order in which they were run; [N, E] for each layer."""

    logits: list[Tensor] = field(default_factory=list)

    def passes(self, model: Any, rows: Rows, reference: Sequence[Tensor], coefficient: float) -> RoutedPasses:
        """What the stage is handed: all logits but those of the reference are the policy's."""
        device = model.device
        return RoutedPasses(
            policy=self.logits[len(reference) :],
            reference=reference,
            counts=completions_through(rows).to(device),
            is_prompt=torch.tensor(
                [[not (piece.held or piece.is_padding) for piece in row for _ in piece.ids] for row in rows.rows]
            ).to(device),
            last_tokens=torch.tensor([(branch.row, branch.tokens[-1]) for branch in _last_pieces(rows)]).to(device),
            top_k=experts_per_token(model),
            coefficient=coefficient,
        )


@contextmanager
def logged_routers(models: Sequence[nn.Module]) -> Iterator[RouterLog]:
    """Log what the routers of models say within the context.

    Args:
        models: The policy, and the model of the frozen policy where that is another one.

    Yields:
        The log.
    """
    log = RouterLog()

    def keep(place: int, output: Tensor | tuple[Tensor, ...]) -> None:
        logits = output if isinstance(output, Tensor) else output[place]
        log.logits.append(logits.flatten(0, -2))

    with ExitStack() as hooks:
        for model in models:
            for router, place in router_modules(model):
                hook = router.register_forward_hook(lambda _, __, output, place=place: keep(place, output))
                hooks.callback(hook.remove)
        yield log


def completions_through(rows: Rows) -> Tensor:
    """How many completions have their path through each slot, 0 of padding; int64, [B, T]."""
    counts = torch.zeros(len(rows.rows), rows.num_slots, dtype=torch.int64)
    for branch in _last_pieces(rows):
        for place in rows.ancestors_of(branch):
            counts[branch.row, place.start : place.stop] += 1
        counts[branch.row, branch.start : branch.tokens.stop] += 1
    return counts


def _last_pieces(rows: Rows) -> list[Branch]:
    """The piece that holds the last token of each completion, in completion order."""
    last = {branch.completion: branch for branch in rows.branches()}
    return [last[completion] for completion in sorted(last)]


def routers(passes: RoutedPasses) -> RouterTerm:
    """The loss of the policy's routers over the completions' paths, weighted."""
    found = balance(passes.policy, passes.counts.flatten(), top_k=passes.top_k)
    shown = RouterBalance(*(each.detach().to("cpu", torch.float64) for each in (found.shares, found.probs)))
    return RouterTerm(passes.coefficient * found.loss, shown)
