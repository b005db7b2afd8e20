"""Default cases of groups that are no pairs: more responses on a side, or tokens that are not compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds

_Take = Callable[[int], TokenIds]


def groups_and_trees(tokens: _Take) -> tuple[Case, ...]:
    """Groups by the number of their responses, and a tree.

    Args:
        tokens: Gives so many token ids.
    """
    return (
        Case(
            name="group-of-two-and-three",
            why="more responses than a pair has, a token and many long: pairing by stride and by place goes wrong",
            groups=(_group(tokens, 18, (12, 1), (7, 21, 4)),),
        ),
        Case(
            name="groups-of-uneven-size",
            why="different numbers of responses in one row: a mean over pairs is not one over groups",
            groups=(
                _group(tokens, 9, (6,), (8,)),
                _group(tokens, 14, (5, 11), (3,)),
                _group(tokens, 5, (4,), (9, 2, 6, 7)),
            ),
        ),
        Case(
            name="tree-of-turns",
            why="responses share turns four levels deep: a segment has ancestors beyond its parent",
            groups=_trees_of_turns(tokens),
        ),
    )


def groups_by_content(tokens: _Take) -> tuple[Case, ...]:
    """Groups whose token ids, masks, numbers or lengths invite a shortcut.

    Args:
        tokens: Gives so many token ids.
    """
    return (
        Case(
            name="groups-masked",
            why="turns of others inside preferred and rejected responses are not compared, and a shared turn in one of "
            "them only; turns end with the end tokens, token 0 is a word, and prompts begin alike",
            groups=_masked(tokens),
        ),
        Case(
            name="groups-of-many",
            why="three and five responses of one token of prompt, twice, in equal numbers and lengths; a response "
            "comes twice, others end alike: what is found by prompt, by text or by a reshape is found wrong",
            groups=_many_alike(tokens),
        ),
        Case(
            name="groups-long",
            why="positions beyond 256, a branch on a block boundary, and behind it a tree five turns deep",
            groups=_long(tokens),
        ),
    )


def _trees_of_turns(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    """A tree of four levels with a response that ends inside it, and one whose prompt begins as the other's does."""
    prompt, first, second, third = tokens(12), tokens(6), tokens(5), tokens(4)
    deep, short = first + second + third, first + second
    return (
        PreferenceGroup(prompt, (deep + tokens(3), short), (deep + tokens(7), first + tokens(8), tokens(5))),
        PreferenceGroup(prompt[:7] + tokens(4), (tokens(6),), (tokens(9),)),
    )


def _masked(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    """A pair with masks, conversations of which one response learns the second turn alone, and a pair without masks.

    The longest stands in the middle, so that rows which take groups by length take them in another order.
    """
    system, end, user = tokens(9), tokens(2), tokens(3)
    turn = tokens(5) + end
    both_turns, second_turn = (True,) * 7 + (False,) * 3, (False,) * 10
    return (
        PreferenceGroup(
            system + tokens(14),
            (tokens(4) + end,),
            (tokens(7) + end,),
            completion_masks=((True,) * 6, (True,) * 3 + (False,) * 2 + (True,) * 4),
        ),
        PreferenceGroup(
            system + tokens(3),
            (turn + user + tokens(4) + end, turn + user + (0,) + tokens(2) + end),
            (tokens(6) + end, turn),
            completion_masks=(
                both_turns + (True,) * 6, second_turn + (True,) * 5, (False,) * 2 + (True,) * 6, (True,) * 7,
            ),
        ),
        _group(tokens, 15, (7,), (8,)),
    )  # fmt: skip


def _many_alike(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    """Two groups of one prompt and of equal lengths; in the first a response comes twice, and three end alike."""
    prompt, end, again = tokens(1), tokens(2), tokens(4)
    first = PreferenceGroup(
        prompt,
        (tokens(3) + end, tokens(6), tokens(2) + end),
        (tokens(3), again, tokens(5) + end, again, tokens(5)),
    )
    return first, PreferenceGroup(
        prompt,
        tuple(tokens(len(ids)) for ids in first.positives),
        tuple(tokens(len(ids)) for ids in first.negatives),
    )


def _long(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    """A pair whose prompt is two blocks of 128 slots, and a tree.

    Of the tree one response ends inside, where no segment does::

        prompt - first - second - third - fourth fifth - (positive 0)
          |       |        |        |       |      +---- (negative 0)
          |       |        |        |       + positive 1 ends here
          |       |        |        +------------------- (negative 1)
          |       |        +---------------------------- (negative 2)
          |       +------------------------------------- (negative 3)
          +--------------------------------------------- (negative 4)
    """
    wide = _group(tokens, 256, (17,), (12,))
    prompt, first, second, third, fourth, fifth = (tokens(count) for count in (6, 3, 2, 2, 2, 2))
    inside = first + second + third + fourth
    deep = inside + fifth
    return wide, PreferenceGroup(
        prompt,
        (deep + tokens(3), inside),
        (
            deep + tokens(4), first + second + third + tokens(3), first + second + tokens(2), first + tokens(2),
            tokens(3),
        ),
    )  # fmt: skip


def _group(tokens: _Take, prompt: int, positives: Sequence[int], negatives: Sequence[int]) -> PreferenceGroup:
    return PreferenceGroup(tokens(prompt), tuple(map(tokens, positives)), tuple(map(tokens, negatives)))
