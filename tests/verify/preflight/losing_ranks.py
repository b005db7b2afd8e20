"""Two ranks of which one is lost, in each of several ways; a program, so that torch is imported once for all of them.

``losing_ranks.py FOLDER`` writes ``SCENARIO.json``: exit status and last words of each rank, and what rank 0 noted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from verify.preflight.signs import Limits
from verify.preflight.watch import EndSignal, Watch, watched
from verify.sharded.ranks import RankPlace, process_group

LIMITS = Limits(stage_s=6, answer_s=3)
FOLDER = Path(sys.argv[1])


def stopped(place: RankPlace, watch: Watch) -> None:
    """Rank 1 is stopped as a whole, its watch included."""
    watch.enter("attention")
    time.sleep(1.5)
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def keeper_stopped(place: RankPlace, watch: Watch) -> None:
    """Rank 0, which keeps the store, is stopped."""
    watch.enter("attention")
    time.sleep(1.5)
    if place.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def hangs(place: RankPlace, watch: Watch) -> None:
    """Rank 1 never comes to the collective in which rank 0 waits."""
    watch.enter("data")
    if place.rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


def terminated(place: RankPlace, watch: Watch) -> None:
    """Rank 1 is killed, and its launcher, here rank 0 itself, sends SIGTERM to the others."""
    watch.enter("parity")
    dist.all_reduce(torch.ones(1))
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)
    dist.all_reduce(torch.ones(1))


def none_lost(place: RankPlace, watch: Watch) -> None:
    """Both come to their end."""
    watch.enter("parity")
    for _ in range(3):
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))


SCENARIOS: dict[str, Callable[[RankPlace, Watch], None]] = {
    each.__name__: each for each in (stopped, keeper_stopped, hangs, terminated, none_lost)
}


def run_rank(scenario: str, rank: int) -> None:
    place = RankPlace(rank, 2, rank)
    noted = FOLDER / f"{scenario}.noted"
    with (
        EndSignal() as end_signal,
        process_group(place, 30),
        watched(place, LIMITS, end_signal, lambda reason: noted.write_text(f"rank {rank}: {reason}")) as watch,
    ):
        SCENARIOS[scenario](place, watch)


def fork_rank(scenario: str, rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    words = os.open(FOLDER / f"{scenario}.{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(words, 2)
    try:
        run_rank(scenario, rank)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(3)


def wait_for(children: list[int], seconds: float) -> list[int]:
    """Exit statuses; what is left nine seconds after the first has ended, or when time is up, is killed."""
    statuses: dict[int, int] = {}
    until = time.monotonic() + seconds
    while len(statuses) < len(children):
        for child in children:
            if child in statuses:
                continue
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                statuses[child] = os.waitstatus_to_exitcode(status)
                until = min(until, time.monotonic() + 9)
        time.sleep(0.05)
    return [statuses[child] for child in children]


def main() -> None:
    for scenario in SCENARIOS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = [fork_rank(scenario, rank, port) for rank in (0, 1)]
        statuses = wait_for(children, seconds=30)
        noted = FOLDER / f"{scenario}.noted"
        (FOLDER / f"{scenario}.json").write_text(
            json.dumps({
                "statuses": statuses,
                "words": [(FOLDER / f"{scenario}.{rank}").read_text() for rank in (0, 1)],
                "noted": noted.read_text() if noted.exists() else "",
            })
        )  # fmt: skip


if __name__ == "__main__":
    main()
