"""Users' own faults: planted like ours; what is wrong with one is its own ERROR, or a bad request."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reports.kill_matrix_store import read_kill_matrix
from verify.cli.app import app, main
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import CATALOGUE, mutation_named
from verify.faults.fault import EquivalentMutant, Fault
from verify.faults.selection import asked_where_it_bites, select_mutations
from verify.faults.stages import STAGES
from verify.subjects import is_built_in
from verify.subjects.faulty import FaultySubject

DOCS = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")
MAKER = """
from verify.faults.conditions import Condition
from verify.faults.fault import Fault

def fault(name, stage="positions", replacement=lambda honest, *given: honest(*given), **rest):
    return Fault(name=name, stage=stage, replacement=replacement, what="Mine.", signature="none", **rest)

"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(source: str) -> Path:
        path = tmp_path / "my_fault.py"
        path.write_text(MAKER + source, encoding="utf-8")
        return path

    return to_file


def run(out: Path, *faults: str) -> tuple[int, str]:
    named = [part for fault in faults for part in ("--fault", fault)]
    few = ["--case", "two-tokens-in-turn", "--dtype", "float32"]
    result = CliRunner().invoke(app, ["faults", "--quiet", *few, "--out", str(out), *named])
    return result.exit_code, " ".join(result.output.split())


def test_the_example_of_the_docs_is_killed(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n# my_fault\.py\n(.*?)^```$", DOCS, flags=re.MULTILINE | re.DOTALL)
    (name,) = re.findall(r"packparity faults --fault my_fault\.py:(\w+)", DOCS)
    path = tmp_path / "my_fault.py"
    path.write_text(source, encoding="utf-8")
    status, output = run(tmp_path / "out", f"{path}:{name}")
    assert status == 0, output
    assert "1 of 1 planted fault killed" in output


WRONG = {
    "raises": (
        "def broken(honest, rows): raise RuntimeError('no kernel')\nraises = fault('raises', replacement=broken)",
        "RuntimeError: no kernel",
    ),
    "shapes": (
        "def short(honest, logits, ids): return honest(logits, ids)[1:]\nshapes = fault('s', 'token_logps', short)",
        "IndexError: The shape of the mask",
    ),
    "nothing": ("nothing = fault('nothing', replacement=lambda honest, rows: None)", "AttributeError"),
    "number": ("number = 3", ":number is of type int: a Fault or EquivalentMutant"),
    "makes_none": ("def makes_none(): pass", ":makes_none is of type NoneType"),
    "skips": (
        "class Skipped(BaseException): pass\ndef skips(): raise Skipped('no')",
        ":skips() raised Skipped: no",
    ),
    "greedy": (
        "def take(honest, groups):\n    object.__setattr__(groups[0], 'positives', ((1,),))\n"
        "    return honest(groups)\n"
        "greedy = fault('greedy', 'layout', take)",
        "fault:greedy changed the groups it was given",
    ),
    "exits": ("def exits(): raise SystemExit(0)", ":exits() raised SystemExit: 0"),
    "packing": ("packing = fault('packing', packing=None)", "AttributeError"),
    "condition": (
        "condition = fault('condition', bites_where=Condition('rows', lambda case: case.rows))",
        "on case two-tokens-in-turn its condition raised AttributeError",
    ),
}


def test_whatever_is_wrong_with_one_is_its_own_error_and_the_run_goes_on(write: Write, tmp_path: Path) -> None:
    path = write("\n".join(source for source, _ in WRONG.values()))
    status, output = run(tmp_path / "out", *(f"{path}:{name}" for name in WRONG), "neighbour-predicts")
    assert status == 3, output
    assert f"1 of {len(WRONG) + 1} planted faults killed" in output
    *broken, ours = read_kill_matrix(tmp_path / "out").mutations
    assert ours.outcome == "killed"
    for record, (_, message) in zip(broken, WRONG.values(), strict=True):
        assert record.outcome == "error"
        assert message in record.reasons[0]


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("", "mine", "has no 'mine'; it defines theirs"),
        ("x = (", "mine", r"line \d+, does not import: SyntaxError"),
        ("raise OSError('no disk')", "mine", r"line \d+, does not import: OSError: no disk"),
        ("mine = fault('mine', 'maks')", "mine", "stage 'maks': give one of layout, positions, mask"),
        ("mine = fault('mine', replacement=3)", "mine", "replacement is a int: give a function"),
        ("mine = fault('')", "mine", "named '': give it a non-empty string"),
        ("mine = fault('mine', must_kill=())", "mine", r"must_kill is \(\): give some of parity"),
        ("mine = fault('mine', must_kill=('parities',))", "mine", "must_kill is .*give some of parity"),
        ("mine = fault('mine', invisible_where=None)", "mine", "invisible_where is None: give a printable string"),
        ("mine = fault('\\x1b[31mb')", "mine", r":mine: the name '\\x1b\[31mb': give at most 100 printable characters"),
        ("mine = fault('\\ud800')", "mine", r":mine: the name '\\ud800': give at most 100 printable characters"),
        ("mine = fault('n' * 101)", "mine", "give at most 100 printable characters"),
        ("mine = fault('mine', invisible_where='\\x1b')", "mine", r"invisible_where is '\\x1b': give a printable"),
        ("mine = fault('mine', invisible_where='\\ud800')", "mine", r"invisible_where is '\\ud800': give a printable"),
        ("class Skipped(BaseException): pass\nraise Skipped('no')", "mine", r"line \d+, does not import: Skipped: no"),
        ("mine = fault('causal-mask-only')", "mine", "'causal-mask-only' is the name of another fault"),
    ],
)
def test_what_cannot_be_had_is_a_bad_request(write: Write, source: str, name: str, message: str) -> None:
    path = write(f"theirs = fault('theirs')\n{source}")
    with pytest.raises(ValueError, match=message):
        select_mutations([f"{path}:{name}"])


def test_a_file_that_is_not_there_ends_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["packparity", "faults", "--fault", "absent.py:mine"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == "packparity: error: fault file absent.py: there is no such file; give file.py:NAME\n"
    )


def test_a_function_that_returns_a_fault_and_a_control_of_ones_own_are_taken(write: Write) -> None:
    path = write(
        "from verify.faults.fault import EquivalentMutant\n"
        "def made(): return fault('made')\n"
        "control = EquivalentMutant(name='control', stage='mask', replacement=made, what='.', why_equal='it is')\n"
    )
    made, control, ours = select_mutations([f"{path}:made", f"{path}:control", "prompt-cut"])
    assert isinstance(made, Fault)
    assert isinstance(control, EquivalentMutant)
    assert [made.name, control.name] == ["made", "control"]
    assert ours is mutation_named("prompt-cut")
    assert select_mutations([]) == CATALOGUE


def test_a_fault_from_outside_is_watched_and_ours_is_not(write: Write) -> None:
    (mine,) = select_mutations([f"{write('mine = fault(chr(109))')}:mine"])
    wrapped = Fault(name="w", stage="mask", replacement=partial(partial(mine.replacement)), what="", signature="")
    assert not is_built_in(FaultySubject(mutation=mine))
    assert not is_built_in(FaultySubject(mutation=wrapped))
    assert is_built_in(FaultySubject())
    assert all(is_built_in(FaultySubject(mutation=mutation)) for mutation in CATALOGUE)


def test_a_condition_that_can_be_asked_is_left_alone() -> None:
    cases = tiny_cases(257, 0)
    assert {asked_where_it_bites(mutation, cases).stage for mutation in CATALOGUE} == set(STAGES)
    assert all(asked_where_it_bites(mutation, cases) is mutation for mutation in CATALOGUE)
