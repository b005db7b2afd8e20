from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reference_impl import step as step_module
from reference_impl.batch_objective import batch_token_coefficients
from reference_impl.groups import unpack
from reference_impl.logps import completion_logps
from reference_impl.lora import LoraFactors
from reference_impl.preference import PREFERENCE_NAMES
from reference_impl.step import oracle_step

BETA, SMOOTHING = 0.4, 0.1
every_objective = pytest.mark.parametrize(
    ("objective", "data"),
    [
        ("sigmoid", "pairs"),
        *((name, "many") for name in PREFERENCE_NAMES),
        ("sft-token-mean", "examples"),
        ("sft-example-mean", "examples"),
    ],
)


def step_of(made, pairs, **changes):
    arguments = {**parameters_of(changes.get("objective", "sigmoid")), **changes}
    return oracle_step(pairs, made.weights, made.config, made.lora, **arguments)


def parameters_of(objective: str) -> dict[str, float]:
    has_none = objective in ("hinge", "ipo") or objective.startswith("groupdpo-")
    return {"beta": BETA, "label_smoothing": 0.0 if has_none else SMOOTHING}


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


@pytest.mark.parametrize(
    "family", ["qwen3", "qwen2", "llama", "llama3", "mistral", "qwen2 mixed", "qwen3 mixed", "qwen3_moe"]
)
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


@every_objective
def test_the_closed_form_of_the_coefficients_gives_the_same_gradients(objective, data, tiny, request) -> None:
    made, groups = tiny(), request.getfixturevalue(data)
    arguments = {"objective": objective, **parameters_of(objective)}
    step = step_of(made, groups, objective=objective)
    leaves = {
        module: replace(factors, A=factors.A.clone().requires_grad_(), B=factors.B.clone().requires_grad_())
        for module, factors in made.lora.items()
    }
    coefficients = batch_token_coefficients(step.rewards, groups, **arguments)
    for of_tokens, sequence in zip(coefficients, unpack(groups), strict=True):
        (of_tokens * completion_logps(sequence, made.weights, made.config, leaves)).sum().backward()
    for module, factors in leaves.items():
        assert relative(factors.A.grad, step.gradients[f"{module}.lora_A"]) < 1e-12
        assert relative(factors.B.grad, step.gradients[f"{module}.lora_B"]) < 1e-12


def sft_loss_of_transformers(model, groups, objective: str) -> Tensor:
    """Transformers' own loss on ``labels=``, in which -100 marks what is not supervised."""
    rows = [
        ([*group.prompt_ids, *completion], [-100] * len(group.prompt_ids) + labels)
        for group in groups
        for completion, labels in zip(group.positives, labels_of(group), strict=True)
    ]
    if objective == "sft-example-mean":
        return torch.stack([loss_on_labels(model, [row]) for row in rows]).mean()
    return loss_on_labels(model, rows)


def labels_of(group) -> list[list[int]]:
    masks = group.completion_masks or [(True,) * len(completion) for completion in group.positives]
    return [
        [token if counts else -100 for token, counts in zip(completion, mask, strict=True)]
        for completion, mask in zip(group.positives, masks, strict=True)
    ]


def loss_on_labels(model, rows) -> Tensor:
    """One call on rows padded to the right, so that the mean over tokens is one over all rows."""
    width = max(len(ids) for ids, _ in rows)
    padded = [(ids + [0] * (width - len(ids)), labels + [-100] * (width - len(ids))) for ids, labels in rows]
    mask = [[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]
    output = model(
        input_ids=torch.tensor([ids for ids, _ in padded]),
        labels=torch.tensor([labels for _, labels in padded]),
        attention_mask=torch.tensor(mask),
        use_cache=False,
    )
    return output.loss


@pytest.mark.parametrize("objective", ["sft-token-mean", "sft-example-mean"])
def test_sft_is_what_transformers_computes_from_labels(objective, tiny, examples, float64_throughout) -> None:
    """Its loss casts logits to float32, so that rounding is 1e-7 here; masks that are forgotten move hundredths."""
    made = tiny()
    model = float64_throughout(made.model)
    loss = sft_loss_of_transformers(model, examples, objective)
    expected_gradients = model_gradients(model, loss)
    step = step_of(made, examples, objective=objective)
    assert float(step.loss) == pytest.approx(float(loss.detach()), rel=1e-6)
    assert all(relative(step.gradients[name], expected_gradients[name]) < 1e-5 for name in expected_gradients)
    unmasked = [replace(group, completion_masks=()) for group in examples]
    assert abs(float(step_of(made, unmasked, objective=objective, gradients=False).loss) - float(step.loss)) > 1e-2


def test_the_step_of_groups_is_that_of_transformers_and_peft_in_float64(tiny, many, float64_throughout) -> None:
    made = tiny()
    model = float64_throughout(made.model)
    logps = model_logps(model, many)
    with torch.no_grad(), model.disable_adapter():
        ref_logps = model_logps(model, many)
    masks = [*many[0].completion_masks, (True,) * 3, (True,)]
    gains = [((a - b) * torch.tensor(mask)).sum() for a, b, mask in zip(logps, ref_logps, masks, strict=True)]
    z = BETA * torch.stack([gains[p] - gains[n] for p, n in ((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (5, 6))])
    losses = (1 - SMOOTHING) * (1 + (-z).exp()).log() + SMOOTHING * (1 + z.exp()).log()
    loss = (losses[:6].mean() + losses[6]) / 2
    expected_gradients = model_gradients(model, loss)

    step = step_of(made, many)
    torch.testing.assert_close(list(step.per_token_logps), [logp.detach() for logp in logps], rtol=0, atol=1e-12)
    torch.testing.assert_close(list(step.ref_per_token_logps), ref_logps, rtol=0, atol=1e-12)
    torch.testing.assert_close(step.margins, z.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(step.rewards, BETA * torch.stack(gains).detach(), rtol=0, atol=1e-12)
    assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-13)
    assert all(relative(step.gradients[name], expected_gradients[name]) < 1e-11 for name in expected_gradients)


def test_the_step_of_groupdpo_is_that_of_transformers_and_peft_in_float64(tiny, many, float64_throughout) -> None:
    """MPO with half its likelihood term: means over supervised tokens, one softmax over a group's rewards."""
    made = tiny()
    model = float64_throughout(made.model)
    logps = model_logps(model, many)
    with torch.no_grad(), model.disable_adapter():
        ref_logps = model_logps(model, many)
    masks = [*many[0].completion_masks, (True,) * 3, (True,)]
    means, ref_means = (
        torch.stack([of[torch.tensor(mask)].mean() for of, mask in zip(found, masks, strict=True)])
        for found in (logps, ref_logps)
    )
    u = BETA * (means - ref_means)
    nll = -(means[:2].mean() + means[5]) / 2
    loss = -(u[:5].softmax(0)[:2].sum().log() + u[5:].softmax(0)[0].log()) / 2 + 0.5 * nll
    expected_gradients = model_gradients(model, loss)

    step = step_of(made, many, objective="groupdpo-mpo", nll_weight=0.5)
    torch.testing.assert_close(step.rewards, u.detach(), rtol=0, atol=1e-12)
    assert step.margins.shape == (7,)
    assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-13)
    assert all(relative(step.gradients[name], expected_gradients[name]) < 1e-11 for name in expected_gradients)


@pytest.mark.parametrize("objective", ["sft-token-mean", "sft-example-mean"])
def test_sft_has_no_frozen_policy_no_rewards_and_no_margins(objective, tiny, examples, monkeypatch) -> None:
    policies = []

    def recording(sequence, weights, config, lora=None) -> Tensor:
        policies.append(lora)
        return completion_logps(sequence, weights, config, lora)

    monkeypatch.setattr(step_module, "completion_logps", recording)
    step = step_of(tiny(), examples, objective=objective)
    assert step.ref_per_token_logps == ()
    assert [(values.shape, values.dtype) for values in (step.rewards, step.margins)] == [((0,), torch.float64)] * 2
    assert len(policies) == 3
    assert None not in policies


def test_sft_ignores_what_only_preferences_have(tiny, examples) -> None:
    made = tiny()
    with_them = step_of(made, examples, objective="sft-token-mean", gradients=False)
    without = oracle_step(examples, made.weights, made.config, made.lora, objective="sft-token-mean", gradients=False)
    assert torch.equal(with_them.loss, without.loss)


@every_objective
def test_masks_leave_every_log_prob_as_it_is(objective, data, tiny, request) -> None:
    made, groups = tiny(), request.getfixturevalue(data)
    unmasked = [replace(group, completion_masks=()) for group in groups]
    masked_step, step = (step_of(made, of, objective=objective, gradients=False) for of in (groups, unmasked))
    assert all(map(torch.equal, masked_step.per_token_logps, step.per_token_logps))
    assert [len(of) for of in step.per_token_logps] == [len(s.completion_ids) for s in unpack(groups)]


def test_the_sigmoid_loss_needs_its_parameters(tiny, pairs) -> None:
    made = tiny()
    with pytest.raises(ValueError, match="sigmoid with beta None and label_smoothing None: it needs both"):
        oracle_step(pairs, made.weights, made.config, made.lora)


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
        ("groupdpo-mpo", ((1,),), (), "group 2 has 1 positives and 0 negatives: the groupdpo-mpo loss compares them"),
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
