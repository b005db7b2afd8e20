"""A pass that would prove nothing is INCONCLUSIVE, and says why; a failure stays one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from verify.cases import Case
from verify.comparison import Comparison, Quantity
from verify.gate import GateOutcome, Result
from verify.groups import PreferenceGroup
from verify.models.lora import LoraSpec
from verify.models.request import ModelUnderTest
from verify.objective import Preference
from verify.observation import Observation
from verify.packed_proof import summarise
from verify.subject import Subject
from verify.subjects.oracle import observe_oracle
from verify.subjects.packed import PackedSubject
from verify.subjects.pairwise import VARIATIONS
from verify.tolerance import PlausibleErrors, Policy
from verify.vacuity import implausible_witness, is_satisfied, vacuous_adapters, vacuous_expectation
from verify.verdict import Verdict

Gate = Callable[..., GateOutcome]
Subjects = Callable[[str], Subject]


def doubtful(policy: Policy) -> Policy:
    """The default policy, but for a bound on the witness that no float32 model keeps."""
    bounds = PlausibleErrors(per_token_logps_rms=1e-12, gradients_rms=1e-12)
    return policy.model_copy(update={"plausible": policy.plausible.model_copy(update={"float32": bounds})})


# Through the gate.


def test_adapters_at_their_usual_start_prove_nothing(gate: Gate, third_party: Subjects, short_case: Case) -> None:
    """B = 0: policy and reference agree, every reward is 0 and the loss is ln 2 whatever a mask does."""
    outcome = gate([third_party("ByHand")], [short_case], lora=LoraSpec(strength=0.0))
    (result,) = outcome.results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert {judgement.verdict for judgement in result.judgements} == {Verdict.PASS}
    reasons = "; ".join(result.reasons)
    assert "7 LoRA tensors are zero (" in reasons
    assert "the policy equals the reference" in reasons
    assert "the margin of group 0 is exactly zero" in reasons
    assert "expected gradients are zero throughout" in reasons


def under_hinge(case: Case, name: str, *, exchanged: bool) -> Case:
    """The case under the hinge; with its responses exchanged its margin has the other sign."""
    groups = tuple(replace(g, positives=g.negatives, negatives=g.positives) if exchanged else g for g in case.groups)
    return replace(case, name=name, groups=groups, objective_name="hinge")


class Sigmoid(PackedSubject):
    """Has the gradient of another objective, which is nowhere 0."""

    name = "sigmoid"

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        return super().loss(model, groups, replace(objective, name="sigmoid"))


def test_a_pair_beyond_the_hinge_has_gradients_of_zero_and_is_judged(gate: Gate, short_case: Case) -> None:
    """Its margin is three times a difference of log-probs, and the other way round less three times that difference."""
    cases = [under_hinge(short_case, f"exchanged-{way}", exchanged=way) for way in (False, True)]
    subjects = [PackedSubject(backend="dense-sdpa"), Sigmoid(backend="split")]
    of_hinge = Preference(name="hinge", beta=3.0)
    results = gate(subjects, cases, objective=of_hinge).results
    losses = {r.case: next(j for j in r.judgements if j.quantity == "loss") for r in results if r.subject != "sigmoid"}
    satisfied = [name for name, loss in losses.items() if loss.budget is not None and loss.measured == 0]
    assert len(satisfied) == 1
    assert {r.verdict for r in results if r.subject != "sigmoid"} == {Verdict.PASS}
    assert {r.verdict for r in results if r.subject == "sigmoid"} == {Verdict.FAIL}
    (alone,) = gate(subjects[:1], [case for case in cases if case.name in satisfied], objective=of_hinge).results
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert alone.reasons[0] == "no pair of any case is within the hinge: every gradient is zero"


def test_at_the_usual_start_only_the_log_probs_would_show_a_wrong_mask(
    gate: Gate, third_party: Subjects, short_case: Case
) -> None:
    """Why such a pass is empty: rewards, margins and the loss of a wrong subject are those of a right one."""
    (result,) = gate([third_party("CausalMaskOnly")], [short_case], lora=LoraSpec(strength=0.0)).results
    assert result.verdict is Verdict.FAIL
    wrong = {judgement.quantity for judgement in result.judgements if judgement.verdict is Verdict.FAIL}
    assert wrong >= {"per_token_logps", "ref_per_token_logps"}
    assert not wrong & {"rewards", "margins", "loss"}


def test_identical_responses_prove_nothing(gate: Gate, third_party: Subjects) -> None:
    response = (4, 9, 2, 61, 5)
    case = Case(name="same", why="", groups=(PreferenceGroup((3, 1, 4, 1, 5), (response,), (response,)),))
    (result,) = gate([third_party("ByHand")], [case]).results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "the margin of group 0 is exactly zero (equal responses?)" in result.reasons


def test_witnesses_that_disagree_prove_nothing_either_way(
    gate: Gate, third_party: Subjects, short_case: Case, policy: Policy
) -> None:
    subjects = [third_party(name) for name in ("ByHand", "PositionsRunOn", "NanAtOneToken", "Raises", "SaysNo")]
    right, wrong, nan, raises, says_no = gate(subjects, [short_case], policy=doubtful(policy)).results
    for result in (right, wrong):
        assert result.verdict is Verdict.INCONCLUSIVE
        assert result.reasons[0].startswith(
            "oracle and unpacked model (pairwise) disagree: RMS distance in per_token_logps is "
        )
        assert "plausible up to 1e-12" in result.reasons[0]
    assert nan.verdict is Verdict.FAIL, "no budget is needed to see that NaN is wrong"
    assert raises.verdict is Verdict.ERROR
    assert says_no.verdict is Verdict.NOT_APPLICABLE


def test_an_oracle_with_another_weight_is_noticed(
    gate: Gate, third_party: Subjects, short_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the oracle's decoder were wrong: the subject, though right, is neither passed nor failed."""

    def other_weight(model: Any, *arguments: Any) -> Observation:
        (weight,) = [p for n, p in model.named_parameters() if n.endswith("layers.0.mlp.down_proj.base_layer.weight")]
        before = weight.detach().clone()
        weight.data[0, 0] += 0.5
        try:
            return observe_oracle(model, *arguments)
        finally:
            weight.data.copy_(before)

    monkeypatch.setattr("verify.expectation.observe_oracle", other_weight)
    (result,) = gate([third_party("ByHand")], [short_case]).results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reasons[0].startswith("oracle and unpacked model (pairwise) disagree")


def test_a_broken_form_of_the_unpacked_path_does_not_widen_the_budgets(
    gate: Gate, third_party: Subjects, short_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if transformers had left padding wrong: its error would be the noise floor, and the same fault would pass."""
    monkeypatch.setitem(VARIATIONS, "padded-left", third_party("PositionsRunOn"))
    subjects = [third_party(name) for name in ("ByHand", "ShiftedLogps")]
    for result in gate(subjects, [short_case], variations=("eager", "padded-left")).results:
        assert result.verdict is Verdict.INCONCLUSIVE
        assert result.reasons[0].startswith("oracle and unpacked model (padded-left) disagree: ")


def test_a_doubt_in_one_case_makes_the_whole_subject_inconclusive(
    gate: Gate, third_party: Subjects, short_case: Case
) -> None:
    response = (4, 9, 2)
    same = Case(name="same", why="", groups=(PreferenceGroup((3, 1), (response,), (response,)),))
    subjects = [third_party("ByHand")]
    outcome = gate(subjects, [short_case, same])
    by_case: dict[str, Result] = {result.case: result for result in outcome.results}
    assert by_case["same"].verdict is Verdict.INCONCLUSIVE
    assert by_case["same"].reasons[0] == "the margin of group 0 is exactly zero (equal responses?)"
    (summary,) = summarise(outcome.results, subjects, ["float32"])
    assert summary.verdict is Verdict.INCONCLUSIVE


# By themselves.


def test_adapters_in_use_are_not_vacuous(tiny: Callable[[str], ModelUnderTest]) -> None:
    assert vacuous_adapters(tiny("float32").model) == ()


def test_one_zero_factor_is_enough_and_is_named(tiny: Callable[[str], ModelUnderTest]) -> None:
    model = tiny("float32").model
    name, factor = next((n, p) for n, p in model.named_parameters() if "k_proj.lora_B" in n)
    before = factor.detach().clone()
    factor.data.zero_()
    try:
        (reason,) = vacuous_adapters(model)
    finally:
        factor.data.copy_(before)
    assert reason.startswith(f"1 LoRA tensors are zero ({name})")


def test_a_model_without_adapters_is_vacuous() -> None:
    (reason,) = vacuous_adapters(torch.nn.Linear(2, 2).requires_grad_(False))
    assert reason == "the model has no tensor that is trained: no gradient would be compared"


PAIRS = (PreferenceGroup((1,), ((2, 3),), ((4,),)),) * 2


@pytest.fixture
def sound() -> Observation:
    return Observation(
        per_token_logps=(torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])),
        ref_per_token_logps=(torch.tensor([-1.5, -2.0]), torch.tensor([-3.0])),
        rewards=torch.tensor([0.05, 0.0]),
        margins=torch.tensor([0.05]),
        loss=torch.tensor(0.7),
        gradients={"m.lora_A": torch.tensor([[0.0, 1e-30]]), "m.lora_B": torch.ones(2, 1)},
    )


def test_a_sound_expectation_gives_no_reason(sound: Observation) -> None:
    """One reward of zero, one gradient entry of zero and tiny values are nothing to object to."""
    assert vacuous_expectation(sound, PAIRS, objective_name="sigmoid") == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ref_per_token_logps": (torch.tensor([-1.0, -2]), torch.tensor([-3.0]))}, "policy equals the reference"),
        ({"margins": torch.tensor([0.3, 0.0])}, "the margin of group 1 is exactly zero"),
        ({"margins": torch.tensor([-0.0])}, "the margin of group 0 is exactly zero"),
        ({"gradients": {"a": torch.zeros(1, 2), "b": torch.ones(2, 1)}}, r"1 expected gradients are zero .*\(a\)"),
    ],
    ids=["policy-is-reference", "one-margin", "negative-zero", "one-gradient"],
)  # fmt: skip
def test_each_empty_expectation_gives_its_reason(sound: Observation, change: dict[str, Any], reason: str) -> None:
    (found,) = vacuous_expectation(replace(sound, **change), PAIRS, objective_name="sigmoid")
    assert re.search(reason, found)


@pytest.mark.parametrize(
    ("objective_name", "margins", "satisfied"),
    [("hinge", (1.0, 3.0), True), ("hinge", (1.0, 0.99), False), ("sigmoid", (1.0, 3.0), False), ("hinge", (), False)],
)
def test_gradients_of_zero_are_right_where_the_hinge_makes_all_of_them_so(
    sound: Observation, objective_name: Any, margins: tuple[float, ...], satisfied: bool
) -> None:
    found = replace(sound, margins=torch.tensor(margins), gradients={"a": torch.zeros(2)})
    assert is_satisfied(found, objective_name) is satisfied
    assert (vacuous_expectation(found, PAIRS, objective_name=objective_name) == ()) is satisfied


BOUNDS = PlausibleErrors(per_token_logps_rms=1e-3, gradients_rms=1e-2)


@pytest.mark.parametrize(
    ("distances", "reasons"),
    [
        ([("per_token_logps", 1e-3, ""), ("gradients", 1e-2, "m.lora_A")], []),
        ([("per_token_logps", 1.1e-3, "")], ["in per_token_logps is 0.0011, plausible up to 0.001"]),
        ([("ref_per_token_logps", 2.0, "")], ["in ref_per_token_logps is 2"]),
        ([("gradients", 0.02, "m.lora_A")], ["in gradients of m.lora_A is 0.02, plausible up to 0.01"]),
        ([("per_token_logps", math.nan, "")], ["in per_token_logps is nan"]),
        ([("gradients", math.inf, "m.lora_B")], ["in gradients of m.lora_B is inf"]),
        ([("gradients", 1.0, f"m{i}") for i in range(5)], ["of m0", "of m1", "and 3 more quantities"]),
    ],
    ids=["within", "log-probs", "reference", "gradient", "nan", "inf", "many"],
)
def test_the_witness_is_held_to_what_the_dtype_explains(
    distances: Sequence[tuple[Quantity, float, str]], reasons: Sequence[str], make_comparison: Callable[..., Comparison]
) -> None:
    comparisons = [make_comparison(quantity, rms, part=part) for quantity, rms, part in distances]
    found = implausible_witness({"pairwise": comparisons}, BOUNDS)
    assert len(found) == len(reasons)
    assert all(reason in text for reason, text in zip(reasons, found, strict=True))


def test_every_form_of_the_unpacked_path_is_held_to_the_bounds(make_comparison: Callable[..., Comparison]) -> None:
    fine, off = make_comparison("per_token_logps", 1e-4), make_comparison("per_token_logps", 0.5)
    assert implausible_witness({"pairwise": [fine], "eager": [fine]}, BOUNDS) == ()
    (reason,) = implausible_witness({"pairwise": [fine], "eager": [off], "padded-left": [off]}, BOUNDS)
    assert reason.startswith("oracle and unpacked model (eager) disagree: RMS distance in per_token_logps is 0.5")
