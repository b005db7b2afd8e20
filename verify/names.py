"""Names that users' own code brings with it, and that reports tell things apart by."""

from __future__ import annotations

_LONGEST_NAME = 100


def unfit_name(name: str) -> str:
    """What is wrong with a name that must stand in one line of a report, and what would be right.

    Args:
        name: A name that is not empty.

    Returns:
        The message, itself printable and short; "" where nothing is wrong.
    """
    if name.isprintable() and len(name) <= _LONGEST_NAME and name == name.strip():
        return ""
    quoted = ascii(name)
    quoted = quoted if len(quoted) <= 2 * _LONGEST_NAME else f"{quoted[: 2 * _LONGEST_NAME]}…"
    return (
        f"the name {quoted}: give at most {_LONGEST_NAME} printable characters in one line, without spaces around them"
    )
