"""Does split attention reach the step time that its FLOPs promise?

Forward and backward of one DPO pair on layers of Qwen3-0.6B's width with LoRA, packed (split attention) against
unpacked (both sequences as one batch, SDPA's causal kernel). Both compute logits at predictors only. Steps alternate,
so that a slow spell of the machine meets both; the ratio is printed beside the FLOP bound for wall time and, because
other work on the machine disturbs it less, for CPU time.

    tox -e bench -- tests/benchmarks/bench_split_step.py
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import Qwen3Config, Qwen3ForCausalLM

from packed_impl.step import per_token_logps

HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS, HEAD_DIM, VOCABULARY = 1024, 3072, 16, 8, 128, 32_768
LAYERS = 6  # and a small vocabulary: the head costs both sides the same and would only dilute the ratio
SHAPES = ((384, 64), (256, 128), (128, 256))
ROUNDS = 5


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        tie_word_embeddings=True,
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers deprecates
        return get_peft_model(Qwen3ForCausalLM(config), LoraConfig(r=8, target_modules=targets))


def flop_ratio(prompt: int, response: int) -> float:
    """Packed over unpacked forward FLOPs of a pair: linear layers by token, attention by pair, head by predictor."""
    linear_params = HIDDEN * HEAD_DIM * 2 * (HEADS + KEY_HEADS) + 3 * HIDDEN * INTERMEDIATE
    head = 2 * HIDDEN * VOCABULARY * 2 * response

    def flops(tokens: float, pairs: float) -> float:
        return LAYERS * (2 * linear_params * tokens + 4 * HEADS * HEAD_DIM * pairs) + head

    length = prompt + response
    packed_pairs = prompt * (prompt + 1) / 2 + 2 * (response * prompt + response * (response + 1) / 2)
    return flops(prompt + 2 * response, packed_pairs) / flops(2 * length, length * (length + 1))


def random_pair(prompt: int, response: int) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(prompt)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())

    return SimpleNamespace(
        prompt_ids=ids(prompt), positives=(ids(response),), negatives=(ids(response),), completion_masks=(), images=()
    )


def unpacked_step(model: nn.Module, pair: SimpleNamespace) -> None:
    ids = torch.tensor([pair.prompt_ids + response for response in pair.positives + pair.negatives])
    prompt = len(pair.prompt_ids)
    keep = torch.arange(prompt - 1, ids.shape[1] - 1)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits
    backward(torch.log_softmax(logits, -1).gather(-1, ids[:, prompt:, None])[..., 0].sum(1))


def packed_step(model: nn.Module, pair: SimpleNamespace) -> None:
    chosen, rejected = per_token_logps(model, [pair], backend="split", logit_chunk=2 * len(pair.positives[0]))
    backward(torch.stack([chosen.sum(), rejected.sum()]))


def backward(logps: Tensor) -> None:
    (-logsigmoid(0.1 * (logps[0] - logps[1]))).backward()


@pytest.mark.parametrize(("prompt", "response"), SHAPES)
def test_split_step_reaches_its_flop_ratio(
    benchmark: Callable[..., object], capsys: pytest.CaptureFixture[str], model: nn.Module, prompt: int, response: int
) -> None:
    pair = random_pair(prompt, response)
    wall: dict[str, list[float]] = {"unpacked": [], "packed": []}
    cpu: dict[str, list[float]] = {"unpacked": [], "packed": []}

    def timed(name: str, step: Callable[[nn.Module, SimpleNamespace], None]) -> None:
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        step(model, pair)
        wall[name].append(time.perf_counter() - wall_start)
        cpu[name].append(time.process_time() - cpu_start)

    def unpacked_first() -> None:
        timed("unpacked", unpacked_step)

    packed_step(model, pair)
    unpacked_step(model, pair)
    benchmark.pedantic(  # type: ignore[attr-defined]
        timed, args=("packed", packed_step), setup=unpacked_first, rounds=ROUNDS
    )
    ratios = {
        name: median(times["packed"]) / median(times["unpacked"]) for name, times in (("wall", wall), ("cpu", cpu))
    }
    bound = flop_ratio(prompt, response)
    benchmark.extra_info.update(flop_ratio=bound, wall_ratio=ratios["wall"], cpu_ratio=ratios["cpu"])  # type: ignore[attr-defined]
    with capsys.disabled():
        print(
            f"\n{prompt}:{response}  FLOP ratio {bound:.3f}  measured: wall {ratios['wall']:.3f} "
            f"({ratios['wall'] / bound - 1:+.1%}), cpu {ratios['cpu']:.3f} ({ratios['cpu'] / bound - 1:+.1%}); "
            f"step of {median(wall['packed']):.2f} s packed, {median(wall['unpacked']):.2f} s unpacked"
        )
