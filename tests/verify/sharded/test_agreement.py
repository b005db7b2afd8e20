"""Ranks that were started differently are refused, by name and with what each has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verify.sharded import agreement
from verify.sharded.checks import CHECKS
from verify.subjects.sharded import HONEST
from verify.verdict import Verdict


@pytest.fixture
def of_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the other ranks say, beside this one."""

    def others_say(*others: Any) -> None:
        monkeypatch.setattr(agreement, "all_gathered", lambda own: [own, *others])

    return others_say


def test_ranks_that_say_the_same_agree(of_ranks: Callable[..., None]) -> None:
    of_ranks({"torch": "2.13", "peft": "0.21"})
    agreement.check_agreement("versions", {"torch": "2.13", "peft": "0.21"})


def test_the_first_name_in_which_ranks_differ_is_said_with_what_each_has(of_ranks: Callable[..., None]) -> None:
    of_ranks({"torch": "2.13"}, {"torch": "2.12"}, {"torch": "2.12"})
    with pytest.raises(ValueError, match=r"disagree on versions: torch is ranks 0, 1: 2\.13; ranks 2, 3: 2\.12"):
        agreement.check_agreement("versions", {"torch": "2.13"})


def test_a_name_that_a_rank_does_not_have_is_a_difference(of_ranks: Callable[..., None]) -> None:
    of_ranks({})
    with pytest.raises(ValueError, match=r"peft is rank 0: 0\.21; rank 1: nothing"):
        agreement.check_agreement("versions", {"peft": "0.21"})


def test_files_of_users_own_are_compared_by_what_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    said: list[dict[str, str]] = []
    monkeypatch.setattr(agreement, "all_gathered", lambda own: said.append(own) or [own])
    for text in ("first", "second"):
        file.write_text(text)
        agreement.check_same_start(["sharded", "--subject", f"{file}:Mine"], "cpu")
    versions = [each for each in said if "torch" in each]
    assert versions[0][str(file)] != versions[1][str(file)]
    assert {name: value for name, value in versions[0].items() if name != str(file)}.items() <= versions[1].items()


def test_checks_that_compare_bits_abstain_where_bits_do_not_come_again() -> None:
    bench: Any = SimpleNamespace(is_repeatable=False, precision="float32", subject=SimpleNamespace(name="x"))
    for check in CHECKS.values():
        if check.compares_bits:
            finding = check.run(bench, HONEST)
            assert (finding.verdict, finding.num_compared) == (Verdict.NOT_APPLICABLE, 0)
            assert "other bits" in finding.worst
    assert sum(check.compares_bits for check in CHECKS.values()) == 3
