"""Does the memory of GroupDPO's two-pass step follow the micro-batch, and not the group?

Peak of the live bytes that a step makes (activations, logits and gradients, not the parameters), counted by following
every storage that an operator returns until it is freed. A group of 16 responses in micro-batches of 2 against a group
of 2, by the joint and by the two-pass step; layers of Qwen3-0.6B's width with LoRA.

    tox -e bench -- tests/benchmarks/bench_two_pass.py
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from packed_impl.step import dpo_loss
from packed_impl.two_pass import two_pass_step

LAYERS, VOCABULARY, PROMPT, RESPONSE = 2, 8192, 64, 64
GROUP, MICRO_BATCH, LIMIT = 16, 2, 1.3
OPTIONS: dict[str, Any] = {"backend": "split", "beta": 0.1, "objective": "groupdpo-mpo"}


class LiveBytes(TorchDispatchMode):
    """Follows the storages that operators return, those that are there before excepted."""

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._kept = [parameter.untyped_storage() for parameter in before.parameters()]  # so that no id is used again
        self._known = set(map(id, self._kept))
        self._followed: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known or key in self._followed:
            return

        def freed(_: object) -> None:
            del self._followed[key]
            self.live -= size

        self._followed[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers deprecates
        return get_peft_model(Qwen3ForCausalLM(config), LoraConfig(r=8, target_modules=targets))


def group_of(num_responses: int) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(num_responses)
    prompt, *responses = (
        tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())
        for length in (PROMPT, *(RESPONSE,) * num_responses)
    )
    half = num_responses // 2
    return SimpleNamespace(
        prompt_ids=prompt,
        positives=tuple(responses[:half]),
        negatives=tuple(responses[half:]),
        completion_masks=(),
        images=(),
    )


def peak_of(model: nn.Module, step: Callable[[], object]) -> int:
    model.zero_grad()
    with LiveBytes(model) as bytes_of_step:
        step()
    return bytes_of_step.peak


def test_the_peak_follows_the_micro_batch(capsys: pytest.CaptureFixture[str], model: nn.Module) -> None:
    def joint(num_responses: int) -> int:
        return peak_of(model, lambda: dpo_loss(model, [group_of(num_responses)], **OPTIONS).loss.backward())

    def two_pass(num_responses: int) -> int:
        return peak_of(
            model,
            lambda: two_pass_step(
                model, [group_of(num_responses)], branches_per_micro_batch=MICRO_BATCH, **OPTIONS
            ),
        )  # fmt: skip

    peaks = {
        "joint, group of 2": joint(2),
        "two-pass, group of 2": two_pass(2),
        f"two-pass, group of {GROUP}, micro-batch {MICRO_BATCH}": two_pass(GROUP),
        f"joint, group of {GROUP}": joint(GROUP),
    }
    (joint_2, two_pass_2, two_pass_16, joint_16) = peaks.values()
    with capsys.disabled():
        print()
        for what, peak in peaks.items():
            print(f"{what:<40} {peak / 2**20:8.2f} MiB  {peak / joint_2:6.3f} of joint, group of 2")
    assert two_pass_16 <= LIMIT * min(joint_2, two_pass_2)
    assert joint_16 > 3 * joint_2  # or there was nothing to save
