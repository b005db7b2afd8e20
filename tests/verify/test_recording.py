"""From what was measured to what is kept: nothing is lost, and the verdict is the fold of what is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from reports.record import Record
from reports.store import record_json
from verify.cases import Case
from verify.environment import peak_host_bytes, read_environment
from verify.gate import GateOutcome, GateRequest, run_gate
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.recording import RunFacts, record_run
from verify.subject import Subject
from verify.threads import torch_threads
from verify.tolerance import Policy

FACTS = RunFacts(
    command=["packparity", "check"],
    environment=read_environment("cpu"),
    import_s=1.0,
    total_s=2.0,
    seeds={"weights": 0},
    data=None,
    notes=["a note"],
)
NAMES = ("ByHand", "NanAtOneToken", "PaddedButSaysPacked", "Raises", "SaysNo", "OwnLoss")


@pytest.fixture(scope="module")
def request_(
    third_party: Callable[[str], Subject], short_case: Case, two_pairs_case: Case, policy: Policy
) -> GateRequest:
    return GateRequest(
        model=ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)),
        dtypes=("float64", "float32"),
        subjects=tuple(third_party(name) for name in NAMES),
        cases=(short_case, two_pairs_case),
        objective=Preference(beta=0.3),
        policy=policy,
        variations=("eager",),
    )


@pytest.fixture(scope="module")
def outcome(request_: GateRequest) -> GateOutcome:
    return run_gate(request_, lambda done, total, text: None)


@pytest.fixture(scope="module")
def record(request_: GateRequest, outcome: GateOutcome) -> Record:
    return record_run(request_, outcome, FACTS)


def test_the_verdict_of_the_run_is_the_fold_of_what_is_shown(
    record: Record, request_: GateRequest, outcome: GateOutcome
) -> None:
    verdicts = {(s.subject, s.dtype): s.verdict for s in record.summaries}
    for dtype in ("float64", "float32"):
        assert verdicts["by-hand", dtype] == verdicts["own-loss", dtype] == "PASS"
        assert verdicts["nan-at-one-token", dtype] == "FAIL"
        assert verdicts["padded-but-says-packed", dtype] == "INCONCLUSIVE"
        assert verdicts["raises", dtype] == "ERROR"
        assert verdicts["says-no", dtype] == "NOT_APPLICABLE"
    assert record.verdict == "ERROR"


@pytest.mark.parametrize(
    ("kept", "verdict"),
    [
        (("by-hand", "own-loss"), "PASS"),
        (("by-hand", "says-no"), "PASS"),
        (("says-no",), "NOT_APPLICABLE"),
        (("by-hand", "padded-but-says-packed"), "INCONCLUSIVE"),
        (("nan-at-one-token", "padded-but-says-packed"), "FAIL"),
        (("nan-at-one-token", "raises"), "ERROR"),
    ],
)
def test_one_subject_decides_for_the_run(
    request_: GateRequest, outcome: GateOutcome, kept: tuple[str, ...], verdict: str
) -> None:
    """Padded rows have right values in every case: only the summary knows that they prove nothing."""
    narrowed = replace(request_, subjects=tuple(s for s in request_.subjects if s.name in kept))
    results = tuple(result for result in outcome.results if result.subject in kept)
    found = record_run(narrowed, replace(outcome, results=results), FACTS)
    assert found.verdict == verdict
    assert bool(found.reasons) is (verdict not in ("PASS", "NOT_APPLICABLE"))


def test_every_result_and_every_judgement_is_kept(record: Record, outcome: GateOutcome) -> None:
    assert len(record.results) == len(outcome.results) == 2 * 2 * len(NAMES)
    assert sum(record.counts.values()) == len(record.results)
    assert record.num_compared == sum(result.num_compared for result in outcome.results)
    for kept, measured in zip(record.results, outcome.results, strict=True):
        assert (kept.case, kept.subject, kept.dtype) == (measured.case, measured.subject, measured.dtype)
        assert kept.verdict == measured.verdict.value
        assert len(kept.judgements) == len(measured.judgements)
        for one, other in zip(kept.judgements, measured.judgements, strict=True):
            assert other.budget is not None
            assert (one.quantity, one.budget_kind, one.statistic) == (other.quantity, other.kind, other.statistic)
            assert (one.budget, one.factor, one.floor) == (other.budget.value, other.budget.factor, other.budget.floor)
            assert one.witness_error == other.budget.noise
            assert one.measured == other.measured or (math.isnan(one.measured or 0) and math.isnan(other.measured or 0))


def test_reasons_name_subject_dtype_and_case(record: Record) -> None:
    (reason,) = [r for r in record.reasons if r.startswith("nan-at-one-token in float32: ")]
    assert "case one-pair is FAIL: per_token_logps: nan at group 0, rejected, token 2" in reason
    assert any(r.startswith("padded-but-says-packed in float64: says packed, but ") for r in record.reasons)
    assert any(
        "raises in float32: case one-pair is ERROR: subject raises raised RuntimeError" in r for r in record.reasons
    )


def test_the_worst_ratio_of_a_subject_is_over_all_its_cases(record: Record) -> None:
    for summary in record.summaries:
        ratios: dict[str, float] = {}
        for result in record.results:
            if (result.subject, result.dtype) == (summary.subject, summary.dtype):
                for j in result.judgements:
                    finite = j.measured is not None and math.isfinite(j.measured)
                    ratio = j.measured / j.budget if finite else math.inf  # type: ignore[operator]
                    ratios[j.quantity] = max(ratios.get(j.quantity, 0.0), ratio)
        assert summary.worst_ratio == pytest.approx(ratios)


def test_slots_are_those_of_a_policy_and_a_reference_pass(record: Record) -> None:
    """Prompt 14, chosen 11, rejected 8: 33 slots packed, 47 unpacked, each twice."""
    by_subject = {r.subject: r.slots for r in record.results if r.case == "one-pair" and r.dtype == "float32"}
    assert by_subject["by-hand"] is not None
    assert (by_subject["by-hand"].slots, by_subject["by-hand"].pairwise_slots) == (2 * 33, 2 * 47)
    assert by_subject["raises"] is None
    assert by_subject["says-no"] is None


def test_the_weights_are_named_by_what_they_are(
    request_: GateRequest, gate: Callable[..., GateOutcome], short_case: Case
) -> None:
    """The digest is the same for every dtype that holds the same values, and another for another seed."""

    def digest(dtype: str, seed: int) -> str | None:
        model = replace(request_.model, seed=seed)
        done = gate([request_.subjects[4]], [short_case], dtypes=(dtype,), model=model, variations=("eager",))
        narrowed = replace(request_, model=model, subjects=request_.subjects[4:5], dtypes=(dtype,), cases=(short_case,))
        return record_run(narrowed, done, FACTS).model.weights_sha256

    wide = digest("float64", 0)
    assert wide
    assert wide == digest("bfloat16", 0) != digest("float32", 1)


def test_the_model_is_described_without_its_adapters(record: Record) -> None:
    assert (record.model.name, record.model.num_layers) == ("tiny", 1)
    assert (
        record.model.num_parameters == 2 * 257 * 64 + (64 * (128 + 64 + 64) + 128 * 64 + 2 * 32) + 3 * 64 * 96 + 3 * 64
    )
    assert record.model.lora["strength"] == 0.3
    assert record.model.config["head_dim"] == 32


def test_what_is_kept_is_json_also_where_values_are_not_numbers(record: Record) -> None:
    assert json.loads(record_json(record))["verdict"] == "ERROR"
    assert Record.model_validate_json(record_json(record)).verdict == "ERROR"


def test_the_environment_names_versions_threads_and_device() -> None:
    with torch_threads(1):
        found = read_environment("cpu")
    assert found.packages["torch"] == torch.__version__
    assert (found.num_threads, found.device) == (1, "cpu")
    assert found.processor
    assert 10**7 < peak_host_bytes() < 10**12


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="boom"), torch_threads(before + 1):
        _boom(before + 1)
    with torch_threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def _boom(expected_threads: int) -> None:
    assert torch.get_num_threads() == expected_threads
    raise RuntimeError("boom")
