"""Reproduction folders on disk: written aside and renamed as a whole; those of an earlier run are removed first."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from verify.shrink.reproduction import REPRODUCTION_FILE

REPRODUCTIONS = "reproduction"
"""Folder for reproductions within the folder of a run's results."""


class FolderError(ValueError):
    """A reproduction cannot be put where it belongs."""


def discard_reproductions(out_dir: Path) -> None:
    """Remove the reproductions of an earlier run, and what an interrupted one left; anything else stays.

    Args:
        out_dir: Folder of a run's results.

    Raises:
        FolderError: A file is in the way, or a reproduction cannot be removed.
    """
    folder = out_dir / REPRODUCTIONS
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FolderError(f"{folder} is a file: a folder is needed there; remove it, or name another --out")
    try:
        for path in sorted(folder.iterdir()):
            partial = path.name.startswith(".") and path.name.endswith(".partial")
            if path.is_dir() and not path.is_symlink() and (partial or (path / REPRODUCTION_FILE).is_file()):
                shutil.rmtree(path)
        if not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise FolderError(f"cannot remove reproductions of an earlier run in {folder}: {error.strerror}") from error


def write_folder(files: Mapping[str, bytes], out_dir: Path, name: str) -> Path:
    """Write a reproduction.

    Args:
        files: Name to content; a ``.sh`` becomes executable.
        out_dir: Folder of a run's results.
        name: Name of the new folder; a number is added if there is one of that name.

    Returns:
        Path of the new folder, relative to ``out_dir``.

    Raises:
        OSError: It cannot be written; nothing is left then.
    """
    parent = out_dir / REPRODUCTIONS
    parent.mkdir(parents=True, exist_ok=True)
    aside = parent / f".{name}.{secrets.token_hex(4)}.partial"
    try:
        aside.mkdir()
        for file, content in files.items():
            (aside / file).write_bytes(content)
            if file.endswith(".sh"):
                (aside / file).chmod(0o755)
        number, target = 1, parent / name
        while target.exists():
            number += 1
            target = parent / f"{name}-{number}"
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if not any(parent.iterdir()):
            parent.rmdir()
    return target.relative_to(out_dir)
