"""Which ways of calling a stock model isolate packed sequences, judged on the tiny Qwen3.

The verdicts here are those of the installed transformers; another version may make another way of calling safe, and
the table of families says so. What must not change is that the gate tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.models.request import ModelUnderTest
from verify.option_names import HF_POSITION_IDS_NAMES
from verify.subjects.hf_position_ids import HF_POSITION_IDS_SUBJECTS, HfPositionIdsSubject, sequence_rows
from verify.subjects.pairwise import WITNESS
from verify.verdict import Verdict

Tiny = Callable[[str], ModelUnderTest]

ISOLATING = {"hf-position-ids", "hf-position-ids/eager", "hf-position-ids/sdpa", "hf-position-ids/several-rows"}
by_name = pytest.mark.parametrize("subject", HF_POSITION_IDS_SUBJECTS, ids=lambda subject: subject.name)


def test_names_say_how_the_model_is_called() -> None:
    assert tuple(subject.name for subject in HF_POSITION_IDS_SUBJECTS) == HF_POSITION_IDS_NAMES


def test_sequences_follow_each_other_and_positions_restart() -> None:
    rows = sequence_rows([(7, 8, 9), (5, 6), (4,)], sequences_per_row=2)
    assert rows.input_ids.tolist() == [[7, 8, 9, 5, 6], [4, 0, 0, 0, 0]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 0, 1], [0, 0, 0, 0, 0]]
    assert rows.is_token.int().tolist() == [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert rows.places == ((0, 0), (0, 3), (1, 0))


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6), st.integers(1, 7)
)
def test_every_sequence_is_read_back_from_its_place(sequences: list[tuple[int, ...]], per_row: int) -> None:
    rows = sequence_rows(sequences, per_row)
    for ids, (b, start) in zip(sequences, rows.places, strict=True):
        assert tuple(rows.input_ids[b, start : start + len(ids)].tolist()) == ids
        assert rows.position_ids[b, start : start + len(ids)].tolist() == list(range(len(ids)))
    assert int(rows.is_token.sum()) == sum(map(len, sequences))
    # The library starts a new sequence wherever a position is not the one before plus 1: at every start, at no other.
    starts = {(b, start) for b, start in rows.places if start}
    jumps = {
        (b, t + 1)
        for b, positions in enumerate(rows.position_ids.tolist())
        for t, (before, after) in enumerate(pairwise(positions))
        if after != before + 1 and rows.is_token[b, t + 1]
    }
    assert jumps == starts


@by_name
def test_packed_log_probs_equal_unpacked_ones_exactly_where_the_library_isolates(
    tiny: Tiny, two_pairs_case: Case, subject: HfPositionIdsSubject
) -> None:
    model = tiny("float64").model
    with torch.no_grad():
        actual = subject.per_token_logps(model, two_pairs_case.groups)
        expected = WITNESS.per_token_logps(model, two_pairs_case.groups)
    furthest = [float((a - e).abs().max()) for a, e in zip(actual, expected, strict=True)]
    assert furthest[0] < 1e-5, "nothing stands in front of the first sequence of a row"
    if subject.name in ISOLATING:
        assert max(furthest) < 1e-5
    else:
        assert min(furthest[1::2]) > 1e-2, "the second sequence of each row of two"


@by_name
def test_tokens_of_another_sequence_move_bits_exactly_where_the_library_does_not_isolate(
    tiny: Tiny, subject: HfPositionIdsSubject
) -> None:
    model = tiny("float32").model
    sequences = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8)]
    rewritten = [(2, 7, 1, 8, 2), *sequences[1:]]
    with torch.no_grad():
        before, after = (subject.logits(model, given) for given in (sequences, rewritten))
    kept = [torch.equal(b, a) for b, a in zip(before, after, strict=True)]
    in_another_row = subject.rows == "several-rows"
    assert kept == [False, subject.name in ISOLATING, subject.name in ISOLATING or in_another_row]


@pytest.mark.parametrize("cache", ["off", "default"])
def test_the_gate_passes_the_isolating_call_and_fails_the_leaking_one(
    gate: Callable[..., Any], two_pairs_case: Case, cache: Any
) -> None:
    (result,) = gate([HfPositionIdsSubject(cache=cache)], [two_pairs_case]).results
    assert result.verdict is (Verdict.PASS if cache == "off" else Verdict.FAIL), result.reasons


def test_two_sequences_are_not_put_in_several_rows() -> None:
    subject = HfPositionIdsSubject(rows="several-rows")
    pair = PreferenceGroup((1,), ((2,),), ((3,),))

    def supported(groups: Sequence[PreferenceGroup]) -> bool:
        return subject.supports(Case(name="c", why="w", groups=tuple(groups))).supported

    assert not supported([pair])
    assert supported([pair, pair])


@by_name
def test_the_attention_of_the_model_is_as_it_was(
    tiny: Tiny, two_pairs_case: Case, subject: HfPositionIdsSubject
) -> None:
    model = tiny("float32").model
    before = model.config._attn_implementation
    subject.per_token_logps(model, two_pairs_case.groups)
    assert model.config._attn_implementation == before
