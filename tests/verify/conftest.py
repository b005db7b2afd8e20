"""Tiny models cut to one layer, short cases and one way to run the gate on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from verify.cases import Case
from verify.comparison import Comparison, Quantity, compare_observations
from verify.gate import GateOutcome, GateRequest, run_gate
from verify.groups import PreferenceGroup
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, ModelUnderTest, build_model
from verify.objective import Preference
from verify.observation import Observation
from verify.subject import Subject
from verify.subjects.selection import select_subject
from verify.tolerance import Policy, load_policy

LORA = LoraSpec(strength=0.3)
THIRD_PARTY = Path(__file__).with_name("third_party_subjects.py")


def draw_groups(seed: int, *sizes: tuple[int, int, int], vocab_size: int = 257) -> tuple[PreferenceGroup, ...]:
    """Pairs with random token ids; sizes are prompt, chosen, rejected."""
    rng = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    return tuple(PreferenceGroup(tokens(p), (tokens(c),), (tokens(r),)) for p, c, r in sizes)


@pytest.fixture(scope="session")
def draw() -> Callable[..., tuple[PreferenceGroup, ...]]:
    return draw_groups


@pytest.fixture(scope="session")
def make_comparison() -> Callable[..., Comparison]:
    """A comparison with the numbers that a test is about; the rest as of a comparison of ones with ones."""
    ones = torch.ones(1, dtype=torch.float64)
    observation = Observation(
        per_token_logps=(ones, ones),
        ref_per_token_logps=(ones, ones),
        rewards=torch.ones(2, dtype=torch.float64),
        margins=ones,
        loss=ones[0],
        gradients={"": ones[None]},
    )
    group = PreferenceGroup((1,), ((2,),), ((3,),))
    templates = {c.quantity: c for c in compare_observations(observation, observation, [group])}

    def make(quantity: Quantity, rms: float, **changes: Any) -> Comparison:
        return replace(templates[quantity], **{"rms": rms, "max": rms, **changes})

    return make


@pytest.fixture(scope="session")
def short_case() -> Case:
    return Case(name="one-pair", why="an ordinary pair", groups=draw_groups(3, (14, 11, 8)))


@pytest.fixture(scope="session")
def two_pairs_case() -> Case:
    """Equal lengths within each pair, so that a swap of responses keeps every shape."""
    return Case(name="two-pairs", why="two trees in one row", groups=draw_groups(4, (12, 9, 9), (7, 10, 10)))


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load_policy(None)


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], ModelUnderTest]:
    """The tiny model cut to one layer, in a dtype; built once and shared: leave it as it was."""
    return cache(lambda dtype: build_model(ModelRequest(name="tiny", num_layers=1, lora=LORA), dtype))


@pytest.fixture(scope="session")
def third_party() -> Callable[[str], Subject]:
    """A subject of the file that imports nothing of ours, by the name of its class."""
    return lambda name: select_subject(f"{THIRD_PARTY}:{name}")


@pytest.fixture(scope="session")
def gate(policy: Policy) -> Callable[..., GateOutcome]:
    """Run the gate on the tiny model cut to one layer."""

    def run(subjects: Sequence[Subject], cases: Sequence[Case], **changes: Any) -> GateOutcome:
        settings: dict[str, Any] = {
            "model": ModelRequest(name="tiny", num_layers=1, lora=changes.pop("lora", LORA)),
            "dtypes": ("float32",),
            "objective": Preference(beta=0.3),
            "policy": policy,
            **changes,
        }
        return run_gate(
            GateRequest(subjects=tuple(subjects), cases=tuple(cases), **settings), lambda done, total, text: None
        )

    return run
