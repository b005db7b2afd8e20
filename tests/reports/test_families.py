"""Records of model families: they refuse to contradict themselves, come back as they were, and show every family."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from reports import families_html
from reports.difference import Change, compare
from reports.families_markdown import render
from reports.families_record import FamiliesRecord
from reports.families_store import read_families, write_families
from reports.families_terminal import print_families
from reports.results import print_result, read_result, write_result
from reports.store import RecordError


class Page(HTMLParser):
    """Text and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(" ".join(data.split()))


MEASURED = {"bit_identical": True, "score": 0.0, "noise": 1e-6, "nats": 1e-7, "reason": ""}
LEAKING = {"bit_identical": False, "score": 0.97, "noise": 1e-6, "nats": 3.0, "reason": ""}
NOTHING = {"bit_identical": None, "score": None, "noise": None, "nats": None}


def way(name: str, outcome: str, **changes: Any) -> dict[str, Any]:
    values = {"isolated": MEASURED, "leaks": LEAKING, "other-values": LEAKING}.get(outcome, NOTHING)
    return {"way": name, "outcome": outcome, "reason": "", **values, **changes}


def family(name: str, *outcomes: str, **changes: Any) -> dict[str, Any]:
    ways = [way(n, outcome) for n, outcome in zip(("no-mask", "ones-mask"), outcomes, strict=False)]
    values = {
        "model_type": name, "architecture": "A_ForCausalLM", "state": "measured", "reason": "", "num_parameters": 9,
        "layer_kinds": [], "positions": "honoured", "ways": ways, "elapsed_s": 1.0,
    }  # fmt: skip
    return {**values, **changes}


def content(*families: dict[str, Any], **changes: Any) -> dict[str, Any]:
    environment = {
        "python": "3", "platform": "p", "processor": "c", "num_threads": 1, "device": "cpu",
        "packages": {"transformers": "5.0", "torch": "2.0"},
    }  # fmt: skip
    values = {
        "tool_version": "1", "created_utc": "2026-01-01T00:00:00+00:00", "command": ["packparity", "families"],
        "environment": environment, "seed": 0, "seconds_per_family": 60.0, "total_s": 2.0,
        "ways": {"no-mask": "use_cache=False", "ones-mask": "attention_mask of ones"},
        "families": [*families],
    }  # fmt: skip
    return {**values, **changes}


NOT_BUILT = family("gone", state="not-built", reason="needs *timm*", positions=None, num_parameters=None)
RECORD = FamiliesRecord.model_validate(
    content(family("qwen3", "isolated", "leaks"), family("mamba", "leaks", "leaks"), NOT_BUILT)
)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    paths = write_families(RECORD, tmp_path)
    assert [path.name for path in paths] == ["families.md", "families.html", "families.json"]
    assert read_families(tmp_path) == RECORD


def test_another_kind_and_another_version_are_refused(tmp_path: Path) -> None:
    path = write_families(RECORD, tmp_path)[-1]
    plain = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"kind": "record"}, {"schema_version": 2}, {"schema_version": True}, {"unknown": 1}):
        path.write_text(json.dumps({**plain, **change}), encoding="utf-8")
        with pytest.raises(RecordError, match=r"families\.json"):
            read_families(path)


@pytest.mark.parametrize(
    ("families", "message"),
    [
        ([], "nothing was measured"),
        ([family("a", "isolated", "leaks"), family("a", "isolated", "leaks")], "there twice"),
        ([family("a", "isolated")], "are not those of the run"),
        ([family("a", state="crashed")], "reason ''"),
        ([family("a", "isolated", "leaks", state="crashed", reason="r")], "crashed with 2 ways"),
        ([family("a", ways=[way("no-mask", "refused"), way("ones-mask", "leaks")])], "refused without a reason"),
        ([family("a", ways=[way("no-mask", "isolated", score=None), way("ones-mask", "leaks")])], "not measured"),
        ([family("a", ways=[way("no-mask", "leaks", bit_identical=True), way("ones-mask", "leaks")])], "every bit"),
        ([family("a", ways=[way("no-mask", "leaks", score=float("nan")), way("ones-mask", "leaks")])], "finite"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(families: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FamiliesRecord.model_validate(content(*families))


def test_the_markdown_has_one_line_a_family_and_the_counts() -> None:
    lines = render(RECORD).splitlines()
    assert any("2 of 3 families measured. Of these 1 isolate" in line for line in lines)
    assert "| no-mask | `use_cache=False` | 1 | 1 | 0 | 0 | 0 |" in lines
    assert "| qwen3 | A_ForCausalLM | honoured |  | isolated | LEAKS 0.97 |" in lines
    assert sum(line.startswith("| mamba |") for line in lines) == 1
    assert any(line.startswith("| gone |") and "needs \\*timm\\*" in line for line in lines)


def test_the_terminal_shows_every_family() -> None:
    shown = printed(RECORD, 80)
    for line in ("qwen3 honoured ok 0.97", "mamba honoured 0.97 0.97", "family positions A B"):
        assert line in shown
    for text in ("gone: not-built: needs *timm*", "A no-mask: 1 isolate, 1 leak use_cache=False", "B ones-mask: 0 iso"):
        assert any(line.startswith(text) for line in shown)


def printed(record: FamiliesRecord, width: int) -> list[str]:
    """Lines of the terminal, blanks between columns as one."""
    stream = io.StringIO()
    print_families(record, Console(file=stream, width=width))
    assert "\x1b" not in stream.getvalue()
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_every_outcome_has_a_cell_of_its_own_on_the_terminal_and_is_explained() -> None:
    outcomes = ("isolated", "leaks", "other-values", "refused", "unresolved", "isolated")
    names = [f"way-{index}" for index in range(6)]
    ways = [way(name, outcome) for name, outcome in zip(names, outcomes, strict=True)]
    for unclear in ways[3:5]:
        unclear["reason"] = "r"
    ways[-1]["bit_identical"] = False
    of_run = dict.fromkeys(names, "a call")
    record = FamiliesRecord.model_validate(content(family("qwen3", ways=ways), ways=of_run))
    lines = printed(record, 80)
    assert "qwen3 honoured ok 0.97 other err ? ok~" in lines
    legend = " ".join(lines)
    for text in (
        "ok: isolated",
        "ok~: isolated, but",
        "a number: LEAKS",
        "other: nothing leaks",
        "err: ref",
        "?: unres",
    ):
        assert text in legend
    assert "qwen3: way-3 refused, way-4 unresolved: r" in lines


def test_no_word_of_the_table_is_broken_at_80_columns() -> None:
    record = read_families(Path(__file__).parents[2] / "docs" / "results" / "hf-position-ids")
    lines = printed(record, 80)
    start, end = lines.index("─" * len(lines[2])) + 1, lines.index("", 3)
    table = lines[start:end]
    assert max(map(len, lines[:end])) <= 80
    measured = [each for each in record.families if each.ways]
    assert len(measured) > 100
    assert len(table) < len(measured) + 5  # the longest names take two lines
    rows = iter(table)
    for each in measured:
        name, positions, *cells = next(rows).split()
        assert (positions, len(cells)) == (each.positions, len(record.ways))
        if name != each.model_type:
            assert name[-1] in "_-"
            assert name + next(rows) == each.model_type


def test_the_page_shows_every_family_as_text() -> None:
    families = (family("<b>evil</b>", "isolated", "leaks"), family("mamba", "leaks", "leaks"), NOT_BUILT)
    text = families_html.render(FamiliesRecord.model_validate(content(*families)))
    page = Page(text)
    assert page.open == []
    assert not {"script", "b", "link", "img"} & set(page.tags)
    for words in ("<b>evil</b>", "LEAKS 0.97", "isolated", "needs *timm*", "not-built", "attention_mask of ones"):
        assert words in page.words
    assert "2 of 3 families measured; 1 isolate without a mask" in " ".join(page.words)
    assert text == families_html.render(FamiliesRecord.model_validate(content(*families)))


def test_families_are_read_shown_written_and_compared_like_any_result(tmp_path: Path) -> None:
    write_families(RECORD, tmp_path / "first")
    found = read_result(tmp_path / "first")
    assert found == read_result(tmp_path / "first" / "families.json") == RECORD
    again = write_result(found, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [(tmp_path / "first" / path.name).read_bytes() for path in again]
    stream = io.StringIO()
    print_result(found, Console(file=stream, width=80))
    assert "mamba" in stream.getvalue()
    assert compare(RECORD, RECORD).verdicts == compare(RECORD, RECORD).settings == ()
    mended = content(family("qwen3", "isolated", "isolated"), family("mamba", "leaks", "leaks"), NOT_BUILT, seed=1)
    mended["families"][1]["ways"][0]["score"] = 0.1
    difference = compare(RECORD, FamiliesRecord.model_validate(mended))
    assert difference.settings == (Change("seed", "0", "1"),)
    assert difference.verdicts == (Change("qwen3, ones-mask", "leaks", "isolated"),)
    assert {pair.what for pair in difference.moved} == {"qwen3, ones-mask", "mamba, no-mask"}
    assert difference.what_ratios == "share of a full leak"


def test_a_folder_without_families_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no families\.json"):
        read_families(tmp_path)
    with pytest.raises(RecordError, match=r"none of .*families\.json"):
        read_result(tmp_path)
