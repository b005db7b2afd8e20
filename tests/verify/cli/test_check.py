"""``packparity check``: exit status, what is printed and written, and one line for whatever is wrong with a request.

Most calls run in this process, since a fresh one spends seconds on imports; a few go through a real one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import verify
from reports.store import read_record
from verify.cli import app
from verify.option_names import BUILT_IN_SUBJECT_NAMES

ROOT = Path(verify.__file__).resolve().parents[1]
THIRD_PARTY = Path(__file__).resolve().parents[1] / "third_party_subjects.py"
SMALL = ("--layers", "1", "--case", "balanced", "--variation", "eager", "--quiet")
FILES = {"record.json", "report.md", "report.html", "junit.xml"}


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``packparity check`` in this process."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packparity", "check", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        status = ended.value.code
        return Done(status if isinstance(status, int) else -1, captured.out, captured.err)

    return call


def python_m_verify(*arguments: object) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "verify", "check", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


# Verdicts.


def test_a_pass_ends_with_zero_and_writes_record_and_reports(tmp_path: Path) -> None:
    done = python_m_verify(*SMALL, "--subject", "dense-sdpa", "--out", tmp_path / "new" / "out", "--json")
    assert (done.status, done.err) == (0, "")
    out = tmp_path / "new" / "out"
    assert {path.name for path in out.iterdir()} == FILES
    printed = json.loads(done.out)
    assert printed == json.loads((out / "record.json").read_text(encoding="utf-8"))
    record = read_record(out)
    assert record.verdict == "PASS"
    assert record.counts == {"PASS": 1}
    assert record.num_compared > 0
    assert record.command[:2] == ["packparity", "check"]
    assert [subject.name for subject in record.subjects] == ["dense-sdpa"]
    assert [case.name for case in record.cases] == ["balanced"]
    assert any("depth was cut: 1 of" in note for note in record.notes)


def test_a_wrong_subject_from_a_file_ends_with_one_and_its_place_is_printed(tmp_path: Path) -> None:
    done = python_m_verify(*SMALL, "--subject", f"{THIRD_PARTY}:NanAtOneToken", "--out", tmp_path)
    assert (done.status, done.err) == (1, "")
    words = " ".join(done.out.split())
    assert "FAIL" in words
    assert "worst at group 0, rejected, token 2" in words
    assert read_record(tmp_path).verdict == "FAIL"


def test_a_wrong_request_ends_with_two_and_one_line() -> None:
    done = python_m_verify("--model", "qwen4")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("packparity: error: unknown model 'qwen4'")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "status", "verdict"),
    [
        ("ByHand", 0, "PASS"),
        ("PositionsRunOn", 1, "FAIL"),
        ("Raises", 3, "ERROR"),
        ("CallsExit", 3, "ERROR"),
        ("PaddedButSaysPacked", 3, "INCONCLUSIVE"),
        ("SaysNo", 3, "INCONCLUSIVE"),
    ],
)
def test_only_a_pass_ends_with_zero(cli: Cli, name: str, status: int, verdict: str) -> None:
    done = cli(*SMALL, "--subject", f"{THIRD_PARTY}:{name}", "--json")
    assert (done.status, done.err) == (status, "")
    assert json.loads(done.out)["verdict"] == verdict


def test_one_error_among_subjects_leaves_the_others_judged(cli: Cli) -> None:
    subjects = [f"{THIRD_PARTY}:{name}" for name in ("Raises", "ByHand", "PositionsRunOn")]
    arguments = [part for subject in subjects for part in ("--subject", subject)]
    done = cli(*SMALL, *arguments, "--json")
    assert done.status == 3
    summaries = {s["subject"]: s["verdict"] for s in json.loads(done.out)["summaries"]}
    assert summaries == {"raises": "ERROR", "by-hand": "PASS", "positions-run-on": "FAIL"}


def test_options_reach_the_run(cli: Cli) -> None:
    done = cli(
        *SMALL, "--subject", "split", "--dtype", "float64", "--dtype", "bfloat16", "--case", "two-groups",
        "--beta", "0.3", "--label-smoothing", "0.1", "--seed", "4", "--json",
    )  # fmt: skip
    record = json.loads(done.out)
    assert {(r["dtype"], r["case"]) for r in record["results"]} == {
        (dtype, case) for dtype in ("float64", "bfloat16") for case in ("balanced", "two-groups")
    }
    assert (record["objective"]["beta"], record["objective"]["label_smoothing"]) == (0.3, 0.1)
    assert record["seeds"]["cases"] == 4
    assert record["variations"] == ["eager"]


def test_by_default_every_layout_and_backend_meets_every_case_and_with_full_every_packed_subject(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def stop(request: Any, progress: Any, checks: Any, **_: Any) -> None:
        seen.append(request)
        raise ValueError("stopped")

    def judged(request: Any) -> set[str]:
        return {subject.name for subject in request.subjects if not subject.name.startswith("planted:")}

    monkeypatch.setattr("verify.check_run.run_gate", stop)
    for name in ("tiny", "TINY"):
        done = cli("--model", name)
        assert (
            done.err
            == "packparity: nothing was proven: GateError: the gate itself failed: stopped (--debug shows where)\n"
        )
        assert done.status == 3, "the request was good: the fault is not the user's"
        request = seen.pop()
        packed = {n for n in BUILT_IN_SUBJECT_NAMES if not n.startswith(("hf-position-ids", "pairwise-"))}
        quick = judged(request)
        assert quick < packed
        parts = {part for name in packed for part in name.split("/")}
        assert {part for name in quick for part in name.split("/")} == parts - {"two-pass"}
        assert request.dtypes == ("float32",)
        assert len(request.cases) >= 12
        assert len(request.variations) == 4
    cli("--full")
    full = seen.pop()
    assert judged(full) == packed
    assert full.dtypes == ("float64", "float32", "bfloat16")
    cli("--full", "--dtype", "float64", "--subject", "split")
    named = seen.pop()
    assert (judged(named), named.dtypes) == ({"split"}, ("float64",))
    cli("--model", "qwen3-0.6b")
    assert judged(seen.pop()) == {"dense-sdpa", "split"}


def test_progress_goes_to_standard_error_and_leaves_json_alone(cli: Cli) -> None:
    loud = [argument for argument in SMALL if argument != "--quiet"]
    done = cli(*loud, "--subject", "dense-sdpa", "--json")
    assert re.match(r"\[0/\d+\] float32 balanced: oracle\n", done.err)
    assert json.loads(done.out)["verdict"] == "PASS"


# What is wrong with a request is said before any work, in one line.


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("verify.check_run.run_gate", refuse)


@dataclass(frozen=True)
class Files:
    """What wrong requests point at."""

    folder: Path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


ROW = json.dumps({"prompt": "hi", "chosen": "yes", "rejected": "no"})
Arguments = list[object]


def subject_file(source: str) -> Callable[[Files, Path], Arguments]:
    return lambda files, tokenizer: ["--subject", f"{files.write('mine.py', source)}:Mine"]


def rows(text: str) -> Callable[[Files, Path], Arguments]:
    return lambda files, tokenizer: ["--data", files.write("rows.jsonl", text), "--tokenizer", tokenizer]


def options(*arguments: object) -> Callable[[Files, Path], Arguments]:
    return lambda files, tokenizer: list(arguments)


# What is asked for, given where files may lie and a tokenizer, and what is said.
WRONG: dict[str, tuple[Callable[[Files, Path], Arguments], str]] = {
    "unknown model": (
        options("--model", "qwen4"),
        "unknown model 'qwen4' (did you mean qwen3-4b?): give one of ",
    ),
    "a folder that is no checkpoint": (
        lambda f, t: ["--model", f.folder],
        "has no config.json: it is not a checkpoint",
    ),
    "a checkpoint of an unknown kind": (
        lambda f, t: ["--model", f.write("config.json", '{"model_type": "abacus"}').parent],
        "config.json: ",
    ),
    "more layers than there are": (options("--layers", 99), "--layers 99: tiny has "),
    "unknown subject": (
        options("--subject", "dense-sdp"),
        "unknown subject 'dense-sdp' (did you mean dense-sdpa?): give one of dense-eager, ",
    ),
    "a subject file that is absent": (options("--subject", "absent.py:Mine"), "absent.py: there is no such file"),
    "a subject file that does not import": (
        subject_file("import no_such_module_"),
        "mine.py, line 1, does not import: ModuleNotFoundError: ",
    ),
    "a subject file that ends the program": (
        subject_file("raise SystemExit(0)"),
        "mine.py, line 1, does not import: SystemExit: 0",
    ),
    "a subject file with a message of several lines": (
        subject_file("raise ImportError('one\\ntwo\\n')"),
        "does not import: ImportError: one two",
    ),
    "a subject file without the class": (subject_file("class Yours: pass"), "mine.py has no 'Mine'; it defines Yours"),
    "a subject twice": (options("--subject", "split", "--subject", "split"), "subjects named twice: split"),
    "subject and backend": (options("--subject", "split", "--backend", "split"), "give --subject or --backend, not"),
    "unknown backend": (options("--backend", "sdpa"), "unknown backend 'sdpa': give one of dense-eager, "),
    "unknown dtype": (
        options("--dtype", "float16"),
        "unknown dtype 'float16' (did you mean bfloat16?): give one of float64, float32, bfloat16",
    ),
    "unknown case": (
        options("--case", "balancd"),
        "unknown case 'balancd' (did you mean balanced?): give one of balanced, ",
    ),
    "unknown variation": (
        options("--variation", "padded"),
        "unknown variation 'padded' (did you mean padded-left?): give one of eager, ",
    ),
    "data without a tokenizer": (lambda f, t: ["--data", f.write("rows.jsonl", ROW)], "--data needs --tokenizer DIR"),
    "a tokenizer without data": (lambda f, t: ["--tokenizer", t], "--tokenizer goes with --data FILE"),
    "a data file that is absent": (
        lambda f, t: ["--data", f.folder / "absent.jsonl", "--tokenizer", t],
        "absent.jsonl",
    ),
    "a tokenizer that is absent": (
        lambda f, t: ["--data", f.write("rows.jsonl", ROW), "--tokenizer", f.folder / "absent"],
        "absent",
    ),
    "a row that is not JSON": (rows(f'{ROW}\n{{"prompt": \n'), "rows.jsonl:2"),
    "a missing column": (rows('{"prompt": "hi", "chosen": "yes"}'), "rejected"),
    "no rows": (rows(""), "rows.jsonl"),
    "a policy with a typo": (
        lambda f, t: ["--policy", f.write("p.toml", "[oracel]")],
        "p.toml: key 'schema_version' is missing; ",
    ),
    "a policy that is absent": (lambda f, t: ["--policy", f.folder / "no.toml"], "no.toml: cannot be read: "),
    "a device that is none": (
        options("--device", "gpu"),
        "--device gpu: not a device that is supported; give cpu, cuda or cuda:N",
    ),
    "reward model with a frozen policy": (
        options("--objective", "reward-model", "--reference", "frozen-adapter"),
        "--reference frozen-adapter: reward-model has no frozen policy",
    ),
    "adapters off where every weight is trained": (
        options("--train", "all", "--reference", "adapters-off"),
        "--reference adapters-off with --train all: it computes with the policy's own weights",
    ),
    "a frozen adapter where every weight is trained": (
        options("--train", "all", "--reference", "frozen-adapter"),
        "give separate-model (the default there) or cached",
    ),
    "something else trained": (options("--train", "head"), "unknown train 'head': give one of lora, all"),
    "a case over adapters where every weight is trained": (
        options("--train", "all", "--case", "reference-frozen-adapter"),
        "case reference-frozen-adapter is over the frozen policy frozen-adapter, whose weights are trained",
    ),
    "a fault of adapters where every weight is trained": (
        options("--train", "all", "--subject", "fault:factor-b-doubled"),
        "--subject fault:factor-b-doubled with --train all: it is a fault under lora",
    ),
    "a fault of full training where adapters are trained": (
        options("--subject", "fault:head-without-gradient"),
        "--subject fault:head-without-gradient with --train lora: it is a fault under all",
    ),
    "every weight of a model that is too large": (
        options("--train", "all", "--model", "qwen3-32b"),
        "of gradients, would take",
    ),
    "reward model without an oracle": (
        options("--objective", "reward-model", "--model", "tiny-gemma"),
        "is of a reward model, which is judged where there is an oracle: model_type 'gemma' is not known",
    ),
    "label smoothing of 0.7": (options("--label-smoothing", 0.7), "label_smoothing is 0.7: it must lie in [0, 0.45]"),
    "beta of zero": (options("--beta", 0), "beta is 0.0: it must be a positive number"),
    "beta that is not a number": (options("--beta", "nan"), "beta is nan: it must be a positive number"),
}
if not torch.cuda.is_available():
    WRONG["CUDA where there is none"] = (options("--device", "cuda"), "sees no CUDA device here; give --device cpu")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of one token for each byte."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    cli: Cli, name: str, tmp_path: Path, tokenizer: Path
) -> None:
    (tmp_path / "input").mkdir()
    ask, message = WRONG[name]
    done = cli(*ask(Files(tmp_path / "input"), tokenizer), "--out", tmp_path / "out", "--quiet")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("packparity: error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.usefixtures("no_work")
def test_a_place_that_cannot_be_written_is_found_out_before_the_work(cli: Cli, tmp_path: Path) -> None:
    in_the_way = tmp_path / "out"
    in_the_way.write_text("mine")
    for out in (in_the_way, in_the_way / "below"):
        done = cli("--out", out)
        assert done.status == 2
        assert done.err == (
            f"packparity: error: cannot write results to {out}: a file is in the way; "
            "name a folder that can be written\n"
        )
    assert in_the_way.read_text() == "mine"


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("arguments", [["--layers", "0"], ["--seed", "-1"], ["--pairs", "x"], ["--no-such-option"]])
def test_an_option_that_does_not_parse_is_refused_without_a_traceback(cli: Cli, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert (done.status, done.out) == (2, "")
    assert arguments[0] in done.err
    assert "Traceback" not in done.err


def test_several_processes_where_nothing_may_be_forked_are_refused(cli: Cli) -> None:
    done = cli(*SMALL, "--jobs", 2)
    assert done.status == 2
    assert "--jobs 2: torch was loaded before the program began" in done.err


def test_an_error_of_our_own_proves_nothing_and_is_said_in_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("verify.check_run.run_gate", broken)
    done = cli("--out", tmp_path)
    assert done.status == 3
    assert done.err == "packparity: nothing was proven: RuntimeError: first line second line (--debug shows where)\n"
    assert not list(tmp_path.iterdir())
    done = cli("--debug")
    assert done.status == 3
    assert "Traceback (most recent call last)" in done.err


def test_an_interrupt_is_said_and_has_its_own_status(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("verify.check_run.run_gate", interrupted)
    done = cli("--out", tmp_path)
    assert (done.status, done.err) == (130, "packparity: interrupted: nothing was written\n")
    assert not list(tmp_path.iterdir())


def test_real_pairs_are_judged_and_recorded(cli: Cli, tmp_path: Path, tokenizer: Path) -> None:
    pairs = [{"prompt": f"q{i}: ", "chosen": "yes, it is", "rejected": "no, it is not"} for i in range(3)]
    path = Files(tmp_path).write("rows.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))
    done = cli("--layers", 1, "--variation", "eager", "--quiet", "--subject", "split", "--pairs", 2,
               "--data", path, "--tokenizer", tokenizer, "--json")  # fmt: skip
    record = json.loads(done.out)
    assert (done.status, record["verdict"]) == (0, "PASS")
    assert (record["data"]["rows_read"], record["data"]["num_pairs"]) == (3, 2)
    assert record["cases"][0]["groups"][0]["source"].startswith("rows.jsonl:")


OF_A_FAMILY = ("--case", "balanced", "--subject", "dense-sdpa", "--quiet")


def test_a_family_that_the_oracle_does_not_know_is_judged_by_the_unpacked_path_and_says_so(
    cli: Cli, tmp_path: Path
) -> None:
    done = cli("--model", "tiny-gemma3_text", *OF_A_FAMILY, "--out", tmp_path)
    assert done.status == 0
    said = " ".join(done.out.split())
    assert "no oracle knows a model gemma3_text: judged against the unpacked path alone" in said
    record = read_record(tmp_path / "record.json")
    assert record.model.expected_by == "unpacked-float64"
    assert record.model.name == "tiny-gemma3_text"
    assert len(record.planted) > 10
    assert all(planted.killed for planted in record.planted)
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "the unpacked path in float64: no oracle" in text
        assert "judged against the unpacked path alone" in " ".join(text.split())


def test_a_wrong_subject_fails_there_too(cli: Cli) -> None:
    done = cli("--model", "tiny-gemma3_text", "--case", "balanced", "--subject", "fault:causal-mask-only", "--quiet")
    assert done.status == 1
    assert "no oracle knows a model gemma3_text" in " ".join(done.out.split())


def test_without_rotary_positions_a_variation_that_moves_them_is_left_out(cli: Cli) -> None:
    done = cli("--model", "tiny-gpt2", *OF_A_FAMILY)
    assert done.status == 0
    said = " ".join(done.out.split())
    assert "positions are not rotary: the variation junk-in-front would change values, and was left out" in said
    assert "faults not planted: prompt-cache-detached: the model has no module self_attn.k_proj" in said


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tiny-gemma2", "model tiny-gemma2: transformers computes it without SDPA"),
        ("tiny-gema3", "unknown model family 'gema3': did you mean gemma3"),
        ("tiny-bart", "model type bart: 24 of 48 trained tensors have no gradient"),
    ],
)
def test_a_family_that_cannot_be_judged_is_refused_in_one_line(
    cli: Cli, model: str, message: str, tmp_path: Path
) -> None:
    done = cli("--model", model, *OF_A_FAMILY, "--out", tmp_path / "out")
    assert done.status == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
