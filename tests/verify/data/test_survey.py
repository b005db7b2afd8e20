"""The survey of a whole file: every row is counted once, nothing is kept but sums, bins and a sample."""

from __future__ import annotations

import gc
import hashlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verify.data import survey as survey_module
from verify.data.load import survey_pairs
from verify.data.measures import CharacterMeasure, TokenMeasure
from verify.data.rows import DataError
from verify.data.survey import EXAMPLES_KEPT, FileSurvey, survey_file
from verify.data.tokenise import load_tokenizer
from verify.data.violations import Reason, Remark
from verify.packing_plan.costs import NO_WORK, GroupLengths, packed_work, unpacked_work

VOCAB_SIZE = 1024


def text_row(prompt: str, chosen: str, rejected: str) -> dict[str, str]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def turns_row(prompt: str, chosen: str, rejected: str) -> dict[str, Any]:
    def conversation(answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    return {"chosen": conversation(chosen), "rejected": conversation(rejected)}


def survey(path: Path, **limits: int) -> FileSurvey:
    return survey_file(path, CharacterMeasure(), seed=0, **limits)


def test_sums_are_those_of_the_algebra_row_by_row(write_rows: Callable[..., Path]) -> None:
    lengths = [(1 + i % 7, 1 + i % 5, 6 + i % 11) for i in range(700)]  # more than one batch
    path = write_rows(*(text_row("p" * p, "c" * c, "r" * r) for p, c, r in lengths))
    found = survey(path)
    groups = [GroupLengths(p, (c, r)) for p, c, r in lengths]
    (totals,) = found.totals.values()
    assert totals.unpacked == sum(map(unpacked_work, groups), NO_WORK)
    assert totals.packed == sum(map(packed_work, groups), NO_WORK)
    assert totals.padded_slots == sum(2 * max(group.sequences) for group in groups)
    assert totals.eq1_packs == sum((p + c + r) ** 2 < 2 * (p + max(c, r)) ** 2 for p, c, r in lengths)
    assert list(found.sample) == groups
    assert found.longest == max(map(sum, lengths))
    assert str(found.longest_at) == f"rows.jsonl:{1 + [sum(each) for each in lengths].index(found.longest)}"
    assert found.histograms["group"].total == sum(map(sum, lengths))
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_each_row_is_usable_or_counted_under_one_reason(write_rows: Callable[..., Path]) -> None:
    path = write_rows(
        turns_row("one", "yes", "no"),
        turns_row("two", "same", "same"),
        turns_row("three", "yes", " "),
        turns_row(" ", "yes", "no"),
        {"chosen": turns_row("four", "a", "b")["chosen"], "rejected": turns_row("five", "a", "b")["chosen"]},
        turns_row("six", "yes", "a rather long answer"),
    )
    found = survey(path, max_sequence=12)
    counted = {reason: (rows.rows, rows.examples) for reason, rows in found.violations.items()}
    assert {reason: rows for reason, (rows, _) in counted.items()} == {
        Reason.DIFFERENT_PROMPTS: 1,
        Reason.EMPTY_PROMPT: 1,
        Reason.EMPTY_RESPONSE: 1,
        Reason.IDENTICAL_RESPONSES: 1,
        Reason.TRUNCATED: 1,
    }
    assert found.usable == 1
    assert found.rows_read == 6
    assert counted[Reason.TRUNCATED][1] == [
        "rows.jsonl:6: truncated: 23 characters in prompt and one response, where the trainer cuts at 12"
    ]


GROUPS = [
    {"prompt": "p", "chosen": ["a b", "a b"], "rejected": ["c"]},
    {"prompt": "p", "chosen": ["a"], "rejected": ["b", "c", "b"]},
    {"prompt": "p", "chosen": ["a", "d"], "rejected": ["b", "d"]},
    {"prompt": "p", "chosen": ["a", "d"], "rejected": ["b", "c"]},
]


def test_a_response_twice_on_one_side_is_odd_and_one_on_both_sides_is_unusable(
    write_rows: Callable[..., Path], tokenizer_dir: Path
) -> None:
    path = write_rows(*GROUPS)
    by_tokens = survey_file(path, TokenMeasure(load_tokenizer(tokenizer_dir), VOCAB_SIZE), seed=0)
    for found, what in ((survey(path), "text"), (by_tokens, "2 tokens")):
        assert found.usable == 3
        assert found.remarks[Remark.REPEATED_RESPONSE].examples == ["rows.jsonl:1", "rows.jsonl:2"]
        assert {reason: rows.examples for reason, rows in found.violations.items()} == {
            Reason.IDENTICAL_RESPONSES: [
                f"rows.jsonl:3: identical_responses: chosen[1] and rejected[1] are the same {what}"
            ]
        }
    assert [group.responses for group in survey(path).sample] == [(3, 3, 1), (1, 1, 1, 1), (1, 1, 1, 1)]


def test_the_loader_takes_a_response_twice_on_one_side(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    found = survey_pairs(write_rows(*GROUPS), tokenizer_dir)
    assert found.violation_counts == {Reason.IDENTICAL_RESPONSES: 1}
    assert [row.line for row in found.lengths] == [1, 2, 4]


def test_only_the_first_rows_of_a_reason_are_named(write_rows: Callable[..., Path]) -> None:
    found = survey(write_rows(*(text_row("p", "same", "same") for _ in range(10))))
    same = found.violations[Reason.IDENTICAL_RESPONSES]
    assert same.rows == 10
    assert [example.partition(": ")[0] for example in same.examples] == ["rows.jsonl:1", "rows.jsonl:2", "rows.jsonl:3"]
    assert len(same.examples) == EXAMPLES_KEPT


def test_long_pairs_are_left_out_where_that_is_asked_for(write_rows: Callable[..., Path]) -> None:
    found = survey(write_rows(text_row("p", "c", "r"), text_row("p", "c" * 50, "r")), max_group=20)
    assert found.usable == 1
    assert found.longest == 3
    assert found.violations[Reason.OVER_MAX_TOKENS].rows == 1


def test_a_conversation_without_a_response_is_no_preference_row(write_rows: Callable[..., Path]) -> None:
    row = turns_row("one", "yes", "no")
    row["rejected"].append({"role": "user", "content": "and?"})
    with pytest.raises(DataError, match=r"rows\.jsonl:2: rejected ends with a turn of 'user'.*leave the row out"):
        survey(write_rows(turns_row("one", "yes", "no"), row))


def test_two_shapes_in_one_file_are_refused(write_rows: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:2: the row has shape trl_text, the rows before it trl_implicit"):
        survey(write_rows(turns_row("one", "yes", "no"), text_row("p", "c", "r")))


def test_lengths_are_those_of_the_loader(samples_dir: Path, tokenizer_dir: Path) -> None:
    """Pair by pair and in batches, the tokenizer gives the same."""
    measure = TokenMeasure(load_tokenizer(tokenizer_dir), VOCAB_SIZE)
    files = sorted(samples_dir.glob("*.jsonl"))
    assert len(files) > 5
    for path in files:
        expected = survey_pairs(path, tokenizer_dir)
        found = survey_file(path, measure, seed=0)
        assert [(group.prompt, group.packed) for group in found.sample] == [
            (row.prompt_tokens, row.total_tokens) for row in expected.lengths
        ]
        assert {reason: rows.rows for reason, rows in found.violations.items()} == expected.violation_counts
        assert (found.shape, found.sha256) == (expected.shape, expected.sha256)


def test_a_tokenizer_finds_merges_over_the_seam_and_doubled_begin_tokens(
    make_tokenizer: Callable[..., Path], write_rows: Callable[..., Path]
) -> None:
    tokenizer = load_tokenizer(make_tokenizer(merges=[("x", "y")], adds_bos=True))
    path = write_rows(text_row("x", "yes", "no"), text_row("<s>a", "b", "c"), text_row("a", "b", "c"))
    found = survey_file(path, TokenMeasure(tokenizer, VOCAB_SIZE), seed=0)
    assert {reason: rows.rows for reason, rows in found.violations.items()} == {
        Reason.SEAM_MERGE: 1,
        Reason.DOUBLED_BOS: 1,
    }
    assert found.usable == 1


def test_a_template_that_ends_no_turn_is_remarked_on(
    make_tokenizer: Callable[..., Path], write_rows: Callable[..., Path]
) -> None:
    endless = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    path = write_rows(turns_row("one", "yes", "no"))
    for template, expected in ((endless, {Remark.MISSING_END_TOKEN: 1}), (None, {})):
        folder = make_tokenizer(template=template) if template else make_tokenizer()
        found = survey_file(path, TokenMeasure(load_tokenizer(folder), VOCAB_SIZE), seed=0)
        assert found.usable == 1
        assert {remark: rows.rows for remark, rows in found.remarks.items()} == expected


def test_a_token_outside_the_vocabulary_is_refused(tokenizer_dir: Path, write_rows: Callable[..., Path]) -> None:
    path = write_rows(turns_row("one", "yes", "no"))
    with pytest.raises(DataError, match=r"rows\.jsonl:1.*choose the model that belongs to it"):
        survey_file(path, TokenMeasure(load_tokenizer(tokenizer_dir), 40), seed=0)


def test_tokens_can_be_estimated(write_rows: Callable[..., Path]) -> None:
    found = survey_file(write_rows(text_row("p" * 40, "c" * 9, "r")), CharacterMeasure(4.0), seed=0)
    assert found.sample == (GroupLengths(10, (2, 1)),)
    with pytest.raises(DataError, match="expected a number above 0"):
        CharacterMeasure(0.0)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives, without the cycles that wait for a collection: those come and go with its thresholds."""
    monkeypatch.setattr(survey_module, "SAMPLE_SIZE", 500)
    peaks = []
    for num_rows in (4000, 4000, 12000):  # far beyond the size of the sample; the first pays for what is loaded once
        path = tmp_path / f"{num_rows}.jsonl"
        line = json.dumps(turns_row("word " * 9, "yes " * 9, "no " * 9)) + "\n"
        path.write_text(line * num_rows, encoding="utf-8")
        gc.collect()
        tracemalloc.start()
        try:
            survey_file(path, CharacterMeasure(), seed=0, progress=lambda *step: gc.collect())
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[1], peaks


def test_progress_tells_the_share_that_is_read(write_rows: Callable[..., Path]) -> None:
    told: list[tuple[float, int, float]] = []
    survey_file(
        write_rows(*(text_row("p", "c", "r") for _ in range(1500))),
        CharacterMeasure(),
        seed=0,
        progress=lambda *step: told.append(step),
    )
    shares = [share for share, _, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(told) > 2
    assert told[-1][1] == 1500
