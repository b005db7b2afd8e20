"""Prefix trees of one to four levels, and block-diagonal rows, through the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packed_impl.attention import BACKENDS, causal_lm
from packed_impl.forest import predictors
from packed_impl.forward import layout_logps
from packed_impl.layout import PackedLayout, pack
from packed_impl.step import per_token_logps

Build = Callable[..., nn.Module]
Unpacked = Callable[..., list[Tensor]]
Gradients = Callable[..., dict[str, Tensor]]

WITH_GRADIENTS = tuple(backend for backend in BACKENDS if backend != "flex")
LOGP_TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-6}
GRADIENT_TOLERANCE = {torch.float32: 5e-5, torch.float64: 5e-6}
ROWS = [(1, 0), (2,)]  # a tree that two groups share, and a shorter row, which is padded


@pytest.fixture
def groups_of_depth(make_group: Any) -> Callable[[int], list[Any]]:
    """The leaves of a binary tree with ``depth`` levels, three tokens a segment, spread over two groups; and a third.

    Of the second group the prompt goes on into the tree of the first; one response is equal to one of the first group,
    and one ends within a segment.
    """

    def build(depth: int) -> list[Any]:
        def segment(path: int) -> tuple[int, ...]:
            return tuple(1 + (7 * path + 11 * place) % 60 for place in range(3))

        leaves = [()]
        for level in range(1, depth):
            leaves = [(*ids, *segment(2**level + 2 * n + side)) for n, ids in enumerate(leaves) for side in (0, 1)]
        prompt, within = segment(1)[:2], segment(1)[2:]
        first, last = (*within, *leaves[0]), (*within, *leaves[-1])
        return [
            make_group(prompt, tuple((*within, *leaf) for leaf in leaves)),
            make_group(prompt + first[:1], (first[1:-1] or (9,),), (last[1:] or (9,), (5, 6))),
            make_group((7,), ((3, 3),), ((1,),)),
        ]

    return build


def depth_of(layout: PackedLayout) -> int:
    return max(len(forest.path(index)) for forest in layout.forests for index in range(len(forest.segments)))


def worst(actual: list[Tensor], expected: list[Tensor]) -> float:
    assert [x.shape for x in actual] == [x.shape for x in expected]
    return max((a - e).abs().max().item() for a, e in zip(actual, expected, strict=True))


def test_the_trees_are_as_deep_as_they_say(groups_of_depth: Callable[[int], list[Any]]) -> None:
    """The second group adds a branch below its prompt, which makes a tree of one level two."""
    depths = [depth_of(pack(groups_of_depth(depth)[:1], layout="prefix-tree")) for depth in (1, 2, 3, 4)]
    assert depths == [1, 2, 3, 4]
    deepest = pack(groups_of_depth(4), layout="prefix-tree", rows=ROWS)
    places = list(zip(deepest.token_rows.tolist(), deepest.token_slots.tolist(), strict=True))
    assert len(set(places)) < len(places)
    assert deepest.forests[1].segments[-1].length > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["prefix-tree", "block-diagonal"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probs_are_those_of_each_sequence_alone(
    tiny_model: Build,
    unpacked_logps: Unpacked,
    groups_of_depth: Callable[[int], list[Any]],
    backend: str,
    layout: str,
    dtype: torch.dtype,
) -> None:
    model = tiny_model(dtype)
    with torch.no_grad():
        for depth in (1, 2, 3, 4):
            groups = groups_of_depth(depth)
            actual = per_token_logps(model, groups, backend=backend, layout=layout, rows=ROWS)
            assert worst(actual, unpacked_logps(model, groups)) < LOGP_TOLERANCE[dtype], depth


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["prefix-tree", "block-diagonal"])
@pytest.mark.parametrize("backend", WITH_GRADIENTS)
def test_gradients_are_those_of_each_sequence_alone(
    tiny_model: Build,
    unpacked_logps: Unpacked,
    trained_gradients: Gradients,
    groups_of_depth: Callable[[int], list[Any]],
    backend: str,
    layout: str,
    dtype: torch.dtype,
) -> None:
    """A shared slot gathers the gradients of all completions that hold it."""
    model, groups = tiny_model(dtype), groups_of_depth(4)
    actual = trained_gradients(model, per_token_logps(model, groups, backend=backend, layout=layout, rows=ROWS))
    expected = trained_gradients(model, unpacked_logps(model, groups))
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.norm() > 0
        assert (actual[name] - gradient).norm() < GRADIENT_TOLERANCE[dtype] * gradient.norm(), name


@pytest.mark.parametrize("layout", ["prefix-tree", "block-diagonal"])
@pytest.mark.parametrize("backend", WITH_GRADIENTS)
def test_a_completion_has_no_gradient_outside_its_own_path(
    tiny_model: Build, groups_of_depth: Callable[[int], list[Any]], backend: str, layout: str
) -> None:
    """Exactly zero at every slot that is not on it, padding included; not zero up to its last predictor."""
    model, groups = tiny_model(), groups_of_depth(4)
    packed = pack(groups, layout=layout, rows=ROWS)
    embeddings: list[Tensor] = []
    table = causal_lm(model).get_input_embeddings()
    with table.register_forward_hook(lambda module, args, output: embeddings.append(output.requires_grad_())):
        logps = layout_logps(model, packed, backend=backend)
    prompts = [group.prompt_ids for group in groups for _ in group.positives + group.negatives]
    ends = torch.tensor(packed.completion_lengths).cumsum(0) - 1
    for number, (prompt, end) in enumerate(zip(prompts, ends.tolist(), strict=True)):
        (gradient_BTD,) = torch.autograd.grad(logps[number].sum(), embeddings[0], retain_graph=True)
        row, path = int(packed.token_rows[end]), [int(packed.predictor_slots[end])]
        while (before := predictors(packed.forests[row])[path[-1]]) is not None:
            path.append(before)
        assert len(path) == len(prompt) + packed.completion_lengths[number] - 1
        reached = gradient_BTD.ne(0).any(-1).nonzero().tolist()
        assert sorted(map(tuple, reached)) == sorted((row, slot) for slot in path)
