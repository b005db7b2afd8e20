"""From file to groups: every row accounted for, each violation counted, and the sample reproducible."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verify.data import load
from verify.data.load import PAIRS_BY_DEFAULT, load_pairs, survey_pairs
from verify.data.rows import DataError, Row, iter_rows
from verify.data.shapes import SHAPES
from verify.data.violations import Reason
from verify.groups import PreferenceGroup


def conversation_row(prompt: str = "hi", chosen: str = "yes", rejected: str = "no") -> dict[str, Any]:
    sides = {"chosen": chosen, "rejected": rejected}
    user = {"role": "user", "content": prompt}
    return {name: [user, {"role": "assistant", "content": text}] for name, text in sides.items()}


@pytest.mark.parametrize("name", [shape.name for shape in SHAPES])
def test_every_row_of_an_own_sample_becomes_a_group(samples_dir: Path, tokenizer_dir: Path, name: str) -> None:
    path = samples_dir / f"{name}.jsonl"
    loaded = load_pairs(path, tokenizer_dir, num_pairs=3, seed=0, vocab_size=259)
    assert [group.source for group in loaded.groups] == [f"{name}.jsonl:{line}" for line in (1, 2, 3)]
    assert (loaded.shape, loaded.rows_read, loaded.violations, loaded.violation_counts) == (name, 3, (), {})
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.file == path.name
    assert loaded.tokenizer.name == tokenizer_dir.name
    for group, lengths in zip(loaded.groups, loaded.lengths, strict=True):
        assert lengths.prompt_tokens == len(group.prompt_ids)
        assert lengths.total_tokens == len(group.prompt_ids) + sum(len(ids) for ids in group.completions)


def test_what_was_left_out_is_said(samples_dir: Path, tokenizer_dir: Path) -> None:
    (image_note,) = survey_pairs(samples_dir / "rlhf_v.jsonl", tokenizer_dir).notes
    assert image_note == "column 'image_path' was left out, only the text is read (3 of 3 rows fill it)"
    (text_note,) = survey_pairs(samples_dir / "trl_text.jsonl", tokenizer_dir).notes
    assert text_note.startswith("plain text: tokenised without a chat template")
    assert survey_pairs(samples_dir / "tulu.jsonl", tokenizer_dir).notes == ()


def many_rows() -> list[dict[str, Any]]:
    return [conversation_row(chosen="y" * (1 + i * 7 % 40)) for i in range(40)]


def test_the_sample_is_reproducible_and_spread_over_the_lengths(
    write_rows: Callable[..., Path], tokenizer_dir: Path
) -> None:
    path = write_rows(*many_rows())

    def sampled(seed: int) -> tuple[PreferenceGroup, ...]:
        return load_pairs(path, tokenizer_dir, num_pairs=4, seed=seed).groups

    assert sampled(5) == sampled(5)
    assert len({tuple(group.source for group in sampled(seed)) for seed in range(5)}) > 1
    # Chosen holds 1 to 40 characters, each once: four strata of ten, whatever the seed.
    whole = {group.source: group for group in load_pairs(path, tokenizer_dir, num_pairs=40, seed=0).groups}
    shortest = min(len(group.positives[0]) for group in whole.values())
    ranks = sorted(len(group.positives[0]) - shortest for group in sampled(5))
    assert [rank // 10 for rank in ranks] == [0, 1, 2, 3]
    assert all(whole[group.source] == group for group in sampled(5))


def test_without_a_number_four_pairs_are_drawn_or_all_where_there_are_fewer(
    write_rows: Callable[..., Path], tokenizer_dir: Path
) -> None:
    for num_rows, expected in ((1, 1), (3, 3), (4, 4), (40, 4)):
        path = write_rows(*many_rows()[:num_rows])
        loaded = load_pairs(path, tokenizer_dir, num_pairs=None, seed=3)
        assert len(loaded.groups) == expected
        assert loaded.groups == load_pairs(path, tokenizer_dir, num_pairs=expected, seed=3).groups
    assert PAIRS_BY_DEFAULT == 4


def test_a_number_is_kept_to_though_every_row_is_usable(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    message = r"^4 pairs asked for, but rows\.jsonl holds fewer: 3 rows read, all usable; ask for at most 3$"
    with pytest.raises(DataError, match=message):
        load_pairs(write_rows(*many_rows()[:3]), tokenizer_dir, num_pairs=4, seed=0)


def test_a_survey_says_in_one_line_what_it_left_out_and_where(
    write_rows: Callable[..., Path], tokenizer_dir: Path
) -> None:
    good, same, empty = conversation_row(), conversation_row(chosen="no"), conversation_row(chosen="")

    def described(*rows: dict[str, Any]) -> str:
        return survey_pairs(write_rows(*rows), tokenizer_dir).describe()

    assert described(good) == "1 row read, all usable"
    assert described(good, good) == "2 rows read, all usable"
    assert described(good, same, empty, same) == (
        "4 rows read, 1 usable; left out: empty_response 1, identical_responses 2 "
        "(first: rows.jsonl:2: identical_responses: chosen and rejected are the same 4 tokens)"
    )
    assert described(same).startswith("1 row read, none usable; left out: identical_responses 1 (first: rows.jsonl:1")
    path = write_rows(good, same)
    loaded = load_pairs(path, tokenizer_dir, num_pairs=None, seed=0)
    assert loaded.describe() == survey_pairs(path, tokenizer_dir).describe()


def test_over_long_pairs_are_counted_and_never_cut(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    path = write_rows(*many_rows())
    totals = [pair.total_tokens for pair in survey_pairs(path, tokenizer_dir).lengths]
    limit = sorted(totals)[24]
    loaded = load_pairs(path, tokenizer_dir, num_pairs=25, seed=0, max_tokens=limit)
    assert loaded.violation_counts == {Reason.OVER_MAX_TOKENS: 15}
    assert [violation.place.line for violation in loaded.violations] == [
        line for line, total in enumerate(totals, start=1) if total > limit
    ]
    assert max(pair.total_tokens for pair in loaded.lengths) == limit
    message = (
        r"^26 pairs asked for, but rows\.jsonl holds fewer: 40 rows read, 25 usable; left out: over_max_tokens 15 "
        rf"\(first: rows\.jsonl:\d+: over_max_tokens: .* at most {limit} asked for\); ask for at most 25$"
    )
    with pytest.raises(DataError, match=message):
        load_pairs(path, tokenizer_dir, num_pairs=26, seed=0, max_tokens=limit)


def test_unusable_rows_are_counted_by_reason_and_placed(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    parted = {"chosen": conversation_row("a")["chosen"], "rejected": conversation_row("b")["rejected"]}
    unanswered = conversation_row() | {"rejected": [{"role": "user", "content": "hi"}]}
    path = write_rows(
        conversation_row(),
        parted,
        conversation_row(chosen="no"),
        conversation_row(rejected=""),
        conversation_row(prompt=""),
        unanswered,
        parted,
        conversation_row("bye"),
    )
    loaded = load_pairs(path, tokenizer_dir, num_pairs=2, seed=0)
    assert loaded.rows_read == 8
    assert [group.source for group in loaded.groups] == ["rows.jsonl:1", "rows.jsonl:8"]
    assert [(violation.place.line, violation.reason) for violation in loaded.violations] == [
        (2, Reason.DIFFERENT_PROMPTS),
        (3, Reason.IDENTICAL_RESPONSES),
        (4, Reason.EMPTY_RESPONSE),
        (5, Reason.EMPTY_PROMPT),
        (6, Reason.NO_FINAL_ASSISTANT_TURN),
        (7, Reason.DIFFERENT_PROMPTS),
    ]
    assert loaded.violation_counts == {
        Reason.DIFFERENT_PROMPTS: 2,
        Reason.EMPTY_PROMPT: 1,
        Reason.EMPTY_RESPONSE: 1,
        Reason.IDENTICAL_RESPONSES: 1,
        Reason.NO_FINAL_ASSISTANT_TURN: 1,
    }


def test_rows_used_and_rows_named_add_up(
    samples_dir: Path, write_rows: Callable[..., Path], tokenizer_dir: Path
) -> None:
    rows = [row.columns for row in iter_rows(samples_dir / "h4_ultrafeedback.jsonl")]
    survey = survey_pairs(write_rows(*rows, {**rows[0], "prompt": "other"}), tokenizer_dir)
    assert survey.rows_read == 4 == len(survey.lengths) + len(survey.violations)
    assert sum(survey.violation_counts.values()) == len(survey.violations) == 1


def test_a_file_without_a_usable_pair_says_why(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    path = write_rows(conversation_row(chosen="no"), conversation_row(chosen=""), conversation_row(chosen="no"))
    message = (
        r"^rows\.jsonl holds no usable pair: 3 rows read, none usable; left out: empty_response 1, "
        r"identical_responses 2 \(first: rows\.jsonl:1: identical_responses: .*\)$"
    )
    for num_pairs in (1, None):
        with pytest.raises(DataError, match=message):
            load_pairs(path, tokenizer_dir, num_pairs=num_pairs, seed=0)
    assert survey_pairs(path, tokenizer_dir).lengths == ()


def test_a_change_of_shape_is_refused_at_its_line(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    implicit = conversation_row()
    with pytest.raises(
        DataError,
        match=r"^rows\.jsonl:3: the row has shape conversations, the rows before it trl_implicit_prompt: ",
    ):
        survey_pairs(write_rows(implicit, implicit, implicit | {"prompt": "hi"}), tokenizer_dir)
    with pytest.raises(DataError, match=r"^rows\.jsonl:2: not a known shape .*missing column 'rejected'"):
        survey_pairs(write_rows(implicit, {"chosen": implicit["chosen"]}), tokenizer_dir)


def test_a_token_id_outside_the_model_is_refused(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    path = write_rows(conversation_row())
    # 256 bytes and three special tokens; <|im_end|> is the last id, 258.
    assert survey_pairs(path, tokenizer_dir, vocab_size=259).rows_read == 1
    with pytest.raises(
        DataError,
        match=r"token id 258 at rows\.jsonl:1, .* the tokenizer does not belong to this model: .* \(--model\)$",
    ):
        survey_pairs(path, tokenizer_dir, vocab_size=258)


def test_a_file_that_changes_meanwhile_is_refused(
    write_rows: Callable[..., Path], tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(conversation_row(), conversation_row("bye"))

    def rows_then_growth(source: Path) -> Iterator[Row]:
        yield from iter_rows(source)
        with source.open("a") as stream:
            stream.write(json.dumps(conversation_row("late")) + "\n")

    monkeypatch.setattr(load, "iter_rows", rows_then_growth)
    for read in (survey_pairs, lambda *where: load_pairs(*where, num_pairs=1, seed=0)):
        with pytest.raises(DataError, match="changed while it was read"):
            read(path, tokenizer_dir)


def test_missing_inputs_are_one_clear_message(write_rows: Callable[..., Path], tokenizer_dir: Path) -> None:
    path = write_rows(conversation_row())
    with pytest.raises(DataError, match=r"preference file .*absent\.jsonl does not exist"):
        load_pairs(path.with_name("absent.jsonl"), tokenizer_dir, num_pairs=1, seed=0)
    with pytest.raises(DataError, match=r"tokenizer folder .*absent does not exist"):
        load_pairs(path, path.with_name("absent"), num_pairs=1, seed=0)


def test_parquet_and_jsonl_give_the_same_groups(samples_dir: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    for sample in sorted(samples_dir.iterdir()):
        table = pyarrow.Table.from_pylist([dict(row.columns) for row in iter_rows(sample)])
        parquet.write_table(table, tmp_path / f"{sample.stem}.parquet")
        from_jsonl = load_pairs(sample, tokenizer_dir, num_pairs=2, seed=1)
        from_parquet = load_pairs(tmp_path / f"{sample.stem}.parquet", tokenizer_dir, num_pairs=2, seed=1)
        assert from_parquet.groups == from_jsonl.groups
        assert (from_parquet.shape, from_parquet.lengths) == (from_jsonl.shape, from_jsonl.lengths)
