"""Faults of the attention mask: who sees whom.

A query matters where its slot predicts something: the last slot of a response never does.

Shape letters: B rows, T slots; masks are bool, [B, T query, T key].
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.conditions import (
    BRANCH_OF_TWO,
    GROUPS_ALIKE,
    PROMPT_OF_TWO,
    REJECTED_OF_TWO,
    SEVERAL_GROUPS,
    THREE_GROUPS,
)
from verify.faults.fault import PREFERENCES, ROW_PER_GROUP, Fault
from verify.faults.rows import Rows, root_of
from verify.faults.stages import Mask


def _causal(rows: Rows) -> Tensor:
    return torch.ones(len(rows.rows), rows.num_slots, rows.num_slots, dtype=torch.bool).tril()


def _same(ids: Tensor) -> Tensor:
    """Whether query and key have the same id; [B, T, T]."""
    return ids[:, :, None] == ids[:, None, :]


def causal_only(honest: Mask, rows: Rows) -> Tensor:
    """The causal triangle of the row and nothing else."""
    return _causal(rows)


def causal_for_several_rows(honest: Mask, rows: Rows) -> Tensor:
    """The document mask is applied only to a batch of one row."""
    return honest(rows) if len(rows.rows) == 1 else _causal(rows)


def causal_for_trees_alike(honest: Mask, rows: Rows) -> Tensor:
    """A row whose trees have the same lengths takes a shortcut that knows only the causal triangle."""
    allowed = honest(rows)
    for b, row in enumerate(rows.rows):
        trees: dict[int, list[int]] = {}
        for i, piece in enumerate(row):
            trees.setdefault(root_of(row, i), []).append(len(piece.ids))
        if len(trees) > 1 and len(set(map(tuple, trees.values()))) == 1:
            allowed[b] = allowed[b] | _causal(rows)[b]
    return allowed


def trees_not_isolated(honest: Mask, rows: Rows) -> Tensor:
    """Branches of a prompt are kept apart, but a tree sees all trees before it."""
    return honest(rows) | (_causal(rows) & ~_same(rows.tree_ids))


def branches_not_isolated(honest: Mask, rows: Rows) -> Tensor:
    """Trees are kept apart (document mask), but within one the mask is causal."""
    return _causal(rows) & _same(rows.tree_ids)


def third_tree_sees_second(honest: Mask, rows: Rows) -> Tensor:
    """Boundaries from the third tree on are lost: those trees see the second."""
    rank = torch.stack([torch.unique(ids, return_inverse=True)[1] for ids in rows.tree_ids])
    return honest(rows) | (_causal(rows) & (rank[:, :, None] >= 2) & (rank[:, None, :] == 1))


def lengths_times_segment_number(honest: Mask, rows: Rows) -> Tensor:
    """Segment lengths are sums of mask codes 1, 2, 3, ...: the n-th segment swallows those behind it."""
    wrong = []
    for row in rows.rows:
        lengths = torch.tensor([len(piece.ids) for piece in row])
        inflated = torch.repeat_interleave(torch.arange(len(row)), lengths * torch.arange(1, len(row) + 1))
        wrong.append(inflated[: rows.num_slots])
    return honest(rows) | (_causal(rows) & _same(torch.stack(wrong)))


def sees_the_future(honest: Mask, rows: Rows) -> Tensor:
    """Segments are right but the causal test is gone."""
    allowed = honest(rows)
    return allowed | _same(rows.segment_ids)


def prompt_sees_responses(honest: Mask, rows: Rows) -> Tensor:
    """Ancestry is tested both ways: the prompt attends to its responses."""
    allowed = honest(rows)
    return allowed | allowed.transpose(1, 2) & ~_same(rows.segment_ids)


def not_itself(honest: Mask, rows: Rows) -> Tensor:
    """Strictly causal: a token does not see itself (the first one of a root has nothing else)."""
    allowed = honest(rows)
    strict = allowed & ~torch.eye(rows.num_slots, dtype=torch.bool)
    return torch.where(strict.any(-1, keepdim=True), strict, allowed)


def branch_misses_last_prompt_token(honest: Mask, rows: Rows) -> Tensor:
    """The prompt ends one token early for whoever hangs on it."""
    allowed = honest(rows).clone()
    for branch in rows.branches():
        for prompt in rows.ancestors_of(branch)[-1:]:
            allowed[branch.row, branch.start : branch.stop, prompt.stop - 1] = False
    return allowed


def branch_misses_first_prompt_token(honest: Mask, rows: Rows) -> Tensor:
    """The prompt starts one token late for whoever hangs on it."""
    allowed = honest(rows).clone()
    for branch in rows.branches():
        for prompt in rows.ancestors_of(branch)[:1]:
            allowed[branch.row, branch.start : branch.stop, prompt.start] = False
    return allowed


def rejected_sees_last_chosen(honest: Mask, rows: Rows) -> Tensor:
    """The boundary between two branches is one slot too early: the second sees the last token of the first."""
    allowed = honest(rows).clone()
    for branch in rows.branches():
        if branch.completion % 2:
            allowed[branch.row, branch.start : branch.stop, branch.start - 1] = True
    return allowed


def prompt_hidden_from_rejected(honest: Mask, rows: Rows) -> Tensor:
    """Only the first branch sees the prompt."""
    allowed = honest(rows).clone()
    for branch in rows.branches():
        if branch.completion % 2:
            for prompt in rows.ancestors_of(branch):
                allowed[branch.row, branch.start : branch.stop, prompt.start : prompt.stop] = False
    return allowed


def corner_top_left(honest: Mask, rows: Rows) -> Tensor:
    """``is_causal`` of a kernel that aligns the triangle top-left: query i of a branch sees keys 0 to i of its path."""
    allowed = honest(rows).clone()
    for branch in rows.branches():
        path = [slot for prompt in rows.ancestors_of(branch) for slot in range(prompt.start, prompt.stop)]
        path += range(branch.start, branch.stop)
        for query in range(branch.start, branch.stop):
            allowed[branch.row, query] = False
            allowed[branch.row, query, path[: query - branch.start + 1]] = True
    return allowed


FAULTS = (
    Fault(
        name="causal-mask-only",
        stage="mask",
        replacement=causal_only,
        what="Positions restart and the predictor map is right, but the mask is the causal triangle of the row.",
        imitates=("A08", "A09", "A11", "A13"),
        bites_where=REJECTED_OF_TWO,
        signature="first branch exact, later ones off by nats from their second token on",
    ),
    Fault(
        name="causal-for-several-rows",
        stage="mask",
        replacement=causal_for_several_rows,
        what="The document mask is applied only where the batch is one row.",
        imitates=("A07",),
        bites_where=SEVERAL_GROUPS,
        packing=ROW_PER_GROUP,
        signature="as causal-mask-only, on two rows or more",
        invisible_where="one row",
    ),
    Fault(
        name="causal-for-groups-alike",
        stage="mask",
        replacement=causal_for_trees_alike,
        what="Where all groups of a row have the same lengths the mask is the causal triangle of the row.",
        kinds=CASE_KINDS,
        bites_where=GROUPS_ALIKE,
        signature="as causal-mask-only, on groups of the same lengths",
        invisible_where="one group, or groups that differ in a length",
    ),
    Fault(
        name="trees-not-isolated",
        stage="mask",
        replacement=trees_not_isolated,
        what="Branches of one prompt are kept apart, but a tree attends to all trees before it in the row.",
        imitates=("A09", "A70"),
        kinds=PREFERENCES,
        bites_where=SEVERAL_GROUPS,
        signature="first group exact, all tokens of later groups off",
        invisible_where="one group in the row",
    ),
    Fault(
        name="branches-not-isolated",
        stage="mask",
        replacement=branches_not_isolated,
        what="The mask knows documents, not branches: rejected attends to chosen.",
        imitates=("A13", "A14"),
        kinds=PREFERENCES,
        bites_where=REJECTED_OF_TWO,
        signature="chosen exact, rejected off from its second token on",
    ),
    Fault(
        name="third-tree-sees-second",
        stage="mask",
        replacement=third_tree_sees_second,
        what="Boundaries from the third tree on are lost.",
        imitates=("A04",),
        kinds=CASE_KINDS,
        bites_where=THREE_GROUPS,
        signature="two groups exact, later ones off",
        invisible_where="one or two groups in the row",
    ),
    Fault(
        name="lengths-times-segment-number",
        stage="mask",
        replacement=lengths_times_segment_number,
        what="Segment lengths are sums of the mask codes 1, 2, 3, ..., so that later segments merge.",
        imitates=("A04",),
        bites_where=REJECTED_OF_TWO,
        signature="prompt and first branch exact, what its inflated length covers is off",
    ),
    Fault(
        name="sees-the-future",
        stage="mask",
        replacement=sees_the_future,
        what="Segments are right, the causal test within a segment is gone.",
        imitates=("A56",),
        signature="all tokens off; log-probs better than they can be",
    ),
    Fault(
        name="prompt-sees-responses",
        stage="mask",
        replacement=prompt_sees_responses,
        what="Ancestry is tested in both directions: prompt tokens attend to the responses.",
        imitates=("A28",),
        signature="all tokens off, the first response tokens most",
    ),
    Fault(
        name="token-does-not-see-itself",
        stage="mask",
        replacement=not_itself,
        what="The triangle is strict: j < i instead of j <= i.",
        imitates=("A17",),
        bites_where=PROMPT_OF_TWO,
        signature="all tokens off by nats",
    ),
    Fault(
        name="branch-misses-last-prompt-token",
        stage="mask",
        replacement=branch_misses_last_prompt_token,
        what="For the branches the prompt ends one token early.",
        imitates=("A28", "A75"),
        bites_where=BRANCH_OF_TWO,
        signature="first response tokens exact, all later ones off",
    ),
    Fault(
        name="branch-misses-first-prompt-token",
        stage="mask",
        replacement=branch_misses_first_prompt_token,
        what="For the branches the prompt starts one token late.",
        imitates=("A15",),
        bites_where=BRANCH_OF_TWO,
        signature="first response tokens exact, all later ones off, less so the longer the prompt",
    ),
    Fault(
        name="rejected-sees-last-chosen",
        stage="mask",
        replacement=rejected_sees_last_chosen,
        what="The boundary between the branches lies one slot early: rejected attends to one token of chosen.",
        imitates=("A70",),
        bites_where=REJECTED_OF_TWO,
        signature="chosen exact, rejected off from its second token on",
    ),
    Fault(
        name="prompt-hidden-from-rejected",
        stage="mask",
        replacement=prompt_hidden_from_rejected,
        what="Only the first branch attends to the prompt.",
        imitates=("A55",),
        bites_where=REJECTED_OF_TWO,
        signature="chosen exact, rejected off by nats from its second token on",
    ),
    Fault(
        name="causal-corner-top-left",
        stage="mask",
        replacement=corner_top_left,
        what="Suffix queries over prompt and suffix keys, with the triangle aligned top-left instead of bottom-right.",
        imitates=("A17",),
        bites_where=BRANCH_OF_TWO,
        signature="all but the first token of every response off by nats, early ones most",
    ),
)
