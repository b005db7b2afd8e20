"""Faults of the load balancing loss of routers; for a mixture of experts, so not among those of the tiny model.

Shape letters: B rows, T slots, N slots of all rows, L layers with routers, E experts, k of them for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from verify.faults.conditions import PADDED_ROW, SEVERAL_GROUPS
from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, ROW_PER_GROUP, Fault
from verify.faults.stages import RoutedPasses, Routers, RouterTerm


def other_counts(counts: Callable[[RoutedPasses], Tensor], honest: Routers, passes: RoutedPasses) -> RouterTerm:
    """Slots count otherwise."""
    return honest(replace(passes, counts=counts(passes)))


def once(passes: RoutedPasses) -> Tensor:
    """Every token of the row counts once, be it shared or not."""
    return passes.counts.clamp(max=1)


def padding_too(passes: RoutedPasses) -> Tensor:
    """Padding counts as one token a slot."""
    return passes.counts.clamp(min=1)


def without_prompts(passes: RoutedPasses) -> Tensor:
    """Only tokens of completions count, as in the loss."""
    return torch.where(passes.is_prompt, 0, passes.counts)


def without_last_tokens(passes: RoutedPasses) -> Tensor:
    """The last token of a completion predicts nothing, and does not count."""
    counts = passes.counts.clone()
    counts[passes.last_tokens.unbind(1)] -= 1
    return counts


def reference_too(honest: Routers, passes: RoutedPasses) -> RouterTerm:
    """The pass of the frozen policy counts as well, without a gradient."""
    return honest(replace(passes, policy=[*passes.policy, *passes.reference]))


def scaled(factor: Callable[[RoutedPasses], float], honest: Routers, passes: RoutedPasses) -> RouterTerm:
    """The term times a number."""
    term = honest(passes)
    return replace(term, value=factor(passes) * term.value)


def without_coefficient(passes: RoutedPasses) -> float:
    """What the loss of the routers is weighed with is left out."""
    return 1 / passes.coefficient


def shares_over_choices(honest: Routers, passes: RoutedPasses) -> RouterTerm:
    """Shares are those of all choices, k for each token, and so add up to 1."""
    term = honest(passes)
    shares = term.balance.shares / passes.top_k
    return replace(term, value=term.value / passes.top_k, balance=replace(term.balance, shares=shares))


def mean_over_parts(
    parts: Callable[[RoutedPasses], list[RoutedPasses]], honest: Routers, passes: RoutedPasses
) -> RouterTerm:
    """The mean of the losses of parts; shares and probabilities are those of the whole."""
    losses = [honest(part).value for part in parts(passes)]
    return replace(honest(passes), value=torch.stack(losses).mean())


def layers(passes: RoutedPasses) -> list[RoutedPasses]:
    """Each layer for itself, as Switch Transformers add up their losses."""
    return [replace(passes, policy=[layer]) for layer in passes.policy]


def rows(passes: RoutedPasses) -> list[RoutedPasses]:
    """Each row for itself."""
    num_rows, num_slots = passes.counts.shape
    logits = [layer.reshape(num_rows, num_slots, -1) for layer in passes.policy]
    return [
        replace(passes, policy=[layer[row] for layer in logits], counts=passes.counts[row][None])
        for row in range(num_rows)
    ]


def detached(honest: Routers, passes: RoutedPasses) -> RouterTerm:
    """The term is added without its graph."""
    term = honest(passes)
    return replace(term, value=term.value.detach())


_LOGPS_EXACT = "log-probs, rewards and margins exact; "

FAULTS = (
    Fault(
        name="routers-count-prompts-once",
        stage="routers",
        replacement=partial(other_counts, once),
        what="The balance of routers is taken over the slots of the packed row, in which a prompt stands once.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "shares and mean probabilities lean to the responses",
        invisible_where="one response for each prompt; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-count-padding",
        stage="routers",
        replacement=partial(other_counts, padding_too),
        what="Padding slots count in the balance of routers.",
        kinds=PREFERENCES,
        packing=ROW_PER_GROUP,
        bites_where=PADDED_ROW,
        signature=_LOGPS_EXACT + "shares and mean probabilities lean to what routers make of padding",
        invisible_where="rows of one length; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-count-completions-only",
        stage="routers",
        replacement=partial(other_counts, without_prompts),
        what="Only tokens of completions count in the balance of routers, as in the loss of log-probs.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "shares and mean probabilities are those of the responses",
        invisible_where="runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-miss-last-tokens",
        stage="routers",
        replacement=partial(other_counts, without_last_tokens),
        what="The last token of each completion, which predicts nothing, does not count in the balance of routers.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "shares and mean probabilities off by what one token a response has in them",
        invisible_where="runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-count-reference-pass",
        stage="routers",
        replacement=reference_too,
        what="The pass of the frozen policy counts in the balance of routers.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "shares and mean probabilities lean to the frozen policy's, the gradient is half",
        invisible_where="frozen policies that run no pass of the model; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-share-of-choices",
        stage="routers",
        replacement=shares_over_choices,
        what="Shares are those of all choices instead of tokens: divided by the number of experts for a token.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "the loss of the routers and its gradient a k-th",
        invisible_where="one expert for each token; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-without-coefficient",
        stage="routers",
        replacement=partial(scaled, without_coefficient),
        what="The loss of the routers is added without its coefficient.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "the loss too large by about k",
        invisible_where="a coefficient of 1; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-mean-of-rows",
        stage="routers",
        replacement=partial(mean_over_parts, rows),
        what="The loss of the routers is the mean of the losses of rows.",
        kinds=PREFERENCES,
        packing=ROW_PER_GROUP,
        bites_where=SEVERAL_GROUPS,
        signature=_LOGPS_EXACT + "shares and mean probabilities exact; the loss too large by how rows differ",
        invisible_where="one row; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-mean-of-layers",
        stage="routers",
        replacement=partial(mean_over_parts, layers),
        what="The loss of the routers is the mean of the losses of layers instead of one over all of their tokens.",
        kinds=PREFERENCES,
        signature=_LOGPS_EXACT + "shares and mean probabilities exact; the loss too large by how layers differ",
        invisible_where="one layer with routers; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="routers-without-gradient",
        stage="routers",
        replacement=detached,
        what="The loss of the routers is added without a gradient.",
        kinds=PREFERENCES,
        signature="forward quantities exact; gradients lack that of the routers' loss",
        invisible_where="forward quantities; runs without the loss of routers; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
)
