"""Who takes which piece: the longest first, and what was made ready is used again."""

from __future__ import annotations

from verify.cases import Case
from verify.gate_pieces import Piece, traits_of
from verify.groups import PreferenceGroup
from verify.subjects.selection import default_subjects
from verify.taking_turns import Traits, Waiting


def test_without_traits_pieces_are_taken_in_their_order() -> None:
    waiting = Waiting([Traits()] * 4)
    assert [waiting.take(None, {None}), *(waiting.take("", {""}) for _ in range(4))] == [0, 1, 2, 3, None]


def test_the_longest_pieces_of_a_stage_come_first_and_stages_in_turn() -> None:
    traits = [Traits("a", size=1), Traits("a", size=3), Traits("b", size=9), Traits("a", size=3), Traits("c")]
    waiting = Waiting(traits)
    assert [waiting.take("", ()) for _ in range(5)] == [1, 3, 0, 2, 4]


def test_a_process_stays_with_its_kind_and_another_begins_with_one_that_nobody_is_at() -> None:
    waiting = Waiting([Traits("a", kind) for kind in ("case", "case", "check", "case", "check")])
    assert waiting.take(None, {None}) == 0
    assert waiting.take(None, {"case"}) == 2
    assert waiting.take(None, {"case", "check"}) == 1, "a third one takes what there is"
    assert [waiting.take("check", {"case"}), waiting.take("check", {"case"})] == [4, 3]
    assert waiting.take("case", {"check"}) is None


def test_what_a_process_is_ready_for_does_not_lead_it_ahead_into_the_next_stage() -> None:
    waiting = Waiting([Traits("float64", "case"), Traits("float32", "check"), Traits("float32", "case")])
    assert [waiting.take("check", {"case"}) for _ in range(3)] == [0, 1, 2]


def test_checks_need_the_same_things_and_cases_are_as_long_as_what_is_fed_for_them() -> None:
    groups = (PreferenceGroup((1, 2, 3), ((4, 5),), ((6,),)), PreferenceGroup((1,), ((2,),), ((3, 4),)))
    case = Case(name="two", why="", groups=groups)
    subjects = default_subjects((), full=False)[:2]
    assert traits_of(Piece(dtype="float32", case=case)) == Traits("float32", "cases", 3 + 2 + 3 + 1 + 1 + 1 + 1 + 2)
    assert len({traits_of(Piece(dtype="float32", subject=subject)) for subject in subjects}) == 1
