"""An observation is what the passes of a subject gave: float64 values on the CPU, and nothing of the passes."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.models.request import ModelUnderTest
from verify.objective import Preference
from verify.observation import Observation, observe
from verify.subject import Subject, SubjectError
from verify.subjects.oracle import apply_objective, observe_oracle
from verify.supervised_values import pair_margins, supervised_logps
from verify.trained_gradients import to_float64, trained_name

OBJECTIVE = Preference(beta=0.3, label_smoothing=0.1)
Tiny = Callable[[str], ModelUnderTest]
ThirdParty = Callable[[str], Subject]


def look(subject: Subject, model: Any, case: Case, **changes: Any) -> Observation:
    settings = {"objective": OBJECTIVE, "apply_objective": apply_objective, "seed": 0, **changes}
    objective = settings.pop("objective")
    return observe(subject, model, case.groups, objective, **settings)


class _Wraps:
    """A subject with some of its parts replaced."""

    def __init__(self, subject: Any, **parts: Any) -> None:
        self.name, self.per_token_logps = subject.name, subject.per_token_logps
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Any:
    return tiny("float64").model


def test_every_quantity_agrees_with_the_oracle(model: Any, third_party: ThirdParty, short_case: Case) -> None:
    """Found another way: one unpadded sequence at a time, from the definition, with coefficients in closed form."""
    found, expected = (
        look(third_party("ByHand"), model, short_case),
        observe_oracle(model, short_case.groups, OBJECTIVE),
    )
    for quantity in ("rewards", "margins", "loss"):
        torch.testing.assert_close(getattr(found, quantity), getattr(expected, quantity), rtol=1e-4, atol=1e-5)
    for quantity in ("per_token_logps", "ref_per_token_logps"):
        torch.testing.assert_close(getattr(found, quantity), getattr(expected, quantity), rtol=1e-5, atol=1e-5)
    assert found.gradients is not None
    assert expected.gradients is not None
    torch.testing.assert_close(dict(found.gradients), dict(expected.gradients), rtol=1e-3, atol=1e-5)


def test_every_lora_tensor_has_a_gradient_under_a_plain_name(
    model: Any, third_party: ThirdParty, short_case: Case
) -> None:
    gradients = look(third_party("ByHand"), model, short_case).gradients
    assert gradients is not None
    parts = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    assert set(gradients) == {f"model.layers.0.{part}.lora_{side}" for part in parts for side in "AB"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_values_are_float64_on_the_cpu_without_a_graph(
    tiny: Tiny, third_party: ThirdParty, short_case: Case, dtype: str
) -> None:
    found = look(third_party("ByHand"), tiny(dtype).model, short_case)
    values = [*found.per_token_logps, *found.ref_per_token_logps, found.rewards, found.margins, found.loss]
    for value in [*values, *(found.gradients or {}).values()]:
        assert (value.dtype, value.device.type, value.requires_grad) == (torch.float64, "cpu", False)


def test_the_reference_is_the_model_with_its_adapters_off(
    model: Any, third_party: ThirdParty, short_case: Case
) -> None:
    """Taken from the model under the wrapping, with the adapters' factors at zero."""
    found = look(third_party("ByHand"), model, short_case)
    factors = [p for n, p in model.named_parameters() if ".lora_B." in n]
    before = [factor.detach().clone() for factor in factors]
    for factor in factors:
        factor.data.zero_()
    try:
        with torch.no_grad():
            expected = third_party("ByHand").per_token_logps(model, short_case.groups)
    finally:
        for factor, values in zip(factors, before, strict=True):
            factor.data.copy_(values)
    torch.testing.assert_close(list(found.ref_per_token_logps), list(expected), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found.per_token_logps[0], found.ref_per_token_logps[0], atol=0.01)


def test_two_observations_are_the_same_to_the_bit(model: Any, third_party: ThirdParty, short_case: Case) -> None:
    first, second = (look(third_party("ByHand"), model, short_case) for _ in range(2))
    assert torch.equal(torch.cat(first.per_token_logps), torch.cat(second.per_token_logps))
    assert first.gradients is not None
    assert second.gradients is not None
    assert all(torch.equal(gradient, second.gradients[name]) for name, gradient in first.gradients.items())


def test_random_numbers_of_a_subject_are_seeded(model: Any, third_party: ThirdParty, short_case: Case) -> None:
    inner = third_party("ByHand")

    def noisy(model: Any, groups: Any) -> list[torch.Tensor]:
        return [logps + torch.rand(len(logps)) for logps in inner.per_token_logps(model, groups)]

    subject = _Wraps(inner, per_token_logps=noisy)
    first, same, other = (look(subject, model, short_case, seed=seed).per_token_logps[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_the_objective_is_the_runners_unless_the_subject_has_its_own(
    model: Any, third_party: ThirdParty, short_case: Case
) -> None:
    given, own = (look(third_party(name), model, short_case) for name in ("ByHand", "MeanInsteadOfSum"))
    assert [phase.phase for phase in given.phases] == ["log-probs"]
    assert {phase.phase for phase in own.phases} == {"loss", "log-probs"}
    assert torch.equal(torch.cat(given.per_token_logps), torch.cat(own.per_token_logps))
    assert not torch.allclose(given.rewards, own.rewards)


def test_label_smoothing_and_beta_reach_loss_and_gradients(
    model: Any, third_party: ThirdParty, short_case: Case
) -> None:
    for objective in (Preference(beta=0.05), Preference(beta=1.0, label_smoothing=0.3)):
        found = look(third_party("ByHand"), model, short_case, objective=objective)
        expected = observe_oracle(model, short_case.groups, objective)
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-6)
        name = "model.layers.0.mlp.up_proj.lora_A"
        assert found.gradients is not None
        assert expected.gradients is not None
        torch.testing.assert_close(found.gradients[name], expected.gradients[name], rtol=1e-3, atol=1e-6)


def test_log_probs_that_come_with_the_loss_are_not_asked_for_again(
    model: Any, third_party: ThirdParty, short_case: Case
) -> None:
    own: Any = third_party("OwnLoss")
    calls: list[str] = []

    def per_token_logps(model: Any, groups: Any) -> Any:
        calls.append("per_token_logps")
        return own.per_token_logps(model, groups)

    def loss(model: Any, groups: Any, objective: Any) -> Any:
        with torch.no_grad(), model.disable_adapter():
            refs = own.per_token_logps(model, groups)
        logps = own.per_token_logps(model, groups)
        sums, ref_sums = (torch.stack([tokens.sum() for tokens in part]) for part in (logps, refs))
        rewards = objective.beta * (sums - ref_sums)
        value = -torch.nn.functional.logsigmoid(rewards[0::2] - rewards[1::2]).mean()
        return SimpleNamespace(loss=value, rewards=rewards, per_token_logps=logps, ref_per_token_logps=refs)

    found = look(_Wraps(own, per_token_logps=per_token_logps, loss=loss), model, short_case)
    plain = look(own, model, short_case)
    assert calls == []
    assert [phase.phase for phase in found.phases] == ["loss"]
    assert torch.equal(torch.cat(found.per_token_logps), torch.cat(plain.per_token_logps))
    assert torch.equal(torch.cat(found.ref_per_token_logps), torch.cat(plain.ref_per_token_logps))


def test_without_a_backward_pass_gradients_are_absent_with_the_reason(
    model: Any, third_party: ThirdParty, short_case: Case
) -> None:
    no = SimpleNamespace(supported=False, reason="forward only")
    subject = _Wraps(third_party("Detached"), supports_gradients=lambda model: no)
    found = look(subject, model, short_case)
    assert (found.gradients, found.gradients_absent_because) == (None, "forward only")
    assert len(found.per_token_logps) == 2


def test_a_gradient_left_from_before_is_not_added_to(model: Any, third_party: ThirdParty, short_case: Case) -> None:
    clean = look(third_party("ByHand"), model, short_case)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 7.0)
    again = look(third_party("ByHand"), model, short_case)
    name = "model.layers.0.mlp.up_proj.lora_A"
    assert clean.gradients is not None
    assert again.gradients is not None
    assert torch.equal(clean.gradients[name], again.gradients[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_graph_is_freed_with_the_observation_kept(model: Any, third_party: ThirdParty, short_case: Case) -> None:
    """Otherwise the passes of every subject on every case would be kept in memory."""
    inner, alive = third_party("ByHand"), []

    def per_token_logps(model: Any, groups: Any) -> Any:
        logps = inner.per_token_logps(model, groups)
        alive.append(weakref.ref(logps[0]))
        return logps

    kept = look(_Wraps(inner, per_token_logps=per_token_logps), model, short_case)
    gc.collect()
    assert kept.per_token_logps
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.parametrize("error", [RuntimeError("kernel"), KeyError("x"), SystemExit(0), AssertionError("a\nb")])
def test_whatever_a_subject_raises_is_its_error_and_not_the_runs(
    model: Any, third_party: ThirdParty, short_case: Case, error: BaseException
) -> None:
    def raises(model: Any, groups: Any) -> Any:
        raise error

    subject = _Wraps(third_party("ByHand"), per_token_logps=raises)
    with pytest.raises(SubjectError, match=f"^subject by-hand raised {type(error).__name__}: "):
        look(subject, model, short_case)


def test_an_interrupt_is_the_users_and_not_the_subjects(model: Any, third_party: ThirdParty, short_case: Case) -> None:
    def interrupted(model: Any, groups: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(_Wraps(third_party("ByHand"), per_token_logps=interrupted), model, short_case)


# Parts.


def test_margins_are_chosen_minus_rejected_of_each_group() -> None:
    groups = [PreferenceGroup((1,), ((2,),), ((3,),))] * 2
    assert pair_margins(torch.tensor([3.0, 1.0, 0.5, 4.0]), groups).tolist() == [2.0, -3.5]


def test_margins_of_a_group_run_over_its_positives_and_for_each_over_its_negatives() -> None:
    group = PreferenceGroup((1,), ((2,), (3,)), ((4,), (5,), (6,)))
    pair = PreferenceGroup((1,), ((2,),), ((3,),))
    rewards = torch.tensor([10.0, 20.0, 1.0, 2.0, 3.0, 7.0, 5.0])
    assert pair_margins(rewards, [group, pair]).tolist() == [9.0, 8.0, 7.0, 19.0, 18.0, 17.0, 2.0]


def test_margins_of_a_group_without_a_negative_are_refused() -> None:
    pair = PreferenceGroup((1,), ((2,),), ((3,),))
    with pytest.raises(ValueError, match="group 1 has no negative"):
        pair_margins(torch.zeros(3), [pair, PreferenceGroup((1,), ((2,),))])


def test_only_supervised_tokens_are_observed() -> None:
    group = PreferenceGroup((1,), ((2, 3, 4),), completion_masks=((True, False, True),))
    (kept,) = supervised_logps([torch.tensor([-1.0, math.nan, -3.0])], [group])
    assert kept.tolist() == [-1.0, -3.0]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("base_model.model.model.layers.3.mlp.up_proj.lora_A.default.weight", "model.layers.3.mlp.up_proj.lora_A"),
        ("base_model.model.lm_head.lora_B.default.weight", "lm_head.lora_B"),
    ],
)
def test_a_lora_tensor_is_named_without_pefts_wrapping(name: str, plain: str) -> None:
    assert trained_name(name) == plain


def test_conversion_to_float64_is_exact_and_a_copy() -> None:
    narrow = torch.tensor([1.0, -0.0, 3.3895313892515355e38, 9.183549615799121e-41], dtype=torch.bfloat16)
    assert torch.equal(to_float64(narrow).to(torch.bfloat16), narrow)
    wide = torch.ones(2, dtype=torch.float64, requires_grad=True)
    copy = to_float64(wide)
    copy.zero_()
    assert wide.tolist() == [1.0, 1.0]


def test_a_sparse_gradient_is_read_as_the_dense_one() -> None:
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([3, 1, 3])).sum().backward()
    assert to_float64(embedding.weight.grad).tolist() == [[0, 0], [1, 1], [0, 0], [2, 2], [0, 0]]  # type: ignore[arg-type]
