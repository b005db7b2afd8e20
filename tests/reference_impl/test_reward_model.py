from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from reference_impl import reward_model
from reference_impl.decoder import hidden_states
from reference_impl.finite_differences import moved, random_direction
from reference_impl.gradients import leaves
from reference_impl.reward_model import oracle_reward_step

WIDTH = 32
PLACES = ((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (5, 6))
"""Pairs of completions of the groups ``many``, which are of two against three and of one against one."""


def drawn_head(seed: int = 3, std: float = 0.5) -> Tensor:
    return torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * std


def body_of(made):
    """The model without a head over the vocabulary, nor an adapter on it."""
    weights = {name: weight for name, weight in made.weights.items() if name != "lm_head.weight"}
    lora = {module: factors for module, factors in made.lora.items() if module != "lm_head"}
    return replace(made, weights=weights, lora=lora)


def step_of(made, groups, head=None, **changes):
    head = drawn_head() if head is None else head
    return oracle_reward_step(groups, made.weights, made.config, made.lora, head, **changes)


def loss_of_rewards(r: Tensor) -> Tensor:
    """The loss of ``many`` in one expression, by logarithms of the logistic function."""
    losses = torch.stack([(1 + (r[n] - r[p]).exp()).log() for p, n in PLACES])
    return (losses[:6].mean() + losses[6]) / 2


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def classifier(made, head: Tensor):
    """Transformers' own reward model with the same weights, factors and head."""
    kept = {name: value for name, value in made.model.config.to_dict().items() if name != "num_labels"}
    model = Qwen3ForSequenceClassification(Qwen3Config(**kept, num_labels=1)).double().eval()
    missing, unexpected = model.load_state_dict({**made.weights, "score.weight": head}, strict=False)
    assert (missing, unexpected) == ([], [])
    targets = sorted({module.rsplit(".", 1)[-1] for module in made.lora})
    adapter = LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=6, target_modules=targets, lora_dropout=0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        wrapped = get_peft_model(model, adapter).double().eval()
    trained = {}
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            plain = name.removeprefix("base_model.model.").replace(".default", "")
            if ".lora_" in plain:
                module, side = plain.removesuffix(".weight").split(".lora_")
                parameter.copy_(getattr(made.lora[module], side))
                trained[f"{module}.lora_{side}"] = parameter
            elif parameter.requires_grad:
                trained[plain.replace("modules_to_save.", "")] = parameter
    return wrapped, trained


def test_the_step_is_that_of_transformers_and_peft_in_float64(tiny, many, float64_throughout) -> None:
    made, head = body_of(tiny()), drawn_head()
    model, trained = classifier(made, head)
    model = float64_throughout(model)
    rewards = torch.stack(
        [
            model(input_ids=torch.tensor([[*group.prompt_ids, *completion]])).logits[0, 0]
            for group in many
            for completion in (*group.positives, *group.negatives)
        ]
    )
    loss = loss_of_rewards(rewards)
    expected_gradients = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))

    step = step_of(made, many, head)
    torch.testing.assert_close(step.rewards, rewards.detach(), rtol=0, atol=1e-12)
    margins = torch.stack([rewards[p] - rewards[n] for p, n in PLACES]).detach()
    torch.testing.assert_close(step.margins, margins, rtol=0, atol=1e-12)
    assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-13)
    assert step.gradients.keys() == expected_gradients.keys()
    assert all(relative(step.gradients[name], expected_gradients[name]) < 1e-11 for name in expected_gradients)
    assert all(gradient.norm() > 1e-4 for gradient in expected_gradients.values())
    assert margins.abs().min() > 1e-2


def test_transformers_reads_another_token_where_a_completion_ends_in_padding(tiny, pairs, float64_throughout) -> None:
    """As it does where the padding token is the one that ends a turn."""
    made, head = body_of(tiny()), drawn_head()
    wrapped, _ = classifier(made, head)
    model = float64_throughout(wrapped)
    *all_but_last, last = pairs[0].positives[0]
    model.base_model.model.config.pad_token_id = last
    with torch.no_grad():
        reward = model(input_ids=torch.tensor([[*pairs[0].prompt_ids, *all_but_last, last]])).logits[0, 0]
    shorter = replace(pairs[0], positives=(tuple(all_but_last),))
    assert abs(step_of(made, [shorter], head).rewards[0] - reward) < 1e-12
    assert abs(step_of(made, [pairs[0]], head).rewards[0] - reward) > 1e-2


@pytest.mark.parametrize("family", ["qwen3", "llama3", "qwen3 mixed", "qwen3_moe"])
def test_gradients_are_the_slope_of_the_loss(family, tiny, many) -> None:
    """Factors and head are moved together."""
    made, head = body_of(tiny(family)), drawn_head()
    gradients = step_of(made, many, head).gradients
    direction = random_direction(made.lora, torch.Generator().manual_seed(7))
    of_head = drawn_head(seed=8, std=0.1)

    def loss(steps: int) -> float:
        shifted = replace(made, lora=moved(made.lora, direction, steps * 1e-3))
        return float(step_of(shifted, many, head + steps * 1e-3 * of_head, gradients=False).loss)

    measured = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * 1e-3)
    told = sum(float((gradients[name] * part).sum()) for name, part in {**direction, "score.weight": of_head}.items())
    assert told == pytest.approx(measured, rel=1e-7)
    assert abs(measured) > 1e-4


def test_the_gradient_of_the_head_is_a_sum_of_hidden_states(tiny, many) -> None:
    """In closed form: of pair (p, n) with weight w it is ``-w sigma(r_n - r_p) (h_p - h_n)``."""
    made, head = body_of(tiny()), drawn_head()
    step = step_of(made, many, head)
    headless = replace(made.config, tied=True)
    h = [
        hidden_states((*group.prompt_ids, *completion), made.weights, headless, made.lora)[-1]
        for group in many
        for completion in (*group.positives, *group.negatives)
    ]
    shares = [1 / 12] * 6 + [1 / 2]
    pulls = zip(PLACES, step.margins.tolist(), shares, strict=True)
    expected = sum(-share / (1 + math.exp(z)) * (h[p] - h[n]) for (p, n), z, share in pulls)
    torch.testing.assert_close(step.gradients["score.weight"], expected[None], rtol=0, atol=1e-13)


def test_freeing_each_group_changes_nothing_against_one_joint_graph(tiny, many) -> None:
    made, head = body_of(tiny()), drawn_head().requires_grad_()
    lora, headless = leaves(made.lora, requires_grad=True), replace(made.config, tied=True)
    rewards = [
        (hidden_states((*group.prompt_ids, *completion), made.weights, headless, lora)[-1] * head).sum()
        for group in many
        for completion in (*group.positives, *group.negatives)
    ]
    loss_of_rewards(torch.stack(rewards)).backward()
    gradients = step_of(made, many, head).gradients
    assert relative(gradients["score.weight"], head.grad) < 1e-13
    for module, factors in lora.items():
        assert relative(gradients[f"{module}.lora_A"], factors.A.grad) < 1e-12
        assert relative(gradients[f"{module}.lora_B"], factors.B.grad) < 1e-12


@pytest.fixture
def one_hot_of_last_token(monkeypatch) -> None:
    """A decoder whose hidden state is one-hot in the token itself: a reward is what the head holds for the last one."""

    def decoder(ids, *_: object) -> Tensor:
        return torch.eye(WIDTH, dtype=torch.float64)[list(ids)]

    monkeypatch.setattr(reward_model, "hidden_states", decoder)


def head_of(**rewards: float) -> Tensor:
    """A head with these rewards for the tokens 1, 2 and 3, and one for all other tokens that must not be read."""
    head = torch.full((1, WIDTH), 777.0, dtype=torch.float64)
    for token, name in enumerate(("first", "second", "third"), start=1):
        head[0, token] = rewards[name]
    return head


def test_a_group_of_two_against_one_worked_out_by_hand(tiny, pairs, one_hot_of_last_token) -> None:
    """Rewards 1, 3 and 0: margins 1 and 3, losses log(1 + e^-1) and log(1 + e^-3), of which the mean counts."""
    made = replace(body_of(tiny()), lora={})
    group = replace(pairs[0], positives=((9, 1), (2,)), negatives=((8, 9, 3),))
    step = step_of(made, [group], head_of(first=1.0, second=3.0, third=0.0))
    assert step.rewards.tolist() == [1.0, 3.0, 0.0]
    assert step.margins.tolist() == [1.0, 3.0]
    assert float(step.loss) == pytest.approx((0.3132616875182228 + 0.04858735157374206) / 2, abs=1e-15)
    # sigma(-1) = 0.2689..., sigma(-3) = 0.0474...
    gradient = step.gradients["score.weight"][0]
    pulled = [0.2689414213699951 / 2, 0.04742587317756678 / 2]
    assert gradient[1:4].tolist() == pytest.approx([-pulled[0], -pulled[1], sum(pulled)], abs=1e-15)
    assert gradient.count_nonzero() == 3


def test_a_group_weighs_the_same_whatever_its_number_of_pairs(tiny, pairs, one_hot_of_last_token) -> None:
    made = replace(body_of(tiny()), lora={})
    head = head_of(first=1.0, second=3.0, third=0.0)
    large = replace(pairs[0], positives=((1,), (2,)), negatives=((3,),))
    small = replace(pairs[0], positives=((3,),), negatives=((1,),))
    both = step_of(made, [large, small], head)
    alone = [step_of(made, [group], head) for group in (large, small)]
    assert float(both.loss) == pytest.approx(sum(float(step.loss) for step in alone) / 2, abs=1e-15)
    assert both.margins.tolist() == [1.0, 3.0, -1.0]
    mean_over_all_pairs = (0.3132616875182228 + 0.04858735157374206 + 1.3132616875182228) / 3
    assert abs(float(both.loss) - mean_over_all_pairs) > 0.1


@pytest.mark.parametrize(("first", "second", "loss"), [(1e4, -1e4, 0.0), (-1e4, 1e4, 2e4), (1e4, 1e4, math.log(2))])
def test_extreme_rewards_stay_exact(first, second, loss, tiny, pairs, one_hot_of_last_token) -> None:
    made = replace(body_of(tiny()), lora={})
    group = replace(pairs[0], positives=((1,),), negatives=((2,),))
    step = step_of(made, [group], head_of(first=first, second=second, third=0.0))
    assert float(step.loss) == loss
    assert step.margins.tolist() == [first - second]
    slope = {0.0: 0.0, 2e4: -1.0}.get(loss, -0.5)
    assert step.gradients["score.weight"][0, 1:3].tolist() == [slope, -slope]


def test_extreme_rewards_of_a_decoder_are_finite_and_add_up(tiny, many) -> None:
    made = body_of(tiny())
    step = step_of(made, many, drawn_head(std=2e4))
    assert step.rewards.abs().max() > 1e4
    losses = [max(0.0, -z) for z in step.margins.tolist()]
    assert min(abs(z) for z in step.margins.tolist()) > 100
    assert float(step.loss) == pytest.approx((sum(losses[:6]) / 6 + losses[6]) / 2, rel=1e-14)
    assert all(gradient.isfinite().all() for gradient in step.gradients.values())


def test_the_last_token_counts_supervised_or_not(tiny, many) -> None:
    made = body_of(tiny())
    masked, unmasked = step_of(made, many), step_of(made, [replace(group, completion_masks=()) for group in many])
    assert torch.equal(masked.rewards, unmasked.rewards)
    assert many[0].completion_masks[2][-1] is False
    cut = [replace(many[0], negatives=((12, 50, 7, 7), *many[0].negatives[1:]), completion_masks=()), many[1]]
    assert abs(step_of(made, cut).rewards[2] - masked.rewards[2]) > 1e-2


def test_a_head_over_the_vocabulary_is_not_read(tiny, many) -> None:
    made = tiny()
    noise = {**body_of(made).weights, "lm_head.weight": torch.full((61, WIDTH), math.nan)}
    with_one = step_of(replace(body_of(made), weights=noise), many)
    without = step_of(body_of(made), many)
    assert torch.equal(with_one.rewards, without.rewards)
    tied = body_of(tiny(tie_word_embeddings=True))
    assert step_of(tied, many).gradients.keys() == {f"{m}.lora_{side}" for m in tied.lora for side in "AB"} | {
        "score.weight"
    }


def test_a_head_of_one_dimension_is_the_same_head(tiny, many) -> None:
    made, head = body_of(tiny()), drawn_head()
    flat, row = step_of(made, many, head[0]), step_of(made, many, head)
    assert torch.equal(flat.rewards, row.rewards)
    assert flat.gradients["score.weight"].shape == (WIDTH,)
    assert torch.equal(flat.gradients["score.weight"], row.gradients["score.weight"][0])
    narrow = step_of(made, many, head.to(torch.bfloat16))
    assert torch.equal(narrow.rewards, step_of(made, many, head.to(torch.bfloat16).double()).rewards)


def test_a_head_can_be_trained_alone_and_a_step_taken_without_gradients(tiny, many) -> None:
    made = body_of(tiny())
    assert step_of(replace(made, lora={}), many).gradients.keys() == {"score.weight"}
    without = step_of(made, many, gradients=False)
    assert without.gradients is None
    with torch.no_grad():
        inside = step_of(made, many)
    assert torch.equal(inside.loss, without.loss)
    assert all(gradient.norm() > 0 for gradient in inside.gradients.values())
    tensors = (inside.loss, inside.rewards, inside.margins, *inside.gradients.values())
    assert all(t.dtype == torch.float64 and not t.requires_grad for t in tensors)


@pytest.mark.parametrize(
    ("positives", "negatives", "message"),
    [
        (((1,),), (), "group 1 has 1 positives and 0 negatives: a reward model compares them"),
        ((), ((1,),), "group 1 has 0 positives and 1 negatives: a reward model compares them"),
        ((), (), "group 1 has no completion"),
    ],
)
def test_a_group_of_one_side_is_refused(positives, negatives, message, tiny, pairs) -> None:
    with pytest.raises(ValueError, match=message):
        step_of(body_of(tiny()), [pairs[0], replace(pairs[0], positives=positives, negatives=negatives)])


def test_what_a_reward_model_cannot_have_is_refused(tiny, pairs) -> None:
    made, head = tiny(), drawn_head()
    body = body_of(made)
    nan = head.clone()
    nan[0, 5] = math.nan
    for wrong, of_head, groups, message in (
        (body, head, [], "no groups"),
        (made, head, pairs, "LoRA on lm_head: a reward model has no head over the vocabulary"),
        (body, head.T, pairs, r"score.weight of shape \(32, 1\) and dtype torch.float64: .* \(1, 32\) or \(32,\)"),
        (body, torch.cat((head, head)), pairs, r"score.weight of shape \(2, 32\)"),
        (body, head.long(), pairs, "dtype torch.int64: expected floating-point values"),
        (body, nan, pairs, "score.weight has 1 values that are not finite"),
        (replace(body, weights={}), head, pairs, "weights missing"),
        (replace(body, lora={"score": made.lora["lm_head"]}), head, pairs, "LoRA on score: no linear module"),
    ):
        with pytest.raises(ValueError, match=message):
            step_of(wrong, groups, of_head)
