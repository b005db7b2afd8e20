from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reports import markdown
from reports.record import Record
from reports.words import printable


@pytest.fixture(scope="module")
def text(record: Record) -> str:
    return markdown.render(record)


def to_html(text: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(text)


def shown(html: str) -> str:
    """What a reader sees, tags removed."""
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        html = html.replace(entity, character)
    return html


def test_the_verdict_comes_first(text: str) -> None:
    assert text.startswith("# ERROR: packed against unpacked on qwen3-0.6b\n")


@given(st.text(alphabet=st.sampled_from("ab|`*_\\[]()<>#&~$! \n"), min_size=1).filter(lambda t: t.strip()))
def test_escaped_text_is_shown_as_it_is_in_a_cell(value: str) -> None:
    html = to_html(f"| h |\n| --- |\n| x{markdown.escape(value)}x |\n")
    cell = re.search(r"<td>(.*)</td>", html)
    assert cell is not None
    assert shown(cell[1]) == f"x{' '.join(printable(value).split())}x"


def test_hostile_names_stay_text(text: str) -> None:
    html = to_html(text)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "| `tick` [red]é漢[/red] \\x1b[31m\\x00" in html
    assert "\x1b" not in html


def test_every_row_of_a_table_has_the_cells_of_its_header(text: str) -> None:
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE)
    assert len(tables) >= 8
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


@pytest.mark.parametrize(
    "part",
    [
        "8 of 28 layers",
        "596,049,920",
        "peft 0.21.0, torch 2.13.0, transformers 5.24.0",
        "honest runs stayed below 1.14; the weakest fault showed 5.2",
        "| 988 usable |".strip("| "),
        "tokenizer merges across the seam | 12 |",
        "FlexAttention ran uncompiled",
        "| model passes | 30.1 s |",
        "19 → 13 / 10<br>11 → 7 / 16",
        "50 masked tokens in front",
        "'my_trainer.py:Mine\\<b\\>'",
        "**INCONCLUSIVE**",
        "1 NOT_APPLICABLE",
        "actual NaN, expected -1",
        "- would have caught: 3 of 4 planted faults in 3 stages, each at least 43.4x its budget",
        "| prompt-cache-detached | activations | float32 | balanced | yes | 0.200 | - | 43.4 | - | no graph |",
        "| neighbour-predicts | predictors | float32 | balanced | **no** | 0.400 | - | - | - | the slot before",
        "| faults of label smoothing (1) | label smoothing is 0 | label-smoothing-ignored |",
        "| causality | 2 PASS, 1 NOT_APPLICABLE | packed-eager (float32) |",
        "moved by 1.5e-3; also in 1 other case",
        "**INCONCLUSIVE** planted fault neighbour-predicts, float32, was not caught",
        "| probable stage | mask (distance 0.120: first branch exact, later ones off) |",
        "| or else | positions (distance 0.410: drifts) |",
        "| resembles | branches-not-isolated (mask, distance 0.0200): rejected attends to chosen |",
    ],
)
def test_everything_that_an_auditor_needs_is_there(text: str, part: str) -> None:
    assert part in text


def test_a_passing_run_has_no_section_of_failures(passing_record: Record) -> None:
    text = markdown.render(passing_record)
    assert text.startswith("# PASS: ")
    assert re.search(r"\*\*PASS\*\* .*; NOT judged: gradients of packed-split in 1 of 8 cases, packed-eager in 1", text)
    assert "What did not pass" not in text
    assert "## Not applicable" in text


def test_a_run_without_data_has_no_section_of_data(passing_record: Record) -> None:
    assert "## Data" not in markdown.render(passing_record.model_copy(update={"data": None}))
