"""Pieces of work, one after the other in this process or shared among processes that are forked from it.

A forked process holds everything that this one has imported and prepared, so that only the number of a piece travels to
it and only the result back. Fork before torch has computed anything: neither the threads of its backward passes nor
those of its kernels live on in a forked process.

Results come back in the order of the pieces, whichever process did which: a run is the same with any number of them.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from verify.parent_process import end_with_the_parent
from verify.taking_turns import Traits, Waiting

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")

Begin = Callable[[str], None]
"""Called with what is being done, at each step of a piece of work."""

_INTERRUPT = {signal.SIGINT}


class WorkerError(Exception):
    """A worker process ended before its work, or failed in a way that it could not hand over."""


def work_through(
    pieces: Sequence[_Piece],
    work: Callable[[_Piece, Begin], _Result],
    begin: Begin,
    *,
    num_processes: int,
    traits: Callable[[_Piece], Traits] = lambda piece: Traits(),
    meanwhile: Callable[[], object] = lambda: None,
) -> list[_Result]:
    """Do every piece of work.

    Args:
        pieces: The pieces, in the order of the results, in which a single process takes them up.
        work: Does one; what it keeps from piece to piece is kept in each process apart. Its results must be picklable.
        begin: Called at each step, always in this process.
        num_processes: 1 for this process, else as many forked ones, of which each takes another piece when it is free.
        traits: Which one that is; the next in order, unless given.
        meanwhile: Done in this process as soon as the others work. It is to be over before they have done a piece: one
            that has waits until it is told the next.

    Returns:
        The results in the order of the pieces.

    Raises:
        WorkerError: A process ended early.
        Exception: What ``work`` raised; all processes have ended then.
    """
    if num_processes == 1:
        return [work(piece, begin) for piece in pieces]
    with _forked(pieces, work, num_processes) as workers:
        return _collected([traits(piece) for piece in pieces], workers, begin, meanwhile)


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    doing: str = "starting"
    kind: Hashable = None
    """Of the piece that it is at."""


def _collected(
    traits: Sequence[Traits], workers: Sequence[_Worker], begin: Begin, meanwhile: Callable[[], object]
) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = Waiting(traits)

    def hand_out(worker: _Worker) -> bool:
        """Give another piece to a worker, or None where there is none left; whether there was one."""
        number = waiting.take(worker.kind, {other.kind for other in workers if other is not worker})
        if number is not None:
            worker.kind = traits[number].kind
        try:
            worker.connection.send(number)
        except OSError as error:
            raise WorkerError(_how_it_ended(worker)) from error
        return number is not None

    busy = {worker.connection: worker for worker in workers if hand_out(worker)}
    meanwhile()
    while busy:
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]
            kind, content = _received(worker)
            if kind == "begins":
                worker.doing = content
                begin(content)
            elif kind == "raised":
                raise content
            else:
                number, results[number] = content
                if not hand_out(worker):
                    del busy[worker.connection]
    return [results[number] for number in range(len(traits))]


def _received(worker: _Worker) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = pickle.loads(worker.connection.recv_bytes())
    except (EOFError, OSError) as error:
        raise WorkerError(_how_it_ended(worker)) from error
    return message


def _how_it_ended(worker: _Worker) -> str:
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"a worker process {how}{hint} at {worker.doing}; --jobs 1 does without workers"


@contextmanager
def _forked(
    pieces: Sequence[_Piece], work: Callable[[_Piece, Begin], _Result], num_processes: int
) -> Iterator[list[_Worker]]:
    """Workers that wait for the numbers of pieces; none of them is left when the context closes, however it does."""
    context = multiprocessing.get_context("fork")
    workers: list[_Worker] = []
    try:
        with interrupts_wait():
            for _ in range(num_processes):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, pieces, work), daemon=True)
                with warnings.catch_warnings():
                    # Of a process with threads: those of torch do not run yet, and OpenBLAS knows about forks.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                workers.append(_Worker(process, ours))
                theirs.close()  # so that the end of the process is the end of the connection
        yield workers
    except BaseException:
        for worker in workers:
            worker.process.kill()
        raise
    finally:
        for worker in workers:
            worker.process.join()
            worker.connection.close()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Interrupts that arrive while the context is open wait until it closes; processes begun in it never see one.

    Such a process leaves interrupts to its parent, which ends it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, pieces: Sequence[_Piece], work: Callable[[_Piece, Begin], _Result]) -> None:
    """What a worker does: the pieces whose numbers it is given, until it is given none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal interrupts all processes; the parent ends its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    end_with_the_parent()

    def tell(kind: str, content: object) -> None:
        # By value: what multiprocessing would send of a tensor is a handle of shared memory.
        message = pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL)
        try:
            connection.send_bytes(message)
        except OSError:
            os._exit(1)  # there is nobody left to tell

    while (number := connection.recv()) is not None:
        try:
            tell("done", (number, work(pieces[number], lambda text: tell("begins", text))))
        except BaseException as error:
            tell("raised", _portable(error))
            return


def _portable(error: BaseException) -> Exception:
    """The error, with its traceback as a note; as a WorkerError where it cannot be handed over."""
    note = f"In a worker process:\n{''.join(traceback.format_exception(error))}"
    if isinstance(error, Exception):
        error.add_note(note)
        try:
            again = pickle.loads(pickle.dumps(error))
            if type(again) is type(error) and str(again) == str(error):
                return error
        except Exception:  # whatever its class does on pickling, or where it is read
            pass
    from verify.subject import said_by  # not above: it loads torch, and work that needs none is shared here, too

    substitute = WorkerError(said_by(error))
    substitute.add_note(note)
    return substitute
