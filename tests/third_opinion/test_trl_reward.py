"""TRL's own loss of a reward model, against the oracle's and the packed implementation's.

TRL's trainer is not built: its ``compute_loss`` is called with a model. Once that answers with given rewards, so that
the arithmetic is compared alone; once it is a classifier of transformers on rows that TRL's collator pads.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_impl.reward_model import bradley_terry, reward_loss
from reference_impl import reward_model as oracle
from verify.groups import PreferenceGroup
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, build_reward_model

reward_trainer = pytest.importorskip(
    "trl.trainer.reward_trainer", reason="TRL is not installed: the extra 'trl' has it"
)


def trl_loss(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The loss as TRL computes it; rows are those of chosen responses, then those of rejected ones."""
    accelerator = SimpleNamespace(gather_for_metrics=lambda v: v, gather=lambda v: v)
    metrics: dict[str, list[float]] = {
        name: [] for name in ("min_reward", "mean_reward", "max_reward", "accuracy", "margin")
    }
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(center_rewards_coefficient=None),
        accelerator=accelerator,
        _metrics={"eval": metrics},
        _total_train_tokens=0,
    )
    loss: Tensor = reward_trainer.RewardTrainer.compute_loss(trainer, model, inputs)
    return loss


PAIRS = 3


@pytest.mark.parametrize("seed", [42, 43, 44])
def test_trl_gives_the_same_loss_and_gradient_on_given_rewards(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = (2 * torch.randn(2 * PAIRS, generator=generator, dtype=torch.float64)).requires_grad_()
    groups = [PreferenceGroup((0,), ((1,),), ((2,),))] * PAIRS
    chosen_first = torch.cat((rewards[0::2], rewards[1::2]))[:, None]

    theirs = trl_loss(lambda **_: SimpleNamespace(logits=chosen_first), {})
    (expected,) = torch.autograd.grad(theirs, rewards)
    assert float(expected.norm()) > 0
    for ours in (oracle.bradley_terry(rewards, groups), bradley_terry(rewards, [(1, 1)] * PAIRS).loss):
        assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-12)
        (actual,) = torch.autograd.grad(ours, rewards)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-14)


def test_packed_rows_give_the_loss_and_gradients_of_trls_padded_rows() -> None:
    """Also of a response that is one token, and of tokens up to the last one before the padding."""
    pad = 256
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(pad, (count,), generator=generator).tolist())

    groups = [
        PreferenceGroup(tokens(prompt), (tokens(chosen),), (tokens(rejected),))
        for prompt, chosen, rejected in ((7, 5, 9), (3, 8, 1), (11, 2, 4))
    ]
    request = ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3))
    model = build_reward_model(request, "float64").model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    packed = reward_loss(model, groups, backend="split").loss
    actual = torch.autograd.grad(packed, trained)

    examples = [
        {"chosen_ids": [*g.prompt_ids, *g.completions[0]], "rejected_ids": [*g.prompt_ids, *g.completions[1]]}
        for g in groups
    ]
    model.base_model.model.config.pad_token_id = pad  # as TRL's trainer sets it, of the tokenizer
    theirs = trl_loss(model, reward_trainer.DataCollatorForPreference(pad_token_id=pad)(examples))
    expected = torch.autograd.grad(theirs, trained)
    assert float(packed.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6)
    assert all(float(each.norm()) > 0 for each in expected)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
