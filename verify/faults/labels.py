"""Faults of labels that are found by what tokens are instead of by where they stand: by id, by text, by number.

Each is planted under a shared prompt, where a completion is one branch, so that labels come branch after branch.

Shape letters: B rows, T slots, N targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from verify.cases import CASE_KINDS, CaseKind
from verify.faults.content_conditions import (
    COUNTED_BEYOND_64,
    COUNTED_IN_A_PROMPT_BEFORE,
    END_TOKEN_COUNTED_INSIDE,
    FOUR_SPANS,
    MASKS_PART,
)
from verify.faults.fault import Fault
from verify.faults.rows import Branch, Rows, root_of
from verify.faults.stages import Supervision, Targets
from verify.groups import TokenIds

_LONGEST = 64
_MOST_SPANS = 3

_Masks = Callable[[Rows], Sequence[Sequence[bool]]]
"""Rows to the mask of each completion, in completion order."""


def relabelled(masks: _Masks, honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Other masks than those of the case."""
    return replace(honest(rows, predictors), counted=torch.tensor([counts for mask in masks(rows) for counts in mask]))


def _prompt(rows: Rows, branch: Branch) -> TokenIds:
    return tuple(token for place in rows.ancestors_of(branch) for token in place.piece.ids)


def _cut(rows: Rows) -> list[list[bool]]:
    return [
        [counts and place < _LONGEST for place, counts in enumerate(branch.held.supervised, len(_prompt(rows, branch)))]
        for branch in rows.branches()
    ]


def _without_end_tokens_inside(rows: Rows) -> list[list[bool]]:
    masks = []
    for branch in rows.branches():
        *ids, end = branch.piece.ids
        *mask, last = branch.held.supervised
        masks.append([*(counts and token != end for token, counts in zip(ids, mask, strict=True)), last])
    return masks


def _first_spans(rows: Rows) -> list[list[bool]]:
    masks = []
    for branch in rows.branches():
        span, kept = 0, []
        for before, counts in pairwise((False, *branch.held.supervised)):
            span += counts and not before
            kept.append(counts and span <= _MOST_SPANS)
        masks.append(kept)
    return masks


def _of_first_holder(rows: Rows) -> list[list[bool]]:
    known: dict[tuple[int, int, TokenIds], bool] = {}
    return [
        [
            known.setdefault(
                (branch.row, root_of(rows.rows[branch.row], branch.index), branch.piece.ids[: place + 1]), counts
            )
            for place, counts in enumerate(branch.held.supervised)
        ]
        for branch in rows.branches()
    ]


def _without_what_prompts_held(rows: Rows) -> list[list[bool]]:
    prompts: list[TokenIds] = []
    masks = []
    for branch in rows.branches():
        own = _prompt(rows, branch)
        paths = [own + branch.piece.ids[: place + 1] for place in range(len(branch.piece.ids))]
        masks.append(
            [
                counts and not any(prompt[: len(path)] == path for prompt in prompts)
                for path, counts in zip(paths, branch.held.supervised, strict=True)
            ]
        )
        prompts.append(own)
    return masks


_LEARNED: tuple[CaseKind, ...] = ("groups", "examples")
_LOGPS_EXACT = "per-token log-probs exact; "

FAULTS = (
    Fault(
        name="labels-cut-at-64",
        stage="supervision",
        replacement=partial(relabelled, _cut),
        what=f"Labels have room for {_LONGEST} tokens of prompt and response: later tokens are not counted.",
        imitates=("A73",),
        kinds=CASE_KINDS,
        bites_where=COUNTED_BEYOND_64,
        signature=_LOGPS_EXACT + "rewards or loss lack all later tokens",
        invisible_where="log-probs; short sequences",
    ),
    Fault(
        name="end-of-inner-turns-not-counted",
        stage="supervision",
        replacement=partial(relabelled, _without_end_tokens_inside),
        what="Labels with the id of the end token are masked as padding, but for the last: inner turns lose their end.",
        imitates=("A30",),
        kinds=CASE_KINDS,
        bites_where=END_TOKEN_COUNTED_INSIDE,
        signature=_LOGPS_EXACT + "rewards or loss lack one term per inner turn",
        invisible_where="log-probs; responses of one turn",
    ),
    Fault(
        name="fourth-span-and-later-dropped",
        stage="supervision",
        replacement=partial(relabelled, _first_spans),
        what=f"Of a conversation only the first {_MOST_SPANS} supervised spans are counted.",
        kinds=("examples",),
        bites_where=FOUR_SPANS,
        signature=_LOGPS_EXACT + "loss and gradients lack the later turns",
        invisible_where="log-probs; conversations of few turns",
    ),
    Fault(
        name="mask-of-first-holder",
        stage="supervision",
        replacement=partial(relabelled, _of_first_holder),
        what="A token that responses of a prompt share is counted in all of them if it is in the first, or in none.",
        kinds=_LEARNED,
        bites_where=MASKS_PART,
        signature=_LOGPS_EXACT + "the later response has the mask of the first where they share tokens",
        invisible_where="log-probs; masks that are equal where tokens are",
    ),
    Fault(
        name="labels-kept-by-text",
        stage="supervision",
        replacement=partial(relabelled, _without_what_prompts_held),
        what="A token that stood in a prompt, behind the same tokens, is never counted again: labels are kept by text.",
        kinds=("examples",),
        bites_where=COUNTED_IN_A_PROMPT_BEFORE,
        signature=_LOGPS_EXACT + "an answer that the prompt of an earlier example holds is not learned",
        invisible_where="log-probs; no prompt holds what another example learns",
    ),
)
