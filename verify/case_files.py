"""Cases from a file and to a file, so that a case can be run again, passed on, or written by hand.

[
  {
    "name": "mine",
    "why": "what it can show",
    "groups": [{"prompt_ids": [5, 9], "positives": [[4, 2]], "negatives": [[7]]}]
  }
]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.strict_json import JsonFileError, json_text, read_json

T = TypeVar("T")


def _not_empty(parts: tuple[T, ...]) -> tuple[T, ...]:
    """Unlike ``min_length``, which also counts parts that are wrong as absent, this is asked of sound parts only."""
    if not parts:
        raise ValueError("empty; at least one is needed")
    return parts


_NotEmpty = AfterValidator(_not_empty)
_Ids = Annotated[tuple[Annotated[int, Field(ge=0)], ...], _NotEmpty]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Group(_Part):
    prompt_ids: _Ids
    positives: Annotated[tuple[_Ids, ...], _NotEmpty]
    negatives: tuple[_Ids, ...] = ()
    source: str = ""


class _Case(_Part):
    name: Annotated[str, Field(min_length=1)]
    why: str = ""
    groups: Annotated[tuple[_Group, ...], _NotEmpty]


_CASES: TypeAdapter[tuple[_Case, ...]] = TypeAdapter(Annotated[tuple[_Case, ...], _NotEmpty])


def read_cases(path: Path) -> tuple[Case, ...]:
    """Read cases from a JSON file.

    Args:
        path: A JSON list of cases: ``name``, ``why`` (optional), and ``groups`` of ``prompt_ids``, ``positives`` and
            ``negatives``.

    Returns:
        The cases, in the order of the file.

    Raises:
        JsonFileError: The file cannot be read, is not such a list, or names a case twice.
    """
    cases = read_json(path, _CASES, what="cases")
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise JsonFileError(f"cases file {path}: two cases are named {twice[0]!r}; give each a name of its own")
    return tuple(Case(name=case.name, why=case.why or f"a case of {path.name}", groups=_groups(case)) for case in cases)


def check_pairs(cases: Sequence[Case], path: Path) -> None:
    """Refuse groups that are not one preferred and one rejected response: the DPO objective compares one of each.

    Raises:
        JsonFileError: Naming the case and the group.
    """
    for case in cases:
        for index, group in enumerate(case.groups):
            if len(group.completions) != 2 or len(group.negatives) != 1:
                raise JsonFileError(
                    f"cases file {path}: case {case.name!r}, group {index} has {len(group.positives)} positives and "
                    f"{len(group.negatives)} negatives; DPO compares one of each"
                )


def cases_text(cases: Sequence[Case]) -> str:
    """Cases as the text of a file that :func:`read_cases` reads."""
    parts = [
        _Case(
            name=case.name,
            why=case.why,
            groups=tuple(
                _Group(
                    prompt_ids=group.prompt_ids,
                    positives=group.positives,
                    negatives=group.negatives,
                    source=group.source,
                )
                for group in case.groups
            ),
        )
        for case in cases
    ]
    return json_text([part.model_dump(mode="json") for part in parts])


def file_sha256(path: Path) -> str:
    """SHA-256 of a small file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _groups(case: _Case) -> tuple[PreferenceGroup, ...]:
    return tuple(
        PreferenceGroup(group.prompt_ids, group.positives, group.negatives, source=group.source)
        for group in case.groups
    )
