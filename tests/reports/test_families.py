"""Records of model families: they refuse to contradict themselves, come back as they were, and show every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from reports.families_markdown import render
from reports.families_record import FamiliesRecord
from reports.families_store import read_families, write_families
from reports.families_terminal import print_families
from reports.store import RecordError

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
    assert [path.name for path in paths] == ["families.md", "families.json"]
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


def test_the_terminal_shows_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    print_families(RECORD, Console(width=200))
    shown = capsys.readouterr().out
    for text in ("qwen3", "mamba", "gone: not-built: needs *timm*", "no-mask: 1 isolate, 1 leak"):
        assert text in shown
