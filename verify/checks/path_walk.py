"""A walk of every completion's path through packed rows, written from the definition alone.

Shape letters: B rows, T slots of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.checks.packed_rows import PackedRows
from verify.groups import PreferenceGroup, TokenIds
from verify.places import completion_name


@dataclass(frozen=True, slots=True)
class Deviation:
    """Something about the rows that is not what the definition says.

    Args:
        words: What and where.
        count: How many values differ.
    """

    words: str
    count: int


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk of all paths.

    Args:
        num_compared: Tokens, positions, mask cells and predictors that were looked at.
        deviations: What is wrong.
    """

    num_compared: int
    deviations: tuple[Deviation, ...]


@dataclass(frozen=True, slots=True)
class _Completion:
    number: int
    name: str
    prompt_ids: TokenIds
    ids: TokenIds
    supervised: tuple[int, ...]


def walk_paths(rows: PackedRows, groups: Sequence[PreferenceGroup]) -> Walk:
    """Hold rows against the definition, one completion after the other.

    The path of a completion is what its last supervised token attends to. Of a prompt ``a b`` with the responses ``c``
    and ``d e``: the last token of the second, ``e``, must attend to exactly four slots, which hold ``a b d e`` and
    stand at positions 0, 1, 2, 3; the n-th of them attends to the first n; ``d`` is predicted from ``b`` and ``e`` from
    ``d``. Where paths share a slot, each of them is held against it.

    Args:
        rows: The rows; ``attended`` is bool [B, T, T].
        groups: The groups that they were made from.

    Returns:
        What was looked at and what deviates.
    """
    compared, deviations = 0, []
    for completion in _completions(groups):
        of_completion = rows.supervised[rows.supervised[:, 0] == completion.number]
        num_expected = len(completion.supervised)
        compared += num_expected
        if len(of_completion) != num_expected:
            words = f"{completion.name}: {len(of_completion)} tokens enter its sum; it has {num_expected}"
            deviations.append(Deviation(words, abs(len(of_completion) - num_expected)))
        if not len(of_completion):
            continue
        row, slot = (int(value) for value in of_completion[:num_expected][-1, 1:3])
        path = _path(rows.attended[row], slot)
        for count, deviation in _on_path(rows, row, path, completion, of_completion[:num_expected]):
            compared += count
            deviations += [deviation] if deviation.count else []
    return Walk(compared, tuple(deviations))


def walk_positions(rows: PackedRows, groups: Sequence[PreferenceGroup]) -> Walk:
    """Hold the positions alone against the definition: 0, 1, 2, ... over the slots of every path.

    Args:
        rows: The rows; ``attended`` is bool [B, T, T].
        groups: The groups that they were made from.

    Returns:
        What was looked at and what deviates; a completion without a token in the rows has no path.
    """
    compared, deviations = 0, []
    for completion in _completions(groups):
        of_completion = rows.supervised[rows.supervised[:, 0] == completion.number]
        for row, slot in of_completion[len(completion.supervised) - 1 : len(completion.supervised), 1:3].tolist():
            path = _path(rows.attended[row], slot)
            count, deviation = _positions(rows.position_ids[row, path], completion.name)
            compared += count
            deviations += [deviation] if deviation.count else []
    return Walk(compared, tuple(deviations))


def _completions(groups: Sequence[PreferenceGroup]) -> Iterator[_Completion]:
    number = 0
    for g, group in enumerate(groups):
        for k, ids in enumerate(group.completions):
            name = f"group {g}, {completion_name(k, len(group.positives))}"
            supervised = group.supervised[k]
            yield _Completion(number, name, group.prompt_ids, ids[: supervised[-1] + 1], supervised)
            number += 1


def _path(attended: Tensor, slot: int) -> Tensor:
    """The slots that a slot attends to, in the order of how many each of them attends to."""
    seen = attended[slot].nonzero().reshape(-1)
    return seen[attended[seen].sum(-1).argsort(stable=True)]


def _on_path(
    rows: PackedRows, row: int, path: Tensor, completion: _Completion, supervised: Tensor
) -> Iterator[tuple[int, Deviation]]:
    """How many values were looked at, and what is wrong with them: nothing, where the count of a deviation is 0."""
    expected_ids = torch.tensor([*completion.prompt_ids, *completion.ids])
    if len(path) != len(expected_ids):
        words = f"{completion.name}: its last token attends to {len(path)} slots; its path has {len(expected_ids)}"
        yield len(expected_ids), Deviation(words, abs(len(path) - len(expected_ids)))
        return
    yield _token_ids(rows.input_ids[row, path], expected_ids, completion.name)
    yield _positions(rows.position_ids[row, path], completion.name)
    yield _cells(rows.attended[row, path], path, f"{completion.name}, row {row}")
    places = torch.tensor(completion.supervised) + len(completion.prompt_ids)
    yield _predictors(supervised, row, path, places, completion.name)


def _token_ids(actual: Tensor, expected: Tensor, name: str) -> tuple[int, Deviation]:
    wrong = _indices(actual != expected)
    at = wrong[0] if wrong else 0
    return len(actual), Deviation(f"{name}: token {at} of its path is id {actual[at]}, not {expected[at]}", len(wrong))


def _positions(actual: Tensor, name: str) -> tuple[int, Deviation]:
    exact = actual.double()  # in the dtype of positions that are rounded, what they should be would be rounded too
    wrong = _indices(exact != torch.arange(len(actual)))
    at = wrong[0] if wrong else 0
    return len(actual), Deviation(f"{name}: token {at} of its path is at position {actual[at]:g}", len(wrong))


def _cells(attended: Tensor, path: Tensor, name: str) -> tuple[int, Deviation]:
    expected = torch.zeros_like(attended)
    expected[:, path] = torch.ones(len(path), len(path), dtype=torch.bool).tril()
    wrong = (attended != expected).nonzero().tolist()
    at, key = wrong[0] if wrong else (0, 0)
    does = "does not attend" if expected[at, key] else "attends"
    return expected.numel(), Deviation(f"{name}: token {at} of its path {does} to slot {key}", len(wrong))


def _predictors(supervised: Tensor, row: int, path: Tensor, places: Tensor, name: str) -> tuple[int, Deviation]:
    """``places`` says where on the path the supervised tokens are: each is predicted by the slot before its own."""
    of_row = torch.full((len(places),), row)
    expected = torch.stack((of_row, path[places], path[places - 1]), dim=1)[: len(supervised)]
    wrong = _indices((supervised[:, 1:] != expected).any(1))
    at = wrong[0] if wrong else 0
    words = (
        f"{name}: token {at} is taken from slot {supervised[at, 2]} and predicted from slot {supervised[at, 3]}; "
        f"on its path these are {expected[at, 1]} and {expected[at, 2]}"
    )
    return 2 * len(supervised), Deviation(words, len(wrong))


def _indices(wrong: Tensor) -> list[int]:
    return [int(index) for index in wrong.nonzero().reshape(-1)]
