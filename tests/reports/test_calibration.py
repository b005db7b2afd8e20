"""The record of a calibration: sums of distributions, quantiles, self-contradictions, and its renderings."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import calibration_markdown, calibration_picture
from reports.calibration import BINS_PER_DECADE, KEPT, CalibrationRecord, Distribution, Series, SubjectTally
from reports.calibration_store import read_calibration, write_calibration
from reports.record_setting import Environment, ModelRecord

ratios = st.lists(st.floats(0, 1e9).map(lambda v: float(f"{v:.6g}")) | st.just(math.inf), max_size=120)
"""Of six digits, as they are kept."""
ENDS = ("largest", "smallest")


def exact_quantile(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


@given(ratios, ratios, st.sampled_from(ENDS))
def test_a_sum_of_distributions_is_that_of_all_values(one: list[float], other: list[float], end: Any) -> None:
    assert Distribution.sum([Distribution.of(one, end), Distribution.of(other, end)]) == Distribution.of(
        one + other, end
    )


@given(ratios.filter(bool), st.sampled_from((0.0, 0.01, 0.5, 0.99, 0.999, 1.0)), st.sampled_from(ENDS))
def test_a_quantile_is_exact_at_the_kept_end_and_a_bin_too_large_at_most_elsewhere(
    values: list[float], share: float, end: Any
) -> None:
    distribution, expected = Distribution.of(values, end), exact_quantile(values, share)
    found = distribution.quantile(share)
    if len(values) <= KEPT or expected == 0 or math.isinf(expected):
        assert found == expected
    else:
        assert expected <= found * (1 + 1e-12) <= expected * 10 ** (1 / BINS_PER_DECADE) * (1 + 1e-9)


def test_the_rarest_values_are_exact() -> None:
    values = [i / 10_000 for i in range(10_000)]
    assert Distribution.of(values, "largest").quantile(0.999) == exact_quantile(values, 0.999)
    assert Distribution.of(values, "smallest").quantile(0.001) == exact_quantile(values, 0.001)


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(Distribution.of([], "largest").quantile(0.5))
    assert math.isnan(Distribution.of([], "largest").outermost)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_values": 4}, "4 values, but the bins hold another number"),
        ({"bins": [(3, 1), (1, 2)]}, "bins are not in order"),
        ({"exact": [0.2, 0.1]}, "2 largest values are kept of 3"),
        ({"exact": [0.1, 0.2, 0.3]}, "3 largest values are kept of 3, or out of order"),
    ],
)
def test_a_distribution_that_does_not_add_up_is_refused(changes: dict[str, Any], message: str) -> None:
    whole = Distribution.of([0.1, 0.2, 0.3], "largest").model_dump()
    with pytest.raises(ValueError, match=message):
        Distribution.model_validate(whole | changes)


def record(**changes: Any) -> CalibrationRecord:
    """Two runs in float32: honest ratios 0.2 and 0.4, a fault at 30 and at no finite value."""
    settings: dict[str, Any] = {
        "tool_version": "0.1.0",
        "hypothesis_version": "6.170.17",
        "command": ["packparity", "calibrate"],
        "created_utc": "2026-01-01T00:00:00+00:00",
        "verdict": "PASS",
        "reasons": [],
        "environment": Environment(
            python="3.11", platform="linux", processor="a", num_threads=1, device="cpu", packages={"torch": "2.13.0"}
        ),
        "model": ModelRecord(
            name="tiny", weights="seeded", weights_sha256=None, num_parameters=10, num_layers=2, num_layers_published=2,
            config={}, lora={},
        ),
        "seed": 0,
        "dtypes": ["float32"],
        "num_batches": 2,
        "num_cases": 3,
        "num_completion_tokens": 40,
        "policy": {},
        "variations": ["eager"],
        "results_by_verdict": {"honest": {"PASS": 2}, "fault": {"FAIL": 2}},
        "run_sizes": [
            {"dtype": "float32", "num_cases": n, "num_batches": 1, "with_alarm": 0, "largest_honest": x}
            for n, x in ((1, 0.2), (2, 0.4))
        ],
        "bounds": [{"dtype": "all", "what": "a run", "num_runs": 2, "with_alarm": 0, "upper_95": 0.776}],
        "tails": [],
        "series": [
            Series(
                population=population, dtype="float32", measure="ratio", quantity="any", distance="any",
                distribution=Distribution.of(values, end),
            )
            for population, values, end in (
                ("honest", [0.2, 0.4], "largest"), ("fault", [30.0, math.inf], "smallest"),
            )
        ],
        "tallies": [
            SubjectTally(
                population=population, dtype="float32", name=name, num_results=2, beyond=beyond, outermost=outermost,
                expected=population == "fault",
            )
            for population, name, beyond, outermost in (("honest", "dense", 0, 0.4), ("fault", "fault:<b>", 1, 30.0))
        ],
        "honest_extremes": [],
        "fault_extremes": [],
        "largest_honest": {"float32": [0.2, 0.4]},
        "processor_s": 1.5,
        "notes": [],
        **changes,
    }  # fmt: skip
    return CalibrationRecord(**settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_batches": 3}, "3 batches, but another number of largest ratios"),
        ({"num_cases": 4}, "4 cases, but the run sizes hold another number"),
        (
            {"results_by_verdict": {"honest": {"PASS": 3}, "fault": {"FAIL": 2}}},
            "3 honest results were judged, 2 are tallied, 2 drawn",
        ),
        (
            {"results_by_verdict": {"honest": {"PASS": 1, "FAIL": 1}, "fault": {"FAIL": 2}}},
            "the calibration is PASS, but honest results are",
        ),
        ({"results_by_verdict": {"honest": {"PASS": 2, "ERROR": 1}, "fault": {"FAIL": 2}}}, "the calibration is PASS"),
    ],
)
def test_a_calibration_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record(**changes)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert [path.name for path in write_calibration(record(), tmp_path)] == [
        "calibration.md", "calibration.svg", "calibration.json",
    ]  # fmt: skip
    assert read_calibration(tmp_path) == record()
    json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"schema_version": 1',
            '"schema_version": 2',
            "schema_version 2; this program reads a calibration of version 1",
        ),
        ('"kind": "calibration"', '"kind": "kill-matrix"', "kind 'kill-matrix'"),
        ('"seed": 0', '"seat": 0', "seed: field is missing"),
        ('"num_cases": 3', '"num_cases": 5', "5 cases, but the run sizes"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_calibration(record(), tmp_path)
    path = tmp_path / "calibration.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_calibration(tmp_path)


def test_the_tables_hold_the_figures_and_escape_names() -> None:
    text = calibration_markdown.render(record())
    assert "| float32 | any quantity | 2 | 0.200 | 0.400 | 0.400 | 0.400 |  |  |  |  |" in text
    assert "| float32 | any quantity | 2 | 30.0 | 30.0 | 30.0 |" in text
    assert "| all | a run | 2 | 0 | 78 % |" in text
    assert "1 of 2" in text
    assert "<b>" not in text


def bars(svg: str, colour: str) -> list[float]:
    """Left edges of the bars of one colour, in the units of the picture."""
    root = ElementTree.fromstring(svg)
    legend = {e for group in root.iter() if group.get("id") == "legend_1" for e in group.iter()}
    paths = [e for e in root.iter() if e.tag.endswith("path") and e not in legend]
    return [float(e.attrib["d"].split()[1]) for e in paths if f"fill: {colour}" in e.attrib.get("style", "")]


def test_the_picture_shows_honest_errors_left_of_the_budget_and_faults_right_of_it() -> None:
    svg = calibration_picture.draw(record())
    assert svg == calibration_picture.draw(record())
    root = ElementTree.fromstring(svg)
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    assert any("float32; 2 results of honest subjects, largest 0.400; 2 results of planted faults" in t for t in texts)
    assert "budget" in texts
    honest, fault = bars(svg, "#2a78b5"), bars(svg, "#c4572e")
    assert len(honest) == len(fault) == 2
    assert max(honest) < min(fault)
