"""The gate with the loss of routers in the objective: what is judged, what is caught, and what a flip may do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from verify.cases import Case
from verify.check_notes import notes_of
from verify.check_request import CheckOptions, prepare_check
from verify.faults.catalogue import mutation_named
from verify.faults.kill_matrix import kill_of
from verify.faults.routers import FAULTS
from verify.gate import GateOutcome, GateRequest, Result, run_gate
from verify.groups import PreferenceGroup
from verify.models.adapters import adapters_off
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, build_model
from verify.objective import Preference, Sft, objective_named, run_objective
from verify.packed_proof import summarise
from verify.proof_of_life.router_coefficient import router_coefficient
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.oracle import observe_oracle
from verify.subjects.packed import PackedSubject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.subjects.selection import BUILT_IN
from verify.tolerance import PlausibleErrors, load_policy
from verify.verdict import Verdict

MODEL = ModelRequest(name="tiny-qwen3-moe", lora=LoraSpec(strength=0.3))
OBJECTIVE = Preference(router_aux_loss_coef=0.01)
TO_THE_LAST_BIT = PlausibleErrors(per_token_logps_rms=1e-12, gradients_rms=1e-12)
Groups = Sequence[PreferenceGroup]
Gate = Callable[..., GateOutcome]


def gate(
    subjects: Sequence[Subject],
    cases: Sequence[Case],
    *,
    dtype: str = "float32",
    objective: Preference = OBJECTIVE,
    prepare_model: Callable[[Any], None] | None = None,
    model: ModelRequest = MODEL,
) -> GateOutcome:
    request = GateRequest(
        model=model,
        dtypes=(dtype,),
        subjects=tuple(subjects),
        cases=tuple(cases),
        objective=objective,
        policy=load_policy(None),
        prepare_model=prepare_model,
    )
    return run_gate(request, lambda *_: None)


@pytest.fixture(scope="session")
def uneven_case(draw: Callable[..., Groups]) -> Case:
    """Rows of single groups are padded, and responses of the first prompt begin alike."""
    first, *others = draw(5, (9, 6, 4), (3, 2, 5))
    start = first.positives[0][:2]
    alike = replace(first, negatives=((*start, *first.negatives[0]),))
    return Case(name="uneven", why="padding, and a prefix tree that shares more", groups=(alike, *others))


# What is computed.


def test_oracle_and_witness_agree_with_transformers_on_the_padded_batch(uneven_case: Case) -> None:
    model = build_model(MODEL, "float64").model
    sequences = [group.prompt_ids + ids for group in uneven_case.groups for ids in group.completions]
    width = max(map(len, sequences)) + 2
    ids = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences])
    mask = torch.tensor([[1] * len(sequence) + [0] * (width - len(sequence)) for sequence in sequences])
    scores = model(input_ids=ids, attention_mask=mask, output_router_logits=True, use_cache=False).router_logits
    theirs = float(load_balancing_loss_func(scores, 8, 2, mask).detach())
    forms = [WITNESS.routed_logps(model, uneven_case.groups).router_balance.loss] + [
        form.routed_logps(model, uneven_case.groups).router_balance.loss for form in VARIATIONS.values()
    ]
    oracle = observe_oracle(model, uneven_case.groups, OBJECTIVE)
    without = observe_oracle(model, uneven_case.groups, Preference())
    assert oracle.balance.loss == pytest.approx(theirs, rel=1e-6)  # theirs is summed in float32
    assert forms == pytest.approx([oracle.balance.loss] * len(forms), rel=1e-6)
    assert float(oracle.loss - without.loss) == pytest.approx(0.01 * oracle.balance.loss, rel=1e-9)
    assert not without.balance
    assert all(
        not torch.equal(gradient, (without.gradients or {})[name])
        for name, gradient in (oracle.gradients or {}).items()
    )


def test_cases_of_supervised_examples_have_the_coefficient_of_the_run() -> None:
    assert objective_named("sft-token-mean", OBJECTIVE) == Sft(mean="token", router_aux_loss_coef=0.01)
    assert objective_named("hinge", OBJECTIVE).router_aux_loss_coef == 0.01
    assert objective_named("reward-model", OBJECTIVE).router_aux_loss_coef == 0


# What is judged, and what is caught.


HONEST = (
    PackedSubject(backend="dense-sdpa"),
    PackedSubject(backend="split", segments="prefix-tree"),
    PackedSubject(backend="dense-sdpa", rows="row-per-group"),
    FaultySubject(),
)


@pytest.fixture(scope="module")
def outcome(uneven_case: Case) -> dict[str, Result]:
    planted = [FaultySubject(mutation=fault) for fault in FAULTS]
    return {result.subject: result for result in gate([*HONEST, *planted], [uneven_case]).results}


@pytest.mark.parametrize("subject", HONEST, ids=lambda subject: subject.name)
def test_honest_subjects_pass_in_every_quantity(outcome: dict[str, Result], subject: Subject) -> None:
    result = outcome[subject.name]
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    judged = {judgement.quantity for judgement in result.judgements}
    assert {"router_probs", "router_shares", "loss", "gradients"} <= judged


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_fail_by_what_routers_add_and_not_by_log_probs(outcome: dict[str, Result], fault: Any) -> None:
    result = outcome[f"fault:{fault.name}"]
    assert result.verdict is Verdict.FAIL
    wrong = {judgement.quantity for judgement in result.judgements if judgement.verdict is Verdict.FAIL}
    assert wrong <= {"router_probs", "router_shares", "loss", "gradients"}
    assert "gradients" in wrong


def test_every_weight_has_the_gradient_of_the_loss_of_routers(short_case: Case) -> None:
    """Routers, and of the embedding the rows of last tokens, which predict nothing."""
    every = replace(MODEL, num_layers=1, train="all", reference="separate-model")
    faults = [fault for fault in FAULTS if fault.name in ("routers-without-gradient", "routers-miss-last-tokens")]
    subjects = [HONEST[0], HONEST[-1], *(FaultySubject(mutation=fault) for fault in faults)]
    results = gate(subjects, [short_case], model=every).results
    assert [result.verdict.name for result in results] == ["PASS", "PASS", "FAIL", "FAIL"], results[0].reasons
    for result in results[2:]:
        assert max(j.ratio for j in result.judgements if j.quantity == "gradients") > 100


class OwnLoss:
    """DPO's loss by hand on unpacked rows, and a router loss of which the pieces are shown or not."""

    name, layout, adds_router_loss = "own-loss", "unpacked", True

    def __init__(self, *, off_by: float = 0.0, shown: bool = True) -> None:
        self.off_by, self.shown = off_by, shown

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        return WITNESS.per_token_logps(model, groups)

    def loss(self, model: Any, groups: Groups, objective: Any) -> Any:
        with torch.no_grad(), adapters_off(model):
            refs = WITNESS.per_token_logps(model, groups)
        routed = WITNESS.routed_logps(model, groups)
        rewards = torch.stack(
            [objective.beta * (p - r).sum() for p, r in zip(routed.per_token_logps, refs, strict=True)]
        )
        loss = -torch.nn.functional.logsigmoid(rewards[0::2] - rewards[1::2]).mean()
        return SimpleNamespace(
            loss=loss + (objective.router_aux_loss_coef + self.off_by) * routed.router_loss,
            rewards=rewards.detach(),
            router_balance=routed.router_balance if self.shown else None,
        )


def test_a_subject_sees_the_coefficient_and_may_keep_its_balance_to_itself(short_case: Case) -> None:
    shown, silent, off = (OwnLoss(), OwnLoss(shown=False), OwnLoss(shown=False, off_by=1e-3))
    silent.name, off.name = "silent", "off"  # type: ignore[misc]
    results = {result.subject: result for result in gate([shown, silent, off], [short_case]).results}
    assert [results[name].verdict.name for name in ("own-loss", "silent", "off")] == ["PASS", "PASS", "FAIL"]
    quantities = {name: {j.quantity for j in results[name].judgements} for name in ("own-loss", "silent")}
    assert quantities["own-loss"] - quantities["silent"] == {"router_probs", "router_shares"}


def test_the_least_error_of_the_coefficient_that_shows_is_a_blind_spot_and_no_larger(short_case: Case) -> None:
    fault = mutation_named("routers-without-gradient")
    planted = FaultySubject(mutation=fault)
    (summary,) = summarise(gate([planted], [short_case]).results, [planted], ["float32"])
    coefficient = OBJECTIVE.router_aux_loss_coef
    (spot,) = router_coefficient([kill_of(fault, summary)], coefficient)
    (least,) = re.findall(r"off by less than (\S+) %", spot.what)
    subjects = []
    for name, share in (("below", 0.7), ("above", 1.4)):
        subjects.append(OwnLoss(off_by=share * float(least) / 100 * coefficient))
        subjects[-1].name = name  # type: ignore[misc]
    below, above = gate(subjects, [short_case]).results
    assert [below.verdict, above.verdict] == [Verdict.PASS, Verdict.FAIL]
    (not_planted,) = router_coefficient([], coefficient)
    assert "was not measured" in not_planted.why
    assert not [*router_coefficient([], 0.0)]


class NoRouterLoss(OwnLoss):
    name, adds_router_loss = "no-router-loss", False


class LogpsAlone:
    name, layout = "logps-alone", "unpacked"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        return WITNESS.per_token_logps(model, groups)


def test_who_cannot_have_the_loss_of_routers_is_not_applicable(short_case: Case) -> None:
    subjects = [NoRouterLoss(), LogpsAlone(), BUILT_IN["dense-sdpa/two-pass"]]
    reasons = [(result.verdict, *result.reasons) for result in gate(subjects, [short_case]).results]
    assert [verdict for verdict, _ in reasons] == [Verdict.NOT_APPLICABLE] * 3
    assert ["adds_router_loss" in reason for _, reason in reasons] == [True, False, True]


@pytest.mark.parametrize(
    "balance",
    [
        torch.ones(8),
        SimpleNamespace(shares=torch.ones(8)),
        SimpleNamespace(shares=torch.ones(8), probs=torch.ones(0)),
    ],
)
def test_a_balance_without_its_parts_is_an_error(short_case: Case, balance: Any) -> None:
    class Wrong(OwnLoss):
        def loss(self, model: Any, groups: Groups, objective: Any) -> Any:
            output = super().loss(model, groups, objective)
            output.router_balance = balance
            return output

    (result,) = gate([Wrong()], [short_case]).results
    assert result.verdict is Verdict.ERROR
    assert "router_balance" in result.reasons[0]


# Where rounding turns an expert choice.


def nearly_equal_experts(nudge: float, model: Any) -> None:
    """The second expert of every router is the first but for the last bits of its row: rounding chooses."""
    for name, weight in model.named_parameters():
        if name.endswith("mlp.gate.weight"):
            drawn = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(7)).to(weight)
            weight.data[1] = weight.data[0] * (1 + nudge * drawn)


def test_ties_that_no_rounding_turned_hide_nothing(short_case: Case) -> None:
    names = ("preference-reversed", "branches-not-isolated", "routers-count-prompts-once")
    wrong = [FaultySubject(mutation=mutation_named(name)) for name in names]
    outcome = gate([HONEST[0], *wrong], [short_case], prepare_model=partial(nearly_equal_experts, 1e-6))
    (note,) = outcome.notes
    assert re.search(r"[1-9]\d* of \d+ expert choices .* and 0 flipped", note)
    assert [result.verdict.name for result in outcome.results] == ["PASS", "FAIL", "FAIL", "FAIL"]


def test_a_case_whose_unpacked_forms_flip_proves_nothing_and_says_why(short_case: Case) -> None:
    wrong = FaultySubject(mutation=mutation_named("preference-reversed"))
    outcome = gate([*HONEST[:1], wrong], [short_case], prepare_model=partial(nearly_equal_experts, 5e-8))
    assert {result.verdict for result in outcome.results} == {Verdict.INCONCLUSIVE}
    assert all("expert choices flipped by rounding" in result.reasons[0] for result in outcome.results)


def test_where_nobody_watches_expert_choices_it_is_said_that_they_may_have_flipped(short_case: Case) -> None:
    policy = load_policy(None)
    request = GateRequest(
        model=MODEL,
        dtypes=("float32",),
        subjects=(PackedSubject(backend="dense-sdpa"),),
        cases=(short_case,),
        objective=Preference(),
        policy=policy.model_copy(
            update={"plausible": policy.plausible.model_copy(update={"float32": TO_THE_LAST_BIT})}
        ),
        variations=("eager",),
    )
    (result,) = run_gate(request, lambda *_: None).results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reasons[-1] == "rounding may turn expert choices, which are watched with --router-loss"


# What is refused.


@pytest.mark.parametrize("coefficient", [0.0, -0.001, float("nan"), float("inf"), 1e300])
def test_the_coefficient_is_positive_and_leaves_something_of_the_rest(coefficient: float) -> None:
    with pytest.raises(ValueError, match=r"router_loss is .* (positive number|from rounding)"):
        run_objective("sigmoid", beta=0.1, label_smoothing=0.0, nll_weight=None, router_loss=coefficient)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CheckOptions(router_loss=0.001), "model of type qwen3 has no routers"),
        (CheckOptions(model="tiny-qwen3-moe", router_loss=0.001, objective="reward-model"), "reward-model has none"),
        (CheckOptions(model="tiny-mixtral", router_loss=0.001), "model of type mixtral has no routers"),
        (
            CheckOptions(model="tiny-qwen3-moe", router_loss=0.001, cases=("objective-reward-model",)),
            "every case is of a reward-model, which has none",
        ),
        (
            CheckOptions(model="tiny-qwen3-moe", subjects=("fault:routers-count-padding",), cases=("balanced",)),
            "fault of the loss of routers; give --router-loss",
        ),
    ],
)
def test_a_run_that_cannot_have_it_is_refused(options: CheckOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_check(options)


def test_a_run_without_it_says_what_was_left_out() -> None:
    with_routers = prepare_check(CheckOptions(model="tiny-qwen3-moe", cases=("balanced",)))
    assert any("--router-loss 0.001" in note for note in notes_of(with_routers, 2))
    dense = prepare_check(CheckOptions(cases=("balanced",)))
    assert not any("router" in note for note in notes_of(dense, 2))
    assert not any(planting.probe.fault.startswith("routers-") for planting in with_routers.plantings.chosen)
