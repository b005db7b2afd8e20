from __future__ import annotations

import re
from xml.etree import ElementTree

from reports import fault_picture
from reports.record import Record


def points(svg: str, role: str) -> list[tuple[float, float]]:
    found = re.findall(rf'<use xlink:href="#\w+" x="([\d.-]+)" y="([\d.-]+)" style="[^"]*var\(--{role}\)', svg)
    return [(float(x), float(y)) for x, y in found]


def test_honest_results_lie_left_of_the_budget_and_caught_faults_right_of_it(passing_record: Record) -> None:
    svg = fault_picture.draw(passing_record)
    ElementTree.fromstring(svg)
    (budget,) = {float(x) for x in re.findall(r'd="M ([\d.]+) [\d.]+ \nL \1 [\d.]+ \n"[^>]*var\(--ink\)', svg)}
    legend = 1
    honest, caught = points(svg, "pass"), points(svg, "fail")
    assert len(caught) - legend == sum(len(planted.caught_by) for planted in passing_record.planted)
    assert all(x > budget for x, _ in caught[:-legend])
    assert all(x < budget for x, _ in honest[:-legend])
    assert len(honest) - legend > 0


def test_a_margin_without_a_number_is_right_of_all_others(passing_record: Record) -> None:
    caught = points(fault_picture.draw(passing_record), "fail")[:-1]
    lowest = max(caught, key=lambda point: point[1])  # the last row is that of the check without a budget
    assert lowest[0] == max(x for x, _ in caught)
    assert sum(x == lowest[0] for x, _ in caught) == 1


def test_the_same_record_gives_the_same_picture(passing_record: Record) -> None:
    again = Record.model_validate_json(passing_record.model_dump_json())
    assert fault_picture.draw(again) == fault_picture.draw(passing_record)


def test_a_run_that_planted_nothing_has_no_picture(passing_record: Record) -> None:
    assert fault_picture.draw(passing_record.model_copy(update={"planted": []})) == ""
