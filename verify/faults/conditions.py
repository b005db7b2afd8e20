"""What a case must have for a fault to make a difference on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from verify.cases import Case
from verify.groups import PreferenceGroup


@dataclass(frozen=True, slots=True)
class Condition:
    """A property of a case, in words and as a predicate.

    Args:
        words: Completes "bites where ...".
        holds: A module-level function.
    """

    words: str
    holds: Callable[[Case], bool]


def _always(case: Case) -> bool:
    return True


def _chosen(group: PreferenceGroup) -> int:
    return len(group.positives[0])


def _rejected(group: PreferenceGroup) -> int:
    return len(group.negatives[0])


def _row_per_group_slots(group: PreferenceGroup) -> int:
    return len(group.prompt_ids) + sum(len(ids) for ids in group.completions)


def _slots(case: Case) -> int:
    return sum(_row_per_group_slots(group) for group in case.groups)


def _several_groups(case: Case) -> bool:
    return len(case.groups) > 1


def _three_groups(case: Case) -> bool:
    return len(case.groups) > 2


def _several_prompts(case: Case) -> bool:
    return len({group.prompt_ids for group in case.groups}) > 1


def _lengths(group: PreferenceGroup) -> tuple[int, ...]:
    return (len(group.prompt_ids), *(len(ids) for ids in group.completions))


def _prompt_twice(case: Case) -> bool:
    return any(
        one.prompt_ids == other.prompt_ids and _lengths(one) == _lengths(other) and one.completions != other.completions
        for one, other in combinations(case.groups, 2)
    )


def _prompts_begin_alike(case: Case) -> bool:
    return any(
        one.prompt_ids != other.prompt_ids and one.prompt_ids[:8] == other.prompt_ids[:8]
        for one, other in combinations(case.groups, 2)
    )


def _groups_alike(case: Case) -> bool:
    return _several_groups(case) and len({_lengths(group) for group in case.groups}) == 1


def _groups_differ(case: Case) -> bool:
    return len({_lengths(group) for group in case.groups}) > 1


def _odd_groups(case: Case) -> bool:
    return len(case.groups) > 2 and len(case.groups) % 2 == 1


def _groups_of_unequal_tokens(case: Case) -> bool:
    return len({sum(len(ids) for ids in group.completions) for group in case.groups}) > 1


def _padded_row(case: Case) -> bool:
    return len({_row_per_group_slots(group) for group in case.groups}) > 1


def _two_padding_slots(case: Case) -> bool:
    lengths = [_row_per_group_slots(group) for group in case.groups]
    return max(lengths) - min(lengths) > 1


def _branch_of_two(case: Case) -> bool:
    return any(len(ids) > 1 for group in case.groups for ids in group.completions)


def _rejected_of_two(case: Case) -> bool:
    return any(_rejected(group) > 1 for group in case.groups)


def _prompt_not_64(case: Case) -> bool:
    return any(len(group.prompt_ids) % 64 and len(ids) > 1 for group in case.groups for ids in group.completions)


def _counted(case: Case) -> list[bool]:
    """Of all completion tokens of a case in turn, whether they are supervised."""
    return [
        place in places
        for group in case.groups
        for ids, places in zip(group.completions, map(set, group.supervised), strict=True)
        for place in range(len(ids))
    ]


def _more_than_64_tokens(case: Case) -> bool:
    return any(_counted(case)[64:])


def _ragged_chunk(case: Case) -> bool:
    counted = _counted(case)
    return any(counted[len(counted) // 64 * 64 :])


def _longer_rejected(case: Case) -> bool:
    return any(_rejected(group) > _chosen(group) for group in case.groups)


def _prompt_of_two(case: Case) -> bool:
    return any(len(group.prompt_ids) > 1 for group in case.groups)


def _prompt_of_two_kinds(case: Case) -> bool:
    return any(len(set(group.prompt_ids)) > 1 for group in case.groups)


def _long_prompt(case: Case) -> bool:
    return any(len(group.prompt_ids) > 16 for group in case.groups)


def _saves_200_slots(case: Case) -> bool:
    return sum(len(group.prompt_ids) for group in case.groups) > 200


def _pair_of_equal_lengths(case: Case) -> bool:
    return all(_chosen(group) == _rejected(group) for group in case.groups)


def _shorter_chosen(case: Case) -> bool:
    return _chosen(case.groups[0]) < max(len(ids) for group in case.groups for ids in group.completions)


def _beyond_256(case: Case) -> bool:
    return any(len(group.prompt_ids) + len(ids) > 258 for group in case.groups for ids in group.completions)


def _beyond_block(case: Case) -> bool:
    return _slots(case) > 128


def _ragged_row(case: Case) -> bool:
    return _slots(case) % 128 != 0


def _branch_on_a_block(case: Case) -> bool:
    return len(case.groups[0].prompt_ids) % 128 == 0


def _path_beyond_100(case: Case) -> bool:
    return any(len(group.prompt_ids) + len(ids) > 102 for group in case.groups for ids in group.completions)


def _prompt_far_from_rejected(case: Case) -> bool:
    return any(_chosen(group) > 64 and _rejected(group) > 1 for group in case.groups)


def _ragged_segment_before_a_branch(case: Case) -> bool:
    return any(len(group.prompt_ids) % 4 or _chosen(group) % 4 for group in case.groups)


def _last_token_inside(case: Case) -> bool:
    return any(
        ids.index(ids[-1]) < place
        for group in case.groups
        for ids, places in zip(group.completions, group.supervised, strict=True)
        for place in places
    )


def _token_zero_inside(case: Case) -> bool:
    return any(
        ids[place] == 0
        for group in case.groups
        for ids, places in zip(group.completions, group.supervised, strict=True)
        for place in places
    )


EVERYWHERE = Condition("everywhere", _always)
SEVERAL_GROUPS = Condition("a case has several groups", _several_groups)
THREE_GROUPS = Condition("a case has three or more groups", _three_groups)
SEVERAL_PROMPTS = Condition("a case has several prompts", _several_prompts)
PROMPT_TWICE = Condition("two groups have one prompt, and other responses of the same lengths", _prompt_twice)
PROMPTS_BEGIN_ALIKE = Condition(
    "prompts of two groups differ, and begin with the same eight tokens", _prompts_begin_alike
)
GROUPS_ALIKE = Condition("a case has several groups, all of the same lengths", _groups_alike)
GROUPS_DIFFER = Condition("groups differ in a length", _groups_differ)
ODD_GROUPS = Condition("a case has three, five, ... groups", _odd_groups)
GROUPS_OF_UNEQUAL_TOKENS = Condition("groups differ in completion tokens", _groups_of_unequal_tokens)
PADDED_ROW = Condition("rows of single groups differ in length, so that one is padded", _padded_row)
TWO_PADDING_SLOTS = Condition("some row has two or more padding slots", _two_padding_slots)
BRANCH_OF_TWO = Condition("a response has two or more tokens (the last one predicts nothing)", _branch_of_two)
REJECTED_OF_TWO = Condition("a rejected response has two or more tokens", _rejected_of_two)
PROMPT_NOT_64 = Condition("a prompt is no multiple of 64 and a response has two or more tokens", _prompt_not_64)
MORE_THAN_64_TOKENS = Condition("a case has more than 64 completion tokens", _more_than_64_tokens)
RAGGED_CHUNK = Condition("the completion tokens of a case are no multiple of 64", _ragged_chunk)
LONGER_REJECTED = Condition("a rejected response is longer than the chosen one", _longer_rejected)
PROMPT_OF_TWO = Condition("a prompt has two or more tokens", _prompt_of_two)
PROMPT_OF_TWO_KINDS = Condition("a prompt holds two different tokens", _prompt_of_two_kinds)
LONG_PROMPT = Condition("a prompt has more than 16 tokens", _long_prompt)
SAVES_200_SLOTS = Condition("sharing prompts saves more than 200 slots", _saves_200_slots)
PAIR_OF_EQUAL_LENGTHS = Condition("both responses of every pair have the same length", _pair_of_equal_lengths)
SHORTER_CHOSEN = Condition("the first chosen response is shorter than the longest response", _shorter_chosen)
BEYOND_256 = Condition("positions go beyond 256", _beyond_256)
BEYOND_BLOCK = Condition("a row is longer than a block of 128 slots", _beyond_block)
RAGGED_ROW = Condition("a row is no multiple of 128 slots", _ragged_row)
BRANCH_ON_A_BLOCK = Condition("the first branch starts at a multiple of 128", _branch_on_a_block)
PATH_BEYOND_100 = Condition("a prompt with its response is longer than 102 tokens", _path_beyond_100)
PROMPT_FAR_FROM_REJECTED = Condition("a chosen response is longer than 64 tokens", _prompt_far_from_rejected)
RAGGED_SEGMENT = Condition("a prompt or chosen response is no multiple of 4 tokens", _ragged_segment_before_a_branch)
LAST_TOKEN_INSIDE = Condition("the last token of a response also occurs earlier in it", _last_token_inside)
TOKEN_ZERO_INSIDE = Condition("a response holds token id 0", _token_zero_inside)
