"""The names that options take, apart from what they stand for: torch's import is not waited for to say one is wrong.

Tests hold each list to the table it copies.
"""

from __future__ import annotations

DTYPE_NAMES = ("float64", "float32", "bfloat16")
BACKEND_NAMES = ("dense-eager", "dense-sdpa", "flex", "split")
VARIATION_NAMES = ("eager", "padded-right", "padded-left", "junk-in-front", "repeat")
BUILT_IN_SUBJECT_NAMES = (
    *BACKEND_NAMES,
    "dense-sdpa/repeat-prompt-token",
    "split/repeat-prompt-token",
    "dense-sdpa/row-per-group",
    "split/row-per-group",
    *(f"pairwise-{variation}" for variation in VARIATION_NAMES),
)
