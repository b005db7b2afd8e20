"""The frozen policies of a run: who computes them, that they are the ones asked for, and who ignores them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from packed_impl.reference_policy import REFERENCE_POLICIES
from reference_impl.ref_policy import RefPolicyName
from verify.cases import Case
from verify.checks.normalisation import NORMALISATION
from verify.checks.reference import computes_reference
from verify.checks.run import run_exact_checks
from verify.frozen_policy import REFERENCE_NAMES, CachedLogps, FrozenAdapter, SeparateModel
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.adapters import adapter_active
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import PREFERENCE_NAMES, Preference, objective_named
from verify.subject import Subject
from verify.subjects.selection import BUILT_IN, select_subject
from verify.tolerance import Policy
from verify.verdict import Verdict

OTHERS = REFERENCE_NAMES[1:]
OF_LOSS = {"rewards", "margins", "loss", "gradients"}


def request(reference: Any) -> ModelRequest:
    return ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3), reference=reference)


def test_all_packages_know_the_same_frozen_policies() -> None:
    assert REFERENCE_NAMES == REFERENCE_POLICIES == get_args(RefPolicyName)


@pytest.mark.parametrize("reference", REFERENCE_NAMES)
def test_packed_steps_pass_under_every_frozen_policy(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, third_party: Callable[[str], Subject], reference
) -> None:
    subjects = [BUILT_IN["dense-sdpa"], BUILT_IN["split"], BUILT_IN["split/two-pass"], third_party("AnyReference")]
    subjects.append(third_party("ByHand"))
    outcome = gate(subjects, [two_pairs_case], model=request(reference))
    assert {result.subject: result.verdict for result in outcome.results} == dict.fromkeys(
        (subject.name for subject in subjects), Verdict.PASS
    )


@pytest.mark.parametrize("reference", OTHERS)
def test_a_loss_that_takes_its_adapters_off_instead_fails(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, third_party: Callable[[str], Subject], reference
) -> None:
    (result,) = gate([third_party("IgnoresTheReference")], [two_pairs_case], model=request(reference)).results
    assert result.verdict is Verdict.FAIL
    failed = {judgement.quantity for judgement in result.judgements if judgement.verdict is Verdict.FAIL}
    assert failed == OF_LOSS


@pytest.mark.parametrize("reference", OTHERS)
def test_a_loss_that_does_not_say_so_is_not_judged_under_another_frozen_policy(
    gate: Callable[..., GateOutcome], short_case: Case, third_party: Callable[[str], Subject], reference
) -> None:
    (result,) = gate([third_party("OwnLoss")], [short_case], model=request(reference)).results
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reasons == (f"reference {reference}; the subject's own loss takes adapters-off",)


@pytest.mark.parametrize("reference", REFERENCE_NAMES)
def test_the_reference_pass_of_the_documentation_passes(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, tmp_path: Path, reference
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "adding-a-subject.md").read_text()
    (method,) = (block.removeprefix("python\n") for block in page.split("```") if "def reference(" in block)
    others = Path(__file__).with_name("third_party_subjects.py").read_text()
    file = tmp_path / f"documented_{reference.replace('-', '_')}.py"
    file.write_text(f'{others}\n\nclass Documented(AnyReference):\n    name = "documented"\n\n{method}')
    (result,) = gate([select_subject(f"{file}:Documented")], [two_pairs_case], model=request(reference)).results
    assert result.verdict is Verdict.PASS


def test_values_of_other_groups_fail(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, third_party: Callable[[str], Subject]
) -> None:
    (result,) = gate([third_party("ReadsTheCacheByIndex")], [two_pairs_case], model=request("cached")).results
    assert result.verdict is Verdict.FAIL


def test_a_separate_model_that_is_trained_is_an_error(
    gate: Callable[..., GateOutcome], short_case: Case, third_party: Callable[[str], Subject]
) -> None:
    outcome = gate(
        [third_party("TrainsTheReference"), BUILT_IN["dense-sdpa"]], [short_case], model=request("separate-model")
    )
    wrong, after = outcome.results
    assert wrong.verdict is Verdict.ERROR
    assert "trains-the-reference changed the separate model of the reference: weights differ" in wrong.reasons[0]
    assert after.verdict is Verdict.PASS


def test_a_separate_model_left_in_training_mode_is_put_back_and_named(
    gate: Callable[..., GateOutcome], short_case: Case, third_party: Callable[[str], Subject]
) -> None:
    wrong = third_party("LeavesTheReferenceInTraining")
    (note,) = gate([wrong, BUILT_IN["dense-sdpa"]], [short_case], model=request("separate-model")).notes
    assert note.startswith(
        f"subject {wrong.name} left the model changed, which was put back: of the separate model mode"
    )


def exact_checks(subjects: list[Subject], holder: ModelHolder, policy: Policy) -> dict[str, Verdict]:
    findings = run_exact_checks(
        subjects,
        (NORMALISATION,),
        holder,
        dtype="float32",
        objective=holder.with_reference(Preference(beta=0.3)),
        policy=policy,
        seed=0,
        begin=lambda subject: None,
    )
    return {finding.subject: finding.verdict for finding in findings if finding.case == "uneven-groups"}


def test_exact_checks_ask_a_loss_for_no_frozen_policy_that_it_does_not_take(
    third_party: Callable[[str], Subject], policy: Policy
) -> None:
    subjects = [third_party("OwnLoss"), third_party("AnyReference")]
    found = exact_checks(subjects, ModelHolder(request("frozen-adapter"), "float32"), policy)
    assert found == {"own-loss": Verdict.NOT_APPLICABLE, "any-reference": Verdict.PASS}


def test_a_gradient_of_the_frozen_adapter_fails_in_exact_checks(
    third_party: Callable[[str], Subject], policy: Policy
) -> None:
    found = exact_checks([third_party("ForgetsNoGrad")], ModelHolder(request("frozen-adapter"), "float32"), policy)
    assert found == {"forgets-no-grad": Verdict.FAIL}


def test_a_separate_model_changed_in_exact_checks_is_an_error_and_nobody_elses(
    third_party: Callable[[str], Subject], policy: Policy
) -> None:
    subjects = [third_party("TrainsTheReferenceLater"), third_party("AnyReference")]
    found = exact_checks(subjects, ModelHolder(request("separate-model"), "float32"), policy)
    assert found == {"trains-the-reference-later": Verdict.ERROR, "any-reference": Verdict.PASS}


def test_every_preference_objective_of_a_run_has_its_frozen_policy() -> None:
    run = Preference(beta=0.3, reference=FrozenAdapter("reference"))
    named = [objective_named(name, run) for name in PREFERENCE_NAMES]
    assert all(isinstance(objective, Preference) and objective.reference is run.reference for objective in named)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.tensor([[5, 6, 7, 8]]), use_cache=False).logits
    return found


def test_a_frozen_adapter_is_another_one_and_switching_to_it_leaves_no_trace() -> None:
    holder = ModelHolder(request("frozen-adapter"), "float32")
    frozen, model = holder.reference, holder.model
    assert isinstance(frozen, FrozenAdapter)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert any(f".{frozen.adapter}." in name for name in flags)
    assert not any(trained for name, trained in flags.items() if f".{frozen.adapter}." in name)
    before = logits(model)
    with model.disable_adapter():
        off = logits(model)
    with adapter_active(model, frozen.adapter):
        other = logits(model)
    with pytest.raises(ZeroDivisionError), adapter_active(model, frozen.adapter):
        1 / 0  # noqa: B018
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert torch.equal(logits(model), before)
    assert min(float((one - two).abs().max()) for one, two in ((before, other), (off, other), (before, off))) > 0.1


def test_a_separate_model_is_frozen_and_differs_from_the_policy_without_adapters() -> None:
    holder = ModelHolder(request("separate-model"), "float32")
    assert isinstance(holder.reference, SeparateModel)
    other = holder.reference.model
    assert not other.training
    assert not any(parameter.requires_grad for parameter in other.parameters())
    with holder.model.disable_adapter():
        assert float((logits(holder.model) - logits(other)).abs().max()) > 0.1


def test_cached_log_probs_belong_to_tokens_and_are_computed_once() -> None:
    calls: list[tuple[PreferenceGroup, ...]] = []

    def compute(groups):
        calls.append(tuple(groups))
        return [torch.tensor([float(sum(ids)), len(ids)]) for group in groups for ids in group.completions]

    cached = CachedLogps(compute)
    first, second = PreferenceGroup((1,), ((2, 3),), ((4,),)), PreferenceGroup((1, 2), ((3,),), ((4,),))
    forth = cached.look_up([first, second])
    back = cached.look_up([second, first])
    assert [values.tolist() for values in forth] == [[5, 2], [4, 1], [3, 1], [4, 1]]
    assert [values.tolist() for values in back] == [[3, 1], [4, 1], [5, 2], [4, 1]]
    assert len(calls) == 2
    forth[0].zero_()
    assert cached.look_up([first])[0].tolist() == [5, 2]


def test_what_the_runner_looks_up_is_not_counted_as_something_that_a_subject_was_held_to(third_party) -> None:
    """Cached log-probs are the subject's doing only where its own loss looks them up."""
    holder = ModelHolder(request("cached"), "float32")
    objective = holder.with_reference(Preference())
    for name, computes in (("ByHand", False), ("AnyReference", True)):
        bench = SimpleNamespace(subject=third_party(name), setting=SimpleNamespace(objective=objective))
        assert computes_reference(bench) is computes
        bench.setting.objective = Preference()
        assert computes_reference(bench)
