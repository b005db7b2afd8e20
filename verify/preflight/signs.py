"""What ranks show of themselves while they run, and which of them is to blame when one is lost: values only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from reports.preflight_record import ranks_in_words

_MOST_PLACES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A sign of life of one rank.

    Args:
        count: How many it gave before.
        host: Its machine.
        stage: The probe that it is in.
        seconds: How long it has been there, by its own clock; clocks of different machines are never compared.
        where: The line of this program that its main thread is in.
        waits: Whether the main thread waits in a collective, or for its device.
    """

    count: int
    host: str
    stage: str
    seconds: float
    where: str
    waits: bool

    def as_text(self) -> str:
        """For the store of the group."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(content: bytes) -> Sign:
        """The sign that a rank has put into the store."""
        return Sign(**json.loads(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The last sign of a rank, None before the first, and for how long there was no newer one."""

    sign: Sign | None = None
    silent_s: float = 0.0

    def after(self, sign: Sign | None, seconds: float) -> Seen:
        """What is seen that many seconds later."""
        if sign is not None and (self.sign is None or sign.count != self.sign.count):
            return Seen(sign=sign)
        return replace(self, silent_s=self.silent_s + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For how long a rank may stay in a probe, and for how long it may give no sign, in seconds."""

    stage_s: float
    answer_s: float


def blame(seen: Mapping[int, Seen], limits: Limits, world_size: int) -> str:
    """Which ranks are lost or hang, and where; "" where none is.

    A rank that gives no sign was ended or stopped, or its machine is gone. One that stays in a probe too long hangs;
    where others wait in a collective meanwhile, they wait for it and are not to blame.

    Args:
        seen: By rank; those that are looked at.
        limits: The limits.
        world_size: Number of ranks.

    Returns:
        A sentence that names them.
    """
    silent = {rank: each for rank, each in seen.items() if each.silent_s > limits.answer_s}
    if silent:
        return (
            f"{ranks_in_words(silent)} of {world_size} gave no sign of life for {limits.answer_s:g} s"
            f"{_places(silent)}: ended, stopped, or the machine is gone"
        )
    late = {rank: each for rank, each in seen.items() if each.sign is not None and each.sign.seconds > limits.stage_s}
    if not late:
        return ""
    busy = {rank: each for rank, each in seen.items() if each.sign is not None and not each.sign.waits}
    if busy and len(busy) < len(seen):
        hang = "hangs" if len(busy) == 1 else "hang"
        words = f"{ranks_in_words(busy)} of {world_size} {hang}"
        return f"{words} ({limits.stage_s:g} s){_places(busy)}; the others wait (--timeout allows more)"
    return f"no rank got further within {limits.stage_s:g} s{_places(late)} (--timeout allows more)"


def _places(seen: Mapping[int, Seen]) -> str:
    """Where ranks are, as far as it is known: " (rank 1 on spark-1 in probe data at verify/data/load.py:30)"."""
    known = [(rank, each.sign) for rank, each in sorted(seen.items()) if each.sign is not None]
    said = [f"rank {rank} on {sign.host} in probe {sign.stage} at {sign.where}" for rank, sign in known[:_MOST_PLACES]]
    return f" ({'; '.join(said)})" if said else ""


def signs_of(contents: Sequence[bytes | None]) -> list[Sign | None]:
    """Signs as read from the store, by rank; None where there is none yet."""
    return [None if content is None else Sign.read(content) for content in contents]
