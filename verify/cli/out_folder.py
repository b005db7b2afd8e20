"""The folder for results that a command line names: made before long work, and not left behind empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

_OPTION = "--out"


def out_folder(arguments: Sequence[str]) -> Path | None:
    """The folder that the last ``--out`` of a command line names, None where there is no such option."""
    named = [following for argument, following in pairwise(arguments) if argument == _OPTION]
    joined = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{_OPTION}=")]
    return Path([*named, *joined][-1]) if named or joined else None


@contextmanager
def no_empty_folder(out: Path | None) -> Iterator[None]:
    """Take a folder back that was made while the context was open, where nothing was put into it.

    Args:
        out: The folder; None for none.
    """
    there = out is None or out.exists()
    try:
        yield
    finally:
        if out is not None and not there:
            with suppress(OSError):  # not empty, or never made
                out.rmdir()
