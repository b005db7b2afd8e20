"""Collections are fewer inside, and as before outside."""

from __future__ import annotations

import gc

import pytest

from verify.garbage import seldom_collected


def _run(before: tuple[int, int, int]) -> None:
    with seldom_collected():
        assert gc.get_threshold() > before
        assert gc.isenabled()
        raise RuntimeError("boom")


def test_thresholds_are_put_back_whatever_happens() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError, match="boom"):
        _run(before)
    assert gc.get_threshold() == before
