from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference_impl.groups import unpack
from reference_impl.logps import completion_logps
from reference_impl.lora import LoraFactors
from reference_impl.objectives import token_coefficients
from reference_impl.step import oracle_step

BETA, SMOOTHING = 0.4, 0.1


def step_of(made, pairs, **changes):
    arguments = {"beta": BETA, "label_smoothing": SMOOTHING, **changes}
    return oracle_step(pairs, made.weights, made.config, made.lora, **arguments)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def model_logps(model, pairs) -> list[Tensor]:
    """Full-vocabulary log-softmax of one unpadded row per completion, by transformers."""
    found = []
    for pair in pairs:
        for completion in (*pair.positives, *pair.negatives):
            ids = torch.tensor([[*pair.prompt_ids, *completion]])
            logps = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
            found.append(torch.stack([logps[len(pair.prompt_ids) - 1 + t, y] for t, y in enumerate(completion)]))
    return found


def joint_loss(logps: list[Tensor], ref_logps: list[Tensor]) -> Tensor:
    """The loss of the whole batch in one expression, by logarithms of the logistic function."""
    gains = [logp.sum() - ref.sum() for logp, ref in zip(logps, ref_logps, strict=True)]
    z = BETA * (torch.stack(gains[0::2]) - torch.stack(gains[1::2]))
    return ((1 - SMOOTHING) * (1 + (-z).exp()).log() + SMOOTHING * (1 + z.exp()).log()).mean()


def model_gradients(model, loss: Tensor) -> dict[str, Tensor]:
    factors = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
    gradients = torch.autograd.grad(loss, list(factors.values()))
    short = [name.removeprefix("base_model.model.").removesuffix(".default.weight") for name in factors]
    return dict(zip(short, gradients, strict=True))


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_the_step_is_that_of_transformers_and_peft_in_float64(family, tiny, pairs, float64_throughout) -> None:
    made = tiny(family)
    model = float64_throughout(made.model)
    logps = model_logps(model, pairs)
    with torch.no_grad(), model.disable_adapter():
        ref_logps = model_logps(model, pairs)
    loss = joint_loss(logps, ref_logps)
    expected_gradients = model_gradients(model, loss)

    step = step_of(made, pairs)
    torch.testing.assert_close(list(step.per_token_logps), [logp.detach() for logp in logps], rtol=0, atol=1e-12)
    torch.testing.assert_close(list(step.ref_per_token_logps), ref_logps, rtol=0, atol=1e-12)
    assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-13)
    assert step.gradients.keys() == expected_gradients.keys()
    assert all(relative(step.gradients[name], expected_gradients[name]) < 1e-11 for name in expected_gradients)
    assert all(gradient.norm() > 1e-4 for gradient in expected_gradients.values())


def test_freeing_each_pair_changes_nothing_against_one_joint_graph(tiny, pairs) -> None:
    made = tiny()
    leaves = {
        module: replace(factors, A=factors.A.clone().requires_grad_(), B=factors.B.clone().requires_grad_())
        for module, factors in made.lora.items()
    }
    sequences = unpack(pairs)
    logps = [completion_logps(sequence, made.weights, made.config, leaves) for sequence in sequences]
    ref_logps = [completion_logps(sequence, made.weights, made.config) for sequence in sequences]
    joint_loss(logps, ref_logps).backward()
    step = step_of(made, pairs)
    for module, factors in leaves.items():
        assert relative(step.gradients[f"{module}.lora_A"], factors.A.grad) < 1e-13
        assert relative(step.gradients[f"{module}.lora_B"], factors.B.grad) < 1e-13


def test_the_closed_form_of_the_coefficients_gives_the_same_gradients(tiny, pairs) -> None:
    made = tiny()
    step = step_of(made, pairs)
    chosen, rejected = token_coefficients(step.margins, BETA, SMOOTHING)
    coefficients = torch.stack([chosen, rejected], dim=1).flatten()
    leaves = {
        module: replace(factors, A=factors.A.clone().requires_grad_(), B=factors.B.clone().requires_grad_())
        for module, factors in made.lora.items()
    }
    for coefficient, sequence in zip(coefficients, unpack(pairs), strict=True):
        (coefficient * completion_logps(sequence, made.weights, made.config, leaves).sum()).backward()
    for module, factors in leaves.items():
        assert relative(factors.A.grad, step.gradients[f"{module}.lora_A"]) < 1e-13
        assert relative(factors.B.grad, step.gradients[f"{module}.lora_B"]) < 1e-13


def test_rewards_and_margins_follow_from_the_log_probs(tiny, pairs) -> None:
    step = step_of(tiny(), pairs)
    sums = [float(a.sum() - b.sum()) for a, b in zip(step.per_token_logps, step.ref_per_token_logps, strict=True)]
    assert step.rewards.tolist() == pytest.approx([BETA * value for value in sums], abs=1e-13)
    assert step.margins.tolist() == pytest.approx([BETA * (sums[0] - sums[1]), BETA * (sums[2] - sums[3])], abs=1e-13)
    assert [len(logps) for logps in step.per_token_logps] == [4, 6, 3, 1]
    assert step.margins.abs().min() > 1e-2


def test_everything_in_a_step_is_detached_float64(tiny, pairs) -> None:
    step = step_of(tiny(), pairs)
    tensors = [*step.per_token_logps, *step.ref_per_token_logps, step.loss, step.rewards, step.margins]
    assert all(t.dtype == torch.float64 and not t.requires_grad for t in (*tensors, *step.gradients.values()))


def test_the_factors_that_were_passed_stay_as_they_were(tiny, pairs) -> None:
    made = tiny()
    before = {module: (factors.A.clone(), factors.B.clone()) for module, factors in made.lora.items()}
    step_of(made, pairs)
    for module, factors in made.lora.items():
        assert torch.equal(factors.A, before[module][0])
        assert torch.equal(factors.B, before[module][1])
        assert not factors.A.requires_grad
        assert factors.A.grad is None


def test_values_are_the_same_without_gradients(tiny, pairs) -> None:
    made = tiny()
    with_gradients, without = step_of(made, pairs), step_of(made, pairs, gradients=False)
    assert without.gradients is None
    assert torch.equal(with_gradients.loss, without.loss)
    assert all(map(torch.equal, with_gradients.per_token_logps, without.per_token_logps))


def test_a_caller_without_gradients_gets_them_all_the_same(tiny, pairs) -> None:
    made = tiny()
    with torch.no_grad():
        inside = step_of(made, pairs).gradients
    outside = step_of(made, pairs).gradients
    assert all(torch.equal(inside[name], outside[name]) for name in outside)


def test_the_default_start_of_lora_hides_everything(tiny, pairs) -> None:
    """With B = 0 the policy is its reference: log 2 whatever the layout, and no gradient in any A."""
    made = tiny()
    zero_B = {module: LoraFactors(f.A, torch.zeros_like(f.B), f.scaling) for module, f in made.lora.items()}
    step = step_of(replace(made, lora=zero_B), pairs)
    assert float(step.loss) == pytest.approx(math.log(2), abs=1e-15)
    assert step.rewards.tolist() == [0.0] * 4
    assert all((step.gradients[name] == 0).all() for name in step.gradients if name.endswith("lora_A"))
    assert all((step.gradients[name] != 0).any() for name in step.gradients if name.endswith("lora_B"))


def test_a_predictor_off_by_one_is_visible(tiny, pairs) -> None:
    made = tiny()
    sequence = unpack(pairs)[0]
    right = step_of(made, pairs, gradients=False).per_token_logps[0]
    late = model_logps_at(made, sequence, shift=1)
    assert (late - right).abs().max() > 0.1


def model_logps_at(made, sequence, shift: int) -> Tensor:
    with torch.no_grad():
        logps = made.model(input_ids=torch.tensor([sequence.ids]), use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([logps[p + shift, y] for p, y in zip(sequence.predictors, sequence.completion_ids, strict=True)])


@pytest.mark.parametrize(
    ("objective", "positives", "negatives", "message"),
    [
        ("sigmoid", ((1,),), (), "group 2 has 1 positives and 0 negatives: the sigmoid loss compares them"),
        ("sigmoid", (), ((1,),), "group 2 has 0 positives and 1 negatives: the sigmoid loss compares them"),
        ("sft-token-mean", ((1,),), ((2,),), "group 0 has 1 positives and 1 negatives: SFT learns from positives only"),
        ("sft-example-mean", ((1,),), ((2,),), "group 0 has 1 positives and 1 negatives: SFT learns from positives"),
    ],
)
def test_a_group_without_meaning_for_the_objective_is_refused(
    objective, positives, negatives, message, tiny, pairs
) -> None:
    group = replace(pairs[0], positives=positives, negatives=negatives)
    with pytest.raises(ValueError, match=message):
        step_of(tiny(), [*pairs, group], objective=objective)


def test_a_step_on_nothing_is_refused(tiny, pairs) -> None:
    made = tiny(adapters=False)
    with pytest.raises(ValueError, match="no groups"):
        step_of(tiny(), [])
    with pytest.raises(ValueError, match="gradients without LoRA factors"):
        step_of(made, pairs)
    with pytest.raises(ValueError, match="beta is -1"):
        step_of(made, pairs, beta=-1)
    with pytest.raises(ValueError, match=r"label_smoothing is 0\.5"):
        step_of(made, pairs, label_smoothing=0.5)
