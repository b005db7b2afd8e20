"""What a step ought to compute where the oracle knows the model, and where it does not."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig

from verify import expectation
from verify.default_cases.tiny import tiny_cases
from verify.expectation import Expectation, UnfitModelError, check_causal
from verify.models.request import ModelRequest, build_model
from verify.objective import Preference, objective_named
from verify.subjects.oracle import observe_oracle

CASES = {case.name: case for case in tiny_cases(257, 0)}


@pytest.mark.parametrize("name", ["balanced", "groups-masked", "examples-of-several-turns"])
@pytest.mark.parametrize("model_name", ["tiny", "tiny-mistral"])
def test_without_an_oracle_the_unpacked_path_in_float64_expects_what_the_oracle_does(
    model_name, name, monkeypatch
) -> None:
    """On a model that the oracle does know. Parts of the model round to float32 in any dtype (norms, rotations)."""
    model, case = build_model(ModelRequest(name=model_name), "float32").model, CASES[name]
    objective = objective_named(case.objective_name, Preference())
    by_oracle = observe_oracle(model, case.groups, objective)
    monkeypatch.setattr(expectation, "unknown_to_oracle", lambda config: "as if")
    unpacked = Expectation(model).of(case.groups, objective)
    assert {tensor.dtype for tensor in unpacked.per_token_logps} == {torch.float64}
    torch.testing.assert_close(
        torch.cat(unpacked.per_token_logps), torch.cat(by_oracle.per_token_logps), rtol=0, atol=2e-5
    )
    torch.testing.assert_close(unpacked.rewards, by_oracle.rewards, rtol=0, atol=2e-5)
    assert unpacked.gradients is not None
    assert by_oracle.gradients is not None
    assert unpacked.gradients.keys() == by_oracle.gradients.keys()
    for tensor, expected in by_oracle.gradients.items():
        assert float((unpacked.gradients[tensor] - expected).norm() / expected.norm()) < 1e-4, tensor
    assert next(model.parameters()).dtype == torch.float32


def test_a_model_in_which_tokens_see_later_ones_is_refused() -> None:
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        pad_token_id=0, is_decoder=False, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    with pytest.raises(UnfitModelError, match=r"bert: the log-prob of a token changed .* not causal"):
        check_causal(AutoModelForCausalLM.from_config(config).eval().double())
    config.is_decoder = True
    torch.manual_seed(0)
    check_causal(AutoModelForCausalLM.from_config(config).eval().double())


def test_adapters_on_a_layer_that_takes_no_part_are_refused() -> None:
    case = CASES["balanced"]
    with pytest.raises(UnfitModelError, match=r"bart: 24 of 48 trained tensors have no gradient .*encoder_attn"):
        Expectation(build_model(ModelRequest(name="tiny-bart"), "float32").model).of(case.groups, Preference())
