"""transformers' own packing: sequences one behind the other, positions restarted, and trust in the library's mask.

Nothing says who attends to whom. transformers reads it from ``position_ids`` when it makes the causal mask: wherever a
position is not the one before plus 1, a new sequence begins. It looks only where no ``attention_mask`` is passed and no
cache exists, and a cache exists unless ``use_cache=False``. In the row

    tokens     a b c d e
    positions  0 1 2 0 1

``d`` sees itself, or all of ``a b c d``: the way of calling decides, and the model class. No error is raised either
way. What a library decides cannot be read back from its input, so there is no ``packed_rows`` here.

Shape letters: B rows, T slots of a row, S tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds
from verify.subject import Support
from verify.subjects.attention import attention_set_to, gradients_under

Mask = Literal["absent", "ones", "padding"]
Cache = Literal["off", "default"]
RowsOfSequences = Literal["one-row", "several-rows"]

_SEQUENCES_PER_ROW = 2
_PAD_ID = 0


@dataclass(frozen=True, eq=False)
class SequenceRows:
    """Sequences in rows of one width, padded on the right.

    Args:
        input_ids: int64, [B, T].
        position_ids: From 0 in every sequence; 0 on padding; int64, [B, T].
        is_token: False on padding; bool, [B, T].
        places: Row and first slot of each sequence, in the order given.
    """

    input_ids: Tensor
    position_ids: Tensor
    is_token: Tensor
    places: tuple[tuple[int, int], ...]


def sequence_rows(sequences: Sequence[TokenIds], sequences_per_row: int) -> SequenceRows:
    """Lay sequences out one behind the other, so many to a row.

    Args:
        sequences: Token ids, at least one sequence, none empty.
        sequences_per_row: The last row may hold fewer.

    Returns:
        The rows, on the CPU.
    """
    per_row = [sequences[first : first + sequences_per_row] for first in range(0, len(sequences), sequences_per_row)]
    width = max(sum(map(len, row)) for row in per_row)
    input_ids = torch.full((len(per_row), width), _PAD_ID, dtype=torch.int64)
    position_ids, is_token = torch.zeros_like(input_ids), torch.zeros_like(input_ids, dtype=torch.bool)
    places = []
    for b, row in enumerate(per_row):
        start = 0
        for ids in row:
            slots = slice(start, start + len(ids))
            input_ids[b, slots] = torch.tensor(ids)
            position_ids[b, slots] = torch.arange(len(ids))
            is_token[b, slots] = True
            places.append((b, start))
            start += len(ids)
    return SequenceRows(input_ids, position_ids, is_token, tuple(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class HfPositionIdsSubject:
    """A stock model on packed rows with restarted positions, called in one of the ways that are in use.

    Args:
        mask: The ``attention_mask``: none, all ones, or 1 on tokens and 0 on padding as collators make it.
        cache: ``use_cache=False``, or not mentioned, so that the config decides; its default is True.
        rows: All sequences in one row, or two to a row in one padded batch.
        attention: Attention implementation of transformers; None leaves the model's own.
    """

    mask: Mask = "absent"
    cache: Cache = "off"
    rows: RowsOfSequences = "one-row"
    attention: str | None = None
    takes: tuple[str, ...] = ("pairs", "groups", "examples")

    @property
    def name(self) -> str:
        """What differs from the call that transformers isolates, behind slashes."""
        parts = ["hf-position-ids"]
        parts += [self.rows] if self.rows != "one-row" else []
        parts += [f"{self.mask}-mask"] if self.mask != "absent" else []
        parts += ["default-cache"] if self.cache != "off" else []
        parts += [self.attention] if self.attention is not None else []
        return "/".join(parts)

    @property
    def layout(self) -> str:
        """A padded batch feeds more slots than unpacked rows without padding: it does not claim to save any."""
        return "packed" if self.rows == "one-row" else "unpacked"

    def supports(self, case: Case) -> Support:
        """Two sequences fill one row, which is then the same as with all sequences in one row."""
        num_sequences = sum(len(group.completions) for group in case.groups)
        if self.rows == "several-rows" and num_sequences <= _SEQUENCES_PER_ROW:
            return Support(False, f"{num_sequences} sequences: the row is the same as with all sequences in one row")
        return Support(True)

    def supports_gradients(self, model: Any) -> Support:
        """Whether the attention implementation is there when layers are run again."""
        return gradients_under(model, self.attention)

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion, each behind its own copy of the prompt."""
        pairs = [(group.prompt_ids, completion) for group in groups for completion in group.completions]
        logits = self.logits(model, [prompt + completion for prompt, completion in pairs])
        return [
            completion_logps(of_sequence, len(prompt), completion)
            for of_sequence, (prompt, completion) in zip(logits, pairs, strict=True)
        ]

    def logits(self, model: Any, sequences: Sequence[TokenIds]) -> list[Tensor]:
        """Logits of every token of every sequence, from packed rows.

        Args:
            model: A transformers causal LM, wrapped or not.
            sequences: Token ids of each sequence.

        Returns:
            One tensor per sequence, [S, V], in the model's dtype.
        """
        rows = sequence_rows(sequences, len(sequences) if self.rows == "one-row" else _SEQUENCES_PER_ROW)
        device = next(model.parameters()).device
        arguments: dict[str, Any] = {"position_ids": rows.position_ids.to(device)}
        if self.mask != "absent":
            mask = rows.is_token if self.mask == "padding" else torch.ones_like(rows.is_token)
            arguments["attention_mask"] = mask.to(device, torch.int64)
        if self.cache == "off":
            arguments["use_cache"] = False
        with nullcontext() if self.attention is None else attention_set_to(model, self.attention):
            of_rows: Tensor = model(input_ids=rows.input_ids.to(device), **arguments).logits
        return [of_rows[b, start : start + len(ids)] for ids, (b, start) in zip(sequences, rows.places, strict=True)]


def completion_logps(logits: Tensor, prompt_length: int, completion: TokenIds) -> Tensor:
    """``log softmax(logits at the token before y_t)[y_t]``, in float32, or float64 where the logits are.

    Args:
        logits: Logits of a sequence that begins with the prompt; [S, V].
        prompt_length: Tokens of the prompt.
        completion: The tokens behind it.

    Returns:
        One value per token of the completion.
    """
    at_predictors = logits[prompt_length - 1 : prompt_length - 1 + len(completion)]
    wide = at_predictors if at_predictors.dtype == torch.float64 else at_predictors.to(torch.float32)
    targets = torch.tensor(completion, device=wide.device)[:, None]
    return wide.log_softmax(dim=-1).gather(1, targets)[:, 0]


HF_POSITION_IDS_SUBJECTS: tuple[HfPositionIdsSubject, ...] = (
    HfPositionIdsSubject(),
    HfPositionIdsSubject(attention="eager"),
    HfPositionIdsSubject(attention="sdpa"),
    HfPositionIdsSubject(cache="default"),
    HfPositionIdsSubject(mask="ones"),
    HfPositionIdsSubject(mask="ones", cache="default"),
    HfPositionIdsSubject(rows="several-rows"),
    HfPositionIdsSubject(rows="several-rows", cache="default"),
    HfPositionIdsSubject(rows="several-rows", mask="padding"),
)
