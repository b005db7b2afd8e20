"""Token slots are counted where they cannot be argued with: at the embedding."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.models.request import ModelUnderTest
from verify.slots import count_slots
from verify.subject import Subject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.subjects.selection import BUILT_IN

GROUPS = (
    PreferenceGroup((5, 6, 7), ((8, 9),), ((10,),)),
    PreferenceGroup((11, 12), ((13,),), ((14, 15, 16),)),
)
# By hand: prompt + chosen + rejected of both groups; unpacked, the prompt counts twice.
PACKED, UNPACKED = (3 + 2 + 1) + (2 + 1 + 3), (3 + 2) + (3 + 1) + (2 + 1) + (2 + 3)
REPEATED = PACKED + 2  # one prompt token more for each group
LONGEST = 6  # of the packed rows


@pytest.mark.parametrize(
    ("name", "slots", "rows", "calls"),
    [
        ("dense-sdpa", PACKED, 1, 1),
        ("split", PACKED, 1, 1),
        ("split/repeat-prompt-token", REPEATED, 1, 1),
        ("split/row-per-group", 2 * LONGEST, 2, 1),
        ("pairwise", UNPACKED, 4, 4),
        ("padded-right", 4 * (5 + 7), 4, 1),
        ("junk-in-front", UNPACKED + 4 * 50, 4, 4),
    ],
)
def test_slots_of_each_layout_are_what_counting_by_hand_gives(
    tiny: Callable[[str], ModelUnderTest], name: str, slots: int, rows: int, calls: int
) -> None:
    subject: Subject = BUILT_IN.get(name) or VARIATIONS.get(name) or WITNESS
    model = tiny("float32").model
    with count_slots(model) as count, torch.no_grad():
        subject.per_token_logps(model, GROUPS)
    assert (count.slots, count.rows, count.forward_calls) == (slots, rows, calls)
    assert count.layer_slots == slots


def test_hidden_states_made_past_the_embedding_are_seen_in_the_first_layer(
    tiny: Callable[[str], ModelUnderTest],
) -> None:
    model = tiny("float32").model
    table = model.get_input_embeddings().weight
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.0"))
    before = len(layer._forward_hooks)
    with count_slots(model) as count, torch.no_grad():
        model(inputs_embeds=table[torch.tensor([[1, 2, 3], [4, 5, 6]])], use_cache=False)
        model(input_ids=torch.tensor([[1, 2]]), use_cache=False)
    assert (count.slots, count.layer_slots) == (2, 8)
    assert len(layer._forward_hooks) == before


def test_a_case_knows_what_unpacked_rows_would_feed() -> None:
    assert Case(name="c", why="", groups=GROUPS).pairwise_slots == UNPACKED


def test_counting_ends_with_the_context_also_where_it_raised(tiny: Callable[[str], ModelUnderTest]) -> None:
    model = tiny("float32").model
    embedding = model.get_input_embeddings()
    before = len(embedding._forward_hooks)
    with pytest.raises(RuntimeError, match="boom"), count_slots(model) as count:
        _embed_and_raise(embedding)
    embedding(torch.tensor([[1, 2]]))
    assert (count.slots, count.rows, count.forward_calls) == (3, 1, 1)
    assert len(embedding._forward_hooks) == before


def _embed_and_raise(embedding: nn.Module) -> None:
    embedding(torch.tensor([[1, 2, 3]]))
    raise RuntimeError("boom")


def test_slots_fed_with_gradients_enabled_are_told_apart() -> None:
    embedding = nn.Embedding(5, 2)
    with count_slots(SimpleNamespace(get_input_embeddings=lambda: embedding)) as count:
        embedding(torch.tensor([[1, 2, 3]]))
        with torch.no_grad():
            embedding(torch.tensor([[1, 2]]))
    assert (count.slots, count.slots_with_grad) == (5, 3)


def test_what_a_checkpoint_runs_again_in_the_backward_pass_is_not_counted_twice(
    tiny: Callable[[str], ModelUnderTest],
) -> None:
    model = tiny("float32").model
    with count_slots(model) as count:
        logits = checkpoint(
            lambda ids: model(ids, use_cache=False).logits, torch.tensor([[1, 2, 3]]), use_reentrant=False
        )
        loss: Any = logits.sum()
        loss.backward()
    model.zero_grad()
    assert (count.slots, count.slots_with_grad, count.layer_slots, count.slots_again) == (3, 3, 3, 3)


def test_the_policy_without_gradients_is_told_from_the_model_with_its_adapters_off(
    tiny: Callable[[str], ModelUnderTest],
) -> None:
    model = tiny("float32").model
    with count_slots(model) as count:
        model(torch.tensor([[1, 2, 3, 4]]))
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))
            with model.disable_adapter():
                model(torch.tensor([[1, 2]]))
    assert (count.slots, count.slots_with_grad, count.slots_tried, count.rows_tried) == (4 + 3 + 2, 4, 3, 1)


@pytest.mark.parametrize("names", [("dense-sdpa", "split"), ("dense-sdpa", "pairwise")])
def test_passes_of_the_policy_without_gradients_are_told_apart(
    tiny: Callable[[str], ModelUnderTest], names: tuple[str, str]
) -> None:
    model, fed = tiny("float32").model, {"dense-sdpa": PACKED, "split": PACKED, "pairwise": UNPACKED}
    with count_slots(model, GROUPS) as count, torch.no_grad():
        for name in names:
            BUILT_IN.get(name, WITNESS).per_token_logps(model, GROUPS)
        with model.disable_adapter():
            WITNESS.per_token_logps(model, GROUPS)
    assert [(each.slots, each.pairwise_slots) for each in count.tried] == [(fed[name], UNPACKED) for name in names]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_separate_frozen_model_is_not_the_policy(tiny: Callable[[str], ModelUnderTest], is_frozen: bool) -> None:
    model = deepcopy(tiny("float32").model).unload().requires_grad_(not is_frozen)
    with count_slots(model) as count, torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    assert (count.slots, count.slots_tried) == (3, 0 if is_frozen else 3)


def test_ids_given_by_keyword_count_too() -> None:
    embedding = nn.Embedding(5, 2)
    with count_slots(SimpleNamespace(get_input_embeddings=lambda: embedding)) as count:
        embedding(input=torch.tensor([[1, 2], [3, 4]]))
        embedding(torch.tensor([1, 2, 3]))
        embedding(torch.zeros(0, 4, dtype=torch.int64))
    assert (count.slots, count.rows, count.forward_calls) == (7, 3, 3)


def test_a_model_whose_embedding_cannot_be_watched_is_refused() -> None:
    model: Any = SimpleNamespace(get_input_embeddings=lambda: None)
    with pytest.raises(ValueError, match=r"get_input_embeddings\(\) is not a module"), count_slots(model):
        pass
