"""Default cases of supervised fine-tuning: examples of which some tokens are learned."""

from __future__ import annotations

from collections.abc import Callable

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds

_Take = Callable[[int], TokenIds]


def examples_by_length(tokens: _Take) -> tuple[Case, ...]:
    """Examples by their lengths and turns, and rollouts of one prompt.

    Args:
        tokens: Gives so many token ids.
    """
    prompt, first, user = tokens(10), tokens(7), tokens(4)
    shared = (True,) * len(first) + (False,) * len(user)
    rollouts = PreferenceGroup(
        prompt,
        (first + user + tokens(6), first + user + tokens(1), tokens(9)),
        completion_masks=(shared + (True,) * 6, (*shared, True), (True,) * 9),
    )
    return (
        Case(
            name="examples-of-uneven-length",
            why="no target across a boundary, and a mean over tokens is not one over examples",
            groups=(
                _example(tokens, 15, 8),
                _example(tokens, 1, 23),
                _example(tokens, 22, 1),
                _example(tokens, 6, 12),
            ),
            objective_name="sft-token-mean",
        ),
        Case(
            name="examples-of-several-turns",
            why="several supervised spans in one conversation; what others said is not learned",
            groups=(
                _example(tokens, 9, 6, 4, 7),
                _example(tokens, 11, 1, 3, 1, 5, 2),
                _example(tokens, 4, 13),
            ),
            objective_name="sft-example-mean",
        ),
        Case(
            name="rollouts-of-one-prompt",
            why="supervised tokens that two examples share count twice",
            groups=(rollouts, _example(tokens, 20, 18)),
            objective_name="sft-token-mean",
        ),
    )


def examples_of_conversations(tokens: _Take) -> tuple[Case, ...]:
    """Long examples, examples with the ids that chat templates put in, and one conversation in several examples.

    Args:
        tokens: Gives so many token ids.
    """
    return (
        Case(
            name="examples-long",
            why="positions beyond 256 and several blocks of 128 slots, four supervised spans in one example, six "
            "examples in a row, two of them of one prompt",
            groups=_long(tokens),
            objective_name="sft-example-mean",
        ),
        Case(
            name="examples-with-end-tokens",
            why="every turn ends with the same two tokens; token 0 is a word; all lengths are equal, and one example "
            "comes twice: labels found by id, and examples found by text, are wrong",
            groups=_with_end_tokens(tokens),
            objective_name="sft-token-mean",
        ),
        Case(
            name="conversation-turn-by-turn",
            why="one conversation whole, turn by turn and with its last turn alone: a token is learned in one example "
            "and stands in the prompt of another, and one response is the start of the next",
            groups=_turn_by_turn(tokens),
            objective_name="sft-example-mean",
        ),
    )


def _long(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    prompt = tokens(8)
    return (
        _example(tokens, 128, 40, 20, 74),
        _example(tokens, 5, 3, 2, 4, 1, 2, 3, 5),
        PreferenceGroup(prompt, (tokens(6),)),
        PreferenceGroup(prompt, (tokens(6),)),
        _example(tokens, 1, 7),
        _example(tokens, 12, 9),
    )


def _with_end_tokens(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    end = tokens(2)
    mask = (True,) * 5 + (False,) * 4 + (True,) * 4

    def example(*words: int) -> PreferenceGroup:
        """Two turns of the assistant with one of the user between them; both begin with these words."""
        turns = [words + tokens(length - len(words)) + end for length in (3, 2)]
        return PreferenceGroup(tokens(5) + end, (turns[0] + tokens(2) + end + turns[1],), completion_masks=(mask,))

    twice = example()
    return twice, twice, example(0)


def _turn_by_turn(tokens: _Take) -> tuple[PreferenceGroup, ...]:
    """One conversation in several examples, and an example of another.

    p is its prompt, a and b are turns of the assistant, u one of the user::

        prompt p a u   completion  b
        prompt p       completions a              the start of the next one
                                   a u b          only b is learned
                                   another answer
        prompt p       completion  a u another b  a and b are learned
    """
    end = tokens(2)
    prompt, answer, user, last = tokens(9), tokens(4) + end, tokens(3), tokens(3) + end
    turns = (False,) * len(user) + (True,) * len(last)
    return (
        PreferenceGroup(prompt + answer + user, (last,)),
        PreferenceGroup(
            prompt,
            (answer, answer + user + last, tokens(7)),
            completion_masks=((True,) * len(answer), (False,) * len(answer) + turns, (True,) * 7),
        ),
        PreferenceGroup(
            prompt, (answer + user + tokens(3) + end,), completion_masks=((True,) * len(answer) + turns,)
        ),
        _example(tokens, 6, 5),
    )  # fmt: skip


def _example(tokens: _Take, prompt: int, *turns: int) -> PreferenceGroup:
    """Turns of the assistant and of the user, in turn, the assistant's first."""
    mask = tuple(place % 2 == 0 for place, length in enumerate(turns) for _ in range(length))
    return PreferenceGroup(tokens(prompt), (tokens(sum(turns)),), completion_masks=(mask,))
