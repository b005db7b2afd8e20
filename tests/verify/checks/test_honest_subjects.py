"""Whoever computes the right thing passes, and what cannot be put to it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verify.checks.catalogue import EXACT_CHECKS, FEW_PASSES
from verify.checks.check import EXACT_CHECK_NAMES, Finding
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.packed import PACKED_SUBJECTS
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.verdict import Verdict

SUBJECTS: tuple[Subject, ...] = (*PACKED_SUBJECTS, WITNESS, VARIATIONS["padded-left"], FaultySubject())
NOT_PUT = {
    "flex": {"reach": "FlexAttention has no backward pass on cpu"},
    "pairwise": {"row-map": "has no packed_rows", "normalisation": "no loss of its own", "own-objective": "no loss"},
    "padded-left": {"row-map": "has no packed_rows", "normalisation": "no loss of its own", "own-objective": "no loss"},
}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_an_honest_subject_passes_every_check_that_it_can_be_put_to(
    subject: Subject, put: Callable[..., dict[str, Finding]]
) -> None:
    findings = put(subject)
    assert list(findings) == [check.name for check in EXACT_CHECKS]
    not_put = NOT_PUT.get(subject.name, {})
    for name, finding in findings.items():
        if name in not_put:
            assert finding.verdict is Verdict.NOT_APPLICABLE
            assert not_put[name] in finding.reason
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
