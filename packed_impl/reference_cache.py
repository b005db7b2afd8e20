"""Log-probs of the frozen policy, computed once and looked up by what a completion is.

A cache that is looked up by index goes wrong without a sign once data is shuffled, filtered or tokenized anew. Here the
key of a completion is a hash of the tokens of its prompt, its own tokens, and which of them are supervised.

Shape letters: R distinct completions, C tokens of all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from packed_impl.attention import backend_named
from packed_impl.bins import first_fit_decreasing, packed_length
from packed_impl.forward import layout_logps
from packed_impl.groups import (
    Group,
    Image,
    Mask,
    TokenIds,
    check_groups,
    completion_name,
    completions,
    masked_completions,
)
from packed_impl.layout import pack
from packed_impl.logps import DEFAULT_LOGIT_CHUNK

if TYPE_CHECKING:  # which itself holds caches
    from packed_impl.reference_policy import ReferencePolicy

SLOTS_PER_PASS = 4096

_FORMAT = "packparity-reference-cache-1"
_TENSORS = ("identities", "lengths", "logps")
_FIELDS = ("reference", "tokenizer_fingerprint")
_BYTES = hashlib.sha256().digest_size


def row_identity(prompt_ids: TokenIds, completion: TokenIds, mask: Mask, images: tuple[Image, ...] = ()) -> str:
    """The key of a completion: a hash of its content.

    SHA-256 of the two lengths, the tokens of prompt and completion, and the mask. Since lengths come first, no two
    contents are one run of bytes: the prompt ``a b`` with ``c`` is another key than ``a`` with ``b c``. The images of
    the prompt follow, the shape of each before its pixels.

    Args:
        prompt_ids: The prompt.
        completion: The completion.
        mask: Which of its tokens are supervised; one value each.
        images: The images of the prompt.

    Returns:
        64 hexadecimal digits.
    """
    numbers = np.array([len(prompt_ids), len(completion), *prompt_ids, *completion], dtype="<i8")
    seen = [part for image in images for part in (np.array(image.shape, dtype="<i8").tobytes(), image.pixels)]
    return hashlib.sha256(b"".join((numbers.tobytes(), bytes(mask), *seen))).hexdigest()


@dataclass(frozen=True, eq=False)
class ReferenceCache:
    """Per-token log-probs of the frozen policy, by `row_identity`.

    Args:
        logps: Of each completion; one 1-D floating tensor on the CPU, all of one dtype.
        reference: Name of the reference policy that computed them.
        tokenizer_fingerprint: Whatever names the tokenizer and template that made the tokens; "" for not known.

    Raises:
        ValueError: No completion, or tensors of another kind.
    """

    logps: Mapping[str, Tensor]
    reference: str
    tokenizer_fingerprint: str = ""

    def __post_init__(self) -> None:
        if not self.logps:
            raise ValueError("a reference cache of no completions: at least one is needed")
        kinds = {(logps.dtype, logps.ndim, logps.device.type) for logps in self.logps.values()}
        (dtype, ndim, device), *others = kinds
        if others or ndim != 1 or device != "cpu" or not dtype.is_floating_point:
            raise ValueError(
                f"log-probs of dtype, dimensions and device {', '.join(sorted(map(str, kinds)))}: "
                "expected 1-D floating tensors of one dtype on the CPU"
            )

    def look_up(self, groups: Sequence[Group], tokenizer_fingerprint: str = "") -> list[Tensor]:
        """Find the log-probs of every completion.

        Args:
            groups: Any groups, in any order.
            tokenizer_fingerprint: Of the tokenizer that made them; "" for not known, which matches any.

        Returns:
            One 1-D tensor per completion, in the standard order, on the CPU.

        Raises:
            ValueError: Another tokenizer, or a completion that is not in the cache, or that the cache has another
                number of values for, or one that is not finite.
        """
        if tokenizer_fingerprint and self.tokenizer_fingerprint and tokenizer_fingerprint != self.tokenizer_fingerprint:
            raise ValueError(
                f"cached log-probs are of tokenizer {self.tokenizer_fingerprint!r}, the batch is of "
                f"{tokenizer_fingerprint!r}: build the cache with the tokenizer of the batch"
            )
        found: list[Tensor] = []
        for group in groups:
            for key, completion in zip(_identities(group), completions(group), strict=True):
                logps = self.logps.get(key)
                if logps is None or (fault := _fault(logps, len(completion))):
                    raise ValueError(
                        f"{completion_name(groups, len(found))}: {'no cached log-probs' if logps is None else fault}; "
                        "the cache was built with another tokenizer, template or data"
                    )
                found.append(logps)
        return found

    def save(self, path: Path) -> None:
        """Write the cache as safetensors; the file is there whole or not at all.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            OSError: It cannot be written.
        """
        tensors = {
            "identities": torch.tensor([list(bytes.fromhex(identity)) for identity in self.logps], dtype=torch.uint8),
            "lengths": torch.tensor([len(logps) for logps in self.logps.values()]),
            "logps": torch.cat(list(self.logps.values())),
        }
        fields = {"reference": self.reference, "tokenizer_fingerprint": self.tokenizer_fingerprint}
        about = json.dumps({**fields, "digest": _digest(fields, tensors)})
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        try:
            with aside.open("xb") as file:
                file.write(save(tensors, metadata={_FORMAT: about}))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> ReferenceCache:
        """Read what `save` has written.

        Args:
            path: The file.

        Returns:
            The cache; its dtype is that of the one that was saved.

        Raises:
            ValueError: A file of another kind, or a damaged one.
            OSError: It cannot be read.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = (file.metadata() or {}).get(_FORMAT)
                tensors = {name: file.get_tensor(name) for name in file.keys()} if about is not None else {}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged, or no reference cache: {error}") from error
        if about is None:
            raise ValueError(f"{path} is no reference cache: its metadata has no {_FORMAT!r}")
        fields = _decoded(about)
        if set(tensors) != set(_TENSORS) or fields.pop("digest", None) != _digest(fields, tensors):
            raise ValueError(f"{path} is damaged: its content is not that of its digest; build the cache again")
        if fault := _fault_of_file(fields, tensors):
            raise ValueError(f"{path} is no reference cache: {fault}; build the cache again")
        identities = [bytes(identity).hex() for identity in tensors["identities"].tolist()]
        logps = tensors["logps"].split(tensors["lengths"].tolist())
        return ReferenceCache(dict(zip(identities, logps, strict=True)), **fields)


def _fault(logps: Tensor, num_tokens: int) -> str:
    """What is wrong with the cached log-probs of a completion; "" for nothing."""
    if len(logps) != num_tokens:
        return f"{len(logps)} cached log-probs for {num_tokens} tokens"
    bad = logps[~logps.isfinite()]
    return f"a cached log-prob of {bad[0].item()}" if len(bad) else ""


def _fault_of_file(fields: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with a file that is whole, as one that something else wrote may be; "" for nothing."""
    if set(fields) != set(_FIELDS) or not all(isinstance(value, str) for value in fields.values()):
        return f"its metadata has {', '.join(sorted(fields)) or 'nothing'} where strings {' and '.join(_FIELDS)} belong"
    identities, lengths, logps = (tensors[name] for name in _TENSORS)
    if lengths.dtype != torch.int64 or lengths.ndim != 1 or (lengths < 1).any():
        return f"lengths are {lengths.dtype} {list(lengths.shape)}, not int64 in one dimension, each at least 1"
    if identities.dtype != torch.uint8 or identities.shape != (len(lengths), _BYTES):
        return f"identities are {identities.dtype} {list(identities.shape)}, not uint8 [{len(lengths)}, {_BYTES}]"
    total = int(lengths.sum())
    if not logps.is_floating_point() or logps.shape != (total,):
        return f"log-probs are {logps.dtype} {list(logps.shape)}, not floating [{total}], what the lengths add up to"
    if len(torch.unique(identities, dim=0)) != len(identities):
        return "a completion is in it twice"
    return ""


def _decoded(about: str) -> dict[str, str]:
    """What the metadata says; nothing where it cannot be read."""
    try:
        fields = json.loads(about)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _digest(fields: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """A hash of everything that a file holds."""
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def build_cache(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    reference: ReferencePolicy,
    backend: str,
    layout: str = "shared-prompt",
    tokenizer_fingerprint: str = "",
    slots_per_pass: int = SLOTS_PER_PASS,
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> ReferenceCache:
    """Compute the log-probs of a frozen policy for every completion of a data set.

    Args:
        model: The policy that the frozen one belongs to.
        groups: The data set.
        reference: The frozen policy.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        tokenizer_fingerprint: Whatever names the tokenizer and template that made the tokens.
        slots_per_pass: Slots of a packed row, of which one runs at a time; a longer group has a row to itself.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        The cache, on the CPU. A completion that comes several times is in it once.

    Raises:
        ValueError: A log-prob that is not finite, or as ``layout.pack``, ``forward.layout_logps`` and the reference
            policy.
    """
    backend_named(backend)
    check_groups(groups)
    lengths = [
        packed_length(len(group.prompt_ids), [len(ids) for ids in completions(group)], layout=layout)
        for group in groups
    ]
    forward = partial(layout_logps, backend=backend, logit_chunk=logit_chunk)
    found: dict[str, Tensor] = {}
    with reference.frozen(model, groups, forward) as ref_logps:
        for row in first_fit_decreasing(lengths, max(slots_per_pass, *lengths)):
            of_row = [groups[index] for index in row]
            keys = [key for group in of_row for key in _identities(group)]
            logps = ref_logps(of_row, pack(of_row, layout=layout))
            # A copy each: a view would keep the log-probs of its whole row.
            found |= {key: each.cpu().clone() for key, each in zip(keys, logps, strict=True)}
    for number, key in enumerate(key for group in groups for key in _identities(group)):
        if not found[key].isfinite().all():
            raise ValueError(f"{completion_name(groups, number)}: {reference.name} gives a log-prob that is not finite")
    return ReferenceCache(found, reference.name, tokenizer_fingerprint)


def _identities(group: Group) -> list[str]:
    """The keys of a group's completions."""
    return [
        row_identity(group.prompt_ids, completion, mask, group.images) for completion, mask in masked_completions(group)
    ]
