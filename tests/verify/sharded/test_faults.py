"""The catalogue of sharded training: what it says, and what its stages do with numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verify.faults.catalogue import CATALOGUE
from verify.sharded.checks import CHECKS
from verify.sharded.faults import FAULTS, HARMLESS
from verify.subjects.sharded import HONEST, Units

DOCS = Path(__file__).parents[3] / "docs"


def test_the_docs_describe_every_fault_and_no_other() -> None:
    text = (DOCS / "faults.md").read_text(encoding="utf-8")
    section = text[text.index("## Sharded training") : text.index("## Planted faults")]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == [fault.name for fault in FAULTS]
    for row, fault in zip(rows, FAULTS, strict=True):
        assert row[1:3] == [fault.what, fault.imitates]
        assert tuple(re.findall(r"`([^`]+)`", row[3])) == fault.checks
    assert all(f"`{change.name}` ({change.what})" in section for change in HARMLESS)


def test_the_docs_describe_every_check() -> None:
    text = (DOCS / "sharded.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z/-]+)` \| (?!float|bfloat)", text, flags=re.MULTILINE)[-len(CHECKS) :] == list(CHECKS)


def test_every_check_has_a_fault_that_it_has_to_catch() -> None:
    assert {check for fault in FAULTS for check in fault.checks} == CHECKS.keys()


def test_names_are_distinct_among_all_faults() -> None:
    names = [each.name for each in (*FAULTS, *HARMLESS, *CATALOGUE)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("num_groups", range(1, 12))
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_harmless_assignments_give_every_group_to_one_rank(num_groups: int, world_size: int) -> None:
    for stages in (HONEST, *(change.stages for change in HARMLESS)):
        places = sorted(place for own in stages.assign(num_groups, world_size) for place in own)
        assert places == list(range(num_groups))
        for own in stages.assign(num_groups, world_size):
            assert [place for micro in stages.micro_batches(own, 2) for place in micro] == list(own)


@pytest.mark.parametrize("counts", [((2, 1), (2,)), ((5,), ()), ((1, 1, 1), (1,), (4, 2))])
def test_shares_of_all_micro_batches_average_to_the_whole_over_ranks(counts: tuple[tuple[int, ...], ...]) -> None:
    """Averaged over ranks, as FSDP does, weights of units are all 1 / N: of 2 + 1 and 2 units each counts a fifth."""
    batch = sum(map(sum, counts))
    for of_rank in counts:
        for count in of_rank:
            units = Units(
                micro_batch=count, rank=sum(of_rank), batch=batch, world_size=len(counts), micro_batches=len(of_rank)
            )
            assert HONEST.share(units) / count / len(counts) == pytest.approx(1 / batch, rel=1e-15)


def test_five_groups_on_two_ranks_are_evaluated_once_by_the_honest_step_and_not_by_the_fault() -> None:
    faulty = next(fault for fault in FAULTS if fault.name == "duplicated-samples-in-evaluation").stages
    honest = [list(HONEST.evaluation_places(5, rank, 2)) for rank in range(2)]
    assert honest == [[0, 2, 4], [1, 3]]
    assert [list(faulty.evaluation_places(5, rank, 2)) for rank in range(2)] == [[0, 2, 4], [1, 3, 0]]
