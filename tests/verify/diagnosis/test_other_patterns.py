"""Patterns over trained tensors, quantities and cases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.cases import Case
from verify.comparison import Quantity
from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.differences import GradientDifference
from verify.diagnosis.patterns.over_cases import case_patterns
from verify.diagnosis.patterns.over_quantities import quantity_patterns, reward_model_patterns
from verify.diagnosis.patterns.over_tensors import tensor_patterns
from verify.faults.conditions import BEYOND_256, SEVERAL_GROUPS

NAMES = tuple(
    f"model.layers.{layer}.{module}.lora_{factor}"
    for layer in range(3)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")
    for factor in "AB"
)
RIGHT = GradientDifference(relative=1e-7, norm_ratio=1.0, cosine=1.0, beyond=False)
WRONG = GradientDifference(relative=0.7, norm_ratio=1.3, cosine=0.6, beyond=True)
ZERO = GradientDifference(relative=1.0, norm_ratio=0.0, cosine=math.nan, beyond=True)
NOT_A_NUMBER = GradientDifference(relative=math.inf, norm_ratio=math.nan, cosine=math.nan, beyond=True, finite=False)
NOT_ZERO = GradientDifference(relative=math.inf, norm_ratio=1.0, cosine=1.0, beyond=True)
MISSING = GradientDifference(relative=1.0, norm_ratio=0.0, cosine=math.nan, beyond=True, missing=True)


def first(**changed: GradientDifference) -> str:
    """The most telling pattern where tensors whose name holds a part differ."""
    gradients = {
        name: next((wrong for part, wrong in changed.items() if f".{part}." in f".{name}."), RIGHT) for name in NAMES
    }
    found = tensor_patterns(gradients)
    return found[0].name if found else ""


@pytest.mark.parametrize(
    ("pattern", "changed"),
    [
        ("one-parameter-kind", {"k_proj": WRONG}),
        ("one-factor-only", {"lora_B": WRONG}),
        ("some-layers-only", {"layers.0": WRONG}),
        ("missing", {"layers.0": MISSING}),
        ("zero", {"layers.1": ZERO}),
        ("not-finite", {"layers.1": NOT_A_NUMBER}),
        ("not-zero", {"layers.1.mlp.up_proj.lora_A": NOT_ZERO}),
        ("one-tensor-only", {"layers.2.mlp.up_proj.lora_A": WRONG}),
        ("some-tensors", {"layers.2.mlp.up_proj.lora_A": WRONG, "layers.0.self_attn.q_proj.lora_B": WRONG}),
        ("all-tensors", {"model": WRONG}),
        ("", {}),
    ],
)
def test_a_pattern_of_tensors_is_found(pattern: str, changed: dict[str, GradientDifference]) -> None:
    assert first(**changed) == pattern


@given(ratio=st.floats(0.01, 100).filter(lambda ratio: abs(ratio - 1) > 0.01), turned=st.booleans())
def test_one_ratio_over_all_tensors_is_named_with_its_sign(ratio: float, turned: bool) -> None:
    wrong = GradientDifference(relative=abs(ratio - 1), norm_ratio=ratio, cosine=-1.0 if turned else 1.0, beyond=True)
    found = tensor_patterns(dict.fromkeys(NAMES, wrong))
    assert found[0].name == "one-ratio"
    assert f" is {-ratio if turned else ratio:.6g} times the right one" in found[0].sentence


def test_two_ratios_are_not_one() -> None:
    assert first(lora_A=GradientDifference(relative=1e-3, norm_ratio=1.001, cosine=1.0, beyond=True)) != "one-ratio"
    one, other = (GradientDifference(relative=0.1, norm_ratio=r, cosine=1.0, beyond=True) for r in (1.1, 1.2))
    assert first(lora_A=one, lora_B=other) == "all-tensors"


@pytest.mark.parametrize(
    ("pattern", "beyond"),
    [
        ("policy-only", {"per_token_logps", "rewards", "loss", "gradients"}),
        ("reference-only", {"ref_per_token_logps", "rewards"}),
        ("rewards-only", {"rewards", "margins"}),
        ("after-the-log-probs", {"rewards", "margins", "loss", "gradients"}),
        ("loss-and-gradients-only", {"loss", "gradients"}),
        ("gradients-only", {"gradients"}),
        ("", {"per_token_logps", "ref_per_token_logps", "loss"}),
        ("", set()),
    ],
)
def test_a_pattern_of_quantities_is_found(pattern: str, beyond: set[Quantity]) -> None:
    assert [found.name for found in quantity_patterns(beyond)] == [pattern] * bool(pattern)


@given(beyond=st.sets(st.sampled_from(["rewards", "margins", "loss", "gradients"])))
def test_nothing_is_said_of_the_log_probs_of_a_reward_model(beyond: set[Quantity]) -> None:
    said = [found.sentence for found in reward_model_patterns(beyond)]
    assert not any("log-prob" in sentence for sentence in said)
    assert len(said) <= 1
    assert said or not beyond & {"rewards", "loss"} or "margins" in beyond


CASES = tiny_cases(257, 0)


def split(condition: str) -> tuple[list[Case], list[Case]]:
    holds = {"several": SEVERAL_GROUPS, "beyond": BEYOND_256}[condition].holds
    return [c for c in CASES if holds(c)], [c for c in CASES if not holds(c)]


@pytest.mark.parametrize("condition", ["several", "beyond"])
def test_what_the_failing_cases_have_and_the_others_do_not_is_named(condition: str) -> None:
    failing, passing = split(condition)
    words = {"several": SEVERAL_GROUPS, "beyond": BEYOND_256}[condition].words
    assert any(pattern.sentence.endswith(f"cases where {words}") for pattern in case_patterns(failing, passing))


def test_no_condition_is_named_where_it_does_not_tell() -> None:
    failing, passing = split("several")
    assert case_patterns(failing[:1], [*passing, *failing[1:]]) == () or all(
        SEVERAL_GROUPS.words not in pattern.sentence for pattern in case_patterns(failing[:1], [*passing, *failing[1:]])
    )
    assert case_patterns(CASES, ()) == case_patterns((), CASES) == ()
