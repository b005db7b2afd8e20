"""From options of ``packparity calibrate`` to the record: batches in any number of processes, one journal."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

from reports.calibration import BatchRecord, CalibrationRecord
from reports.record_names import DtypeName
from verify.calibration.batch import batch_sizes, draw_batch
from verify.calibration.journal import Journal, JournalSettings
from verify.calibration.kinds import DRAWN_KINDS, DrawnKind
from verify.calibration.measurement import measure_batch
from verify.calibration.shapes import hypothesis_version
from verify.calibration.summary import RunFacts, summarise
from verify.environment import read_environment
from verify.gate import Progress
from verify.models.dtypes import DTYPES
from verify.parent_process import end_with_the_parent
from verify.tolerance import Policy, load_policy

_DETERMINING = ("packparity", "torch", "transformers", "peft", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """Options of the command line, as given."""

    out: Path
    cases: int = 10_000
    seed: int = 0
    dtypes: tuple[str, ...] = ()
    jobs: int = 1
    resume: bool = False
    policy: Path | None = None
    kind: str = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCalibration:
    """Options that were found good, and the journal that was begun or found.

    Args:
        options: The options.
        dtypes: Names of dtypes.
        kind: Kind of all cases.
        policy: The tolerance policy.
        sizes: Cases of every batch.
        journal: The journal.
        num_done: How many batches it holds already.
    """

    options: CalibrationOptions
    dtypes: tuple[str, ...]
    kind: DrawnKind
    policy: Policy
    sizes: tuple[int, ...]
    journal: Journal
    num_done: int


def prepare_calibration(options: CalibrationOptions) -> PreparedCalibration:
    """Check the options, and begin the journal or find where it stopped.

    Args:
        options: The options.

    Returns:
        What to run.

    Raises:
        ValueError: An option is wrong, hypothesis is missing, or the journal is of another run.
    """
    for dtype in options.dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}: give {', '.join(DTYPES)}")
    dtypes = tuple(dict.fromkeys(options.dtypes)) or tuple(DTYPES)
    if options.kind not in DRAWN_KINDS:
        raise ValueError(f"unknown kind {options.kind!r}: give {', '.join(DRAWN_KINDS)}")
    kind = options.kind
    hypothesis = hypothesis_version()
    policy = load_policy(options.policy)
    packages = read_environment("cpu").packages
    settings = JournalSettings(
        seed=options.seed,
        case_kind=kind,
        dtypes=cast(list[DtypeName], list(dtypes)),
        policy=policy.model_dump(),
        variations=list(draw_batch(options.seed, 0, dtypes, policy, kind).request.variations),
        versions={"hypothesis": hypothesis, **{name: packages[name] for name in _DETERMINING}},
    )
    journal = Journal(options.out, settings)
    if options.resume:
        num_done = journal.resume()
    else:
        journal.start()
        num_done = 0
    return PreparedCalibration(
        options=options,
        dtypes=dtypes,
        kind=kind,
        policy=policy,
        sizes=batch_sizes(options.seed, options.cases),
        journal=journal,
        num_done=num_done,
    )


def run_calibration(prepared: PreparedCalibration, progress: Progress, *, command: Sequence[str]) -> CalibrationRecord:
    """Measure the batches that are missing, and summarise all.

    Args:
        prepared: What to run.
        progress: Called with cases done, cases in all and what is being done.
        command: The command line, for the record.

    Returns:
        The record.

    Raises:
        WitnessError: The unpacked path cannot be run.
    """
    sizes, first = prepared.sizes, min(prepared.num_done, len(prepared.sizes))
    done, total = sum(sizes[:first]), sum(sizes)
    alarms = 0
    with _measured(prepared, range(first, len(sizes))) as batches:
        progress(done, total, f"batch {first} of {len(sizes)}")
        for batch in batches:
            prepared.journal.append(batch)
            done += batch.num_cases
            alarms += batch.results_by_verdict["honest"].get("FAIL", 0)
            progress(done, total, f"batch {batch.number + 1} of {len(sizes)}, {alarms} honest results over budget")
    facts = RunFacts(
        command=command,
        environment=read_environment("cpu"),
        hypothesis_version=hypothesis_version(),
        seed=prepared.options.seed,
        dtypes=prepared.dtypes,
        policy=prepared.policy,
        case_kind=prepared.kind,
        template=draw_batch(prepared.options.seed, 0, prepared.dtypes, prepared.policy, prepared.kind).request,
    )
    return summarise(prepared.journal.batches(len(sizes)), facts)


@contextmanager
def _measured(prepared: PreparedCalibration, numbers: Sequence[int]) -> Iterator[Iterator[BatchRecord]]:
    """The batches of these numbers, in their order."""
    measure = partial(_measure, prepared.options.seed, prepared.dtypes, prepared.policy, prepared.kind)
    if prepared.options.jobs == 1 or not numbers:
        yield map(measure, numbers)
        return
    # Not forked: torch's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(prepared.options.jobs, mp_context=context, initializer=end_with_the_parent) as pool:
        try:
            yield _in_order(pool, measure, numbers, ahead=4 * prepared.options.jobs)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _in_order(
    pool: ProcessPoolExecutor, measure: partial[BatchRecord], numbers: Sequence[int], *, ahead: int
) -> Iterator[BatchRecord]:
    """Results in the order of the numbers, with only a few batches handed out ahead."""
    rest = iter(numbers)
    waiting = [pool.submit(measure, number) for number in islice(rest, ahead)]
    while waiting:
        batch = waiting.pop(0).result()
        waiting += [pool.submit(measure, number) for number in islice(rest, 1)]
        yield batch


def _measure(seed: int, dtypes: tuple[str, ...], policy: Policy, kind: DrawnKind, number: int) -> BatchRecord:
    return measure_batch(seed, number, dtypes, policy, kind)
