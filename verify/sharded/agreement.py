"""What all ranks have to agree on before anything is run: ranks that differ compute the same thing never."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.environment import read_environment, sources_digest
from verify.model_state import weights_hash
from verify.module_walk import named_modules
from verify.sharded.observe import all_gathered

if TYPE_CHECKING:
    from verify.data.load import LoadedPairs


def check_agreement(what: str, values: Mapping[str, str]) -> None:
    """Refuse ranks that say different things. A collective.

    Args:
        what: What the values are, in the plural.
        values: This rank's, by name.

    Raises:
        ValueError: On every rank, with the first name in which ranks differ, and what each group of ranks says.
    """
    of_ranks = all_gathered(dict(values))
    for name in sorted({name for of_rank in of_ranks for name in of_rank}):
        said: dict[str, list[int]] = {}
        for rank, of_rank in enumerate(of_ranks):
            said.setdefault(of_rank.get(name, "nothing"), []).append(rank)
        if len(said) > 1:
            each = "; ".join(f"{_ranks(ranks)}: {value}" for value, ranks in said.items())
            raise ValueError(f"ranks disagree on {what}: {name} is {each}; start all ranks alike")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def check_same_start(arguments: Sequence[str], device: str) -> None:
    """Refuse ranks with other arguments, versions, sources of this program, or files of users' own code. A collective.

    Args:
        arguments: Of the command line.
        device: The torch device.

    Raises:
        ValueError: As :func:`check_agreement`.
    """
    environment = read_environment(device)
    check_agreement("arguments", {"the command line": " ".join(arguments)})
    files = {argument.partition(":")[0] for argument in arguments if ".py:" in argument}
    check_agreement(
        "versions",
        {
            "python": environment.python,
            **environment.packages,
            "packparity sources": sources_digest(),  # a version says nothing about edits
            **{file: _sha256(Path(file)) for file in files},
        },
    )


def _sha256(file: Path) -> str:
    return _digest(file.read_bytes()) if file.is_file() else "missing"


def _digest(content: bytes) -> str:
    return f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"


def check_same_data(loaded: LoadedPairs) -> None:
    """Refuse ranks that read other files, as ranks on other machines may. A collective.

    Args:
        loaded: What this rank has read.

    Raises:
        ValueError: As :func:`check_agreement`.
    """
    tokens = repr([(group.prompt_ids, group.positives, group.negatives) for group in loaded.groups])
    check_agreement(
        "data",
        {
            f"--data {loaded.file}": f"SHA-256 {loaded.sha256[:16]}",
            f"pairs in tokens of --tokenizer {loaded.tokenizer.name}": _digest(tokens.encode()),
        },
    )


def check_same_weights(model: Any, dtype: str) -> None:
    """Refuse ranks whose models differ: sharded, they would be one model of parts of several. A collective.

    Args:
        model: The whole model.
        dtype: Of its weights, for the message.

    Raises:
        ValueError: As :func:`check_agreement`.
    """
    hashes = weights_hash(named_modules(model))
    check_agreement(f"{dtype} weights", {name: f"hash {value:x}" for name, value in hashes.items()})
