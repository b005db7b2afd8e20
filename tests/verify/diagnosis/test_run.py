"""From results of the gate to records: who is diagnosed, on what, and who is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verify.cases import Case
from verify.diagnosis import run
from verify.diagnosis.run import Diagnoses, diagnose_failures
from verify.faults.fault import Fault
from verify.gate import GateRequest, Result, run_gate
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import DpoSigmoid
from verify.subject import Subject
from verify.tolerance import Policy
from verify.verdict import Verdict

Diagnose = Callable[..., tuple[Diagnoses, tuple[Result, ...]]]


@pytest.fixture
def diagnose(policy: Policy, few_faults: tuple[Fault, ...], two_pairs_case: Case) -> Diagnose:
    def judge_and_diagnose(*subjects: Subject, **changes: Any) -> tuple[Diagnoses, tuple[Result, ...]]:
        request = GateRequest(
            model=ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)),
            dtypes=changes.get("dtypes", ("float32",)),
            subjects=subjects,
            cases=(two_pairs_case,),
            objective=DpoSigmoid(beta=0.1),
            policy=policy,
            variations=("eager", "padded-left"),
        )
        results = run_gate(request, lambda done, total, text: None).results
        found = diagnose_failures(
            request,
            results,
            lambda done, total, text: None,
            large=changes.get("large", False),
            reproductions={("causal-mask-only", "float32"): "reproductions/0"},
            faults=few_faults,
        )
        return found, results

    return judge_and_diagnose


def test_nothing_is_diagnosed_where_nothing_failed(diagnose: Diagnose, third_party: Callable[[str], Subject]) -> None:
    found, results = diagnose(third_party("ByHand"), third_party("Raises"), third_party("SaysNo"))
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.ERROR, Verdict.NOT_APPLICABLE]
    assert found == Diagnoses()


def test_a_failure_becomes_a_record(diagnose: Diagnose, third_party: Callable[[str], Subject]) -> None:
    found, _ = diagnose(third_party("ByHand"), third_party("CausalMaskOnly"))
    (record,) = found.records
    assert (record.subject, record.dtype, record.case) == ("causal-mask-only", "float32", "diagnosis")
    assert record.stages[0].stage == "mask"
    assert record.worst.startswith("case two-pairs, ")
    assert "times the budget" in record.worst
    assert record.reproduction == "reproductions/0"
    assert record.patterns[0].startswith("all tokens but the first differ in the rejected response")


def test_a_value_that_is_not_a_number_can_be_recorded(
    diagnose: Diagnose, third_party: Callable[[str], Subject]
) -> None:
    found, _ = diagnose(third_party("NanAtOneToken"))
    (record,) = found.records
    assert "nan" in record.worst
    assert record.stages[0].stage == "token_logps"
    assert type(record).model_validate_json(record.model_dump_json()) == record


def test_a_large_model_is_left_alone(diagnose: Diagnose, third_party: Callable[[str], Subject]) -> None:
    found, _ = diagnose(third_party("NeighbourPredicts"), large=True)
    (record,) = found.records
    assert record.stages[0].stage == "predictors"
    assert record.notes[0].startswith("the subject was run again on the tiny model")


def test_only_so_many_subjects_are_diagnosed(
    diagnose: Diagnose, third_party: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "AT_MOST", 1)
    found, _ = diagnose(third_party("NeighbourPredicts"), third_party("MeanInsteadOfSum"))
    assert [record.subject for record in found.records] == ["neighbour-predicts"]
    assert found.notes == ("not diagnosed, since 1 subjects were: mean-instead-of-sum",)


def test_the_most_exact_dtype_in_which_it_fails_is_taken(
    diagnose: Diagnose, third_party: Callable[[str], Subject]
) -> None:
    found, _ = diagnose(third_party("NeighbourPredicts"), dtypes=("float32", "float64"))
    (record,) = found.records
    assert record.dtype == "float64"
    assert record.notes == ["it fails in float32 too"]


class FailsOnce:
    """Wrong for the gate, right when it is run again."""

    name = "fails-once"

    def __init__(self, wrong: Subject, right: Subject, times: int) -> None:
        self._wrong, self._right, self._left = wrong, right, times

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        self._left -= 1
        return (self._wrong if self._left >= 0 else self._right).per_token_logps(model, groups)


def test_a_subject_that_does_not_fail_again_keeps_what_the_gate_saw(
    diagnose: Diagnose, third_party: Callable[[str], Subject]
) -> None:
    found, _ = diagnose(FailsOnce(third_party("NeighbourPredicts"), third_party("ByHand"), times=2))
    (record,) = found.records
    assert record.case == "two-pairs"
    assert record.stages == []
    assert record.worst.startswith("case two-pairs")
    assert record.notes[-1].startswith("the subject did not fail again")
