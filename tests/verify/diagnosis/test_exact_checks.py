"""Exact checks that failed, as suspects: which stage each points to, and how much it weighs beside other evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from verify.checks.check import EXACT_CHECK_NAMES, ExactCheckName, Finding
from verify.checks.packed_rows import PackedRows
from verify.checks.path_walk import walk_paths
from verify.diagnosis.diagnose import Diagnostician
from verify.diagnosis.stages.exact_checks import exact_check_suspects
from verify.diagnosis.stages.suspect import INFERRED, POSSIBLE, Suspect, rank
from verify.groups import PreferenceGroup
from verify.verdict import Verdict


def failed(check: ExactCheckName, reason: str = "somewhere", num_compared: int = 1) -> Finding:
    return Finding(
        check=check, subject="mine", dtype="float32", case="distinct-tokens", verdict=Verdict.FAIL, reason=reason,
        num_compared=num_compared, num_differing=1,
    )  # fmt: skip


def stages(suspects: Sequence[Suspect]) -> list[tuple[str, float]]:
    return [(suspect.stage, suspect.distance) for suspect in suspects]


@pytest.mark.parametrize(
    ("check", "first"),
    [
        ("branch-isolation", "mask"),
        ("group-isolation", "mask"),
        ("causality", "mask"),
        ("reach", "mask"),
        ("absolute-positions", "positions"),
        ("permutation", "token_logps"),
        ("repeat", "token_logps"),
        ("normalisation", "accumulation"),
        ("own-objective", "objective"),
        ("no-cross-attention", "mask"),
        ("no-boundary-target", "supervision"),
        ("no-padding-in-loss", "supervision"),
        ("positions-as-unpacked", "positions"),
        ("same-number-of-targets", "supervision"),
    ],
)
def test_a_check_that_fails_alone_names_its_stage_and_its_place(check: ExactCheckName, first: str) -> None:
    suspects = exact_check_suspects([failed(check)], parity_holds=True)
    assert suspects[0].stage == first
    assert suspects[0].because == f"exact check {check} on case distinct-tokens: somewhere"


@pytest.mark.parametrize(
    ("how", "first"),
    [
        ("kept its bits, though it depends on them", "readout"),
        ("changed, though it depends on none of them", "mask"),
    ],
)
def test_a_reward_that_does_not_follow_its_own_tokens_is_read_at_the_wrong_slot(how: str, first: str) -> None:
    finding = failed("branch-isolation", f"rewriting every chosen response: the reward of group 0, chosen {how}")
    assert stages(exact_check_suspects([finding], parity_holds=False))[0] == (first, INFERRED)


@pytest.mark.parametrize("check", [name for name in EXACT_CHECK_NAMES if name != "row-map"])
def test_every_check_has_a_stage_and_what_did_not_fail_has_none(check: ExactCheckName) -> None:
    assert exact_check_suspects([failed(check)], parity_holds=False)
    for verdict in (Verdict.PASS, Verdict.ERROR, Verdict.NOT_APPLICABLE):
        assert exact_check_suspects([replace(failed(check), verdict=verdict)], parity_holds=True) == ()


GROUP = PreferenceGroup((5, 6), ((7,),), ((8, 9),))


def right_rows() -> PackedRows:
    """Slots 0 1 | 2 | 3 4 of the prompt ``5 6`` with the responses ``7`` and ``8 9``."""
    attended = torch.ones(5, 5, dtype=torch.bool).tril()
    attended[3:, 2] = False
    supervised = torch.tensor([[0, 0, 2, 1], [1, 0, 3, 1], [1, 0, 4, 3]])
    return PackedRows(torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[0, 1, 2, 2, 3]]), attended[None], supervised)


def changed(part: str, place: tuple[int, ...], value: int) -> PackedRows:
    tensor = getattr(right_rows(), part).clone()
    tensor[place] = value
    return replace(right_rows(), **{part: tensor})


@pytest.mark.parametrize(
    ("rows", "stage"),
    [
        (changed("input_ids", (0, 3), 11), "layout"),
        (changed("position_ids", (0, 3), 3), "positions"),
        (changed("attended", (0, 3, 2), 1), "mask"),
        (changed("attended", (0, 4, 2), 1), "mask"),
        (changed("supervised", (1, 3), 2), "predictors"),
        (changed("supervised", (1, 2), 2), "supervision"),
        (replace(right_rows(), supervised=right_rows().supervised[:2]), "supervision"),
    ],
)
def test_a_row_map_names_the_stage_by_its_own_words(rows: PackedRows, stage: str) -> None:
    """The words are those of the walk itself, so that none of them can change unnoticed."""
    assert walk_paths(right_rows(), (GROUP,)).deviations == ()
    reason = walk_paths(rows, (GROUP,)).deviations[0].words
    assert stages(exact_check_suspects([failed("row-map", reason)], parity_holds=True)) == [(stage, INFERRED)]


def test_a_row_map_in_unknown_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="names no stage: 'somewhere'"):
        exact_check_suspects([failed("row-map")], parity_holds=True)


def test_a_value_that_is_not_finite_says_nothing_about_visibility() -> None:
    suspects = exact_check_suspects([failed("branch-isolation", "nan", num_compared=0)], parity_holds=True)
    assert stages(suspects) == [("token_logps", INFERRED)]


def test_results_that_differ_say_little_where_tokens_are_not_isolated() -> None:
    suspects = exact_check_suspects([failed("absolute-positions"), failed("branch-isolation")], parity_holds=True)
    assert stages(suspects) == [("mask", INFERRED), ("positions", POSSIBLE), ("activations", POSSIBLE)]


def test_a_reference_left_over_from_other_tokens_is_no_matter_of_the_mask() -> None:
    """The words are those of the check."""
    reason = "reference log-probs: rewriting prompt and responses of group 1: group 1, chosen, token 0 kept its bits"
    left_over = failed("group-isolation", reason)
    assert stages(exact_check_suspects([left_over], parity_holds=True)) == [("reference", INFERRED)]
    assert stages(exact_check_suspects([left_over], parity_holds=False)) == [("reference", POSSIBLE)]
    beside = exact_check_suspects([left_over, failed("absolute-positions")], parity_holds=True)
    assert ("positions", INFERRED) in stages(beside)


def test_a_token_that_is_seen_and_does_not_reach_was_cut_off_in_the_graph() -> None:
    findings = [failed("reach", "group 0, prompt, token 0 does not reach group 0, chosen, token 0")]
    seen = exact_check_suspects(findings, parity_holds=False, decoder_agrees=True)
    assert stages(seen) == [("activations", INFERRED), ("mask", POSSIBLE)]
    assert stages(exact_check_suspects(findings, parity_holds=False))[0] == ("mask", INFERRED)


def test_isolation_says_little_of_a_subject_that_does_not_repeat() -> None:
    suspects = exact_check_suspects([failed("branch-isolation"), failed("repeat")], parity_holds=True)
    assert stages(suspects)[0] == ("token_logps", INFERRED)
    assert ("mask", POSSIBLE) in stages(suspects)


def test_the_check_that_names_both_tokens_gives_the_words() -> None:
    findings = [failed("branch-isolation", "moved"), failed("reach", "one reaches another")]
    (mask, _) = rank(exact_check_suspects(findings, parity_holds=True), [])
    assert mask.because == "exact check reach on case distinct-tokens: one reaches another"


def test_a_token_that_reaches_another_puts_the_mask_beside_the_activations(
    diagnostician: Diagnostician, wrong: Callable[[str], Any]
) -> None:
    """Visibility is right in the first layer, so that what is measured names activations alone."""
    subject = wrong("LastLayerRounded")
    alone = diagnostician.diagnose(subject, [])
    assert alone.suspects[0].stage == "activations"
    found = diagnostician.diagnose(subject, [], findings=[failed("reach", "one reaches another")])
    assert [suspect.stage for suspect in found.suspects[:2]] == ["mask", "activations"]
    assert found.suspects[0].because.endswith("one reaches another")


def test_a_fault_behind_right_hidden_states_stays_first(
    diagnostician: Diagnostician, wrong: Callable[[str], Any]
) -> None:
    """Log-probs read at another slot depend on another response; no hidden state does."""
    found = diagnostician.diagnose(wrong("FirstFromFirst"), [], findings=[failed("branch-isolation")])
    assert found.suspects[0].stage == "predictors"
    assert {suspect.stage: suspect.distance for suspect in found.suspects}["mask"] == POSSIBLE


def test_suspects_stand_in_the_order_of_the_distance_that_is_shown() -> None:
    near = [("one", "mask", 5.18e-4), ("two", "objective", 5.68e-5), ("three", "gradients", 0.0163)]
    ranked = rank([Suspect("positions", 0.4, "")], near)  # type: ignore[arg-type]
    assert [suspect.distance for suspect in ranked] == [0.0, 0.0, 0.02, 0.4]
    assert [suspect.stage for suspect in ranked] == ["mask", "objective", "gradients", "positions"]
