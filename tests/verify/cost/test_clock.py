"""Durations that no clock can have are refused, and the device is waited for on both sides of what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from verify.cost.clock import CLOCK, Clock, ClockError, Duration, timed


def clock_of(wall: list[int], cpu: list[int]) -> Clock:
    def ticking(ticks: list[int]) -> Callable[[], int]:
        values: Iterator[int] = iter(ticks)
        return lambda: next(values)

    return Clock(ticking(wall), ticking(cpu))


def test_the_device_is_idle_when_the_clock_starts_and_when_it_stops() -> None:
    events: list[str] = []

    def tick() -> int:
        events.append("clock")
        return len(events)

    timed(lambda: events.append("work"), lambda: events.append("wait"), Clock(tick, tick))
    assert events == ["wait", "clock", "clock", "work", "wait", "clock", "clock"]


def test_a_duration_is_the_difference() -> None:
    assert timed(lambda: None, lambda: None, clock_of([10, 17], [3, 8])) == Duration(7, 5)


@pytest.mark.parametrize(("wall", "cpu"), [([10, 9], [1, 2]), ([10, 10], [1, 2]), ([10, 11], [2, 1])])
def test_a_clock_that_steps_back_or_stands_still_is_refused(wall: list[int], cpu: list[int]) -> None:
    with pytest.raises(ClockError, match="stood still or stepped back"):
        timed(lambda: None, lambda: None, clock_of(wall, cpu))


def test_a_step_that_only_waits_for_its_device_may_use_no_processor_time() -> None:
    assert timed(lambda: None, lambda: None, clock_of([1, 5], [4, 4])).cpu_ns == 0


def test_our_clocks_do_not_follow_the_date() -> None:
    import time

    assert time.get_clock_info("perf_counter").monotonic
    assert timed(lambda: sum(range(1000)), lambda: None, CLOCK).wall_ns > 0  # type: ignore[arg-type, return-value]
