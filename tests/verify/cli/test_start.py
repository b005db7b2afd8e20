"""The first and the last moment of the program: interrupts during imports, and the end of the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verify.cli.app import _run
from verify.cli.interrupts import interrupts_noted
from verify.sharded.ranks import STARTED_HERE

INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {name!r}:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                {instead}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun with it ignored
sys.meta_path.insert(0, Interrupts())
sys.argv = ["packparity", "check", "--out", {out!r}]
from verify.cli.start import main
main()
"""
RANK = "os.environ['RANK'] = '0'; raise"


@pytest.mark.parametrize(
    ("name", "instead"),
    [("typer", "raise"), ("typer", "pass"), ("typer", RANK), ("transformers", "raise RuntimeError('no import')")],
)
def test_an_interrupt_of_an_import_is_one_line_whatever_becomes_of_it_there(
    name: str, instead: str, tmp_path: Path
) -> None:
    done = _ended(INTERRUPTED_IMPORT.format(name=name, instead=instead, out=str(tmp_path / "out")))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "packparity: interrupted: nothing was written\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("become", [KeyboardInterrupt, RuntimeError, None])
def test_an_interrupt_ends_the_imports_whatever_they_make_of_it(become: type[BaseException] | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        _import_interrupted(become)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_is_ignored_stays_so_and_another_error_stays_itself() -> None:
    with pytest.raises(ImportError), interrupts_noted():
        raise ImportError
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_noted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


ENDS = """
import atexit, sys
import verify.cli.app
from verify.cli.start import main
class Lasting:
    def __del__(self):
        print("taken apart")
def run():
    atexit.register(print, "work of others at the end")
    sys.exit(3)
verify.cli.app.main = run
lasting = Lasting()
main()
"""


def test_the_process_ends_without_being_taken_apart_behind_all_else_that_runs_at_the_end() -> None:
    done = _ended(ENDS)
    assert (done.returncode, done.stdout, done.stderr) == (3, "work of others at the end\n", "")


def test_models_of_transformers_are_listed_once_and_the_same() -> None:
    code = """
import sys
from pathlib import Path
from verify.cli.model_listing import list_models_once
list_models_once()
from transformers.utils import import_utils
define = import_utils.define_import_structure
listed, models = define.cache_info().misses, sys.modules["transformers.models"]
again = import_utils._LazyModule("transformers.models", models.__file__, define(models.__file__))
print(listed, define.cache_info().misses, len(again._class_to_module) > 1000)
print(vars(again)["_class_to_module"] == vars(models)["_class_to_module"], again._modules == models._modules)
print(again._object_missing_backend == models._object_missing_backend, sorted(again.__all__) == sorted(models.__all__))
"""
    done = _ended(code)
    assert done.stdout.splitlines() == ["1 2 True", "True True", "True True"], done.stderr


def _import_interrupted(become: type[BaseException] | None) -> None:
    with interrupts_noted():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if become is not None:
                raise become from None


def _ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("environment", "said"), [({}, 1), ({STARTED_HERE: "1"}, 0)])
def test_an_interrupted_rank_leaves_it_to_its_launcher_to_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], environment: dict[str, str], said: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("verify.cli.app.end_with_the_launcher", lambda: None)
    monkeypatch.setattr("verify.cli.app.app", lambda *arguments, **options: 130)
    assert _run(["sharded"]) == 130
    assert capsys.readouterr().err.count("interrupted: nothing was written") == said
