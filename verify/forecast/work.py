"""What operators have to do: FLOPs, and bytes that go through memory, operator by operator.

Two counts of FLOPs. *Counted* is torch's ``FlopCounterMode``: every matrix product, and attention as if each query
attended to each key of its kernel call. *Computed* leaves out of attention what the kernel skips, which a causal kernel
does above the diagonal, and FlexAttention in blocks that its block table does not list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Operation:
    """What one operator does.

    Args:
        flops: Computed FLOPs.
        num_bytes: Bytes that it reads and writes, each tensor once.
    """

    flops: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a part of a step.

    Args:
        products: FLOPs of matrix products outside of attention kernels.
        attention: FLOPs of attention kernels, computed.
        attention_counted: FLOPs of attention kernels, counted.
        operations: How often each kind of operator runs that touches memory.
    """

    products: int = 0
    attention: int = 0
    attention_counted: int = 0
    operations: Mapping[Operation, int] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """What ``FlopCounterMode`` counts."""
        return self.products + self.attention_counted

    @property
    def computed(self) -> int:
        """What the kernels compute."""
        return self.products + self.attention

    @property
    def num_bytes(self) -> int:
        """Bytes that operators read and write."""
        return sum(operation.num_bytes * number for operation, number in self.operations.items())


def total_work(parts: Iterable[tuple[Work, int]]) -> Work:
    """The work of several parts.

    Args:
        parts: Each part, and how often it runs.

    Returns:
        The sum.
    """
    products = attention = counted = 0
    operations: Counter[Operation] = Counter()
    for work, times in parts:
        products += work.products * times
        attention += work.attention * times
        counted += work.attention_counted * times
        for operation, number in work.operations.items():
            operations[operation] += number * times
    return Work(products, attention, counted, operations)
