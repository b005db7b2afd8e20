"""What transformers logs about a model that is built is held back; errors, and what it logs later, are not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from verify.models.advice import without_advice
from verify.models.checkpoint import load_checkpoint
from verify.models.family import build_family


def test_warnings_are_held_back_while_the_context_is_open_and_errors_are_not() -> None:
    logger = logging.getLogger("transformers.models.bert")
    before = logging.getLogger("transformers").level
    with without_advice():
        assert not logger.isEnabledFor(logging.WARNING)
        assert logger.isEnabledFor(logging.ERROR)
    with pytest.raises(ZeroDivisionError), without_advice():
        1 / 0  # noqa: B018
    assert logging.getLogger("transformers").level == before


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What transformers logs, whoever shows it."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)
    yield messages
    logging.getLogger("transformers").removeHandler(handler)


def test_a_checkpoint_is_loaded_without_a_word(tmp_path: Path, said: list[str]) -> None:
    """transformers would advise to make a decoder of it; that it is not causal is for the gate to say."""
    build_family("bert", dtype=torch.float32, seed=0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "is_decoder": False}))
    load_checkpoint(tmp_path, num_layers=None, dtype=torch.float32)
    assert said == []
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert any("is_decoder" in message for message in said)
