"""The version of this program, for records: apart, since reading it loads nothing else."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version(name: str) -> str:
    """Version of a package; "not installed" where there is none, as of a source tree that is run where it lies."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def tool_version() -> str:
    """Version of this program."""
    return installed_version("packparity")
