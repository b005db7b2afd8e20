"""Faults of prefix trees: segments more than two levels deep, and tokens that several responses share.

Shape letters: B rows, T slots, N targets, K completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from verify.cases import CASE_KINDS, CaseKind
from verify.faults.content_conditions import ENDS_ALIKE, SIX_LEVELS
from verify.faults.fault import PREFIX_TREE, Fault
from verify.faults.layout_conditions import (
    DEEP_LATER_SIBLING,
    ENDS_INSIDE,
    EQUAL_RESPONSES,
    PROMPTS_PART,
    RESPONSES_PART,
    SHARED_TARGETS,
    THREE_LEVELS,
    TWO_LEVELS,
    num_shared,
)
from verify.faults.rows import Place, Rows
from verify.faults.stages import (
    Activations,
    Layout,
    Mask,
    Positions,
    Predictors,
    Reduction,
    Supervision,
    Targets,
)
from verify.groups import PreferenceGroup, TokenIds

_KEYS_AND_VALUES = (".self_attn.k_proj", ".self_attn.v_proj")
_LEVELS = 5
_SHARED_END = 2


def _merged(ids: TokenIds, earlier: Sequence[TokenIds]) -> TokenIds:
    """Tokens whose first difference from the nearest of some others is overlooked."""
    nearest = max(earlier, key=lambda other: num_shared(ids, other), default=())
    count = num_shared(ids, nearest)
    return ids if count in (0, len(ids), len(nearest)) else (*ids[:count], nearest[count], *ids[count + 1 :])


def _each_merged(parts: Sequence[TokenIds]) -> tuple[TokenIds, ...]:
    return tuple(_merged(ids, parts[:index]) for index, ids in enumerate(parts))


def prompts_merged_too_far(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Where prompts begin alike the later one takes over one token more than they share."""
    prompts = _each_merged([group.prompt_ids for group in groups])
    return honest([replace(group, prompt_ids=ids) for group, ids in zip(groups, prompts, strict=True)])


def responses_merged_too_far(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Where responses begin alike the later one takes over one token more than they share."""
    merged = []
    for group in groups:
        responses, split = _each_merged(group.completions), len(group.positives)
        merged.append(replace(group, positives=responses[:split], negatives=responses[split:]))
    return honest(merged)


def positions_from_parent_alone(honest: Positions, rows: Rows) -> Tensor:
    """A segment starts at the length of its parent; what is above that one is not counted."""
    positions = honest(rows).clone()
    for place in rows.places():
        for parent in rows.ancestors_of(place)[-1:]:
            start = len(parent.piece.ids)
            positions[place.row, place.start : place.stop] = torch.arange(start, start + len(place.piece.ids))
    return positions


def sixth_level_late(honest: Positions, rows: Rows) -> Tensor:
    """Five offsets are kept, and whatever lies deeper stands one late."""
    positions = honest(rows).clone()
    for place in rows.places():
        if len(rows.ancestors_of(place)) >= _LEVELS:
            positions[place.row, place.start : place.stop] += 1
    return positions


def parent_only(honest: Mask, rows: Rows) -> Tensor:
    """A segment sees itself and its parent, none of the ancestors beyond."""
    allowed = honest(rows).clone()
    for place in rows.places():
        for ancestor in rows.ancestors_of(place)[:-1]:
            allowed[place.row, place.start : place.stop, ancestor.start : ancestor.stop] = False
    return allowed


def root_only(honest: Mask, rows: Rows) -> Tensor:
    """A segment sees itself and its root, as where the root was the whole prompt; none of the turns between."""
    allowed = honest(rows).clone()
    for place in rows.places():
        for ancestor in rows.ancestors_of(place)[1:]:
            allowed[place.row, place.start : place.stop, ancestor.start : ancestor.stop] = False
    return allowed


def _deep(rows: Rows) -> list[Place]:
    """Pieces of the third level and below."""
    return [place for place in rows.places() if len(rows.ancestors_of(place)) > 1]


def deep_siblings_seen(honest: Mask, rows: Rows) -> Tensor:
    """Three levels down and below a branch sees the earlier ones of its parent."""
    allowed, deep = honest(rows).clone(), _deep(rows)
    for place in deep:
        for other in deep:
            if (other.row, other.piece.parent) == (place.row, place.piece.parent) and other.start < place.start:
                allowed[place.row, place.start : place.stop, other.start : other.stop] = True
    return allowed


def inner_segments_detached(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Keys and values of all segments with children come from a cache without a graph."""
    if not module.endswith(_KEYS_AND_VALUES):
        return output
    inner = [
        [index in parents for index, piece in enumerate(row) for _ in piece.ids]
        for row in rows.rows
        for parents in [{piece.parent for piece in row}]
    ]
    return torch.where(torch.tensor(inner)[..., None].to(output.device), output.detach(), output)


def deep_neighbour_predicts(honest: Predictors, rows: Rows) -> Tensor:
    """Three levels down and below the first token of a segment is predicted from the slot before it in the row."""
    slots = honest(rows).clone()
    for place in _deep(rows):
        slots[place.row, place.start] = place.start - 1
    return slots


def equal_ends_merged(honest: Predictors, rows: Rows) -> Tensor:
    """Responses share ends as they share beginnings: the last token is predicted where another has the same two."""
    slots, ids = honest(rows).clone(), rows.input_ids
    first: dict[tuple[int, tuple[int, ...]], int] = {}
    for branch in {branch.completion: branch for branch in rows.branches()}.values():  # of each completion its end
        if len(branch.tokens) > _SHARED_END:
            last = branch.tokens[-1]
            end = tuple(ids[branch.row, last + 1 - _SHARED_END : last + 1].tolist())
            slots[branch.row, last] = first.setdefault((branch.row, end), int(slots[branch.row, last]))
    return slots


def end_inside_not_counted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """A response that ends where others go on loses its last token."""
    targets = honest(rows, predictors)
    last = {branch.completion: branch for branch in rows.branches()}
    parents = [{piece.parent for piece in row} for row in rows.rows]
    goes_on = {k for k, branch in last.items() if branch.held.num_behind or branch.index in parents[branch.row]}
    end_of = {completion: index for index, completion in enumerate(targets.completions.tolist())}
    counted = targets.counted.clone()
    counted[[end_of[completion] for completion in goes_on]] = False
    return replace(targets, counted=counted)


def _predictions(targets: Targets) -> list[tuple[int, ...]]:
    return list(zip(targets.rows.tolist(), targets.predictor_slots.tolist(), targets.token_ids.tolist(), strict=True))


def shared_gradient_once(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """A token that several responses share sends its gradient back for the first of them only."""
    seen: set[tuple[int, ...]] = set()
    again = []
    for prediction, counts in zip(_predictions(targets), targets.counted.tolist(), strict=True):
        again.append(prediction in seen)
        seen |= {prediction} if counts else set()
    return honest(torch.where(torch.tensor(again, device=logps.device), logps.detach(), logps), targets)


def equal_responses_merged(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """Sums are stored by the leaf of the tree: of two equal responses the later one has none."""
    sums = honest(logps, targets)
    predictions, completions = _predictions(targets), targets.completions.tolist()
    of_completion = [
        tuple(p for p, k in zip(predictions, completions, strict=True) if k == completion)
        for completion in range(len(sums))
    ]
    first = [of_completion.index(own) == completion for completion, own in enumerate(of_completion)]
    return sums * torch.tensor(first).to(sums)


_LARGER: tuple[CaseKind, ...] = ("groups", "examples")

FAULTS = (
    Fault(
        name="prompts-merged-one-token-too-far",
        stage="layout",
        replacement=prompts_merged_too_far,
        what="Prompts that begin alike share one token too many: that of the later one is overwritten.",
        imitates=("A72", "A73"),
        kinds=("groups",),
        bites_where=PROMPTS_PART,
        packing=PREFIX_TREE,
        signature="the group whose prompt was merged off from its first token, all others exact",
        invisible_where="prompts that are equal or begin differently",
    ),
    Fault(
        name="responses-merged-one-token-too-far",
        stage="layout",
        replacement=responses_merged_too_far,
        what="Responses that begin alike share one token too many: that of the later one is overwritten.",
        kinds=CASE_KINDS,
        bites_where=RESPONSES_PART,
        packing=PREFIX_TREE,
        signature="the later response off from where it parts, by nats; all others exact",
        invisible_where="responses that begin differently",
    ),
    Fault(
        name="positions-from-parent-alone",
        stage="positions",
        replacement=positions_from_parent_alone,
        what="A segment starts at the length of its parent: ancestors beyond are not counted.",
        imitates=("A21",),
        kinds=_LARGER,
        bites_where=THREE_LEVELS,
        packing=PREFIX_TREE,
        signature="two levels exact, tokens of deeper segments off from the second one on",
        invisible_where="trees of two levels, a prompt with its responses",
    ),
    Fault(
        name="attends-to-parent-only",
        stage="mask",
        replacement=parent_only,
        what="A segment attends to itself and its parent, not to the ancestors beyond.",
        imitates=("A55",),
        kinds=_LARGER,
        bites_where=THREE_LEVELS,
        packing=PREFIX_TREE,
        signature="two levels exact, tokens of deeper segments off by nats from the second one on",
        invisible_where="trees of two levels",
    ),
    Fault(
        name="attends-to-root-only",
        stage="mask",
        replacement=root_only,
        what="A segment attends to itself and its root, not to the turns between.",
        kinds=_LARGER,
        bites_where=THREE_LEVELS,
        packing=PREFIX_TREE,
        signature="two levels exact, tokens of deeper segments off by nats from the second one on",
        invisible_where="trees of two levels",
    ),
    Fault(
        name="deep-siblings-not-isolated",
        stage="mask",
        replacement=deep_siblings_seen,
        what="From the third level on a branch attends to the earlier branches of its parent.",
        imitates=("A13",),
        kinds=_LARGER,
        bites_where=DEEP_LATER_SIBLING,
        packing=PREFIX_TREE,
        signature="first branches exact, later ones off from their second token on, three levels deep",
        invisible_where="trees of two levels",
    ),
    Fault(
        name="inner-segments-detached",
        stage="activations",
        replacement=inner_segments_detached,
        what="Keys and values of every segment that has children are computed without a graph.",
        imitates=("A50", "A51"),
        kinds=_LARGER,
        bites_where=TWO_LEVELS,
        packing=PREFIX_TREE,
        signature="forward quantities exact, gradients of key and value adapters off",
        invisible_where="forward quantities",
    ),
    Fault(
        name="deep-neighbour-predicts",
        stage="predictors",
        replacement=deep_neighbour_predicts,
        what="From the third level on the first token of a segment is predicted from the slot before it in the row.",
        imitates=("A24", "A31"),
        kinds=_LARGER,
        bites_where=THREE_LEVELS,
        packing=PREFIX_TREE,
        signature="one token off per later branch, the first, three levels deep; by nats",
        invisible_where="trees of two levels",
    ),
    Fault(
        name="end-inside-the-tree-not-counted",
        stage="supervision",
        replacement=end_inside_not_counted,
        what="A response that ends where others go on loses its last token.",
        imitates=("A30", "A69"),
        kinds=CASE_KINDS,
        bites_where=ENDS_INSIDE,
        packing=PREFIX_TREE,
        signature="per-token log-probs exact; the reward of that response short by one term",
        invisible_where="log-probs; every response ends at a leaf of its own",
    ),
    Fault(
        name="shared-token-gradient-once",
        stage="reduction",
        replacement=shared_gradient_once,
        what="A token that several responses share sends its gradient back once instead of once for each of them.",
        kinds=CASE_KINDS,
        bites_where=SHARED_TARGETS,
        packing=PREFIX_TREE,
        signature="every forward quantity exact; gradients lack the later responses' shares of shared tokens",
        invisible_where="forward quantities; responses that share no token",
    ),
    Fault(
        name="equal-responses-merged",
        stage="reduction",
        replacement=equal_responses_merged,
        what="Sums are stored by the leaf of the tree: of two equal responses the later one gets none.",
        imitates=("A38",),
        kinds=CASE_KINDS,
        bites_where=EQUAL_RESPONSES,
        packing=PREFIX_TREE,
        signature="per-token log-probs exact; the reward of the later of two equal responses is 0",
        invisible_where="log-probs; no two responses are equal",
    ),
    Fault(
        name="sixth-level-one-late",
        stage="positions",
        replacement=sixth_level_late,
        what=f"A segment with {_LEVELS} or more above it starts one position late.",
        imitates=("A21",),
        kinds=("groups",),
        bites_where=SIX_LEVELS,
        packing=PREFIX_TREE,
        signature="all shallower segments exact, tokens of deeper ones off from the second one on",
        invisible_where=f"trees of {_LEVELS} levels",
    ),
    Fault(
        name="equal-ends-merged",
        stage="predictors",
        replacement=equal_ends_merged,
        what="Responses that end alike share their last two tokens, as they do those that they begin with.",
        kinds=CASE_KINDS,
        bites_where=ENDS_ALIKE,
        signature="one token off per later response, the last; by nats",
        invisible_where="responses that end differently",
    ),
)
