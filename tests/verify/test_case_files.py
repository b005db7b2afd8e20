"""Cases from a file: what was written is what is read, and whatever is wrong is one message with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.case_files import cases_text, read_cases
from verify.cases import Case
from verify.default_cases.references import reference_cases
from verify.default_cases.tiny import tiny_cases
from verify.groups import PreferenceGroup
from verify.strict_json import JsonFileError

GROUP = {"prompt_ids": [5, 9], "positives": [[4, 2]], "negatives": [[7]]}
MINE = {"name": "mine", "why": "to show", "groups": [GROUP]}

Write = Callable[[Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: Any) -> Path:
        path = tmp_path / "cases.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return to_file


def test_a_case_is_read_as_it_stands(write: Write) -> None:
    (case,) = read_cases(write([MINE]))
    assert case == Case(name="mine", why="to show", groups=(PreferenceGroup((5, 9), ((4, 2),), ((7,),)),))


def test_why_may_be_left_out_and_names_the_file_then(write: Write) -> None:
    (case,) = read_cases(write([{"name": "mine", "groups": [GROUP]}]))
    assert case.why == "a case of cases.json"


def test_the_embedded_cases_survive_writing_and_reading(write: Write) -> None:
    cases = (*tiny_cases(257, 3), *reference_cases(257, 3))
    assert read_cases(write(cases_text(cases))) == cases


ids = st.lists(st.integers(0, 300_000), min_size=1, max_size=5).map(tuple)
groups = st.builds(
    PreferenceGroup,
    ids,
    st.lists(ids, min_size=1, max_size=3).map(tuple),
    st.lists(ids, max_size=3).map(tuple),
    st.text(max_size=8),
).map(lambda group: replace(group, completion_masks=tuple((True, *ids[1:]) for ids in _falses(group))))


def _falses(group: PreferenceGroup) -> list[tuple[bool, ...]]:
    """Masks of groups whose prompt is long; none for the others."""
    return [(False,) * len(ids) for ids in group.completions] if len(group.prompt_ids) > 2 else []


@given(st.lists(groups, min_size=1, max_size=3).map(tuple), st.text(min_size=1, max_size=9))
def test_any_case_survives_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, of_case: tuple[PreferenceGroup, ...], name: str
) -> None:
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    compared = all(group.negatives for group in of_case)
    if not compared:
        of_case = tuple(
            replace(g, negatives=(), completion_masks=g.completion_masks[: len(g.positives)]) for g in of_case
        )
    case = Case(name=name, why="drawn", groups=of_case, objective_name="sigmoid" if compared else "sft-example-mean")
    path.write_text(cases_text([case]), encoding="utf-8")
    (read,) = read_cases(path)
    assert read == case
    assert [group.source for group in read.groups] == [group.source for group in of_case]


def changed(**changes: Any) -> list[dict[str, Any]]:
    return [{**MINE, "groups": [{**GROUP, **changes}]}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("[", "line 1, column 2: not JSON"),
        ("[]", "cases.json: empty; at least one is needed"),
        ("{}", "the whole: Input should be a valid array"),
        ('[{"name": "a", "name": "b"}]', "the field 'name' occurs twice"),
        ("[NaN]", "NaN is not a value of JSON"),
        ([{"groups": [GROUP]}], r"\[0\]\.name: the field is missing"),
        ([{**MINE, "colour": 1}], r"\[0\]\.colour: unknown field"),
        ([{**MINE, "groups": []}], r"\[0\]\.groups: empty; at least one is needed"),
        ([{**MINE, "name": ""}], r"\[0\]\.name"),
        ([MINE, MINE], "two cases are named 'mine'"),
        (changed(prompt_ids=[]), r"\[0\]\.groups\[0\]\.prompt_ids: empty; at least one is needed"),
        (changed(prompt_ids=[5, -9]), r"prompt_ids\[1\]: .*greater than or equal to 0 \(it is -9\)"),
        (changed(prompt_ids=[5, 9.0]), r"prompt_ids\[1\]: .*valid integer \(it is 9\.0\)"),
        (changed(prompt_ids=[5, "9"]), r"prompt_ids\[1\]: .*valid integer \(it is '9'\)"),
        (changed(prompt_ids=[5, True]), r"prompt_ids\[1\]: .*valid integer \(it is True\)"),
        (changed(positives=[]), r"positives: empty; at least one is needed"),
        (changed(positives=[[]]), r"positives\[0\]: empty; at least one is needed"),
        (changed(positives=[4]), r"positives\[0\]: .*valid (array|tuple)"),
        (changed(chosen=[4]), r"groups\[0\]\.chosen: unknown field"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(write: Write, content: Any, message: str) -> None:
    with pytest.raises(JsonFileError, match=message) as raised:
        read_cases(write(content))
    assert str(raised.value).startswith("cases file ")
    assert "cases.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_many_problems_are_counted_not_listed(write: Write) -> None:
    with pytest.raises(JsonFileError, match="and 7 more"):
        read_cases(write(changed(prompt_ids=[-1] * 10)))


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(JsonFileError, match="there is no such file"):
        read_cases(tmp_path / "cases.json")
    (tmp_path / "cases.json").write_bytes(b"[\xff]")
    with pytest.raises(JsonFileError, match=r"not UTF-8 text \(byte 1\)"):
        read_cases(tmp_path / "cases.json")
    with pytest.raises(JsonFileError, match="cannot be read"):
        read_cases(tmp_path)


def test_a_case_of_supervised_examples_is_read_with_its_objective_and_masks(write: Write) -> None:
    group = {"prompt_ids": [5], "positives": [[4, 2, 8]], "completion_masks": [[True, False, True]]}
    (case,) = read_cases(write([{"name": "turns", "objective": "sft-token-mean", "groups": [group]}]))
    assert case.objective_name == "sft-token-mean"
    assert case.kind == "examples"
    assert case.groups[0].supervised == ((0, 2),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"negatives": []}, "case 'mine', group 1: no rejected response"),
        ({"completion_masks": [[True, True]]}, "case 'mine', group 1: 1 completion masks for 2 responses"),
        ({"completion_masks": [[True], [True]]}, r"group 1: completion_masks\[0\]: 1 values for 2 tokens"),
        ({"completion_masks": [[True, True], [False]]}, r"group 1: completion_masks\[1\]: no token of the response is"),
    ],
)
def test_groups_without_meaning_are_refused_by_place(write: Write, changes: dict[str, Any], message: str) -> None:
    path = write([{**MINE, "groups": [GROUP, {**GROUP, **changes}]}])
    with pytest.raises(JsonFileError, match=f"cases file .*{message}") as raised:
        read_cases(path)
    assert str(raised.value).count("mine") == 1


def test_a_name_is_told_once_and_on_one_line(write: Write) -> None:
    """What follows the name depends on who finds the fault: the group, or the case of it."""
    for changes in ({"negatives": []}, {"completion_masks": [[True]]}):
        with pytest.raises(JsonFileError, match=r"case 'two\\nlines', group 0: ") as raised:
            read_cases(write([{**MINE, "name": "two\nlines", "groups": [{**GROUP, **changes}]}]))
        assert str(raised.value).count("lines") == 1
        assert "\n" not in str(raised.value)


def test_supervised_fine_tuning_takes_no_rejected_responses(write: Write) -> None:
    with pytest.raises(JsonFileError, match="a rejected response under sft-token-mean, which learns from preferred"):
        read_cases(write([{**MINE, "objective": "sft-token-mean"}]))
