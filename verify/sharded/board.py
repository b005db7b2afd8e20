"""Who is to blame when a rank is lost.

A rank that fails says so in the store of the group before it leaves; one that was ended or hangs does not. So the
others, whose collectives break off or time out, can tell the two apart, and all ranks end with the same message.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ANSWER_S = 10.0
"""How long a rank whose collective broke waits for the others to say what became of them."""
_BETWEEN_LOOKS_S = 0.02


class RankLostError(Exception):
    """Another rank failed, was ended or hangs."""


class RankInputError(ValueError):
    """Another rank refused its input."""


class Board:
    """What ranks tell each other when their group has broken: each that fails says so, in the order of failing.

    Args:
        store: The store of the group.
        rank: The number of this rank.
        world_size: Number of ranks.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        self._dist, self._rank, self._world_size = dist, rank, world_size
        self._store = PrefixStore("failed", store)

    def raise_for_all(self, error: Exception) -> None:
        """Raise what the first rank to fail raised, or name the ranks that do not answer.

        Returns only where all ranks raised the same: then the error is to be raised as it is.

        Args:
            error: What this rank raised.

        Raises:
            RankInputError: A ValueError of the first rank to fail; all ranks raise it, that rank included.
            RankLostError: Another error of the first rank to fail, or ranks that do not answer.
        """
        rank, world_size = self._rank, self._world_size
        if world_size == 1:
            self._leave()
            return
        try:
            kind = "input" if isinstance(error, ValueError) else "error"
            self._store.set(f"rank {rank}", f"{kind} {self._store.add('count', 1)} {one_line(error)}")
            self._leave()
            said = self._wait_for_answers()
        except (self._dist.DistError, RuntimeError) as gone:
            raise RankLostError(
                f"rank 0 of {world_size}, which keeps the store of the group, is gone; rank {rank} noticed: "
                f"{one_line(error)}"
            ) from gone
        silent = [str(other) for other in range(world_size) if other not in said]
        if silent:
            ranks = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(silent)}"
            raise RankLostError(
                f"{ranks} of {world_size} ended or {'hangs' if len(silent) == 1 else 'hang'}, and gave no answer; "
                f"rank {rank} noticed: {one_line(error)}"
            ) from error
        first = min(said, key=lambda other: said[other].order)
        if len({answer.text for answer in said.values()}) == 1:
            return
        message = f"rank {first} of {world_size}: {said[first].text}"
        raise (RankInputError if said[first].kind == "input" else RankLostError)(message) from error

    def _leave(self) -> None:
        """Close this rank's connections: those who wait for it notice at once instead of after the timeout."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _wait_for_answers(self) -> dict[int, _Answer]:
        said: dict[int, _Answer] = {}
        until = time.monotonic() + ANSWER_S
        while len(said) < self._world_size and time.monotonic() < until:
            for other in range(self._world_size):
                if other not in said and self._store.check([f"rank {other}"]):
                    kind, order, text = self._store.get(f"rank {other}").decode().split(" ", 2)
                    said[other] = _Answer(kind, int(order), text)
            time.sleep(_BETWEEN_LOOKS_S)
        # Whoever keeps the store leaves last: the others read what it holds.
        self._store.add("read", 1)
        while self._rank == 0 and time.monotonic() < until and self._store.add("read", 0) < len(said):
            time.sleep(_BETWEEN_LOOKS_S)
        return said


@dataclass(frozen=True, slots=True)
class _Answer:
    kind: str
    order: int
    text: str


def one_line(error: BaseException) -> str:
    """What was raised, in one line; of bad input only what is wrong with it."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
