"""Rewards of the unpacked path: every form reads the last token, whatever stands beside the sequence in its row."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from reference_impl.pairwise import Form, rewards
from verify.groups import PreferenceGroup

GROUPS = [PreferenceGroup((3, 4), ((5, 6, 0),), ((7,), (0, 0))), PreferenceGroup((8,), ((9, 1),), ((2, 0),))]
FORMS: list[Form] = [
    {"batching": "padded-right", "extra_padding": 3},
    {"batching": "padded-left", "row_order": "reversed"},
    {"batching": "padded-right", "max_rows": 2, "pad_id": 5},
    {"junk_tokens_in_front": 4, "first_position": 7},
]


@pytest.fixture(scope="module")
def classifier() -> Qwen3ForSequenceClassification:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=17, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_labels=1,
    )  # fmt: skip
    return Qwen3ForSequenceClassification(config).double().eval()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms_agree_with_one_row_at_a_time(classifier: Qwen3ForSequenceClassification, form: Form) -> None:
    rows = [g.prompt_ids + ids for g in GROUPS for ids in g.completions]
    with torch.no_grad():
        alone = torch.stack([classifier(input_ids=torch.tensor([row])).logits[0, 0] for row in rows])
        plain, found = torch.stack(rewards(classifier, GROUPS)), torch.stack(rewards(classifier, GROUPS, **form))
    torch.testing.assert_close(plain, alone, atol=0, rtol=0)
    torch.testing.assert_close(found, alone, atol=1e-6, rtol=0)


def test_an_option_without_meaning_is_refused(classifier: Qwen3ForSequenceClassification) -> None:
    with pytest.raises(ValueError, match="extra_padding"):
        rewards(classifier, GROUPS, extra_padding=2)
