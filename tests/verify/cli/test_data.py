"""``packparity data``: exit status, what is printed and written, and one line for whatever is wrong with a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import verify
from reports.data_store import DATA_REPORT_FILES, read_data_report
from verify.cli import app

ROOT = Path(verify.__file__).resolve().parents[1]
SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``packparity data`` in this process."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packparity", "data", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        status = ended.value.code
        return Done(status if isinstance(status, int) else -1, captured.out, captured.err)

    return call


def python_m_verify(*arguments: object) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "verify", "data", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def turns_row(prompt: str, chosen: str, rejected: str) -> dict[str, Any]:
    user = {"role": "user", "content": prompt}
    return {
        side: [user, {"role": "assistant", "content": answer}]
        for side, answer in (("chosen", chosen), ("rejected", rejected))
    }


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


LONG_PROMPTS = [turns_row("p" * (200 + i), "yes " * (1 + i % 9), "no " * (1 + i % 5)) for i in range(40)]
SHORT_PROMPTS = [turns_row("p", "yes " * (50 + i % 9), "no " * (50 + i % 5)) for i in range(40)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def to_file(content: bytes, name: str = "pairs.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return to_file


# What comes out.


def test_a_report_is_written_whole_through_a_real_process(write: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = python_m_verify(write(lines(*LONG_PROMPTS)), "--out", out)
    assert done.status == 0, done.err
    assert "Packing pays" in done.out
    assert "rows/s" in done.err
    assert {path.name for path in out.iterdir()} == set(DATA_REPORT_FILES)
    report = read_data_report(out)
    assert report.advice.advice == "pays"
    assert (report.rows_read, report.rows_usable) == (40, 40)
    html = (out / "data-report.html").read_text(encoding="utf-8")
    assert "<svg" in html
    assert "<script" not in html


def test_the_prediction_is_the_algebra_of_the_file(cli: Cli, write: Callable[..., Path]) -> None:
    done = cli(write(lines(*LONG_PROMPTS)), "--json", "--quiet", "--chars-per-token", "1", "--model", "qwen3-0.6b")
    algebra = json.loads(done.out)["algebra"]
    lengths = [[len(row[side][at]["content"]) for side, at in _PARTS] for row in LONG_PROMPTS]
    unpacked = sum(2 * p + c + r for p, c, r in lengths)
    packed = sum(p + c + r for p, c, r in lengths)
    assert (algebra["tokens_unpacked"], algebra["tokens_packed"]) == (unpacked, packed)
    linear = 28 * 2 * (1024 * 128 * 2 * (16 + 8) + 3 * 1024 * 3072)
    pair = 28 * 4 * 16 * 128
    head = 2 * 1024 * 151936 * sum(c + r for _, c, r in lengths)
    pairs = [sum((p + x) * (p + x + 1) // 2 for p, c, r in lengths for x in (c, r))]
    pairs.append(pairs[0] - sum(p * (p + 1) // 2 for p, _, _ in lengths))
    expected = (linear * packed + pair * pairs[1] + head) / (linear * unpacked + pair * pairs[0] + head)
    assert algebra["flop_ratio"] == pytest.approx(expected, rel=1e-12)


_PARTS = (("chosen", 0), ("chosen", 1), ("rejected", 1))


def test_characters_predict_no_flops(cli: Cli, write: Callable[..., Path]) -> None:
    done = cli(write(lines(*LONG_PROMPTS)), "--quiet")
    assert "attention needs token counts" in " ".join(done.out.split())
    assert "not looked for without --tokenizer" in " ".join(done.out.split())


def test_short_prompts_are_not_worth_sharing(cli: Cli, write: Callable[..., Path]) -> None:
    done = cli(write(lines(*SHORT_PROMPTS)), "--quiet")
    assert done.status == 0
    assert "Packing does not pay" in done.out


@pytest.mark.parametrize(("max_broken", "status"), [("0.05", 1), ("0.2", 0)])
def test_too_many_broken_rows_rule_packing_out(
    cli: Cli, write: Callable[..., Path], max_broken: str, status: int
) -> None:
    same = [turns_row("one", "same", "same")] * 6
    done = cli(write(lines(*LONG_PROMPTS, *same)), "--quiet", "--max-broken", max_broken)
    assert done.status == status
    assert ("Packing cannot be used" in done.out) == (status == 1)
    assert "identical_responses" in done.out


def test_nothing_usable_is_a_report_all_the_same(cli: Cli, write: Callable[..., Path], tmp_path: Path) -> None:
    done = cli(write(lines(turns_row("one", "same", "same"))), "--out", tmp_path / "out", "--quiet", "--max-broken", 1)
    assert done.status == 1
    assert "nothing can be packed" in done.out
    assert "<svg" not in (tmp_path / "out" / "data-report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("shape", ["orca_dpo_pairs", "rlhf_v", "tulu"])
def test_published_shapes_give_a_report(cli: Cli, shape: str) -> None:
    path = SAMPLES / f"{shape}.jsonl"
    done = cli(path, "--json", "--quiet", "--max-broken", "1")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    assert report["shape"] == shape
    assert report["rows_read"] == len(path.read_text(encoding="utf-8").splitlines())


def test_text_of_the_file_is_escaped(cli: Cli, write: Callable[..., Path], tmp_path: Path) -> None:
    row = {"prompt": "<script>alert(1)</script>", **turns_row("another", "yes", "no")}
    cli(write(lines(row)), "--out", tmp_path / "out", "--quiet")
    html = (tmp_path / "out" / "data-report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in html
    assert "<script" not in html


def test_real_files_are_all_usable(cli: Cli) -> None:
    beside_repository = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("PACKPARITY_SHARED_DATA", beside_repository))
    if not (folder / "preferences").is_dir():
        pytest.skip("no real data: PACKPARITY_SHARED_DATA names no folder with preferences/ and qwen-tokenizer/")
    path = folder / "preferences" / "h4_ultrafeedback.jsonl"
    done = cli(path, "--tokenizer", folder / "qwen-tokenizer", "--json", "--quiet")
    report = json.loads(done.out)
    assert (report["rows_read"], report["rows_usable"]) == (24, 24)
    assert 0.7 < report["algebra"]["flop_ratio"] < 0.9
    assert report["advice"]["advice"] == "pays"


def test_rows_with_several_responses_are_groups(cli: Cli) -> None:
    report = json.loads(cli(SAMPLES / "text_groups.jsonl", "--json", "--quiet").out)
    assert (report["shape"], report["rows_usable"]) == ("text_groups", 3)
    assert {part["responses"]: part["groups"] for part in report["algebra"]["by_responses"]} == {2: 1, 3: 1, 4: 1}
    rows = [json.loads(line) for line in (SAMPLES / "text_groups.jsonl").read_text(encoding="utf-8").splitlines()]
    lengths = [(len(row["prompt"]), [len(text) for text in row["chosen"] + row["rejected"]]) for row in rows]
    assert report["algebra"]["tokens_packed"] == sum(p + sum(r) for p, r in lengths)
    assert report["algebra"]["tokens_unpacked"] == sum(len(r) * p + sum(r) for p, r in lengths)


def test_a_response_twice_on_one_side_can_be_packed_and_is_told(cli: Cli, write: Callable[..., Path]) -> None:
    twice = {"prompt": "a question", "chosen": ["yes", "yes"], "rejected": ["no"]}
    done = cli(write(lines(twice)), "--quiet", "--json")
    report = json.loads(done.out)
    assert done.status == 0
    assert (report["rows_usable"], report["violations"]) == (1, [])
    (remark,) = report["remarks"]
    assert (remark["name"], remark["rows"]) == ("repeated_response", 1)


def test_a_plan_has_one_speed_up_in_a_report(cli: Cli, write: Callable[..., Path]) -> None:
    """A file of a few short rows, which is repeated until it fills some steps."""
    rows = [
        {"prompt": "p" * p, "chosen": ["c" * c for c in chosen], "rejected": ["r" * r for r in rejected]}
        for p, chosen, rejected in ((10, [3], [2]), (5, [3, 4], [1, 5, 2]), (3, [8], [1, 2]), (7, [4, 1], [3]))
    ]
    asked = ("--row-limit", 24, "--ranks", 1, "--groups-per-rank", 2, "--chars-per-token", 1)
    simulation = json.loads(cli(write(lines(*rows)), *asked, "--quiet", "--json").out)["simulation"]
    in_plans = [plan for plan in simulation["plans"] if plan["row_limit"] is not None]
    assert len(in_plans) == 2
    assert [plan for plan in simulation["by_row_limit"] if plan["row_limit"] == 24] == in_plans


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_a_file_name_that_is_no_text_is_written_out(cli: Cli, write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(lines(*LONG_PROMPTS), os.fsdecode(b"pairs\xff.jsonl"))
    done = cli(path, "--quiet", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert read_data_report(tmp_path / "out").file == r"pairs\udcff.jsonl"


def test_a_file_sorted_by_source_is_told_from_a_shuffled_one(cli: Cli, write: Callable[..., Path]) -> None:
    rows = [turns_row(f"question {i}", "yes " * (1 + i % 7), "no") | {"source": f"set-{i // 50}"} for i in range(200)]
    found = {}
    for name, order in (("sorted", range(200)), ("shuffled", [i * 73 % 200 for i in range(200)])):
        done = cli(write(lines(*(rows[i] for i in order)), f"{name}.jsonl"), "--quiet")
        found[name] = " ".join(done.out.split())
    assert "the file is sorted by source" in found["sorted"]
    assert "shuffle before packing, and record the seed" in found["sorted"]
    assert "it is not sorted by source" in found["shuffled"]
    assert "shuffle before packing, and record the seed" not in found["shuffled"]


def test_a_prompt_several_times_in_a_row_is_told(cli: Cli, write: Callable[..., Path]) -> None:
    rows = [turns_row(f"question {i // 3}", f"yes {i}", "no") for i in range(30)]
    done = cli(write(lines(*rows)), "--quiet")
    assert "20 rows with the prompt of the row before" in " ".join(done.out.split())


def test_the_report_comes_back_and_two_are_compared(
    cli: Cli, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("long", LONG_PROMPTS), ("short", SHORT_PROMPTS)):
        cli(write(lines(*rows), f"{name}.jsonl"), "--quiet", "--out", tmp_path / name)
    again, both = (
        subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, "report", *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )
        for arguments in (
            (str(tmp_path / "long"), "--out", str(tmp_path / "again")),
            (str(tmp_path / "long"), str(tmp_path / "short")),
        )
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "Packing pays" in again.stdout
    for name in DATA_REPORT_FILES:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "long" / name).read_bytes()
    assert both.returncode == 0, both.stderr
    words = " ".join(both.stdout.split())
    assert "advice Packing pays Packing does not pay" in words
    assert "packed / unpacked, token 0.5" in words
    assert "file long.jsonl short.jsonl" in words


WITHOUT_TORCH = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "peft", "safetensors", "pyarrow"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
runpy.run_module("verify", run_name="__main__")
"""


def test_a_file_is_surveyed_and_lengths_are_drawn_without_torch(write: Callable[..., Path]) -> None:
    for arguments in (["data", str(write(lines(*LONG_PROMPTS)))], ["simulate", "balanced", "--groups", "64"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Packing pays" in done.stdout


# Bad input: one line on standard error, status 2, nothing written.

GOOD = lines(turns_row("one", "yes", "no"))
ASKS_ON = {side: [*turns, {"role": "user", "content": "?"}] for side, turns in turns_row("a", "b", "c").items()}
BAD_FILES = {
    "a conversation that ends with the user": (
        GOOD + lines(ASKS_ON),
        "pairs.jsonl:2: chosen ends with a turn of 'user'",
    ),
    "two shapes": (
        GOOD + lines({"prompt": "p", "chosen": "c", "rejected": "r"}),
        "pairs.jsonl:2: the row has shape trl_text, the rows before it trl_implicit_prompt",
    ),
    "other columns": (GOOD + lines({"text": 3, "label": 1}), "pairs.jsonl:2: not a known shape of preference row"),
    "not UTF-8": (GOOD + b'{"chosen": "\xff"}\n', "pairs.jsonl:2: byte 12 of the line is not UTF-8"),
    "cut off": (GOOD + GOOD[:-20], "pairs.jsonl:2: not JSON"),
    "a key twice": (GOOD + b'{"chosen": 1, "chosen": 2}\n', "pairs.jsonl:2: the key 'chosen' occurs twice"),
    "empty": (b"", "holds no row"),
    "blank lines": (b"\n\n", "holds no row"),
    "an array": (b"[1, 2]\n", "pairs.jsonl:1: the row is a JSON list"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_FILES)
def test_bad_files_are_one_line_and_nothing_is_written(
    cli: Cli, write: Callable[..., Path], tmp_path: Path, what: str
) -> None:
    content, message = BAD_FILES[what]
    done = cli(write(content), "--out", tmp_path / "out", "--quiet")
    assert done.status == 2
    assert done.out == ""
    assert message in done.err
    assert done.err.startswith("packparity: error: ")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_row_limit_below_the_longest_pair_names_the_pair(cli: Cli, write: Callable[..., Path]) -> None:
    lengths = [sum(len(row[side][at]["content"]) for side, at in _PARTS) for row in LONG_PROMPTS]
    done = cli(write(lines(*LONG_PROMPTS)), "--row-limit", "100", "--quiet")
    assert done.status == 2
    line = 1 + lengths.index(max(lengths))
    assert f"pairs.jsonl:{line}: the row takes {max(lengths)} characters" in done.err
    assert "more than the row limit of 100" in done.err
    assert "--max-tokens 100" in done.err


def test_a_parquet_file_without_the_columns_is_refused(cli: Cli, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "pairs.parquet"
    parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    done = cli(path, "--quiet")
    assert done.status == 2
    assert "pairs.parquet:1: not a known shape of preference row; columns found: text" in done.err


def test_strings_of_a_parquet_file_that_are_not_utf8_name_row_and_column(cli: Cli, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    raw = pyarrow.array([b"a"] * 70 + [b"\xff"], type=pyarrow.binary())
    texts = pyarrow.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
    path = tmp_path / "pairs.parquet"
    columns = {"prompt": ["p"] * 71, "chosen": texts, "rejected": ["r"] * 71}
    parquet.write_table(pyarrow.table(columns), path)
    done = cli(path, "--quiet")
    assert done.status == 2
    assert "pairs.parquet:71: column 'chosen' is not UTF-8 (invalid start byte at byte 0 of a string)" in done.err
    assert done.err.count("\n") == 1


def test_a_parquet_file_is_surveyed(cli: Cli, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "pairs.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(LONG_PROMPTS), path)
    done = cli(path, "--json", "--quiet")
    assert done.status == 0
    assert json.loads(done.out)["rows_usable"] == 40


MEASURED = """
import runpy, sys
sys.argv = ["packparity", "data", *sys.argv[1:]]
try:
    runpy.run_module("verify", run_name="__main__")
finally:  # not ru_maxrss, which counts the process that this one was forked from
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc/self/status")
def test_a_line_of_200_megabytes_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    with path.open("wb") as file:
        file.write(GOOD)
        file.truncate(200 * 10**6)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path), "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pairs.jsonl:2: the line is longer than 67108864 bytes" in done.stderr
    assert int(done.stdout) < 200 * 1024  # KiB: the interpreter, its packages, and at most 64 MiB of the line


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_read(
    cli: Cli, write: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        done = cli(write(b"not JSON"), "--out", out)
        assert done.status == 2
        assert "is a file; name a folder that can be written" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt-5"], "unknown model 'gpt-5': give one of tiny, tiny-qwen2"),
        (["--tokenizer", "nowhere"], "tokenizer folder nowhere does not exist"),
        (["--chars-per-token", "0"], "expected a number above 0"),
        (["--model", "no-such-shape.json"], "model file no-such-shape.json: there is no such file"),
        (["--seed", str(2**63)], "--seed"),
        (["--tokenizer", ".", "--chars-per-token", "4"], "give one of the two"),
        (["--max-broken", "2"], "--max-broken is 2.0: expected a share between 0 and 1"),
    ],
)
def test_bad_requests_are_one_line(cli: Cli, write: Callable[..., Path], arguments: list[str], message: str) -> None:
    done = cli(write(GOOD), *arguments)
    assert done.status == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_is_not_there_is_one_line(cli: Cli, tmp_path: Path) -> None:
    done = cli(tmp_path / "none.jsonl")
    assert done.status == 2
    assert "does not exist" in done.err
