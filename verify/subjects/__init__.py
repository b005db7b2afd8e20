"""Adapters: the only modules of the judge that import an implementation."""

from __future__ import annotations


def is_built_in(subject: object) -> bool:
    """Whether a subject, and all that it calls, is this project's own, so that it needs no watching."""
    of_ours = type(subject).__module__.startswith(f"{__name__}.")
    return of_ours and not getattr(subject, "calls_foreign_code", False)
