"""Where a rank is: the collective that it waits in, and the line of users' code, or else of ours, that called it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

_COLLECTIVES = "torch.distributed.distributed_c10d"
"""Where collectives are; what torch wraps around them is elsewhere."""
_DISTRIBUTED = "torch.distributed"
_OURS = ("verify", "packed_impl", "reference_impl", "reports")


@dataclass(frozen=True, slots=True)
class Spot:
    """One call on the way to where a thread is.

    Args:
        module: Name of the module.
        file: Path of its file.
        line: Line in it.
        function: Name of the function.
    """

    module: str
    file: str
    line: int
    function: str

    @property
    def is_ours(self) -> bool:
        """Whether it is in this program."""
        return self.module.partition(".")[0] in _OURS

    @property
    def is_of_users(self) -> bool:
        """Whether it is neither in this program nor in what was installed with Python."""
        top = self.module.partition(".")[0]
        installed = top in sys.stdlib_module_names or top.startswith(("__", "torch")) or "site-packages" in self.file
        return not installed and not self.is_ours and not self.file.startswith("<")


def of_thread(thread: int) -> str:
    """Where a thread is; "" where it has ended."""
    frame: FrameType | None = sys._current_frames().get(thread)
    spots: list[Spot] = []
    while frame is not None:
        spots.append(_spot(frame, frame.f_lineno))
        frame = frame.f_back
    return in_words(spots[::-1])


def of_error(error: BaseException) -> str:
    """Where an error, or what caused it, was raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    traceback: TracebackType | None = error.__traceback__
    spots: list[Spot] = []
    while traceback is not None:
        spots.append(_spot(traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return in_words(spots)


def _spot(frame: FrameType, line: int) -> Spot:
    return Spot(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, line, frame.f_code.co_name)


def in_words(spots: Sequence[Spot]) -> str:
    """Where a thread is.

    Args:
        spots: The calls that led there, the outermost first.

    Returns:
        E.g. "in all_reduce at my_trainer.py:12 (loss)", or "at my_trainer.py:12 (loss)" where it is in no collective;
        "" for no call.
    """
    if not spots:
        return ""
    distributed = [spot for spot in spots if spot.module.startswith(_DISTRIBUTED)]
    called = next(
        (spot for spot in distributed if spot.module == _COLLECTIVES), distributed[-1] if distributed else None
    )
    asked = next((spot for spot in reversed(spots) if spot.is_of_users), None)
    asked = asked or next((spot for spot in reversed(spots) if spot.is_ours), spots[-1])
    at = f"at {Path(asked.file).name}:{asked.line} ({asked.function})"
    return at if called is None else f"in {called.function} {at}"
