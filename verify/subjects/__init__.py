"""Adapters: the only modules of the judge that import an implementation."""

from __future__ import annotations


def is_built_in(subject: object) -> bool:
    """Whether a subject is this project's own, so that it needs no watching."""
    return type(subject).__module__.startswith(f"{__name__}.")
