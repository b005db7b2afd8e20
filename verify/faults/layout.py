"""Faults of the layout: which tokens a row holds and how its segments hang together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from verify.cases import CASE_KINDS
from verify.faults.conditions import (
    LONG_PROMPT,
    PAIR_OF_EQUAL_LENGTHS,
    PROMPT_OF_TWO,
    PROMPT_TWICE,
    PROMPTS_BEGIN_ALIKE,
    SEVERAL_PROMPTS,
    SHORTER_CHOSEN,
)
from verify.faults.fault import PREFERENCES, ROW_PER_GROUP, Fault
from verify.faults.rows import Held, Piece, Rows, padded
from verify.faults.stages import Layout
from verify.groups import PreferenceGroup, TokenIds

_PAD = 0
_BEGIN = 1
_KEPT_PROMPT_TOKENS = 16


def gap_in_first_rejected(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The first rejected segment starts where the longest chosen response would have ended."""
    rows = honest(groups)
    gap = max(len(ids) for group in groups for ids in group.completions) - len(groups[0].positives[0])
    return _edit(rows, lambda piece: _in_front(piece, (_PAD,) * gap) if piece.completion == 1 else piece)


def begin_token_before_responses(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Every response is tokenised on its own and gets a begin token."""
    return _edit(honest(groups), lambda piece: _in_front(piece, (_BEGIN,)) if piece.completion is not None else piece)


def everything_one_segment(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The row is one document: every piece continues the one before it."""
    rows = honest(groups)
    return Rows(tuple(tuple(replace(p, parent=i - 1 if i else None) for i, p in enumerate(row)) for row in rows.rows))


def rejected_continues_chosen(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The rejected branch hangs on the chosen one instead of on the prompt."""
    rows = honest(groups)
    return Rows(
        tuple(
            tuple(replace(p, parent=i - 1) if (p.completion or 0) % 2 else p for i, p in enumerate(row))
            for row in rows.rows
        )
    )


def responses_swapped(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Rejected is written into the slots of chosen and the other way round; the map does not follow."""
    return honest([replace(group, positives=group.negatives, negatives=group.positives) for group in groups])


def seam_token_differs(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The last prompt token is another one, as after a merge across the seam."""
    return honest([replace(g, prompt_ids=(*g.prompt_ids[:-1], _another(g.prompt_ids[-1]))) for g in groups])


def prompt_cut(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Prompts are truncated to their last tokens, in the packed path only."""
    return honest([replace(group, prompt_ids=group.prompt_ids[-_KEPT_PROMPT_TOKENS:]) for group in groups])


def prompt_of_first_group(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Responses are grouped under the prompt of the first group of the batch."""
    return honest([replace(group, prompt_ids=groups[0].prompt_ids) for group in groups])


def last_group_of_a_prompt(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Groups are kept by their prompt: of two with the same one the last is laid out in both places.

    Where their responses differ in length the number of values would be wrong at once, which is no fault but an error.
    """

    def key(group: PreferenceGroup) -> tuple[TokenIds, ...]:
        return group.prompt_ids, *(tuple(map(len, side)) for side in (group.positives, group.negatives))

    last = {key(group): group for group in groups}
    return honest([last[key(group)] for group in groups])


def prompt_found_by_its_start(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """A cache of prefixes whose key is the first eight tokens, all of them of a system prompt that groups share."""
    kept: dict[TokenIds, TokenIds] = {}
    return honest([replace(g, prompt_ids=kept.setdefault(g.prompt_ids[:8], g.prompt_ids)) for g in groups])


def first_prompt_token_lost(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Prompts start one token late."""
    return honest([replace(group, prompt_ids=group.prompt_ids[1:] or group.prompt_ids) for group in groups])


def one_row_per_completion(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Falls back to padded rows of prompt and response."""
    rows: list[list[Piece]] = []
    for group in groups:
        masks = group.completion_masks or [(True,) * len(ids) for ids in group.completions]
        for ids, mask in zip(group.completions, masks, strict=True):
            rows.append([Piece(group.prompt_ids, None), Piece(ids, 0, held=(Held(len(rows), mask),))])
    return padded(rows)


def padding_behind(num_slots: Callable[[Rows], int], honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Rows with more padding behind."""
    rows = honest(groups)
    return padded([[*row, Piece((_PAD,) * num_slots(rows), None, is_padding=True)] for row in rows.rows])


def _another(token: int) -> int:
    return token - 1 if token else 1


def _twice(rows: Rows) -> int:
    return 2 * rows.num_slots


def _in_front(piece: Piece, ids: TokenIds) -> Piece:
    return replace(piece, ids=(*ids, *piece.ids))


def _edit(rows: Rows, edit: Callable[[Piece], Piece]) -> Rows:
    return padded([[edit(piece) for piece in row] for row in rows.rows], _PAD)


FAULTS = (
    Fault(
        name="gap-before-rejected",
        stage="layout",
        replacement=gap_in_first_rejected,
        what="The first rejected segment starts at the padded, not the real, end of the chosen one.",
        imitates=("A01",),
        bites_where=SHORTER_CHOSEN,
        signature="first rejected response off by nats from its first token; chosen exact",
        invisible_where="the chosen response is the longest",
    ),
    Fault(
        name="begin-token-before-responses",
        stage="layout",
        replacement=begin_token_before_responses,
        what="Each response is tokenised on its own and gets a begin token in front.",
        imitates=("A71",),
        signature="every response token off by nats, the first most; both sides move, the margin less",
    ),
    Fault(
        name="everything-one-segment",
        stage="layout",
        replacement=everything_one_segment,
        what="The row counts as one document: no mask between segments, and positions run on.",
        imitates=("A04", "A14"),
        signature="first branch exact, every later one off by nats",
    ),
    Fault(
        name="rejected-continues-chosen",
        stage="layout",
        replacement=rejected_continues_chosen,
        what="The rejected branch hangs on the chosen response instead of on the prompt.",
        imitates=("A14",),
        signature="chosen exact, rejected off by nats from its first token",
    ),
    Fault(
        name="responses-swapped",
        stage="layout",
        replacement=responses_swapped,
        what="Chosen and rejected change places in the row and the map does not follow.",
        imitates=("A43", "A88"),
        bites_where=PAIR_OF_EQUAL_LENGTHS,
        signature="log-probs of each pair exchanged; margins change their sign",
        invisible_where="lengths differ: then the number of values is already wrong, which is an ERROR",
    ),
    Fault(
        name="seam-token-differs",
        stage="layout",
        replacement=seam_token_differs,
        what="The last prompt token is another one, as after a merge across the seam of prompt and response.",
        imitates=("A72",),
        signature="all responses off, the first token most",
    ),
    Fault(
        name="prompt-cut",
        stage="layout",
        replacement=prompt_cut,
        what=f"Prompts are truncated to their last {_KEPT_PROMPT_TOKENS} tokens, in the packed path only.",
        imitates=("A73",),
        kinds=CASE_KINDS,
        bites_where=LONG_PROMPT,
        signature="all responses off, less so the longer the prompt",
    ),
    Fault(
        name="first-prompt-token-lost",
        stage="layout",
        replacement=first_prompt_token_lost,
        what="Prompts start one token late.",
        imitates=("A03", "A73"),
        kinds=CASE_KINDS,
        bites_where=PROMPT_OF_TWO,
        signature="all responses off by a little to nats",
    ),
    Fault(
        name="prompt-of-first-group",
        stage="layout",
        replacement=prompt_of_first_group,
        what="All responses of a batch hang on the prompt of its first group.",
        imitates=("A38",),
        kinds=CASE_KINDS,
        bites_where=SEVERAL_PROMPTS,
        signature="first group exact, all others off by nats",
        invisible_where="one group",
    ),
    Fault(
        name="last-group-of-a-prompt",
        stage="layout",
        replacement=last_group_of_a_prompt,
        what="Groups are kept by their prompt: of two with the same prompt the last one stands for both.",
        kinds=CASE_KINDS,
        bites_where=PROMPT_TWICE,
        signature="a group whose prompt comes again has the log-probs of that later group",
        invisible_where="lengths differ: then the number of values is already wrong, which is an ERROR",
    ),
    Fault(
        name="prompt-found-by-its-start",
        stage="layout",
        replacement=prompt_found_by_its_start,
        what="Prompts are found again by their first eight tokens: the first one that begins so stands for all.",
        kinds=CASE_KINDS,
        bites_where=PROMPTS_BEGIN_ALIKE,
        signature="a group whose prompt begins as one before it does is off by nats, all others exact",
        invisible_where="no two prompts begin alike",
    ),
    Fault(
        name="falls-back-to-unpacked",
        stage="layout",
        replacement=one_row_per_completion,
        what="A packed=True that quietly computes padded rows of prompt and response.",
        imitates=("A79",),
        kinds=PREFERENCES,
        signature="no value is off; as many token slots as unpacked rows feed",
        invisible_where="values: they are those of the unpacked path",
        must_kill=("packed-ran",),
    ),
    Fault(
        name="row-mostly-padding",
        stage="layout",
        replacement=partial(padding_behind, _twice),
        what="The packer leaves two thirds of every row empty.",
        imitates=("A06",),
        packing=ROW_PER_GROUP,
        signature="no value is off; more token slots than unpacked rows feed",
        invisible_where="values: padding is not attended to",
        must_kill=("packed-ran",),
    ),
)
