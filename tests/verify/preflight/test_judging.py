"""From verdicts to GO: a PASS is, a FAIL is NO-GO, and what proves nothing abstains; planted faults the reverse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from verify.budget import Budget
from verify.groups import PreferenceGroup
from verify.judgement import Judgement
from verify.preflight.judging import finding_of
from verify.preflight.parity_cases import all_pairs, made_up_pairs, parity_cases, tiny_parity_cases
from verify.preflight.planted import LEAK, Leaking, noticed, without_world_size
from verify.subjects.sharded import HONEST, Units
from verify.verdict import Verdict


def judged(measured: float) -> Judgement:
    budget = Budget(value=1.0, factor=1.0, floor=0.0, noise=1.0, source="")
    return Judgement(
        quantity="gradients", kind="oracle", statistic="rms", verdict=Verdict.PASS, num_compared=7, measured=measured,
        budget=budget,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict.PASS, "GO"),
        (Verdict.FAIL, "NO-GO"),
        (Verdict.ERROR, "NO-GO"),
        (Verdict.INCONCLUSIVE, "ABSTAINS"),
        (Verdict.NOT_APPLICABLE, "ABSTAINS"),
    ],
)
def test_every_verdict_has_its_outcome(verdict: Verdict, outcome: str) -> None:
    found = finding_of("parity", "split", [(verdict, ["a reason"])], [("oracle", judged(0.3))], "on 1 case")
    assert found.outcome == outcome


def test_a_go_says_how_much_was_compared_and_what_came_nearest_to_its_budget() -> None:
    judgements = [("oracle", judged(0.3)), ("single process", judged(0.7))]
    found = finding_of("parity", "split", [(Verdict.PASS, [])], judgements, "on 1 case")
    assert "14 values compared" in found.seen
    assert "0.700 (gradients, rms, against single process)" in found.seen
    assert found.measures["oracle_gradients_rms_over_budget"] == 0.3


def test_nothing_judged_is_not_go() -> None:
    assert finding_of("parity", "split", [], [], "on nothing").outcome == "NO-GO"


def test_a_planted_fault_has_to_fail() -> None:
    assert noticed(LEAK, Verdict.FAIL, [("oracle", judged(30.0))], "float32").outcome == "GO"
    for verdict in (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE, Verdict.ERROR):
        assert noticed(LEAK, verdict, [], "float32").outcome == "ABSTAINS"


def test_the_planted_leak_feeds_the_chosen_response_in_front_of_the_rejected_one() -> None:
    class Recording:
        name = "recording"

        def per_token_logps(self, model: object, groups: object) -> list[object]:
            self.groups = groups
            return []

    recording = Recording()
    Leaking(subject=recording).per_token_logps(None, [PreferenceGroup((1,), ((2, 3),), ((4,),))])  # type: ignore[arg-type]
    assert [(g.prompt_ids, g.completions) for g in recording.groups] == [((1,), ((2, 3),)), ((1, 2, 3), ((4,),))]  # type: ignore[attr-defined]


def test_the_other_planted_fault_is_a_world_size_away_from_the_honest_share() -> None:
    units = Units(micro_batch=2, rank=3, batch=5, world_size=4, micro_batches=2)
    assert HONEST.share(units) == 4 * without_world_size().share(units)


@pytest.mark.parametrize("world_size", [2, 3, 8, 64])
def test_every_rank_has_a_group_of_real_size_and_no_case_is_large(world_size: int) -> None:
    cases = parity_cases(made_up_pairs(1000, 0, world_size + 1), world_size)
    of_rank = [
        sum(len(each.stages.assign(len(each.case.groups), world_size)[rank]) for each in cases)
        for rank in range(world_size)
    ]
    assert sum(of_rank) == world_size + 1
    assert min(of_rank) == 1
    assert max(len(each.case.groups) for each in cases) <= 4
    assert len({each.case.name for each in cases}) == len(cases)


def test_every_group_is_dealt_to_one_rank_whichever_is_first() -> None:
    (case, *_) = tiny_parity_cases(257, 0)
    for first_rank in range(3):
        dealt = replace(case, first_rank=first_rank).stages.assign(5, 3)
        assert sorted(place for places in dealt for place in places) == list(range(5))
        assert 0 in dealt[first_rank]


def test_few_groups_of_the_data_come_again_until_every_rank_has_one() -> None:
    groups = made_up_pairs(1000, 0, 2)
    cases = parity_cases(groups, 4)
    assert [group for each in cases for group in each.case.groups] == [groups[n % 2] for n in range(5)]


def test_unpacked_steps_are_run_on_pairs_alone() -> None:
    pair, three = made_up_pairs(1000, 0, 1)[0], PreferenceGroup((1,), ((2,),), ((3,), (4,)))
    merged = all_pairs(parity_cases([pair, three], 2))
    assert merged is not None
    assert merged.case.groups == (pair, pair)
    assert all_pairs(parity_cases([three], 2)) is None
