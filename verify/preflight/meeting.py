"""Where the ranks meet after each probe: what one found, all know, so that all go on or stop together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from reports.preflight_record import PreflightFinding
from verify.preflight.finding import Finding, no_go
from verify.preflight.watch import Watch
from verify.sharded.ranks import RankPlace

T = TypeVar("T")
_HINT_FAILED = "the probe itself failed: --debug shows where; the machine or the installation of this rank differs"


class Meeting:
    """The findings of a run, the same on every rank.

    Args:
        place: Where this process stands.
        watch: Is told which probe this rank is in.
        progress: Called with the name of each probe.
        within: Called with what is done within a probe that takes long.
        say: Called with a line that the user should read before the end.
    """

    def __init__(
        self,
        place: RankPlace,
        watch: Watch,
        progress: Callable[[str], None],
        *,
        within: Callable[[str], None] = lambda what: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.place = place
        self.findings: list[PreflightFinding] = []
        self.within, self.say = within, say
        self._watch, self._progress = watch, progress

    def alone(self, stage: str, work: Callable[[], Iterable[Finding]]) -> list[Finding]:
        """A probe that needs no other rank; whatever it raises is a finding of this rank, and no other rank waits.

        Args:
            stage: Its name.
            work: The probe; it calls no collective.

        Returns:
            What this rank found.
        """
        self.enter(stage)
        try:
            found = list(work())
        except Exception as error:  # whatever files, drivers and compilers raise
            from verify.subject import said_by  # not above: it loads what takes seconds

            found = [no_go(stage, f"the probe failed: {said_by(error)}", _HINT_FAILED)]
        for of_rank in self.gathered([finding.at(self.place.rank) for finding in found]):
            self.findings += of_rank
        return found

    def enter(self, stage: str) -> None:
        """Begin a probe in which the ranks need each other; whatever it raises ends the run on all of them."""
        self._watch.enter(stage)
        self._progress(stage)

    def together(self, findings: Iterable[Finding]) -> None:
        """Take findings to which all ranks came alike."""
        self.findings += [finding.at(None) for finding in findings]

    def gathered(self, value: T) -> Sequence[T]:
        """What every rank has, in the order of the ranks."""
        values: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(values, value)
        return values

    def is_wrong(self, *probes: str) -> bool:
        """Whether one of these probes found something wrong, on any rank."""
        return any(finding.probe in probes and finding.outcome == "NO-GO" for finding in self.findings)

    def everywhere(self, probe: str, part: str) -> bool:
        """Whether a part of a probe was proven on all ranks."""
        outcomes = [f.outcome for f in self.findings if (f.probe, f.part) == (probe, part)]
        return bool(outcomes) and set(outcomes) == {"GO"}
