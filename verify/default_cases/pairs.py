"""Default cases of one preferred and one rejected response."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds

_Take = Callable[[int], TokenIds]


def pairs_by_length(tokens: _Take) -> tuple[Case, ...]:
    """Pairs that differ in lengths alone.

    Args:
        tokens: Gives so many token ids.
    """
    lengths: Sequence[tuple[str, str, Sequence[tuple[int, int, int]]]] = (
        ("balanced", "an ordinary pair", [(24, 16, 14)]),
        ("one-token-prompt", "the shared segment is its own predictor row; a split prompt is empty", [(1, 9, 12)]),
        ("one-token-chosen", "a branch whose only token is predicted from the prompt", [(17, 1, 9)]),
        ("one-token-rejected", "the same on the other side", [(17, 9, 1)]),
        ("one-token-responses", "branches of one token each: every prediction is made by the prompt", [(17, 1, 1)]),
        ("equal-responses", "equal lengths: a swap of branches keeps every shape", [(20, 15, 15)]),
        ("very-unequal-responses", "padding and lengths by maximum show", [(16, 3, 90)]),
        ("long-prompt", "positions beyond 256; most of the row is shared", [(300, 14, 11)]),
        ("response-longer-than-prompt", "positions restart far from where the row stands", [(8, 60, 48)]),
        ("length-127", "one below the block size of block-sparse kernels", [(127, 127, 127)]),
        ("length-128", "branches start on a block boundary", [(128, 128, 128)]),
        ("length-129", "one above the block size", [(129, 129, 129)]),
        ("two-groups", "two trees in one row", [(19, 13, 10), (11, 7, 9)]),
        ("five-uneven-groups", "many trees in one row, uneven in every part",
         [(33, 5, 21), (2, 18, 4), (48, 1, 6), (7, 27, 26), (14, 11, 1)]),
    )  # fmt: skip
    return tuple(
        Case(name=name, why=why, groups=tuple(_pair(tokens, *sizes) for sizes in groups))
        for name, why, groups in lengths
    )


def pairs_by_content(tokens: _Take) -> tuple[Case, ...]:
    """Pairs whose token ids repeat each other, or mean something.

    Args:
        tokens: Gives so many token ids.
    """
    start, left, right = tokens(7), tokens(8), tokens(10)
    long = tokens(22)
    prompt = tokens(18)
    echo = tokens(2) * 3
    return (
        Case(
            name="responses-begin-alike",
            why="equal tokens at the branch start: the prompt must not grow into the responses",
            groups=(PreferenceGroup(tokens(21), (start + left,), (start + right,)),),
        ),
        Case(
            name="chosen-is-a-prefix-of-rejected",
            why="the shorter response is all of it inside the longer one",
            groups=(PreferenceGroup(tokens(15), (long[:9],), (long,)),),
        ),
        Case(
            name="response-repeats-the-prompt",
            why="tokens found again by value, not by place, are found in the wrong segment",
            groups=(PreferenceGroup(prompt, (prompt[:12],), (prompt[6:],)),),
        ),
        Case(
            name="two-tokens-in-turn",
            # With one token all values are equal: attention weights do not matter, gradients of q and k are noise.
            why="token ids carry hardly any information: only positions and the mask tell slots apart",
            groups=(PreferenceGroup(echo * 2, (echo + tokens(2),), (echo[:3] + tokens(4),)),),
        ),
        _special_ids_inside(tokens),
    )


def _special_ids_inside(tokens: _Take) -> Case:
    end = tokens(1)
    chosen, rejected = tokens(3) + end + tokens(5) + end, (*tokens(4), 0, *tokens(6), *end)
    return Case(
        name="special-ids-inside",
        why="the end token occurs early, token 0 is a word: a mask or length rebuilt from ids is wrong",
        groups=(PreferenceGroup(tokens(13), (chosen,), (rejected,)),),
    )


def pairs_and_their_prompts(tokens: _Take) -> tuple[Case, ...]:
    """Several pairs in a row, with prompts, responses or lengths in common.

    Args:
        tokens: Gives so many token ids.
    """
    first, alike = _pair(tokens, 13, 8, 8), _pair(tokens, 11, 6, 9)
    end = alike.positives[0][-2:]
    return (
        Case(
            name="same-prompt-twice",
            why="two pairs of one prompt, with a response in common: what is stored by prompt is stored once",
            groups=(first, PreferenceGroup(first.prompt_ids, (tokens(8),), first.positives)),
        ),
        Case(
            name="two-groups-alike",
            why="equal lengths in every group, where shortcuts are taken; one response stands under two prompts, and "
            "one ends as the other does",
            groups=(alike, PreferenceGroup(tokens(11), alike.positives, (tokens(9)[:-2] + end,))),
        ),
        Case(
            name="one-token-prompt-among-others",
            why="a tree whose shared segment is one slot, with a tree on either side",
            groups=(_pair(tokens, 9, 5, 4), _pair(tokens, 1, 6, 3), _pair(tokens, 7, 2, 8)),
        ),
    )


def prompts_begin_alike(tokens: _Take) -> Case:
    """Pairs under one system prompt.

    Args:
        tokens: Gives so many token ids.
    """
    start, question, answer, refused = tokens(16), tokens(5), tokens(6), tokens(4)
    return Case(
        name="prompts-begin-alike",
        why="one system prompt, other questions, one of them learned with its answer: a prompt found by its start is "
        "another's, and so is a sequence found without the place where its prompt ends, or by its tokens in any "
        "order; a response ends in token 0",
        groups=(
            PreferenceGroup(start + question, (answer,), (refused,)),
            PreferenceGroup(start + tokens(9), (refused,), (tokens(13),)),
            PreferenceGroup(start, (question + answer,), ((*tokens(10)[:-1], 0),)),
            PreferenceGroup(start + question[::-1], (answer,), (refused,)),
        ),
    )


def _pair(tokens: _Take, prompt: int, chosen: int, rejected: int) -> PreferenceGroup:
    prompt_ids, chosen_ids, rejected_ids = tokens(prompt), tokens(chosen), tokens(rejected)
    while rejected_ids == chosen_ids:  # equal responses have a margin of zero, which proves nothing
        rejected_ids = tokens(rejected)
    return PreferenceGroup(prompt_ids, (chosen_ids,), (rejected_ids,))
