"""Checkpoint and data: what cannot be read is NO-GO with its place; what was read is held against other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from verify.models.configs import named_config
from verify.models.random_weights import hf_config
from verify.preflight.readable import Read, read_checkpoint, read_data, touch_data


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    hf_config(named_config("tiny"), 2).save_pretrained(tmp_path)
    save_file({"a": torch.ones(4), "b": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_checkpoint_that_can_be_read_is_go_with_what_it_holds(checkpoint: Path) -> None:
    found = read_checkpoint(checkpoint)
    assert found.finding.outcome == "GO"
    assert "1 file, 2 tensors" in found.finding.seen
    assert set(found.contents) == {"config.json", "model.safetensors"}


def test_other_shapes_have_another_digest(checkpoint: Path) -> None:
    before = read_checkpoint(checkpoint).contents
    assert read_checkpoint(checkpoint).contents == before
    save_file({"a": torch.ones(2, 2), "b": torch.ones(2, 3)}, checkpoint / "model.safetensors")
    after = read_checkpoint(checkpoint).contents
    assert after["model.safetensors"] != before["model.safetensors"]
    assert after["config.json"] == before["config.json"]


def _cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.bin")


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "seen"), [(_cut_off, "damaged"), (_pickled, "pickled"), (_without_config, "no config.json")]
)
def test_a_checkpoint_that_cannot_be_read_is_no_go(checkpoint: Path, spoil: object, seen: str) -> None:
    spoil(checkpoint)  # type: ignore[operator]
    found = read_checkpoint(checkpoint)
    assert found.finding.outcome == "NO-GO"
    assert seen in found.finding.seen
    assert found.finding.hint


def test_a_folder_that_is_not_there_is_no_go(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "absent").finding.outcome == "NO-GO"


def read(data: Path | None, tokenizer: Path | None) -> Read:
    return read_data(data, tokenizer, seed=0, max_tokens=None, vocab_size=257)


def test_data_that_is_not_there_is_no_go(tmp_path: Path) -> None:
    found = read(tmp_path / "pairs.jsonl", tmp_path)
    assert found.finding.outcome == "NO-GO"
    assert "pairs.jsonl" in found.finding.seen


def test_what_was_not_named_abstains() -> None:
    assert read(None, None).finding.outcome == "ABSTAINS"
    assert read_checkpoint(None).finding.outcome == "ABSTAINS"


def test_the_other_ranks_of_a_machine_touch_the_file_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("not read as JSON")
    assert touch_data(path).finding.outcome == "GO"
    assert touch_data(path).contents == {}
    assert touch_data(tmp_path / "absent").finding.outcome == "NO-GO"
    assert touch_data(None).finding.outcome == "ABSTAINS"
