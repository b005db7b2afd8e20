"""Groups of several responses and turns that they share: what the paths decide is broken in one respect, and caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.checks.branch_isolation import BRANCH_ISOLATION
from verify.checks.cases import CheckCases, rewrite
from verify.checks.causality import CAUSALITY
from verify.checks.check import Finding
from verify.checks.own_objective import OWN_OBJECTIVE
from verify.checks.permutation import PERMUTATION
from verify.checks.places import holders
from verify.checks.reach import REACH
from verify.checks.row_map import ROW_MAP
from verify.groups import PreferenceGroup
from verify.objective import Preference
from verify.subjects.packed import PackedSubject
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
Put = Callable[..., dict[str, Finding]]
TREE = PackedSubject(backend="dense-sdpa", segments="prefix-tree")
LITTLE = 4e-6
DEEP, INSIDE, SIBLING, SHALLOW = range(4)
"""Responses of the tree: four levels deep, one that ends inside it, the sibling of the deep one, one of two levels."""


def unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class OnTrees:
    """The packed prefix tree, put to groups alone, with what it returns changed."""

    alter: Callable[[list[Tensor], Groups], list[Tensor]] = lambda logps, groups: logps
    alter_loss: Callable[[Any], Any] = unchanged
    alter_rows: Callable[[Any], Any] = unchanged
    name: str = "on-trees"
    takes: tuple[str, ...] = ("groups",)

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        return self.alter(TREE.per_token_logps(model, groups), groups)

    def loss(self, model: Any, groups: Groups, objective: Preference) -> Any:
        return self.alter_loss(TREE.loss(model, groups, objective))

    def packed_rows(self, groups: Groups) -> Any:
        return self.alter_rows(TREE.packed_rows(groups))


def only(index: int, change: Callable[[Tensor, Groups], Tensor]) -> Callable[[list[Tensor], Groups], list[Tensor]]:
    return lambda logps, groups: [change(logp, groups) if k == index else logp for k, logp in enumerate(logps)]


def leans_on_the_deep_leaf(logp: Tensor, groups: Groups) -> Tensor:
    return logp + LITTLE * groups[0].completions[DEEP][-1] / 257


def ignores_its_turns(logp: Tensor, groups: Groups) -> Tensor:
    return 0.0 * logp - 1


def leans_on_its_last(logp: Tensor, groups: Groups) -> Tensor:
    early = torch.tensor([1.0] + [0.0] * (len(logp) - 1))
    return logp + LITTLE * groups[0].completions[DEEP][-1] / 257 * early


def by_order(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [logp + 0.001 * k for k, logp in enumerate(logps)]


@pytest.mark.parametrize(
    ("alter", "check", "words"),
    [
        (only(SIBLING, leans_on_the_deep_leaf), BRANCH_ISOLATION,
         "rewriting response 0 of every group: group 0, negative 0, token 0 changed, though it sees none of them"),
        (only(INSIDE, leans_on_the_deep_leaf), BRANCH_ISOLATION,
         "rewriting response 0 of every group: group 0, positive 1, token 0 changed"),
        (only(SHALLOW, ignores_its_turns), BRANCH_ISOLATION,
         "group 0, negative 1, token 3 kept its bits, though it sees them"),
        (only(INSIDE, ignores_its_turns), BRANCH_ISOLATION,
         "rewriting the turn of group 0, positive 0 and group 0, positive 1 and group 0, negative 0 and group 0, "
         "negative 1: group 0, positive 1, token 1 kept its bits"),
        (only(DEEP, leans_on_its_last), CAUSALITY, "the last token of every response: group 0, positive 0, token 0"),
        (only(SIBLING, ignores_its_turns), REACH, "does not reach group 0, negative 0, token 0"),
        (by_order, PERMUTATION, "in reverse order: "),
    ],
)  # fmt: skip
def test_it_is_caught_and_the_place_is_named(
    alter: Callable[[list[Tensor], Groups], list[Tensor]], check: Any, words: str, put: Put
) -> None:
    finding = put(OnTrees(alter), [check])[check.name]
    assert finding.verdict is Verdict.FAIL
    assert finding.case == "distinct-turns"
    assert words in finding.reason


def loses_an_ancestor(rows: Any) -> Any:
    """The last leaf token of the deepest response no longer attends to a token halfway down its path."""
    row, slot = (int(value) for value in rows.supervised[rows.supervised[:, 0] == DEEP][-1, 1:3])
    attended = rows.attended.clone()
    seen = attended[row, slot].nonzero()[:, 0].tolist()
    attended[row, slot, seen[len(seen) // 2]] = False
    return replace(rows, attended=attended)


@pytest.mark.parametrize(
    ("alter_rows", "words"),
    [
        (loses_an_ancestor, "group 0, positive 0: its last token attends to 10 slots; its path has 11"),
        (lambda rows: replace(rows, position_ids=torch.arange(rows.input_ids.shape[1])[None]), "is at position"),
        (lambda rows: replace(rows, supervised=rows.supervised[:, [0, 1, 2, 2]]), "is taken from slot"),
    ],
)
def test_rows_of_a_tree_that_deviate_are_caught(alter_rows: Callable[[Any], Any], words: str, put: Put) -> None:
    finding = put(OnTrees(alter_rows=alter_rows), [ROW_MAP])["row-map"]
    assert (finding.verdict, finding.case) == (Verdict.FAIL, "distinct-turns")
    assert words in finding.reason


def test_a_mean_over_all_pairs_is_none_over_groups(put: Put) -> None:
    def over_pairs(output: Any) -> Any:
        margins = output.margins
        losses = -0.9 * margins.sigmoid().log() - 0.1 * (-margins).sigmoid().log()  # the run smooths labels by 0.1
        return replace(output, loss=losses.mean())

    finding = put(OnTrees(alter_loss=over_pairs), [OWN_OBJECTIVE])["own-objective"]
    assert (finding.verdict, finding.case) == (Verdict.FAIL, "distinct-turns")
    assert finding.reason.startswith("the loss is ")
    assert put(OnTrees(), [OWN_OBJECTIVE])["own-objective"].verdict is Verdict.PASS


@pytest.mark.parametrize("shares", [True, False])
def test_whoever_shares_turns_and_whoever_does_not_are_both_right(shares: bool, put: Put) -> None:
    rows = (TREE if shares else PackedSubject(backend="dense-sdpa")).packed_rows

    class Shown(OnTrees):
        def packed_rows(self, groups: Groups) -> Any:
            return rows(groups)

    assert put(Shown(), [ROW_MAP])["row-map"].verdict is Verdict.PASS


def test_a_token_occurs_twice_only_where_all_before_it_is_shared(cases: CheckCases) -> None:
    for name in ("distinct-turns", "distinct-examples"):
        before: dict[int, set[tuple[int, ...]]] = {}
        for group in cases.by_name[name].groups:
            for ids in group.completions:
                path = group.prompt_ids + ids
                for place, token in enumerate(path):
                    before.setdefault(token, set()).add(path[:place])
        assert Counter(map(len, before.values())).keys() == {1}, name


def test_a_tree_is_four_levels_deep_below_its_prompt(cases: CheckCases) -> None:
    groups = cases.by_name["distinct-turns"].groups
    held_by = holders(groups)
    levels = {frozenset(held_by[token]) for token in groups[0].completions[DEEP]}
    assert sorted(len(level) for level in levels) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["distinct-turns", "distinct-examples"])
def test_rewriting_shares_no_more_first_tokens_than_before(name: str, cases: CheckCases) -> None:
    """Whatever is rewritten, two paths are alike for as long as they were."""
    groups, others = cases.by_name[name].groups, cases.other_token[name]
    tokens = sorted(others)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        chosen = {token for token in tokens if torch.rand((), generator=generator) < 0.4}
        assert alike(rewrite(groups, others, chosen)) == alike(groups)


def alike(groups: Groups) -> list[int]:
    paths = [group.prompt_ids + ids for group in groups for ids in group.completions]
    return [
        next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        for one in paths
        for other in paths
    ]
