"""Whoever computes the right thing passes, and what cannot be put to it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verify.checks.catalogue import EXACT_CHECKS, FEW_PASSES
from verify.checks.check import EXACT_CHECK_NAMES, Finding
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.packed import PACKED_SUBJECTS, PackedSubject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.verdict import Verdict

SUBJECTS: tuple[Subject, ...] = (*PACKED_SUBJECTS, WITNESS, VARIATIONS["padded-left"], FaultySubject())
NO_LOSS = {"row-map": "has no packed_rows", "normalisation": "no loss of its own", "own-objective": "no loss"}
FORWARD_ONLY = {"reach": "FlexAttention has no backward pass on cpu"}
ON_PAIRS_ALONE = ("group-isolation", "absolute-positions", "permutation", "repeat", "normalisation", "own-objective")


def not_put(subject: Subject) -> dict[str, str]:
    """What a subject cannot be put to, with a part of the reason."""
    if getattr(subject, "layout", "") == "unpacked":
        return NO_LOSS
    if not isinstance(subject, PackedSubject):
        return {}
    if subject.segments == "block-diagonal":
        return {check.name: "the subject takes examples" for check in EXACT_CHECKS}
    if subject.segments == "prefix-tree":
        names = (*ON_PAIRS_ALONE, "reach") if subject.backend == "flex" else ON_PAIRS_ALONE
        return {name: "no responses of a prompt begin alike" for name in names}
    return FORWARD_ONLY if subject.backend == "flex" else {}


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
    assert {f.verdict for f in put(subject, dtype=dtype).values()} == {Verdict.PASS}


def test_every_check_says_what_it_claims_and_what_it_cannot_see() -> None:
    assert tuple(check.name for check in EXACT_CHECKS) == tuple(
        sorted(EXACT_CHECK_NAMES, key=[check.name for check in EXACT_CHECKS].index)
    )
    assert set(FEW_PASSES) < set(EXACT_CHECKS)
    docs = (Path(__file__).parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")
    for check in EXACT_CHECKS:
        assert f"### {check.name}\n" in docs
        assert check.cases
        assert len(check.claims) > 40
        assert len(check.cannot_see) > 40
