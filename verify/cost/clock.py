"""How long a step takes, by clocks that do not step back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


class ClockError(Exception):
    """A clock stood still or stepped back, so that no duration read from it can be believed."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A monotonic clock and one of processor time, both in whole nanoseconds.

    Args:
        wall_ns: Unaffected by the date's being set.
        cpu_ns: Processor time of all threads of this process: on a machine that others use too it says more than wall
            time.
    """

    wall_ns: Callable[[], int] = time.perf_counter_ns
    cpu_ns: Callable[[], int] = time.process_time_ns


CLOCK = Clock()


@dataclass(frozen=True, slots=True)
class Duration:
    """How long something took.

    Args:
        wall_ns: Nanoseconds, above 0.
        cpu_ns: Processor time, at least 0: a step that waits for a device uses hardly any.

    Raises:
        ClockError: A clock stepped back, or the monotonic one stood still.
    """

    wall_ns: int
    cpu_ns: int

    def __post_init__(self) -> None:
        if self.wall_ns <= 0 or self.cpu_ns < 0:
            raise ClockError(
                f"a step took {self.wall_ns} ns of wall time and {self.cpu_ns} ns of processor time: a clock stood "
                "still or stepped back, and nothing measured with it counts; measure on a machine whose clocks run"
            )


def timed(work: Callable[[], None], synchronise: Callable[[], None], clock: Clock) -> Duration:
    """How long some work takes, the device's part of it included.

    Args:
        work: What is measured.
        synchronise: Waits until the device has done all that it was given.
        clock: The clocks.

    Returns:
        The time from an idle device to an idle device.

    Raises:
        ClockError: As `Duration`.
    """
    synchronise()
    cpu, wall = clock.cpu_ns(), clock.wall_ns()
    work()
    synchronise()
    # In the order in which they were started, so that the longer one encloses the shorter.
    return Duration(wall_ns=clock.wall_ns() - wall, cpu_ns=clock.cpu_ns() - cpu)
