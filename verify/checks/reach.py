"""Which tokens reach a log-prob: all before it on its path and no other, read off gradients at the embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench, flat
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.embedded import Embedded, embeddings_as_leaves
from verify.checks.places import TokenPlace, all_places, ids_before, supervised_tokens
from verify.groups import PreferenceGroup
from verify.returned_values import check_logps
from verify.subject import gradient_support
from verify.subjects.pairwise import WITNESS
from verify.supervised_values import supervised_logps


def hold_against_paths(bench: Bench, case: Case) -> Measured:
    """Read which tokens reach which log-prob, and hold it against the paths.

    Args:
        bench: The subject and its model.
        case: A case of distinct tokens.

    Returns:
        The violations.

    Raises:
        NotApplicableError: No gradients, or no token passed the embedding.
        SubjectError: The subject broke its contract.
    """
    support = gradient_support(bench.subject, bench.model)
    if not support.supported:
        raise NotApplicableError(support.reason)
    with embeddings_as_leaves(bench.model) as embedded:
        returned = bench.call(lambda: bench.subject.per_token_logps(bench.model, case.groups))
        if not embedded:
            raise NotApplicableError("no token passed the model's embedding, where gradients would be read")
        checked = check_logps(returned, case.groups, subject=bench.subject.name, differentiable=True)
        logps = supervised_logps(checked, case.groups)
        reached = bench.call(lambda: _tokens_that_reach(logps, embedded), seeded=False)
    bench.drop_gradients()
    places: dict[int, TokenPlace] = {}
    for place, token_id in all_places(case.groups):
        places.setdefault(token_id, place)  # of a shared token the first
    tokens = [(place, ids_before(case.groups, place)) for place, _ in supervised_tokens(case.groups)]
    forbidden, missing = [], []
    for index, ((token, seen), ids) in enumerate(zip(tokens, reached, strict=True)):
        for token_id in sorted(ids - places.keys()):
            forbidden.append(f"token id {token_id}, which the case does not hold, reaches {token.words(case.groups)}")
        for token_id, place in places.items():
            before = token_id in seen
            if before and token_id not in ids:
                missing.append(
                    (index, token_id, f"{place.words(case.groups)} does not reach {token.words(case.groups)}")
                )
            elif token_id in ids and not before:
                forbidden.append(f"{place.words(case.groups)} reaches {token.words(case.groups)}")
    violations = forbidden + _not_excused(missing, bench.model, case.groups)
    return Measured(
        num_compared=len(tokens) * len(places),
        num_differing=len(violations),
        worst=violations[0] if violations else "",
        ratio=math.inf if violations else 0.0,
    )


def _not_excused(missing: Sequence[tuple[int, int, str]], model: Any, groups: tuple[PreferenceGroup, ...]) -> list[str]:
    """Tokens that do not reach a log-prob, but do so in the unpacked path: sharp attention may underflow in both."""
    if not missing:
        return []
    with embeddings_as_leaves(model) as embedded:
        logps = supervised_logps(WITNESS.per_token_logps(model, groups), groups)
        reached = _tokens_that_reach(logps, embedded)
    return [words for index, token_id, words in missing if token_id in reached[index]]


def _tokens_that_reach(logps: Sequence[Tensor], embedded: list[Embedded]) -> list[set[int]]:
    """Ids of the tokens at whose slots the gradient of a log-prob is not exactly zero, for each log-prob in turn.

    A backward pass that computes a forward pass again (checkpoints) calls the embedding anew: it must find the graph
    cut as the first pass did, and its calls join those that are embedded.
    """
    values, calls = flat(logps), tuple(embedded)
    batched = _batched_gradients(values, [call.leaf for call in calls])
    if batched is None:
        return [_reaching(value, embedded, len(calls)) for value in values]
    reached: list[set[int]] = [set() for _ in values]
    for call, gradients in zip(calls, batched, strict=True):
        for ids, gradient in zip(reached, gradients, strict=True):
            ids.update(_ids_with(gradient, call))
    return reached


def _batched_gradients(values: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """The gradient of every value at each leaf, [values, *leaf]; None where they must be taken one at a time.

    A leaf that takes no part may have one that does in its place when its pass is run again (reentrant checkpoints).
    """
    each = torch.eye(len(values), dtype=values.dtype, device=values.device)
    try:
        found = torch.autograd.grad(values, leaves, each, retain_graph=True, allow_unused=True, is_grads_batched=True)
    except RuntimeError:  # something in the graph takes one gradient at a time, or (checkpoints) no autograd.grad
        return None
    return None if any(gradients is None for gradients in found) else found


def _reaching(value: Tensor, embedded: list[Embedded], num_calls: int) -> set[int]:
    """The same of one log-prob, by a backward pass of its own."""
    del embedded[num_calls:]
    for call in embedded:
        call.leaf.grad = None
    value.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    return {token for call in embedded if call.leaf.grad is not None for token in _ids_with(call.leaf.grad, call)}


def _ids_with(gradient: Tensor, call: Embedded) -> list[int]:
    ids: list[int] = call.input_ids[gradient.ne(0).any(-1)].tolist()  # NaN is not zero
    return ids


REACH = ExactCheck(
    name="reach",
    claims=(
        "The gradient of each log-prob at the embedding is exactly 0.0 at every token that is not before it on its "
        "path (other branches, other groups, itself and later ones, padding) and not 0.0 at every one that is. A zero "
        "there is excused only where the unpacked path has it too."
    ),
    cannot_see=(
        "With which weight a token is seen; a token that is hidden but reaches through others, as a first prompt token "
        "does; subjects without gradients, or whose tokens bypass the embedding."
    ),
    cases=("distinct-tokens", "distinct-turns"),
    measure=hold_against_paths,
)
