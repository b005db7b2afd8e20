"""The ranks of a distributed run: where each stands, and the group that they form."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

from verify.sharded.board import ANSWER_S, Board, RankLostError, one_line
from verify.sharded.patience import within

if TYPE_CHECKING:  # torch takes seconds to load, and whoever only starts ranks does without
    from torch._C._distributed_c10d import Store

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_RANKS_HERE = "LOCAL_WORLD_SIZE"
STARTED_HERE = "PACKPARITY_LOCAL_RANKS"
"""In the environment of ranks that this program has started itself."""
_MESSAGE = "packparity: "
"""How a line begins in which this program says what went wrong."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends the run beside an interrupt: a scheduler, a terminal that closes."""
_LAST_WORDS_S = 2.0
_BETWEEN_LOOKS_S = 0.02
_EXAMPLE = "start it with torchrun, or let it start ranks of its own with --ranks 2"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one process of a distributed run stands.

    Args:
        rank: Its number, from 0.
        world_size: Number of ranks.
        local_rank: Its number on its machine.
        device: The torch device that it computes on: "cpu", or "cuda:LOCAL_RANK".

    Raises:
        ValueError: A number that is not below what it counts up to.
    """

    rank: int
    world_size: int
    local_rank: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"WORLD_SIZE is {self.world_size}: at least one rank is needed")
        for name, value in (("RANK", self.rank), ("LOCAL_RANK", self.local_rank)):
            if not 0 <= value < self.world_size:
                raise ValueError(f"{name} is {value}: expected 0 to {self.world_size - 1}, WORLD_SIZE - 1")


def place_from_environment(device: str = "cpu", environment: Mapping[str, str] | None = None) -> RankPlace | None:
    """The place that torchrun, or whoever started the ranks, put into the environment.

    Args:
        device: "cpu", or "cuda" for the device of the local rank.
        environment: The variables; those of this process if None.

    Returns:
        The place, or None where there is neither RANK nor WORLD_SIZE: this process is no rank.

    Raises:
        ValueError: Some of the variables are there and some are not, or one is not a number in its range.
    """
    variables = os.environ if environment is None else environment
    if "RANK" not in variables and "WORLD_SIZE" not in variables:
        return None
    missing = [name for name in _NEEDED if not variables.get(name)]
    if missing:
        there = [name for name in _NEEDED if name not in missing]
        raise ValueError(f"{', '.join(there)} in the environment without {', '.join(missing)}: {_EXAMPLE}")
    numbers = {name: _number(name, variables[name]) for name in _NEEDED if name != "MASTER_ADDR"}
    if not 0 < numbers["MASTER_PORT"] < 2**16:
        raise ValueError(f"MASTER_PORT is {numbers['MASTER_PORT']}: expected a port from 1 to 65535")
    local_rank = numbers["LOCAL_RANK"]
    own_device = f"cuda:{local_rank}" if device == "cuda" else device
    return RankPlace(numbers["RANK"], numbers["WORLD_SIZE"], local_rank, own_device)


def ranks_on_this_machine() -> int:
    """How many ranks there are here, as torchrun says or this program where it starts them; 1 where nobody says so."""
    value = os.environ.get(_RANKS_HERE, "")
    return max(1, int(value)) if value.isdecimal() else 1


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}: expected a number") from None


@contextmanager
def process_group(place: RankPlace, timeout_s: float) -> Iterator[Callable[[str], None]]:
    """The default process group, for as long as the context is open: gloo on the CPU, NCCL beside it on CUDA.

    What one rank raises inside ends all ranks: each learns within the timeout which rank was the first to fail, or
    which ones do not answer. Where all answer, rank 0 says it and the others say nothing.

    Args:
        place: Where this process stands.
        timeout_s: How long a collective waits for the slowest rank.

    Yields:
        A function that is told what this rank does next, for the message if it is lost there.

    Raises:
        ValueError: The port is in use; or RankInputError, where another rank raised a ValueError.
        RankLostError: The group was not formed in time, or another rank failed, was ended or hangs.
        SaidByRank0Error: On other ranks than 0: rank 0 raises what there is to say.
    """
    import torch.distributed as dist

    store = _store(place, timeout_s)
    board = Board(store, place.rank, place.world_size)
    with board.beating():
        try:
            if place.device.startswith("cuda"):
                import torch

                torch.cuda.set_device(place.device)
            _meet(board, timeout_s)
            _form(dist, place, store, timeout_s)
            yield board.enter
        except Exception as error:
            board.raise_for_all(error)
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _meet(board: Board, timeout_s: float) -> None:
    """Wait for all ranks; torch would say how many of them are missing, to rank 0 alone, and not which."""
    longest_s = timeout_s + ANSWER_S + _LAST_WORDS_S
    try:
        within(longest_s, lambda: board.wait_for_all(timeout_s))
    except TimeoutError as silent:
        raise RankLostError(f"the store of the group gave no answer for {longest_s:g} s") from silent


def _form(dist: Any, place: RankPlace, store: Store, timeout_s: float) -> None:
    backend = "cpu:gloo,cuda:nccl" if place.device.startswith("cuda") else "gloo"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def _store(place: RankPlace, timeout_s: float) -> Store:
    """The store that MASTER_ADDR and MASTER_PORT name; rank 0 keeps it, or torchrun does."""
    import torch.distributed as dist

    where = f"{os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}"
    timeout = timedelta(seconds=timeout_s)
    try:
        store: Store = within(timeout_s + _LAST_WORDS_S, lambda: _connected(dist, place, timeout))
    except TimeoutError as silent:
        raise RankLostError(
            f"rank {place.rank}: whoever listens at {where} gave no answer within {timeout_s:g} s: another program has "
            "the port (give another MASTER_PORT), or rank 0 was stopped"
        ) from silent
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise ValueError(
                f"rank {place.rank}: MASTER_PORT {os.environ['MASTER_PORT']} of {os.environ['MASTER_ADDR']} is in use: "
                "give another (torchrun --master-port), or torchrun --standalone, which finds one"
            ) from error
        keeper = "" if place.rank == 0 else ", which rank 0 keeps unless torchrun does; it never came, or was stopped"
        raise RankLostError(
            f"rank {place.rank} cannot reach the store at {where}{keeper}: {one_line(error)}"
        ) from error
    return store


def _connected(dist: Any, place: RankPlace, timeout: timedelta) -> Store:
    """As torch's "env://" does it, but nobody waits for the others yet: :func:`_meet` does, and knows them by name."""
    of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store: Store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        place.world_size,
        is_master=place.rank == 0 and not of_torchrun,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=not of_torchrun,
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )
    return store


def start_local_ranks(
    arguments: Sequence[str], num_ranks: int, timeout_s: float, *, program: Sequence[str] = ("-m", "verify")
) -> int:
    """Start ranks of this program on this machine, and wait until all have ended.

    Standard output is that of rank 0, and so is standard error but for its last word: messages of all ranks are held
    back until it is known whose message counts. A rank that fails, or that a signal ends, gives the others some time to
    say so and to write what they have; one that outlives it is ended.

    Args:
        arguments: Of the program, for every rank.
        num_ranks: How many; at least one.
        timeout_s: How long the ranks may take in all.
        program: What Python runs in each rank.

    Returns:
        The exit status that the ranks agree on; that of the first to fail if they do not.

    Raises:
        ValueError: No rank.
        RankLostError: A rank was ended by a signal, or did not end in time; all others are ended by then.
    """
    if num_ranks < 1:
        raise ValueError(f"{num_ranks} ranks: give at least one")
    with _started((*program, *arguments), num_ranks) as ranks:
        _watch(ranks, timeout_s)
    by_signal = [rank for rank in ranks if rank.status < 0 and not rank.stopped]
    if by_signal:
        first = by_signal[0]
        name = signal.Signals(-first.status).name
        hint = "; out of memory?" if -first.status == signal.SIGKILL else ""
        raise RankLostError(f"rank {first.number} of {num_ranks} was ended by {name} before the run was over{hint}")
    failed = sorted((rank for rank in ranks if rank.status and not rank.stopped), key=lambda rank: rank.ended_at)
    stopped = [f"rank {rank.number}" for rank in ranks if rank.stopped]
    if not failed and stopped:
        raise RankLostError(f"{', '.join(stopped)} of {num_ranks} did not end within {timeout_s:g} s and was ended")
    ended = [*failed, *(rank for rank in ranks if rank not in failed)]
    for line in next((rank.messages for rank in ended if rank.messages and not rank.stopped), ()):
        print(line, file=sys.stderr)  # noqa: T201
    return ended[0].status


class _LocalRank:
    """One process, its messages, and how it ended."""

    def __init__(self, number: int, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number, self.messages = number, list[str]()
        self.status, self.ended_at, self.stopped = 0, 0.0, False
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**environment, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdin=subprocess.PIPE,  # closes with this process: end_with_the_launcher
            stdout=None if number == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that whatever a rank starts ends with it
        )
        self._shows = number == 0 or "--debug" in arguments
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(_MESSAGE):
                self.messages.append(line.rstrip())
            elif self._shows:
                print(line, end="", file=sys.stderr, flush=True)  # noqa: T201

    def has_ended(self) -> bool:
        """Whether it has ended; how is noted the first time."""
        status = self.process.poll()
        if status is None:
            return False
        if not self.ended_at:
            self.status, self.ended_at = status, time.monotonic()
            self._reader.join(_LAST_WORDS_S)  # something that the rank left behind may hold the pipe open
        return True

    def interrupt(self) -> None:
        """Let it clean up after itself, where it still runs."""
        if not self.has_ended():
            self.stopped = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)

    def stop(self) -> None:
        """End it, and all that it has started."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.has_ended()
        assert self.process.stderr is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        if not self._reader.is_alive():
            self.process.stderr.close()


@contextmanager
def _started(arguments: Sequence[str], num_ranks: int) -> Iterator[list[_LocalRank]]:
    """The ranks, started; none is left when the context closes, whatever closed it."""
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_ranks)),
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
        **os.environ,
        "WORLD_SIZE": str(num_ranks),
        _RANKS_HERE: str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        STARTED_HERE: "1",
    }
    ranks: list[_LocalRank] = []
    # Under nohup a terminal that closes is not to end the run.
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heeded}
    try:
        for number in range(num_ranks):
            ranks.append(_LocalRank(number, arguments, environment))
        yield ranks
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for rank in ranks:
            rank.interrupt()
        for rank in ranks:
            rank.stop()


def _watch(ranks: Sequence[_LocalRank], timeout_s: float) -> None:
    """Wait until all have ended, or time is up: soon where one has failed or was ended by a signal."""
    until = time.monotonic() + timeout_s
    while sum(not rank.has_ended() for rank in ranks) and time.monotonic() < until:  # each is looked at
        if any(rank.status for rank in ranks):  # the others find that out, and write what they have
            first = min(rank.ended_at for rank in ranks if rank.status)
            until = min(until, first + ANSWER_S + _LAST_WORDS_S)
        time.sleep(_BETWEEN_LOOKS_S)


def _free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
