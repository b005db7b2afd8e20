"""Patterns over supervised tokens: which log-probs differ, and by how much from place to place.

Most patterns allow for a few tokens that are within their budget by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.diagnosis.patterns.pattern import Pattern, found
from verify.diagnosis.tokens import path_numbers, segment_name, sequences
from verify.groups import PreferenceGroup

_NEARLY_ALL = 0.85
_GROWS = 3.0
_LONG_ENOUGH = 9
_SAME = 0.02


@dataclass(frozen=True, slots=True)
class Branch:
    """Differences of the supervised tokens of one completion.

    Args:
        group: Its group.
        completion: Index within the group.
        first_path: Number of prompt tokens in front of it.
        places: Which tokens of the completion these are, int64 [tokens].
        forks: How often sequences part in front of each, int64 [tokens].
        at_fork: Which of them follow a token where sequences part, bool [tokens].
        differences: Actual minus expected, float64 [tokens].
        beyond: Which of them differ, bool [tokens].
    """

    group: int
    completion: int
    first_path: int
    places: Tensor
    forks: Tensor
    at_fork: Tensor
    differences: Tensor
    beyond: Tensor

    @property
    def length(self) -> int:
        """Number of supervised tokens."""
        return len(self.beyond)

    @property
    def behind_others(self) -> Tensor:
        """Which of them follow a token of their completion that is not supervised; bool, [tokens]."""
        before = torch.cat((torch.tensor([-1]), self.places[:-1]))
        return self.places != before + 1

    @property
    def differs(self) -> bool:
        """Whether any token does."""
        return bool(self.beyond.any())

    @property
    def nearly_all(self) -> bool:
        """Whether nearly all tokens do."""
        return _nearly_all(self.beyond)


@dataclass(frozen=True, slots=True)
class Branches:
    """All completions of a case."""

    groups: Sequence[PreferenceGroup]
    all: tuple[Branch, ...]

    @staticmethod
    def of(groups: Sequence[PreferenceGroup], differences: Sequence[Tensor], beyond: Sequence[Tensor]) -> Branches:
        """Branches from one vector per completion, in completion order."""
        branches = []
        for (g, c, _), forks, d, b in zip(sequences(groups), _forks(groups), differences, beyond, strict=True):
            places = torch.tensor(groups[g].supervised[c])
            in_front = torch.tensor([0, *forks]).cumsum(0)[1:]
            first = len(groups[g].prompt_ids)
            at_fork = torch.tensor(forks, dtype=torch.bool)[first + places]
            branches.append(Branch(g, c, first, places, in_front[first + places], at_fork, d, b))
        return Branches(groups, tuple(branches))

    @property
    def is_tree(self) -> bool:
        """Whether responses of some prompt begin alike."""
        return any(bool(branch.at_fork[1:].any()) for branch in self.all)

    @property
    def differing(self) -> tuple[Branch, ...]:
        """Those with a differing token."""
        return tuple(branch for branch in self.all if branch.differs)

    @property
    def exact(self) -> tuple[Branch, ...]:
        """Those without."""
        return tuple(branch for branch in self.all if not branch.differs)

    def name(self, branch: Branch) -> str:
        """A completion in words."""
        return segment_name(branch.group, branch.completion, self.groups[branch.group])


def _forks(groups: Sequence[PreferenceGroup]) -> list[list[int]]:
    """For every token of every sequence whether it is one of several that follow the same prefix; 0 or 1."""
    paths = path_numbers(groups)
    following: dict[int, set[int]] = {}
    for path in paths:
        for before, number in zip((-1, *path), path, strict=False):
            following.setdefault(before, set()).add(number)
    return [[0, *(int(len(following[before]) > 1) for before in path[:-1])] for path in paths]


def not_finite(branches: Branches) -> str | None:
    """NaN or infinite values."""
    bad = [branch for branch in branches.all if not bool(torch.isfinite(branch.differences).all())]
    if not bad:
        return None
    count = sum(int((~torch.isfinite(branch.differences)).sum()) for branch in bad)
    first = int((~torch.isfinite(bad[0].differences)).nonzero()[0])
    place = int(bad[0].places[first])
    return f"{count} log-probs are not finite, the first at token {place} of {branches.name(bad[0])}"


def branch_start_only(branches: Branches) -> str | None:
    """The first token of a branch, no other."""
    differing = branches.differing
    if not differing or not any(branch.length > 1 for branch in differing):
        return None
    if any(bool(branch.beyond[1:].any()) for branch in differing):
        return None
    if any(int(branch.places[0]) for branch in differing):
        return f"only the first supervised token differs, in {_names(branches, differing)}"
    if len(differing) == len(branches.all):
        return "only the first token of every response differs, the one that the prompt predicts"
    return f"only the first token differs, in {_names(branches, differing)}"


def all_but_the_first_token(branches: Branches) -> str | None:
    """Everything in a branch but its first token."""
    differing = branches.differing
    long = [branch for branch in differing if branch.length > 1]
    if not long or any(bool(branch.beyond[0]) for branch in differing):
        return None
    if not all(_nearly_all(branch.beyond[1:]) for branch in long):
        return None
    return f"all tokens but the first differ in {_names(branches, differing)}"


def where_sequences_part(branches: Branches) -> str | None:
    """The first token behind a fork of the tree of sequences, no other."""
    if not branches.is_tree or not branches.differing:
        return None
    if any(bool((branch.beyond & ~branch.at_fork).any()) for branch in branches.all):
        return None
    if not any(bool((branch.beyond & branch.at_fork)[1:].any()) for branch in branches.all):
        return None
    where = _names(branches, branches.differing)
    return f"only first tokens behind a fork differ, where sequences that began alike part, in {where}"


def behind_several_forks(branches: Branches) -> str | None:
    """Tokens far down a tree, those with an ancestor beyond their parent."""
    if not branches.is_tree or not branches.differing:
        return None
    beyond = torch.cat([branch.beyond for branch in branches.all])
    forks = torch.cat([branch.forks for branch in branches.all])
    fewest = int(forks[beyond].min())
    if fewest < 2 or not _nearly_all(beyond[forks >= fewest]):
        return None
    return f"all tokens behind {fewest} forks or more differ, all others are exact"


def behind_unsupervised_tokens(branches: Branches) -> str | None:
    """The first token of a turn, behind what others said."""
    differing = branches.differing
    if not differing or any(bool((branch.beyond & ~branch.behind_others).any()) for branch in differing):
        return None
    return f"only tokens behind unsupervised ones differ, in {_names(branches, differing)}"


def segment_end_only(branches: Branches) -> str | None:
    """The last token of a branch, no other."""
    differing = branches.differing
    if not differing or not any(branch.length > 1 for branch in differing):
        return None
    if any(bool(branch.beyond[:-1].any()) for branch in differing):
        return None
    return f"only the last token differs, in {_names(branches, differing)}"


def near_branch_start_only(branches: Branches) -> str | None:
    """A few tokens behind a branch start, and none further on."""
    differing = branches.differing
    last = max((int(branch.places[branch.beyond].max()) for branch in differing), default=0)
    if not 1 <= last <= 3 or not any(int(branch.places[-1]) > 2 * last + 1 for branch in differing):
        return None
    return f"only the first {last + 1} tokens of a response differ, in {_names(branches, differing)}"


def later_groups_only(branches: Branches) -> str | None:
    """The first group or groups exact, all later ones not."""
    groups = sorted({branch.group for branch in branches.all})
    wrong = {branch.group for branch in branches.differing}
    first = min(wrong, default=0)
    if first == 0 or wrong != set(groups[first:]):
        return None
    exact = "the first group is" if first == 1 else f"the first {first} groups are"
    return f"{exact} exact, every later one differs"


def first_branch_of_the_row_exact(branches: Branches) -> str | None:
    """Everything but the very first branch."""
    if len(branches.all) < 2 or [branch.differs for branch in branches.all] != [False] + [True] * (
        len(branches.all) - 1
    ):
        return None
    return "the first response of the case is exact, every later one differs"


def later_branches_only(branches: Branches) -> str | None:
    """In each group the first response is exact and later ones are not."""
    first = [branch for branch in branches.all if branch.completion == 0]
    differing = branches.differing
    if not differing or any(branch.differs for branch in first):
        return None
    later = [branch for branch in branches.all if branch.completion > 0]
    share = "every later one" if len(differing) == len(later) else f"{len(differing)} of {len(later)} later ones"
    return (
        f"the first response of each group is exact, {share} {'differs' if len(differing) == len(later) else 'differ'}"
    )


def first_branches_only(branches: Branches) -> str | None:
    """In each group only the first response differs."""
    later = [branch for branch in branches.all if branch.completion > 0]
    if not branches.differing or not later or any(branch.differs for branch in later):
        return None
    return "only first responses of groups differ, later ones are exact"


def longest_only(branches: Branches) -> str | None:
    """The longest path of the case, no other."""
    differing = branches.differing
    if len(differing) != 1 or len(branches.all) < 2:
        return None
    longest = max(branches.all, key=lambda branch: branch.first_path + int(branch.places[-1]))
    return f"only the longest path differs, {branches.name(longest)}" if differing[0] is longest else None


def beyond_a_position(branches: Branches) -> str | None:
    """Exact up to a position of the path, wrong beyond it, over all paths."""
    positions = torch.cat([branch.first_path + branch.places for branch in branches.all])
    beyond = torch.cat([branch.beyond for branch in branches.all])
    if not bool(beyond.any()):
        return None
    first = int(positions[beyond].min())
    before, behind = positions < first, positions >= first
    if int(before.sum()) < _LONG_ENOUGH or not _nearly_all(beyond[behind]):
        return None
    return f"exact up to position {first - 1} of a path, different from position {first} on"


def grows_with_position(branches: Branches) -> str | None:
    """Differences grow along a response."""
    long = [
        branch
        for branch in branches.differing
        if branch.length >= _LONG_ENOUGH
        and 2 * int(branch.beyond.sum()) > branch.length
        and bool(torch.isfinite(branch.differences).all())
    ]
    growing = []
    for branch in long:
        third = branch.length // 3
        size = branch.differences.abs()
        if float(size[-third:].mean()) > _GROWS * float(size[:third].mean()):
            growing.append(branch)
    if not long or len(growing) < _NEARLY_ALL * len(long):
        return None
    return "differences grow along the responses"


def constant_bias(branches: Branches) -> str | None:
    """One and the same difference everywhere."""
    values = torch.cat([branch.differences[branch.beyond] for branch in branches.all])
    if len(values) < 2 or not bool(torch.isfinite(values).all()):
        return None
    mean = float(values.mean())
    if mean == 0 or float((values - mean).abs().max()) > _SAME * abs(mean):
        return None
    return f"every differing log-prob is off by the same {mean:+.3g} nats"


def whole_branches(branches: Branches) -> str | None:
    """Some branches differ in nearly all tokens, the others in none."""
    differing = branches.differing
    if not differing or not branches.exact or not all(branch.nearly_all for branch in differing):
        return None
    if not any(bool(branch.beyond[0]) for branch in differing):
        return None  # all but the first token: that says more
    return f"all tokens differ in {_names(branches, differing)}; all others are exact"


def all_tokens(branches: Branches) -> str | None:
    """Nearly everything."""
    beyond = torch.cat([branch.beyond for branch in branches.all])
    return "nearly all tokens of all responses differ" if _nearly_all(beyond) else None


def scattered(branches: Branches) -> str | None:
    """None of the above: a count at least."""
    beyond = torch.cat([branch.beyond for branch in branches.all])
    count = int(beyond.sum())
    return f"{count} of {len(beyond)} log-probs differ" if count else None


TOKEN_PATTERNS: tuple[Callable[[Branches], str | None], ...] = (
    not_finite,
    branch_start_only,
    where_sequences_part,
    behind_unsupervised_tokens,
    segment_end_only,
    near_branch_start_only,
    constant_bias,
    behind_several_forks,
    all_but_the_first_token,
    later_groups_only,
    first_branch_of_the_row_exact,
    later_branches_only,
    first_branches_only,
    longest_only,
    beyond_a_position,
    grows_with_position,
    whole_branches,
    all_tokens,
)


def token_patterns(branches: Branches) -> tuple[Pattern, ...]:
    """Patterns of the differing log-probs, most telling first.

    Args:
        branches: Differences of all completions.

    Returns:
        The patterns; the mere count where there is no other; nothing where nothing differs.
    """
    return found(TOKEN_PATTERNS, branches) or found((scattered,), branches)


def _nearly_all(beyond: Tensor) -> bool:
    return len(beyond) > 0 and float(beyond.double().mean()) >= _NEARLY_ALL


def _names(branches: Branches, differing: Sequence[Branch]) -> str:
    if len(differing) == len(branches.all):
        return "every response"
    names = [branches.name(branch) for branch in differing]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
