"""The watch over the ranks of a run: threads on each, which name the rank that is lost and end the run.

A collective of NCCL does not return when a rank is missing, and torchrun ends the others without a word about why. So
each rank gives signs of life through the store of the group, beside its main thread, and rank 0 looks at all of them;
the others look at rank 0. Whoever finds a rank lost says so in the store, and every rank leaves with the same status.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from verify.preflight.signs import Limits, Seen, Sign, blame, signs_of
from verify.sharded.ranks import RankPlace

NOTHING_PROVEN = 3
"""Exit status of every rank of a run that was ended."""
_BETWEEN_SIGNS_S = 1.0
_SILENT_WHEN_TERMINATED_S = 3.0
"""After SIGTERM, which torchrun sends when a rank has died: whoever gives no sign for so long is that rank."""
_READ_S = 3.0
_OURS = ("verify", "packed_impl", "reference_impl")
_WAITING = ("torch.distributed", "torch.cuda")


class Watch:
    """Signs of this rank, and a look at those of others.

    Args:
        store: The store of the group; the watch has a connection of its own to it.
        place: Where this process stands.
        limits: For how long a rank may stay in a probe or give no sign.
        on_end: Called with the reason before this rank leaves; not where the run ends by itself.
    """

    def __init__(self, store: Store, place: RankPlace, limits: Limits, on_end: Callable[[str], None]) -> None:
        self._store, self._place, self._limits, self._on_end = store, place, limits, on_end
        self._stage, self._entered, self._host = "start", time.monotonic(), socket.gethostname()
        self._main = threading.main_thread().ident
        self._seen = {rank: Seen() for rank in range(place.world_size)}
        self._stopped, self._looks = threading.Event(), 0

    def enter(self, stage: str) -> None:
        """Say which probe this rank is in; its time begins anew."""
        self._stage, self._entered = stage, time.monotonic()

    def run(self, wakeup: int) -> None:
        """Look until :meth:`stop`, or until the run has to end.

        Args:
            wakeup: A descriptor that can be read from when the process was asked to end.
        """
        count, before, terminated_at, unreachable_s = 0, time.monotonic(), 0.0, 0.0
        while not self._stopped.is_set():
            if select.select([wakeup], [], [], _BETWEEN_SIGNS_S)[0]:
                os.read(wakeup, 64)
                terminated_at = terminated_at or time.monotonic()
            if self._stopped.is_set():
                return
            now, count = time.monotonic(), count + 1
            try:
                # No more than that counts: after a job was suspended as a whole, nobody was silent.
                reason = self._look(count, min(now - before, 2 * _BETWEEN_SIGNS_S), asked_to_end=bool(terminated_at))
                unreachable_s, self._looks = 0.0, count
            except (RuntimeError, ValueError) as error:  # what the store raises when its keeper is gone
                unreachable_s += now - before
                gone = unreachable_s > _SILENT_WHEN_TERMINATED_S
                reason = f"the store of the group, which rank 0 or torchrun keeps, is gone: {error}" if gone else ""
            before = now
            if not reason and terminated_at and now - terminated_at > 2 * _SILENT_WHEN_TERMINATED_S:
                reason = f"rank {self._place.rank} was asked to end (by a signal); every rank gave signs of life"
            if reason and not self._stopped.wait(0.1):
                self._leave(reason)

    def guard(self) -> None:
        """See to it that looking goes on: a store on a machine that is gone never answers, and has no timeout."""
        looks, silent_s, before = self._looks, 0.0, time.monotonic()
        while not self._stopped.wait(_BETWEEN_SIGNS_S):
            now = time.monotonic()
            silent_s = silent_s + min(now - before, 2 * _BETWEEN_SIGNS_S) if self._looks == looks else 0.0
            looks, before = self._looks, now
            if silent_s > self._limits.answer_s:
                self._leave(
                    f"rank 0 of {self._place.world_size}, or torchrun beside it, keeps the store of the group, which "
                    f"gave no answer for {self._limits.answer_s:g} s: stopped, or the machine is gone"
                )

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _look(self, count: int, seconds: float, *, asked_to_end: bool) -> str:
        place, store = self._place, self._store
        where, waits = main_thread_at(self._main)
        sign = Sign(
            count=count,
            host=self._host,
            stage=self._stage,
            seconds=time.monotonic() - self._entered,
            where=where,
            waits=waits,
        )
        store.set(_key(place.rank), sign.as_text())
        if store.check(["end"]):
            said: str = store.get("end").decode()
            store.add("read", 1)
            return said
        looked_at = range(place.world_size) if place.rank == 0 or asked_to_end else range(1)
        keys = [_key(rank) for rank in looked_at]
        contents = [store.get(key) if store.check([key]) else None for key in keys]
        for rank, found in zip(looked_at, signs_of(contents), strict=True):
            self._seen[rank] = self._seen[rank].after(found, seconds)
        limits = Limits(
            # Of one rank alone it cannot be told whether it hangs or waits.
            stage_s=self._limits.stage_s if place.rank == 0 else math.inf,
            answer_s=_SILENT_WHEN_TERMINATED_S if asked_to_end else self._limits.answer_s,
        )
        reason = blame({rank: self._seen[rank] for rank in looked_at}, limits, place.world_size)
        if reason:
            store.compare_set("end", "", reason)
        return reason

    def _leave(self, reason: str) -> None:
        """End this process: its main thread may be anywhere, in a kernel that never returns."""
        with suppress(Exception):
            self._on_end(reason)
        line = " ".join(reason.split())
        print(f"packparity: nothing was proven: {line}", file=sys.stderr, flush=True)  # noqa: T201
        if self._place.rank == 0:  # it may keep the store that the others read the reason from
            until = time.monotonic() + _READ_S
            with suppress(RuntimeError):
                while time.monotonic() < until and self._store.add("read", 0) < self._place.world_size - 1:
                    time.sleep(0.1)
        os._exit(NOTHING_PROVEN)


def main_thread_at(thread: int | None) -> tuple[str, bool]:
    """Where a thread is: the innermost line of this program, and whether it waits for other ranks or the device."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    if frame is None:
        return "its end", False
    waits = str(frame.f_globals.get("__name__", "")).startswith(_WAITING)
    innermost = frame
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
        frame = frame.f_back
    at = frame or innermost
    path = Path(at.f_code.co_filename)
    return f"{'/'.join(path.parts[-3:])}:{at.f_lineno}", waits


class EndSignal:
    """SIGTERM, which torchrun sends to all others when a rank has died: noticed, and survived from :meth:`arm` on.

    The main thread may be in a call that never returns, so that no handler of it would run; a descriptor is written to
    at once. To be entered by the main thread, around all that must still say what became of the run.
    """

    def __enter__(self) -> EndSignal:
        """Nothing is changed yet."""
        self.readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)
        self._handler_before = signal.getsignal(signal.SIGTERM)
        self._wakeup_before: int | None = None
        return self

    def arm(self) -> None:
        """From now on the signal ends nothing by itself."""
        self._wakeup_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)

    def wake(self) -> None:
        """Let whoever waits for the signal go on."""
        os.write(self._writable, b"\0")

    def __exit__(self, *error: object) -> None:
        """All is as it was."""
        if self._wakeup_before is not None:
            signal.signal(signal.SIGTERM, self._handler_before)
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.readable)
        os.close(self._writable)


@contextmanager
def watched(place: RankPlace, limits: Limits, end_signal: EndSignal, on_end: Callable[[str], None]) -> Iterator[Watch]:
    """Watch over the ranks of the default group while the context is open.

    Args:
        place: Where this process stands.
        limits: For how long a rank may stay in a probe or give no sign.
        end_signal: Is armed here, and stays so: a rank that raises has still to find out which rank was lost.
        on_end: Called with the reason before this rank leaves because of it.

    Yields:
        The watch, to be told which probe this rank is in.
    """
    # The store of the default group, for which torch has no public name; over a connection of its own.
    store = PrefixStore("watch", _get_default_store().clone())  # type: ignore[attr-defined]
    watch = Watch(store, place, limits, on_end)
    end_signal.arm()
    looking = threading.Thread(target=watch.run, args=(end_signal.readable,), name="watch", daemon=True)
    guarding = threading.Thread(target=watch.guard, name="watch-guard", daemon=True)
    for thread in (looking, guarding):
        thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        end_signal.wake()
        looking.join(_READ_S)  # no longer: it may wait for a store that is gone


def _key(rank: int) -> str:
    return f"rank {rank}"
