"""Who is to blame: only a rank that is silent, or that is busy while others wait for it."""

from __future__ import annotations

import pytest

from verify.preflight.signs import Limits, Seen, Sign, blame

LIMITS = Limits(stage_s=60, answer_s=10)


def sign(*, seconds: float = 1.0, waits: bool = False, count: int = 1, stage: str = "data") -> Sign:
    return Sign(count=count, host="b", stage=stage, seconds=seconds, where="verify/data/load.py:30", waits=waits)


def test_ranks_that_give_signs_within_their_limits_are_not_blamed() -> None:
    seen = {0: Seen(sign=sign(waits=True)), 1: Seen(sign=sign(seconds=59), silent_s=9)}
    assert blame(seen, LIMITS, 2) == ""


def test_a_silent_rank_is_named_with_its_machine_and_place() -> None:
    seen = {0: Seen(sign=sign(waits=True, seconds=100)), 1: Seen(sign=sign(), silent_s=11)}
    message = blame(seen, LIMITS, 2)
    assert message.startswith("rank 1 of 2 gave no sign of life for 10 s")
    assert "rank 1 on b in probe data at verify/data/load.py:30" in message
    assert "rank 0" not in message


def test_a_rank_that_never_gave_a_sign_is_named() -> None:
    assert blame({0: Seen(sign=sign()), 3: Seen(silent_s=11)}, LIMITS, 4).startswith("rank 3 of 4 gave no sign")


def test_those_who_wait_in_a_collective_are_not_blamed_for_the_one_that_hangs() -> None:
    seen = {rank: Seen(sign=sign(seconds=61, waits=rank != 2)) for rank in range(4)}
    message = blame(seen, LIMITS, 4)
    assert message.startswith("rank 2 of 4 hangs (60 s)")
    assert message.endswith("the others wait (--timeout allows more)")


@pytest.mark.parametrize("waits", [True, False])
def test_where_nobody_stands_out_every_place_is_said(waits: bool) -> None:
    seen = {rank: Seen(sign=sign(seconds=61, waits=waits)) for rank in range(2)}
    message = blame(seen, LIMITS, 2)
    assert message.startswith("no rank got further within 60 s")
    assert "rank 0 on b" in message
    assert "rank 1 on b" in message


def test_silence_adds_up_until_a_newer_sign_comes() -> None:
    first, second = sign(count=1), sign(count=2)
    seen = Seen().after(first, 1.0).after(first, 4.0).after(first, 5.0)
    assert seen.silent_s == 9.0
    assert seen.after(second, 5.0) == Seen(sign=second)
    assert Seen().after(None, 4.0).after(None, 4.0).silent_s == 8.0


def test_a_sign_comes_back_from_the_store_as_it_was() -> None:
    assert Sign.read(sign().as_text().encode()) == sign()
