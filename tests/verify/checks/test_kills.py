"""Every exact check kills a planted fault, and none flags a change that its proof covers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from verify.checks.check import EXACT_CHECK_NAMES
from verify.fault_request import FaultOptions, prepare_faults
from verify.faults.exact_checks import exact_findings
from verify.faults.fault import EquivalentMutant, Fault, Mutation
from verify.threads import torch_threads
from verify.verdict import Verdict

KILLED_BY = {
    "branch-isolation": "branches-not-isolated",
    "group-isolation": "trees-not-isolated",
    "causality": "sees-the-future",
    "reach": "prompt-cache-detached",
    "row-map": "block-missing",
    "absolute-positions": "positions-zero",
    "permutation": "positions-run-on",
    "repeat": "last-bit-differs-from-call-to-call",
    "normalisation": "coefficients-permuted",
    "own-objective": "beta-missing",
    "optimizer-steps": "adapters-merged-once",
    "gradient-checkpointing": "attention-gone-when-layers-run-again",
    "dropout": "evaluation-mode-left-on",
}
"""A fault that each check kills; those below are the only exact checks that see theirs."""
OF_EXAMPLES = {
    "no-cross-attention", "no-boundary-target", "no-padding-in-loss", "positions-as-unpacked", "same-number-of-targets",
}  # fmt: skip
"""What they kill is in test_supervised_packing."""
ONLY_IT = ("reach", "row-map", "repeat", "normalisation", "optimizer-steps", "gradient-checkpointing", "dropout")


HARMLESS = (
    "nothing-replaced", "positions-shifted", "branches-reordered", "padding-in-front", "prompt-in-two-segments",
    "junk-in-padding", "padding-sees-everything", "logits-in-chunks", "micro-batches-weighted",
)  # fmt: skip
DEEP = "sixth-level-one-late"

Found = Mapping[str, tuple[Mutation, set[str]]]


@pytest.fixture(scope="module")
def found() -> Found:
    """Each mutation with the exact checks that flag it; all are put to them on one model and share its yardsticks."""
    names = (*KILLED_BY.values(), *HARMLESS, DEEP)
    (run,) = prepare_faults(FaultOptions(faults=names, dtypes=("float32",))).runs
    with torch_threads(1):
        findings = exact_findings(run.request, run.mutations, lambda text: None)
    assert not [finding for finding in findings if finding.verdict is Verdict.ERROR]
    return {
        mutation.name: (mutation, {f.check for f in findings if f.subject == subject and f.verdict is Verdict.FAIL})
        for subject, mutation in run.mutations.items()
    }


def test_every_exact_check_kills_a_planted_fault(found: Found) -> None:
    assert KILLED_BY.keys() | OF_EXAMPLES == set(EXACT_CHECK_NAMES)
    for check, fault in KILLED_BY.items():
        mutation, seen_by = found[fault]
        assert check in seen_by
        assert isinstance(mutation, Fault)
        assert seen_by >= set(mutation.must_kill) & set(EXACT_CHECK_NAMES)
        if check in ONLY_IT:
            assert seen_by == {check}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_is_seen_only_where_its_proof_does_not_hold(name: str, found: Found) -> None:
    mutation, seen_by = found[name]
    assert isinstance(mutation, EquivalentMutant)
    assert seen_by == set(mutation.outside_proof)


def test_a_position_below_five_segments_is_seen_by_the_row_map(found: Found) -> None:
    """No other case of the checks has a segment that deep, and what rounding hides in bfloat16 is plain in integers."""
    assert found[DEEP][1] == {"row-map"}
