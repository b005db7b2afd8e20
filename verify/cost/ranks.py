"""What a measurement asks of the ranks that it runs on: to start together, and to hand over what each has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

_Value = TypeVar("_Value")


class Ranks(Protocol):
    """The ranks of a run, from the place of one of them."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def num_ranks(self) -> int: ...  # noqa: D102

    def wait_for_all(self) -> None:
        """Go on when every rank has come here."""
        ...

    def gathered(self, value: _Value) -> list[_Value]:
        """The values of all ranks, in their order; every rank gets them."""
        ...


@dataclass(frozen=True, slots=True)
class OneRank:
    """A run of one process."""

    rank: int = 0
    num_ranks: int = 1

    def wait_for_all(self) -> None:
        """There is nobody to wait for."""

    def gathered(self, value: _Value) -> list[_Value]:
        """The value alone."""
        return [value]


@dataclass(frozen=True, slots=True)
class DistributedRanks:
    """The ranks of torch's default process group.

    Args:
        rank: This one's number.
        num_ranks: How many there are.
    """

    rank: int
    num_ranks: int

    def wait_for_all(self) -> None:
        """A barrier."""
        import torch.distributed as dist

        dist.barrier()

    def gathered(self, value: _Value) -> list[_Value]:
        """All values, by ``all_gather_object``."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value)
        return values
