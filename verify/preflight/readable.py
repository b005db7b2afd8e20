"""Whether this rank can read the checkpoint and the data, and what they are, so that ranks can be held together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from reports.words import count, plural, size
from verify.data.load import load_pairs
from verify.groups import PreferenceGroup
from verify.models.checkpoint import CheckpointError, read_config, weight_files
from verify.preflight.finding import Finding, abstains, go, no_go

CHECKPOINT, DATA = "checkpoint", "data"
_TOUCHED_BYTES = 2**16
_HINT_CHECKPOINT = "give the folder of a whole safetensors checkpoint, under a path that every machine has"
_HINT_DATA = "give a file and a tokenizer that every machine can read (packparity data FILE says more)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What came of reading: a finding, and what all ranks have to have alike.

    Args:
        finding: The finding of this rank.
        contents: Digests by name; empty where nothing was read.
        groups: Groups that were drawn, of data.
    """

    finding: Finding
    contents: dict[str, str] = field(default_factory=dict)
    groups: tuple[PreferenceGroup, ...] = ()


def read_checkpoint(folder: Path | None) -> Read:
    """Open every file of a checkpoint, and read the first and the last tensor of each.

    Args:
        folder: The folder; None where weights are seeded.

    Returns:
        GO with number and size of files, and a digest of config, names, shapes, dtypes and sizes: not of all weights,
        which are read where the model is built.
    """
    if folder is None:
        return Read(finding=abstains(CHECKPOINT, "weights are seeded: no checkpoint was named"))
    try:
        read_config(folder)
        files = weight_files(folder)
        contents = {"config.json": _digest((folder / "config.json").read_bytes())}
        num_tensors = 0
        for file in files:
            tensors, contents[file.name] = _look_into(file)
            num_tensors += tensors
        total = sum(file.stat().st_size for file in files)
    except (CheckpointError, OSError) as error:
        return Read(finding=no_go(CHECKPOINT, str(error), _HINT_CHECKPOINT))
    said = f"{folder.name}: {plural(len(files), 'file')}, {count(num_tensors)} tensors, {size(total)}"
    return Read(finding=go(CHECKPOINT, said, measures={"total_bytes": float(total)}), contents=contents)


def _look_into(file: Path) -> tuple[int, str]:
    """Number of tensors, and a digest of names, shapes, dtypes and the size of the file."""
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            names = sorted(tensors.keys())
            described = [(name, *_described(tensors.get_slice(name))) for name in names]
            for name in names[:1] + names[-1:]:
                tensors.get_tensor(name)  # a file that was cut off, or a disk that does not answer
    except SafetensorError as error:
        raise CheckpointError(f"{file}: damaged or not safetensors: {error}") from error
    return len(names), _digest(json.dumps([described, file.stat().st_size]).encode())


def _described(tensor: object) -> tuple[list[int], str]:
    return list(tensor.get_shape()), str(tensor.get_dtype())  # type: ignore[attr-defined]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def read_data(
    data: Path | None,
    tokenizer: Path | None,
    *,
    seed: int,
    max_tokens: int | None,
    vocab_size: int,
) -> Read:
    """Read a preference file as a whole, and draw a few pairs from it, spread over the lengths.

    Args:
        data: The file; None for none.
        tokenizer: Folder of the tokenizer.
        seed: Seed of the draw.
        max_tokens: Most tokens of a packed pair; longer ones are left out and counted.
        vocab_size: Of the model.

    Returns:
        GO with what the file holds, the pairs, and digests of file and tokenizer.
    """
    if data is None or tokenizer is None:
        return Read(finding=abstains(DATA, "no --data was named: made-up tokens stand for pairs"))
    try:
        pairs = load_pairs(data, tokenizer, num_pairs=None, seed=seed, max_tokens=max_tokens, vocab_size=vocab_size)
    except (ValueError, OSError) as error:
        return Read(finding=no_go(DATA, str(error), _HINT_DATA))
    longest = max(pairs.lengths, key=lambda lengths: lengths.total_tokens)
    said = f"{data.name}: {pairs.describe()}; the longest packed pair has {count(longest.total_tokens)} tokens"
    contents = {"data sha256": pairs.sha256, "tokenizer sha256": str(pairs.tokenizer.tokenizer_sha256)}
    contents["chat template sha256"] = str(pairs.tokenizer.chat_template_sha256)
    return Read(
        finding=go(DATA, said, measures={"rows": float(pairs.rows_read)}), contents=contents, groups=pairs.groups
    )


def touch_data(data: Path | None) -> Read:
    """Read the first and the last bytes of a preference file, which another rank of this machine reads as a whole."""
    if data is None:
        return Read(finding=abstains(DATA, "no --data was named: made-up tokens stand for pairs"))
    try:
        with data.open("rb") as stream:
            stream.read(_TOUCHED_BYTES)
            total = stream.seek(0, 2)
            stream.seek(max(0, total - _TOUCHED_BYTES))
            stream.read(_TOUCHED_BYTES)
    except OSError as error:
        return Read(finding=no_go(DATA, f"{data}: {error.strerror}", _HINT_DATA))
    return Read(finding=go(DATA, f"{data.name}: {size(total)}, which rank 0 of each machine reads as a whole"))
