"""What a third party's subject says about itself is asked once, and must be fit for a report."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from verify.default_cases.tiny import tiny_cases
from verify.frozen_subject import frozen
from verify.subject import OPTIONAL_METHODS, SubjectError, bounded, layout_of, owns_loss, said_by, support_for

BALANCED = tiny_cases(257, 0)[0]


class Mine:
    name = "mine"

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        return (model, groups)


class Fickle(Mine):
    """Packed while it is looked at first, unpacked from then on; and so with its name, cases and loss."""

    asked = 0

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._next("mine", "yours")

    @property
    def layout(self) -> str:
        return self._next("packed", "unpacked")

    @property
    def loss(self) -> Any:
        return self._next(lambda *_: 1, None)

    def supports(self, case: Any) -> Any:
        return type("Answer", (), {"supported": self._next(True, False), "reason": "changed its mind"})

    def _next(self, first: Any, later: Any) -> Any:
        caller = sys._getframe(1).f_code.co_name
        seen = vars(self).setdefault("seen", set())
        answer = later if caller in seen else first
        seen.add(caller)
        return answer


def test_a_subject_that_changes_its_answers_is_held_to_the_first() -> None:
    fickle = Fickle()
    subject: Any = frozen(fickle)
    for _ in range(2):
        assert subject.name == "mine"
        assert layout_of(subject) == "packed"
        assert owns_loss(subject)
        assert support_for(subject, BALANCED).supported
    assert (fickle.name, fickle.layout) == ("yours", "unpacked"), "it did change"


def test_methods_it_has_not_are_not_there() -> None:
    subject: Any = frozen(Mine())
    assert subject.per_token_logps(1, 2) == (1, 2)
    assert not owns_loss(subject)
    for method in OPTIONAL_METHODS:
        assert getattr(subject, method, None) is None


def test_what_it_is_told_afterwards_changes_nothing() -> None:
    mine = Mine()
    subject: Any = frozen(mine)
    mine.layout = "unpacked"  # type: ignore[attr-defined]
    mine.per_token_logps = None  # type: ignore[assignment, method-assign]
    assert layout_of(subject) == "packed"
    assert subject.per_token_logps(1, 2) == (1, 2)


class Text(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "no name: give it a non-empty string"),
        (" ", "no name: give it a non-empty string"),
        (b"mine", "no name: give it a non-empty string"),
        ("two\nlines", r"the name 'two\nlines': give at most 100 printable characters in one line"),
        ("\x1b[31mred", r"the name '\x1b[31mred': give at most"),
        ("\ud800", r"the name '\ud800': give at most"),
        (" mine", "the name ' mine': give at most 100 printable characters in one line, without spaces around"),
        ("n" * 101, "give at most 100 printable"),
        ("n" * 10**6, "give at most 100 printable"),
        ("split", "the name 'split' is that of a subject of packparity"),
        ("pairwise", "the name 'pairwise' is that of a subject of packparity"),
        ("planted:x", "the name 'planted:x' is that of a subject of packparity"),
    ],
)
def test_a_bad_name_is_refused_in_one_short_line(name: object, message: str) -> None:
    mine = Mine()
    mine.name = name  # type: ignore[assignment]
    with pytest.raises(SubjectError, match=re.escape(message)) as caught:
        frozen(mine)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 800


def test_a_string_that_shows_itself_as_another_is_taken_for_what_it_is() -> None:
    mine = Mine()
    mine.name = Text("mine")
    assert type(frozen(mine).name) is str
    assert frozen(mine).name == "mine"


def test_an_attribute_that_raises_is_the_subjects_error() -> None:
    class Raises(Mine):
        @property
        def layout(self) -> str:
            raise SystemExit(0)

    with pytest.raises(SubjectError, match="an attribute of the contract raised SystemExit: 0"):
        frozen(Raises())


def test_messages_are_one_bounded_line_whatever_they_hold() -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert said_by(ValueError("one\ntwo \x00 \ud800")) == r"ValueError: one two \x00 \ud800"
    assert said_by(UnreadableError()) == "UnreadableError: a UnreadableError that cannot be read"
    assert len(bounded("x" * 10**6)) == 500
    assert bounded("a" * 500) == "a" * 500


def test_what_users_code_raised_is_put_into_words_in_one_place() -> None:
    """Anywhere else its message could raise, or break the line. The program prints errors of its own."""
    package = Path(inspect.getfile(said_by)).parent
    spells_it_out = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "{type(error).__name__}" in path.read_text(encoding="utf-8")
    }
    assert spells_it_out == {"subject.py", "cli/app.py"}
