"""The step that packing has to beat computes the same thing, without a mask and without sharing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packed_impl.groups import completions
from packed_impl.step import dpo_loss
from packed_impl.unshared import UNSHARED_ROWS, unshared_layouts, unshared_logps, unshared_loss

Model = Callable[..., nn.Module]


@pytest.mark.parametrize("rows", UNSHARED_ROWS)
@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_log_probs_are_those_of_each_sequence_alone(
    tiny_model: Model, unpacked_logps: Callable[..., list[Tensor]], pair_and_group: list[Any], rows: str, family: str
) -> None:
    model = tiny_model(torch.float64, family=family)
    actual = unshared_logps(model, unshared_layouts(pair_and_group, rows))
    for mine, alone in zip(actual, unpacked_logps(model, pair_and_group), strict=True):
        assert torch.allclose(mine, alone, rtol=0, atol=1e-6)  # Qwen3 computes norms and angles in float32


@pytest.mark.parametrize("rows", UNSHARED_ROWS)
def test_loss_and_gradients_are_those_of_the_packed_step(
    tiny_model: Model, pair_and_group: list[Any], rows: str
) -> None:
    model = tiny_model(torch.float64)
    parameters = [p for p in model.parameters() if p.requires_grad]
    mine = unshared_loss(model, pair_and_group, rows=rows, beta=0.3)
    packed = dpo_loss(model, pair_and_group, backend="dense-sdpa", beta=0.3)
    assert mine.loss.item() == pytest.approx(packed.loss.item(), abs=1e-6)
    assert torch.allclose(mine.margins, packed.margins, atol=1e-6)
    for one, other in zip(*(torch.autograd.grad(x.loss, parameters) for x in (mine, packed)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_masked_tokens_do_not_count(tiny_model: Model, pair_and_group: list[Any]) -> None:
    """Of each completion only the first token is supervised."""
    masked = [
        replace(group, completion_masks=tuple((True,) + (False,) * (len(ids) - 1) for ids in completions(group)))
        for group in pair_and_group
    ]
    model = tiny_model(torch.float64)
    output = unshared_loss(model, masked, rows="padded", beta=1.0)
    both = (output.per_token_logps, output.ref_per_token_logps)
    firsts, ref_firsts = (torch.stack([logps[0] for logps in each]) for each in both)
    assert torch.allclose(output.rewards, firsts - ref_firsts)


def test_what_stands_in_the_padding_changes_nothing(tiny_model: Model, pair_and_group: list[Any]) -> None:
    model = tiny_model(torch.float32)
    (layout,) = unshared_layouts(pair_and_group, "padded")
    ids = layout.input_ids.clone()
    lengths = [len(g.prompt_ids) + len(c) for g in pair_and_group for c in g.positives + g.negatives]
    assert len(set(lengths)) > 1, "nothing would be padded"
    for row, length in zip(ids, lengths, strict=True):
        row[length:] = 7
    before, after = (unshared_logps(model, [x]) for x in (layout, replace(layout, input_ids=ids)))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("rows", UNSHARED_ROWS)
def test_layers_are_given_no_mask(tiny_model: Model, pair_and_group: list[Any], rows: str) -> None:
    """A mask would cost memory and, on CUDA, the fused kernel; padding must not be taken for packed sequences."""
    model, masks = tiny_model(torch.float32), []

    def look(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        masks.append(kwargs["attention_mask"])

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_pre_hook(look, with_kwargs=True)
    unshared_logps(model, unshared_layouts(pair_and_group, rows))
    assert masks
    assert all(mask is None for mask in masks)


def test_rows_of_padded_are_one_call_and_those_per_sequence_are_not_padded(pair_and_group: list[Any]) -> None:
    lengths = [len(g.prompt_ids) + len(c) for g in pair_and_group for c in g.positives + g.negatives]
    (padded,) = unshared_layouts(pair_and_group, "padded")
    assert padded.input_ids.shape == (len(lengths), max(lengths))
    assert [tuple(x.input_ids.shape) for x in unshared_layouts(pair_and_group, "row-per-sequence")] == [
        (1, length) for length in lengths
    ]


def test_unknown_rows_and_images_are_refused(pair_and_group: Sequence[Any]) -> None:
    with pytest.raises(ValueError, match="unknown rows 'packed': expected one of padded, row-per-sequence"):
        unshared_layouts(pair_and_group, "packed")
    group = pair_and_group[0]
    with_image = SimpleNamespace(**{name: getattr(group, name) for name in ("prompt_ids", "positives", "negatives")})
    with_image.completion_masks, with_image.images = (), (object(),)
    with pytest.raises(ValueError, match="group 0 has images"):
        unshared_layouts([with_image], "padded")
