"""Patterns over tokens are found where they were put, by name, and not elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.diagnosis.patterns.over_tokens import TOKEN_PATTERNS, Branches, token_patterns
from verify.groups import PreferenceGroup

Sizes = list[tuple[int, int, int]]
LAYOUTS = st.lists(st.tuples(st.integers(2, 9), st.integers(12, 20), st.integers(12, 20)), min_size=2, max_size=4)
Wrong = Callable[[int, int, int, int], float]
"""Difference at (group, completion, token, tokens of the completion)."""


def branches(sizes: Sizes, wrong: Wrong) -> Branches:
    groups = [PreferenceGroup((1,) * p, ((2,) * c,), ((3,) * r,)) for p, c, r in sizes]
    differences = [
        torch.tensor([wrong(g, c, i, len(ids)) for i in range(len(ids))], dtype=torch.float64)
        for g, group in enumerate(groups)
        for c, ids in enumerate(group.completions)
    ]
    return Branches.of(groups, differences, [~(d.abs() <= 1e-6) for d in differences])


def uneven(g: int, c: int, i: int) -> float:
    """Differences without structure of their own: no two alike, of either sign."""
    return (1.0 + ((7 * i + 3 * c + 5 * g) % 11) / 10) * (-1) ** (i % 2 + c)


CONSTRUCTED: dict[str, Wrong] = {
    "branch-start-only": lambda g, c, i, n: uneven(g, c, i) if i == 0 else 0.0,
    "segment-end-only": lambda g, c, i, n: uneven(g, c, i) if i == n - 1 else 0.0,
    "near-branch-start-only": lambda g, c, i, n: uneven(g, c, i) if 0 < i < 3 else 0.0,
    "all-but-the-first-token": lambda g, c, i, n: uneven(g, c, i) if i else 0.0,
    "later-groups-only": lambda g, c, i, n: uneven(g, c, i) if g else 0.0,
    "first-branch-of-the-row-exact": lambda g, c, i, n: uneven(g, c, i) if (g, c) != (0, 0) else 0.0,
    "later-branches-only": lambda g, c, i, n: uneven(g, c, i) if c else 0.0,
    "first-branches-only": lambda g, c, i, n: 0.0 if c else uneven(g, c, i),
    "grows-with-position": lambda g, c, i, n: 10.0 ** (i / 2) * uneven(g, c, i),
    "constant-bias": lambda g, c, i, n: -0.25,
    "whole-branches": lambda g, c, i, n: uneven(g, c, i) if (g, c) == (1, 0) else 0.0,
    "all-tokens": lambda g, c, i, n: uneven(g, c, i),
    "not-finite": lambda g, c, i, n: float("nan") if (g, c, i) == (1, 1, 4) else 0.0,
    "scattered": lambda g, c, i, n: uneven(g, c, i) if i in (4, 9) else 0.0,
}
TELLS_MOST = {name for name in CONSTRUCTED if name not in ("whole-branches", "all-tokens", "grows-with-position")}


@pytest.mark.parametrize("name", CONSTRUCTED)
@settings(max_examples=20)
@given(sizes=LAYOUTS)
def test_a_pattern_is_found_where_it_was_put(name: str, sizes: Sizes) -> None:
    names = [pattern.name for pattern in token_patterns(branches(sizes, CONSTRUCTED[name]))]
    assert name in names
    if name in TELLS_MOST:
        assert names[0] == name


@given(sizes=LAYOUTS)
def test_nothing_is_found_where_nothing_differs(sizes: Sizes) -> None:
    assert token_patterns(branches(sizes, lambda g, c, i, n: 0.0)) == ()


@given(sizes=LAYOUTS, data=st.data())
def test_exact_up_to_a_position_names_that_position(sizes: Sizes, data: st.DataObject) -> None:
    paths = [p + i for p, c, r in sizes for n in (c, r) for i in range(n)]
    first = data.draw(st.sampled_from([p for p in sorted(set(paths)) if sum(q < p for q in paths) >= 9]))
    prompts = [p for p, _, _ in sizes]
    found = token_patterns(branches(sizes, lambda g, c, i, n: uneven(g, c, i) if prompts[g] + i >= first else 0.0))
    (sentence,) = [pattern.sentence for pattern in found if pattern.name == "beyond-a-position"]
    assert sentence.endswith(f"different from position {first} on")


def test_only_the_longest_path_is_said_where_only_it_differs() -> None:
    sizes = [(3, 12, 13), (9, 14, 30)]
    found = token_patterns(branches(sizes, lambda g, c, i, n: uneven(g, c, i) if (g, c) == (1, 1) else 0.0))
    assert "longest-only" in [pattern.name for pattern in found]
    assert "the rejected response of group 1" in " ".join(pattern.sentence for pattern in found)


# p a b c: responses "a b c d" and "a b e f" part behind b, "a g h i" behind a.
TREE = PreferenceGroup((1,), ((2, 3, 4, 5, 10, 11), (2, 3, 6, 7, 12, 13)), ((2, 8, 9, 14, 15, 16),))
IN_TREES = {
    "where-sequences-part": [(2,), (2,), (1,)],
    "behind-several-forks": [(2, 3, 4, 5), (2, 3, 4, 5), ()],
}


@pytest.mark.parametrize("name", IN_TREES)
def test_patterns_of_a_tree_follow_from_where_its_responses_part(name: str) -> None:
    wrong = [[uneven(0, c, i) if i in places else 0.0 for i in range(6)] for c, places in enumerate(IN_TREES[name])]
    differences = [torch.tensor(values, dtype=torch.float64) for values in wrong]
    found = token_patterns(Branches.of([TREE], differences, [d != 0 for d in differences]))
    assert found[0].name == name
    pairs = branches([(3, 12, 12)], lambda g, c, i, n: uneven(g, c, i) if i in IN_TREES[name][c] else 0.0)
    assert name not in [pattern.name for pattern in token_patterns(pairs)]


def test_tokens_of_masked_responses_are_named_by_their_place_in_the_response() -> None:
    mask = (False, True, False, False, True, True)
    groups = [PreferenceGroup((1, 2), ((3, 4, 5, 6, 7, 8),), completion_masks=(mask,))]

    def found(*values: float) -> list[str]:
        differences = [torch.tensor(values, dtype=torch.float64)]
        return [p.sentence for p in token_patterns(Branches.of(groups, differences, [~(d == 0) for d in differences]))]

    assert found(0.0, 0.0, float("nan"))[0].endswith("the first at token 5 of the chosen response of group 0")
    assert found(0.5, 0.25, 0.0)[0] == "only tokens behind unsupervised ones differ, in every response"
    assert found(0.5, 0.0, 0.0)[0] == "only the first supervised token differs, in every response"


def test_the_place_of_a_value_that_is_not_finite_is_named() -> None:
    found = token_patterns(branches([(3, 12, 12), (4, 13, 13)], CONSTRUCTED["not-finite"]))
    assert found[0].sentence == "1 log-probs are not finite, the first at token 4 of the rejected response of group 1"


def test_every_pattern_was_put_somewhere() -> None:
    names = {test.__name__.replace("_", "-") for test in TOKEN_PATTERNS}
    elsewhere = {"longest-only", "beyond-a-position"}
    assert names - CONSTRUCTED.keys() == elsewhere | IN_TREES.keys() | {"behind-unsupervised-tokens"}
