"""Five states, one order, and no way to read any of them as true."""

from __future__ import annotations

from itertools import permutations

import pytest

from verify.verdict import Verdict, exit_status, fold

PASS, FAIL, ERROR = Verdict.PASS, Verdict.FAIL, Verdict.ERROR
INCONCLUSIVE, NOT_APPLICABLE = Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("verdict", Verdict)
def test_no_verdict_has_a_truth_value(verdict: Verdict) -> None:
    with pytest.raises(TypeError, match=f"compare it: verdict is Verdict.{verdict.name}"):
        bool(verdict)


@pytest.mark.parametrize("use", [any, all], ids=["any", "all"])
def test_verdicts_cannot_be_folded_by_their_truth(use: object) -> None:
    with pytest.raises(TypeError, match="no truth value"):
        use([PASS, FAIL])  # type: ignore[operator]


def test_the_worst_verdict_wins_wherever_it_stands() -> None:
    for order in permutations(Verdict):
        assert fold(order) is ERROR
        assert fold([v for v in order if v is not ERROR]) is FAIL
        assert fold([v for v in order if v not in (ERROR, FAIL)]) is INCONCLUSIVE
        assert fold([v for v in order if v in (PASS, NOT_APPLICABLE)]) is PASS


def test_nothing_at_all_is_an_error() -> None:
    assert fold([]) is ERROR
    assert fold(iter(())) is ERROR


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_does_not_apply_never_turns_into_a_pass(count: int) -> None:
    assert fold([NOT_APPLICABLE] * count) is NOT_APPLICABLE
    assert exit_status(fold([NOT_APPLICABLE] * count)) == 3


def test_a_pass_beside_something_that_does_not_apply_stays_a_pass() -> None:
    assert fold([NOT_APPLICABLE, PASS]) is PASS


def test_only_a_pass_ends_with_status_zero() -> None:
    statuses = {verdict.name: exit_status(verdict) for verdict in Verdict}
    assert statuses == {"PASS": 0, "FAIL": 1, "ERROR": 3, "INCONCLUSIVE": 3, "NOT_APPLICABLE": 3}
