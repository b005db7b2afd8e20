"""Samples of the real data sets through a real tokenizer, where they are at hand."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from verify.data.load import load_pairs
from verify.data.pairs import PreferencePair
from verify.data.rows import iter_rows
from verify.data.shapes import shape_of
from verify.data.tokenise import ChatTokenizer, encode_group, load_tokenizer
from verify.data.violations import Reason
from verify.groups import check_token_ids

FILES = {
    "argilla_ultrafeedback": ("argilla_ultrafeedback", 16),
    "capybara_multi_turn": ("capybara_multi_turn", 24),
    "h4_ultrafeedback": ("h4_ultrafeedback", 24),
    "orca_dpo_pairs": ("orca_dpo_pairs", 16),
    "rlhf_v_text": ("rlhf_v", 8),
    "trl_conversational": ("trl_conversational", 24),
}
VOCAB_SIZE = 151936


@pytest.fixture(scope="module")
def tokenizer_dir(shared_data_dir: Path) -> Path:
    return shared_data_dir / "qwen-tokenizer"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> ChatTokenizer:
    return load_tokenizer(tokenizer_dir)


@pytest.mark.parametrize("file", FILES)
def test_every_real_row_is_a_group_whose_ids_are_the_templates_own(
    shared_data_dir: Path, tokenizer: Any, file: str
) -> None:
    shape, num_rows = FILES[file]
    rows = list(iter_rows(shared_data_dir / "preferences" / f"{file}.jsonl"))
    assert [shape_of(row).name for row in rows] == [shape] * num_rows
    for row in rows:
        pair = shape_of(row).read(row)
        assert isinstance(pair, PreferencePair)
        group = encode_group(tokenizer, pair)
        check_token_ids([group], VOCAB_SIZE)
        for response, ids in zip((pair.chosen, pair.rejected), group.completions, strict=True):
            messages = [{"role": turn.role, "content": turn.content} for turn in pair.prompt + response]
            expected = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
            assert list(group.prompt_ids + ids) == expected


def test_a_real_file_loads_with_its_provenance(shared_data_dir: Path, tokenizer_dir: Path) -> None:
    path = shared_data_dir / "preferences" / "capybara_multi_turn.jsonl"
    loaded = load_pairs(path, tokenizer_dir, num_pairs=4, seed=0, max_tokens=1024, vocab_size=VOCAB_SIZE)
    assert len(loaded.groups) == 4
    assert loaded.rows_read == 24 == len(loaded.lengths) + loaded.violation_counts[Reason.OVER_MAX_TOKENS]
    assert loaded.tokenizer.tokenizer_sha256 == _sha256(tokenizer_dir / "tokenizer.json")
    assert loaded.sha256 == _sha256(path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
