"""A preflight from the first meeting of the ranks to its record, which is the same on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from reports.preflight_consistency import ALWAYS_REQUIRED
from reports.preflight_record import PreflightRank, PreflightRecord
from reports.preflight_store import PREFLIGHT_FILES
from reports.store import check_writable
from verify.environment import read_environment
from verify.preflight.look_around import Gathered, look_around
from verify.preflight.machine import memory_capped
from verify.preflight.meeting import Meeting
from verify.preflight.options import PreflightOptions
from verify.preflight.signs import Limits
from verify.preflight.watch import EndSignal, watched
from verify.sharded.ranks import RankPlace, process_group
from verify.tool_version import tool_version

_STAGES = 30
"""About as many probes as there are, for the bar."""
_MORE_THAN_THE_WATCH_S = 10.0
"""A collective waits longer than the watch does, which knows better who is to blame."""

Finish = Callable[[PreflightRecord], None]
Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Draft:
    """What is known of a run so far, to be made a record of whenever it ends.

    Args:
        options: The options.
        place: Where this process stands.
        command: The command line.
        started: ``time.perf_counter()`` when the program began.
    """

    options: PreflightOptions
    place: RankPlace
    command: Sequence[str]
    started: float
    meeting: Meeting | None = None
    ranks: tuple[PreflightRank, ...] = ()
    required: list[str] = field(default_factory=lambda: list(ALWAYS_REQUIRED))
    limits: list[str] = field(default_factory=list)

    def record(self, ended_early: str = "") -> PreflightRecord:
        """The record of what was found.

        Args:
            ended_early: Why the run ends before all probes have run.
        """
        assert self.meeting is not None
        return PreflightRecord(
            tool_version=tool_version(),
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            command=list(self.command),
            environment=read_environment(self.place.device),
            request=dict(self.options.as_values()),
            world_size=self.place.world_size,
            ranks=list(self.ranks),
            required=list(self.required),
            findings=list(self.meeting.findings),
            ended_early=ended_early,
            limits=list(self.limits),
            stage_limit_s=self.options.timeout_s,
            answer_limit_s=self.options.silence_s,
            total_s=time.perf_counter() - self.started,
        )


def run_preflight(draft: Draft, progress: Progress, finish: Finish, say: Callable[[str], None]) -> PreflightRecord:
    """Run all probes on this rank, together with the others.

    Args:
        draft: Options and place; filled with what is found.
        progress: Called with steps done, steps in all and what is being done.
        finish: Shows and writes a record; called on rank 0.
        say: Called on rank 0 with what will be done and how long it will take.

    Returns:
        The record.

    Raises:
        ValueError: The request is wrong on this or another rank, or the port is in use.
        RankLostError: A rank failed, was ended or hangs; what was found until then has been handed to ``finish``.
    """
    options, place = draft.options, draft.place
    limits = Limits(stage_s=options.timeout_s, answer_s=options.silence_s)
    finished = _Ending(finish if place.rank == 0 else lambda record: None)
    try:
        with (
            EndSignal() as end_signal,
            process_group(place, options.timeout_s + _MORE_THAN_THE_WATCH_S),
            watched(place, limits, end_signal, lambda reason: finished.early(draft, reason)) as watch,
        ):
            if place.rank == 0 and options.out is not None:
                check_writable(options.out, PREFLIGHT_FILES)
            bar = _Bar(progress)
            meeting = Meeting(
                place, watch, bar.begin, within=bar.within, say=say if place.rank == 0 else lambda line: None
            )
            draft.meeting = meeting
            gathered = look_around(options, meeting)
            draft.ranks = gathered.ranks
            if meeting.is_wrong("arguments", "versions"):
                draft.limits.append("everything after versions: ranks that differ cannot be judged together")
            else:
                _probe(draft, meeting, gathered)
            meeting.enter("report")
            meeting.gathered(None)
            record = draft.record()
            finished(record)  # inside: where rank 0 cannot write, all ranks end with the status that says so
            meeting.gathered(None)
    except ValueError:
        raise
    except Exception as error:  # a rank was lost, or a probe that needs all ranks failed
        finished.early(draft, " ".join(str(error).split()))
        raise
    return record


def _probe(draft: Draft, meeting: Meeting, gathered: Gathered) -> None:
    # Here and not above: transformers and peft take seconds to load, and ranks that differ should not wait for them.
    from verify.preflight import run
    from verify.preflight.full_depth import FULL_DEPTH
    from verify.preflight.parity import look_at_parity
    from verify.preflight.parity_setting import choose_setting
    from verify.preflight.plan import make_plan

    if meeting.place.device == "cpu":
        draft.limits.append("any GPU: everything was computed on the CPU")
    meeting.enter("options")
    plan = make_plan(draft.options)
    draft.required = plan.required
    with memory_capped(meeting.place.device, plan.profile.memory_fraction(gathered.machine.device.total_bytes or 1)):
        gather_s = run.look_at_devices(plan, meeting, gathered)
        groups = run.look_at_files(plan, meeting)
        run.look_at_memory(plan, meeting, gathered)
        if meeting.is_wrong("devices", "collectives", "checkpoint", "data", "memory headroom"):
            draft.limits.append("kernels and parity: nothing is loaded where what comes first is wrong")
            return
        backends = run.look_at_kernels(plan, meeting)
        setting = choose_setting(plan, meeting, gathered, backends, groups, gather_s=gather_s)
        draft.limits += setting.limits
        draft.required += [FULL_DEPTH] if setting.is_cut else []
        look_at_parity(setting, meeting)


class _Bar:
    """What is being done, and how many probes came before."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done, self._stage = progress, -1, ""

    def begin(self, stage: str) -> None:
        """A probe begins."""
        self._done, self._stage = min(self._done + 1, _STAGES), stage
        self.within("")

    def within(self, what: str) -> None:
        """Something within it."""
        self._progress(max(self._done, 0), _STAGES, f"{self._stage}: {what}" if what else self._stage)


class _Ending:
    """Hands the record over; of a run that ends early once more, whichever thread finds out first."""

    def __init__(self, finish: Finish) -> None:
        self._finish, self._ended_early = finish, False

    def __call__(self, record: PreflightRecord) -> None:
        self._finish(record)

    def early(self, draft: Draft, reason: str) -> None:
        """Of a run that ended before its end, also where a rank was lost after a GO; nothing where it had not begun."""
        if draft.meeting is not None and not self._ended_early:
            self._ended_early = True
            self._finish(draft.record(reason))
