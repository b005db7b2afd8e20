from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import junit, store
from reports.record import Record
from reports.record_results import PlaceRecord
from reports.store import (
    OutputError,
    RecordError,
    check_writable,
    discard_results,
    read_record,
    record_json,
    write_record,
    write_reports,
)


@pytest.fixture
def content(small_record: Record) -> dict[str, Any]:
    loaded = json.loads(record_json(small_record))
    assert isinstance(loaded, dict)
    return loaded


def read_text(text: str, folder: Path) -> Record:
    path = folder / "given.json"
    path.write_text(text, encoding="utf-8")
    return read_record(path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_read_is_what_was_written(small_record: Record, tmp_path: Path) -> None:
    path = write_record(small_record, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "record.json"
    for source in (path, path.parent):
        assert record_json(read_record(source)) == record_json(small_record)


def test_nan_and_infinities_come_back_as_themselves_and_never_as_null(small_record: Record, tmp_path: Path) -> None:
    bad = next(r for r in small_record.results if r.verdict == "ERROR").judgements[0]
    odd = next(r for r in small_record.results if r.verdict == "INCONCLUSIVE").judgements[0]
    assert math.isnan(bad.measured or 0)
    again = read_record(write_record(small_record, tmp_path))
    bad_again = next(r for r in again.results if r.verdict == "ERROR").judgements[0]
    odd_again = next(r for r in again.results if r.verdict == "INCONCLUSIVE").judgements[0]
    assert bad_again.measured is not None
    assert math.isnan(bad_again.measured)
    assert bad_again.measured != bad.measured
    assert odd_again.budget == odd.budget == math.inf


@given(st.floats())
def test_every_number_survives_json(value: float) -> None:
    place = PlaceRecord(where="", actual=value, expected=0, measured=0, budget=0)
    again = PlaceRecord.model_validate(json.loads(place.model_dump_json(), parse_constant=pytest.fail), strict=True)
    assert again.actual.hex() == value.hex()


def test_json_is_indented_and_keeps_names_readable(small_record: Record) -> None:
    text = record_json(small_record)
    assert text.startswith('{\n  "schema_version": 5,\n')
    assert text.endswith("}\n")
    assert "漢" in text
    packages = list(json.loads(text)["environment"]["packages"])
    assert packages == ["peft", "torch", "transformers"]


@pytest.mark.parametrize("version", [6, 0, "1", True, 1.5, None])
def test_another_schema_version_is_refused(content: dict[str, Any], version: object, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"given\.json: .*schema_version.*this program reads versions 1, 2, 3, 4, 5"):
        read_text(json.dumps(content | {"schema_version": version}), tmp_path)


def test_an_unknown_field_is_refused_with_its_place(content: dict[str, Any], tmp_path: Path) -> None:
    content["results"][2]["judgements"][1]["mood"] = "good"
    with pytest.raises(RecordError, match=r"given\.json: .*results\.2\.judgements\.1\.mood: unknown field"):
        read_text(json.dumps(content), tmp_path)


def test_a_missing_field_is_refused_with_its_place(content: dict[str, Any], tmp_path: Path) -> None:
    del content["timing"]["import_s"]
    with pytest.raises(RecordError, match=r"timing\.import_s: field is missing"):
        read_text(json.dumps(content), tmp_path)


def test_a_number_written_as_text_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    content["num_compared"] = str(content["num_compared"])
    with pytest.raises(RecordError, match="num_compared"):
        read_text(json.dumps(content), tmp_path)


def test_a_record_that_was_edited_to_pass_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="the run is PASS, but has 1 result with verdict ERROR"):
        read_text(json.dumps(content | {"verdict": "PASS"}), tmp_path)


def test_many_problems_are_named_in_one_short_message(content: dict[str, Any], tmp_path: Path) -> None:
    for result in content["results"]:
        result["case"] = 3
    with pytest.raises(RecordError, match="and 3 more") as caught:
        read_text(json.dumps(content), tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_off_file_is_called_that(small_record: Record, share: float, tmp_path: Path) -> None:
    text = record_json(small_record)
    with pytest.raises(RecordError, match="ends before it is complete"):
        read_text(text[: int(len(text) * share)], tmp_path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "ends before it is complete"),
        ("# Report\n", "line 1: not JSON"),
        ("[]", "holds a JSON list; a record is an object"),
        ('{"schema_version": 1, "verdict": NaN}', "a bare NaN"),
        ('{"schema_version": 1, "schema_version": 1}', "'schema_version' occurs twice"),
        ("[" * 100_000, "not the JSON of a record|ends before"),
        ("{}", "no schema_version"),
    ],
)
def test_what_is_not_a_record_is_refused(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=match):
        read_text(text, tmp_path)


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDFFF", "a\\udc00b"])
def test_half_a_surrogate_pair_is_refused_with_its_place(content: dict[str, Any], escape: str, tmp_path: Path) -> None:
    """In any text, whether or not the field is one that is made readable."""
    text = json.dumps(content)
    for field in ("created_utc", "tool_version"):
        edited = text.replace(f'"{field}": "', f'"{field}": "{escape}', 1)
        with pytest.raises(RecordError, match=rf"given\.json: {field} holds half a surrogate pair"):
            read_text(edited, tmp_path)
    with pytest.raises(RecordError, match=r"given\.json: cases\.0\.name holds half a surrogate pair"):
        read_text(text.replace('"cases": [{"name": "', f'"cases": [{{"name": "{escape}'), tmp_path)
    with pytest.raises(RecordError, match=r"given\.json: .*ud.* holds half a surrogate pair"):
        read_text(f'{{"{escape}": 1}}', tmp_path)


def test_a_whole_surrogate_pair_is_a_character(content: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(content).replace('"created_utc": "', '"created_utc": "\\ud83d\\ude00', 1)
    assert read_text(text, tmp_path).created_utc.startswith("\U0001f600")


def test_binary_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(RecordError, match=r"x\.json: not UTF-8 text"):
        read_record(tmp_path / "x.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot read .*none\.json: No such file"):
        read_record(tmp_path / "none.json")


def test_all_reports_are_written_and_the_record_is_the_last(small_record: Record, tmp_path: Path) -> None:
    paths = write_reports(small_record, tmp_path)
    assert [path.name for path in paths] == ["report.md", "report.html", "junit.xml", "record.json"]
    assert names(tmp_path) == {path.name for path in paths}


def test_a_renderer_that_raises_leaves_nothing(
    small_record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(record: Record) -> str:
        raise RuntimeError("interrupted")

    monkeypatch.setattr(junit, "render", broken)
    with pytest.raises(RuntimeError, match="interrupted"):
        write_reports(small_record, tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("survivors", [0, 1, 2, 3])
def test_an_interruption_while_files_are_put_in_place_leaves_no_record(
    small_record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    for name in store.REPORT_FILES:
        (tmp_path / name).write_text("of an earlier run")
    replace, done = Path.replace, []

    def interrupted(self: Path, target: Path) -> Path:
        if len(done) == survivors:
            raise KeyboardInterrupt
        done.append(target)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_reports(small_record, tmp_path)
    assert names(tmp_path) == set(store.REPORT_FILES[:survivors])
    assert all((tmp_path / name).read_text() != "of an earlier run" for name in names(tmp_path))
    with pytest.raises(RecordError, match=r"holds no record\.json: no run was finished there"):
        read_record(tmp_path)


def test_what_a_killed_run_left_aside_is_not_taken_for_a_result(small_record: Record, tmp_path: Path) -> None:
    (tmp_path / ".record.json.0123abcd.partial").write_text(record_json(small_record))
    with pytest.raises(RecordError, match="no run was finished there"):
        read_record(tmp_path)


def test_a_record_does_not_stand_beside_the_report_of_another_run(small_record: Record, tmp_path: Path) -> None:
    write_reports(small_record, tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    write_record(small_record, tmp_path)
    assert names(tmp_path) == {"record.json", "mine.txt"}
    discard_results(tmp_path)
    assert names(tmp_path) == {"mine.txt"}


def test_a_writable_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == set()


@pytest.mark.parametrize("inside", ["", "results"])
def test_a_file_in_the_way_is_named(inside: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputError, match=r"cannot write results to .*taken.*: a file is in the way"):
        check_writable(tmp_path / "taken" / inside)


def test_a_folder_in_place_of_a_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OutputError, match=r"report\.html is a folder there"):
        check_writable(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: int = 0, exist_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(OutputError, match=f"cannot write results to {tmp_path}: Permission denied; name a folder"):
        check_writable(tmp_path)
