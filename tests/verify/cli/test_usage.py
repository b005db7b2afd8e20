"""Wrong usage: one line, exit status 2, said before torch is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from verify.cli import app
from verify.cli.option_checks import check_arguments

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["packparity", *arguments])
        # Whatever gets as far as the heavy part has not been refused early.
        monkeypatch.setitem(sys.modules, "verify.check_request", None)
        monkeypatch.setitem(sys.modules, "verify.fault_request", None)
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run


WRONG = {
    "unknown command": (["chek"], "No such command 'chek'. Did you mean 'check'?"),
    "unknown option": (["check", "--modle", "x"], "No such option: --modle (Possible options: --model)"),
    "missing value": (["check", "--seed"], "Option '--seed' requires an argument"),
    "wrong type": (["check", "--seed", "x"], "'--seed': Input should be a valid integer"),
    "out of range": (["check", "--layers", "0"], "'--layers': Input should be greater than or equal to 1"),
    "flag with a value": (["check", "--json=3"], "Option '--json' does not take a value"),
    "extra argument": (["check", "more"], "unexpected extra argument"),
    "no threads": (["check", "--threads", "0"], "'--threads': Input should be greater than or equal to 1"),
    "many threads": (["check", "--threads", "5000"], "--threads 5000: give an integer from 1 to 1024"),
    "huge seed": (["check", "--seed", "9" * 30], f"--seed {'9' * 30}: give an integer from 0 to 9223372036854775806"),
    "unknown model": (["check", "--model", "qwen4"], "unknown model 'qwen4' (did you mean qwen3-4b?)"),
    "no shape file": (["check", "--model", "none.json"], "model file none.json: there is no such file"),
    "depth": (["check", "--layers", "3"], "--layers 3: tiny has 2 layers"),
    "unknown dtype": (["check", "--dtype", "half"], "unknown dtype 'half': give one of float64, float32, bfloat16"),
    "unknown case": (["check", "--case", "balancd"], "unknown case 'balancd' (did you mean balanced?)"),
    "unknown variation": (["check", "--variation", "eagr"], "unknown variation 'eagr' (did you mean eager?)"),
    "unknown objective": (["check", "--objective", "dpo"], "unknown objective 'dpo': give one of sigmoid, robust"),
    "robust without smoothing": (["check", "--objective", "robust"], "robust without any is sigmoid"),
    "hinge with smoothing": (["check", "--objective", "hinge", "--label-smoothing", "0.1"], "hinge has none"),
    "negative NLL": (["check", "--nll-weight", "-1"], "nll_weight is -1.0: it must be a number of at least 0"),
    "time without --shrink": (["check", "--shrink-seconds", "5"], "--shrink-seconds goes with --shrink"),
    "unknown backend": (["check", "--backend", "sdpa"], "unknown backend 'sdpa': give one of dense-eager, "),
    "unknown subject": (["check", "--subject", "dense-sdp"], "unknown subject 'dense-sdp' (did you mean dense-sdpa?)"),
    "two ways": (["check", "--subject", "flex", "--backend", "flex"], "give --subject or --backend, not both"),
    "nothing before the colon": (["check", "--subject", ":Mine"], "subject ':Mine': nothing in front of the colon"),
    "unknown dtype of faults": (["faults", "--dtype", "half"], "unknown dtype 'half'"),
    "unknown case of faults": (["faults", "--case", "balancd"], "unknown case 'balancd' (did you mean balanced?)"),
    "no fault file": (["faults", "--fault", "none.py:X"], "fault file none.py: there is no such file"),
    "huge seed of faults": (["faults", "--seed", "9" * 30], "give an integer from 0 to 9223372036854775806"),
    "no subject file": (["check", "--subject", "none.py:X"], "subject file none.py: there is no such file"),
    "subject folder": (["check", "--subject", "tests.py:X"], "subject file tests.py: there is a folder"),
    "device": (["check", "--device", "tpu"], "--device tpu: not a device that is supported; give cpu, cuda or cuda:N"),
    "beta": (["check", "--beta", "nan"], "beta is nan"),
    "beta of a reward model": (
        ["check", "--objective", "reward-model", "--beta", "0.5"],
        "beta is 0.5: reward-model has none, it is a parameter of other objectives",
    ),
    "smoothing": (["check", "--label-smoothing", "0.5"], "label_smoothing is 0.5: it must lie in [0, 0.45]"),
    "smoothing near a half": (
        ["check", "--label-smoothing", "0.4999999", "--beta", "0.0001"],
        "label_smoothing is 0.4999999: it must lie in [0, 0.45] (nearer to 0.5 both labels pull alike",
    ),
    "policy folder": (["check", "--policy", "tests.py"], "policy tests.py: cannot be read"),
    "data folder": (["check", "--data", "tests.py", "--tokenizer", "tests.py"], "file tests.py is a directory"),
    "no tokenizer": (["check", "--data", "x.jsonl"], "--data needs --tokenizer DIR"),
    "pairs alone": (["check", "--pairs", "3"], "--pairs goes with --data FILE, which was not given"),
    "cases folder": (["check", "--cases-file", "tests.py"], "--cases-file tests.py: there is a folder"),
    "out in a file": (["check", "--out", "file/out"], "cannot write results to file/out"),
    "empty path": (["check", "--out", ""], "--out is empty"),
    "empty value": (["check", "--case="], "--case is empty"),
    "blank name": (["check", "--subject", " \n"], "--subject is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_one_line_and_status_two(
    call: Call, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests.py").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    arguments, message = WRONG[name]
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("packparity: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_no_command_shows_the_help_and_is_not_a_pass(call: Call) -> None:
    status, out, err = call()
    assert (status, err) == (2, "")
    assert "Usage: packparity" in out


def test_help_ends_with_zero(call: Call) -> None:
    assert call("--help")[0] == 0
    assert call("check", "--help")[0] == 0


def test_help_has_no_line_breaks_within_a_paragraph() -> None:
    """Those of the source would leave half-empty lines in a narrower terminal."""
    helps = [command.help or "" for command in app.app.registered_commands]
    assert all(helps)
    assert not [text for text in helps for paragraph in text.split("\n\n") if "\n" in paragraph]


def test_what_is_not_empty_is_let_through() -> None:
    check_arguments(["check", "--out", ".", "--case=a", "--json"])


def test_a_closed_standard_output_is_not_a_fail(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """typer ends with status 1 there, which is that of a FAIL."""

    def closed(*_args: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("verify.cli.option_checks.check_device_name", closed)
    status, _, err = call("check")
    assert status == 3
    assert "standard output was closed" in err


def test_a_reader_may_leave_a_report(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `packparity report DIR | head -1`."""

    def closed(*_args: object, **_named: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("reports.results.read_result", closed)
    assert call("report", "somewhere") == (0, "", "")


def test_what_a_message_quotes_reaches_a_terminal_only_in_printable_form(call: Call) -> None:
    for given, shown in (("\x1b[31m", r"\x1b[31m"), ("\ud800", r"\ud800"), ("\u202e", r"\u202e")):
        status, out, err = call("check", "--case", f"a{given}b")
        assert (status, out) == (2, "")
        assert shown in err
        assert err.removesuffix("\n").isprintable()


def test_the_version_is_printed(call: Call) -> None:
    status, out, err = call("--version")
    assert (status, out.split()[0], err) == (0, "packparity", "")
