"""Kill matrices on disk: strict reading, and writing that never leaves half a result behind."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from reports.kill_matrix import KILL_MATRIX_VERSION, KillMatrix
from reports.store import RecordError, parse_json, problems_of, write_together

KILL_MATRIX_FILE = "kill-matrix.json"
KILL_MATRIX_FILES = ("kill-matrix.md", "kill-matrix.html", "kill-matrix.xml", KILL_MATRIX_FILE)
"""In the order in which they are put in place."""


def write_kill_matrix(matrix: KillMatrix, out_dir: Path) -> tuple[Path, ...]:
    """Write the kill matrix as Markdown, HTML, JUnit XML and JSON.

    Args:
        matrix: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    # Whoever only reads should not wait for templates.
    from reports import kill_matrix_html, kill_matrix_junit, kill_matrix_markdown

    texts = (
        kill_matrix_markdown.render(matrix),
        kill_matrix_html.render(matrix),
        kill_matrix_junit.render(matrix),
        kill_matrix_json(matrix),
    )
    return write_together(dict(zip(KILL_MATRIX_FILES, texts, strict=True)), out_dir, KILL_MATRIX_FILES)


def kill_matrix_json(matrix: KillMatrix) -> str:
    """The kill matrix as JSON text; NaN and infinities as strings."""
    plain = json.loads(matrix.model_dump_json())
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_kill_matrix(path: Path) -> KillMatrix:
    """Read a kill matrix, strictly.

    Args:
        path: A ``kill-matrix.json``, or a folder that holds one.

    Returns:
        The kill matrix.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    if path.is_dir():
        path = path / KILL_MATRIX_FILE
    content = parse_json(path)
    version = content.get("schema_version")
    if content.get("kind") != "kill-matrix" or version != KILL_MATRIX_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{path}: kind {content.get('kind')!r} of schema_version {version!r}; "
            f"this program reads a kill-matrix of version {KILL_MATRIX_VERSION} here"
        )
    try:
        return KillMatrix.model_validate(content, strict=True)
    except ValidationError as error:
        raise RecordError(f"{path}: not a valid kill matrix: {problems_of(error)}") from error
