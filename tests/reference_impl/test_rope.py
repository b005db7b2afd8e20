from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from reference_impl.rope import Llama3Scaling, rotary_angles, rotary_frequencies, rotate

HEAD_DIM, THETA = 12, 500.0
SCALING = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=64)
LLAMA_3_2 = Llama3Scaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rotation_is_multiplication_by_a_complex_phase() -> None:
    positions, x = torch.tensor([0, 3, 700]), normal(2, 3, HEAD_DIM)
    actual = rotate(x, rotary_angles(positions, rotary_frequencies(HEAD_DIM, THETA))).numpy()
    half = HEAD_DIM // 2
    planes = x[..., :half].numpy() + 1j * x[..., half:].numpy()
    frequencies = THETA ** (-2 * np.arange(half) / HEAD_DIM)
    turned = planes * np.exp(1j * positions.numpy()[:, None] * frequencies)
    np.testing.assert_allclose(actual, np.concatenate([turned.real, turned.imag], -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scaling", [None, SCALING])
def test_rotated_products_depend_on_the_distance_only(scaling) -> None:
    frequencies = rotary_frequencies(HEAD_DIM, THETA, scaling)
    q, k = normal(1, HEAD_DIM, seed=1), normal(1, HEAD_DIM, seed=2)

    def product(query_position: int, key_position: int) -> float:
        at_query, at_key = (rotary_angles(torch.tensor([p]), frequencies) for p in (query_position, key_position))
        return float(rotate(q, at_query) @ rotate(k, at_key).T)

    assert product(2000, 1993) == pytest.approx(product(7, 0), abs=1e-11)
    assert abs(product(8, 0) - product(7, 0)) > 1e-3


def test_fast_planes_stay_slow_ones_are_slowed_and_those_between_are_mixed() -> None:
    plain, scaled = rotary_frequencies(HEAD_DIM, THETA), rotary_frequencies(HEAD_DIM, THETA, SCALING)
    turns = 64 * plain / (2 * math.pi)
    assert [round(float(each), 2) for each in turns] == [10.19, 3.62, 1.28, 0.46, 0.16, 0.06]
    assert scaled[0] == plain[0]
    assert torch.equal(scaled[3:], plain[3:] / 8)
    assert (scaled[1:3] < plain[1:3]).all()
    assert (scaled[1:3] > plain[1:3] / 8).all()
    # 3.62 turns are 0.874 of the way from 1 to 4.
    share = (float(turns[1]) - 1) / 3
    assert float(scaled[1]) == pytest.approx(float(plain[1]) * (share + (1 - share) / 8), rel=1e-15)


@pytest.mark.parametrize(("scaling", "head_dim", "theta"), [(SCALING, HEAD_DIM, THETA), (LLAMA_3_2, 64, 5e5)])
def test_frequencies_are_those_of_transformers_to_its_float32(scaling, head_dim, theta) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_length,
    }
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=rope)
    expected, attention_factor = ROPE_INIT_FUNCTIONS["llama3"](config)
    assert attention_factor == 1.0
    torch.testing.assert_close(rotary_frequencies(head_dim, theta, scaling), expected.double(), rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.0}, "factor of the llama3 rope scaling is 0.0: it must be positive"),
        ({"factor": math.nan}, "factor of the llama3 rope scaling is nan"),
        ({"original_length": -1}, "original_length of the llama3 rope scaling is -1"),
        ({"low_freq_factor": 4.0}, r"low_freq_factor 4\.0 .* is not below high_freq_factor 4\.0"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SCALING, **changes)
