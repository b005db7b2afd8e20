"""Suspects by what the exact checks prove, also where every value is within its budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verify.checks.check import ExactCheckName, Finding
from verify.diagnosis.stages.suspect import INFERRED, POSSIBLE, Suspect
from verify.faults.stages import StageName
from verify.verdict import Verdict

_VISIBILITY: tuple[ExactCheckName, ...] = (
    "branch-isolation", "group-isolation", "causality", "reach", "no-cross-attention",
)  # fmt: skip
_ROW_MAP: tuple[tuple[str, StageName], ...] = (
    ("tokens enter its sum", "supervision"),
    ("of its path is id", "layout"),
    ("is at position", "positions"),
    ("attend", "mask"),
)
"""What a reason of row-map says, and the stage that it names."""
_OF_REFERENCE = "reference log-probs: "
"""How a reason of group-isolation begins where the policy is isolated and the frozen policy is not."""
_TAKEN_AND_PREDICTED = re.compile(
    r"taken from slot (\d+) and predicted from slot \d+; on its path these are (\d+) and \d+"
)


@dataclass(frozen=True, slots=True)
class _Context:
    """What else is known about the subject.

    Args:
        parity_holds: Every value is within its budget.
        decoder_agrees: Hidden states were measured, and all are right.
        steady: The same call twice gives the same.
        isolated: No check of visibility failed.
    """

    parity_holds: bool
    decoder_agrees: bool
    steady: bool
    isolated: bool


def exact_check_suspects(
    findings: Sequence[Finding], *, parity_holds: bool, decoder_agrees: bool = False
) -> tuple[Suspect, ...]:
    """Stages that failed exact checks point to.

    Checks of visibility and of the row map look at one stage, whatever else is wrong. The others compare results, which
    a fault of any stage changes: they tell something only where values agree, tokens are isolated and calls repeat.

    Args:
        findings: Of one subject in one dtype; those that are not FAIL are passed over.
        parity_holds: Every value of the subject is within its budget.
        decoder_agrees: Hidden states were measured, and all are right: then a forbidden dependence comes from behind.

    Returns:
        Suspects with the check and its place, nearest first.
    """
    # Reach names both tokens, so that its words come first.
    failed = sorted((f for f in findings if f.verdict is Verdict.FAIL), key=lambda finding: finding.check != "reach")
    names = {finding.check for finding in failed}
    context = _Context(
        parity_holds=parity_holds,
        decoder_agrees=decoder_agrees,
        steady="repeat" not in names,
        isolated=all(f.check not in _VISIBILITY or f.reason.startswith(_OF_REFERENCE) for f in failed),
    )
    suspects = [
        Suspect(stage, distance, describe_finding(finding))
        for finding in failed
        for stage, distance in _stages(finding, context)
    ]
    return tuple(sorted(suspects, key=lambda suspect: suspect.distance))


def describe_finding(finding: Finding) -> str:
    """The check and its place, e.g. "exact check reach on case distinct-tokens: group 0, ...".

    Args:
        finding: One that is not a PASS.
    """
    return f"exact check {finding.check} on case {finding.case}: {finding.reason}"


def _stages(finding: Finding, context: _Context) -> list[tuple[StageName, float]]:
    where_parity_holds = INFERRED if context.parity_holds else POSSIBLE
    by_results = where_parity_holds if context.steady and context.isolated else POSSIBLE
    if not finding.num_compared:  # a value that is not finite: nothing could be held against anything
        return [("token_logps", where_parity_holds)]
    match finding.check:
        case "reach" if context.decoder_agrees and " does not reach " in finding.reason:
            # What is seen going forward is missed going back.
            return [("activations", INFERRED), ("mask", POSSIBLE)]
        case "reach":
            return [("mask", POSSIBLE if context.decoder_agrees else INFERRED), ("activations", POSSIBLE)]
        case "group-isolation" if finding.reason.startswith(_OF_REFERENCE):
            return [("reference", where_parity_holds if context.steady else POSSIBLE)]
        case "branch-isolation" | "group-isolation" | "causality" if "the reward of " in finding.reason:
            # A reward that does not follow its own tokens is read elsewhere, or they are hidden from where it is read.
            kept = context.steady and "kept its bits" in finding.reason
            return [("readout", INFERRED if kept else POSSIBLE), ("mask", POSSIBLE if kept else INFERRED),
                    ("activations", POSSIBLE)]  # fmt: skip
        case "branch-isolation" | "group-isolation" | "causality" | "no-cross-attention":
            # They compare calls: of a subject that does not repeat they prove nothing.
            certain = context.steady and not context.decoder_agrees
            return [("mask", INFERRED if certain else POSSIBLE), ("activations", POSSIBLE)]
        case "row-map":
            return [(_row_map_stage(finding.reason), INFERRED)]
        case "absolute-positions" | "positions-as-unpacked":
            return [("positions", by_results)]
        case "no-boundary-target" | "no-padding-in-loss" | "same-number-of-targets":
            return [("supervision", INFERRED if context.isolated else POSSIBLE)]
        case "permutation":
            return [("token_logps", by_results)]
        case "repeat":
            return [("token_logps", where_parity_holds)]
        case "normalisation":
            return [("accumulation", by_results)]
        case "optimizer-steps" | "gradient-checkpointing" | "dropout":
            return [("gradients", POSSIBLE)]  # what is kept, or is gone, may be of any stage
        case "own-objective":
            reduction = POSSIBLE if finding.reason.startswith("the loss") else where_parity_holds
            return [("objective", where_parity_holds), ("reduction", reduction)]


def _row_map_stage(reason: str) -> StageName:
    if slots := _TAKEN_AND_PREDICTED.search(reason):
        taken, expected = slots.groups()
        return "predictors" if taken == expected else "supervision"
    for words, stage in _ROW_MAP:
        if words in reason:
            return stage
    raise ValueError(f"row-map gives a reason that names no stage: {reason!r}")
