"""Whoever computes the right thing passes, and what cannot be put to it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verify.checks.catalogue import EXACT_CHECKS, FEW_PASSES
from verify.checks.check import EXACT_CHECK_NAMES, Finding
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.hf_position_ids import HfPositionIdsSubject
from verify.subjects.packed import PACKED_SUBJECTS, PackedSubject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.verdict import Verdict

ISOLATED_BY_TRANSFORMERS = (
    HfPositionIdsSubject(),
    HfPositionIdsSubject(attention="eager"),
    HfPositionIdsSubject(rows="several-rows"),
)
SUBJECTS: tuple[Subject, ...] = (
    *PACKED_SUBJECTS,
    *ISOLATED_BY_TRANSFORMERS,
    WITNESS,
    VARIATIONS["padded-left"],
    FaultySubject(),
)
NO_LOSS = {
    "row-map": "has no packed_rows",
    "normalisation": "no loss of its own",
    "own-objective": "no loss",
    "no-boundary-target": "its targets cannot be seen",
    "same-number-of-targets": "its targets cannot be seen",
}
NO_PADDING = {"no-padding-in-loss": "no padding passed the embedding"}
PADDED = ("padded-left", "hf-position-ids/several-rows", "dense-sdpa/block-diagonal/bins")
OF_EXAMPLES = tuple(check.name for check in EXACT_CHECKS if check.cases == ("distinct-examples",))
OF_PAIRS = ("group-isolation", "repeat")
OF_TRAINING = ("optimizer-steps", "gradient-checkpointing", "dropout")
OF_PREFERENCES = (*OF_PAIRS, "branch-isolation", "causality", "reach", "absolute-positions", "permutation")


def not_put(subject: Subject) -> dict[str, str]:
    """What a subject cannot be put to, with a part of the reason."""
    reasons = {} if subject.name in PADDED else dict(NO_PADDING)
    if subject == HfPositionIdsSubject(attention="eager"):
        reasons["gradient-checkpointing"] = "layers would run again with attention sdpa instead of eager"
    if not isinstance(subject, PackedSubject):
        return reasons if isinstance(subject, FaultySubject) else reasons | NO_LOSS
    if subject.backend == "flex":
        reasons["reach"] = "FlexAttention has no backward pass on cpu"
        first = {"block-diagonal": "the subject takes examples", "prefix-tree": "no responses of a prompt begin alike"}
        reasons |= dict.fromkeys(OF_TRAINING, first.get(subject.segments, reasons["reach"]))
    if "examples" not in subject.takes:
        reasons |= dict.fromkeys(OF_EXAMPLES, "the subject takes pairs, groups")
    if subject.segments == "block-diagonal":
        reasons |= dict.fromkeys(OF_PREFERENCES, "the subject takes examples")
    if subject.segments == "prefix-tree":
        without_turns = (*OF_PAIRS, "reach") if subject.backend == "flex" else OF_PAIRS
        reasons |= dict.fromkeys(without_turns, "no responses of a prompt begin alike")
    return reasons


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_an_honest_subject_passes_every_check_that_it_can_be_put_to(
    subject: Subject, put: Callable[..., dict[str, Finding]]
) -> None:
    findings, reasons = put(subject), not_put(subject)
    assert list(findings) == [check.name for check in EXACT_CHECKS]
    for name, finding in findings.items():
        if name in reasons:
            assert finding.verdict is Verdict.NOT_APPLICABLE, name
            assert reasons[name] in finding.reason
        else:
            assert (finding.verdict, finding.reason) == (Verdict.PASS, ""), name
            assert finding.num_compared > 0
            assert finding.num_differing == 0
            assert finding.ratio <= 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("backend", ["dense-eager", "split"])
def test_honest_subjects_pass_in_other_dtypes(backend: str, dtype: str, put: Callable[..., dict[str, Finding]]) -> None:
    (subject,) = [s for s in PACKED_SUBJECTS if s.name == backend]
    verdicts = {name: finding.verdict for name, finding in put(subject, dtype=dtype).items()}
    assert verdicts.pop("no-padding-in-loss") is Verdict.NOT_APPLICABLE
    assert set(verdicts.values()) == {Verdict.PASS}


def test_every_check_says_what_it_claims_and_what_it_cannot_see() -> None:
    assert tuple(check.name for check in EXACT_CHECKS) == tuple(
        sorted(EXACT_CHECK_NAMES, key=[check.name for check in EXACT_CHECKS].index)
    )
    assert {check.name for check in FEW_PASSES} < set(EXACT_CHECK_NAMES)
    docs = (Path(__file__).parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")
    for check in EXACT_CHECKS:
        assert f"### {check.name}\n" in docs
        assert check.cases
        assert len(check.claims) > 40
        assert len(check.cannot_see) > 40
