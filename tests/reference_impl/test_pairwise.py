from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reference_impl.groups import unpack
from reference_impl.pairwise import padded_batch, per_token_logps
from reference_impl.step import oracle_step

VARIATIONS = [
    {"batching": "row-per-sequence"},
    {"batching": "row-per-sequence", "row_order": "reversed"},
    {"batching": "row-per-sequence", "junk_tokens_in_front": 5},
    {"batching": "padded-left"},
    {"batching": "padded-right"},
    {"batching": "padded-left", "extra_padding": 3, "pad_id": 9},
    {"batching": "padded-right", "extra_padding": 3, "junk_tokens_in_front": 2, "junk_id": 40},
    {"batching": "padded-left", "junk_tokens_in_front": 2, "row_order": "reversed"},
    {"batching": "padded-right", "max_rows": 3},
    {"batching": "padded-left", "max_rows": 1, "row_order": "reversed"},
    {"batching": "row-per-sequence", "junk_tokens_in_front": 2, "first_position": 300},
    {"batching": "padded-right", "first_position": 7},
]


def gradients(model, logps) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, len(logps))
    factors = [parameter for name, parameter in model.named_parameters() if ".lora_" in name]
    return list(torch.autograd.grad(sum(w * logp.sum() for w, logp in zip(weights, logps, strict=True)), factors))


@pytest.mark.parametrize("variation", VARIATIONS, ids=str)
def test_every_variation_is_the_oracle_up_to_float64_rounding(variation, tiny, pairs, float64_throughout) -> None:
    made = tiny()
    expected = oracle_step(pairs, made.weights, made.config, made.lora, beta=1.0, label_smoothing=0.0, gradients=False)
    model = float64_throughout(made.model)
    actual = per_token_logps(model, pairs, **variation)
    torch.testing.assert_close(actual, list(expected.per_token_logps), rtol=0, atol=1e-12)
    expected_gradients = gradients(model, per_token_logps(model, pairs))
    torch.testing.assert_close(gradients(model, actual), expected_gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("variation", VARIATIONS, ids=str)
def test_every_variation_agrees_up_to_float32_rounding(variation, attention, tiny, pairs) -> None:
    made = tiny()
    model = made.model.float()
    model.config._attn_implementation = attention
    expected = per_token_logps(model, pairs)
    actual = per_token_logps(model, pairs, **variation)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(gradients(model, actual), gradients(model, expected), rtol=1e-3, atol=1e-3)


def test_groups_of_any_size_come_in_the_standard_order(tiny, pairs, float64_throughout) -> None:
    made = tiny()
    model = float64_throughout(made.model)
    many = replace(pairs[0], positives=((31, 8), (7,)), negatives=((12,), (1, 2, 3)))
    alone = [replace(many, positives=(y,), negatives=()) for y in (*many.positives, *many.negatives)]
    together = per_token_logps(model, [many], batching="padded-right")
    apart = [per_token_logps(model, [group])[0] for group in alone]
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "variation", [VARIATIONS[0], {"batching": "padded-left"}, {"batching": "padded-right", "max_rows": 2}], ids=str
)
@pytest.mark.parametrize(("objective", "data"), [("sigmoid", "many"), ("sft-token-mean", "examples")])
def test_groups_of_every_kind_are_the_oracle_whatever_their_masks(
    variation, objective, data, tiny, request, float64_throughout
) -> None:
    made, groups = tiny(), request.getfixturevalue(data)
    expected = oracle_step(
        groups, made.weights, made.config, made.lora,
        objective=objective, beta=1.0, label_smoothing=0.0, gradients=False,
    )  # fmt: skip
    actual = per_token_logps(float64_throughout(made.model), groups, **variation)
    torch.testing.assert_close(actual, list(expected.per_token_logps), rtol=0, atol=1e-12)
    assert any(group.completion_masks for group in groups)


def test_the_log_softmax_of_a_narrow_model_is_float32(tiny, pairs) -> None:
    actual = per_token_logps(tiny().model.to(torch.bfloat16), pairs, batching="padded-left")
    assert all(logps.dtype == torch.float32 and logps.isfinite().all() for logps in actual)


def recorded(model, pairs, **variation):
    """The keyword arguments of every forward call, and the shape that reached the head each time."""
    calls, head_inputs = [], []
    base = model.get_base_model()
    hooks = [
        base.register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs), with_kwargs=True),
        base.lm_head.register_forward_pre_hook(lambda _, args: head_inputs.append(tuple(args[0].shape))),
    ]
    try:
        per_token_logps(model, pairs, **variation)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, head_inputs


def test_a_row_per_sequence_is_the_ordinary_call_without_a_mask(tiny, pairs) -> None:
    calls, head_inputs = recorded(tiny().model, pairs)
    assert [call["input_ids"].tolist() for call in calls] == [[list(sequence.ids)] for sequence in unpack(pairs)]
    assert all(call["attention_mask"] is None and call["use_cache"] is False for call in calls)
    assert [call["position_ids"].tolist() for call in calls] == [[list(range(n))] for n in (9, 11, 4, 2)]
    assert [shape[:2] for shape in head_inputs] == [(1, 4), (1, 6), (1, 3), (1, 1)]


def test_a_padded_batch_is_one_call_and_the_head_sees_needed_columns_only(tiny, pairs) -> None:
    calls, head_inputs = recorded(tiny().model, pairs, batching="padded-right")
    assert [tuple(call["input_ids"].shape) for call in calls] == [(4, 11)]
    # Predictors start at place 4 in the first two rows, ending at 9, and at 0 in the others, ending at 2.
    assert [shape[:2] for shape in head_inputs] == [(4, 3 + 6)]


@pytest.mark.parametrize(
    ("variation", "visible"),
    [
        ({"batching": "padded-left"}, [9, 11, 4, 2]),
        ({"batching": "padded-right", "extra_padding": 1}, [9, 11, 4, 2]),
        ({"batching": "padded-right", "row_order": "reversed"}, [2, 4, 11, 9]),
        ({"batching": "row-per-sequence", "junk_tokens_in_front": 2}, [9, 11, 4, 2]),
    ],
)
def test_padding_and_junk_are_hidden_by_the_mask_that_is_passed(variation, visible, tiny, pairs) -> None:
    """Log-probs cannot show it: without a mask, transformers reads restarting positions as packed sequences."""
    calls, _ = recorded(tiny().model, pairs, **variation)
    masks = [row for call in calls for row in call["attention_mask"]]
    assert [int(mask.sum()) for mask in masks] == visible


def test_reversed_rows_run_last_first(tiny, pairs) -> None:
    calls, _ = recorded(tiny().model, pairs, row_order="reversed")
    assert [call["input_ids"].tolist()[0] for call in calls] == [list(s.ids) for s in reversed(unpack(pairs))]


def test_rows_are_laid_out_as_described(pairs) -> None:
    rows = unpack(pairs)[2:]
    left = padded_batch(rows, side="left", junk_tokens_in_front=1, extra_padding=1, pad_id=0, junk_id=1)
    assert left.input_ids.tolist() == [[0, 1, 58, 4, 33, 21], [0, 0, 0, 1, 58, 6]]
    assert left.attention_mask.tolist() == [[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert left.position_ids.tolist() == [[0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 0, 1]]
    right = padded_batch(rows, side="right", junk_tokens_in_front=1, extra_padding=1, pad_id=0, junk_id=1)
    assert right.input_ids.tolist() == [[1, 58, 4, 33, 21, 0], [1, 58, 6, 0, 0, 0]]
    assert right.position_ids.tolist() == [[0, 0, 1, 2, 3, 0], [0, 0, 1, 0, 0, 0]]
    late = padded_batch(rows, side="right", junk_tokens_in_front=1, first_position=30)
    assert late.position_ids.tolist() == [[0, 30, 31, 32, 33], [0, 30, 31, 0, 0]]
    assert (left.starts, right.starts) == ((2, 4), (1, 1))


@pytest.mark.parametrize("forgotten", ["attention_mask", "position_ids"])
def test_junk_matters_as_soon_as_the_mask_or_the_positions_are_forgotten(forgotten, tiny, pairs) -> None:
    """Positions that do not restart are invisible to a rotary model; positions that stretch are not."""
    model = tiny().model
    sequence = unpack(pairs)[0]
    batch = padded_batch([sequence], side="left", junk_tokens_in_front=4)
    arguments = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
    }
    wrong = {
        "attention_mask": torch.ones_like(batch.attention_mask),
        "position_ids": batch.position_ids + (batch.position_ids > 4),
    }
    with torch.no_grad():
        right = model(**arguments, use_cache=False).logits[0, -1]
        changed = model(**{**arguments, forgotten: wrong[forgotten]}, use_cache=False).logits[0, -1]
    assert (right - changed).abs().max() > 1e-2


def test_a_model_that_ignores_logits_to_keep_is_refused(tiny, pairs) -> None:
    inner = tiny().model

    class Ignoring(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *, logits_to_keep: torch.Tensor, **kwargs: object) -> object:
            return self.inner(**kwargs)

    with pytest.raises(ValueError, match="it has to honour logits_to_keep"):
        per_token_logps(Ignoring(), pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batching": "packed"}, "batching 'packed': expected one of row-per-sequence, padded-left, padded-right"),
        ({"row_order": "random"}, "row_order 'random': expected one of given, reversed"),
        ({"junk_tokens_in_front": -1}, "-1 junk tokens"),
        ({"first_position": -1}, "first position -1"),
        ({"extra_padding": 2}, "belong to a padded batch"),
        ({"max_rows": 2}, "belong to a padded batch"),
        ({"batching": "padded-left", "max_rows": 0}, "max_rows is 0"),
    ],
)
def test_options_without_meaning_are_refused(options, message, tiny, pairs) -> None:
    with pytest.raises(ValueError, match=message):
        per_token_logps(tiny(adapters=False).model, pairs, **options)
