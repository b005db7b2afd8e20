"""Who is to blame when a rank is lost.

A rank that fails says so in the store of the group before it leaves. The connections of the others break off, or their
collectives time out; they cannot be told to stop waiting. So each looks for what others have said, and at their beats:
every rank counts up in the store while its process lives, and says where it is once another has failed. One without a
beat has ended; one that beats and says nothing hangs in something of its own. Where all have lost each other, it shows
from where they were who called a collective that others did not. Rank 0 says what there is to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.sharded import whereabouts
from verify.sharded.patience import within

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ANSWER_S = 10.0
"""How long a rank whose collective broke waits for the others to say what became of them."""
ALIKE_S = 1.0
"""How long a rank that failed by itself waits to see whether all others failed alike."""
BEAT_S = 0.3
DEAD_S = 3.0
"""Without a beat for so long a process has ended, or was stopped."""
_BETWEEN_LOOKS_S = 0.05
_MOST_PLACES = 4
"""Ranks of which a message says where they were."""
_BROKEN = ("gloo", "nccl", "connection closed", "connection reset", "timed out waiting")
"""What is in the message of a collective that broke off."""
_REFUSED = "cannot use reduceop"
"""In the message of a reduction that the backend does not have: no rank was lost."""


class RankLostError(Exception):
    """A rank failed, has ended or hangs."""


class RankInputError(ValueError):
    """A rank refused its input."""


class SaidByRank0Error(Exception):
    """What went wrong is said by rank 0, with the same exit status: this rank has nothing to add.

    Args:
        message: What rank 0 says.
        status: Exit status of all ranks.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a rank said when it failed: its place in the order of failing, what kind of failure, and the message."""

    order: int
    kind: str
    text: str

    @property
    def is_cause(self) -> bool:
        return self.kind != "broken"


class Board:
    """What ranks tell each other.

    Args:
        store: The store of the group.
        rank: The number of this rank.
        world_size: Number of ranks.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        from torch._C._distributed_c10d import PrefixStore

        self._rank, self._world_size = rank, world_size
        self._store = PrefixStore("board", store)
        self._step = ""

    def enter(self, step: str) -> None:
        """Remember what this rank does, for the case that it is lost there."""
        self._step = step

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait until every rank has come this far.

        Args:
            timeout_s: How long rank 0 waits; the others give it time to say who is missing.

        Raises:
            RankLostError: Some did not come in time.
        """
        self._store.set(f"came {self._rank}", "")
        until = time.monotonic() + timeout_s + (ANSWER_S if self._rank else 0)
        missing = list(range(self._world_size))
        while missing := [rank for rank in missing if not self._store.check([f"came {rank}"])]:
            if self._store.check(["missing"]):
                raise RankLostError(self._store.get("missing").decode())
            if time.monotonic() > until:
                text = f"{_ranks(missing)} did not come within {timeout_s:g} s: ended, stopped, or never started"
                self._store.set("missing", text)
                raise RankLostError(text)
            time.sleep(_BETWEEN_LOOKS_S)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Show the others that this process lives, while the context is open."""
        stop = threading.Event()
        # Of its own: while one call waits on a connection, no other gets through.
        store = self._store.clone()  # type: ignore[attr-defined]
        watched = threading.get_ident()

        def beat() -> None:
            try:
                while not stop.wait(BEAT_S):
                    store.add(f"beat {self._rank}", 1)
                    if store.add("count", 0) and not store.check([f"answer {self._rank}"]):
                        store.set(f"place {self._rank}", self._place(whereabouts.of_thread(watched)))
            except RuntimeError:  # whoever kept the store has gone
                return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(DEAD_S)

    def raise_for_all(self, error: Exception) -> None:
        """Raise what ended the run, as seen from this rank.

        Returns only where this rank's own error is what is to be raised, as it is: all ranks raised the same, and this
        is rank 0; or there is no other rank.

        Args:
            error: What this rank raised.

        Raises:
            RankInputError: A ValueError of the first rank to fail.
            RankLostError: Another error of the first rank to fail, or ranks that have ended or hang.
            SaidByRank0Error: On other ranks than 0, where rank 0 has answered.
        """
        if self._world_size == 1:
            return
        try:
            own, answers, dead, places = within(2 * ANSWER_S, lambda: self._tell(error))
        except TimeoutError as silent:  # to a process that was stopped a connection stays open, and waits without end
            raise RankLostError(
                f"rank 0 of {self._world_size}, or torchrun beside it, keeps the store of the group, which gave no "
                f"answer for {2 * ANSWER_S:g} s: stopped, or its machine is gone; rank {self._rank} noticed: "
                f"{one_line(error)}"
            ) from silent
        except RuntimeError as gone:
            raise RankLostError(
                f"rank 0 of {self._world_size}, which keeps the store of the group, is gone; rank {self._rank} "
                f"noticed: {one_line(error)}"
            ) from gone
        message, kind = self._cause(answers, dead, own, places)
        if self._rank and 0 in answers:
            raise SaidByRank0Error(message, 2 if kind == "input" else 3) from error
        if message != own.text:
            raise (RankInputError if kind == "input" else RankLostError)(message) from error

    def _tell(self, error: Exception) -> tuple[_Answer, dict[int, _Answer], list[int], dict[int, str]]:
        """Say what this rank raised; and what others have, which have ended, and where each was."""
        own = _Answer(self._store.add("count", 1), _kind(error), one_line(error))
        self._store.set(f"place {self._rank}", self._place(whereabouts.of_error(error)))
        self._store.set(f"answer {self._rank}", f"{own.order} {own.kind} {own.text}")
        answers, dead = self._wait(own)
        places = self._places()
        if self._rank == 0:
            time.sleep(ALIKE_S / 2)  # whoever keeps the store leaves last: others read what it holds
        return own, answers, dead, places

    def _place(self, where: str) -> str:
        return f"{where}, in step {self._step}" if self._step and where else where

    def _places(self) -> dict[int, str]:
        """Where ranks were when one failed, as far as they have said."""
        keys = {rank: f"place {rank}" for rank in range(self._world_size)}
        return {rank: self._store.get(key).decode() for rank, key in keys.items() if self._store.check([key])}

    def _cause(
        self, answers: dict[int, _Answer], dead: list[int], own: _Answer, places: dict[int, str]
    ) -> tuple[str, str]:
        """What ended the run, and what kind of failure it was."""
        of = f"of {self._world_size}"
        causes = {rank: answer for rank, answer in answers.items() if answer.is_cause}
        if causes:
            first = min(causes, key=lambda rank: causes[rank].order)
            cause = causes[first]
            alike = len(causes) == self._world_size and len({answer.text for answer in causes.values()}) == 1
            return cause.text if alike else f"rank {first} {of}: {cause.text}", cause.kind
        were = "".join(f"; rank {rank} was {place}" for rank, place in list(places.items())[:_MOST_PLACES] if place)
        noticed = f"rank {self._rank} noticed: {own.text}"
        if dead:
            return f"{_ranks(dead)} {of} ended or was stopped without a word; {noticed}", "error"
        silent = [rank for rank in range(self._world_size) if rank not in answers]
        if silent:
            verb = "hangs" if len(silent) == 1 else "hang"
            return f"{_ranks(silent)} {of} {verb}, and gave no answer for {ANSWER_S:g} s{were}; {noticed}", "error"
        first = min(answers, key=lambda rank: answers[rank].order)
        apart = (
            " in different places (a collective that not all of them call?)" if len(set(places.values())) > 1 else ""
        )
        return (
            f"the ranks lost each other{apart}{were}; rank {first} noticed first: {answers[first].text}",
            "error",
        )

    def _wait(self, own: _Answer) -> tuple[dict[int, _Answer], list[int]]:
        """What ranks have answered, and which have ended, as soon as that says what ended the run."""
        answers: dict[int, _Answer] = {}
        started = time.monotonic()
        beats = dict.fromkeys(range(self._world_size), (-1, started))
        while True:
            now = time.monotonic()
            for rank in range(self._world_size):
                if rank not in answers and self._store.check([f"answer {rank}"]):
                    order, kind, text = self._store.get(f"answer {rank}").decode().split(" ", 2)
                    answers[rank] = _Answer(int(order), kind, text)
                beat = self._store.add(f"beat {rank}", 0)
                if beat != beats[rank][0]:
                    beats[rank] = beat, now
            dead = [rank for rank, (_, last) in beats.items() if now - last > DEAD_S and rank not in answers]
            waited = now - started
            if len(answers) == self._world_size or waited > ANSWER_S:
                return answers, dead
            if own.is_cause and waited > ALIKE_S:
                return answers, dead
            if not own.is_cause and (dead or any(answer.is_cause for answer in answers.values())):
                return answers, dead
            time.sleep(_BETWEEN_LOOKS_S)


def _kind(error: Exception) -> str:
    if isinstance(error, ValueError):
        return "input"
    return "broken" if is_broken_collective(error) else "error"


def is_broken_collective(error: BaseException) -> bool:
    """Whether an error, or what caused it, is of a collective that broke off or timed out.

    Told by the message: gloo raises RuntimeError for whatever happens.
    """
    chain: BaseException | None = error
    while chain is not None:
        text = str(chain).lower()
        if _REFUSED in text:
            return False
        if type(chain).__module__.startswith("torch.distributed") or any(word in text for word in _BROKEN):
            return True
        chain = chain.__cause__
    return False


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def one_line(error: BaseException) -> str:
    """What was raised, in one line; of bad input only what is wrong with it."""
    if isinstance(error, ValueError):
        return " ".join(str(error).split())
    from verify.subject import said_by  # not above: it loads torch, and whoever only starts ranks does without

    return said_by(error)
