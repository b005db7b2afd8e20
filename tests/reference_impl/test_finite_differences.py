from __future__ import annotations

import pytest
import torch

from reference_impl.finite_differences import moved, random_direction, slope_from_gradients, slope_from_losses
from reference_impl.step import oracle_step

OBJECTIVE = {"beta": 0.4, "label_smoothing": 0.1}


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_gradients_are_the_slope_of_the_loss(family, tiny, pairs) -> None:
    made = tiny(family)
    gradients = oracle_step(pairs, made.weights, made.config, made.lora, **OBJECTIVE).gradients
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        direction = random_direction(made.lora, generator)
        measured = slope_from_losses(pairs, made.weights, made.config, made.lora, direction, **OBJECTIVE)
        assert slope_from_gradients(gradients, direction) == pytest.approx(measured, rel=1e-7)
        assert abs(measured) > 1e-4


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        ({"objective": "sigmoid", **OBJECTIVE}, "many"),
        ({"objective": "robust", **OBJECTIVE, "nll_weight": 0.5}, "many"),
        ({"objective": "ipo", "beta": 0.4}, "many"),
        ({"objective": "groupdpo-softmax", "beta": 0.4}, "many"),
        ({"objective": "sft-token-mean"}, "examples"),
        ({"objective": "sft-example-mean"}, "examples"),
    ],
    ids=lambda of: of["objective"] if isinstance(of, dict) else of,
)
def test_gradients_are_the_slope_of_every_kind_of_objective(arguments, data, tiny, request) -> None:
    made, groups = tiny(), request.getfixturevalue(data)
    gradients = oracle_step(groups, made.weights, made.config, made.lora, **arguments).gradients
    direction = random_direction(made.lora, torch.Generator().manual_seed(7))
    measured = slope_from_losses(groups, made.weights, made.config, made.lora, direction, **arguments)
    assert slope_from_gradients(gradients, direction) == pytest.approx(measured, rel=1e-7)
    assert abs(measured) > 1e-4


def test_one_wrong_gradient_among_many_is_noticed(tiny, pairs) -> None:
    made = tiny()
    gradients = dict(oracle_step(pairs, made.weights, made.config, made.lora, **OBJECTIVE).gradients)
    gradients["model.layers.1.self_attn.k_proj.lora_A"] = torch.zeros(3, 32, dtype=torch.float64)
    direction = random_direction(made.lora, torch.Generator().manual_seed(7))
    measured = slope_from_losses(pairs, made.weights, made.config, made.lora, direction, **OBJECTIVE)
    assert slope_from_gradients(gradients, direction) != pytest.approx(measured, rel=1e-4)


def test_a_direction_has_unit_length_and_follows_its_seed(tiny) -> None:
    lora = tiny().lora
    first, again = (random_direction(lora, torch.Generator().manual_seed(3)) for _ in range(2))
    assert sum(float(part.square().sum()) for part in first.values()) == pytest.approx(1, abs=1e-12)
    assert all(torch.equal(first[name], again[name]) for name in first)
    shifted = moved(lora, first, 0.5)
    module = next(iter(lora))
    torch.testing.assert_close(shifted[module].A - lora[module].A, 0.5 * first[f"{module}.lora_A"])
    assert shifted[module].scaling == lora[module].scaling


def test_a_direction_in_other_factors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"differ in factors \['a', 'b'\]"):
        slope_from_gradients({"a": torch.ones(1)}, {"b": torch.ones(1)})
    with pytest.raises(ValueError, match="nothing to move"):
        random_direction({}, torch.Generator())
