"""What quick runs leave out is among their blind spots, and is none of a full run's."""

from __future__ import annotations

from verify.check_request import CheckOptions, prepare_check
from verify.checks.catalogue import CHECKS_ONLY_IN_FULL
from verify.faults.catalogue import FAULTS_OF_OBJECTIVES, FAULTS_OF_REFERENCES, FAULTS_OF_REWARDS
from verify.proof_of_life.left_out import left_out


def found(**options: object) -> dict[str, list[str]]:
    prepared = prepare_check(CheckOptions(jobs=1, **options))  # type: ignore[arg-type]
    return {spot.what: spot.faults for spot in left_out(prepared.request, {check.name for check in prepared.checks})}


def test_a_quick_run_leaves_out_objectives_frozen_policies_images_and_two_exact_checks() -> None:
    spots = found()
    assert spots["faults of other preference objectives"] == [fault.name for fault in FAULTS_OF_OBJECTIVES]
    assert spots["faults of other frozen policies"] == [fault.name for fault in FAULTS_OF_REFERENCES]
    assert spots["faults of reward models"] == [fault.name for fault in FAULTS_OF_REWARDS]
    assert "images-left-out" in spots["faults of images in prompts"]
    assert spots["faults that no value of a case shows"] == [
        "attention-gone-when-layers-run-again", "evaluation-mode-left-on", "dropout-of-the-first-slot-in-all",
    ]  # fmt: skip
    assert CHECKS_ONLY_IN_FULL == ("gradient-checkpointing", "dropout")


def test_a_full_run_leaves_out_nothing() -> None:
    assert found(full=True) == {}


def test_a_run_under_another_objective_leaves_out_those_of_the_others() -> None:
    assert "ipo-towards-half-of-beta" not in found(objective="ipo")["faults of other preference objectives"]
    assert "hinge-without-beta" in found(objective="ipo")["faults of other preference objectives"]
    assert "separate-model-ignored" not in found(reference="separate-model")["faults of other frozen policies"]


def test_a_run_of_a_reward_model_is_about_rewards_alone() -> None:
    assert list(found(objective="reward-model")) == ["faults that no value of a case shows"]
