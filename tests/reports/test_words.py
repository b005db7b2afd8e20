from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.record import Record
from reports.words import NONE, count, depth, duration, number, plural, precise, printable, seconds, setting, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, NONE), (math.nan, "NaN"), (math.inf, "inf"), (-math.inf, "-inf"), (0.0, "0"), (-0.0, "0"),
        (1.0, "1.00"), (0.41, "0.410"), (12.34, "12.3"), (123.4, "123"), (999.9, "1.00e3"), (1234.0, "1.23e3"),
        (0.001, "0.00100"), (3.2e-6, "3.20e-6"), (-4.567e-15, "-4.57e-15"), (5e-324, "4.94e-324"), (1e300, "1.00e300"),
    ],
)  # fmt: skip
def test_a_number_has_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False).filter(bool))
def test_a_number_is_off_by_at_most_half_a_digit_and_a_difference_is_never_worded_as_zero(value: float) -> None:
    assert math.isclose(float(number(value)), value, rel_tol=0.0051) or abs(value) > 1.79e308
    assert number(value) != "0"


def test_two_float32_neighbours_do_not_look_alike() -> None:
    assert precise(-3.25) != precise(-3.2500002384185791)


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0.00 B"), (1536, "1.50 KiB"), (3 * 2**30, "3.00 GiB"), (2**42, "4096.00 GiB")]
)
def test_a_size_has_a_binary_unit(amount: int, text: str) -> None:
    assert size(amount) == text


def test_counts_and_durations() -> None:
    assert count(1234567) == "1,234,567"
    assert (plural(1, "case"), plural(1024, "case")) == ("1 case", "1,024 cases")
    assert (seconds(41.26), seconds(4126.4)) == ("41.3 s", "4,126 s")


def test_a_cut_depth_is_said_in_words(record: Record) -> None:
    assert depth(record.model) == "8 of 28 layers"
    assert depth(record.model.model_copy(update={"num_layers": 28})) == "all 28 layers"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\x00b\x7f\x85", r"a\x00b\x7f\x85"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("line\nbreak\tand tab", "line\nbreak\tand tab"),
        ("漢字 é 👩‍💻", "漢字 é 👩‍💻"),
        ("\ufffe", r"\ufffe"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@settings(max_examples=50)
@given(st.text())
def test_printable_text_is_valid_xml(text: str) -> None:
    element = ElementTree.Element("t", a=printable(text))
    assert ElementTree.fromstring(ElementTree.tostring(element)).attrib["a"] == printable(text)


def test_settings_are_worded_without_quotes() -> None:
    value = {"name": "sigmoid", "on": True, "beta": 0.1, "drop": None, "targets": ["q", "v"], "none": []}
    assert setting(value) == "name sigmoid, on yes, beta 0.1, drop none, targets q, v, none none"


def test_durations_are_seconds_then_minutes() -> None:
    assert [duration(seconds) for seconds in (9.4, 99.0, 150.0)] == ["9 s", "99 s", "2 minutes"]
