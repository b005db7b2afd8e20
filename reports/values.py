"""Types of the values in a record: what JSON gives back unchanged, and the numbers that it cannot hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How a record writes the numbers that JSON has no notation for."""

TEXT_LIMIT = 2000
"""Characters that a text of a record may have; an exception may carry megabytes."""


def _number_from_text(value: object) -> object:
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


def _plain(value: object, where: str = "value") -> object:
    """Only what JSON gives back unchanged; a tuple becomes a list."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where} is {value!r}, which is not valid Unicode: {error.reason}") from error
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}: a setting must be finite")
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_plain_key(key, where): _plain(item, f"{where}.{key}") for key, item in value.items()}
    raise ValueError(f"{where} is of type {type(value).__name__}: a setting must be plain JSON")


def _plain_key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{where} has the key {key!r}: keys must be strings")
    return str(_plain(key, where))


def _readable(value: object) -> object:
    """Any string as one that can be written as UTF-8 and read by a person; everything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= TEXT_LIMIT:
        return text
    kept = TEXT_LIMIT - 60  # leaves room for the note, so that a text that was cut is not cut again
    left, right = text[: kept // 2], text[len(text) - (kept - kept // 2) :]
    return f"{left} [... {len(text) - kept:,} characters left out ...] {right}"


def _by_name(packages: dict[str, str]) -> dict[str, str]:
    return dict(sorted(packages.items()))


Text = Annotated[str, BeforeValidator(_readable)]
"""Text that comes from outside, such as names and messages of subjects: code points that are no characters are written
out, and what is longer than ``TEXT_LIMIT`` loses its middle."""
Count = Annotated[int, Field(ge=0, le=10**30)]
"""No more than a float can stand for, which it is divided and shown as."""
Measured = Annotated[float, BeforeValidator(_number_from_text)]
"""A measurement: NaN and infinities are kept, and written as strings."""
Settings = Annotated[dict[str, object], AfterValidator(_plain)]
"""Free-form settings: finite numbers, strings, booleans, null, lists, and dicts of these."""
Versions = Annotated[dict[str, str], AfterValidator(_by_name)]
"""Version by package, in the order of the names."""


class RecordPart(BaseModel):
    """A part of a record: it cannot be changed, has no fields but those named, and writes NaN and infinities out."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
