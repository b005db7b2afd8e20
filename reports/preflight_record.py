"""The record of a preflight: what every probe found on which rank, and whether that is GO or NO-GO.

A finding is GO (proven here), NO-GO (found wrong here), ABSTAINS (could not be looked at, with the reason) or MEASURED
(a figure that nothing judges). The decision follows from the findings alone, so that a record cannot claim another
one: NO-GO where something is wrong or where something that is required was proven on no rank, or not on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from reports.record_setting import Environment
from reports.values import Count, Measured, RecordPart, Settings, Text

PREFLIGHT_VERSION: Literal[1] = 1

Outcome = Literal["GO", "NO-GO", "ABSTAINS", "MEASURED"]


class PreflightFinding(RecordPart):
    """What one probe found, on one rank or on all of them together."""

    probe: Text
    """E.g. "attention"."""
    part: Text = ""
    """What of it, e.g. "flex"; "" for all of it."""
    rank: Count | None = None
    """The rank that saw it; None where all ranks came to it together."""
    outcome: Outcome
    seen: Text
    hint: Text = ""
    """What to do about it."""
    measures: dict[Text, Measured] = Field(default_factory=dict)
    """Raw values by name; names carry units."""

    @property
    def name(self) -> str:
        """Probe and part."""
        return f"{self.probe} {self.part}".rstrip()

    @model_validator(mode="after")
    def _is_explained(self) -> Self:
        if not self.probe or not self.seen:
            raise ValueError(f"finding {self.name!r} does not say what was seen")
        if self.outcome == "NO-GO" and not self.hint:
            raise ValueError(f"{self.name}: NO-GO without a hint what to do")
        return self


class PreflightRank(RecordPart):
    """One process of the run, and where it ran."""

    rank: Count
    local_rank: Count
    host: Text
    device: Text
    driver: Text
    """Version of the driver of the device; "" for a CPU."""


class PreflightRecord(RecordPart):
    """A run of the preflight."""

    kind: Literal["preflight"] = "preflight"
    schema_version: Literal[1] = PREFLIGHT_VERSION
    tool_version: Text
    created_utc: Text
    command: list[Text]
    environment: Environment
    """Of rank 0; that it is that of all ranks is a finding."""
    request: Settings
    """The options, with their defaults filled in."""
    world_size: Annotated[int, Field(ge=1)]
    ranks: list[PreflightRank]
    """In the order of their numbers; empty where the run ended before they had met."""
    required: list[Text]
    """Probes, or probes with a part, without which there is no GO."""
    findings: list[PreflightFinding]
    ended_early: Text
    """Why the run was ended before all probes had run; "" where they had."""
    limits: list[Text]
    """What this run did not look at, in sentences."""
    stage_limit_s: Annotated[FiniteFloat, Field(gt=0)]
    """A probe that takes longer ends the run."""
    answer_limit_s: Annotated[FiniteFloat, Field(gt=0)]
    """A rank that gives no sign of life for longer ends the run."""
    total_s: Annotated[FiniteFloat, Field(ge=0)]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.required:
            raise ValueError("nothing is required: a GO would mean nothing")
        if not self.ranks and not self.ended_early:
            raise ValueError("no rank is listed, and the run was not ended early")
        if self.ranks and [rank.rank for rank in self.ranks] != list(range(self.world_size)):
            raise ValueError(f"{len(self.ranks)} ranks listed, which are not 0 to {self.world_size - 1}")
        for finding in self.findings:
            if finding.rank is not None and finding.rank >= self.world_size:
                raise ValueError(f"{finding.name}: rank {finding.rank} of {self.world_size}")
        return self

    @property
    def reasons(self) -> list[str]:
        """Why not; empty for GO."""
        if self.ended_early:
            wrong = reasons_against(self.findings, [], self.world_size)
            return [f"the run was ended: {self.ended_early}", *wrong]
        return reasons_against(self.findings, self.required, self.world_size)

    @property
    def decision(self) -> Literal["GO", "NO-GO"]:
        """GO if there is no reason against it."""
        return "NO-GO" if self.reasons else "GO"

    @property
    def is_wrong(self) -> bool:
        """Whether something was found wrong, rather than nothing proven."""
        return any(finding.outcome == "NO-GO" for finding in self.findings)


def reasons_against(findings: Sequence[PreflightFinding], required: Iterable[str], world_size: int) -> list[str]:
    """Why a run is NO-GO: what was found wrong, then what is required and was not proven on every rank.

    Args:
        findings: All findings.
        required: Probes, or probes with a part; a probe is proven by any one of its parts.
        world_size: Number of ranks.

    Returns:
        One sentence each; empty for GO.
    """
    wrong: dict[str, list[PreflightFinding]] = {}
    for finding in findings:
        if finding.outcome == "NO-GO":
            wrong.setdefault(finding.name, []).append(finding)
    reasons = [f"{name}{on_ranks(of_name, world_size)}: {of_name[0].seen}" for name, of_name in wrong.items()]
    for name in required:
        about = [finding for finding in findings if name in (finding.probe, finding.name)]
        if any(finding.outcome == "NO-GO" for finding in about) or (wrong and not about):
            continue  # said above; or not reached because of what is
        proven = [finding for finding in about if finding.outcome == "GO"]
        missing = set(range(world_size)) - {finding.rank for finding in proven if finding.rank is not None}
        if missing and not any(finding.rank is None for finding in proven):
            abstained = next((finding.seen for finding in about if finding.outcome == "ABSTAINS"), "it was not reached")
            where = f" on {ranks_in_words(missing)}" if proven else ""
            reasons.append(f"{name}: not proven{where}: {abstained}")
    return reasons


def on_ranks(findings: Sequence[PreflightFinding], world_size: int) -> str:
    """Which ranks found that, for a sentence: " on rank 1", or "" where all did, or all together."""
    ranks = {finding.rank for finding in findings if finding.rank is not None}
    if not ranks or len(ranks) == world_size or any(finding.rank is None for finding in findings):
        return ""
    return f" on {ranks_in_words(ranks)}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """E.g. "rank 1", "ranks 0 and 3", "ranks 0, 1, 2 and 61 others"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    shown = [str(number) for number in numbers[:4]]
    if len(numbers) > len(shown):
        shown[-1] = f"{len(numbers) - 3} others"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
