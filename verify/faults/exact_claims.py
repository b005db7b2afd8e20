"""Which exact checks must catch which faults of the catalogue: what docs/checks.md claims of them, fault by fault.

A check is named where what it claims is what the fault breaks, and where it was seen to catch the fault in float64 and
float32. What it catches beside that (any fault changes log-probs) is shown in the kill matrix, and not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from verify.checks.check import ExactCheckName
from verify.faults.fault import Fault

EXACT_CLAIMS: Mapping[ExactCheckName, tuple[str, ...]] = {
    "branch-isolation": (
        "everything-one-segment", "rejected-continues-chosen", "responses-swapped", "causal-mask-only",
        "causal-for-several-rows", "trees-not-isolated", "branches-not-isolated", "third-tree-sees-second",
        "lengths-times-segment-number", "prompt-sees-responses", "rejected-sees-last-chosen",
        "element-test-lost", "mask-of-first-row", "mask-of-finite-scores", "recurrent-state-leaks",
        "convolution-bleeds", "nan-in-padding-attention", "nan-in-padding-embedding", "neighbour-predicts",
        "first-token-from-other-branch", "predictors-at-padded-offsets", "deep-siblings-not-isolated",
        "deep-neighbour-predicts", "attends-to-root-only", "first-mask-for-all-bins",
    ),
    "group-isolation": (
        "everything-one-segment", "prompt-of-first-group", "causal-mask-only", "trees-not-isolated",
        "third-tree-sees-second", "lengths-times-segment-number", "element-test-lost", "mask-of-finite-scores",
        "recurrent-state-leaks", "convolution-bleeds", "nan-in-padding-attention", "nan-in-padding-embedding",
        "predictors-at-padded-offsets",
    ),
    "causality": (
        "causal-mask-only", "causal-for-several-rows", "trees-not-isolated", "branches-not-isolated",
        "third-tree-sees-second", "lengths-times-segment-number", "sees-the-future", "prompt-sees-responses",
        "rejected-sees-last-chosen", "causal-corner-top-left", "element-test-lost", "mask-of-first-row",
        "mask-of-finite-scores", "deep-siblings-not-isolated", "first-mask-for-all-bins",
    ),
    "reach": (
        "begin-token-before-responses", "everything-one-segment", "rejected-continues-chosen",
        "responses-swapped", "seam-token-differs", "first-prompt-token-lost", "prompt-of-first-group",
        "causal-mask-only", "causal-for-several-rows", "trees-not-isolated", "branches-not-isolated",
        "third-tree-sees-second", "lengths-times-segment-number", "sees-the-future", "prompt-sees-responses",
        "branch-misses-last-prompt-token", "rejected-sees-last-chosen", "prompt-hidden-from-rejected",
        "causal-corner-top-left", "element-test-lost", "mask-of-first-row", "mask-of-finite-scores",
        "recurrent-state-leaks", "convolution-bleeds", "nan-in-padding-attention", "nan-in-padding-embedding",
        "garbage-in-padding-gradient", "prompt-cache-detached", "neighbour-predicts", "predictor-is-the-token",
        "predictor-two-before", "first-token-from-other-branch", "first-token-from-prompt-start",
        "first-token-one-early", "predictors-at-padded-offsets", "prompts-merged-one-token-too-far",
        "responses-merged-one-token-too-far", "attends-to-parent-only", "attends-to-root-only",
        "deep-siblings-not-isolated", "deep-neighbour-predicts", "inner-segments-detached",
        "group-cut-at-the-limit", "padding-attended", "first-mask-for-all-bins",
    ),
    "row-map": (
        "gap-before-rejected", "begin-token-before-responses", "everything-one-segment",
        "rejected-continues-chosen", "responses-swapped", "seam-token-differs", "prompt-cut",
        "first-prompt-token-lost", "prompt-of-first-group", "positions-run-on", "positions-restart-at-branches",
        "positions-stand-still-in-branches", "rejected-positions-one-late", "branch-positions-one-early",
        "positions-after-padded-prompt", "positions-in-bfloat16", "positions-wrap-at-256", "positions-zero",
        "causal-mask-only", "causal-for-several-rows", "trees-not-isolated", "branches-not-isolated",
        "third-tree-sees-second", "lengths-times-segment-number", "sees-the-future", "prompt-sees-responses",
        "token-does-not-see-itself", "branch-misses-last-prompt-token", "branch-misses-first-prompt-token",
        "rejected-sees-last-chosen", "prompt-hidden-from-rejected", "causal-corner-top-left", "sliding-window",
        "window-in-row-slots", "block-missing", "element-test-lost", "mask-of-first-row",
        "mask-of-finite-scores", "neighbour-predicts", "predictor-is-the-token", "predictor-two-before",
        "first-token-from-other-branch", "first-token-from-prompt-start", "first-token-one-early",
        "predictors-at-padded-offsets", "first-token-not-counted", "end-token-not-counted", "prompt-counted",
        "prompt-counted-for-chosen", "last-prompt-token-counted", "boundary-target-counted",
        "end-predicts-the-root", "padding-counted", "ignored-targets-counted", "token-zero-not-counted",
        "cut-at-first-end-token", "indexed-by-predictor", "slice-one-early", "prompts-merged-one-token-too-far",
        "responses-merged-one-token-too-far", "positions-from-parent-alone", "attends-to-parent-only",
        "attends-to-root-only", "deep-siblings-not-isolated", "deep-neighbour-predicts",
        "end-inside-the-tree-not-counted", "masked-tokens-replaced", "positions-restart-at-turns",
        "examples-attend-to-those-before", "target-across-examples", "first-token-of-an-example-targeted",
        "end-of-example-not-counted", "everything-supervised", "user-turns-supervised", "mask-one-late",
        "padding-in-the-loss", "group-cut-at-the-limit", "padding-attended", "first-mask-for-all-bins",
        "results-in-order-of-rows", "prompt-of-one-token-hidden", "labels-cut-at-64",
        "end-of-inner-turns-not-counted", "fourth-span-and-later-dropped", "mask-of-first-holder",
        "labels-kept-by-text",
    ),
    "absolute-positions": (
        "positions-run-on", "positions-restart-at-branches", "positions-stand-still-in-branches",
        "rejected-positions-one-late", "branch-positions-one-early", "positions-after-padded-prompt",
        "positions-zero", "positions-from-parent-alone",
    ),
    "permutation": (
        "positions-run-on", "rejected-positions-one-late", "first-mask-for-all-bins",
        "results-in-order-of-rows",
    ),
    "normalisation": (
        "boundaries-subtracted-twice", "mean-of-means", "sum-over-groups", "groups-weighted-by-tokens",
        "last-group-counted-twice", "masked-group-in-denominator", "example-mean-for-token-mean",
        "token-mean-for-example-mean", "mean-of-row-means", "all-tokens-in-the-denominator", "last-bin-dropped",
        "divided-by-padded-length", "likelihood-by-token", "coefficients-of-the-sequence-before",
    ),
    "own-objective": (
        "first-token-not-counted", "end-token-not-counted", "prompt-counted", "prompt-counted-for-chosen",
        "last-prompt-token-counted", "boundary-target-counted", "end-predicts-the-root", "padding-counted",
        "ignored-targets-counted", "token-zero-not-counted", "cut-at-first-end-token", "mean-instead-of-sum",
        "divided-by-longest", "sum-in-bfloat16", "rejected-cut-to-chosen", "objective-without-reference",
        "divided-by-beta", "beta-missing", "label-smoothing-ignored", "rewards-scaled-twice",
        "logged-rewards-exchanged", "preference-reversed", "pairs-by-stride", "rejected-of-next-group",
        "reference-of-chosen-for-both", "boundaries-subtracted-twice", "mean-of-means", "sum-over-groups",
        "loss-divided-by-ranks", "groups-weighted-by-tokens", "last-group-counted-twice",
        "masked-group-in-denominator", "end-inside-the-tree-not-counted", "first-negative-only", "pairs-zipped",
        "responses-read-in-twos", "margins-averaged-first", "rewards-sorted", "reference-of-next-response",
        "first-positive-for-all", "mean-over-pairs-of-the-batch", "divided-by-most-pairs",
        "target-across-examples", "first-token-of-an-example-targeted", "end-of-example-not-counted",
        "everything-supervised", "user-turns-supervised", "mask-one-late", "padding-in-the-loss",
        "token-mean-for-example-mean", "example-mean-for-token-mean", "mean-of-row-means",
        "all-tokens-in-the-denominator", "last-bin-dropped", "end-of-inner-turns-not-counted",
        "third-positive-and-later-dropped", "fifth-negative-and-later-dropped", "equal-responses-weigh-once",
        "groups-alike-read-by-sides", "groups-of-one-prompt-merged", "fourth-span-and-later-dropped",
        "mask-of-first-holder", "labels-kept-by-text", "equal-examples-counted-once",
        "fifth-loss-and-later-left-out", "scores-summed-for-averaged", "ipo-towards-one-over-beta",
        "ipo-towards-half-of-beta", "divided-by-padded-length", "robust-not-divided", "hinge-without-beta",
        "mpo-over-negatives", "softmax-summed-over-positives", "margin-of-each-pair", "all-pairs-of-the-batch",
        "likelihood-summed", "likelihood-of-rejected-too", "likelihood-by-token", "likelihood-forgotten",
    ),
    "optimizer-steps": (
        "adapters-merged-once", "logits-kept-by-text", "keys-and-values-of-prompts-kept",
        "coefficients-kept-by-text", "gradients-zeroed-by-each-micro-batch",
    ),
    "gradient-checkpointing": (
        "attention-gone-when-layers-run-again",
    ),
    "dropout": (
        "evaluation-mode-left-on", "dropout-of-the-first-slot-in-all",
    ),
    "no-cross-attention": (
        "examples-attend-to-those-before", "recurrent-state-over-examples", "convolution-over-examples",
    ),
    "no-boundary-target": (
        "target-across-examples", "first-token-of-an-example-targeted", "end-of-example-not-counted",
    ),
    "no-padding-in-loss": (
        "padding-in-the-loss",
    ),
    "positions-as-unpacked": (
        "positions-run-on-over-examples", "positions-restart-at-turns",
    ),
    "same-number-of-targets": (
        "all-tokens-in-the-denominator", "user-turns-supervised", "mask-one-late", "shared-token-gradient-once",
        "target-across-examples", "first-token-of-an-example-targeted", "end-of-example-not-counted",
        "everything-supervised", "padding-in-the-loss",
    ),
}  # fmt: skip


def with_exact_claims(fault: Fault) -> Fault:
    """The fault, with the exact checks that must catch it.

    Args:
        fault: A fault of the catalogue; what it names itself stays.
    """
    claimed = [check for check, names in EXACT_CLAIMS.items() if fault.name in names and check not in fault.must_kill]
    return replace(fault, must_kill=(*fault.must_kill, *claimed))
