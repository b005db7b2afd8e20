from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from reports import terminal
from reports.record import Record


def printed(record: Record, width: int, *, colour: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    terminal.print_record(record, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal_and_no_verdict_is_cut(record: Record, width: int) -> None:
    text = printed(record, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for verdict in ("63 PASS", "7 PASS", "1 FAIL", "1 ERROR", "1 INCONCLUSIVE", "1 NOT_APPLICABLE"):
        assert (verdict in text) == (verdict != "63 PASS")
    assert text.count("float64") >= 6


def test_without_colour_there_is_no_escape_sequence_and_with_colour_only_those_of_rich(record: Record) -> None:
    assert "\x1b" not in printed(record, 80)
    coloured = printed(record, 80, colour=True)
    assert "\x1b[1;31mFAIL\x1b[0m" in coloured
    assert "\\x1b[31m" in coloured


def test_names_are_not_read_as_markup(record: Record) -> None:
    assert "[red]é漢[/red]" in printed(record, 160)


def test_what_did_not_pass_is_shown_with_reason_and_worst_place(record: Record) -> None:
    lines = printed(record, 200).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("FAIL ") and "case long-prompt" in line)
    block = "\n".join(lines[start : start + 8])
    assert "log-probs are 400 times over budget" in block
    assert "1.70 against a budget of" in block
    assert "worst at group 0, chosen, token 3 of 7, predicted from response token 2: actual -3.25" in block
    assert any(line.startswith("ERROR ") and "case one-token-prompt" in line for line in lines)
    assert any(line.startswith("INCONCLUSIVE ") and "case two-groups" in line for line in lines)


def test_what_was_not_applicable_is_counted_and_shown_with_its_reason(passing_record: Record) -> None:
    text = printed(passing_record, 160)
    assert "packed-eager, float64, float32, bfloat16: the whole case in 1 case (group-3-2)" in text
    assert "takes one chosen and one rejected response only" in text
    assert "gradients in 1 case (length-128)" in text


def test_the_end_is_the_verdict_with_values_headroom_and_what_it_rests_on(passing_record: Record) -> None:
    verdict, exact, caught, unseen = printed(passing_record, 220).rstrip().splitlines()[-4:]
    assert verdict.startswith("PASS  16,224 values compared")
    assert "headroom 1.67x" in verdict
    assert verdict.endswith("NOT judged: gradients of packed-split in 1 of 8 cases, packed-eager in 1 of 8 cases")
    assert exact.strip() == "exact checks: 11 of 11 passed on 330 values, 1 not applicable"
    assert caught.strip() == "would have caught: 4 of 4 planted faults in 4 stages, each at least 43.4x its budget"
    assert unseen.strip() == (
        "would not have seen (in brackets: faults of the catalogue): faults that bite only where positions go beyond "
        "256 (2); faults of label smoothing (1)"
    )


def test_it_begins_with_the_verdict(record: Record, passing_record: Record) -> None:
    assert printed(record, 80).startswith("ERROR  packparity 0.1.0: ")
    assert printed(passing_record, 80).startswith("PASS  packparity 0.1.0: ")


def test_a_run_that_planted_nothing_says_so(passing_record: Record) -> None:
    bare = passing_record.model_copy(update={"planted": [], "blind_spots": [], "exact_checks": []})
    assert printed(bare, 80).rstrip().splitlines()[-1].strip() == "no fault was planted in this run"


def test_a_name_with_line_breaks_cannot_pass_for_a_line_of_the_report(record: Record) -> None:
    results = [r.model_copy(update={"subject": "mine\nPASS  all is well"}) for r in record.results]
    text = printed(record.model_copy(update={"results": results, "summaries": []}), 250)
    assert "mine PASS all is well" in text
    assert not any(line.startswith("PASS") for line in text.splitlines())


def test_what_nothing_caught_and_what_is_probably_wrong_are_shown(record: Record) -> None:
    text = " ".join(printed(record, 80).split())
    assert "FAIL mine:" in text
    assert ", float32, 1 exact check branch-isolation: case two-groups: group 0, rejected, token 4 moved by" in text
    assert "also in 1 other case" in text
    assert "probable stage: mask (distance 0.120: first branch exact, later ones off) or else: positions (dist" in text
    assert "resembles: branches-not-isolated (mask, distance 0.0200): rejected attends to chosen" in text
    assert "INCONCLUSIVE 1 fault planted in this run and not caught" in text
    assert "neighbour-predicts, predictors, float32, on balanced: the slot before predicts" in text


def test_the_reason_of_an_exact_check_is_printed_once(record: Record) -> None:
    (name,) = {check.subject for check in record.exact_checks if check.verdict == "FAIL"}
    said = [
        f"exact check {check.check} on case {check.case} is FAIL: {check.reason}"
        for check in record.exact_checks
        if check.verdict == "FAIL"
    ]
    fails = {"verdict": "FAIL", "reasons": [*said, "the packed path did not run"]}
    summaries = [
        summary.model_copy(update=fails) if (summary.subject, summary.dtype) == (name, "float32") else summary
        for summary in record.summaries
    ]
    text = printed(record.model_copy(update={"summaries": summaries}), 250)
    assert text.count("rejected, token 4 moved by 1.5e-3") == 1
    assert "the packed path did not run" in text


def test_slots_and_ratios_stand_in_the_tables(passing_record: Record) -> None:
    text = printed(passing_record, 80)
    assert re.search(r" 378/ *\n.* 546 *\n", text)
    assert "0.578" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_names_of_subjects_are_broken_after_a_slash_only(record: Record, dtype: str) -> None:
    names = ("dense-sdpa/repeat-prompt-token", "split/row-per-group", "dense-sdpa/row-per-group")
    content = record.model_copy(
        update={
            "summaries": [
                summary.model_copy(update={"subject": name, "dtype": dtype, "reasons": []})
                for name, summary in zip(
                    names, record.summaries[6:9], strict=True
                )  # verdicts of all kinds, long counts
            ],
            "results": [],
        }
    )
    text = printed(content, 80)
    for part, num_names in (("repeat-prompt-token", 1), ("row-per-group", 2)):
        assert text.count(part) == 2 * num_names  # in each of the two tables


def test_a_ratio_over_the_limit_is_marked_without_colour(record: Record) -> None:
    assert "NaN !" in printed(record, 120)


def test_a_run_without_results_does_not_look_like_a_pass(record: Record) -> None:
    empty = {
        "results": [],
        "summaries": [],
        "counts": {},
        "num_compared": 0,
        "verdict": "ERROR",
        "reasons": ["no case"],
    }
    text = printed(Record.model_validate(record.model_dump() | empty), 80)
    assert "PASS" not in text
    assert "ERROR  0 values compared in 0 results; nothing was measured against a budget" in text
    assert "no case" in text
