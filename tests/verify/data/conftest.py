"""A byte-level tokenizer small enough to build in each test, and ways to write files of rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL_TOKENS = ("<s>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(
    folder: Path,
    *,
    template: str | list[dict[str, str]] | None = CHATML,
    merges: Sequence[tuple[str, str]] = (),
    adds_bos: bool = False,
    eos: str | None = "<|im_end|>",
    truncates_to: int | None = None,
) -> Path:
    """Write a tokenizer with one token for each byte, one for each merge, and three special ones."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in merges]
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(merges))
    tokenizer = Tokenizer(model)
    # No splitting into words, so that a merge may reach over any seam.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    if adds_bos:
        bos_id = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", bos_id)]
        )
    if truncates_to is not None:
        tokenizer.enable_truncation(truncates_to)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
    config |= {"eos_token": eos} if eos else {}
    config |= {"bos_token": "<s>"} if adds_bos else {}
    config |= {"chat_template": template} if template is not None else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> Callable[..., Path]:
    def make(**settings: Any) -> Path:
        return build_tokenizer(tmp_path / f"tokenizer-{len(list(tmp_path.iterdir()))}", **settings)

    return make


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizers") / "bytes")


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    def write(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def samples_dir() -> Path:
    return Path(__file__).with_name("samples")


@pytest.fixture(scope="session")
def shared_data_dir() -> Path:
    """A folder with samples of the real data sets and a real tokenizer, where there is one."""
    beside_repository = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("PACKPARITY_SHARED_DATA", beside_repository))
    if not (folder / "preferences").is_dir():
        pytest.skip("no real data: PACKPARITY_SHARED_DATA names no folder with preferences/ and qwen-tokenizer/")
    return folder
