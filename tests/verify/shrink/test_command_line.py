"""``packparity check --shrink`` and ``--cases-file``: what is written, and one line for whatever is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reports.store import read_record
from verify.cli import app
from verify.shrink.folder import write_folder

GROUP = {"prompt_ids": [5, 9, 1], "positives": [[4, 2]], "negatives": [[7, 3, 8]]}
SHAPE = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 8, "weight_std": 0.2, "lora": {"strength": 0.3},
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    status: int
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packparity", "check", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        status = ended.value.code
        return Done(status if isinstance(status, int) else -1, capsys.readouterr().err)

    return call


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[object, ...]:
    """One short case on a model of one head."""
    cases, model = tmp_path / "cases.json", tmp_path / "model.json"
    cases.write_text(json.dumps([{"name": "mine", "groups": [GROUP]}]), encoding="utf-8")
    model.write_text(json.dumps(SHAPE), encoding="utf-8")
    return ("--cases-file", cases, "--model", model, "--variation", "eager", "--quiet")


def test_a_failure_leaves_a_reproduction_that_the_record_names(
    cli: Cli, inputs: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert cli(*inputs, "--subject", "fault:causal-mask-only", "--shrink", "--out", out).status == 1
    (folder,) = (out / "reproduction").iterdir()
    record = read_record(out)
    name = f"reproduction/{folder.name}"
    assert name == "reproduction/fault-causal-mask-only-float32"
    assert any(name in note for note in record.notes) or [d.reproduction for d in record.diagnoses] == [name]
    assert record.model.name == "model.json"
    assert any("cases are those of cases.json (sha256 " in note for note in record.notes)
    assert "cases" not in record.seeds


def test_a_pass_leaves_none_and_removes_those_of_an_earlier_run(
    cli: Cli, inputs: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_folder({"reproduction.json": b"{}"}, out, "earlier-float32")
    done = cli(*inputs, "--subject", "fault:none", "--shrink", "--out", out)
    assert done == Done(0, "")
    assert not (out / "reproduction").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shrink"], "--shrink goes with --out DIR"),
        (["--shrink", "--shrink-seconds", "0"], "Invalid value for '--shrink-seconds'"),
        (["--cases-file", "nope.json"], "nope.json: there is no such file"),
        (["--cases-file", "nope.json", "--data", "x"], "give --data or --cases-file, not both"),
        (["--model", "nope.json"], "nope.json: there is no such file"),
        (["--subject", "fault:causal-mask"], "unknown fault 'causal-mask': did you mean"),
    ],
)
def test_a_wrong_option_ends_with_two_and_says_why(cli: Cli, arguments: list[str], message: str) -> None:
    done = cli(*arguments)
    assert done.status == 2
    assert message in done.err


def test_a_token_outside_the_vocabulary_is_named_by_place(cli: Cli, inputs: tuple[Any, ...], tmp_path: Path) -> None:
    inputs[1].write_text(json.dumps([{"name": "mine", "groups": [{**GROUP, "negatives": [[7, 16]]}]}]), "utf-8")
    done = cli(*inputs)
    assert done.status == 2
    assert "token id 16 at group 0, negatives[0][1]: outside the vocabulary of 16 tokens" in done.err


def test_reproductions_cannot_be_put_where_a_file_is(cli: Cli, inputs: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "reproduction").write_text("mine", encoding="utf-8")
    done = cli(*inputs, "--subject", "fault:none", "--shrink", "--out", tmp_path)
    assert done.status == 2
    assert "is a file: a folder is needed there" in done.err
