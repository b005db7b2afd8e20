"""The report of a preference file: it refuses to contradict itself, and comes back from disk as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from reports import data_html, data_markdown, data_picture
from reports.data_record import DataReport
from reports.data_store import DATA_REPORT_FILES, data_report_json, read_data_report, write_data_report
from reports.store import RecordError


def plan(name: str, row_limit: int | None, speed_up: float) -> dict[str, Any]:
    return {
        "plan": name,
        "row_limit": row_limit,
        "speed_up": speed_up,
        "token_utilisation": 0.8,
        "waiting_share": 0.1,
        "examples_per_row": 1.0,
        "examples_per_step": 32.0,
        "useful_tokens_per_step": 80.0,
        "padded_tokens_per_step": 20.0,
        "peak_slots": 100 if name == "plain" else 50,
        "flops_per_example": 4e9 if name == "plain" else 3e9,
    }


def by_responses(responses: int, groups: int) -> dict[str, Any]:
    return {
        "responses": responses,
        "or_more": False,
        "groups": groups,
        "token_ratio": 0.8,
        "attention_ratio": 0.77,
        "flop_ratio": 0.81,
        "eq1_ratio": 0.9,
        "eq1_share": 0.5,
    }


def part(name: str) -> dict[str, Any]:
    return {
        "part": name,
        "mean": 6.0,
        "shortest": 4,
        "longest": 8,
        "quantiles": {"50": 5, "99": 8},
        "bins": [{"least": 4, "greatest": 5, "number": 6}, {"least": 6, "greatest": 9, "number": 2}],
    }


@pytest.fixture
def content() -> dict[str, Any]:
    return {
        "kind": "data-report",
        "schema_version": 2,
        "tool_version": "0.1.0",
        "created_utc": "2026-01-01T00:00:00+00:00",
        "command": ["packparity", "data", "pairs.jsonl"],
        "file": "pairs<b>.jsonl",
        "sha256": "0" * 64,
        "shape": "tulu",
        "unit": "tokens",
        "unit_note": "tokens of a tokenizer",
        "tokenizer": {"name": "tokenizer", "tokenizer_sha256": None, "chat_template_sha256": None},
        "model": "qwen3-8b",
        "max_length": None,
        "max_tokens": None,
        "rows_read": 10,
        "rows_usable": 8,
        "most_broken_share": 0.25,
        "violations": [{"name": "seam_merge", "meaning": "merged", "rows": 2, "examples": ["pairs.jsonl:3"]}],
        "remarks": [],
        "unchecked": [],
        "lengths": [part(name) for name in ("prompt", "chosen", "rejected", "group")],
        "file_order": {
            "repeated_prompts": 1,
            "num_sources": 3,
            "sources": {"found": 0.9, "random": 0.4, "follows": True},
            "lengths": {"found": 0.01, "random": 0.0, "follows": False},
        },
        "algebra": {
            "tokens_unpacked": 100,
            "tokens_packed": 80,
            "attention_pairs_unpacked": 900,
            "attention_pairs_packed": 700,
            "shared_share": 0.2,
            "token_ratio": 0.8,
            "flop_ratio": 0.81,
            "memory_ratio": 0.7,
            "eq1_unpacked": 1000,
            "eq1_packed": 900,
            "eq1_ratio": 0.9,
            "eq1_share": 0.5,
            "by_responses": [by_responses(2, 8)],
        },
        "simulation": {
            "groups_sampled": 8,
            "seed": 0,
            "num_ranks": 8,
            "groups_per_rank": 4,
            "row_limit": 64,
            "time_is": "forward FLOPs",
            "plans": [plan("plain", None, 1.0), plan("sequence packing, prompts shared", 64, 1.6)],
            "by_row_limit": [
                plan(f"sequence packing, prompts {name}", limit, speed_up)
                for limit in (64, 128)
                for name, speed_up in (("repeated", 1.2), ("shared", 1.6))
            ],
            "order": None,
        },
        "prefix_trees": {
            "groups_sampled": 8,
            "seed": 0,
            "row_limit": 64,
            "ways": [
                {"way": "each sequence alone", "tokens": 100, "attention_pairs": 900, "flop_ratio": 1.0},
                {"way": "prompts shared", "tokens": 80, "attention_pairs": 700, "flop_ratio": 0.81},
                {"way": "one prefix tree of all groups", "tokens": 60, "attention_pairs": 630, "flop_ratio": 0.65},
            ],
        },
        "advice": {"advice": "pays", "reasons": ["it saves"]},
        "notes": [],
        "read_s": 0.5,
        "total_s": 2.0,
    }


def changed(content: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    made = json.loads(json.dumps(content))
    *parents, last = path.split(".")
    inner = made
    for name in parents:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    inner[last] = value
    return made


def test_the_sound_report_is_taken(content: dict[str, Any]) -> None:
    report = DataReport.model_validate(content)
    assert report.rows_per_s == 20
    assert report.broken_share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("rows_read", 0, "no row was read"),
        ("rows_usable", 7, "do not add up to 10"),
        ("violations.0.examples", [], "0 examples of 2 rows"),
        ("lengths", [], "exactly if there are some"),
        ("algebra", None, "exactly if there are some"),
        ("lengths.0.mean", 9.0, "mean 9.0 outside 4 to 8"),
        ("lengths.0.quantiles", {"50": 8, "99": 5}, "quantiles do not ascend"),
        ("lengths.0.bins", [{"least": 4, "greatest": 9, "number": 7}], "do not hold all 8"),
        ("lengths.0.bins.1.least", 5, "bins overlap"),
        ("algebra.token_ratio", 0.9, "the tokens give 0.8"),
        ("algebra.shared_share", 0.1, "the tokens give 0.2"),
        ("algebra.eq1_ratio", 0.8, "the tokens give 0.9"),
        ("algebra.by_responses.0.groups", 7, "do not add up to 8"),
        ("algebra.attention_pairs_packed", 901, "which the branch mask rules out"),
        ("simulation.plans.0.token_utilisation", 0.9, "does not follow from the tokens"),
        ("simulation.plans.0.waiting_share", 1.5, "less than or equal to 1"),
        ("prefix_trees.groups_sampled", 9, "9 of 8 usable rows"),
        ("prefix_trees.ways.2.tokens", 81, "holds more than 'prompts shared'"),
        ("prefix_trees.ways.1.attention_pairs", 901, "holds more than 'each sequence alone'"),
        ("advice.reasons", [], "without a reason"),
        ("advice.advice", "cannot-be-used", "0.2 of the rows cannot be packed"),
        ("most_broken_share", 0.1, "0.1 is the limit"),
        ("simulation.plans.0.speed_up", float("nan"), "finite"),
        ("unit", "bytes", "'tokens' or 'characters'"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(
    content: dict[str, Any], path: str, value: object, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        DataReport.model_validate(changed(content, path, value))


def test_a_report_without_usable_rows_has_no_lengths(content: dict[str, Any]) -> None:
    content |= {"rows_usable": 0, "lengths": [], "file_order": None, "algebra": None, "simulation": None}
    content["prefix_trees"] = None
    content["violations"][0]["rows"] = 10
    content["advice"]["advice"] = "cannot-be-used"
    report = DataReport.model_validate(content)
    assert data_picture.draw(report) == ""
    assert "Packing cannot be used" in data_html.render(report)


def test_it_comes_back_from_disk_as_it_was(content: dict[str, Any], tmp_path: Path) -> None:
    report = DataReport.model_validate(content)
    paths = write_data_report(report, tmp_path)
    assert tuple(path.name for path in paths) == DATA_REPORT_FILES
    assert read_data_report(tmp_path) == report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "record"}, "kind 'record'"),
        ({"schema_version": 1}, "schema_version 1"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_other_files_are_refused(
    content: dict[str, Any], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "data-report.json"
    path.write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(RecordError, match=message):
        read_data_report(path)


@pytest.mark.parametrize("render", [data_html.render, data_markdown.render, data_report_json])
def test_equal_reports_give_equal_text(content: dict[str, Any], render: Callable[[DataReport], str]) -> None:
    assert render(DataReport.model_validate(content)) == render(DataReport.model_validate(content))


def test_text_of_the_file_is_no_markup(content: dict[str, Any]) -> None:
    report = DataReport.model_validate(content)
    assert "pairs<b>" not in data_html.render(report)
    assert "pairs\\<b\\>" in data_markdown.render(report)


def test_the_picture_has_a_line_for_each_part_and_way_of_packing(content: dict[str, Any]) -> None:
    svg = data_picture.draw(DataReport.model_validate(content))
    ElementTree.fromstring(svg)
    for label in ("prompt", "chosen", "rejected", "pair, packed", "rows of several, prompts shared"):
        assert f">{label}</text>" in svg
    for colour in ("--first", "--second", "--third"):
        assert f"var({colour})" in svg
    assert "#0304" not in svg


def test_a_file_that_is_sorted_by_source_is_called_that(content: dict[str, Any]) -> None:
    text = data_markdown.render(DataReport.model_validate(content))
    assert "90.0% of neighbours in the file come from the same of 3 sources, 40.0% would in random order" in text
    assert "the file is sorted by source" in text
    assert "shuffle before packing" in text
    sound = changed(content, "file_order.sources.follows", False)
    assert "shuffle before packing" not in data_markdown.render(DataReport.model_validate(sound))


def test_groups_of_several_sizes_have_a_line_each(content: dict[str, Any]) -> None:
    content["algebra"]["by_responses"] = [by_responses(2, 5), by_responses(3, 3) | {"eq1_ratio": 1.25}]
    text = data_markdown.render(DataReport.model_validate(content))
    assert "By number of responses" in text
    assert "| 3 | 3 | 0.800 | 0.770 | 0.810 | 1.25 | 50.0% |" in text


def test_ways_of_filling_rows_are_held_against_padded_sequences(content: dict[str, Any]) -> None:
    report = DataReport.model_validate(content)
    assert report.simulation is not None
    assert report.simulation.plans[0].slots_per_example == 100 / 32
    text = data_markdown.render(report)
    assert "| sequence packing, prompts shared | 1.00 | 0.750 | 0.500 | 0.625 |" in text


def test_prefix_trees_are_held_against_each_sequence_alone(content: dict[str, Any]) -> None:
    text = data_markdown.render(DataReport.model_validate(content))
    assert "| one prefix tree of all groups | 60 | 630 | 0.600 | 0.700 | 0.650 |" in text
    assert "counted, not predicted, on the tokens of 8 pairs drawn evenly from the file (seed 0)" in text


def test_a_report_from_before_prefix_trees_were_counted_is_read(content: dict[str, Any], tmp_path: Path) -> None:
    del content["prefix_trees"]
    (tmp_path / "data-report.json").write_text(json.dumps(content), encoding="utf-8")
    report = read_data_report(tmp_path)
    assert report.prefix_trees is None
    assert "Prefix trees" not in data_markdown.render(report)


def test_drawn_lengths_have_no_digest_and_no_file(content: dict[str, Any]) -> None:
    content |= {"sha256": None, "shape": None, "violations": [], "rows_read": 8, "file_order": None}
    report = DataReport.model_validate(content)
    for text in (data_markdown.render(report), data_html.render(report)):
        assert "sha256" not in text
        assert "None" not in text
