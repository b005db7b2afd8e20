"""What a case must have for a fault to be seen that goes by token ids, masks, numbers of responses or depth.

Each is met by one or two of the default cases of a kind, so that a run which leaves those out says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, groupby

from verify.cases import Case
from verify.faults.conditions import Condition
from verify.faults.layout_conditions import partings, sequences_of
from verify.groups import PreferenceGroup, TokenIds


def _responses(case: Case) -> Iterator[tuple[PreferenceGroup, TokenIds, tuple[int, ...]]]:
    """Group, token ids and supervised places of each response."""
    for group in case.groups:
        for ids, places in zip(group.completions, group.supervised, strict=True):
            yield group, ids, places


def _counted_beyond_64(case: Case) -> bool:
    return any(len(group.prompt_ids) + places[-1] >= 64 for group, _, places in _responses(case))


def _end_token_counted_inside(case: Case) -> bool:
    return any(ids[place] == ids[-1] for _, ids, places in _responses(case) for place in places if place < len(ids) - 1)


def _num_spans(places: tuple[int, ...]) -> int:
    return len(list(groupby(enumerate(places), key=lambda numbered: numbered[1] - numbered[0])))


def _four_spans(case: Case) -> bool:
    return any(_num_spans(places) > 3 for _, _, places in _responses(case))


def _masks_part(case: Case) -> bool:
    for group in case.groups:
        first: dict[TokenIds, bool] = {}
        for ids, places in zip(group.completions, group.supervised, strict=True):
            for place in range(len(ids)):
                counts = place in places
                if first.setdefault(ids[: place + 1], counts) != counts:
                    return True
    return False


def _counted_in_a_prompt_before(case: Case) -> bool:
    prompts = [group.prompt_ids for group in case.groups]
    for index, group in enumerate(case.groups):
        for ids, places in zip(group.completions, group.supervised, strict=True):
            path = group.prompt_ids + ids[: places[0] + 1]
            if any(prompt[: len(path)] == path for prompt in prompts[:index]):
                return True
    return False


def _equal_examples(case: Case) -> bool:
    examples = [(group.prompt_ids, ids) for group, ids, _ in _responses(case)]
    return 1 < len(set(examples)) < len(examples)


def _five_losses(case: Case) -> bool:
    return (case.num_completions if case.kind == "examples" else len(case.groups)) > 4


def _three_positives(case: Case) -> bool:
    return any(len(group.positives) > 2 for group in case.groups)


def _five_negatives(case: Case) -> bool:
    return any(len(group.negatives) > 4 for group in case.groups)


def _larger_groups_alike(case: Case) -> bool:
    sizes = {(len(group.positives), len(group.negatives)) for group in case.groups}
    return len(case.groups) > 1 and len(sizes) == 1 and sizes != {(1, 1)}


def _groups_of_one_prompt(case: Case) -> bool:
    return len({group.prompt_ids for group in case.groups}) < len(case.groups)


def _twice_on_a_side(case: Case) -> bool:
    return any(1 < len(set(side)) < len(side) for group in case.groups for side in (group.positives, group.negatives))


def _ends_alike(case: Case) -> bool:
    endings = [(ids[-2:], group.prompt_ids + ids[:-2]) for group, ids, _ in _responses(case) if len(ids) > 2]
    return any(end == other_end and before != other for (end, before), (other_end, other) in combinations(endings, 2))


def _ends_in_zero(case: Case) -> bool:
    return any(len(ids) > 1 and ids[-1] == 0 for _, ids, _ in _responses(case))


def _one_token_prompt(case: Case) -> bool:
    return any(len(group.prompt_ids) == 1 and len(ids) > 1 for group, ids, _ in _responses(case))


def _six_levels(case: Case) -> bool:
    sequences = sequences_of(case)
    branchings = [(sequence, partings(sequence, sequences)) for sequence in sequences]
    return any(len(places) > 4 and len(sequence) - max(places) > 1 for sequence, places in branchings)


COUNTED_BEYOND_64 = Condition("a counted token stands at position 64 or beyond", _counted_beyond_64)
END_TOKEN_COUNTED_INSIDE = Condition(
    "the last token of a response is counted earlier in it as well", _end_token_counted_inside
)
FOUR_SPANS = Condition("a response has four or more supervised spans", _four_spans)
MASKS_PART = Condition("two responses share a token that one of them counts", _masks_part)
COUNTED_IN_A_PROMPT_BEFORE = Condition(
    "a counted token stands, behind the same tokens, in the prompt of a group before", _counted_in_a_prompt_before
)
EQUAL_EXAMPLES = Condition("an example comes twice, beside others", _equal_examples)
FIVE_LOSSES = Condition("a case has five or more groups, or examples", _five_losses)
THREE_POSITIVES = Condition("a group has three or more positives", _three_positives)
FIVE_NEGATIVES = Condition("a group has five or more negatives", _five_negatives)
LARGER_GROUPS_ALIKE = Condition(
    "all of several groups have the same numbers of responses, more than one on a side", _larger_groups_alike
)
GROUPS_OF_ONE_PROMPT = Condition("two groups have one prompt", _groups_of_one_prompt)
TWICE_ON_A_SIDE = Condition("a side of a group holds a response twice, and another", _twice_on_a_side)
ENDS_ALIKE = Condition("two responses end with the same two tokens, behind others", _ends_alike)
ENDS_IN_ZERO = Condition("a response of two or more tokens ends in token 0", _ends_in_zero)
ONE_TOKEN_PROMPT = Condition("a prompt of one token has a response of two or more", _one_token_prompt)
SIX_LEVELS = Condition("a segment of the prefix tree, of two or more tokens, has five or more above it", _six_levels)
