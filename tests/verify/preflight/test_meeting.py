"""What a probe raises is a finding of its rank, so that no other rank waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from verify.preflight.finding import Finding, abstains, go, no_go
from verify.preflight.meeting import Meeting
from verify.sharded.ranks import RankPlace


class Stages:
    """A watch that only notes where the rank is."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def enter(self, stage: str) -> None:
        self.entered.append(stage)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield Meeting(RankPlace(0, 1, 0), Stages(), lambda stage: None)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()


def test_what_a_probe_raises_is_no_go_of_this_rank_with_a_hint(meeting: Meeting) -> None:
    def raising() -> list[Finding]:
        raise OSError(5, "Input/output error", "/mnt/data")

    meeting.alone("data", raising)
    (found,) = meeting.findings
    assert (found.probe, found.rank, found.outcome) == ("data", 0, "NO-GO")
    assert "Input/output error" in found.seen
    assert meeting.is_wrong("data")
    assert not meeting.is_wrong("checkpoint")


def test_a_part_is_proven_everywhere_only_where_all_are_go(meeting: Meeting) -> None:
    meeting.alone("attention", lambda: [go("attention", "ok", part="split"), abstains("attention", "no", part="flex")])
    assert meeting.everywhere("attention", "split")
    assert not meeting.everywhere("attention", "flex")
    assert not meeting.everywhere("attention", "dense-sdpa")
    meeting.together([no_go("attention", "wrong", "stop", part="split")])
    assert not meeting.everywhere("attention", "split")
