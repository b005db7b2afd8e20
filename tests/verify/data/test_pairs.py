"""Where the prompt ends: checked against a common prefix found another way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.data.pairs import PreferencePair, Turn, as_group, split_conversations, text_group, turns_group
from verify.data.rows import Place
from verify.data.violations import Reason, UnusableRow

PLACE = Place("rows.jsonl", 7)


def turns(*spelled: str) -> tuple[Turn, ...]:
    """Turns from "u:text"; the letters s, u, a, t stand for the roles."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return tuple(Turn(roles[role], text) for role, _, text in (turn.partition(":") for turn in spelled))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Two conversations with some exchanges in common, and one or more of each side's own."""
    words = st.sampled_from(["yes", "no", "maybe"])
    exchange = st.tuples(words, words).map(lambda pair: (Turn("user", pair[0]), Turn("assistant", pair[1])))
    shared = [turn for pair in draw(st.lists(exchange, max_size=3)) for turn in pair]
    question = Turn("user", draw(words))
    sides = []
    for _ in range(2):
        more = [turn for pair in draw(st.lists(exchange, max_size=2)) for turn in pair]
        sides.append((*shared, question, Turn("assistant", draw(words)), *more))
    return sides[0], sides[1]


@settings(deadline=None)
@given(conversations())
def test_the_prompt_is_the_longest_common_prefix_of_turns(
    sides: tuple[tuple[Turn, ...], tuple[Turn, ...]],
) -> None:
    chosen, rejected = sides
    most = min(len(chosen), len(rejected)) - 1
    shared = max(n for n in range(most + 1) if chosen[:n] == rejected[:n])
    if chosen[shared].role == "user":
        with pytest.raises(UnusableRow, match=rf"different_prompts: from turn {shared + 1} on"):
            split_conversations(chosen, rejected, PLACE)
        return
    pair = split_conversations(chosen, rejected, PLACE)
    assert pair.prompt + pair.chosen == chosen
    assert pair.prompt + pair.rejected == rejected
    assert len(pair.prompt) == shared
    assert pair.chosen[0].role == pair.rejected[0].role == "assistant"
    assert pair.prompt[-1].role == "user"


def test_responses_that_begin_alike_lose_nothing_to_the_prompt() -> None:
    pair = split_conversations(turns("u:2+2?", "a:4"), turns("u:2+2?", "a:4, or 5"), PLACE)
    assert pair == PreferencePair(turns("u:2+2?"), turns("a:4"), turns("a:4, or 5"), PLACE)


def test_shared_turns_of_a_dialogue_belong_to_the_prompt() -> None:
    start = ("s:Be brief.", "u:hi", "a:hello", "u:bye")
    pair = split_conversations(turns(*start, "a:ciao"), turns(*start, "a:see you"), PLACE)
    assert pair.prompt == turns(*start)


def test_a_side_may_go_on_after_the_other_has_ended() -> None:
    pair = split_conversations(turns("u:hi", "a:yo"), turns("u:hi", "a:yo", "u:what?", "a:hello"), PLACE)
    assert pair.prompt == turns("u:hi")
    assert pair.rejected == turns("a:yo", "u:what?", "a:hello")


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason", "detail"),
    [
        (["u:hi", "a:x"], ["u:Hi", "a:y"], Reason.DIFFERENT_PROMPTS, "from turn 1 on"),
        (["s:one", "u:hi", "a:x"], ["s:two", "u:hi", "a:y"], Reason.DIFFERENT_PROMPTS, "'system'"),
        (["s:one", "u:hi", "a:x"], ["u:hi", "a:y"], Reason.DIFFERENT_PROMPTS, "'system'"),
        (["u:hi", "t:1", "a:x"], ["u:hi", "t:2", "a:y"], Reason.DIFFERENT_PROMPTS, "from turn 2 on"),
        (["a:x"], ["a:y"], Reason.EMPTY_PROMPT, "no turn before"),
        (["u: \n", "a:x"], ["u: \n", "a:y"], Reason.EMPTY_PROMPT, "no text"),
        ([], ["u:hi", "a:y"], Reason.EMPTY_RESPONSE, "chosen holds no turn"),
        (["u:hi", "a:x"], ["u:hi", "a:"], Reason.EMPTY_RESPONSE, "final turn of rejected"),
        (["u:hi"], ["u:hi", "a:y"], Reason.NO_FINAL_ASSISTANT_TURN, "chosen ends with a turn of 'user'"),
        (["u:hi", "a:x"], ["u:hi", "a:y", "u:z"], Reason.NO_FINAL_ASSISTANT_TURN, "rejected ends"),
        (["u:hi", "a:so", "a:x"], ["u:hi", "a:so", "a:y"], Reason.PREFILLED_PROMPT, "shared turn 2"),
    ],
)
def test_what_is_not_two_responses_to_one_prompt_is_named(
    chosen: list[str], rejected: list[str], reason: Reason, detail: str
) -> None:
    with pytest.raises(UnusableRow, match=detail) as caught:
        split_conversations(turns(*chosen), turns(*rejected), PLACE)
    assert caught.value.violation.reason is reason
    assert str(caught.value).startswith(f"rows.jsonl:7: {reason.value}: ")


def test_a_group_of_one_and_one_is_the_pair() -> None:
    for sides in ((("a:x",), ("a:y",)), (("a:so", "u:go on", "a:x"), ("a:so", "u:go on", "a:y", "u:and", "a:z"))):
        chosen, rejected = (turns(*side) for side in sides)
        pair = split_conversations(turns("u:hi") + chosen, turns("u:hi") + rejected, PLACE)
        assert turns_group(turns("u:hi"), [chosen], [rejected], PLACE) == as_group(pair)


def test_turns_that_all_responses_begin_with_join_the_prompt() -> None:
    responses = [turns("a:so", "u:go on", f"a:{i}") for i in range(3)]
    group = turns_group(turns("u:hi"), responses[:1], responses[1:], PLACE)
    assert group.prompt == turns("u:hi", "a:so", "u:go on")
    assert group.chosen + group.rejected == (turns("a:0"), turns("a:1"), turns("a:2"))
    apart = turns_group(turns("u:hi"), responses[:1], [*responses[1:], turns("a:else")], PLACE)
    assert apart.prompt == turns("u:hi")


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason", "detail"),
    [
        ([], [["a:x"]], Reason.EMPTY_RESPONSE, "chosen holds no response"),
        ([["a:x"]], [["a:y"], []], Reason.EMPTY_RESPONSE, r"rejected\[1\] holds no turn"),
        ([["a:x"]], [["a:y"], ["a: "]], Reason.EMPTY_RESPONSE, r"final turn of rejected\[1\]"),
        ([["a:x"], ["u:x", "a:z"]], [["a:y"]], Reason.DIFFERENT_PROMPTS, r"chosen\[1\] has a turn of 'user'"),
        ([["a:x"], ["a:z", "u:?"]], [["a:y"]], Reason.NO_FINAL_ASSISTANT_TURN, r"chosen\[1\] ends with"),
        ([["a:so", "a:x"]], [["a:so", "a:y"]], Reason.PREFILLED_PROMPT, "shared turn 2"),
    ],
)
def test_what_is_no_group_of_responses_to_one_prompt_is_named(
    chosen: list[list[str]], rejected: list[list[str]], reason: Reason, detail: str
) -> None:
    with pytest.raises(UnusableRow, match=detail) as caught:
        turns_group(turns("u:hi"), [turns(*r) for r in chosen], [turns(*r) for r in rejected], PLACE)
    assert caught.value.violation.reason is reason


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "detail"),
    [
        ("", ["a"], ["b"], "the prompt is an empty string"),
        ("p", [], ["b"], "chosen holds no response"),
        ("p", ["a", ""], ["b"], r"chosen\[1\] is an empty string"),
    ],
)
def test_a_group_of_texts_has_no_empty_part(prompt: str, chosen: list[str], rejected: list[str], detail: str) -> None:
    with pytest.raises(UnusableRow, match=detail):
        text_group(prompt, chosen, rejected, PLACE)
