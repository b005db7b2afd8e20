"""The gate end to end: wrong subjects fail at the right place, right ones pass however odd, broken ones are errors.

All of them take part in one run, on one model, one after the other: nothing that a subject does may reach the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from verify.cases import Case
from verify.gate import GateOutcome, GateRequest, Result, run_gate
from verify.gate_work import WitnessError
from verify.groups import PreferenceGroup
from verify.judgement import Judgement
from verify.models.request import ModelRequest, ModelUnderTest, build_model
from verify.objective import Preference
from verify.packed_proof import Summary, summarise
from verify.subject import Subject
from verify.subjects.selection import BUILT_IN
from verify.threads import torch_threads
from verify.tolerance import Policy
from verify.verdict import Verdict

EVERYTHING = {"per_token_logps", "ref_per_token_logps", "rewards", "margins", "loss", "gradients"}
OWN_LOSS = {"rewards", "margins", "loss", "gradients"}

# What a subject gets wrong, and the place that is named for the first of it in the case of one pair.
WRONG: dict[str, tuple[set[str], str]] = {
    "OffByOnePredictor": (EVERYTHING, "group 0, "),
    "NeighbourPredicts": (EVERYTHING, "group 0, rejected, token 0, predicted from the last prompt token"),
    "PositionsRunOn": (EVERYTHING, "group 0, rejected, "),
    "CausalMaskOnly": (EVERYTHING, "group 0, rejected, "),
    "AdaptersStayOn": (EVERYTHING - {"per_token_logps"}, "group 0, "),
    "ShiftedLogps": ({"per_token_logps", "ref_per_token_logps"}, "group 0, "),
    "Bfloat16LogSoftmax": (EVERYTHING, "group 0, "),
    "NanAtOneToken": (EVERYTHING, "group 0, rejected, token 2, predicted from its token 1"),
    "OneGradientScaled": ({"gradients"}, "model.layers.0.mlp.up_proj.lora_A["),
    "OneGradientZero": ({"gradients"}, "model.layers.0.mlp.up_proj.lora_A["),
    "MeanInsteadOfSum": (OWN_LOSS, "group 0, "),
    "BetaMissing": (OWN_LOSS, "group 0, "),
    "ChosenAndRejectedSwapped": ({"loss", "gradients"}, "loss"),
    "LastTokenDropped": (OWN_LOSS, "group 0, "),
}
RIGHT = ("ByHand", "ReverseOrder", "ChunkedOverTokens", "Checkpointed", "LeavesAttentionChanged", "OwnLoss")
PROVES_NOTHING = {
    "PaddedButSaysPacked": "rows where unpacked rows feed 246 in 12: the packed path did not run",
    "PadsThePolicyOnly": "the policy pass of log-probs fed 126 token slots in 6 rows where unpacked rows feed 123 in 6",
    "BypassesTheEmbedding": "no token passed the model's embedding",
}
BROKEN = {
    "Raises": "subject raises raised RuntimeError: the kernel does not know this head size",
    "CallsExit": "subject calls-exit raised SystemExit: 0",
    "OneTensorShort": "returned 1 tensors for 2 completions",
    "OneTokenShort": "group 0, completion 0: shape (10,); the completion has 11 tokens, so (11,)",
    "ReturnsFloats": "group 0, completion 0: list; a tensor is needed",
    "ReturnsOneTensor": "per_token_logps returned Tensor; it must return a list of tensors",
    "Detached": "group 0, completion 0: carries no graph",
    "ChangesWeights": "changed the model: base_model.model.model.layers.0.mlp.up_proj.lora_B.default.weight",
}
ALL = (*WRONG, *RIGHT, *PROVES_NOTHING, *BROKEN, "ReturnsRejectedFirst", "OneGradientMissing", "SaysNo")


@dataclass(frozen=True)
class Run:
    """The run of all third parties' subjects, by class and case."""

    outcome: GateOutcome
    results: dict[tuple[str, str], Result]
    summaries: dict[str, Summary]


@pytest.fixture(scope="module")
def run(
    gate: Callable[..., GateOutcome],
    third_party: Callable[[str], Subject],
    short_case: Case,
    two_pairs_case: Case,
) -> Run:
    subjects = {name: third_party(name) for name in ALL}
    outcome = gate(list(subjects.values()), [short_case, two_pairs_case])
    by_name = {(r.subject, r.case): r for r in outcome.results}
    summaries = summarise(outcome.results, list(subjects.values()), ["float32"])
    return Run(
        outcome,
        {(c, case): by_name[s.name, case] for c, s in subjects.items() for case in ("one-pair", "two-pairs")},
        {c: next(summary for summary in summaries if summary.subject == s.name) for c, s in subjects.items()},
    )


def failed(result: Result) -> list[Judgement]:
    return [judgement for judgement in result.judgements if judgement.verdict is Verdict.FAIL]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("case", ["one-pair", "two-pairs"])
def test_a_wrong_subject_fails_in_the_quantities_that_it_gets_wrong(run: Run, name: str, case: str) -> None:
    result = run.results[name, case]
    assert result.verdict is Verdict.FAIL
    assert {judgement.quantity for judgement in failed(result)} == WRONG[name][0]
    assert {judgement.kind for judgement in failed(result)} == {"oracle", "differential"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_subject_is_wrong_by_far(run: Run, name: str) -> None:
    """The smallest of these faults is one part in a thousand: ten budgets and more, as faults of the catalogue have to.

    Noise is the processor's: this fault was 93 and more than 100 times as large on two.
    """
    assert max(j.ratio for j in failed(run.results[name, "one-pair"])) > 10


@pytest.mark.parametrize("name", WRONG)
def test_the_place_of_a_fault_is_named(run: Run, name: str) -> None:
    first = failed(run.results[name, "one-pair"])[0]
    assert first.worst[0].where.startswith(WRONG[name][1])
    assert WRONG[name][1] in run.results[name, "one-pair"].reasons[0]


@pytest.mark.parametrize("name", ["NeighbourPredicts", "PositionsRunOn", "CausalMaskOnly"])
def test_a_fault_of_the_rejected_branch_leaves_the_chosen_one_alone(run: Run, name: str) -> None:
    for judgement in failed(run.results[name, "two-pairs"])[:2]:
        assert judgement.quantity == "per_token_logps"
        assert all("rejected" in place.where for place in judgement.worst[:2])


def test_nan_is_named_with_what_was_expected(run: Run) -> None:
    result = run.results["NanAtOneToken", "two-pairs"]
    assert result.reasons[0].startswith(
        "per_token_logps: nan at group 1, rejected, token 2, predicted from its token 1"
    )
    assert "(expected -" in result.reasons[0]
    assert {math.isnan(judgement.measured or 0.0) for judgement in failed(result)} == {True}
    assert all(judgement.ratio == math.inf for judgement in failed(result))


def test_responses_returned_in_another_order_are_an_error_or_a_failure_but_never_a_pass(run: Run) -> None:
    """Of unequal lengths the shapes tell; of equal lengths only the values do."""
    by_shape, by_value = (run.results["ReturnsRejectedFirst", case] for case in ("one-pair", "two-pairs"))
    assert by_shape.verdict is Verdict.ERROR
    assert "group 0, completion 0: shape (8,); the completion has 11 tokens" in by_shape.reasons[0]
    assert by_value.verdict is Verdict.FAIL
    assert "per_token_logps" in {judgement.quantity for judgement in failed(by_value)}


def test_a_gradient_that_is_missing_is_named(run: Run) -> None:
    result = run.results["OneGradientMissing", "one-pair"]
    assert result.verdict is Verdict.FAIL
    assert result.reasons == ("gradients are not of the same tensors: missing model.layers.0.mlp.up_proj.lora_A (1)",)


def test_values_right_to_a_thousandth_of_a_nat_do_not_hide_a_shift(run: Run) -> None:
    """The shift cancels in every reward, so that only the log-probs show it, and as a drift."""
    for judgement in failed(run.results["ShiftedLogps", "one-pair"]):
        assert judgement.signed_mean == pytest.approx(1e-3, rel=0.02)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_subject_passes_however_odd_it_is(run: Run, name: str) -> None:
    for case in ("one-pair", "two-pairs"):
        result = run.results[name, case]
        assert result.verdict is Verdict.PASS, result.reasons
        assert result.reasons == ()
        assert {judgement.quantity for judgement in result.judgements} == EVERYTHING
        assert {judgement.verdict for judgement in result.judgements} == {Verdict.PASS}
    assert run.summaries[name].verdict is Verdict.PASS


def test_every_value_is_counted(run: Run, tiny: Callable[[str], ModelUnderTest], short_case: Case) -> None:
    """Both budgets, both statistics where there are two: 19 tokens twice, and every entry of every LoRA tensor."""
    num_lora = sum(p.numel() for p in tiny("float32").model.parameters() if p.requires_grad)
    num_tokens = 11 + 8
    once = 2 * (2 * num_tokens) + 2 + 1 + 1 + 2 * num_lora
    assert run.results["ByHand", "one-pair"].num_compared == 2 * once


def test_settings_left_changed_are_put_back_and_noted(run: Run) -> None:
    assert [note for note in run.outcome.notes if "leaves-attention-changed" in note] == [
        "subject leaves-attention-changed left the model changed, which was put back: "
        "attention implementation eager (was sdpa)"
    ]


@pytest.mark.parametrize("name", PROVES_NOTHING)
def test_a_subject_whose_packed_path_was_not_seen_is_inconclusive(run: Run, name: str) -> None:
    """Its values are right: only the count of token slots tells that padded rows were held against unpacked ones."""
    assert run.results[name, "one-pair"].verdict is Verdict.PASS
    assert run.summaries[name].verdict is Verdict.INCONCLUSIVE
    (reason,) = run.summaries[name].reasons
    assert PROVES_NOTHING[name] in reason


@pytest.mark.parametrize("name", BROKEN)
def test_a_subject_that_breaks_its_contract_is_an_error_with_a_message(run: Run, name: str) -> None:
    result = run.results[name, "one-pair"]
    assert result.verdict is Verdict.ERROR
    assert result.judgements == ()
    assert BROKEN[name] in result.reasons[0]
    assert run.summaries[name].verdict is Verdict.ERROR


def test_a_subject_that_says_no_is_not_applicable_with_its_reason(run: Run) -> None:
    assert run.results["SaysNo", "one-pair"].verdict is Verdict.NOT_APPLICABLE
    assert run.results["SaysNo", "one-pair"].reasons == ("needs prompts of one length",)
    assert run.summaries["SaysNo"].verdict is Verdict.NOT_APPLICABLE


def test_the_run_goes_on_after_every_subject(run: Run) -> None:
    assert len(run.outcome.results) == 2 * len(ALL)


def test_a_subject_is_judged_on_a_clean_model_after_one_that_changed_the_weights(
    gate: Callable[..., GateOutcome], third_party: Callable[[str], Subject], short_case: Case
) -> None:
    first, second = gate([third_party("ChangesWeights"), third_party("ByHand")], [short_case]).results
    assert first.verdict is Verdict.ERROR
    assert second.verdict is Verdict.PASS, second.reasons


def test_our_packed_subjects_pass_on_the_same_cases(
    gate: Callable[..., GateOutcome], short_case: Case, two_pairs_case: Case
) -> None:
    subjects = [BUILT_IN["dense-sdpa"], BUILT_IN["split"]]
    outcome = gate(subjects, [short_case, two_pairs_case], dtypes=("float64", "float32"))
    assert {(r.verdict, r.reasons) for r in outcome.results} == {(Verdict.PASS, ())}
    assert {s.verdict for s in summarise(outcome.results, subjects, ["float64", "float32"])} == {Verdict.PASS}
    assert len(outcome.results) == 8


def test_results_come_by_dtype_then_case_then_subject(
    gate: Callable[..., GateOutcome], third_party: Callable[[str], Subject], short_case: Case, two_pairs_case: Case
) -> None:
    subjects = [third_party("SaysNo"), third_party("Raises")]
    outcome = gate(subjects, [two_pairs_case, short_case], dtypes=("float32", "bfloat16"), variations=("eager",))
    assert [(r.dtype, r.case, r.subject) for r in outcome.results] == [
        (dtype, case, subject)
        for dtype in ("float32", "bfloat16")
        for case in ("two-pairs", "one-pair")
        for subject in ("says-no", "raises")
    ]


class _NoBackward:
    """Wraps a subject so that it has no backward pass."""

    def __init__(self, subject: Subject) -> None:
        self.name, self.per_token_logps = subject.name, subject.per_token_logps

    def supports_gradients(self, model: Any) -> SimpleNamespace:
        return SimpleNamespace(supported=False, reason="the kernel has no backward pass")


def test_without_a_backward_pass_the_rest_is_judged_and_the_reason_kept(
    gate: Callable[..., GateOutcome], third_party: Callable[[str], Subject], short_case: Case
) -> None:
    right, wrong = gate(
        [_NoBackward(third_party("ByHand")), _NoBackward(third_party("PositionsRunOn"))], [short_case]
    ).results
    gradients = [judgement for judgement in right.judgements if judgement.quantity == "gradients"]
    assert {(j.verdict, j.reason, j.num_compared) for j in gradients} == {
        (Verdict.NOT_APPLICABLE, "the kernel has no backward pass", 0)
    }
    assert right.verdict is Verdict.PASS
    assert "the kernel has no backward pass" in right.reasons
    assert wrong.verdict is Verdict.FAIL


# Requests that could not be judged.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subjects": 2}, "subjects named twice: by-hand"),
        ({"cases": 2}, "cases named twice: one-pair"),
        ({"dtypes": ()}, "no dtypes: nothing would be compared"),
        ({"subjects": ()}, "no subjects: nothing would be compared"),
        ({"cases": ()}, "no cases: nothing would be compared"),
        ({"variations": ()}, "no variations: nothing would be compared"),
        ({"dtypes": ("float32", "float32")}, "dtypes named twice: float32"),
        ({"variations": ("eager", "eagre")}, "unknown variations eagre: give some of eager, padded-right"),
    ],
    ids=lambda value: value.partition(":")[0].replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_request_for_nothing_or_for_the_same_twice_is_refused(
    change: dict[str, Any], message: str, policy: Policy, short_case: Case, third_party: Callable[[str], Subject]
) -> None:
    settings: dict[str, Any] = {
        "model": ModelRequest(name="tiny"),
        "dtypes": ("float32",),
        "subjects": (third_party("ByHand"),),
        "cases": (short_case,),
        "objective": Preference(),
        "policy": policy,
    }
    twice = {name: settings[name] * value for name, value in change.items() if value == 2}
    with pytest.raises(ValueError, match=message):
        GateRequest(**{**settings, **change, **twice})


def test_a_token_outside_the_vocabulary_is_refused_with_its_place(
    gate: Callable[..., GateOutcome], third_party: Callable[[str], Subject]
) -> None:
    case = Case(name="out", why="", groups=(PreferenceGroup((1,), ((2, 257),), ((3,),), source="pairs.jsonl:4"),))
    with pytest.raises(ValueError, match=r"token id 257 at pairs\.jsonl:4, positives\[0\]\[1\]: outside .* 257 tokens"):
        gate([third_party("ByHand")], [case])


def test_an_unpacked_path_that_cannot_be_run_stops_the_run(
    gate: Callable[..., GateOutcome],
    third_party: Callable[[str], Subject],
    short_case: Case,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verify.gate_work.WITNESS", third_party("Raises"))
    with pytest.raises(WitnessError, match="float32 one-pair: the unpacked path cannot be compared: subject raises"):
        gate([third_party("ByHand")], [short_case])


@pytest.fixture
def gate_request(policy: Policy, short_case: Case, third_party: Callable[[str], Subject]) -> GateRequest:
    return GateRequest(
        model=ModelRequest(name="tiny", num_layers=1),
        dtypes=("float32",),
        subjects=(third_party("ByHand"),),
        cases=(short_case,),
        objective=Preference(),
        policy=policy,
        variations=("eager",),
    )


def test_progress_counts_to_the_end(gate_request: GateRequest) -> None:
    steps: list[tuple[int, int, str]] = []
    run_gate(gate_request, lambda done, total, text: steps.append((done, total, text)))
    assert [(done, total) for done, total, _ in steps] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [text.split(": ")[1] for _, _, text in steps] == ["oracle", "pairwise", "eager", "by-hand"]


@pytest.mark.parametrize(("threads", "num_built"), [(1, 1), (2, 0)])
def test_the_model_is_built_once_for_all_processes_where_torch_starts_no_threads_for_it(
    threads: int, num_built: int, gate_request: GateRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[ModelRequest] = []
    before: list[int] = []

    def build(request: ModelRequest, dtype: str) -> ModelUnderTest:
        built.append(request)
        return build_model(request, dtype)

    def in_one_process(pieces: Any, work: Any, begin: Any, **_: Any) -> Any:
        before.append(len(built))
        return [work(piece, begin) for piece in pieces]

    monkeypatch.setattr("verify.model_holder.build_model", build)
    monkeypatch.setattr("verify.gate.work_through", in_one_process)
    with torch_threads(threads):
        run_gate(gate_request, lambda *_: None, num_processes=2)
    assert (before, len(built)) == ([num_built], 1)


class _OwnBackward:
    """Fills the gradients itself and returns a loss that has nothing to do with them."""

    name = "own-backward"

    def __init__(self, inner: Any) -> None:
        self.per_token_logps = inner.per_token_logps

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        loss = -sum(logps.sum() for logps in self.per_token_logps(model, groups))
        loss.backward()
        return SimpleNamespace(loss=loss.detach().requires_grad_(), rewards=[0.0] * (2 * len(groups)))


def test_gradients_that_do_not_come_from_the_returned_loss_are_an_error(
    gate: Any, third_party: Any, short_case: Any
) -> None:
    (judged,) = gate([_OwnBackward(third_party("ByHand"))], [short_case]).results
    assert judged.verdict is Verdict.ERROR
    assert "was there before backward" in judged.reasons[0]


def test_a_case_that_proves_nothing_does_not_widen_the_budgets_of_others(
    gate: Any, third_party: Any, short_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own noise is in doubt. Of two cases the one with 7 completion tokens is made so."""
    other = Case(name="other", why="", groups=(PreferenceGroup((7, 2, 9), ((7, 8, 3),), ((5, 6, 7, 8),)),))

    def judged(*cases: Case) -> dict[str, Result]:
        return {result.case: result for result in gate([third_party("ByHand")], cases).results}

    alone = judged(short_case)["one-pair"]
    assert judged(short_case, other)["one-pair"].judgements != alone.judgements
    monkeypatch.setattr(
        "verify.gate_work.implausible_witness",
        lambda forms, bounds: ("in doubt",) if forms["pairwise"][0].num_compared == 7 else (),
    )
    results = judged(short_case, other)
    assert (results["other"].verdict, results["other"].reasons) == (Verdict.INCONCLUSIVE, ("in doubt",))
    assert results["one-pair"] == alone
    assert alone.verdict is Verdict.PASS


def test_a_single_kind_of_token_has_no_gradient_at_queries_and_keys_and_rounding_there_is_no_failure(
    gate: Any, third_party: Any
) -> None:
    """Attention weights do not matter there. A gradient of nothing is measured by the size of all the others."""
    case = Case(name="one-token", why="", groups=(PreferenceGroup((7,) * 5, ((7,) * 3,), ((7,) * 4,)),))
    right, wrong = gate([third_party("ByHand"), third_party("OneGradientScaled")], [case]).results
    assert right.verdict is Verdict.PASS
    assert wrong.verdict is Verdict.FAIL
