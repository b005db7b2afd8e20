from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from packed_impl.attention import BACKENDS, attention_implementation, pretrained_model
from packed_impl.layout import LAYOUTS, ROWS, pack
from packed_impl.reward_model import bradley_terry, layout_rewards, reward_classifier, reward_loss

Build = Callable[..., nn.Module]

WITH_GRADIENTS = tuple(backend for backend in BACKENDS if backend != "flex")
# Rounding of the models themselves; a head that is read elsewhere moves rewards by 0.1 to 1 (see the planted faults).
REWARD_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6}
GRADIENT_TOLERANCE = {torch.float32: 5e-5, torch.float64: 5e-6}


@pytest.fixture
def tiny_reward_model(tiny_model: Build) -> Build:
    """By default the head is a copy that PEFT trains in full."""
    return partial(
        tiny_model,
        family="qwen3-classifier",
        targets=("q_proj", "k_proj", "v_proj", "o_proj", "down_proj"),
        trained_in_full=("score",),
        num_labels=1,
    )


@pytest.fixture
def reward_model(tiny_reward_model: Build) -> nn.Module:
    return tiny_reward_model()


@pytest.fixture
def branches(make_group: Any) -> list[Any]:
    """Responses that begin one another, end alike, are one token long; prompts of one and of several tokens."""
    return [
        make_group((1, 2, 3), ((4, 5, 6), (4, 5)), ((4,), (9, 5, 6), (4, 5, 7))),
        make_group((7,), ((3, 3),), ((3, 3, 3),), ((True, False), (False, True, False))),
        make_group((1, 2, 3), ((8,),), ((4, 5, 6, 1),)),
    ]


def unpacked_rewards(model: nn.Module, groups: Sequence[Any]) -> Tensor:
    """Each sequence alone through transformers' own classifier, which reads its head at the last token; [K]."""
    sequences = [group.prompt_ids + ids for group in groups for ids in group.positives + group.negatives]
    return torch.cat([model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in sequences])


def expected_loss(rewards: Tensor, groups: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
    """Mean over groups of the mean over pairs of softplus(-margin), pair by pair."""
    losses, margins, start = [], [], 0
    for group in groups:
        middle = start + len(group.positives)
        stop = middle + len(group.negatives)
        of_group = [rewards[p] - rewards[n] for p in range(start, middle) for n in range(middle, stop)]
        losses.append(sum(torch.log1p(torch.exp(-margin)) for margin in of_group) / len(of_group))
        margins += of_group
        start = stop
    return sum(losses) / len(losses), margins


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


def worst_gradient(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert actual.keys() == expected.keys()
    assert all(gradient.norm() > 0 for gradient in expected.values())
    return max(((actual[name] - expected[name]).norm() / expected[name].norm()).item() for name in expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WITH_GRADIENTS)
def test_rewards_loss_and_gradients_are_those_of_the_unpacked_model(
    tiny_reward_model: Build, branches: list[Any], backend: str, layout: str, rows: str, dtype: torch.dtype
) -> None:
    model = tiny_reward_model(dtype)
    actual = reward_loss(model, branches, backend=backend, layout=layout, rows=rows)
    rewards = unpacked_rewards(model, branches)
    loss, margins = expected_loss(rewards, branches)
    assert actual.rewards.dtype == dtype
    assert (actual.rewards - rewards).abs().max() < REWARD_TOLERANCE[dtype]
    assert (actual.margins - torch.stack(margins)).abs().max() < 2 * REWARD_TOLERANCE[dtype]
    assert abs(actual.loss - loss) < REWARD_TOLERANCE[dtype]
    of_packed = gradients(model, actual.loss)
    assert sum("score" in name for name in of_packed) == 1
    assert sum("lora" in name for name in of_packed) == 20
    assert worst_gradient(of_packed, gradients(model, loss)) < GRADIENT_TOLERANCE[dtype]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_flex_rewards_are_those_of_the_unpacked_model(
    tiny_reward_model: Build, branches: list[Any], layout: str, rows: str
) -> None:
    model = tiny_reward_model()
    with torch.no_grad():
        actual = reward_loss(model, branches, backend="flex", layout=layout, rows=rows).rewards
        assert (actual - unpacked_rewards(model, branches)).abs().max() < REWARD_TOLERANCE[torch.float32]


def groups_over(token_ids: st.SearchStrategy[int]) -> st.SearchStrategy[list[Any]]:
    sequence = st.lists(token_ids, min_size=1, max_size=4).map(tuple)
    responses = st.lists(sequence, min_size=1, max_size=3).map(tuple)
    group = st.builds(
        SimpleNamespace,
        prompt_ids=sequence,
        positives=responses,
        negatives=responses,
        completion_masks=st.just(()),
        images=st.just(()),
    )
    return st.lists(group, min_size=1, max_size=3)


# Of two tokens only, sequences begin one another, or are equal: branches end inside segments.
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups_over(st.integers(0, 60)) | groups_over(st.integers(1, 2)),
    st.sampled_from(WITH_GRADIENTS), st.sampled_from(LAYOUTS), st.sampled_from(ROWS),
)  # fmt: skip
def test_any_groups_have_the_rewards_of_the_unpacked_model(
    reward_model: nn.Module, groups: list[Any], backend: str, layout: str, rows: str
) -> None:
    with torch.no_grad():
        actual = reward_loss(reward_model, groups, backend=backend, layout=layout, rows=rows).rewards
        assert (actual - unpacked_rewards(reward_model, groups)).abs().max() < REWARD_TOLERANCE[torch.float32]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "config",
    [
        {"family": "llama-classifier"},
        {"family": "mistral-classifier", "sliding_window": 2},
        {"pad_token_id": 5},  # a token that responses end with
    ],
    ids=["llama", "sliding window", "a padding token"],
)
def test_other_classifiers_agree_too(
    tiny_reward_model: Build, branches: list[Any], backend: str, config: dict[str, Any]
) -> None:
    model = tiny_reward_model(**config)
    with torch.no_grad():
        actual = reward_loss(model, branches, backend=backend, rows="row-per-group").rewards
        pretrained_model(model).config.pad_token_id = None
        expected = unpacked_rewards(model, branches)
    assert (actual - expected).abs().max() < REWARD_TOLERANCE[torch.float32]


def lora_around_a_frozen_head(build: Build) -> nn.Module:
    return build(torch.float64, trained_in_full=())


def everything(build: Build) -> nn.Module:
    return build(torch.float64).unload().requires_grad_(True)


def head_alone(build: Build) -> nn.Module:
    model = build(torch.float64).unload().requires_grad_(False)
    model.score.requires_grad_(True)
    return model


@pytest.mark.parametrize("trained", [lora_around_a_frozen_head, everything, head_alone], ids=lambda each: each.__name__)
def test_whatever_is_trained_gets_its_gradients(tiny_reward_model: Build, branches: list[Any], trained: Any) -> None:
    model = trained(tiny_reward_model)
    loss, _ = expected_loss(unpacked_rewards(model, branches), branches)
    actual = gradients(model, reward_loss(model, branches, backend="split", layout="prefix-tree").loss)
    assert worst_gradient(actual, gradients(model, loss)) < GRADIENT_TOLERANCE[torch.float64]
    assert any("score" in name for name in actual) == (trained is not lora_around_a_frozen_head)


def test_a_switched_off_adapter_leaves_the_head_from_before(tiny_reward_model: Build, branches: list[Any]) -> None:
    model = tiny_reward_model()
    with torch.no_grad(), model.disable_adapter():
        actual = reward_loss(model, branches, backend="split").rewards
        assert (actual - unpacked_rewards(model, branches)).abs().max() < REWARD_TOLERANCE[torch.float32]
    assert (actual - unpacked_rewards(model, branches)).abs().max() > 0.1


def test_half_precision_gives_rewards_in_float32(tiny_reward_model: Build, branches: list[Any]) -> None:
    model = tiny_reward_model(torch.bfloat16)
    with torch.no_grad():
        actual = reward_loss(model, branches, backend="dense-sdpa").rewards
        assert (actual - unpacked_rewards(model, branches)).abs().max() < 0.05
    assert actual.dtype == torch.float32


FAULTS: dict[str, Callable[[Any], Any]] = {
    "the head is read one token early": lambda layout: replace(layout, token_slots=layout.predictor_slots),
    "the head is read at the end of the row": lambda layout: replace(
        layout, token_slots=torch.full_like(layout.token_slots, layout.input_ids.shape[1] - 1)
    ),
    "the head is read at the first token": lambda layout: replace(
        layout, token_slots=layout.token_slots.flip(0), token_rows=layout.token_rows.flip(0)
    ),
    "positions count along the row": lambda layout: replace(
        layout, position_ids=torch.arange(layout.input_ids.shape[1]).expand_as(layout.input_ids)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_layout_fault_is_far_outside_the_tolerance(
    tiny_reward_model: Build, branches: list[Any], fault: str
) -> None:
    model = tiny_reward_model()
    with torch.no_grad():
        actual = layout_rewards(model, FAULTS[fault](pack(branches)), backend="split")
        assert (actual - unpacked_rewards(model, branches)).abs().max() > 0.1


def test_the_loss_is_the_mean_over_groups_of_the_mean_over_pairs() -> None:
    """Two groups of 2+1 and 1+2, one of whose pairs is lost by 1000."""
    rewards = torch.tensor([2.0, 0.0, 1.0, -500.0, 500.0, -500.0], dtype=torch.float64, requires_grad=True)
    result = bradley_terry(rewards, [(2, 1), (1, 2)])
    assert result.margins.tolist() == [1, -1, -1000, 0]
    expected = ((math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2 + (1000 + math.log(2)) / 2) / 2
    assert result.loss.item() == pytest.approx(expected, rel=1e-15)
    (slopes,) = torch.autograd.grad(result.loss, rewards)
    of_margins = [-1 / (1 + math.exp(z)) / 4 for z in (1, -1)] + [-1 / 4, -1 / 8]
    first, second, third, fourth = of_margins
    expected_slopes = [first, second, -first - second, third + fourth, -third, -fourth]
    assert slopes.tolist() == pytest.approx(expected_slopes, rel=1e-15)
    with pytest.raises(ValueError, match=r"rewards of shape \(6,\): expected \(3,\)"):
        bradley_terry(rewards, [(2, 1)])
    with pytest.raises(ValueError, match=r"group 1 has 3\+0 responses"):
        bradley_terry(rewards, [(2, 1), (3, 0)])


def test_everything_is_afterwards_as_it_was(tiny_reward_model: Build, branches: list[Any]) -> None:
    model = tiny_reward_model()
    classifier = pretrained_model(model)

    def state() -> tuple[object, ...]:
        hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
        flags = [parameter.requires_grad for parameter in model.parameters()]
        return hooks, flags, classifier.config.pad_token_id, classifier.config._attn_implementation

    before = state()
    reward_loss(model, branches, backend="split", rows="row-per-group")
    assert state() == before
    hook = classifier.model.norm.register_forward_hook(lambda *_: pytest.fail("say"))
    with pytest.raises(pytest.fail.Exception, match="say"):
        reward_loss(model, branches, backend="split", rows="row-per-group")
    hook.remove()
    assert state() == before


def test_gradient_checkpointing_works_within_an_outer_context_and_nowhere_else(
    tiny_reward_model: Build, branches: list[Any]
) -> None:
    model = tiny_reward_model(torch.float64).train()
    base = model.get_base_model()
    enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    with pytest.raises(ValueError, match="enter attention_implementation"):
        reward_loss(model, branches, backend="split")
    with attention_implementation(model, "split"):
        actual = gradients(model, reward_loss(model, branches, backend="split").loss)
    expected = gradients(model, expected_loss(unpacked_rewards(model, branches), branches)[0])
    assert worst_gradient(actual, expected) < GRADIENT_TOLERANCE[torch.float64]


def test_what_is_no_reward_model_is_refused(tiny_model: Build, tiny_reward_model: Build) -> None:
    with pytest.raises(ValueError, match="Qwen3ForCausalLM has no head named score"):
        reward_classifier(tiny_model())
    with pytest.raises(ValueError, match="has 3 labels: a reward model has num_labels=1"):
        reward_classifier(tiny_reward_model(num_labels=3))
    with pytest.raises(
        ValueError, match=r"is a peft\.tuners\.lora\.layer\.Linear: expected a Linear, frozen or trained in full"
    ):
        reward_classifier(tiny_reward_model(targets=("q_proj", "score"), trained_in_full=()))
    with_bias = tiny_reward_model().unload()
    with_bias.score = nn.Linear(32, 1)
    with pytest.raises(ValueError, match="the score head of Qwen3ForSequenceClassification has a bias"):
        reward_classifier(with_bias)
    with pytest.raises(ValueError, match="Linear holds no transformers model"):
        reward_classifier(nn.Linear(1, 1))


def test_what_cannot_be_compared_is_refused_before_anything_runs(
    tiny_reward_model: Build, branches: list[Any], make_group: Any
) -> None:
    model = tiny_reward_model()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="group 3 has no negative response: reward-model needs one at least"):
        reward_loss(model, [*branches, make_group((1,), ((2,),))], backend="split")
    with pytest.raises(ValueError, match="no group to pack"):
        reward_loss(model, [], backend="split")
    with pytest.raises(ValueError, match="unknown attention backend 'paged'"):
        reward_loss(model, branches, backend="paged")
    with pytest.raises(ValueError, match="FlexAttention has no backward pass on cpu"):
        reward_loss(model, branches, backend="flex")
