"""What a case must have for a fault of prefix trees, larger groups, supervised examples or bins to be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from verify.cases import Case
from verify.faults.conditions import Condition
from verify.groups import PreferenceGroup, TokenIds
from verify.subjects.packed import PackedSubject, rows_of_bins


def sequences_of(case: Case) -> list[TokenIds]:
    """Prompt and response of every completion."""
    return [group.prompt_ids + ids for group in case.groups for ids in group.completions]


def num_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of first tokens that two sequences have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def partings(sequence: TokenIds, others: Sequence[TokenIds]) -> set[int]:
    """After how many of its tokens others part from a sequence: segments of the prefix tree end there."""
    shared = [(num_shared(sequence, other), len(other)) for other in others]
    return {count for count, length in shared if 0 < count < min(length, len(sequence))}


def _three_levels(case: Case) -> bool:
    sequences = sequences_of(case)
    return any(len(partings(sequence, sequences)) > 1 for sequence in sequences)


def _two_levels(case: Case) -> bool:
    sequences = sequences_of(case)
    return any(partings(sequence, sequences) for sequence in sequences)


def _deep_later_sibling(case: Case) -> bool:
    """A later branch of the third level or below predicts something from its own tokens."""
    sequences = sequences_of(case)
    for index, later in enumerate(sequences):
        places = partings(later, sequences)
        for earlier in sequences[:index]:
            parting = num_shared(earlier, later)
            above = sum(0 < place <= parting for place in places)
            if parting in places and above > 1 and len(later) - parting > 1:
                return True
    return False


def _beginnings(parts: Sequence[TokenIds]) -> bool:
    return any(0 < num_shared(a, b) < min(len(a), len(b)) for a, b in combinations(parts, 2))


def _prompts_part(case: Case) -> bool:
    return _beginnings([group.prompt_ids for group in case.groups])


def _responses_part(case: Case) -> bool:
    return any(_beginnings(group.completions) for group in case.groups)


def _ends_inside(case: Case) -> bool:
    sequences = set(sequences_of(case))
    return any(len(a) < len(b) and b[: len(a)] == a for a in sequences for b in sequences)


def _counted_places(group: PreferenceGroup) -> Iterator[list[TokenIds]]:
    """For each response, what stands before and at each of its counted tokens, prompt included."""
    for ids, places in zip(group.completions, group.supervised, strict=True):
        yield [group.prompt_ids + ids[: place + 1] for place in places]


def _shared_targets(case: Case) -> bool:
    targets = [target for group in case.groups for of_response in _counted_places(group) for target in of_response]
    return len(set(targets)) < len(targets)


def _equal_responses(case: Case) -> bool:
    return len(set(sequences_of(case))) < case.num_completions


def _several_negatives(case: Case) -> bool:
    return any(len(group.negatives) > 1 for group in case.groups)


def _several_positives(case: Case) -> bool:
    return any(len(group.positives) > 1 for group in case.groups)


def _several_of_both(case: Case) -> bool:
    return any(min(len(group.positives), len(group.negatives)) > 1 for group in case.groups)


def _more_than_pairs(case: Case) -> bool:
    return any(len(group.completions) > 2 for group in case.groups)


def _uneven_numbers_of_pairs(case: Case) -> bool:
    return len({len(group.positives) * len(group.negatives) for group in case.groups}) > 1


def _several_sequences(case: Case) -> bool:
    return case.num_completions > 1


def _later_example(case: Case) -> bool:
    return any(len(sequence) > 2 for sequence in sequences_of(case)[1:])


def _short_later_prompt(case: Case) -> bool:
    return any(len(group.prompt_ids) < 4 and len(group.positives[0]) > 1 for group in case.groups[1:])


def _masked_token(case: Case) -> bool:
    return any(not all(mask) for group in case.groups for mask in group.completion_masks)


def _turn_of_two(case: Case) -> bool:
    """A supervised turn behind a masked one has two tokens or more."""
    masks = [mask for group in case.groups for mask in group.completion_masks]
    return any(mask[i : i + 3] == (False, True, True) for mask in masks for i in range(len(mask) - 2))


def _token_mean(case: Case) -> bool:
    return case.objective_name == "sft-token-mean"


def _example_mean(case: Case) -> bool:
    return case.objective_name == "sft-example-mean"


def _uneven_examples(case: Case) -> bool:
    return len({count for group in case.groups for count in group.num_supervised}) > 1


def _token_mean_of_uneven(case: Case) -> bool:
    return _token_mean(case) and _uneven_examples(case)


def _example_mean_of_uneven(case: Case) -> bool:
    return _example_mean(case) and _uneven_examples(case)


def _packed_length(group: PreferenceGroup, *, shared_prompt: bool) -> int:
    responses = sum(map(len, group.completions))
    return len(group.prompt_ids) * (1 if shared_prompt else len(group.completions)) + responses


def _bins(case: Case, *, shared_prompt: bool) -> tuple[tuple[int, ...], ...]:
    """The groups of each row in bins; nothing where they are no rows of their own."""
    segments = "shared-prompt" if shared_prompt else "block-diagonal"
    if not PackedSubject(backend="dense-sdpa", segments=segments, rows="bins").supports(case).supported:
        return ()
    return rows_of_bins([_packed_length(group, shared_prompt=shared_prompt) for group in case.groups])


def _row_lengths(case: Case, *, shared_prompt: bool) -> list[int]:
    lengths = [_packed_length(group, shared_prompt=shared_prompt) for group in case.groups]
    return [sum(lengths[index] for index in row) for row in _bins(case, shared_prompt=shared_prompt)]


def _bins_hold_several(case: Case) -> bool:
    return len(_bins(case, shared_prompt=True)) > 1


def _bins_cut_differently(case: Case) -> bool:
    """Some row of bins is no beginning of the first one, segment by segment."""
    first, *others = [
        [len(ids) for index in row for ids in (case.groups[index].prompt_ids, *case.groups[index].completions)]
        for row in _bins(case, shared_prompt=True)
    ] or [[]]
    return any(row != first[: len(row)] for row in others)


def _bins_in_other_order(case: Case) -> bool:
    order = [index for row in _bins(case, shared_prompt=True) for index in row]
    return order != sorted(order)


def _bins_padded(case: Case) -> bool:
    return len(set(_row_lengths(case, shared_prompt=True))) > 1


def _bins_of_blocks(case: Case) -> bool:
    return len(_bins(case, shared_prompt=False)) > 1


def _rows_of_blocks_padded(case: Case) -> bool:
    lengths = [_packed_length(group, shared_prompt=False) for group in case.groups]
    return max(lengths) - min(lengths) > 1


def _longest_prompt_can_be_cut(case: Case) -> bool:
    longest = max(case.groups, key=lambda group: _packed_length(group, shared_prompt=True))
    return _bins_hold_several(case) and len(longest.prompt_ids) > 2


TWO_LEVELS = Condition("sequences share their first tokens and then part", _two_levels)
THREE_LEVELS = Condition("a segment of the prefix tree has ancestors beyond its parent", _three_levels)
DEEP_LATER_SIBLING = Condition(
    "a later branch, three levels deep in the prefix tree, has two or more tokens", _deep_later_sibling
)
PROMPTS_PART = Condition("two prompts begin alike and then differ", _prompts_part)
RESPONSES_PART = Condition("two responses of a prompt begin alike and then differ", _responses_part)
ENDS_INSIDE = Condition("a response ends where another one goes on", _ends_inside)
SHARED_TARGETS = Condition("a counted token is shared by two responses", _shared_targets)
EQUAL_RESPONSES = Condition("two responses with one prompt are equal", _equal_responses)
SEVERAL_NEGATIVES = Condition("a group has several negatives", _several_negatives)
SEVERAL_POSITIVES = Condition("a group has several positives", _several_positives)
SEVERAL_OF_BOTH = Condition("a group has several positives and several negatives", _several_of_both)
MORE_THAN_PAIRS = Condition("a group has more than two responses", _more_than_pairs)
UNEVEN_NUMBERS_OF_PAIRS = Condition("groups have different numbers of pairs", _uneven_numbers_of_pairs)
SEVERAL_SEQUENCES = Condition("a case has several sequences", _several_sequences)
LATER_EXAMPLE = Condition("a later example has three or more tokens", _later_example)
SHORT_LATER_PROMPT = Condition("a later example has a prompt of at most three tokens", _short_later_prompt)
MASKED_TOKEN = Condition("a token of a response is not supervised", _masked_token)
TURN_OF_TWO = Condition("a supervised turn behind a masked one has two or more tokens", _turn_of_two)
TOKEN_MEAN = Condition("the objective is the token mean", _token_mean)
TOKEN_MEAN_OF_UNEVEN = Condition(
    "the objective is the token mean, of examples of unequal length", _token_mean_of_uneven
)
EXAMPLE_MEAN_OF_UNEVEN = Condition(
    "the objective is the example mean, of examples of unequal length", _example_mean_of_uneven
)
BINS_HOLD_SEVERAL = Condition("bins are fewer rows than groups, and several", _bins_hold_several)
BINS_CUT_DIFFERENTLY = Condition("bins are several rows, cut into segments of other lengths", _bins_cut_differently)
BINS_IN_OTHER_ORDER = Condition("bins hold the groups in another order", _bins_in_other_order)
BINS_PADDED = Condition("bins are of unequal length, so that one is padded", _bins_padded)
BINS_OF_BLOCKS = Condition("bins of examples are fewer rows than examples, and several", _bins_of_blocks)
ROWS_OF_BLOCKS_PADDED = Condition("a row of one group has two or more padding slots", _rows_of_blocks_padded)
LONGEST_CAN_BE_CUT = Condition(
    "bins are several rows, and the prompt of the longest group has three or more tokens", _longest_prompt_can_be_cut
)
