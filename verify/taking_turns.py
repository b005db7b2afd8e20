"""Which piece of work a process takes next, where several share the pieces.

A process keeps what it has made ready for a kind of pieces, so it stays with that kind; and the longest pieces come
first, so that all processes end at about the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class Traits:
    """What decides when a piece is taken up.

    Args:
        stage: Pieces of a stage are taken up before those of any that begins later.
        kind: Pieces that need the same things made ready.
        size: About how long it takes, in any unit; pieces of a stage are taken up longest first.
    """

    stage: Hashable = ""
    kind: Hashable = ""
    size: float = 0.0


class Waiting:
    """The pieces that nobody has taken up yet.

    Args:
        traits: Those of every piece, in the order of the pieces.
    """

    def __init__(self, traits: Sequence[Traits]) -> None:
        stages = list(dict.fromkeys(each.stage for each in traits))
        self._traits = traits
        self._numbers = sorted(range(len(traits)), key=lambda n: (stages.index(traits[n].stage), -traits[n].size))

    def take(self, kind: Hashable, of_others: Collection[Hashable]) -> int | None:
        """The next piece for a process: of the kind that it is at, else of one that no other is at, else any.

        Args:
            kind: The kind that it is at; None if it begins.
            of_others: The kinds that the others are at.

        Returns:
            The number of the piece; None where none is left.
        """
        if not self._numbers:
            return None
        wishes: tuple[Callable[[Hashable], bool], ...] = (
            lambda found: found == kind,
            lambda found: found not in of_others,
            lambda found: True,
        )
        number = next(number for wish in wishes for number in self._of_first_stage() if wish(self._traits[number].kind))
        self._numbers.remove(number)
        return number

    def _of_first_stage(self) -> Iterator[int]:
        stage = self._traits[self._numbers[0]].stage
        return takewhile(lambda number: self._traits[number].stage == stage, self._numbers)
