"""Rows whose tokens are kept, and what the report says of their prefix trees: the forest built on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packed_impl.forest import attention_rule
from packed_impl.layout import PackedLayout, pack
from reports import data_html, data_markdown
from verify.data import survey as survey_module
from verify.data.measures import CharacterMeasure, TokenMeasure
from verify.data.rows import iter_rows
from verify.data.shapes import shape_of
from verify.data.survey import survey_file
from verify.data.tokenise import encode_group, load_tokenizer
from verify.data_report import DataOptions, prepare_data, report_data
from verify.groups import PreferenceGroup
from verify.packing_plan.prefix_trees import GROUP_TREES, ONE_TREE, ROW_TREES, SHARED_PROMPTS, TokenGroup
from verify.packing_plan.records import PlanOptions

VOCAB_SIZE = 300
SYSTEM = {"role": "system", "content": "be brief"}


def row(prompt: str, chosen: str, rejected: str) -> dict[str, Any]:
    before = [SYSTEM, {"role": "user", "content": prompt}]
    return {
        side: [*before, {"role": "assistant", "content": answer}]
        for side, answer in (("chosen", chosen), ("rejected", rejected))
    }


ROWS = [
    row("one and one?", "two, of course", "two, or three"),
    row("one and two?", "three", "four"),
    row("one and one?", "two", "I do not know"),
    row("what is blue?", "a colour", "a colour that is green"),
]


def groups_of(path: Path, tokenizer_dir: Path) -> list[PreferenceGroup]:
    tokenizer = load_tokenizer(tokenizer_dir)
    return [encode_group(tokenizer, shape_of(each).read(each)) for each in iter_rows(path)]


def test_the_tokens_of_rows_are_kept_where_they_are_tokenised(
    write_rows: Callable[..., Path], tokenizer_dir: Path
) -> None:
    path = write_rows(*ROWS, row("one?", "same", "same"))
    found = survey_file(path, TokenMeasure(load_tokenizer(tokenizer_dir), VOCAB_SIZE), seed=0)
    expected = groups_of(write_rows(*ROWS, name="usable.jsonl"), tokenizer_dir)
    assert list(found.tokenised) == [TokenGroup.of(group.prompt_ids, group.completions) for group in expected]
    assert [group.lengths for group in found.tokenised] == list(found.sample)
    assert survey_file(path, CharacterMeasure(), seed=0).tokenised == ()


def test_no_more_rows_are_kept_than_the_sample_holds(
    write_rows: Callable[..., Path], tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "TOKENISED_SAMPLE_SIZE", 3)
    path = write_rows(*(row(f"question {index}", "yes", "no") for index in range(20)))
    measure = TokenMeasure(load_tokenizer(tokenizer_dir), VOCAB_SIZE)
    kept = survey_file(path, measure, seed=5).tokenised
    whole = [TokenGroup.of(group.prompt_ids, group.completions) for group in groups_of(path, tokenizer_dir)]
    places = [whole.index(group) for group in kept]
    assert len(places) == 3
    assert places == sorted(set(places))
    assert survey_file(path, measure, seed=5).tokenised == kept


@pytest.mark.parametrize("row_limit", [100, 250, 4096])
def test_the_report_counts_what_the_packed_layout_feeds(
    write_rows: Callable[..., Path], tokenizer_dir: Path, row_limit: int
) -> None:
    path = write_rows(*ROWS)
    options = DataOptions(file=path, tokenizer=tokenizer_dir, plan=PlanOptions(row_limit=row_limit))
    report = report_data(prepare_data(options), lambda share, rows, seconds: None, command=["packparity"], started=0.0)
    assert report.prefix_trees is not None
    assert (report.prefix_trees.groups_sampled, report.prefix_trees.row_limit) == (len(ROWS), row_limit)
    found = {way.way: (way.tokens, way.attention_pairs) for way in report.prefix_trees.ways}
    groups = groups_of(path, tokenizer_dir)
    apart = [[index] for index in range(len(groups))]
    assert found[SHARED_PROMPTS] == fed(groups, "shared-prompt", apart)
    assert found[GROUP_TREES] == fed(groups, "prefix-tree", apart)
    assert found[ONE_TREE] == fed(groups, "prefix-tree", [list(range(len(groups)))])
    assert report.algebra is not None
    assert found[SHARED_PROMPTS] == (report.algebra.tokens_packed, report.algebra.attention_pairs_packed)
    flop_ratios = {way.way: way.flop_ratio for way in report.prefix_trees.ways}
    assert flop_ratios[SHARED_PROMPTS] == report.algebra.flop_ratio
    if row_limit == 100:  # the longest group takes more than half of it
        assert found[ROW_TREES] == found[GROUP_TREES]
    elif row_limit == 4096:
        assert found[ROW_TREES] == found[ONE_TREE]
    else:
        assert found[ONE_TREE] < found[ROW_TREES] < found[GROUP_TREES]
    for text in (data_markdown.render(report), data_html.render(report)):
        assert "Prefix trees, counted on sampled rows" in text
        assert f"{found[ONE_TREE][0]:,}" in text.replace("\u202f", ",")


def fed(groups: list[PreferenceGroup], layout: str, rows: list[list[int]]) -> tuple[int, int]:
    """Slots and attention pairs of rows that are packed one by one, so that none is padded."""
    packed: list[PackedLayout] = [pack([groups[index] for index in row], layout=layout) for row in rows]
    return (
        sum(each.input_ids.numel() for each in packed),
        sum(int(attention_rule(forest).sum()) for each in packed for forest in each.forests),
    )


def test_without_a_tokenizer_there_are_no_trees(write_rows: Callable[..., Path]) -> None:
    options = DataOptions(file=write_rows(*ROWS), chars_per_token=4)
    report = report_data(prepare_data(options), lambda share, rows, seconds: None, command=["packparity"], started=0.0)
    assert report.prefix_trees is None
    assert "Prefix trees" not in data_markdown.render(report)
