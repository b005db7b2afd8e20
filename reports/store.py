"""Records on disk: strict reading, and writing that never leaves half a result behind.

A folder of results is whole exactly if it holds ``record.json``: older results are removed with the record first,
and the new record is put in place last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from reports.record import READABLE_VERSIONS, Record

RECORD_FILE = "record.json"
MARKDOWN_FILE = "report.md"
HTML_FILE = "report.html"
JUNIT_FILE = "junit.xml"
REPORT_FILES = (MARKDOWN_FILE, HTML_FILE, JUNIT_FILE, RECORD_FILE)
"""In the order in which they are put in place."""

_MAX_PROBLEMS_NAMED = 5
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


R = TypeVar("R", bound=BaseModel)


class RecordError(ValueError):
    """A file that should hold a record does not."""


class OutputError(ValueError):
    """A folder cannot take results."""


def check_writable(out_dir: Path, names: Sequence[str] = REPORT_FILES) -> None:
    """Create the folder for results and try to write into it; call it before long work starts.

    Args:
        out_dir: The folder; parents are created too.
        names: The files that will be written there.

    Raises:
        OutputError: A file is in the way, or nothing can be created there.
    """
    probe = _aside(out_dir / "probe")
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise OutputError(f"cannot write results to {out_dir}: {reason}; name a folder that can be written") from error
    for name in names:
        if (out_dir / name).is_dir():
            raise OutputError(f"cannot write results to {out_dir}: {name} is a folder there; name another folder")


def write_record(record: Record, out_dir: Path) -> Path:
    """Write ``record.json``.

    Args:
        record: What to write.
        out_dir: Folder, created if it is missing.

    Returns:
        The path of the file.

    Raises:
        OutputError: The folder cannot be written.
    """
    (path,) = write_together({RECORD_FILE: record_json(record)}, out_dir)
    return path


def write_reports(record: Record, out_dir: Path) -> tuple[Path, ...]:
    """Write the record and its renderings for people (Markdown, HTML) and for CI (JUnit XML).

    Everything is rendered before anything is written. If this is interrupted, no ``record.json`` is left.

    Args:
        record: What to write.
        out_dir: Folder, created if it is missing.

    Returns:
        The paths of the files; ``record.json`` is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    # Here and not above: drawing takes a second to import, and whoever only reads a record should not wait for it.
    from reports import html, junit, markdown

    texts = {
        MARKDOWN_FILE: markdown.render(record),
        HTML_FILE: html.render(record),
        JUNIT_FILE: junit.render(record),
        RECORD_FILE: record_json(record),
    }
    return write_together(texts, out_dir)


def discard_results(out_dir: Path, names: Sequence[str] = REPORT_FILES) -> None:
    """Remove the results of an earlier run, the record first, so that they cannot be taken for those of this one.

    Args:
        out_dir: The folder; other files in it stay.
        names: The files that make up a result, the record last.

    Raises:
        OutputError: A file cannot be removed.
    """
    for name in reversed(names):
        try:
            (out_dir / name).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot remove {out_dir / name} of an earlier run: {error.strerror}") from error


def record_json(record: Record) -> str:
    """The record as JSON text; NaN and infinities as the strings "NaN", "Infinity", "-Infinity".

    Args:
        record: What to write.

    Returns:
        JSON, indented by two spaces, ending in a newline. Equal records give equal text.
    """
    return record.model_dump_json(indent=2) + "\n"


def read_record(path: Path) -> Record:
    """Read a record, strictly.

    Args:
        path: A ``record.json``, or a folder that holds one.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, cut off, another schema version, an unknown or missing field, a value of
            the wrong type, or contents that contradict themselves. The message names the file and what would be right.
    """
    if path.is_dir():
        path = path / RECORD_FILE
        if not path.exists():
            raise RecordError(f"{path.parent} holds no {RECORD_FILE}: no run was finished there; name another folder")
    content = parse_json(path)
    version = content.get("schema_version")
    if version not in READABLE_VERSIONS or not isinstance(version, int) or isinstance(version, bool):
        shown = "no schema_version" if version is None else f"schema_version {version!r}"
        raise RecordError(
            f"{path}: {shown}, but this program reads versions "
            f"{', '.join(map(str, READABLE_VERSIONS))}; use the release that wrote the file"
        )
    try:
        return Record.model_validate(content, strict=True)
    except ValidationError as error:
        raise RecordError(f"{path}: not a valid record: {problems_of(error)}") from error


def read_of_kind(path: Path, file: str, record: type[R], *, kind: str, version: int, what: str) -> R:
    """Read a record of one kind and version, strictly.

    Args:
        path: The file, or a folder that holds it.
        file: Its name in a folder.
        record: Its class.
        kind: What its field ``kind`` must say.
        version: What its field ``schema_version`` must say.
        what: What it is a record of, for messages.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, another kind or version, an unknown or missing field, or contents that
            contradict themselves. The message names the file.
    """
    if path.is_dir():
        path = path / file
        if not path.exists():
            raise RecordError(f"{path.parent} holds no {file}: no run was finished there; name another folder")
    content = parse_json(path)
    found = content.get("schema_version")
    if content.get("kind") != kind or found != version or isinstance(found, bool):
        raise RecordError(
            f"{path}: kind {content.get('kind')!r} of schema_version {found!r}; "
            f"this program reads records of {what} of version {version} here"
        )
    try:
        return record.model_validate(content, strict=True)
    except ValidationError as error:
        raise RecordError(f"{path}: not a valid record of {what}: {problems_of(error)}") from error


def parse_json(path: Path) -> dict[str, object]:
    """Read a JSON object, strictly: no field twice, no bare NaN.

    Args:
        path: The file.

    Returns:
        The object.

    Raises:
        RecordError: Unreadable, not JSON, cut off, or not an object; the message names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(
            f"cannot read {path}: {error.strerror}; name a result, or the folder that holds one"
        ) from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8 text (byte {error.start}); a {RECORD_FILE} is needed") from error
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        cut_off = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        what = "the JSON ends before it is complete (a cut-off copy?)" if cut_off else f"not JSON: {error.msg}"
        raise RecordError(f"{path}, line {error.lineno}: {what}; a whole {RECORD_FILE} is needed") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not the JSON of a record: {error}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path}: holds a JSON {type(content).__name__}; a record is an object")
    if _SURROGATE.search(text) and (place := _half_a_character(content)) is not None:
        raise RecordError(f"{path}: {place} holds half a surrogate pair, which is no text; a record has none")
    return content


def _half_a_character(value: object, place: str = "") -> str | None:
    r"""Where a text stands that cannot be written as UTF-8, though JSON can spell it: "\ud800"."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return place
        return None
    parts: list[tuple[object, str]] = []
    if isinstance(value, dict):
        for name, part in value.items():
            where = f"{place}.{ascii(name)[1:-1]}".removeprefix(".")
            parts += [(name, where), (part, where)]
    elif isinstance(value, list):
        parts = [(part, f"{place}.{index}") for index, part in enumerate(value)]
    return next((found for part, where in parts if (found := _half_a_character(part, where)) is not None), None)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} occurs twice in one object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"a bare {name}; a record writes it as a string")


def problems_of(error: ValidationError) -> str:
    """The first problems of a file's content, with their places, in one line."""
    problems = []
    for item in error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS_NAMED]:
        place = ".".join(str(part) for part in item["loc"]) or "record"
        known = {"extra_forbidden": "unknown field", "missing": "field is missing"}
        problems.append(f"{place}: {known.get(item['type'], item['msg'])}")
    if (more := error.error_count() - len(problems)) > 0:
        problems.append(f"and {more} more")
    return "; ".join(problems)


def _aside(path: Path) -> Path:
    """A name in the same folder, so that the rename is atomic, which no reader takes for a result."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def write_together(texts: Mapping[str, str], out_dir: Path, names: Sequence[str] = REPORT_FILES) -> tuple[Path, ...]:
    """Write every text aside, then put all of them in place, in the given order.

    Args:
        texts: Name of a file to its text; the record last.
        out_dir: Folder, created if it is missing.
        names: The files that make up a result; older ones are removed, the record first.

    Returns:
        The paths of the files, in the given order.

    Raises:
        OutputError: The folder cannot be written.
    """
    check_writable(out_dir, names)
    paths = {out_dir / name: text for name, text in texts.items()}
    partials = {path: _aside(path) for path in paths}
    try:
        for path, text in paths.items():
            _write_through(partials[path], text)
        discard_results(out_dir, names)
        for path, partial in partials.items():
            partial.replace(path)
        _sync_folder(out_dir)
    except OSError as error:
        raise OutputError(f"cannot write results to {out_dir}: {error.strerror}") from error
    finally:
        for partial in partials.values():
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return tuple(paths)


def _write_through(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the renames themselves durable, where a folder can be opened (not on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
