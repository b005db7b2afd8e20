"""Whether collectives give what they must, and how fast they are: on the device and with the backend of training.

Values are small whole numbers, so that every sum is exact in float32 in any order, and each element says by its value
where it came from: a buffer that is shifted, stale or summed twice is another number.

Bandwidths are those of nccl-tests. With S bytes of the whole result and n ranks, bus bandwidth is S / time times
2 (n - 1) / n for all_reduce, (n - 1) / n for all_gather and reduce_scatter, and 1 for broadcast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from reports.words import number, size
from verify.preflight.finding import Finding, go, measured, no_go
from verify.preflight.machine import synchronise

PROBE = "collectives"
_ELEMENTS = 1024
_MODULUS = 251
"""Values stay below it, so that sums over 65,000 ranks are exact in float32."""
_REPEATS = 5
_HINT = "run nccl-tests on these machines; NCCL_DEBUG=INFO shows which network and algorithm are used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective: how it is called, and what it must give.

    Args:
        name: Its name in torch.distributed.
        call: Takes what a rank gives, whose length the number of ranks divides; returns what it gets.
        expected: Takes what every rank gives and a rank; returns what that rank must get.
        bus_factor: Bytes on the bus over bytes of the whole result, by the number of ranks.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    expected: Callable[[Sequence[Tensor], int], Tensor]
    bus_factor: Callable[[int], float]


def given_by(rank: int, num_elements: int, device: str) -> Tensor:
    """What a rank gives: whole numbers that differ between ranks and places; float32."""
    places = torch.arange(num_elements, device=device)
    return ((places * 7 + rank * 31 + 1) % _MODULUS).to(torch.float32)


# Their names until torch 2.13, which has others and warns of these.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _all_reduce(given: Tensor) -> Tensor:
    dist.all_reduce(given)
    return given


def _all_gather(given: Tensor) -> Tensor:
    share = given.chunk(dist.get_world_size())[0].contiguous()
    result = torch.empty_like(given)
    _gather(result, share)
    return result


def _reduce_scatter(given: Tensor) -> Tensor:
    result = torch.empty_like(given.chunk(dist.get_world_size())[0])
    _scatter(result, given)
    return result


def _broadcast(given: Tensor) -> Tensor:
    dist.broadcast(given, src=dist.get_world_size() - 1)
    return given


COLLECTIVES = (
    Collective(
        name="all_reduce",
        call=_all_reduce,
        expected=lambda given, rank: torch.stack(list(given)).sum(0),
        bus_factor=lambda n: 2 * (n - 1) / n,
    ),
    Collective(
        name="all_gather",
        call=_all_gather,
        expected=lambda given, rank: torch.cat([each.chunk(len(given))[0] for each in given]),
        bus_factor=lambda n: (n - 1) / n,
    ),
    Collective(
        name="reduce_scatter",
        call=_reduce_scatter,
        expected=lambda given, rank: torch.stack(list(given)).sum(0).chunk(len(given))[rank],
        bus_factor=lambda n: (n - 1) / n,
    ),
    Collective(
        name="broadcast",
        call=_broadcast,
        expected=lambda given, rank: given[-1],
        bus_factor=lambda n: 1.0,
    ),
)


def check_results(rank: int, world_size: int, device: str, collectives: Sequence[Collective] = COLLECTIVES) -> Finding:
    """Call each collective once and hold what this rank gets against what it must get, bit for bit.

    Args:
        rank: This rank.
        world_size: Number of ranks.
        device: The torch device.
        collectives: What to call, the same on all ranks.

    Returns:
        The finding of this rank.
    """
    num_elements = _ELEMENTS * world_size
    given = [given_by(each, num_elements, device) for each in range(world_size)]
    wrong = []
    for collective in collectives:
        actual = collective.call(given[rank].clone())
        expected = collective.expected(given, rank)
        if actual.shape != expected.shape or not torch.equal(actual, expected):
            wrong.append(f"{collective.name} {_difference(actual, expected)}")
    names = ", ".join(collective.name for collective in collectives)
    if wrong:
        return no_go(PROBE, f"other values than known: {'; '.join(wrong)}", _HINT, part="results")
    return go(PROBE, f"{names} give the known results on {world_size} ranks ({device})", part="results")


def _difference(actual: Tensor, expected: Tensor) -> str:
    if actual.shape != expected.shape:
        return f"gave {tuple(actual.shape)} values instead of {tuple(expected.shape)}"
    where = int((actual != expected).nonzero()[0])
    count = int((actual != expected).sum())
    return (
        f"gave {number(float(actual[where]))} instead of {number(float(expected[where]))} at element {where} "
        f"({count} of {expected.numel()} differ)"
    )


def measure_times(
    device: str, sizes: Sequence[int], collectives: Sequence[Collective] = COLLECTIVES
) -> dict[str, dict[int, float]]:
    """Median time of each collective on this rank, after one call that warms up.

    Args:
        device: The torch device.
        sizes: Bytes of the whole result; the same on all ranks.
        collectives: What to call.

    Returns:
        Seconds by name and size.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    times: dict[str, dict[int, float]] = {collective.name: {} for collective in collectives}
    for num_bytes in sizes:
        num_elements = -(-num_bytes // (4 * world_size)) * world_size
        given = given_by(rank, num_elements, device)
        for collective in collectives:
            durations = [_timed(collective, given, device) for _ in range(1 + _REPEATS)]
            times[collective.name][num_bytes] = median(durations[1:])
    return times


def _timed(collective: Collective, given: Tensor, device: str) -> float:
    ours = given.clone()
    synchronise(device)
    dist.barrier()
    started = time.perf_counter()
    collective.call(ours)
    synchronise(device)
    return time.perf_counter() - started


def gather_seconds(by_rank: Sequence[Mapping[str, Mapping[int, float]]]) -> float:
    """Seconds in which the slowest rank gets a byte of others in an all_gather of the largest size."""
    num_bytes, world_size = max(by_rank[0]["all_gather"]), len(by_rank)
    seconds = max(times["all_gather"][num_bytes] for times in by_rank)
    return seconds / (num_bytes * (world_size - 1) / world_size)


def bandwidth(
    by_rank: Sequence[Mapping[str, Mapping[int, float]]], *, collectives: Sequence[Collective] = COLLECTIVES
) -> list[Finding]:
    """Bus bandwidth of each collective at each size, by the slowest rank.

    Args:
        by_rank: What :func:`measure_times` gave on each rank.
        collectives: What was called.

    Returns:
        One finding for each collective; a time that is not positive is a clock that cannot be trusted.
    """
    findings = []
    for collective in collectives:
        slowest = {
            num_bytes: max(times[collective.name][num_bytes] for times in by_rank)
            for num_bytes in by_rank[0][collective.name]
        }
        if min(slowest.values()) <= 0:
            reason = "took no time: the clock of a rank stands still or steps back"
            findings.append(no_go(PROBE, reason, "look at the clock of these machines", part=collective.name))
            continue
        factor = collective.bus_factor(len(by_rank))
        rates = {num_bytes: factor * num_bytes / seconds for num_bytes, seconds in slowest.items()}
        said = ", ".join(f"{number(rate / 1e9)} GB/s at {size(num_bytes)}" for num_bytes, rate in rates.items())
        measures = {f"bytes_per_s_at_{num_bytes}_bytes": rate for num_bytes, rate in rates.items()}
        measures |= {f"seconds_at_{num_bytes}_bytes": seconds for num_bytes, seconds in slowest.items()}
        findings.append(
            measured(PROBE, f"bus bandwidth {said} (slowest rank)", part=collective.name, measures=measures)
        )
    return findings
