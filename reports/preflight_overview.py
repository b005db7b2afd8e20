"""What all renderings of a preflight say in the same words."""

from __future__ import annotations

from dataclasses import dataclass

from reports.preflight_record import Outcome, PreflightFinding, PreflightRecord, on_ranks
from reports.words import number, plural, setting


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Findings that say the same, in one line.

    Args:
        finding: The first of them.
        ranks: Which ranks found it, in words.
    """

    finding: PreflightFinding
    ranks: str


def rows(record: PreflightRecord) -> list[FindingRow]:
    """The findings in their order, those that say the same on several ranks once."""
    alike: dict[tuple[str, Outcome, str, str], list[PreflightFinding]] = {}
    for finding in record.findings:
        alike.setdefault((finding.name, finding.outcome, finding.seen, finding.hint), []).append(finding)
    return [FindingRow(same[0], on_ranks(same, record.world_size).removeprefix(" on ")) for same in alike.values()]


def headline(record: PreflightRecord) -> str:
    """The decision in one line, with every reason; of a GO what it stands for, and what it does not."""
    if record.decision == "NO-GO":
        return f"NO-GO: {'; '.join(record.reasons)}"
    proven = sum(row.finding.outcome == "GO" for row in rows(record))
    not_judged = [row.finding.name for row in rows(record) if row.finding.outcome == "ABSTAINS"]
    without = f"; NOT judged: {', '.join(dict.fromkeys(not_judged))}" if not_judged else ""
    devices = " and ".join(dict.fromkeys(rank.device.partition(",")[0] for rank in record.ranks)) or "no device"
    ranks = f"{plural(record.world_size, 'rank')} ({devices})"
    return f"GO: {plural(proven, 'finding')} on {ranks}, none against it{without}"


def measures(finding: PreflightFinding) -> list[tuple[str, str]]:
    """Raw values with their names; bytes and counts in full."""
    return [
        (name, f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1000 else number(value))
        for name, value in finding.measures.items()
    ]


def facts(record: PreflightRecord) -> dict[str, str]:
    """How the run was made."""
    packages, hosts = record.environment.packages, len({rank.host for rank in record.ranks})
    return {
        "ranks": plural(record.world_size, "rank") + (f" on {plural(hosts, 'host')}" if hosts else ""),
        "versions": f"packparity {record.tool_version}, torch {packages.get('torch', '?')}, transformers "
        f"{packages.get('transformers', '?')}, peft {packages.get('peft', '?')}",
        "limits": f"{record.stage_limit_s:g} s for each probe, {record.answer_limit_s:g} s without a sign of life",
        "time": f"{record.total_s:.0f} s, {record.created_utc}",
        "command": " ".join(record.command),
    }


def settings(record: PreflightRecord) -> dict[str, str]:
    """The options, with defaults filled in."""
    return {name: setting(value) for name, value in record.request.items()}
