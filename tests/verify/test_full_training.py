"""Every weight trained: what is compared, what must fail, and what cannot go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from verify.cases import Case
from verify.checks.catalogue import EXACT_CHECKS
from verify.checks.run import measure_setting, run_checks
from verify.comparison import compare_observations
from verify.default_cases.objectives import objective_cases
from verify.faults.catalogue import FAULTS_OF_EVERY_WEIGHT
from verify.faults.fault import Fault
from verify.faults.kill_matrix import Kill, Outcome, kill_of
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.configs import NamedConfig, named_config
from verify.models.memory import check_memory, num_weights
from verify.models.request import ModelRequest, build_model, build_reward_model
from verify.objective import Preference, RewardModel
from verify.observation import Observation, observe
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject
from verify.subjects.oracle import apply_objective, observe_oracle
from verify.subjects.pairwise import WITNESS
from verify.subjects.selection import BUILT_IN
from verify.tolerance import Policy
from verify.training import TRAIN_NAMES, check_reference, default_reference
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
SUBJECTS = ("dense-sdpa", "split", "split/two-pass")
DTYPES = ("float32", "bfloat16")
OF_PARITY = [fault for fault in FAULTS_OF_EVERY_WEIGHT if "parity" in fault.must_kill]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UNTIED, TIED = named_config("tiny"), replace(named_config("tiny"), tie_word_embeddings=True)


def request(config: NamedConfig = UNTIED, reference: Any = "separate-model") -> ModelRequest:
    return ModelRequest(name="mine", config=config, num_layers=1, train="all", reference=reference)


class OnAPlainModel:
    """A third party's own step, which knows no PEFT."""

    name, layout, references = "plain", "unpacked", ("adapters-off", "separate-model")

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        assert not hasattr(model, "peft_config")
        found = []
        for group in groups:
            for completion in group.completions:
                ids = torch.tensor([group.prompt_ids + completion])
                logps = log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)
                found.append(logps[len(group.prompt_ids) - 1 : -1].gather(1, torch.tensor(completion)[:, None])[:, 0])
        return found


class TouchesUnusedRows(OnAPlainModel):
    """The loss of a row depends on a token that is not in it, by next to nothing."""

    name = "touches"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        logps = super().per_token_logps(model, groups)
        used = {token for g in groups for ids in (g.prompt_ids, *g.completions) for token in ids}
        unused = next(token for token in range(257) if token not in used)
        logps[0] = logps[0] + 1e-20 * model.get_input_embeddings().weight[unused, 3]
        return logps


@pytest.mark.parametrize("config", [UNTIED, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("reference", ["separate-model", "cached"])
def test_packed_steps_pass_and_every_weight_is_compared(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, config: NamedConfig, reference: str
) -> None:
    subjects = [*(BUILT_IN[name] for name in SUBJECTS), OnAPlainModel()]
    outcome = gate(subjects, [two_pairs_case], model=request(config, reference))
    assert {result.subject: result.verdict for result in outcome.results} == dict.fromkeys(
        (*SUBJECTS, "plain"), Verdict.PASS
    )
    weights = num_weights(replace(config, num_hidden_layers=1), 1, None)
    assert weights == sum(p.numel() for p in outcome.model.model.parameters())
    for result in outcome.results:
        compared = {j.num_compared for j in result.judgements if j.quantity == "gradients"}
        assert compared == {weights}, "a tied embedding counts once, and nothing is left out"


@pytest.mark.parametrize("name", ["tiny-qwen3-moe", "tiny-qwen2", "tiny-gpt2"])
def test_experts_biases_and_families_without_an_oracle_are_trained_too(
    gate: Callable[..., GateOutcome], short_case: Case, name: str
) -> None:
    model = ModelRequest(name=name, train="all", reference="separate-model")
    subject = BUILT_IN["dense-sdpa"] if name != "tiny-gpt2" else OnAPlainModel()
    (result,) = gate([subject], [short_case], model=model, variations=("eager", "padded-left")).results
    assert result.verdict is Verdict.PASS, result.reasons


@pytest.mark.parametrize("name", ["groupdpo-softmax", "ipo"])
def test_other_objectives_pass(gate: Callable[..., GateOutcome], name: str) -> None:
    (case,) = (case for case in objective_cases(257, 0) if case.objective_name == name)
    results = gate([BUILT_IN[name] for name in SUBJECTS], [case], model=request(TIED)).results
    assert {result.verdict for result in results} == {Verdict.PASS}


def test_reward_models_pass_with_head_and_all_weights(gate: Callable[..., GateOutcome]) -> None:
    (case,) = (case for case in objective_cases(257, 0) if case.objective_name == "reward-model")
    outcome = gate([BUILT_IN["split"]], [case], model=request(TIED), objective=RewardModel())
    assert outcome.results[0].verdict is Verdict.PASS, outcome.results[0].reasons
    gradients = {j.num_compared for j in outcome.results[0].judgements if j.quantity == "gradients"}
    built = build_reward_model(request(TIED), "float32").model
    assert gradients == {sum(parameter.numel() for parameter in built.parameters())}


def _observed(config: NamedConfig, groups: Groups) -> tuple[Observation, Observation]:
    holder = ModelHolder(request(config), "float64")
    objective = holder.with_reference(Preference(beta=0.3))
    assert isinstance(objective, Preference)
    actual = observe(WITNESS, holder.model, groups, objective, apply_objective=apply_objective, seed=0)
    return actual, observe_oracle(holder.model, groups, objective)


@pytest.mark.parametrize("config", [UNTIED, TIED], ids=["untied", "tied"])
def test_oracle_and_unpacked_path_name_the_same_tensors(two_pairs_case: Case, config: NamedConfig) -> None:
    actual, expected = _observed(config, two_pairs_case.groups)
    assert actual.gradients is not None
    assert expected.gradients is not None
    assert actual.gradients.keys() == expected.gradients.keys() >= {EMBEDDING, "model.norm.weight"}
    assert (HEAD in expected.gradients) == (config is UNTIED)
    assert actual.looked_up == expected.looked_up == (EMBEDDING if config is UNTIED else "")


def test_the_least_gradient_at_the_row_of_an_unused_token_is_a_failure(short_case: Case) -> None:
    actual, expected = _observed(UNTIED, short_case.groups)
    assert actual.gradients is not None
    changed = actual.gradients[EMBEDDING].clone()
    used = {token for g in short_case.groups for ids in (g.prompt_ids, *g.completions) for token in ids}
    row = next(token for token in range(257) if token not in used)
    changed[row, 5] = 5e-324
    touched = replace(actual, gradients={**actual.gradients, EMBEDDING: changed})
    for observation, distance in ((actual, 0.0), (touched, float("inf"))):
        (compared,) = (c for c in compare_observations(observation, expected, short_case.groups) if c.part == EMBEDDING)
        assert (compared.rms == float("inf")) == bool(distance)
    assert compared.worst[0].where == f"{EMBEDDING}[{row}, 5], the row of a token that takes no part: exactly 0"


def test_a_subject_that_touches_an_unused_row_fails(gate: Callable[..., GateOutcome], short_case: Case) -> None:
    touches, plain = gate([TouchesUnusedRows(), OnAPlainModel()], [short_case], model=request()).results
    assert plain.verdict is Verdict.PASS
    assert touches.verdict is Verdict.FAIL
    assert "the row of a token that takes no part" in touches.reasons[0]
    # Beside the gradients of a tied head it is nothing.
    assert gate([TouchesUnusedRows()], [short_case], model=request(TIED)).results[0].verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_terms_that_cancel_are_no_sign_of_a_token_that_takes_no_part(
    gate: Callable[..., GateOutcome], dtype: str
) -> None:
    """Within a window of 8 the first prompt token reaches only the start of both responses, which is the same."""
    start = tuple(range(30, 40))
    group = PreferenceGroup(tuple(range(10, 22)), ((*start, 50, 51),), ((*start, 60),))
    case = Case(name="begin-alike", why="gradients of the prompt's first tokens cancel", groups=(group,))
    windowed = replace(named_config("tiny-mistral"), tie_word_embeddings=False)
    subjects = [BUILT_IN[name] for name in ("dense-eager", "dense-sdpa", "split")]
    results = gate([*subjects, TouchesUnusedRows()], [case], model=request(windowed), dtypes=(dtype,)).results
    assert [result.verdict for result in results] == [Verdict.PASS] * 3 + [Verdict.FAIL]


@pytest.fixture(scope="module")
def kills(gate: Callable[..., GateOutcome]) -> Mapping[tuple[str, str, bool], Kill]:
    groups = (
        PreferenceGroup((9, 4, 7, 30), ((5, 8, 2),), ((11, 3, 40, 6),)),
        PreferenceGroup((21, 22), ((23, 12),), ((24, 25, 26),)),
    )
    case = Case(name="two-pairs-of-distinct-tokens", why="tokens of a branch are in no other", groups=groups)
    subjects = [FaultySubject(), *(FaultySubject(mutation=fault) for fault in OF_PARITY)]
    found = {}
    for config in (UNTIED, TIED):
        outcome = gate(subjects, [case], model=request(config), variations=("eager", "padded-left"), dtypes=DTYPES)
        assert {r.verdict for r in outcome.results if r.subject == "fault:none"} == {Verdict.PASS}
        summaries = {(s.subject, s.dtype): s for s in summarise(outcome.results, subjects, DTYPES)}
        for s in subjects:
            for dtype in DTYPES:
                if s.mutation:
                    kill = kill_of(s.mutation, summaries[s.name, dtype])
                    found[s.mutation.name, dtype, config is TIED] = kill
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("fault", OF_PARITY, ids=lambda fault: fault.name)
def test_a_fault_is_killed(kills: Mapping[tuple[str, str, bool], Kill], fault: Fault, dtype: str, tied: bool) -> None:
    kill = kills[fault.name, dtype, tied]
    if tied and fault.name == "unused-tokens-have-gradient":
        assert kill.outcome is Outcome.SURVIVED, "a tied embedding has no unused row: it computes the same"
        return
    assert kill.outcome is Outcome.KILLED, kill.reasons
    assert kill.weakest_margin > (1 if dtype == "bfloat16" else 1000)


def test_exact_checks_pass_or_say_why_they_do_not_apply(policy: Policy) -> None:
    holder = ModelHolder(request(TIED), "float32")
    objective = holder.with_reference(Preference())
    setting = measure_setting(EXACT_CHECKS, holder, dtype="float32", objective=objective, policy=policy, seed=0)
    findings = run_checks(BUILT_IN["split"], EXACT_CHECKS, setting, holder)
    wrong = [f for f in findings if f.verdict not in (Verdict.PASS, Verdict.NOT_APPLICABLE)]
    assert not wrong
    reasons = {f.reason for f in findings if f.check == "dropout" and f.verdict is Verdict.NOT_APPLICABLE}
    assert "every weight is trained: there are no adapters, before which features are dropped" in reasons
    ran = {f.check for f in findings if f.verdict is Verdict.PASS}
    assert {"optimizer-steps", "gradient-checkpointing", "absolute-positions", "group-isolation"} <= ran


def test_an_eager_step_is_a_mean_over_groups_in_float64_too(policy: Policy) -> None:
    """Eager softmax works in float32; forms of SDPA alone agree on the head to the last bits of float64."""
    holder = ModelHolder(request(), "float64")
    objective = holder.with_reference(Preference())
    checks = [replace(check, cases=("uneven-groups",)) for check in EXACT_CHECKS if check.name == "normalisation"]
    setting = measure_setting(checks, holder, dtype="float64", objective=objective, policy=policy, seed=0)
    (finding,) = run_checks(BUILT_IN["dense-eager"], checks, setting, holder)
    assert (finding.verdict, finding.reason) == (Verdict.PASS, "")


def test_the_frozen_policy_shares_no_tensor_with_the_policy() -> None:
    built = build_model(request(TIED), "float32")
    ours = {parameter.data_ptr() for parameter in built.model.parameters()}
    assert not ours & {parameter.data_ptr() for parameter in built.other.parameters()}
    assert not any(parameter.requires_grad for parameter in built.other.parameters())


def test_what_sees_images_is_not_trained_and_no_row_is_left_out_for_padding() -> None:
    llava = build_model(ModelRequest(name="tiny-llava", train="all", reference="separate-model"), "float32").model
    frozen = {name.split(".")[1] for name, p in llava.named_parameters() if not p.requires_grad}
    assert frozen == {"vision_tower", "multi_modal_projector"}
    assert build_model(request(), "float32").model.get_input_embeddings().padding_idx is None


def test_a_frozen_policy_of_weights_that_are_trained_is_refused_with_what_would_be_right() -> None:
    assert [default_reference(train) for train in TRAIN_NAMES] == ["adapters-off", "separate-model"]
    for reference in ("adapters-off", "frozen-adapter"):
        with pytest.raises(
            ValueError, match=rf"--reference {reference} with --train all: .* separate-model .* or cach"
        ):
            ModelRequest(name="tiny", train="all", reference=reference)  # type: ignore[arg-type]
        check_reference("lora", reference)  # type: ignore[arg-type]


def test_gradients_are_counted_before_anything_is_built() -> None:
    small, large = request(), ModelRequest(name="qwen3-32b", train="all", reference="separate-model")
    weights = num_weights(UNTIED, 1, None)
    # Two models and a gradient in float32; in float64 the expected one, five forms, a subject's and what compares them.
    needed = weights * (3 * 4 + 8 * (1 + 5 + 1 + 4))
    check_memory(small, ["float32"], available=needed)
    with pytest.raises(ValueError, match=r"with .* of gradients, would take"):
        check_memory(small, ["float32"], available=needed - 1)
    with pytest.raises(ValueError, match="cases, dtypes or variations"):
        check_memory(small, ["float32", "bfloat16"], available=needed, num_cases=2)
    with pytest.raises(ValueError, match=r"with .* GiB of gradients"):
        check_memory(large, ["float32"])
