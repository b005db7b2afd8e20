"""The model types for which the installed transformers offers a causal LM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def causal_lm_classes() -> Mapping[str, str]:
    """Model type to the name of its class, in alphabetical order of the types."""
    return dict(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()))


def select_families(names: Sequence[str]) -> tuple[str, ...]:
    """The families named, or all.

    Raises:
        ValueError: An unknown family, with the nearest names; or one named twice.
    """
    known = causal_lm_classes()
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=3)
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(
                f"unknown model family {name!r}{hint or ','} {len(known)} model types have a causal LM here"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"a family is named twice among {', '.join(names)}")
    return tuple(names) or tuple(known)
