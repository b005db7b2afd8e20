"""What replacements of trees, groups, examples and bins do to their stage, by hand.

The tree is ``1 2 -> (3 -> 4, 5 6), 7`` in slots ``1:0 2:1 3:2 4:3 5:4 6:5 7:6``; one response, ``3``, ends inside it.
"""

from __future__ import annotations

import pytest
import torch

from verify.faults.catalogue import mutation_named
from verify.faults.rows import Rows
from verify.faults.stages import Batch, Stages, Terms
from verify.groups import PreferenceGroup
from verify.objective import Preference, Sft
from verify.subjects.honest_stages import honest_stages

TREE = (PreferenceGroup((1, 2), ((3, 4), (3,)), ((3, 5, 6), (7,))),)
EXAMPLES = (
    PreferenceGroup((1, 2), ((3, 4, 5),), completion_masks=((True, False, True),)),
    PreferenceGroup((6,), ((7, 8),)),
)
BIN_GROUPS = (
    PreferenceGroup((1,), ((2,),), ((3,),)),
    PreferenceGroup((4, 4, 4), ((5,),), ((6,),)),
    PreferenceGroup((7,), ((8,),), ((9,),)),
)
"""Of 3, 5 and 3 slots: bins of 6 slots hold group 1, then groups 0 and 2."""


def planted(name: str, groups: tuple[PreferenceGroup, ...]) -> tuple[Stages, Rows]:
    mutation = mutation_named(name)
    stages = honest_stages(mutation.packing).replaced(mutation.stage, mutation.replacement)
    return stages, stages.layout(groups)


def counted(name: str, groups: tuple[PreferenceGroup, ...]) -> list[list[int]]:
    """Tokens that enter the sum of each completion."""
    stages, rows = planted(name, groups)
    targets = stages.supervision(rows, stages.predictors(rows))
    number = sum(len(group.completions) for group in groups)
    return [targets.token_ids[(targets.completions == k) & targets.counted].tolist() for k in range(number)]


def test_the_tree_holds_each_shared_token_once_and_says_whose_it_is() -> None:
    _, rows = planted("tree-padding-behind", TREE)
    assert rows.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0, 0, 0]]
    assert [piece.parent for piece in rows.rows[0]] == [None, 0, 1, 1, 0, None]
    assert [(b.completion, list(b.tokens)) for b in rows.branches()] == [
        (0, [2]), (0, [3]), (1, [2]), (2, [2]), (2, [4, 5]), (3, [6]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "query", "keys"),
    [
        ("attends-to-parent-only", 5, [2, 4, 5]),
        ("attends-to-parent-only", 6, [0, 1, 6]),
        ("attends-to-root-only", 5, [0, 1, 4, 5]),
        ("deep-siblings-not-isolated", 5, [0, 1, 2, 3, 4, 5]),
        ("deep-siblings-not-isolated", 6, [0, 1, 6]),
    ],
)
def test_masks_of_trees(name: str, query: int, keys: list[int]) -> None:
    stages, rows = planted(name, TREE)
    assert stages.mask(rows)[0, query].nonzero().flatten().tolist() == keys


def test_positions_and_predictors_of_trees() -> None:
    stages, rows = planted("positions-from-parent-alone", TREE)
    assert stages.positions(rows).tolist() == [[0, 1, 2, 1, 1, 2, 2]]
    stages, rows = planted("deep-neighbour-predicts", TREE)
    assert stages.predictors(rows).tolist() == [[-1, 0, 1, 2, 3, 4, 1]]


def test_positions_that_passed_through_bfloat16_still_index_a_table() -> None:
    stages, rows = planted("positions-in-bfloat16", (PreferenceGroup((1,) * 257, ((2,),), ((3,),)),))
    positions = stages.positions(rows)[0]
    assert (positions.dtype, positions[-3:].tolist()) == (torch.int64, [256, 256, 256])


def test_what_is_merged_too_far_takes_the_token_of_its_neighbour() -> None:
    _, rows = planted("responses-merged-one-token-too-far", TREE)
    assert rows.input_ids.tolist() == [[1, 2, 3, 4, 6, 7]]
    _, rows = planted(
        "prompts-merged-one-token-too-far", (PreferenceGroup((1, 2), ((8,),)), PreferenceGroup((1, 3), ((9,),)))
    )
    assert rows.input_ids.tolist() == [[1, 2, 8, 9]]


@pytest.mark.parametrize(
    ("name", "groups", "tokens"),
    [
        ("end-inside-the-tree-not-counted", TREE, [[3, 4], [], [3, 5, 6], [7]]),
        ("target-across-examples", EXAMPLES, [[3, 5, 6], [7, 8]]),
        ("first-token-of-an-example-targeted", EXAMPLES, [[3, 5, 1], [7, 8, 6]]),
        ("end-of-example-not-counted", EXAMPLES, [[3], [7]]),
        ("everything-supervised", EXAMPLES, [[3, 4, 5, 2], [7, 8]]),
        ("user-turns-supervised", EXAMPLES, [[3, 4, 5], [7, 8]]),
        ("mask-one-late", EXAMPLES, [[4], [8]]),
        ("ignored-targets-replaced", EXAMPLES, [[3, 5], [7, 8]]),
        ("results-in-order-of-rows", BIN_GROUPS, [[5], [6], [2], [3], [8], [9]]),
    ],
)
def test_tokens_that_enter_the_sums(name: str, groups: tuple[PreferenceGroup, ...], tokens: list[list[int]]) -> None:
    assert counted(name, groups) == tokens


def test_padding_enters_the_sum_of_the_last_example_of_its_row() -> None:
    groups = tuple(PreferenceGroup((i,), ((i,) * n,)) for i, n in ((1, 6), (2, 2), (3, 1)))
    assert counted("padding-in-the-loss", groups) == [[1] * 6, [2, 2, 0, 0, 0], [3, 0, 0, 0, 0]]


def test_rows_of_examples() -> None:
    stages, rows = planted("positions-restart-at-turns", EXAMPLES)
    assert stages.positions(rows).tolist() == [[0, 1, 2, 3, 0, 0, 1, 2]]
    assert planted("masked-tokens-replaced", EXAMPLES)[1].input_ids.tolist() == [[1, 2, 3, 0, 5, 6, 7, 8]]
    stages, rows = planted("positions-run-on-over-examples", EXAMPLES)
    assert stages.positions(rows).tolist() == [list(range(8))]


def test_the_longest_group_of_bins_is_cut_and_padding_seen_by_all() -> None:
    _, rows = planted("group-cut-at-the-limit", BIN_GROUPS)
    assert rows.input_ids.tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]
    stages, rows = planted("padding-attended", BIN_GROUPS)
    assert rows.input_ids.tolist() == [[4, 4, 4, 5, 6, 0], [1, 2, 3, 7, 8, 9]]
    assert stages.mask(rows)[0, 0].tolist() == [True, False, False, False, False, True]


SUMS = torch.tensor([-4.0, -3.0, -2.5, -1.0, -5.0, -2.0], dtype=torch.float64)
REFS = torch.tensor([-3.0, -3.5, -2.0, -5.0, -4.0, -1.0], dtype=torch.float64)
GROUPS = (
    PreferenceGroup((1,), ((2,), (3,)), ((4,), (5,))),
    PreferenceGroup((1,), ((2,),), ((3,),)),
)
BATCH = Batch(GROUPS, torch.ones(6, dtype=torch.int64))


def pair_loss(positive: int, negative: int) -> float:
    margin = 0.5 * ((SUMS - REFS)[positive] - (SUMS - REFS)[negative])
    return float(torch.log1p(torch.exp(-margin)))


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("nothing-replaced", [[(0, 2), (0, 3), (1, 2), (1, 3)], [(4, 5)]]),
        ("first-negative-only", [[(0, 2), (1, 2)], [(4, 5)]]),
        ("first-positive-for-all", [[(0, 2), (0, 3)], [(4, 5)]]),
        ("pairs-zipped", [[(0, 2), (1, 3)], [(4, 5)]]),
        ("responses-read-in-twos", [[(0, 1)], [(2, 3)], [(4, 5)]]),
    ],
)
def test_pairs_that_are_compared(name: str, pairs: list[list[tuple[int, int]]]) -> None:
    terms = planted(name, GROUPS)[0].objective(SUMS, REFS, BATCH, Preference(beta=0.5))
    expected = [sum(pair_loss(*pair) for pair in group) / len(group) for group in pairs]
    assert terms.losses.tolist() == pytest.approx(expected)
    assert terms.rewards.tolist() == pytest.approx((0.5 * (SUMS - REFS)).tolist())


def test_rewards_sorted_and_references_moved_within_a_group() -> None:
    rewards = {
        name: planted(name, GROUPS)[0].objective(SUMS, REFS, BATCH, Preference(beta=0.5)).rewards.tolist()
        for name in ("rewards-sorted", "reference-of-next-response")
    }
    assert rewards["rewards-sorted"] == pytest.approx([0.25, -0.5, 2.0, -0.25, -0.5, -0.5])
    moved = torch.tensor([-3.5, -2.0, -5.0, -3.0, -1.0, -4.0], dtype=torch.float64)
    assert rewards["reference-of-next-response"] == pytest.approx((0.5 * (SUMS - moved)).tolist())


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("nothing-replaced", (1 + 2) / 2),
        ("mean-over-pairs-of-the-batch", (4 * 1 + 2) / 5),
        ("divided-by-most-pairs", (1 + 2 / 4) / 2),
    ],
)
def test_means_over_groups(name: str, loss: float) -> None:
    stages, rows = planted(name, GROUPS)
    terms = Terms(torch.tensor([1.0, 2.0]), torch.ones(2), torch.zeros(6))
    assert float(stages.accumulation(terms, BATCH, rows)) == pytest.approx(loss)


@pytest.mark.parametrize(
    ("name", "mean", "loss"),
    [
        ("nothing-replaced", "token", (2 + 6 + 1) / 5),
        ("nothing-replaced", "example", (2 / 2 + 6 / 2 + 1) / 3),
        ("example-mean-for-token-mean", "token", (2 / 2 + 6 / 2 + 1) / 3),
        ("token-mean-for-example-mean", "example", (2 + 6 + 1) / 5),
        ("all-tokens-in-the-denominator", "token", (2 + 6 + 1) / 10),
    ],
)
def test_means_over_examples(name: str, mean: str, loss: float) -> None:
    groups = (*EXAMPLES, PreferenceGroup((9,), ((9,),)))
    stages, rows = planted(name, groups)
    sums, batch = torch.tensor([-2.0, -6.0, -1.0]), Batch(groups, torch.tensor([2, 2, 1]))
    terms = stages.objective(sums, sums.new_empty(0), batch, Sft(mean="token" if mean == "token" else "example"))
    assert float(stages.accumulation(terms, batch, rows)) == pytest.approx(loss)
    assert terms.rewards.numel() == 0


def test_means_over_rows_and_a_row_that_is_dropped() -> None:
    """Rows hold groups 1 | 0, 2."""
    terms = Terms(torch.tensor([1.0, 2.0, 4.0]), torch.ones(3), torch.zeros(6))
    stages, rows = planted("last-bin-dropped", BIN_GROUPS)
    assert float(stages.accumulation(terms, Batch(BIN_GROUPS, torch.ones(6)), rows)) == pytest.approx(2.0)
    groups = tuple(PreferenceGroup((1,), ((1,) * n,)) for n in (2, 4, 2))
    stages, rows = planted("mean-of-row-means", groups)
    assert [b.row for b in rows.branches()] == [1, 0, 1]
    of_examples = Terms(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 4.0, 2.0]), torch.zeros(0))
    batch = Batch(groups, torch.tensor([2, 4, 2]))
    assert float(stages.accumulation(of_examples, batch, rows)) == pytest.approx((2.0 + (2 + 8) / 4) / 2)


def test_shared_tokens_and_equal_responses() -> None:
    stages, rows = planted("shared-token-gradient-once", TREE)
    targets = stages.supervision(rows, stages.predictors(rows))
    logps = torch.tensor([-1.0, -2.0, -1.0, -1.0, -3.0, -4.0, -5.0], requires_grad=True)
    sums = stages.reduction(logps, targets)
    assert sums.tolist() == [-3.0, -1.0, -8.0, -5.0]
    (gradient,) = torch.autograd.grad(sums.sum(), logps)
    assert gradient.tolist() == [1, 1, 0, 0, 1, 1, 1]
    stages, rows = planted("equal-responses-merged", (PreferenceGroup((1,), ((2,), (2,)), ((3,),)),))
    targets = stages.supervision(rows, stages.predictors(rows))
    assert stages.reduction(torch.tensor([-1.0, -1.0, -4.0]), targets).tolist() == [-1.0, 0.0, -4.0]


def test_the_same_tree_in_other_rows() -> None:
    _, rows = planted("tree-branches-reordered", TREE)
    assert rows.input_ids.tolist() == [[1, 2, 7, 3, 5, 6, 4]]
    assert [piece.parent for piece in rows.rows[0]] == [None, 0, 0, 2, 2]
    _, rows = planted("tree-split-elsewhere", TREE)
    assert [piece.ids for piece in rows.rows[0]] == [(1,), (2,), (3,), (4,), (5,), (6,), (7,)]
    assert [piece.parent for piece in rows.rows[0]] == [None, 0, 1, 2, 2, 4, 1]
    assert counted("tree-split-elsewhere", TREE) == [[3, 4], [3], [3, 5, 6], [7]]
