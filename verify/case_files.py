"""Cases from a file and to a file, so that a case can be run again, passed on, or written by hand.

[
  {
    "name": "mine",
    "why": "what it can show",
    "groups": [{"prompt_ids": [5, 9], "positives": [[4, 2]], "negatives": [[7]]}]
  }
]

A case of supervised fine-tuning has ``"objective": "sft-token-mean"`` (or ``"sft-example-mean"``), groups without
negatives, and where some tokens of a response are not supervised ``completion_masks``, one list for each response.
A preference may name its frozen policy, ``"reference": "cached"``; else it has that of the run.
Images of a prompt are ``"images": [{"shape": [3, 384, 384], "pixels": "...", "token_id": 151646}]``: the float32 pixel
values of ``shape`` in base64, and the token that stands in the prompt for each of their features.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter

from verify.cases import Case
from verify.frozen_policy import ReferenceName
from verify.groups import PreferenceGroup
from verify.images import Image
from verify.objective import ObjectiveName
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


class _Image(_Part):
    shape: tuple[int, int, int]
    pixels: Base64Bytes
    token_id: int


class _Group(_Part):
    prompt_ids: _Ids
    positives: Annotated[tuple[_Ids, ...], _NotEmpty]
    negatives: tuple[_Ids, ...] = ()
    completion_masks: tuple[tuple[bool, ...], ...] = ()
    images: tuple[_Image, ...] = ()
    source: str = ""


class _Case(_Part):
    name: Annotated[str, Field(min_length=1)]
    why: str = ""
    objective: ObjectiveName = "sigmoid"
    reference: ReferenceName | None = None
    groups: Annotated[tuple[_Group, ...], _NotEmpty]


_CASES: TypeAdapter[tuple[_Case, ...]] = TypeAdapter(Annotated[tuple[_Case, ...], _NotEmpty])


def read_cases(path: Path) -> tuple[Case, ...]:
    """Read cases from a JSON file.

    Args:
        path: A JSON list of cases: ``name``, ``why``, ``objective`` and ``reference`` (optional), and ``groups`` of
            ``prompt_ids``, ``positives``, ``negatives``, ``completion_masks`` and ``images`` (optional).

    Returns:
        The cases, in the order of the file.

    Raises:
        JsonFileError: The file cannot be read, is not such a list, names a case twice, or holds a case that is none:
            a mask that does not fit its response, a group that the objective has no meaning for.
    """
    cases = read_json(path, _CASES, what="cases")
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise JsonFileError(f"cases file {path}: two cases are named {twice[0]!r}; give each a name of its own")
    return tuple(_case(case, path) for case in cases)


def _case(case: _Case, path: Path) -> Case:
    try:
        return Case(
            name=case.name,
            why=case.why or f"a case of {path.name}",
            groups=_groups(case),
            objective_name=case.objective,
            reference=case.reference,
        )
    except ValueError as error:
        problem = str(error).removeprefix(f"case {case.name}").lstrip(":, ")  # a case names itself, a group does not
        raise JsonFileError(f"cases file {path}: case {case.name!r}, {problem}") from error


def cases_text(cases: Sequence[Case]) -> str:
    """Cases as the text of a file that :func:`read_cases` reads."""
    parts = [
        _Case(
            name=case.name,
            why=case.why,
            objective=case.objective_name,
            reference=case.reference,
            groups=tuple(
                _Group(
                    prompt_ids=group.prompt_ids,
                    positives=group.positives,
                    negatives=group.negatives,
                    completion_masks=group.completion_masks,
                    images=tuple(
                        _Image(shape=each.shape, pixels=b64encode(each.pixels), token_id=each.token_id)
                        for each in group.images
                    ),
                    source=group.source,
                )
                for group in case.groups
            ),
        )
        for case in cases
    ]
    return json_text([part.model_dump(mode="json", exclude_defaults=True) for part in parts])


def file_sha256(path: Path) -> str:
    """SHA-256 of a small file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _groups(case: _Case) -> tuple[PreferenceGroup, ...]:
    groups = []
    for index, group in enumerate(case.groups):
        try:
            groups.append(
                PreferenceGroup(
                    group.prompt_ids,
                    group.positives,
                    group.negatives,
                    source=group.source,
                    completion_masks=group.completion_masks,
                    images=tuple(Image(each.shape, each.pixels, each.token_id) for each in group.images),
                )
            )
        except ValueError as error:
            raise ValueError(f"group {index}: {error}") from error
    return tuple(groups)
