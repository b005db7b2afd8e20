"""Shapes: each one recognised and read, and everything else refused by column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verify.data.pairs import PreferencePair, ResponseGroup, TextPair, Turn
from verify.data.rows import DataError, Place, Row, iter_rows
from verify.data.shapes import SHAPES, left_out_columns, same_shape, shape_of
from verify.data.violations import Reason, UnusableRow

SHAPE_NAMES = [shape.name for shape in SHAPES]
USER_TURN = {"role": "user", "content": "hi"}
CHOSEN_TURN = {"role": "assistant", "content": "yes"}
REJECTED_TURN = {"role": "assistant", "content": "no"}
CONVERSATIONS = {"prompt": "hi", "chosen": [USER_TURN, CHOSEN_TURN], "rejected": [USER_TURN, REJECTED_TURN]}
DIALOGUE = [USER_TURN, CHOSEN_TURN, {"role": "user", "content": "bye"}]
THE_PAIR = ((Turn("user", "hi"),), (Turn("assistant", "yes"),), (Turn("assistant", "no"),))


def row(**columns: Any) -> Row:
    return Row(columns, Place("rows.jsonl", 4))


def read(**columns: Any) -> tuple[Any, Any, Any]:
    pair = shape_of(row(**columns)).read(row(**columns))
    assert pair.place == Place("rows.jsonl", 4)
    return pair.prompt, pair.chosen, pair.rejected


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_the_own_sample_of_a_shape_is_recognised_and_read(samples_dir: Path, name: str) -> None:
    rows = list(iter_rows(samples_dir / f"{name}.jsonl"))
    assert [shape_of(each).name for each in rows] == [name] * 3
    for each in rows:
        pair = shape_of(each).read(each)
        expected = {"trl_text": TextPair, "text_groups": ResponseGroup, "conversational_groups": ResponseGroup}
        assert isinstance(pair, expected.get(name, PreferencePair))
        assert pair.chosen != pair.rejected


def test_there_is_an_own_sample_of_each_shape(samples_dir: Path) -> None:
    assert sorted(path.stem for path in samples_dir.iterdir()) == sorted(SHAPE_NAMES)
    assert len(set(SHAPE_NAMES)) == len(SHAPE_NAMES)


@pytest.mark.parametrize(
    "columns",
    [
        CONVERSATIONS,
        CONVERSATIONS | {"messages": [USER_TURN, CHOSEN_TURN]},
        CONVERSATIONS | {"chosen-rating": 5.0, "rejected-rating": None},
        CONVERSATIONS | {"rating_chosen": 5, "rating_rejected": 1},
        CONVERSATIONS | {"id": "x", "source": "y"},
        {"chosen": [USER_TURN, CHOSEN_TURN], "rejected": [USER_TURN, REJECTED_TURN]},
        {"prompt": [USER_TURN], "chosen": [CHOSEN_TURN], "rejected": [REJECTED_TURN]},
        {"system": "", "question": "hi", "chosen": "yes", "rejected": "no"},
        {"system": None, "question": "hi", "chosen": "yes", "rejected": "no"},
        {"text": json.dumps({"question": "hi", "chosen": "yes", "rejected": "no"}), "image": b"jpg"},
    ],
)
def test_every_shape_spells_the_same_pair(columns: dict[str, Any]) -> None:
    assert read(**columns) == THE_PAIR


def test_a_system_text_becomes_the_first_turn() -> None:
    prompt, _, _ = read(system="Be brief.", question="hi", chosen="yes", rejected="no")
    assert prompt == (Turn("system", "Be brief."), Turn("user", "hi"))


def test_plain_strings_stay_plain_text() -> None:
    assert read(prompt="The sky", chosen=" is blue", rejected=" ") == ("The sky", " is blue", " ")


def test_turns_that_both_responses_share_join_an_explicit_prompt() -> None:
    more = [CHOSEN_TURN, USER_TURN]
    prompt, chosen, _ = read(prompt=[USER_TURN], chosen=[*more, CHOSEN_TURN], rejected=[*more, REJECTED_TURN])
    assert [turn.content for turn in prompt] == ["hi", "yes", "hi"]
    assert chosen == (Turn("assistant", "yes"),)


@pytest.mark.parametrize("prompt", ["hi", " hi\n", "bye"])
def test_the_prompt_column_may_repeat_any_shared_user_turn(prompt: str) -> None:
    shared, _, _ = read(prompt=prompt, chosen=[*DIALOGUE, CHOSEN_TURN], rejected=[*DIALOGUE, REJECTED_TURN])
    assert len(shared) == 3


@pytest.mark.parametrize(
    ("columns", "reason", "detail"),
    [
        (
            # What the assistant said is no prompt, though both sides share it.
            {"prompt": "yes", "chosen": [*DIALOGUE, CHOSEN_TURN], "rejected": [*DIALOGUE, REJECTED_TURN]},
            Reason.PROMPT_COLUMN_DIFFERS,
            "prompt column 'yes'",
        ),
        (CONVERSATIONS | {"prompt": "hello"}, Reason.PROMPT_COLUMN_DIFFERS, "prompt column 'hello'"),
        (CONVERSATIONS | {"prompt": "yes"}, Reason.PROMPT_COLUMN_DIFFERS, "prompt column 'yes'"),
        (CONVERSATIONS | {"prompt": "x" * 99}, Reason.PROMPT_COLUMN_DIFFERS, r"x\.\.\.'$"),
        (CONVERSATIONS | {"prompt": [USER_TURN]}, Reason.PROMPT_COLUMN_DIFFERS, "fed twice"),
        (CONVERSATIONS | {"prompt": []}, Reason.EMPTY_PROMPT, "prompt column holds no turn"),
        (CONVERSATIONS | {"rejected": []}, Reason.EMPTY_RESPONSE, "rejected holds no turn"),
        (
            {"prompt": [USER_TURN], "chosen": [], "rejected": [REJECTED_TURN]},
            Reason.EMPTY_RESPONSE,
            "chosen holds no turn",
        ),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, Reason.EMPTY_PROMPT, "empty string"),
        ({"prompt": "p", "chosen": "a", "rejected": ""}, Reason.EMPTY_RESPONSE, "rejected is an empty string"),
        (
            CONVERSATIONS | {"chosen": [USER_TURN, {"role": "assistant", "content": None}]},
            Reason.TURN_NOT_TEXT,
            r"chosen\[1\]\.content is null",
        ),
        (
            CONVERSATIONS | {"rejected": [{"role": "user", "content": [{"type": "image"}]}, REJECTED_TURN]},
            Reason.TURN_NOT_TEXT,
            r"rejected\[0\]\.content is a list",
        ),
        (
            CONVERSATIONS | {"chosen": [USER_TURN, CHOSEN_TURN | {"tool_calls": [{"name": "f"}]}]},
            Reason.TURN_NOT_TEXT,
            r"chosen\[1\] carries 'tool_calls'",
        ),
        (
            {"prompt": "p", "chosen": "\ud83d", "rejected": "b"},
            Reason.HALF_A_CHARACTER,
            "chosen holds half a surrogate",
        ),
        ({"prompt": "p", "chosen": ["a", "\ud83d"], "rejected": ["b"]}, Reason.HALF_A_CHARACTER, r"chosen\[1\] holds"),
        (
            CONVERSATIONS | {"chosen": [USER_TURN, {"role": "assistant", "content": "\ud83d"}]},
            Reason.HALF_A_CHARACTER,
            r"chosen\[1\]\.content holds",
        ),
        (
            CONVERSATIONS | {"chosen": [{"role": "us\ude00er", "content": "hi"}, CHOSEN_TURN]},
            Reason.HALF_A_CHARACTER,
            r"chosen\[0\]\.role holds",
        ),
        ({"prompt": "p", "chosen": [], "rejected": ["b"]}, Reason.EMPTY_RESPONSE, "chosen holds no response"),
        ({"prompt": "p", "chosen": ["a"], "rejected": []}, Reason.EMPTY_RESPONSE, "rejected holds no response"),
        (
            {"prompt": [USER_TURN], "chosen": [[CHOSEN_TURN]], "rejected": []},
            Reason.EMPTY_RESPONSE,
            "rejected holds no response",
        ),
        (
            {"prompt": [USER_TURN], "chosen": [[]], "rejected": [[REJECTED_TURN]]},
            Reason.EMPTY_RESPONSE,
            "chosen holds no turn",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_named(columns: dict[str, Any], reason: Reason, detail: str) -> None:
    with pytest.raises(UnusableRow, match=detail) as caught:
        read(**columns)
    assert caught.value.violation.reason is reason
    assert caught.value.violation.place == Place("rows.jsonl", 4)


def test_empty_extras_of_a_turn_do_not_matter() -> None:
    extras = {"tool_calls": None, "name": "", "weight": 1}
    assert read(chosen=[USER_TURN, CHOSEN_TURN | extras], rejected=[USER_TURN, REJECTED_TURN]) == THE_PAIR


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"prompt": "p", "chosen": "a"},
            r"columns found: chosen, prompt; closest is trl_text: missing column 'rejected'",
        ),
        ({"chosen": "a", "rejected": "b"}, r"closest is trl_text: missing column 'prompt'"),
        ({"question": "q", "chosen": "a", "rejected": "b"}, r"closest is orca_dpo_pairs: missing column 'system'"),
        (
            CONVERSATIONS | {"rejected": ["no"]},
            r"column 'rejected' is a list whose item 0 is a string, expected a list of \{role, content\} objects",
        ),
        (CONVERSATIONS | {"prompt": None}, r"column 'prompt' is null, expected a string"),
        ({"prompt": "p", "chosen": "a", "rejected": []}, r"column 'rejected' is an empty list, expected a string"),
        ({"prompt": "p", "chosen": "a", "rejected": 3}, r"column 'rejected' is a number, expected a string"),
        (
            {"x": 1},
            r"columns found: x; known shapes: h4_ultrafeedback \(chosen, messages, prompt, rejected\), .*rlhf_v",
        ),
        ({}, r"columns found: none; known shapes"),
        ({"text": "once upon a time"}, r"column 'text' is not JSON: .* with the strings question, chosen and rejected"),
        ({"text": "[1]"}, r"column 'text' holds a list"),
        ({"text": '{"question": "q", "chosen": "a"}'}, r"column 'text' holds an object with chosen, question"),
        (
            CONVERSATIONS | {"chosen": [{"from": "human", "value": "hi"}]},
            r"chosen\[0\] has from, value: expected a turn",
        ),
        (CONVERSATIONS | {"chosen": [{"role": "user"}]}, r"chosen\[0\] has role: expected a turn"),
    ],
)
def test_a_row_of_no_known_shape_is_refused_by_column(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=r"^rows\.jsonl:4: .*" + message):
        read(**columns)


def test_half_a_character_spelled_by_json_inside_a_text_is_found() -> None:
    """The row itself is good UTF-8: the escape is read only where the text is."""
    text = json.dumps({"question": "q", "chosen": "\ud800", "rejected": "b"})
    encodable = row(text=text)._replace(is_encodable=True)
    with pytest.raises(UnusableRow, match="chosen holds half a surrogate pair"):
        shape_of(encodable).read(encodable)


@pytest.mark.parametrize(
    "before",
    [
        {"prompt": "p", "chosen": ["a"], "rejected": ["b"]},
        {"prompt": "p", "chosen": "a", "rejected": "b"},
        CONVERSATIONS,
    ],
    ids=["groups", "texts", "conversations"],
)
def test_a_row_with_nothing_on_both_sides_has_the_shape_of_the_rows_before_it(before: dict[str, Any]) -> None:
    first, empty = shape_of(row(**before)), row(prompt="p", chosen=[], rejected=[])
    if first.fits(empty):
        assert same_shape(empty, first) is first
        with pytest.raises(UnusableRow, match=r"holds no (response|turn)"):
            first.read(empty)
    else:
        with pytest.raises(DataError, match="the rows before it trl_text"):
            same_shape(empty, first)


def test_columns_beside_the_text_are_reported_when_they_are_filled() -> None:
    assert left_out_columns(row(image={"bytes": b"x"}, tools=[], text="t")) == ("image",)
