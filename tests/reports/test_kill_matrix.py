"""A kill matrix says what happened and nothing better: consistency, closing line, renderings, and files."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError
from rich.console import Console

from reports import kill_matrix_html, kill_matrix_junit, kill_matrix_markdown
from reports.kill_matrix import CatchRecord, KernelRecord, KillMatrix, MutationRecord
from reports.kill_matrix_overview import COLUMNS, closing_line, hidden, mark, needs_attention, sole_checks, weak
from reports.kill_matrix_store import KILL_MATRIX_FILE, kill_matrix_json, read_kill_matrix, write_kill_matrix
from reports.kill_matrix_terminal import print_kill_matrix
from reports.record_setting import CaseRecord, Environment, GroupRecord, ModelRecord, TimingRecord
from reports.store import RecordError

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m"


def catch(check: str, distance: str, killed: bool, margin: float = 1.0) -> CatchRecord:
    return CatchRecord.model_validate(
        {"check": check, "distance": distance, "killed": killed, "margin": margin, "case": "balanced", "where": HOSTILE}
    )


def mutation(name: str, **changes: Any) -> MutationRecord:
    content: dict[str, Any] = {
        "name": name,
        "kind": "fault",
        "stage": "mask",
        "what": "The mask is causal.",
        "imitates": ["A09"],
        "signature": "later branches off",
        "bites_where": "everywhere",
        "invisible_where": "",
        "must_kill": ["parity"],
        "must_kill_in": ["float64", "float32"],
        "dtype": "float32",
        "cases": ["balanced"],
        "outcome": "killed",
        "reasons": [],
        "margin": 500.0,
        "weakest_margin": 40.0,
        "weakest_case": "balanced",
        "caught_by": ["log-probs"],
        "sole_check": "log-probs",
        "catches": [
            catch("per_token_logps", "oracle", True, 500.0),
            catch("per_token_logps", "differential", True, 300.0),
            catch("gradients", "oracle", False, 0.5),
        ],
        **changes,
    }
    return MutationRecord.model_validate(content)


KILLED = mutation("causal-mask-only")
WEAK = mutation("gradients-in-bfloat16", weakest_margin=3.0)
UNPACKED = mutation(
    "falls-back",
    must_kill=["packed-ran"],
    margin=0.2,
    weakest_margin=0.1,
    sole_check="packed path ran",
    catches=[catch("packed-ran", "", True, 1.5)],
)
QUIET = mutation("padding", kind="equivalent", outcome="quiet", must_kill=[], margin=0.4, sole_check="", catches=[])
SURVIVED = mutation(HOSTILE, outcome="survived", reasons=["parity passes on case balanced"], sole_check="", catches=[])
FLAGGED = mutation("alarm", kind="equivalent", outcome="flagged", must_kill=[], margin=2.2, sole_check="")


def matrix(*mutations: MutationRecord, verdict: str = "PASS") -> KillMatrix:
    group = GroupRecord(source="", prompt=24, positives=[16], negatives=[14])
    return KillMatrix.model_validate(
        {
            "tool_version": "0.1.0",
            "command": ["packparity", "faults"],
            "created_utc": "2026-01-02T03:04:05+00:00",
            "verdict": verdict,
            "environment": Environment(
                python="3.11",
                platform="Linux",
                processor="cpu",
                num_threads=1,
                device="cpu",
                packages={"torch": "2.13"},
            ),
            "model": ModelRecord(
                name="tiny",
                weights="seeded",
                weights_sha256=None,
                num_parameters=1000,
                num_layers=2,
                num_layers_published=2,
                config={},
                lora={},
            ),
            "objective": {"beta": 0.1, "label_smoothing": 0.1},
            "seeds": {"weights": 0},
            "policy": {},
            "num_compared": 1234,
            "cases": [CaseRecord(name="balanced", why="an ordinary pair", groups=[group])],
            "mutations": list(mutations),
            "kernels": [
                KernelRecord(name="jittery", what="Gradients jitter.", why_harmless="repeats differ", imitates=["A59"])
            ],
            "timing": TimingRecord(total_s=40.0, import_s=2.0, model_passes_s=30.0, peak_host_bytes=1),
            "notes": [],
        }
    )


HIDDEN = mutation(
    "in-rounding", dtype="bfloat16", outcome="hidden", margin=0.3, weakest_margin=0.2, sole_check="", catches=[],
    invisible_where="bfloat16", reasons=["parity passes on case balanced"],
)  # fmt: skip
IN_KERNEL = mutation("padding", kind="equivalent", outcome="quiet", must_kill=[], margin=0.4, sole_check="", catches=[],
                     kernel="jittery")  # fmt: skip
BAD = matrix(KILLED, WEAK, UNPACKED, QUIET, SURVIVED, FLAGGED, HIDDEN, IN_KERNEL, verdict="FAIL")


@pytest.mark.parametrize("mutations", [(), (KILLED, SURVIVED), (KILLED, FLAGGED)], ids=["empty", "survivor", "alarm"])
def test_a_pass_over_nothing_or_beside_a_survivor_is_refused(mutations: tuple[MutationRecord, ...]) -> None:
    with pytest.raises(ValidationError, match="PASS, but nothing was planted, or a check did not do what it must"):
        matrix(*mutations)
    assert matrix(KILLED, QUIET).verdict == "PASS"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"catches": []}, "is killed, but no check caught it"),
        ({"cases": []}, "was run on no case"),
        ({"kind": "equivalent"}, "is killed, but no fault"),
        ({"outcome": "quiet"}, "is quiet, but no equivalent mutant"),
        ({"outcome": "hidden"}, "is hidden in float32, where it must be caught"),
    ],
)
def test_an_outcome_that_nothing_supports_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        mutation("causal-mask-only", **changes)


def test_marks_name_the_budgets_that_were_broken() -> None:
    marks = {check: mark(KILLED, check) for check in COLUMNS}
    assert marks == dict.fromkeys(COLUMNS, "-") | {"per_token_logps": "od"}
    assert mark(UNPACKED, "packed-ran") == "x"


def test_what_needs_attention_and_what_is_weak() -> None:
    assert [m.name for m in needs_attention(BAD)] == [HOSTILE, "alarm"]
    assert [m.name for m in weak(BAD)] == ["gradients-in-bfloat16"]
    assert [m.name for m in weak(matrix(mutation("nan", weakest_margin=math.nan)))] == ["nan"]
    assert hidden(BAD) == [HIDDEN]
    assert sole_checks(BAD) == {
        "log-probs": ["causal-mask-only", "gradients-in-bfloat16"],
        "packed path ran": ["falls-back"],
    }


def test_the_closing_line_counts_and_names_both_margins() -> None:
    assert closing_line(BAD) == (
        "3 of 4 planted faults killed, 1 hidden by rounding, as expected, 1 of 3 harmless changes flagged, "
        "smallest fault / budget in float32 3.00 (wanted: 10.0, 1 BELOW), largest harmless / budget 2.20"
    )


def test_every_rendering_shows_verdict_faults_and_survivors_and_escapes_names() -> None:
    stream = io.StringIO()
    print_kill_matrix(BAD, Console(file=stream, width=80))
    html, markdown, terminal = kill_matrix_html.render(BAD), kill_matrix_markdown.render(BAD), stream.getvalue()
    for text in (html, markdown, terminal):
        assert "FAIL" in text
        assert "causal-mask-only" in text
        assert "parity passes on case balanced" in text
        assert "Hidden by rounding, as expected" in text
        assert "Gradients jitter." in text
        assert "\x1b" not in text
    assert "<script>" not in html
    assert "<script>" not in markdown
    assert "Caught with less margin than wanted" in html
    assert all(len(line) <= 80 for line in terminal.splitlines())


def test_in_bfloat16_one_case_is_enough_and_less_margin_is_wanted() -> None:
    """There rounding may hide a fault on one case; elsewhere the case that shows it least decides."""
    half = {"dtype": "bfloat16", "must_kill_in": ["bfloat16"]}
    assert not mutation("m", margin=2.5, weakest_margin=0.1, **half).weak
    assert mutation("m", margin=1.5, weakest_margin=1.5, **half).weak
    assert mutation("m", margin=500.0, weakest_margin=9.9).weak
    assert not mutation("m", margin=500.0, weakest_margin=10.0).weak
    for check, distance, margin in ("structure", "", 1.0), ("own-objective", "differential", 10.0):
        caught = mutation("m", margin=1.5, weakest_margin=1.5, catches=[catch(check, distance, True, margin)])
        assert not caught.weak
    assert caught.deciding_margin == 10.0
    caught = mutation("m", weakest_margin=1.5, catches=[catch("normalisation", "differential", True, math.nan)])
    assert caught.deciding_margin == math.inf
    assert mutation("m", weakest_margin=1.5, catches=[*KILLED.catches, catch("reach", "", False, math.inf)]).weak


def test_junit_has_a_test_for_each_fault_and_dtype_and_is_red_where_the_run_is() -> None:
    suites = ElementTree.fromstring(kill_matrix_junit.render(BAD))
    counts = {name: suites.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "8", "failures": "2", "errors": "0", "skipped": "1"}
    tests = {(t.get("classname"), t.get("name")): t for t in suites.iter("testcase")}
    assert len(tests) == 8
    assert list(tests["fault.float32", "causal-mask-only"]) == []
    assert tests["equivalent.float32", "padding in jittery"] is not None
    (skipped,) = tests["fault.bfloat16", "in-rounding"]
    assert (skipped.tag, skipped.get("message")) == ("skipped", "hidden; parity passes on case balanced")
    (failure,) = tests["equivalent.float32", "alarm"]
    assert (failure.tag, failure.get("message")) == ("failure", "flagged")
    assert "The mask is causal." in (failure.text or "")
    nothing_shown = ElementTree.fromstring(kill_matrix_junit.render(matrix(HIDDEN, verdict="NOT_APPLICABLE")))
    assert nothing_shown.get("errors") == "1"


def test_a_terminal_of_80_columns_shows_names_whole() -> None:
    stream = io.StringIO()
    name = "huge-gradients-on-block-boundary"
    print_kill_matrix(matrix(mutation(name), QUIET), Console(file=stream, width=80))
    assert name in stream.getvalue()


def test_files_are_written_together_and_read_back(tmp_path: Path) -> None:
    paths = write_kill_matrix(BAD, tmp_path)
    assert [path.name for path in paths] == [
        "kill-matrix.md",
        "kill-matrix.html",
        "kill-matrix.xml",
        "kill-matrix.json",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert read_kill_matrix(tmp_path) == BAD
    infinite = matrix(mutation("nan-gradients", margin=math.inf))
    write_kill_matrix(infinite, tmp_path)
    assert read_kill_matrix(tmp_path / KILL_MATRIX_FILE) == infinite


def test_results_of_a_check_in_the_same_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}", encoding="utf-8")
    write_kill_matrix(BAD, tmp_path)
    assert (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "record"}, "this program reads a kill-matrix of version 2"),
        ({"schema_version": 1}, "this program reads a kill-matrix of version 2"),
        ({"schema_version": True}, "this program reads a kill-matrix of version 2"),
        ({"surprise": 1}, "surprise: unknown field"),
        ({"verdict": "PASS"}, "PASS, but nothing was planted"),
    ],
)
def test_a_file_that_is_no_kill_matrix_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = json.loads(kill_matrix_json(BAD)) | change
    (tmp_path / KILL_MATRIX_FILE).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RecordError, match=message):
        read_kill_matrix(tmp_path)
