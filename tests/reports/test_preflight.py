"""Records of a preflight: GO follows from the findings alone, and every rendering says the same."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from reports import preflight_html, preflight_markdown
from reports.difference import Change, compare
from reports.preflight_consistency import ALWAYS_REQUIRED, PLANTED, WOULD_NOTICE
from reports.preflight_overview import headline
from reports.preflight_record import PreflightRecord, ranks_in_words
from reports.preflight_store import write_preflight
from reports.results import print_result, read_result, write_result
from reports.store import RecordError


def finding(probe: str, outcome: str = "GO", rank: int | None = None, **changes: Any) -> dict[str, Any]:
    hint = "do this" if outcome == "NO-GO" else ""
    return {"probe": probe, "part": "", "rank": rank, "outcome": outcome, "seen": f"{probe} seen", "hint": hint,
            "measures": {}, **changes}  # fmt: skip


def content(*findings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "kind": "preflight", "schema_version": 1, "tool_version": "0.1.0", "created_utc": "2026-11-30T00:00:00+00:00",
        "command": ["packparity", "preflight"],
        "environment": {"python": "3.11", "platform": "Linux", "processor": "x", "num_threads": 1, "device": "cpu",
                        "packages": {"torch": "2.13.0", "transformers": "5.24.0", "peft": "0.21.0"}},
        "request": {"model": "tiny"}, "world_size": 2,
        "ranks": [{"rank": n, "local_rank": 0, "host": f"node-{n}", "device": "cpu", "driver": ""} for n in range(2)],
        "required": ["versions", "attention"], "findings": list(findings), "ended_early": "", "limits": [],
        "stage_limit_s": 600.0, "answer_limit_s": 30.0, "total_s": 12.0, **changes,
    }  # fmt: skip


def record(*findings: dict[str, Any], **changes: Any) -> PreflightRecord:
    return PreflightRecord.model_validate(content(*findings, **changes))


PROVEN = (finding("versions"), finding("attention", rank=0, part="split"), finding("attention", rank=1, part="split"))


def test_go_needs_every_required_probe_on_every_rank() -> None:
    assert record(*PROVEN).decision == "GO"
    assert record(*PROVEN).reasons == []


def test_nothing_proven_is_no_go() -> None:
    empty = record()
    assert (empty.decision, empty.is_wrong) == ("NO-GO", False)
    assert empty.reasons == ["versions: not proven: it was not reached", "attention: not proven: it was not reached"]


def test_a_probe_that_one_rank_did_not_prove_is_no_go_and_names_the_rank() -> None:
    absent = finding("attention", "ABSTAINS", rank=1, part="split", seen="no kernel here")
    assert record(*PROVEN[:2], absent).reasons == ["attention: not proven on rank 1: no kernel here"]
    assert record(*PROVEN[:2]).reasons == ["attention: not proven on rank 1: it was not reached"]


def test_a_backend_that_abstains_never_passes_where_it_was_asked_for() -> None:
    flex = [finding("attention", "ABSTAINS", rank=rank, part="flex", seen="no backward pass") for rank in (0, 1)]
    assert record(*PROVEN, *flex).decision == "GO"
    named = record(*PROVEN, *flex, required=["versions", "attention flex"])
    assert named.reasons == ["attention flex: not proven: no backward pass"]
    assert not named.is_wrong
    assert "NOT judged: attention flex" in headline(record(*PROVEN, *flex))


def test_whatever_is_wrong_anywhere_is_no_go_and_said_once() -> None:
    wrong = finding("data", "NO-GO", rank=1, seen="cut off")
    found = record(*PROVEN, wrong)
    assert (found.decision, found.is_wrong) == ("NO-GO", True)
    assert found.reasons == ["data on rank 1: cut off"]
    assert record(PROVEN[0], finding("attention", "NO-GO", rank=0, part="split")).reasons == [
        "attention split on rank 0: attention seen"
    ]


def test_what_was_not_reached_is_no_reason_of_its_own_where_something_is_wrong() -> None:
    assert record(finding("memory", "NO-GO")).reasons == ["memory: memory seen"]
    absent = finding("attention", "ABSTAINS", seen="no kernel")
    assert record(finding("memory", "NO-GO"), absent).reasons[1:] == ["attention: not proven: no kernel"]


def test_a_run_that_was_ended_is_no_go_whatever_was_proven() -> None:
    ended = record(*PROVEN, ended_early="rank 1 is gone")
    assert ended.reasons == ["the run was ended: rank 1 is gone"]
    assert "rank 1 is gone" in headline(ended)


_OUTCOMES = st.lists(st.tuples(st.sampled_from(["GO", "NO-GO", "ABSTAINS"]), st.sampled_from([0, 1, None])), max_size=5)


@given(_OUTCOMES)
def test_one_probe_is_go_exactly_where_nothing_is_wrong_and_all_ranks_have_proven_it(
    outcomes: list[tuple[str, int | None]],
) -> None:
    found = record(*(finding("x", outcome, rank) for outcome, rank in outcomes), required=["x"])
    wrong = any(outcome == "NO-GO" for outcome, _ in outcomes)
    ranks = {rank for outcome, rank in outcomes if outcome == "GO"}
    assert (found.decision == "GO") is (not wrong and (None in ranks or {0, 1} <= ranks))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"required": []}, "a GO would mean nothing"),
        ({"world_size": 3}, "not 0 to 2"),
        ({"ranks": []}, "no rank is listed"),
        ({"findings": [finding("x", rank=2)]}, "rank 2 of 2"),
        ({"findings": [finding("x", "NO-GO", hint="")]}, "without a hint"),
        ({"findings": [finding("x", seen="")]}, "does not say what was seen"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        record(**changes)


HOSTILE = finding("data", "NO-GO", rank=1, seen="<script>alert(1)</script> | \x1b[31m", hint="a|b")


def test_a_record_comes_back_from_its_files_as_it_was(tmp_path: Path) -> None:
    nan = finding("x", measures={"ratio": float("nan"), "bytes": 2.0**40})
    before = record(*PROVEN, HOSTILE, nan, required=[*ALWAYS_REQUIRED])
    paths = write_preflight(before, tmp_path)
    assert [path.name for path in paths] == ["preflight.md", "preflight.html", "preflight.json"]
    after = read_result(tmp_path)
    assert isinstance(after, PreflightRecord)
    assert after.model_dump_json() == before.model_dump_json()
    assert write_result(after, tmp_path / "again")[-1].read_bytes() == paths[-1].read_bytes()


def proven_of(name: str) -> dict[str, Any]:
    """GO of a probe, or of a part of one, of all ranks."""
    probe = next((probe for probe in (WOULD_NOTICE, "memory headroom", "collectives") if name.startswith(probe)), name)
    return finding(probe, part=name.removeprefix(probe).strip())


REQUIRED = [*ALWAYS_REQUIRED, "would notice leak", "would notice world-size", "data", "profile"]
ASKED = {"model": "tiny", "dtype": "float32", "data": "pairs.jsonl", "profile": "gb10"}
WITHIN = finding("parity", part="split", measures={"oracle_loss_max_over_budget": 1.0})
CAUGHT = finding("would notice", part="leak", measures={"measured_over_budget": 1.5})
ROOM = finding("memory headroom", rank=0, measures={"needed_bytes": 5.0, "available_bytes": 5.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        *(
            ({"required": [r for r in REQUIRED if r != name]}, f"{name} is not required, without which there is no GO")
            for name in REQUIRED
        ),
        ({"required": [*ALWAYS_REQUIRED], "request": {"model": "tiny", "dtype": "bfloat16", "data": "None"}}, ""),
        ({"required": ["parity"], "ended_early": "rank 1 is gone"}, ""),
        ({"required": ["parity"], "findings": [finding("data", "NO-GO")]}, ""),
        ({"findings": [WITHIN, CAUGHT, ROOM]}, ""),
        ({"findings": [WITHIN, WITHIN]}, "parity split: 2 findings of all ranks"),
        ({"findings": [ROOM, ROOM]}, "memory headroom: 2 findings of rank 0"),
        ({"findings": [{**WITHIN, "measures": {"loss_over_budget": 1.01}}]}, "GO with loss_over_budget 1.01"),
        ({"findings": [{**WITHIN, "measures": {"loss_over_budget": "NaN"}}]}, "GO with loss_over_budget nan"),
        ({"findings": [{**CAUGHT, "measures": {"measured_over_budget": 0.9}}]}, "planted came to 0.9 of its budget"),
        ({"findings": [{**ROOM, "measures": {"needed_bytes": 6.0, "available_bytes": 5.0}}]}, "6 bytes are needed"),
    ],
)
def test_what_is_read_must_require_what_its_options_do_and_have_the_figures_of_its_outcomes(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "preflight.json"
    own = changes.get("findings", [])
    names = [*(name for name in REQUIRED if " " not in name), "collectives results", "memory headroom all"]
    proven = [proven_of(name) for name in [*names, *(f"{WOULD_NOTICE} {part}" for part in PLANTED)]]
    others = [one for one in proven if (one["probe"], one["part"]) not in [(f["probe"], f["part"]) for f in own]]
    whole = content(*others, *own, **{"required": REQUIRED, "request": ASKED, **changes, "findings": [*others, *own]})
    path.write_text(json.dumps(whole), encoding="utf-8")
    if not message:
        assert isinstance(read_result(path), PreflightRecord)
        return
    with pytest.raises(RecordError, match=re.escape(message)) as refused:
        read_result(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("spoil", [{"schema_version": 2}, {"kind": "families"}, {"world_size": 0}])
def test_another_version_or_a_spoilt_record_is_refused_with_the_file_named(
    tmp_path: Path, spoil: dict[str, Any]
) -> None:
    path = tmp_path / "preflight.json"
    path.write_text(json.dumps({**content(*PROVEN), **spoil}), encoding="utf-8")
    with pytest.raises(RecordError, match=r"preflight\.json"):
        read_result(path)


def test_every_rendering_shows_decision_reasons_and_hints_and_nothing_steers_it() -> None:
    found, out = record(*PROVEN, HOSTILE, limits=["the GPU"]), io.StringIO()
    print_result(found, Console(file=out, width=200, color_system=None))
    page, text = preflight_html.render(found), preflight_markdown.render(found)
    for rendered in (out.getvalue(), page, text):
        assert "NO-GO" in rendered
        assert "a|b" in rendered.replace("\\|", "|")
        assert "the GPU" in rendered
        assert "\x1b" not in rendered
    assert "<script>" not in page
    assert "node-1" in page
    assert "node-1" in text


def test_many_ranks_that_see_different_numbers_do_not_fill_the_terminal() -> None:
    ranks = [{"rank": n, "local_rank": 0, "host": "a", "device": "cpu", "driver": ""} for n in range(64)]
    findings = [finding("memory", rank=n, seen=f"{n} bytes") for n in range(64)]
    out = io.StringIO()
    print_result(
        record(*findings, world_size=64, ranks=ranks, required=["memory"]),
        Console(file=out, width=200, color_system=None),
    )
    assert len(out.getvalue().splitlines()) < 12
    assert "60 lines more, in the report" in out.getvalue()


def test_two_runs_are_compared_by_outcomes_and_measures() -> None:
    one = record(*PROVEN, finding("x", measures={"seconds": 1.0}))
    other = record(
        *PROVEN[:2], finding("attention", "ABSTAINS", rank=1, part="split"), finding("x", measures={"seconds": 3.0})
    )
    difference = compare(one, other)
    assert Change("attention split, rank 1", "GO", "ABSTAINS") in difference.verdicts
    assert Change("the run", "GO", "NO-GO") in difference.verdicts
    assert [pair.what for pair in difference.moved] == ["x: seconds"]


def test_ranks_are_listed_as_long_as_they_are_few() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([3, 0]) == "ranks 0 and 3"
    assert ranks_in_words(range(4)) == "ranks 0, 1, 2 and 3"
    assert ranks_in_words(range(64)) == "ranks 0, 1, 2 and 61 others"
