"""A fault is planted where it can show; where it cannot, the reason is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from verify.sharded.faults import FAULTS
from verify.sharded.planting import Ground, NotPlanted, notes_on_not_planted, why_not_planted

GROUND = Ground(
    objective="sigmoid", reference="adapters-off", train="lora", micro_size=2, is_repeatable=True, dummy_learns=True,
    has_cached=True,
)  # fmt: skip
OF_FROZEN = {"cached-reference-by-local-index", "frozen-policy-is-trained", "frozen-policy-without-adapters"}
OF_HEADS = {"reward-one-slot-early-on-last-rank"}


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({}, {"frozen-policy-is-trained", "frozen-policy-without-adapters", *OF_HEADS}),
        ({"reference": "frozen-adapter", "objective": "ipo"}, OF_HEADS),
        ({"reference": "separate-model"}, {"frozen-policy-is-trained", *OF_HEADS}),
        ({"reference": "separate-model", "train": "all"}, {"frozen-policy-without-adapters", *OF_HEADS}),
        ({"reference": "cached"}, {"frozen-policy-without-adapters", *OF_HEADS}),
        ({"objective": "reward-model"}, OF_FROZEN),
        ({"objective": "reward-model", "micro_size": 1}, {*OF_FROZEN, "mean-of-micro-batches", "dropped-last-batch"}),
        ({"reference": "frozen-adapter", "has_cached": False}, {"cached-reference-by-local-index", *OF_HEADS}),
        ({"reference": "frozen-adapter", "dummy_learns": False}, {"dummy-call-adds", *OF_HEADS}),
        (
            {"reference": "frozen-adapter", "is_repeatable": False},
            {"low-precision-reduction", "dummy-call-adds", "dummy-call-times-zero", "optimizer-before-sharding"}
            | OF_HEADS,
        ),
    ],
)
def test_what_cannot_show_is_left_out_with_a_reason(changes: dict[str, Any], left_out: set[str]) -> None:
    reasons = {fault.name: why_not_planted(fault, replace(GROUND, **changes)) for fault in FAULTS}
    assert {name for name, reason in reasons.items() if reason} == left_out


def test_a_fault_that_is_left_out_in_some_precisions_says_in_which() -> None:
    left_out = [
        NotPlanted(name="one", precision="float32", reason="it rains"),
        NotPlanted(name="two", precision="float32", reason="it rains"),
        NotPlanted(name="two", precision="bfloat16", reason="it rains"),
    ]
    assert notes_on_not_planted(left_out, ("float32", "bfloat16")) == ["not planted, as it rains: one in float32, two"]
