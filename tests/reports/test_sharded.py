"""The record of sharded parity: what it refuses to say, and how it is shown."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError
from rich.console import Console

from reports import sharded_html, sharded_junit, sharded_markdown
from reports.record_results import JudgementRecord
from reports.record_setting import CaseRecord, Environment, GroupRecord, ModelRecord, SubjectRecord
from reports.results import read_result, write_result
from reports.sharded_record import (
    AGAINST,
    CheckRecord,
    HarmlessRecord,
    HeldRecord,
    ParityRecord,
    PlantedFaultRecord,
    PrecisionRecord,
    ScenarioRecord,
    ShardedRecord,
)
from reports.sharded_terminal import print_sharded
from reports.store import RecordError
from reports.words import printable

NASTY = "a|b<script>\x1b[31m"


def judgement(**changes: Any) -> JudgementRecord:
    fields: dict[str, Any] = {
        "quantity": "loss", "budget_kind": "oracle", "statistic": "max", "unit": "nats", "verdict": "PASS",
        "reason": "", "num_compared": 1, "measured": 0.25, "budget": 1.0, "witness_error": 0.1, "witness_from": "",
        "factor": 2.0, "floor": 0.0, "signed_mean": 0.0, "worst": [],
    }  # fmt: skip
    return JudgementRecord(**{**fields, **changes})


def parity(**changes: Any) -> ParityRecord:
    held = [HeldRecord(against=against, judgement=judgement()) for against in AGAINST]
    fields: dict[str, Any] = {
        "scenario": "uneven", "subject": NASTY, "precision": "float32", "verdict": "PASS", "reasons": [],
        "micro_size": 2, "groups_of_ranks": [3, 2], "dummies_of_ranks": [0, 1], "num_compared": 3,
        "worst_ratio": 0.25, "held": held,
    }  # fmt: skip
    return ParityRecord(**{**fields, **changes})


def check(**changes: Any) -> CheckRecord:
    fields: dict[str, Any] = {
        "check": "clip", "precision": "float32", "subject": NASTY, "verdict": "PASS", "num_compared": 5, "ratio": 0.5,
        "worst": "",
    }  # fmt: skip
    return CheckRecord(**{**fields, **changes})


PAIR = GroupRecord(source="", prompt=3, positives=[2], negatives=[1])
CASE = CaseRecord(name="uneven", why="", groups=[PAIR] * 5)
SCENARIO = ScenarioRecord(name="uneven", case="uneven", micro_size=2, reference="cached")
FAILED = check(verdict="FAIL", ratio=float("inf"), worst="the norm is 2 off")


def planted(**changes: Any) -> PlantedFaultRecord:
    fields = {"fault": "x", "what": NASTY, "precision": "float32", "caught_by": ["clip"], "checks": [FAILED]}
    return PlantedFaultRecord(**{**fields, **changes})


def harmless(**changes: Any) -> HarmlessRecord:
    fields = {"change": "x", "what": NASTY, "precision": "float32", "flagged_by": [], "checks": [check()]}
    return HarmlessRecord(**{**fields, **changes})


def record(**changes: Any) -> ShardedRecord:
    fields: dict[str, Any] = {
        "schema_version": 1, "tool_version": "0.1", "created_utc": "2026", "command": ["packparity", "sharded"],
        "verdict": "PASS", "reasons": [], "world_size": 2, "backend": "gloo", "started_by": "local ranks",
        "environment": Environment(
            python="3.11", platform="linux", processor="x", num_threads=1, device="cpu", packages={"torch": "2.13"}
        ),
        "model": ModelRecord(
            name="tiny", weights="seeded", weights_sha256=None, num_parameters=1, num_layers=2,
            num_layers_published=2, config={}, lora={},
        ),
        "precisions": [PrecisionRecord(name="float32", weights="float32", computes="float32", reduces="float32")],
        "cases": [CASE], "scenarios": [SCENARIO],
        "subjects": [SubjectRecord(name=NASTY, layout="packed", owns_loss=True)],
        "parity": [parity()], "checks": [check()], "planted": [planted()], "harmless": [], "policy": {}, "seeds": {},
        "notes": [NASTY], "total_s": 1.0,
    }  # fmt: skip
    return ShardedRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "FAIL"}, "the run is FAIL without a reason"),
        ({"parity": [], "checks": []}, "its parts are none"),
        ({"checks": [FAILED]}, "its parts are FAIL, PASS"),
        ({"world_size": 1}, "nothing was sharded"),
        ({"planted": []}, "no fault was planted"),
        ({"planted": [planted(caught_by=[], checks=[check()])]}, "or one was not caught"),
    ],
)
def test_a_run_that_its_parts_do_not_bear_out_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        record(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parity": []}, "holds 0 results of .* in uneven, float32, where .* ask for 1"),
        ({"parity": [parity(), parity()]}, "holds 2 results of"),
        ({"parity": [parity(), parity(subject="other")]}, "holds 1 results of other in uneven"),
        ({"subjects": [*record().subjects] * 2}, "subject .* is there 2 times"),
        ({"cases": []}, "scenario uneven is of case uneven, which is not among the cases"),
        ({"cases": [CASE.model_copy(update={"groups": [PAIR] * 6})]}, "PASS with 5 groups on all ranks, .* has 6"),
        ({"objective": {"name": "ipo", "reference": "adapters-off"}}, "the objective is ipo, but no case is under it"),
        (
            {
                "objective": {"name": "sigmoid", "reference": "adapters-off"},
                "scenarios": [SCENARIO.model_copy(update={"reference": "frozen-adapter"})],
            },
            "scenario uneven is over frozen-adapter, the run over adapters-off",
        ),
        ({"parity": [parity(groups_of_ranks=[5])]}, "groups of 1 ranks, where there are 2"),
        ({"parity": [parity(micro_size=3)]}, "micro-batches of 3 groups, the scenario has at most 2"),
        ({"checks": [check(), check(check="reduction", precision="float64")]}, "float64, which is not among the"),
        ({"planted": [planted(checks=[FAILED.model_copy(update={"subject": "x"})])]}, "x is of subject x, which"),
        ({"verdict": "FAIL", "reasons": ["x"]}, "the run is FAIL, but its parts make it PASS"),
        ({"verdict": "INCONCLUSIVE", "reasons": ["x"], "checks": [FAILED]}, "but its parts make it FAIL"),
    ],
)
def test_a_record_that_gives_itself_away_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        record(**{"checks": [check()], **changes})


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (parity, {"num_compared": 0}, "0 values compared, but its judgements say 3"),
        (parity, {"num_compared": 0, "worst_ratio": None, "held": []}, "nothing was compared"),
        (parity, {"worst_ratio": 0.1}, r"the worst ratio is 0\.1, that of its judgements 0\.25"),
        (parity, {"worst_ratio": None}, "the worst ratio is None"),
        (
            parity,
            {"held": parity().held[:2], "num_compared": 2},
            "not held against one process, oracle and unpacked path",
        ),
        (parity, {"verdict": "FAIL"}, "without a reason"),
        (planted, {"caught_by": []}, r"caught by \[\], but \['clip'\] failed"),
        (planted, {"checks": [check()]}, r"caught by \['clip'\], but \[\] failed"),
        (harmless, {"checks": [FAILED]}, r"flagged by \[\], but \['clip'\] failed"),
        (check, {"ratio": 1.5}, "PASS with 5 values and a ratio of 1.5"),
        (check, {"ratio": float("nan")}, "a ratio of nan"),
        (check, {"num_compared": 0}, "PASS with 0 values"),
        (check, {"verdict": "NOT_APPLICABLE"}, "without a reason"),
    ],
)
def test_a_part_that_says_more_than_it_knows_is_refused(make: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make(**changes)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = record()
    paths = write_result(written, tmp_path)
    assert [path.name for path in paths] == ["sharded.md", "sharded.html", "junit.xml", "sharded.json"]
    assert read_result(tmp_path) == written


def test_another_version_is_refused(tmp_path: Path) -> None:
    (*_, path) = write_result(record(), tmp_path)
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(RecordError, match="this program reads records of sharded parity of version 1"):
        read_result(path)


def test_foreign_text_is_shown_and_not_obeyed() -> None:
    console = Console(file=StringIO(), width=200)
    print_sharded(record(), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in shown
    page, document = sharded_html.render(record()), sharded_markdown.render(record())
    assert "<script>" not in page
    assert "a|b" not in document
    for text in (shown, page, document):
        assert "1 of 1 planted fault caught" in text
        assert "PASS" in text


def junit_of(shown: ShardedRecord) -> dict[str, tuple[str, str]]:
    """Of each JUnit test its outcome and message, by class and name."""
    root = ElementTree.fromstring(sharded_junit.render(shown))
    return {
        f"{test.get('classname')} {test.get('name')}": (test[0].tag, test[0].get("message", ""))
        if len(test)
        else ("", "")
        for test in root.iter("testcase")
    }


def test_ci_shows_each_scenario_check_and_fault() -> None:
    not_run = parity(scenario="b", verdict="NOT_APPLICABLE", reasons=["no"], num_compared=0, worst_ratio=None, held=[])
    scenarios = [SCENARIO, SCENARIO.model_copy(update={"name": "b"})]
    found = junit_of(record(harmless=[harmless()], scenarios=scenarios, parity=[parity(), not_run]))
    name = printable(NASTY)
    assert found == {
        f"{name}.float32 uneven": ("", ""),
        f"{name}.float32 b": ("skipped", "no"),
        f"{name}.float32 check clip": ("", ""),
        "planted fault.float32 x": ("", ""),
        "harmless change.float32 x": ("", ""),
    }


FLAGGED = harmless(flagged_by=["clip"], checks=[FAILED])


@pytest.mark.parametrize(
    ("changes", "red"),
    [
        ({"verdict": "FAIL", "checks": [FAILED]}, ("failure", "the norm is 2 off")),
        ({"verdict": "INCONCLUSIVE", "planted": [planted(caught_by=[], checks=[check()])]}, ("error", "not caught")),
        ({"verdict": "INCONCLUSIVE", "harmless": [FLAGGED]}, ("error", "flagged")),
        ({"verdict": "INCONCLUSIVE", "scenarios": [], "parity": [], "checks": [], "planted": []}, ("error", "why")),
    ],
)  # fmt: skip
def test_a_run_that_is_no_pass_is_red_where_it_is_not(changes: dict[str, Any], red: tuple[str, str]) -> None:
    bad = [outcome for outcome in junit_of(record(reasons=["why"], **changes)).values() if outcome[0]]
    assert [(tag, message[: len(red[1])]) for tag, message in bad] == [red]


def test_objective_and_frozen_policy_are_shown_in_every_form() -> None:
    of_ipo = record(
        objective={"name": "ipo", "beta": 0.3, "reference": "frozen-adapter"},
        cases=[CASE.model_copy(update={"objective": "ipo"})],
        scenarios=[SCENARIO.model_copy(update={"reference": "frozen-adapter"})],
    )
    console = Console(file=StringIO(), width=200)
    print_sharded(of_ipo, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (shown, sharded_markdown.render(of_ipo), sharded_html.render(of_ipo)):
        assert "tiny, ipo over frozen-adapter, 2 ranks" in text
        assert "0.3" in text
