"""The names that options take, apart from what they stand for: torch's import is not waited for to say one is wrong.

Tests hold each list to the table it copies.
"""

from __future__ import annotations

BACKEND_NAMES = ("dense-eager", "dense-sdpa", "flex", "split")
VARIATION_NAMES = ("eager", "padded-right", "padded-left", "junk-in-front", "repeat")
HF_POSITION_IDS_NAMES = (
    "hf-position-ids",
    "hf-position-ids/eager",
    "hf-position-ids/sdpa",
    "hf-position-ids/default-cache",
    "hf-position-ids/ones-mask",
    "hf-position-ids/ones-mask/default-cache",
    "hf-position-ids/several-rows",
    "hf-position-ids/several-rows/default-cache",
    "hf-position-ids/several-rows/padding-mask",
)
BUILT_IN_SUBJECT_NAMES = (
    *BACKEND_NAMES,
    "dense-sdpa/repeat-prompt-token",
    "split/repeat-prompt-token",
    "dense-sdpa/row-per-group",
    "split/row-per-group",
    "dense-sdpa/bins",
    "split/bins",
    "dense-sdpa/prefix-tree",
    "flex/prefix-tree",
    "split/prefix-tree",
    "dense-sdpa/block-diagonal",
    "flex/block-diagonal",
    "split/block-diagonal",
    "dense-sdpa/block-diagonal/bins",
    "dense-sdpa/two-pass",
    "split/two-pass",
    *HF_POSITION_IDS_NAMES,
    *(f"pairwise-{variation}" for variation in VARIATION_NAMES),
)
