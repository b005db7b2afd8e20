"""A preference file as groups: survey every row, sample over the lengths, keep the provenance."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from verify.data.rows import DataError, Row, check_file, iter_rows
from verify.data.sample import stratified_sample
from verify.data.shapes import Shape, left_out_columns, same_shape, shape_of
from verify.data.tokenise import (
    ChatTokenizer,
    TokenizerIdentity,
    encode_group,
    identify_tokenizer,
    load_tokenizer,
)
from verify.data.violations import Reason, UnusableRow, Violation, count_reasons
from verify.groups import PreferenceGroup, check_token_ids

PAIRS_BY_DEFAULT = 4
"""How many pairs `load_pairs` draws at most where no number is asked for."""

_PLAIN_TEXT_SHAPE = "trl_text"
_PLAIN_TEXT_NOTE = "plain text: tokenised without a chat template, end-of-sequence token appended to each response"


@dataclass(frozen=True, slots=True)
class PairLengths:
    """Token counts of one usable pair or group, all responses of a side together, and the line of its row."""

    line: int
    prompt_tokens: int
    chosen_tokens: int
    rejected_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens of the packed row: the prompt once, and every response."""
        return self.prompt_tokens + self.chosen_tokens + self.rejected_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a whole preference file holds.

    Args:
        file: Base name of the file.
        sha256: Digest of its bytes.
        shape: Name of the shape that all its rows have.
        rows_read: Number of rows, usable or not.
        lengths: Token counts of each usable pair, in file order.
        violations: The other rows, in file order.
        tokenizer: Which tokenizer counted.
        max_tokens: The limit on the tokens of a packed pair, if one was asked for.
        notes: What a reader has to know about how the rows were read.
    """

    file: str
    sha256: str
    shape: str
    rows_read: int
    lengths: tuple[PairLengths, ...]
    violations: tuple[Violation, ...]
    tokenizer: TokenizerIdentity
    max_tokens: int | None
    notes: tuple[str, ...]

    @property
    def violation_counts(self) -> dict[Reason, int]:
        """How many rows each reason cost; reasons that did not occur are left out."""
        return count_reasons(self.violations)

    def describe(self) -> str:
        """One line on the rows: how many are usable, and why the others are not.

        Returns:
            E.g. "24 rows read, all usable" or "4 rows read, 1 usable; left out: seam_merge 3 (first: pairs.jsonl:1:
            seam_merge: ...)".
        """
        read = f"{self.rows_read} {'row' if self.rows_read == 1 else 'rows'} read"
        if not self.violations:
            return f"{read}, all usable"
        counts = ", ".join(f"{reason} {count}" for reason, count in self.violation_counts.items())
        return f"{read}, {len(self.lengths) or 'none'} usable; left out: {counts} (first: {self.violations[0]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPairs(Survey):
    """The survey of a file, and the groups that were sampled from it.

    Args:
        groups: The sampled pairs in file order, each with source ``file:line``.
        seed: Seed of the sample.
    """

    groups: tuple[PreferenceGroup, ...]
    seed: int


def survey_pairs(
    path: str | Path, tokenizer_dir: str | Path, *, max_tokens: int | None = None, vocab_size: int | None = None
) -> Survey:
    """Read and tokenise every row of a file, and keep the lengths and the violations.

    Args:
        path: A .jsonl, .json (JSON Lines) or .parquet file whose rows have one of the known shapes.
        tokenizer_dir: Folder with the tokenizer; read offline, without running code from it.
        max_tokens: Most tokens that a packed pair (prompt, chosen and rejected) may have; a longer one is a violation.
            Nothing is truncated.
        vocab_size: Rows of the model's embedding; every token id has to be below.

    Returns:
        The survey; it may hold no usable pair.

    Raises:
        DataError: The file, one of its rows or the tokenizer cannot be read, the shape or the file changes underway,
            or a token id does not fit.
    """
    path = Path(path)
    with _unchanged(path) as sha256:
        return _survey(path, sha256, _LoadedTokenizer.load(tokenizer_dir), max_tokens, vocab_size)


def load_pairs(
    path: str | Path,
    tokenizer_dir: str | Path,
    *,
    num_pairs: int | None,
    seed: int,
    max_tokens: int | None = None,
    vocab_size: int | None = None,
    by_default: int = PAIRS_BY_DEFAULT,
) -> LoadedPairs:
    """Sample preference groups from a file, spread over the lengths.

    The file is read twice: once for the lengths of all pairs (four numbers each are kept), once for the sampled
    rows. So the sample is the same whatever the size of the file, and the file is never in memory.

    Args:
        path: See `survey_pairs`.
        tokenizer_dir: See `survey_pairs`.
        num_pairs: How many pairs to draw, one from each stratum of total length (`stratified_sample`); None for
            ``by_default``, or all usable ones where there are fewer.
        seed: Seed of the draw.
        max_tokens: See `survey_pairs`.
        vocab_size: See `survey_pairs`.
        by_default: How many pairs to draw at most where no number is asked for.

    Returns:
        The groups, and the survey of the whole file.

    Raises:
        DataError: As `survey_pairs`; no usable pair, or fewer than the number asked for; the file changes meanwhile.
    """
    path = Path(path)
    with _unchanged(path) as sha256:
        tokenizer = _LoadedTokenizer.load(tokenizer_dir)
        survey = _survey(path, sha256, tokenizer, max_tokens, vocab_size)
        drawn = stratified_sample(
            [pair.total_tokens for pair in survey.lengths], _num_drawn(survey, num_pairs, by_default), seed
        )
        lines = {survey.lengths[i].line for i in drawn}
        rows = (row for row in iter_rows(path) if row.place.line in lines)
        groups = tuple(encode_group(tokenizer.tokenizer, shape_of(row).read(row)) for row in rows)
    surveyed = {field.name: getattr(survey, field.name) for field in fields(survey)}
    return LoadedPairs(**surveyed, groups=groups, seed=seed)


@dataclass(frozen=True, slots=True)
class _LoadedTokenizer:
    tokenizer: ChatTokenizer
    identity: TokenizerIdentity

    @staticmethod
    def load(tokenizer_dir: str | Path) -> _LoadedTokenizer:
        tokenizer = load_tokenizer(Path(tokenizer_dir))
        return _LoadedTokenizer(tokenizer, identify_tokenizer(tokenizer, Path(tokenizer_dir)))


def _survey(
    path: Path, sha256: str, tokenizer: _LoadedTokenizer, max_tokens: int | None, vocab_size: int | None
) -> Survey:
    shape: Shape | None = None
    rows_read = 0
    lengths: list[PairLengths] = []
    violations: list[Violation] = []
    left_out: Counter[str] = Counter()
    for row in iter_rows(path):
        shape = same_shape(row, shape)
        rows_read += 1
        left_out.update(left_out_columns(row))
        try:
            group = encode_group(tokenizer.tokenizer, shape.read(row))
            lengths.append(_checked_lengths(group, row, max_tokens, vocab_size))
        except UnusableRow as unusable:
            violations.append(unusable.violation)
    if shape is None:
        raise AssertionError("iter_rows yields at least one row or raises")
    return Survey(
        file=path.name,
        sha256=sha256,
        shape=shape.name,
        rows_read=rows_read,
        lengths=tuple(lengths),
        violations=tuple(violations),
        tokenizer=tokenizer.identity,
        max_tokens=max_tokens,
        notes=_notes(shape, left_out, rows_read),
    )


def _checked_lengths(group: PreferenceGroup, row: Row, max_tokens: int | None, vocab_size: int | None) -> PairLengths:
    if vocab_size is not None:
        try:
            check_token_ids((group,), vocab_size)
        except ValueError as error:
            raise DataError(
                f"{error}; the tokenizer does not belong to this model: choose the model that belongs to it (--model)"
            ) from error
    chosen, rejected = (sum(map(len, responses)) for responses in (group.positives, group.negatives))
    lengths = PairLengths(row.place.line, len(group.prompt_ids), chosen, rejected)
    if max_tokens is not None and lengths.total_tokens > max_tokens:
        detail = f"{lengths.total_tokens} tokens in prompt and all responses, at most {max_tokens} asked for"
        raise UnusableRow(Reason.OVER_MAX_TOKENS, row.place, detail)
    return lengths


def _num_drawn(survey: Survey, num_pairs: int | None, by_default: int) -> int:
    usable = len(survey.lengths)
    if not usable:
        raise DataError(f"{survey.file} holds no usable pair: {survey.describe()}")
    if num_pairs is None:
        return min(by_default, usable)
    if num_pairs > usable:
        raise DataError(
            f"{num_pairs} pairs asked for, but {survey.file} holds fewer: {survey.describe()}; ask for at most {usable}"
        )
    return num_pairs


def _notes(shape: Shape, left_out: Counter[str], rows_read: int) -> tuple[str, ...]:
    notes = [
        f"column {name!r} was left out, only the text is read ({count} of {rows_read} rows fill it)"
        for name, count in sorted(left_out.items())
    ]
    if shape.name == _PLAIN_TEXT_SHAPE:
        notes.append(_PLAIN_TEXT_NOTE)
    return tuple(notes)


@contextmanager
def _unchanged(path: Path) -> Iterator[str]:
    """Yield the digest of a file, and refuse the work inside if the file has another one afterwards."""
    check_file(path)
    sha256 = _sha256(path)
    yield sha256
    if _sha256(path) != sha256:
        raise DataError(f"preference file {path} changed while it was read: give a file that is complete")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
