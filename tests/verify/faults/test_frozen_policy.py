"""Faults of the reference pass over every frozen policy, on the cases that ``check --full`` has over each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from verify.default_cases.references import reference_cases
from verify.faults.catalogue import FAULTS, FAULTS_OF_REFERENCES, mutation_named
from verify.faults.fault import Packing
from verify.faults.kill_matrix import Outcome, kill_of
from verify.frozen_policy import REFERENCE_NAMES
from verify.gate import GateOutcome
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject
from verify.subjects.honest_stages import honest_stages
from verify.verdict import Verdict

CASES = reference_cases(257, 0)
OTHERS = REFERENCE_NAMES[1:]
OF_ANY = tuple(fault for fault in FAULTS if fault.stage == "reference" and "parity" in fault.must_kill)
"""Those whose values are wrong whatever the frozen policy is."""


def test_each_other_frozen_policy_has_a_case_of_pairs_and_one_of_larger_groups() -> None:
    assert {(case.reference, case.kind) for case in CASES} == {(n, k) for n in OTHERS for k in ("pairs", "groups")}
    assert [case.name for case in CASES if case.kind == "pairs"] == [f"reference-{name}" for name in OTHERS]


@pytest.fixture(scope="module")
def outcomes(gate: Callable[..., GateOutcome]) -> Mapping[str, GateOutcome]:
    """By frozen policy; the model of the run has its adapters off."""
    faults = [FaultySubject(mutation=fault) for fault in (*OF_ANY, *FAULTS_OF_REFERENCES)]
    variations = ("eager", "padded-left")
    return {
        name: gate([FaultySubject(), *faults], [c for c in CASES if c.reference == name], variations=variations)
        for name in OTHERS
    }


@pytest.mark.parametrize("reference", OTHERS)
def test_the_honest_step_passes(outcomes: Mapping[str, GateOutcome], reference: str) -> None:
    found = [result.verdict for result in outcomes[reference].results if result.subject == "fault:none"]
    assert found == [Verdict.PASS, Verdict.PASS]


@pytest.mark.parametrize("reference", OTHERS)
def test_every_fault_of_the_reference_pass_is_killed(outcomes: Mapping[str, GateOutcome], reference: str) -> None:
    """The faults of one frozen policy are harmless over the others."""
    of_policy = dict(zip(OTHERS, (fault.name for fault in FAULTS_OF_REFERENCES), strict=True))
    for fault in (*OF_ANY, *FAULTS_OF_REFERENCES):
        subject = FaultySubject(mutation=fault)
        (summary,) = summarise(outcomes[reference].results, [subject], ["float32"])
        bites = [case.name for case in CASES if case.reference == reference and fault.bites(case)]
        assert bool(bites) is (fault not in FAULTS_OF_REFERENCES or fault.name == of_policy[reference]), fault.name
        if bites:
            kill = kill_of(fault, summary)
            assert kill.outcome is Outcome.KILLED, (fault.name, kill.reasons)
            assert kill.weakest_margin > 10, fault.name


def test_what_is_found_by_the_response_is_that_of_its_first_prompt() -> None:
    (pairs,) = (case for case in CASES if case.name == "reference-cached")
    stages = honest_stages(Packing())
    rows = stages.layout(pairs.groups)
    values = torch.arange(sum(len(branch.tokens) for branch in rows.branches()))
    found = mutation_named("cached-by-response").replacement(lambda *given: values, None, None, rows)
    # Chosen 0 has five tokens, rejected 0 three, chosen 1 two; rejected 1 is chosen 0 again.
    assert found.tolist() == [*range(10), *range(5), *range(15, len(values))]
