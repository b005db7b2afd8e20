"""What can be said about options of ``packparity preflight`` without torch, and the arguments of its local ranks."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from verify.cli import option_checks
from verify.preflight.options import looks_like_a_path
from verify.sharded.scenarios import check_precisions

_BACKENDS = ("dense-sdpa", "flex", "split")
_PROFILES = ("none", "gb10")


def check_preflight_options(
    *,
    model: str,
    layers: int | None,
    dtype: str,
    backends: Sequence[str],
    profile: str,
    device: str | None,
) -> None:
    """Refuse names that nothing bears. Files are looked at by every rank, so that one that lacks them is named."""
    if not looks_like_a_path(model):
        option_checks.check_model(model, layers)
    check_precisions((dtype,))
    for what, names, known in (("backend", backends, _BACKENDS), ("profile", (profile,), _PROFILES)):
        for name in names:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ValueError(f"unknown {what} {name!r}{hint}: give one of {', '.join(known)}")
    if len(set(backends)) != len(backends):
        raise ValueError(f"a backend is named twice among {', '.join(backends)}")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"--device {device}: give cpu or cuda; each rank takes the device of its local rank")


def rank_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a rank: those of this process without ``--ranks``."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--ranks":
            skip = True
        elif not argument.startswith("--ranks="):
            kept.append(argument)
    return kept
