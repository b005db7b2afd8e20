"""Whether the packed path ran is read off the token slots of a whole run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verify.gate import Result
from verify.packed_proof import Summary, summarise
from verify.passes import PhaseSlots
from verify.policy_passes import FedPass
from verify.slots import SlotCount
from verify.verdict import Verdict


def subject(**attributes: Any) -> Any:
    return SimpleNamespace(name="s", per_token_logps=lambda model, groups: [], **attributes)


def result(
    slots: int | None, pairwise: int = 20, verdict: Verdict = Verdict.PASS, *, rows: int = 4, **changes: Any
) -> Result:
    phases = () if slots is None else (PhaseSlots("log-probs", SlotCount(slots, rows, 2)),)
    settings = {"case": "c", "subject": "s", "dtype": "float32", "reasons": (), "phases": phases, **changes}
    return Result(verdict=verdict, pairwise_slots=pairwise, pairwise_rows=4, **settings)


def summary(*results: Result, **attributes: Any) -> Summary:
    (only,) = summarise(results, [subject(**attributes)], ["float32"])
    return only


def test_fewer_slots_than_unpacked_rows_are_the_proof() -> None:
    found = summary(result(12), result(15))
    assert (found.verdict, found.reasons) == (Verdict.PASS, ())
    assert (found.slots, found.pairwise_slots) == (27, 40)


@pytest.mark.parametrize("slots", [20, 21, 400])
def test_as_many_slots_as_unpacked_rows_are_no_proof(slots: int) -> None:
    found = summary(result(slots))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == (
        f"says packed, but log-probs fed {slots} token slots in 4 rows where unpacked rows feed 20 in 4: "
        "the packed path did not run, or padding costs more than sharing saves",
    )


def test_more_slots_in_the_first_layer_than_in_the_embedding_are_no_proof() -> None:
    """Whoever embeds by a copy of the weights runs unpacked rows past the count."""
    past = (PhaseSlots("log-probs", SlotCount(12, 2, 2, layer_slots=20)),)
    found = summary(result(12, phases=past))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == (
        "says packed, but log-probs fed 12 token slots to the embedding and 20 to the first decoder layer: "
        "what passed the embedding is not all that ran",
    )
    level = (PhaseSlots("log-probs", SlotCount(12, 2, 2, layer_slots=12)),)
    assert summary(result(12, phases=level)).verdict is Verdict.PASS


def test_as_many_slots_in_fewer_rows_are_sequence_packing() -> None:
    """Block-diagonal rows share no prompt; what they save is padding and rows."""
    assert summary(result(20, rows=2)).verdict is Verdict.PASS
    assert summary(result(21, rows=2)).verdict is Verdict.INCONCLUSIVE, "padding was fed"
    assert summary(result(20, rows=4)).verdict is Verdict.INCONCLUSIVE, "one row per completion"


def test_a_case_in_which_nothing_can_be_saved_counts_with_the_others() -> None:
    """With a one-token prompt a layout that repeats the last prompt token feeds as many slots as unpacked rows."""
    assert summary(result(20), result(12)).verdict is Verdict.PASS


def test_padding_in_one_case_is_not_made_up_for_by_too_little_in_another() -> None:
    """What is fed over the run counts: one padded case among packed ones shows in the sum, or it is small."""
    assert summary(result(30), result(12)).verdict is Verdict.INCONCLUSIVE


def test_no_slot_at_all_is_no_proof() -> None:
    found = summary(result(0))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "no token passed the model's embedding" in found.reasons[0]


def test_each_phase_must_save_slots() -> None:
    """Log-probs from packed rows and a loss from padded ones: the part that trains did not run packed."""
    phases = (PhaseSlots("log-probs", SlotCount(12, 2, 2)), PhaseSlots("loss", SlotCount(22, 4, 2)))
    found = summary(result(None, phases=phases))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == (
        "says packed, but loss fed 22 token slots in 4 rows where unpacked rows feed 20 in 4: "
        "the packed path did not run, or padding costs more than sharing saves",
    )
    assert found.slots == 22, "the phase that saved least is shown"


@pytest.mark.parametrize(
    ("with_grad", "without", "message"),
    [
        (6, 6, ""),
        (6, 0, ""),  # the reference was computed beforehand
        (10, 6, "the policy pass of log-probs fed 10 token slots in 2 rows where unpacked rows feed 10 in 2"),
        (12, 2, "the policy pass of log-probs fed 12 token slots in 2 rows where unpacked rows feed 10 in 2"),
        (6, 10, "the reference pass of log-probs fed 10 token slots in 2 rows where unpacked rows feed 10 in 2"),
    ],
)
def test_a_padded_pass_does_not_hide_behind_a_packed_one(with_grad: int, without: int, message: str) -> None:
    count = SlotCount(with_grad + without, 4, 2, slots_with_grad=with_grad, rows_with_grad=2)
    found = summary(result(None, phases=(PhaseSlots("log-probs", count),)))
    assert found.verdict is (Verdict.INCONCLUSIVE if message else Verdict.PASS)
    assert "; ".join(found.reasons).startswith(f"says packed, but {message}" if message else "")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (6, ""),  # 6 + 6 without gradients, where an unpacked reference pass would feed 10
        (10, "the policy pass without gradients of log-probs fed 10 token slots in 2 rows where unpacked rows feed 10"),
    ],
)
def test_the_first_pass_of_a_two_pass_step_is_no_reference_pass(first: int, message: str) -> None:
    count = SlotCount(
        6 + 6 + first,
        6,
        3,
        slots_with_grad=6,
        rows_with_grad=2,
        slots_tried=first,
        rows_tried=2,
        layer_slots=12 + first,
    )
    found = summary(result(None, phases=(PhaseSlots("log-probs", count),)))
    assert found.verdict is (Verdict.INCONCLUSIVE if message else Verdict.PASS)
    assert "; ".join(found.reasons).startswith(f"says packed, but {message}" if message else "")
    assert found.slots == 12, "what the first pass feeds is no part of what policy and reference pass feed"


@pytest.mark.parametrize(
    ("slots", "with_grad", "message"),
    [
        ((6, 6), 6, ""),
        ((6, 10), 6, "the policy pass 2 without gradients of log-probs fed 10 token slots in 2 rows where unpacked"),
        ((10, 6), 6, "the policy pass without gradients of log-probs fed 10 token slots in 2 rows where unpacked"),
        ((6, 6), 0, ""),
        ((6, 10), 0, "the policy pass without gradients of log-probs fed 10 token slots in 2 rows where unpacked"),
        ((14, 6), 0, "log-probs fed 20 token slots in 4 rows where unpacked rows feed 20 in 4"),
    ],
    ids=["both", "second", "first", "both-forward-only", "second-forward-only", "first-forward-only"],
)
def test_of_several_passes_without_gradients_each_saves_by_itself(
    slots: tuple[int, int], with_grad: int, message: str
) -> None:
    """One for the coefficients and one for what is logged, beside a reference pass of 6."""
    count = SlotCount(
        6 + with_grad + sum(slots),
        2 + 2 * bool(with_grad) + 4,
        4,
        slots_with_grad=with_grad,
        rows_with_grad=2 * bool(with_grad),
        slots_tried=sum(slots),
        rows_tried=4,
        tried=tuple(FedPass(fed, 2, 10, 2) for fed in slots),
    )
    found = summary(result(None, phases=(PhaseSlots("log-probs", count),)))
    assert found.verdict is (Verdict.INCONCLUSIVE if message else Verdict.PASS)
    assert "; ".join(found.reasons).startswith(f"says packed, but {message}" if message else "")


@pytest.mark.parametrize(
    ("again", "message"), [(6, ""), (10, "the backward pass of loss fed 10 token slots where its forward passes fed 6")]
)
def test_a_backward_pass_runs_again_no_more_than_what_ran(again: int, message: str) -> None:
    count = SlotCount(12, 4, 2, slots_with_grad=6, rows_with_grad=2, slots_again=again)
    found = summary(result(None, phases=(PhaseSlots("loss", count),)))
    assert found.verdict is (Verdict.INCONCLUSIVE if message else Verdict.PASS)
    assert "; ".join(found.reasons).startswith(f"says packed, but {message}" if message else "")


def test_who_says_unpacked_need_not_save_anything() -> None:
    assert summary(result(20), layout="unpacked").verdict is Verdict.PASS


@pytest.mark.parametrize("worse", [Verdict.FAIL, Verdict.ERROR])
def test_a_failure_or_an_error_is_not_softened_by_a_missing_proof(worse: Verdict) -> None:
    assert summary(result(20, verdict=worse)).verdict is worse


def test_one_wrong_case_among_right_ones_is_not_lost() -> None:
    assert summary(result(12), result(12, verdict=Verdict.FAIL), result(12)).verdict is Verdict.FAIL


def test_a_subject_that_never_ran_is_judged_by_its_verdicts_alone() -> None:
    found = summary(result(None, verdict=Verdict.NOT_APPLICABLE), result(None, verdict=Verdict.NOT_APPLICABLE))
    assert (found.verdict, found.slots) == (Verdict.NOT_APPLICABLE, 0)
    assert summary(result(None, verdict=Verdict.ERROR)).verdict is Verdict.ERROR


def test_a_subject_without_results_is_an_error() -> None:
    assert summary().verdict is Verdict.ERROR


def test_subjects_and_dtypes_are_summed_apart() -> None:
    results = [
        result(12),
        result(20, dtype="float64"),
        result(20, subject="other"),
        result(20, subject="other", dtype="float64"),
    ]
    other = SimpleNamespace(name="other", layout="unpacked", per_token_logps=lambda model, groups: [])
    found = summarise(results, [subject(), other], ["float64", "float32"])
    assert [(s.dtype, s.subject, s.verdict) for s in found] == [
        ("float64", "s", Verdict.INCONCLUSIVE),
        ("float64", "other", Verdict.PASS),
        ("float32", "s", Verdict.PASS),
        ("float32", "other", Verdict.PASS),
    ]


def test_a_fallback_in_one_case_does_not_hide_behind_the_savings_of_others() -> None:
    """Unpacked rows for several groups, packed ones for single groups: over the run slots are saved all the same."""
    packed, fallback = result(6, can_save=True), result(20, can_save=True, case="several-groups")
    found = summary(packed, fallback)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons[0].startswith("case several-groups: says packed, but log-probs fed 20 token slots")
    assert summary(packed, result(20, case="one-token-prompt")).verdict is Verdict.PASS, "nothing to save there"


def example(slots: int = 20, *, rows: int = 4, **changes: Any) -> Result:
    return result(slots, rows=rows, kind="examples", passes=1, **changes)


def test_examples_are_packed_where_they_are_fed_in_fewer_rows_than_there_are() -> None:
    assert summary(example(rows=1, can_save=True)).verdict is Verdict.PASS
    found = summary(example(rows=1, can_save=True), example(can_save=True, case="one-per-row"))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == (
        "case one-per-row: says packed, but log-probs fed 4 rows where there are 4 sequences: "
        "the packed path did not run",
    )


def test_a_case_of_one_example_says_nothing_of_packing_where_others_do() -> None:
    assert summary(example(rows=1, can_save=True), example(can_save=False, case="alone")).verdict is Verdict.PASS
    pair = result(12, can_save=True, case="pair")
    assert summary(pair, example(can_save=False, case="alone")).verdict is Verdict.PASS
    assert summary(pair, example(0, can_save=False, case="alone")).verdict is Verdict.INCONCLUSIVE, "nothing was fed"


def test_a_run_of_single_examples_cannot_show_that_a_packed_path_ran() -> None:
    found = summary(example(can_save=False), example(can_save=False, case="another"))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == ("says packed, but no case has several sequences: that a packed path ran cannot be shown",)
    unrun = result(None, verdict=Verdict.NOT_APPLICABLE, kind="examples")
    assert summary(result(12), unrun).verdict is Verdict.PASS, "a case that it does not take says nothing"
