from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib
import pytest

from reports import picture
from reports.record import Record

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def svg(record: Record) -> str:
    return picture.draw(record)


def points(svg: str, role: str) -> list[tuple[float, float]]:
    """Places of the markers that are drawn in a colour of the page."""
    found = re.findall(rf'<use xlink:href="#\w+" x="([\d.-]+)" y="([\d.-]+)" style="[^"]*var\(--{role}\)', svg)
    return [(float(x), float(y)) for x, y in found]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def one_panel(record: Record, **changes: object) -> Record:
    """A record with one judgement, changed."""
    judgement = record.results[0].judgements[0].model_copy(update=changes)
    result = record.results[0].model_copy(update={"judgements": [judgement]})
    return record.model_copy(update={"results": [result]})


def test_it_is_well_formed_and_uses_the_colours_of_the_page_only(svg: str) -> None:
    ElementTree.fromstring(svg)
    assert not re.search(r"#[0-9a-f]{6}\b(?=[;\"])", svg)


def test_the_same_record_gives_the_same_picture(small_record: Record) -> None:
    again = Record.model_validate_json(small_record.model_dump_json())
    assert picture.draw(again) == picture.draw(small_record)


def test_settings_and_figures_of_matplotlib_are_left_alone(small_record: Record) -> None:
    before = dict(matplotlib.rcParams)
    picture.draw(small_record)
    assert dict(matplotlib.rcParams) == before


def test_every_dtype_quantity_and_verdict_is_labelled(svg: str) -> None:
    words = texts(svg)
    for label in ("float64, to the oracle", "bfloat16, to the unpacked witness", "ref log-probs", "gradients", "FAIL",
                  "INCONCLUSIVE", "ERROR", "measured, PASS", "budget", "0", "NaN, inf"):  # fmt: skip
        assert label in words


def test_no_measured_result_is_dropped(record: Record, svg: str) -> None:
    drawn = {
        (r.subject, r.case, r.dtype, j.budget_kind, j.quantity)
        for r in record.results
        for j in r.judgements
        if j.measured is not None
    }
    legend = 4
    roles = ("pass", "fail", "error", "inconclusive")
    assert sum(len(points(svg, role)) for role in roles) == len(drawn) + legend


def test_failing_points_differ_in_shape_as_well_as_colour(svg: str) -> None:
    shapes = {
        role: set(re.findall(rf'<use xlink:href="#(\w+)"[^>]*var\(--{role}\)', svg))
        for role in ("pass", "fail", "error", "inconclusive")
    }
    assert all(shapes.values())
    assert len(set().union(*shapes.values())) == sum(map(len, shapes.values()))


def test_zero_is_left_of_everything_and_nan_right_of_everything(record: Record) -> None:
    budget = 1e-6
    (_, zero), (_, tiny), (_, large), (_, nan), (_, infinite) = (
        sorted((y, x) for x, y in points(picture.draw(one_panel(record, **change)), role))[-1]
        for role, change in (
            ("pass", {"measured": 0.0, "budget": budget, "witness_error": 1e-9}),
            ("pass", {"measured": 1e-9, "budget": budget, "witness_error": 1e-9}),
            ("fail", {"measured": 1.0, "budget": budget, "witness_error": 1e-9, "verdict": "FAIL"}),
            ("error", {"measured": float("nan"), "budget": budget, "witness_error": 1e-9, "verdict": "ERROR"}),
            ("error", {"measured": float("inf"), "budget": budget, "witness_error": 1e-9, "verdict": "ERROR"}),
        )
    )
    assert zero < tiny < large < nan
    assert nan == infinite


def test_a_decade_is_as_wide_everywhere(record: Record) -> None:
    change = {"budget": 1e-3, "witness_error": 1e-9}
    places = [
        max(points(picture.draw(one_panel(record, measured=measured, **change)), "pass"), key=lambda p: p[1])[0]
        for measured in (1e-8, 1e-7, 1e-4)
    ]
    assert places[2] - places[1] == pytest.approx(3 * (places[1] - places[0]), rel=1e-4)


def test_a_run_that_measured_nothing_has_no_picture(record: Record) -> None:
    assert picture.draw(one_panel(record, measured=None, verdict="NOT_APPLICABLE")) == ""


def test_a_run_in_which_nothing_differs_has_a_picture(record: Record) -> None:
    svg = picture.draw(one_panel(record, measured=0.0, budget=0.0, witness_error=0.0))
    assert len(points(svg, "pass")) == 2
