"""Configs that no decoder can be built of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verify.forecast.paper_model import read_any_config

CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 10000.0,
}


def test_a_field_that_no_decoder_can_have_is_named_with_its_value(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")
    assert read_any_config(str(file)).hidden_size == 64
    wrong = [("hidden_size", -64, "-64"), ("num_key_value_heads", 3, "3"), ("num_key_value_heads", 0, "0")]
    for field, value, said in [*wrong, ("rope_theta", "nan", "'nan'"), ("rope_theta", float("nan"), "nan")]:
        file.write_text(json.dumps(CONFIG | {field: value}), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"config\.json: {field} is {said}.*: give "):
            read_any_config(str(file))
