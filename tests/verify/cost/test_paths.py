"""The arithmetic of what paths are fed, against rows that are laid out, and pairs that are counted one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packed_impl.layout import pack
from packed_impl.unshared import unshared_layouts
from reports.cost_record import PATH_NAMES
from verify.cost.paths import PATHS, paths_named
from verify.cost.workload import lengths_of
from verify.groups import PreferenceGroup
from verify.packing_plan.costs import Work

LENGTHS = st.lists(st.tuples(*[st.integers(1, 12)] * 3), min_size=1, max_size=4)


def groups_of(lengths: list[tuple[int, int, int]]) -> list[PreferenceGroup]:
    rng = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(50) for _ in range(count))

    return [PreferenceGroup(tokens(p), (tokens(c),), (tokens(r),)) for p, c, r in lengths]


def layouts_of(path: str, groups: Any) -> Any:
    match path:
        case "padded":
            return unshared_layouts(groups, "padded")
        case "unpadded":
            return unshared_layouts(groups, "row-per-sequence")
        case "padding-free":
            return [pack(groups, layout="block-diagonal")]
        case "dense":
            return [pack(groups, rows="row-per-group")]
        case _:
            return [pack(groups)]


@pytest.mark.parametrize("path", PATH_NAMES)
@given(lengths=LENGTHS)
def test_slots_and_tokens_are_those_of_the_rows(path: str, lengths: list[tuple[int, int, int]]) -> None:
    groups = groups_of(lengths)
    fed = PATHS[path].fed(lengths_of(groups))
    layouts = layouts_of(path, groups)
    assert fed.slots == sum(layout.input_ids.numel() for layout in layouts)
    unpacked = sum(p + c + p + r for p, c, r in lengths)
    assert fed.tokens == (unpacked if PATHS[path].role == "unpacked" else sum(map(sum, lengths)))
    assert fed.work.predictors == sum(len(layout.token_slots) for layout in layouts)


@given(lengths=LENGTHS)
def test_padded_rows_compute_their_triangles_and_dense_ones_their_squares(lengths: list[tuple[int, int, int]]) -> None:
    groups = lengths_of(groups_of(lengths))
    width = max(p + max(c, r) for p, c, r in lengths)
    assert PATHS["padded"].fed(groups).work.pairs == 2 * len(groups) * int(torch.ones(width, width).tril().sum())
    assert PATHS["dense"].fed(groups).work.pairs == len(groups) * max(map(sum, lengths)) ** 2


def test_a_pair_by_hand() -> None:
    """Prompt 2, responses 1 and 3: a token of the first response sees 3, those of the second 3, 4, 5."""
    (lengths,) = lengths_of(groups_of([(2, 1, 3)]))
    assert PATHS["split"].fed([lengths]).work == Work(tokens=6, pairs=1 + 2 + 3 + 3 + 4 + 5, predictors=4)
    assert PATHS["padding-free"].fed([lengths]).work == Work(tokens=8, pairs=6 + 15, predictors=4)


def test_sparse_has_no_step_on_a_cpu_and_says_why() -> None:
    assert "no backward pass on cpu" in PATHS["sparse"].not_applicable("cpu")
    assert PATHS["sparse"].not_applicable("cuda") == ""
    assert all(PATHS[name].not_applicable("cpu") == "" for name in PATH_NAMES if name != "sparse")


def test_paths_by_name() -> None:
    assert [path.name for path in paths_named(["split", "padded"])] == ["split", "padded"]
    assert tuple(PATHS) == PATH_NAMES
    with pytest.raises(ValueError, match="unknown path 'flex': give some of padded"):
        paths_named(["flex"])
    for names in ([], ["split", "split"]):
        with pytest.raises(ValueError, match="give each path once, and at least one"):
            paths_named(names)
