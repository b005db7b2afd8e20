"""What faults of labels, numbers of responses, text and depth do to their stage, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from verify.cases import Case
from verify.faults.catalogue import mutation_named
from verify.faults.rows import Rows
from verify.faults.stages import Batch, Stages, Terms
from verify.groups import PreferenceGroup
from verify.objective import ObjectiveName, Preference
from verify.subjects.honest_stages import honest_stages

Groups = tuple[PreferenceGroup, ...]
YES, NO = True, False


def planted(name: str, groups: Groups) -> tuple[Stages, Rows]:
    mutation = mutation_named(name)
    stages = honest_stages(mutation.packing).replaced(mutation.stage, mutation.replacement)
    return stages, stages.layout(groups)


def counted(name: str, groups: Groups) -> list[list[int]]:
    """Places of the tokens that enter the sum of each completion."""
    stages, rows = planted(name, groups)
    targets = stages.supervision(rows, stages.predictors(rows))
    number = sum(len(group.completions) for group in groups)
    return [targets.counted[targets.completions == k].nonzero()[:, 0].tolist() for k in range(number)]


def example(prompt: Sequence[int], *responses: Sequence[int], masks: tuple[tuple[bool, ...], ...] = ()) -> Groups:
    return (PreferenceGroup(tuple(prompt), tuple(map(tuple, responses)), completion_masks=masks),)


SPANS = example([1], [2] * 9, masks=((YES, NO, YES, NO, YES, NO, YES, YES, NO),))
MASKS_PART = example([1], [2, 3, 4], [2, 3, 5], [6], masks=((YES, YES, NO), (NO, YES, YES), (YES,)))


@pytest.mark.parametrize(
    ("name", "groups", "places"),
    [
        ("labels-cut-at-64", example([1] * 61, range(5)), [[0, 1, 2]]),
        ("labels-cut-at-64", example([1] * 70, [2, 3], [4]), [[], []]),
        ("end-of-inner-turns-not-counted", example([9], [3, 9, 4, 9], [9, 3]), [[0, 2, 3], [0, 1]]),
        (
            "end-of-inner-turns-not-counted",
            example([1], [3, 9, 4, 9], masks=((NO, YES, YES, NO),)),
            [[2]],
        ),
        ("fourth-span-and-later-dropped", SPANS, [[0, 2, 4]]),
        ("mask-of-first-holder", MASKS_PART, [[0, 1], [0, 1, 2], [0]]),
        ("labels-kept-by-text", (*example([1, 2, 3], [4]), *example([1], [2, 3, 4])), [[0], [2]]),
        ("labels-kept-by-text", (*example([1], [2, 3, 4]), *example([1, 2, 3], [4])), [[0, 1, 2], [0]]),
        ("token-zero-not-counted", example([0], [2, 0, 3], masks=((NO, YES, YES),)), [[2]]),
        ("cut-at-first-end-token", example([1], [2, 9, 3, 9], masks=((NO, YES, YES, YES),)), [[1]]),
    ],
)
def test_tokens_that_enter_the_sums(name: str, groups: Groups, places: list[list[int]]) -> None:
    assert counted(name, groups) == places


def test_another_group_of_the_same_text_has_its_own_mask() -> None:
    first, second = (example([1], [2, 3], masks=(mask,)) for mask in ((YES, NO), (NO, YES)))
    assert counted("mask-of-first-holder", (*first, *second)) == [[0], [1]]


SUMS = torch.tensor([-4.0, -3.0, -2.5, -1.0, -5.0, -2.0], dtype=torch.float64)
REFS = torch.tensor([-3.0, -3.5, -2.0, -5.0, -4.0, -1.0], dtype=torch.float64)
THREE_AND_ONE = (PreferenceGroup((1,), ((2,), (3,), (4,)), ((5,),)), PreferenceGroup((6,), ((2,),), ((3,),)))
ONE_AND_FIVE = (PreferenceGroup((1,), ((2,),), ((3,), (4,), (5,), (6,), (7,))),)
TWICE = (PreferenceGroup((1,), ((2,), (3,), (2,)), ((4,), (5,))), PreferenceGroup((9,), ((2,),), ((3,),)))
ALIKE = (PreferenceGroup((1,), ((2,), (3,)), ((4,),)), PreferenceGroup((1,), ((5,), (6,)), ((7,),)))


def pair_loss(pair: tuple[int, int], rewards: torch.Tensor) -> float:
    return float(torch.log1p(torch.exp(-(rewards[pair[0]] - rewards[pair[1]]))))


@pytest.mark.parametrize(
    ("name", "groups", "pairs"),
    [
        ("third-positive-and-later-dropped", THREE_AND_ONE, [[(0, 3), (1, 3)], [(4, 5)]]),
        ("fifth-negative-and-later-dropped", ONE_AND_FIVE, [[(0, 1), (0, 2), (0, 3), (0, 4)]]),
        ("equal-responses-weigh-once", TWICE, [[(1, 3), (1, 4), (2, 3), (2, 4)], [(5, 6)]]),
        ("groups-alike-read-by-sides", ALIKE, [[(0, 4), (1, 4)], [(2, 5), (3, 5)]]),
        ("groups-alike-read-by-sides", THREE_AND_ONE, [[(0, 3), (1, 3), (2, 3)], [(4, 5)]]),
        ("groups-of-one-prompt-merged", ALIKE, [[(p, n) for p in (0, 1, 3, 4) for n in (2, 5)]]),
        ("groups-of-one-prompt-merged", THREE_AND_ONE, [[(0, 3), (1, 3), (2, 3)], [(4, 5)]]),
    ],
)
def test_pairs_that_are_compared(name: str, groups: Groups, pairs: list[list[tuple[int, int]]]) -> None:
    number = sum(len(group.completions) for group in groups)
    sums, refs = (torch.cat((values, values[:1]))[:number] for values in (SUMS, REFS))
    stages, rows = planted(name, groups)
    batch = Batch(groups, torch.ones(number, dtype=torch.int64))
    terms = stages.objective(sums, refs, batch, Preference(beta=0.5))
    rewards = 0.5 * (sums - refs)
    expected = [sum(pair_loss(pair, rewards) for pair in group) / len(group) for group in pairs]
    assert terms.losses.tolist() == pytest.approx(expected)
    assert terms.rewards.tolist() == pytest.approx(rewards.tolist())
    assert float(stages.accumulation(terms, batch, rows)) == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize(
    ("name", "groups", "loss"),
    [
        ("fifth-loss-and-later-left-out", tuple(PreferenceGroup((1,), ((i,),)) for i in range(5)), (1 + 2 + 3 + 4) / 4),
        ("equal-examples-counted-once", example([1], [2], [3], [2], [2, 2], [4]), (2 + 3 + 4 + 5) / 4),
    ],
)
def test_losses_that_enter_the_mean(name: str, groups: Groups, loss: float) -> None:
    stages, rows = planted(name, groups)
    terms = Terms(torch.arange(1.0, 6.0), torch.ones(5), torch.zeros(0))
    assert float(stages.accumulation(terms, Batch(groups, torch.ones(5)), rows)) == pytest.approx(loss)


def test_responses_to_a_prompt_of_one_token_do_not_see_it() -> None:
    stages, rows = planted("prompt-of-one-token-hidden", (*example([1], [2, 3]), *example([4, 5], [6])))
    mask = stages.mask(rows)[0]
    assert [mask[query].nonzero()[:, 0].tolist() for query in range(6)] == [[0], [1], [1, 2], [3], [3, 4], [3, 4, 5]]


def test_a_response_that_ends_as_another_does_is_predicted_where_that_one_is() -> None:
    """Slots 1:0, 2 8 9:1-3, 3 4 8 9:4-7, 8 9:8-9: the last token of the second is predicted from slot 2."""
    stages, rows = planted("equal-ends-merged", example([1], [2, 8, 9], [3, 4, 8, 9], [8, 9]))
    assert rows.input_ids.tolist() == [[1, 2, 8, 9, 3, 4, 8, 9, 8, 9]]
    assert stages.predictors(rows).tolist() == [[-1, 0, 1, 2, 0, 4, 5, 2, 0, 8]]


def test_only_what_lies_six_levels_deep_is_moved() -> None:
    turns = [1, 2, 3, 4, 5]
    stages, rows = planted("sixth-level-one-late", example([0], *([*turns[:n], 9] for n in range(5)), [*turns, 7]))
    honest = honest_stages(mutation_named("sixth-level-one-late").packing)
    moved = (stages.positions(rows) - honest.positions(rows))[0]
    assert rows.input_ids[0][moved == 1].tolist() == [9, 5, 7]  # 9 and 5 7 below 0, 1, 2, 3 and 4
    assert moved.sum() == 3


@pytest.mark.parametrize(
    ("name", "objective", "bites", "does_not"),
    [
        ("labels-cut-at-64", "sft-token-mean", example([1] * 64, [2]), example([1] * 63, [2])),
        ("end-of-inner-turns-not-counted", "sft-token-mean", example([1], [2, 3, 2]), example([2], [3, 2])),
        ("fourth-span-and-later-dropped", "sft-token-mean", SPANS, MASKS_PART),
        ("mask-of-first-holder", "sft-token-mean", MASKS_PART, example([1], [2, 3], [2, 4])),
        (
            "labels-kept-by-text", "sft-token-mean",
            (*example([1, 2], [3]), *example([1], [2])), (*example([1], [2]), *example([1, 2], [3])),
        ),
        ("equal-examples-counted-once", "sft-token-mean", example([1], [2], [2], [3]), example([1], [2], [2])),
        ("third-positive-and-later-dropped", "sigmoid", THREE_AND_ONE, ALIKE),
        ("fifth-negative-and-later-dropped", "sigmoid", ONE_AND_FIVE, THREE_AND_ONE),
        ("equal-responses-weigh-once", "sigmoid", TWICE, ALIKE),
        ("groups-alike-read-by-sides", "sigmoid", ALIKE, THREE_AND_ONE),
        ("groups-of-one-prompt-merged", "sigmoid", ALIKE, THREE_AND_ONE),
        ("prompt-of-one-token-hidden", "sft-token-mean", example([1], [2, 3]), example([1], [2])),
        ("equal-ends-merged", "sft-token-mean", example([1], [2, 8, 9], [3, 8, 9]), example([1], [2, 8, 9], [8, 9])),
    ],
)  # fmt: skip
def test_conditions_by_hand(name: str, objective: ObjectiveName, bites: Groups, does_not: Groups) -> None:
    mutation = mutation_named(name)
    assert mutation.bites(Case(name="c", why="", groups=bites, objective_name=objective))
    assert not mutation.bites(Case(name="c", why="", groups=does_not, objective_name=objective))
