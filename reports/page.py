"""How every HTML page is made: from a template of this package, with all text escaped and control characters shown."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports import words


def page_environment() -> Environment:
    """The environment of the templates; a page may add filters of its own.

    Returns:
        Escapes what is inserted, except for markup that this package has drawn itself; an undefined name is an error.
    """
    return Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )


def _visible(value: object) -> object:
    return words.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
