"""Rows of pieces, by hand: prompt ``5 6`` with ``7`` and ``8 9``, then prompt ``1`` with ``2`` and ``3``."""

from __future__ import annotations

import pytest
import torch

from verify.faults.fault import REPEAT_PROMPT_TOKEN, ROW_PER_GROUP, Packing
from verify.faults.rows import Piece, Rows, padded
from verify.groups import PreferenceGroup
from verify.subjects.honest_stages import honest_stages

GROUPS = (PreferenceGroup((5, 6), ((7,),), ((8, 9),)), PreferenceGroup((1,), ((2,),), ((3,),)))


def test_slots_segments_and_trees_of_one_row() -> None:
    rows = honest_stages(Packing()).layout(GROUPS)
    assert rows.input_ids.tolist() == [[5, 6, 7, 8, 9, 1, 2, 3]]
    assert rows.segment_ids.tolist() == [[0, 0, 1, 2, 2, 3, 4, 5]]
    assert rows.tree_ids.tolist() == [[0, 0, 0, 0, 0, 3, 3, 3]]
    assert not rows.padding.any()
    assert [(b.start, b.stop, b.completion) for b in rows.branches()] == [
        (2, 3, 0),
        (3, 5, 1),
        (6, 7, 2),
        (7, 8, 3),
    ]
    assert [[p.start for p in rows.ancestors_of(b)] for b in rows.branches()] == [[0], [0], [5], [5]]


def test_a_short_row_is_padded_and_its_padding_known() -> None:
    rows = honest_stages(ROW_PER_GROUP).layout(GROUPS)
    assert rows.input_ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 3, 0, 0]]
    assert rows.padding.tolist() == [[False] * 5, [False, False, False, True, True]]


def test_a_branch_that_repeats_the_prompt_token_holds_fewer_completion_tokens_than_slots() -> None:
    rows = honest_stages(REPEAT_PROMPT_TOKEN).layout(GROUPS)
    assert rows.input_ids.tolist() == [[5, 6, 7, 6, 8, 9, 1, 2, 1, 3]]
    assert [len(b.tokens) for b in rows.branches()] == [1, 2, 1, 1]
    assert not rows.padding.any()  # roots without children, but they hold completions


def test_honest_stages_by_hand() -> None:
    stages = honest_stages(Packing())
    rows = stages.layout(GROUPS)
    assert stages.positions(rows).tolist() == [[0, 1, 2, 2, 3, 0, 1, 1]]
    assert stages.predictors(rows).tolist() == [[-1, 0, 1, 1, 3, -1, 5, 5]]
    mask = stages.mask(rows)[0]
    assert mask[4].nonzero().flatten().tolist() == [0, 1, 3, 4]
    assert mask[7].nonzero().flatten().tolist() == [5, 7]
    targets = stages.supervision(rows, stages.predictors(rows))
    assert targets.token_ids.tolist() == [7, 8, 9, 2, 3]
    assert targets.predictor_slots.tolist() == [1, 1, 3, 5, 5]
    assert targets.completions.tolist() == [0, 1, 1, 2, 3]
    sums = stages.reduction(torch.tensor([-1.0, -2.0, -4.0, -8.0, -16.0]), targets)
    assert sums.tolist() == [-1.0, -6.0, -8.0, -16.0]


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        Rows(((Piece((1,), None),), (Piece((1, 2), None),)))
    assert padded([[Piece((1,), None)], [Piece((1, 2), None)]], 9).input_ids.tolist() == [[1, 9], [1, 2]]


def test_a_token_without_predictor_is_an_error_and_never_guessed() -> None:
    stages = honest_stages(Packing())
    rows = stages.layout(GROUPS)
    with pytest.raises(ValueError, match="no predictor"):
        stages.supervision(rows, torch.full((1, rows.num_slots), -1))
