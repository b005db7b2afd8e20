from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from reports import html
from reports.record import Record

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The page as a reader gets it: text, tags, attributes, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.order: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and data.strip():
            self.words.append(" ".join(data.split()))
            self.order.append((self.open[-1] if self.open else "", self.words[-1]))


@pytest.fixture(scope="module")
def text(record: Record) -> str:
    return html.render(record)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_tag_is_closed(page: Page) -> None:
    assert page.open == []


def test_the_verdict_comes_first(page: Page) -> None:
    body = [words for tag, words in page.order if tag != "title"]
    assert body[0] == "ERROR"


def test_hostile_names_are_text_and_nothing_else(page: Page, text: str) -> None:
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert any('<script>alert("x")</script> | `tick` [red]é漢[/red] \\x1b[31m\\x00' in words for words in page.words)
    assert "\x1b" not in text
    assert "\x00" not in text


def test_the_page_needs_no_network_and_no_script(page: Page, text: str) -> None:
    namespaces = {value for name, value in page.attributes if name.startswith("xmlns")}
    assert namespaces == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    rest = text
    for namespace in namespaces:
        rest = rest.replace(f'"{namespace}"', "")
    assert not re.search(r"https?:|//|@import|url\((?!#)", rest)
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert all(value.startswith("#") for name, value in page.attributes if name == "xlink:href")


def test_the_same_record_gives_the_same_page(small_record: Record) -> None:
    again = Record.model_validate_json(small_record.model_dump_json())
    assert html.render(again) == html.render(small_record)


def test_every_judgement_can_be_found(page: Page, record: Record) -> None:
    assert page.tags.count("svg") == 2
    judged = sum(bool(result.judgements) for result in record.results)
    details = len(record.summaries) + len(record.results) + judged
    assert page.tags.count("details") == details


@pytest.mark.parametrize(
    "part",
    [
        "8 of 28 layers",
        "What did not pass",
        "honest runs stayed below 1.14; the weakest fault showed 5.2",
        "weights 1, lora 2, cases 3",
        "packparity check --subject 'my_trainer.py:Mine<b>' --out results",
        "ultrafeedback.jsonl",
        "FlexAttention has no backward on a CPU",
        "packed; computes its own loss",
        "the spread of these harmless variations",
        "actual holds NaN; worst at group 0, rejected, token 1: actual NaN, expected -1",
        "token 1: actual NaN, expected -1, difference NaN",
        "19 → 13 / 10",
        "What this run would have caught",
        "the slot before predicts",
        "What it would not have seen",
        "faults that bite only where positions go beyond 256 (2)",
        "positions-in-bfloat16, positions-wrap-at-256",
        "1 PASS, 2 FAIL",
        "exact check branch-isolation",
        "moved by 1.5e-3; also in 1 other case",
        "What is probably wrong",
        "mask (distance 0.120: first branch exact, later ones off)",
        "positions (distance 0.410: drifts)",
        "layer 0, self attention",
        "3 of 4 planted faults in 3 stages",
    ],
)
def test_everything_that_an_auditor_needs_is_there(page: Page, part: str) -> None:
    assert part in " ".join(page.words)


def test_a_passing_page_shows_no_other_verdict(passing_record: Record) -> None:
    page = Page(html.render(passing_record))
    words = " ".join(page.words)
    assert "What did not pass" not in words
    assert not {"FAIL", "ERROR", "INCONCLUSIVE"} & set(words.split())


def test_the_header_of_a_pass_says_what_was_not_judged(passing_record: Record) -> None:
    header, _, _ = html.render(passing_record).partition("</header>")
    assert "; NOT judged: gradients of packed-split in 1 of 8 cases, packed-eager in 1 of 8 cases</p>" in header


def test_the_kill_matrix_marks_what_caught_each_fault(record: Record) -> None:
    text = html.render(record)
    row = text[text.index('<th scope="row">prompt-cache-detached</th>') :].partition("</tr>")[0]
    cells = re.findall(r'<td class="(n|n hit)">(.*?)</td>', row)
    assert cells == [("n", "0.200"), ("n", "-"), ("n hit", "43.4"), ("n", "-")]
    assert '<td class="n hit">caught</td>' in text


def test_a_run_without_results_and_without_data_has_a_page(record: Record) -> None:
    empty = {"results": [], "summaries": [], "counts": {}, "num_compared": 0, "data": None, "policy": {}, "notes": [],
             "exact_checks": [], "planted": [], "blind_spots": [], "diagnoses": []}  # fmt: skip
    page = Page(html.render(Record.model_validate(record.model_dump() | empty | {"variations": [], "seeds": {}})))
    assert "svg" not in page.tags
    assert "0 values compared in 0 results; nothing was measured against a budget" in " ".join(page.words)
