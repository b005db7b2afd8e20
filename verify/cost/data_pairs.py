"""Pairs, or their lengths, drawn from a preference file."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verify.data.length_statistics import Reservoir
from verify.data.measures import CharacterMeasure
from verify.data.pairs import PromptAndResponses
from verify.data.rows import DataError, iter_rows
from verify.data.shapes import Shape, same_shape
from verify.data.violations import UnusableRow
from verify.groups import PreferenceGroup
from verify.packing_plan.costs import GroupLengths

CHARACTERS_PER_TOKEN = 4.0
_SPARE = 4
"""Rows that are drawn for each pair that is wanted, as some may be too long or unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """The longest prompt and response that are taken, in tokens; longer rows are left out, and nothing is cut."""

    prompt: int | None = None
    response: int | None = None

    def hold(self, lengths: GroupLengths) -> bool:
        """Whether a pair is within them."""
        longest = max(lengths.responses)
        return (self.prompt is None or lengths.prompt <= self.prompt) and (
            self.response is None or longest <= self.response
        )

    def __str__(self) -> str:
        return f"prompt at most {self.prompt or 'any'}, response at most {self.response or 'any'} tokens"


NO_LIMITS = LengthLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPairs:
    """What was drawn from a file.

    Args:
        lengths: Of each pair, in drawn order.
        groups: The pairs themselves, where a tokenizer was given; else empty.
        file: Base name.
        sha256: Digest of its bytes.
        shape: Name of the shape of its rows.
        rows_read: Rows of the file.
        counted: How tokens were counted, in words.
        left_out: Drawn rows that are not used, by reason.
    """

    lengths: tuple[GroupLengths, ...]
    groups: tuple[PreferenceGroup, ...]
    file: str
    sha256: str
    shape: str
    rows_read: int
    counted: str
    left_out: dict[str, int]


def draw_pairs(file: Path, tokenizer: Path | None, limits: LengthLimits, *, num_pairs: int, seed: int) -> DrawnPairs:
    """Draw pairs uniformly from a file.

    Args:
        file: Preference pairs.
        tokenizer: Folder of the tokenizer; None to count four characters as a token.
        limits: The longest that are taken.
        num_pairs: At most so many.
        seed: Seed of the draw.

    Returns:
        The pairs, fewer than asked for where the file has no more.

    Raises:
        DataError: The file or the tokenizer cannot be read, or nothing is left.
    """
    shape: Shape | None = None
    reservoir: Reservoir[PromptAndResponses] = Reservoir(_SPARE * num_pairs, seed)
    left_out: dict[str, int] = {}
    for row in iter_rows(file):
        shape = same_shape(row, shape)
        try:
            reservoir.add([shape.read(row)])
        except UnusableRow as unusable:
            _count(left_out, unusable)
    rows_read = reservoir.num_seen + sum(left_out.values())
    drawn = reservoir.sample()
    random.Random(seed).shuffle(drawn)
    lengths, groups = list[GroupLengths](), list[PreferenceGroup]()
    for each, group in _measured(drawn, tokenizer, left_out):
        if not limits.hold(each):
            left_out["over the length limits"] = left_out.get("over the length limits", 0) + 1
        elif len(lengths) < num_pairs:
            lengths.append(each)
            groups += [group] if group is not None else []
    if not lengths:
        raise DataError(f"{file.name}: no usable pair ({limits}) among {rows_read} rows: {left_out}")
    return DrawnPairs(
        lengths=tuple(lengths),
        groups=tuple(groups),
        file=file.name,
        shape="" if shape is None else shape.name,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        rows_read=rows_read,
        counted=f"tokenizer {tokenizer.resolve().name}"
        if tokenizer is not None
        else f"{CHARACTERS_PER_TOKEN:g} characters taken for a token",
        left_out=left_out,
    )


def _measured(
    rows: Sequence[PromptAndResponses], tokenizer: Path | None, left_out: dict[str, int]
) -> list[tuple[GroupLengths, PreferenceGroup | None]]:
    """Lengths of each pair, and the pair in tokens where there is a tokenizer."""
    found: list[tuple[GroupLengths, PreferenceGroup | None]] = []
    if tokenizer is None:
        for sizes in CharacterMeasure(CHARACTERS_PER_TOKEN).sizes(rows):
            if isinstance(sizes, UnusableRow):
                _count(left_out, sizes)
            elif len(sizes.chosen) == len(sizes.rejected) == 1:
                found.append((GroupLengths(sizes.prompt, (*sizes.chosen, *sizes.rejected)), None))
            else:
                left_out["several responses on a side"] = left_out.get("several responses on a side", 0) + 1
        return found
    from verify.data.tokenise import encode_groups, load_tokenizer

    for group in encode_groups(load_tokenizer(tokenizer), rows):
        if isinstance(group, UnusableRow):
            _count(left_out, group)
        elif group.is_pair:
            found.append((GroupLengths(len(group.prompt_ids), tuple(map(len, group.completions))), group))
        else:
            left_out["several responses on a side"] = left_out.get("several responses on a side", 0) + 1
    return found


def _count(left_out: dict[str, int], unusable: UnusableRow) -> None:
    reason = str(unusable.violation.reason)
    left_out[reason] = left_out.get(reason, 0) + 1
