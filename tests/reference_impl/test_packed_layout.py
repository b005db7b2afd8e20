"""The oracle's arithmetic can tell a right packed layout from a wrong one: rounding is ten orders below any fault.

A pair is packed by hand as ``prompt chosen rejected``. For a prompt of two and branches of two and one, ``x0 x1 c0 c1
r0``, the positions are 0 1 2 3 2, the predictors of c0 c1 r0 are the places 1 2 1, and r0 leaves out c0 and c1.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference_impl.attention import attention_without
from reference_impl.decoder import hidden_states, logits_at
from reference_impl.step import oracle_step

BETA = 0.4


def packed_step(made, pair, *, tree: bool = True, path_positions: bool = True, path_predictors: bool = True):
    """Log-probs and gradients of one packed pair; each switch turned off plants the fault of that name."""
    p, c, r = len(pair.prompt_ids), len(pair.positives[0]), len(pair.negatives[0])
    ids = (*pair.prompt_ids, *pair.positives[0], *pair.negatives[0])
    excluded = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    if tree:
        excluded[p + c :, p : p + c] = True
    on_path = torch.tensor([*range(p + c), *range(p, p + r)])
    positions = on_path if path_positions else torch.arange(len(ids))
    chosen_places = [p - 1 + t for t in range(c)]
    rejected_places = (
        [p - 1, *range(p + c, p + c + r - 1)] if path_predictors else list(range(p + c - 1, p + c + r - 1))
    )

    def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        # On the path of r0 the token before it is x1: a window of two lets r0 see x1 and itself.
        beyond = on_path[:, None] - on_path[None, :] >= (len(ids) if window is None else window)
        return attention_without(excluded | beyond, q, k, v)

    def logps(lora) -> tuple[Tensor, Tensor]:
        hidden = hidden_states(ids, made.weights, made.config, lora, positions=positions, attend=attend)
        full = logits_at(hidden, [*chosen_places, *rejected_places], made.weights, lora).log_softmax(-1)
        picked = full[range(c + r), ids[p:]]
        return picked[:c], picked[c:]

    leaves = {
        module: replace(factors, A=factors.A.clone().requires_grad_(), B=factors.B.clone().requires_grad_())
        for module, factors in made.lora.items()
    }
    (chosen, rejected), (ref_chosen, ref_rejected) = logps(leaves), logps(None)
    z = BETA * (chosen.sum() - ref_chosen.sum() - rejected.sum() + ref_rejected.sum())
    torch.nn.functional.softplus(-z).backward()
    gradients = {f"{module}.lora_A": factors.A.grad for module, factors in leaves.items()}
    gradients |= {f"{module}.lora_B": factors.B.grad for module, factors in leaves.items()}
    return (chosen.detach(), rejected.detach()), gradients


def gaps(made, pair, **faults: bool) -> tuple[float, float]:
    """Largest difference of a log-prob, and relative difference of the whole gradient, packed against unpacked."""
    expected = oracle_step([pair], made.weights, made.config, made.lora, beta=BETA, label_smoothing=0.0)
    logps, gradients = packed_step(made, pair, **faults)
    logp_gap = max(float((a - e).abs().max()) for a, e in zip(logps, expected.per_token_logps, strict=True))
    assert gradients.keys() == expected.gradients.keys()
    # All factors together: with one token per branch and a short prompt those of queries and keys may be zero.
    right = torch.cat([gradient.flatten() for gradient in expected.gradients.values()])
    actual = torch.cat([gradients[name].flatten() for name in expected.gradients])
    return logp_gap, float((actual - right).norm() / right.norm())


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 9)),
    seed=st.integers(0, 10_000),
    std=st.sampled_from([0.05, 0.2]),
    family=st.sampled_from(["qwen3", "qwen2", "llama3", "mistral", "qwen2 mixed", "qwen3 mixed", "qwen3_moe"]),
)
def test_packed_and_unpacked_agree_to_rounding(lengths, seed, std, family, tiny, random_pair) -> None:
    pair = random_pair(*lengths, seed=seed)
    # Nothing moves the loss of a pair of equal completions, and 0 / 0 is no number to bound.
    assume(pair.positives != pair.negatives)
    logp_gap, gradient_gap = gaps(tiny(family, std=std), pair)
    assert logp_gap < 1e-12
    assert gradient_gap < 1e-12


@pytest.mark.parametrize("fault", ["tree", "path_positions", "path_predictors"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_layout_fault_is_ten_orders_above_rounding(fault, seed, tiny, random_pair) -> None:
    logp_gap, gradient_gap = gaps(tiny(), random_pair(6, 5, 4, seed=seed), **{fault: False})
    assert logp_gap > 1e-2
    assert gradient_gap > 1e-2
