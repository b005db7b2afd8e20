"""Records of measured cost: what contradicts itself is refused, and what is shown is what was measured."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from reports import cost_html, cost_markdown, cost_overview, cost_picture
from reports.cost_consistency import contradictions
from reports.cost_record import CostRecord, HeldOutRecord, WorkloadRecord
from reports.cost_store import COST_FILES, cost_json, read_cost, write_cost
from reports.cost_terminal import print_cost
from reports.difference import Change, closing_line, compare
from reports.record import Record
from reports.results import read_result
from reports.store import RecordError

SECOND = 1_000_000_000
HOSTILE = "<script>alert(1)</script> | `x` $x_1$ \x1b[31m \u65e5"


def step(path: str, number: int, seconds: float, peak: int) -> dict[str, Any]:
    return {
        "phase": "measured",
        "session": 0,
        "round": number,
        "place": 0,
        "path": path,
        "rank": 0,
        "elapsed_ns": round(seconds * SECOND),
        "cpu_ns": SECOND,
        "graphs_compiled": 0,
        "loss": 0.7,
        "held_bytes": 100,
        "peak_bytes": peak,
        "reserved_bytes": None,
        "host_peak_bytes": None,
    }


PADDED = {"median_s": 2.0, "lower_quartile_s": 2.0, "upper_quartile_s": 3.5, "peak_bytes": 400, "step_bytes": 300}
PADDED |= {"slots_per_s": 14.0, "tokens_per_s": 13.0, "pairs_per_s": 0.5, "utilisation": 26 / 28}
SPLIT = {"median_s": 1.0, "lower_quartile_s": 1.0, "upper_quartile_s": 1.25, "peak_bytes": 300, "step_bytes": 200}
SPLIT |= {"slots_per_s": 18.0, "tokens_per_s": 18.0, "pairs_per_s": 1.0, "utilisation": 1.0}


def figures(path: str, **changes: Any) -> dict[str, Any]:
    """Of 2, 2 and 5 s (padded) or 1, 1 and 1.5 s (split), by hand."""
    return {
        "path": path,
        "num_steps": 3,
        "median_cpu_s": 1.0,
        "reserved_bytes": None,
        "host_peak_bytes": None,
        "steps_compiled": 0,
        **(PADDED if path == "padded" else SPLIT),
        **changes,
    }


def workload(name: str = "balanced", **changes: Any) -> dict[str, Any]:
    """Three rounds of padded (2 s, 400 bytes) and split (1 s, 300 bytes)."""
    lengths = {"prompt": 8, "responses": [4, 6]}
    batch = {
        "rank": 0,
        "groups": [lengths],
        "slots": {"padded": 28, "split": 18},
        "tokens": {"padded": 26, "split": 18},
        "forward_flops": {"padded": 1000, "split": 600},
    }
    ratio = {
        "path": "split",
        "over": "padded",
        "time": {"value": 0.5, "low": 0.3, "high": 0.5},
        "cpu_time": {"value": 1.0, "low": 1.0, "high": 1.0},
        "memory": 0.75,
        "step_memory": 200 / 300,
        "flops": 0.6,
    }
    return {
        "name": name,
        "seed": 0,
        "source": "by hand",
        "enters_comparison": True,
        "num_rounds": 3,
        "batches": [{"round": number, **batch} for number in range(3)],
        "steps": [
            step(*each)
            for each in (
                ("padded", 0, 2, 400),
                ("padded", 1, 2, 380),
                ("padded", 2, 5, 400),
                ("split", 0, 1, 300),
                ("split", 1, 1, 300),
                ("split", 2, 1.5, 300),
            )
        ],
        "held_out": [
            {"when": "end", "path": "padded", "loss": 0.6964245, "margins": [0.5, -0.5, 0.0, 0.1]},
            {"when": "end", "path": "split", "loss": 0.7092368, "margins": [0.5, -0.5, 0.1, -0.1]},
        ],
        "figures": [figures("padded"), figures("split")],
        "ratios": [ratio],
        "best_unpacked_time": "padded",
        "best_unpacked_memory": "padded",
        **changes,
    }


@pytest.fixture
def make(small_record: Record) -> Callable[..., CostRecord]:
    """A record by hand, changed as given."""
    gate = small_record

    def call(**changes: Any) -> CostRecord:
        paths = [
            {
                "name": name,
                "role": role,
                "how": "by hand",
                "subject": name,
                "state": "measured",
                "reason": "",
                "parity": None,
            }
            for name, role in (("padded", "unpacked"), ("split", "packed"))
        ]
        sparse = {
            "name": "sparse",
            "role": "packed",
            "how": "by hand",
            "subject": "flex",
            "state": "NOT_APPLICABLE",
            "reason": "no backward on cpu",
            "parity": None,
        }
        recorded = {
            "check": "5 steps",
            "path": "sparse",
            "over": "vanilla",
            "recorded_time": 0.6395,
            "recorded_memory": 0.6046,
            "over_here": "padded",
            "measured_time": None,
            "measured_memory": None,
            "why_not": "no backward on cpu",
        }
        return CostRecord.model_validate(
            {
                "tool_version": "0",
                "created_utc": "2026",
                "command": ["packparity", "cost"],
                "environment": gate.environment.model_dump(),
                "machine": {"cores": 2},
                "model": gate.model.model_dump(),
                "dtype": "float32",
                "objective": {"name": "sigmoid"},
                "optimizer": {"name": "AdamW"},
                "preset": "mechanism",
                "scale": "tiny",
                "seeds": {"weights": 0},
                "num_ranks": 1,
                "pairs_per_rank": 1,
                "sharding": {},
                "memory_measure": "live-bytes",
                "memory_meaning": "bytes",
                "paths": [*paths, sparse],
                "workloads": [workload()],
                "recorded": [recorded],
                "conditions": [{"what": "model", "recorded": "Qwen3-8B", "here": "tiny"}],
                "data": {},
                "procedure": ["as written"],
                "not_measured": ["CUDA"],
                "notes": [],
                "total_s": 3.0,
                **changes,
            }
        )

    return call


def test_a_record_is_read_as_it_was_written(tmp_path: Path, make: Callable[..., CostRecord]) -> None:
    record = make()
    written = write_cost(record, tmp_path)
    assert tuple(path.name for path in written) == COST_FILES
    assert read_cost(tmp_path) == read_result(tmp_path) == record


def of_split(**changes: Any) -> dict[str, Any]:
    return {"figures": [figures("padded"), figures("split", **changes)]}


def of_ratio(**changes: Any) -> dict[str, Any]:
    return {"ratios": [{**workload()["ratios"][0], **changes}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (of_split(median_s=1.1), "median of split is 1.1, its steps give 1.0"),
        (of_split(lower_quartile_s=0.9), "lower quartile of split is 0.9, its steps give 1.0"),
        (of_split(upper_quartile_s=1.2), "upper quartile of split is 1.2, its steps give 1.25"),
        (of_split(median_cpu_s=0.5), "median of processor time of split is 0.5, its steps give 1"),
        (of_split(peak_bytes=290), "peak of split is 290, its steps give 300"),
        (of_split(peak_bytes=None), "peak of split is None, its steps give 300"),
        (of_split(step_bytes=190), "peak of the step alone of split is 190, its steps give 200"),
        (of_split(reserved_bytes=1), "peak of reserved bytes of split is 1, its steps give None"),
        (of_split(host_peak_bytes=1), "peak of host memory of split is 1, its steps give None"),
        (of_split(steps_compiled=1), "number of steps that compiled of split is 1, its steps give 0"),
        (of_split(slots_per_s=19.0), "number of slots per second of split is 19.0, its steps give 18.0"),
        (of_split(tokens_per_s=19.0), "number of tokens per second of split is 19.0, its steps give 18.0"),
        (of_split(pairs_per_s=1.5), "number of pairs per second of split is 1.5, its steps give 1.0"),
        (of_split(utilisation=0.9), "utilisation of split is 0.9, its steps give 1.0"),
        ({"steps": [step("padded", 0, 2, 400)]}, "3 steps of padded, but 1 of 3 rounds"),
        ({"steps": workload()["steps"][:-1]}, "round 2 has 0 measured steps of split on rank 0: expected one"),
        ({"steps": [*workload()["steps"], step("split", 0, 1, 300)]}, "is recorded twice"),
        ({"steps": [*workload()["steps"], {**step("split", 0, 1, 300), "session": 1}]}, "round 0 has 2 measured steps"),
        ({"batches": workload()["batches"][:2]}, "round 2 has 0 batches of rank 0: expected 1"),
        ({"best_unpacked_time": "split"}, "the best unpacked time is that of split"),
        ({"best_unpacked_memory": None}, "the best unpacked memory is that of None"),
        (of_ratio(memory=0.7), "memory of split over padded is 0.7, the figures give 0.75"),
        (of_ratio(step_memory=0.7), "memory of the step alone of split over padded is 0.7"),
        (of_ratio(flops=0.7), "FLOPs of split over padded is 0.7, the figures give 0.6"),
        (of_ratio(over="dense"), "of which one has no figures"),
        (of_ratio(time={"value": 0.4, "low": 0.3, "high": 0.5}), "time of split over padded is 0.4, the figures give"),
        (of_ratio(time={"value": 0.5, "low": 0.2, "high": 0.5}), "time of .* has the interval 0.2 to 0.5, rounds have"),
        (of_ratio(time={"value": 0.5, "low": 0.3, "high": 0.6}), "time of .* has the interval 0.3 to 0.6, rounds have"),
        (of_ratio(time={"value": 0.5, "low": 0.5, "high": 0.4}), "has the interval 0.5 to 0.4"),
        (of_ratio(cpu_time={"value": 1.0, "low": 0.9, "high": 1.0}), "processor time of .* has the interval 0.9 to 1"),
        ({"figures": [figures("padded")], "ratios": []}, "figures of other paths than those"),
        ({"ratios": []}, "no ratio of padded and split, which were both measured"),
        ({"held_out": workload()["held_out"][:1]}, "0 results of split held out at the end: expected one"),
        (
            {
                "held_out": [
                    {**held, "margins": [0.5] * number} for number, held in enumerate(workload()["held_out"], 1)
                ]
            },
            "held out are 1 and 2 pairs",
        ),
    ],
)
def test_a_workload_that_contradicts_its_steps_is_refused(
    make: Callable[..., CostRecord], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        make(workloads=[workload(**changes)])


def other_batch(**changes: Any) -> dict[str, Any]:
    first, *others = workload()["batches"]
    return {"batches": [{**first, **changes}, *others]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            other_batch(slots={"padded": 28, "split": 19}),
            "round 0 has 19 slots and 18 tokens of split on rank 0: lengths give 18 and 18",
        ),
        (
            other_batch(tokens={"padded": 27, "split": 18}),
            "round 0 has 28 slots and 27 tokens of padded on rank 0: lengths give 28 and 26",
        ),
        (
            other_batch(groups=[{"prompt": 9, "responses": [4, 6]}]),
            "round 0 has 28 slots and 26 tokens of padded on rank 0: lengths give 30 and 28",
        ),
        (
            other_batch(slots={"padded": 28, "split": 18, "dense": 20}),
            "round 0 has 20 slots and None tokens of dense on rank 0: lengths give 18 and 18",
        ),
    ],
)
def test_a_batch_whose_counts_are_not_those_of_its_lengths_is_refused(
    make: Callable[..., CostRecord], changes: dict[str, Any], message: str
) -> None:
    content = workload(**changes)
    problems = list(contradictions(WorkloadRecord.model_construct(**_parts(content))))
    assert any(message in problem for problem in problems), problems
    with pytest.raises(ValidationError, match="balanced: "):
        make(workloads=[content])


def _parts(content: dict[str, Any]) -> dict[str, Any]:
    """The parts of a workload, each valid by itself."""
    return {
        name: TypeAdapter(field.annotation).validate_python(content[name])
        for name, field in WorkloadRecord.model_fields.items()
    }


def test_a_held_out_loss_of_other_margins_is_refused(make: Callable[..., CostRecord]) -> None:
    padded, split = workload()["held_out"]
    with pytest.raises(
        ValidationError, match=r"balanced: the loss of split held out at the end is 0\.69, its margins "
    ):
        make(workloads=[workload(held_out=[padded, {**split, "loss": 0.69}])])
    with pytest.raises(ValidationError, match="the loss of padded held out at the end is"):
        make(workloads=[workload(held_out=[{**padded, "margins": [0.5, -0.5, 0.0, -0.1]}, split])])
    # What margins alone do not determine is not held against them.
    of_margins = [padded, {**split, "loss": 0.69}]
    assert make(objective={"name": "sigmoid", "nll_weight": 0.2}, workloads=[workload(held_out=of_margins)])


CITED = {
    "record_sha256": "0", "created_utc": "2026", "tool_version": "0", "subject": "split", "dtype": "float32",
    "world_size": 1, "num_compared": 7, "cases": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subject": "dense"}, "path split is packed, of subject split, and cites what was judged of dense"),
        ({"dtype": "bfloat16"}, "the dtype of what it cites is bfloat16, of this run float32"),
        ({"tool_version": "1"}, "the version of what it cites is 1, of this run 0"),
        ({"world_size": 2}, "the sharding of what it cites is over ranks, of this run none"),
    ],
)
def test_evidence_of_something_else_is_refused(
    make: Callable[..., CostRecord], changes: dict[str, Any], message: str
) -> None:
    def citing(**other: Any) -> CostRecord:
        paths = [path.model_dump() for path in make().paths]
        return make(paths=[paths[0], {**paths[1], "parity": {**CITED, **other}}, paths[2]])

    assert citing().paths[1].parity is not None
    with pytest.raises(ValidationError, match=message):
        citing(**changes)


def test_a_workload_that_is_there_twice_and_ranks_without_sharding_are_refused(make: Callable[..., CostRecord]) -> None:
    with pytest.raises(ValidationError, match="workload balanced is there 2 times"):
        make(workloads=[workload(), workload()])
    with pytest.raises(ValidationError, match="1 ranks, and the sharding is"):
        make(sharding={"by": "FSDP2"})


def test_a_record_that_contradicts_its_workloads_is_refused(make: Callable[..., CostRecord]) -> None:
    row = {**make().recorded[0].model_dump(), "path": "split", "why_not": "", "measured_time": 0.5}
    assert make(recorded=[{**row, "measured_memory": 0.75}]).recorded[0].measured_time == 0.5
    for changes, message in (
        ({"recorded": [{**row, "measured_memory": 0.7}]}, "split over padded has a memory of 0.7: not measured"),
        ({"recorded": [{**row, "measured_time": 0.4}]}, "split over padded has a time of 0.4: not measured"),
        ({"pairs_per_rank": 2}, "balanced has batches of other than 2 pairs"),
        ({"num_ranks": 2}, r"balanced has steps of ranks \[0\]; there are 2"),
    ):
        with pytest.raises(ValidationError, match=message):
            make(**changes)


@pytest.mark.parametrize(
    "changes", [{"elapsed_ns": 0}, {"elapsed_ns": -5}, {"cpu_ns": -1}, {"peak_bytes": 99}, {"loss": float("nan")}]
)
def test_a_step_that_no_clock_or_allocator_can_have_read_is_refused(changes: dict[str, Any]) -> None:
    broken = {**step("split", 2, 1, 300), **changes}
    with pytest.raises(ValidationError):
        WorkloadRecord.model_validate(workload(steps=[*workload()["steps"][:-1], broken]))


def test_a_path_is_measured_or_says_why_not(make: Callable[..., CostRecord]) -> None:
    paths = [path.model_dump() for path in make().paths]
    for changes in ({"reason": ""}, {"state": "measured"}):
        with pytest.raises(ValidationError, match="path sparse is"):
            make(paths=[*paths[:2], {**paths[2], **changes}])


def test_a_tie_counts_as_one_half_and_against_a_decision() -> None:
    padded, split = (HeldOutRecord.model_validate(held) for held in workload()["held_out"])
    assert (padded.accuracy, padded.ties) == (2.5 / 4, 1)
    assert split.accuracy == 2 / 4
    assert padded.flips(split) == split.flips(padded) == 2
    assert padded.mean_margin == pytest.approx(0.025)


def test_the_headline_is_over_the_best_unpacked_path_and_says_unverified(make: Callable[..., CostRecord]) -> None:
    (line,) = cost_overview.headline(make())
    assert line == (
        "split (unverified): over the best unpacked path; balanced: 0.500 [0.300, 0.500] of the time of padded "
        "(1.00 [1.00, 1.00] of its processor time), 0.750 of the memory of padded"
    )
    assert cost_overview.absent(make()) == ["sparse: NOT_APPLICABLE: no backward on cpu"]


def test_a_cited_parity_result_is_shown_with_its_digest(make: Callable[..., CostRecord]) -> None:
    cited = {
        "record_sha256": "ab" * 32,
        "created_utc": "2026",
        "tool_version": "0",
        "subject": "split",
        "dtype": "float32",
        "num_compared": 1234,
        "cases": 5,
    }
    paths = [path.model_dump() for path in make().paths]
    record = make(paths=[paths[0], {**paths[1], "parity": cited}, paths[2]])
    assert "parity PASS cited" in cost_overview.headline(record)[0]
    assert "PASS in float32, 1,234 values in 5 cases (2026, record abababababab)" in cost_markdown.render(record)


def test_every_rendering_shows_medians_ratios_and_what_was_recorded(make: Callable[..., CostRecord]) -> None:
    record = make()
    console = Console(width=200, record=True, file=io.StringIO())
    print_cost(record, console)
    for text in (cost_markdown.render(record), cost_html.render(record), console.export_text()):
        plain = text.replace("\\", "")
        for shown in ("0.500 [0.300, 0.500]", "0.6395", "no backward on cpu", "unverified", "2.00", "1.00"):
            assert shown in plain or f"{float(shown.split()[0]):.3f}"[:5] in plain


def test_text_from_a_run_is_shown_and_not_obeyed(make: Callable[..., CostRecord]) -> None:
    record = make(workloads=[workload(name=HOSTILE, source=HOSTILE)], notes=[HOSTILE])
    page, document = cost_html.render(record), cost_markdown.render(record)
    assert "<script>" not in page
    assert "<script>" not in document
    assert "\x1b" not in page + document
    for picture in (cost_picture.draw_ratios(record), cost_picture.draw_lengths(record)):
        assert "<script>" not in picture


def test_pictures_are_files_of_their_own_that_do_not_change(make: Callable[..., CostRecord]) -> None:
    sweep = workload("length-64", enters_comparison=False)
    record = make(workloads=[workload(), sweep])
    for draw in (cost_picture.draw_ratios, cost_picture.draw_lengths):
        picture = cost_picture.alone(draw(record))
        assert picture == cost_picture.alone(draw(record))
        ElementTree.fromstring(picture)
        assert "var(--" not in picture
        assert not re.search(r"\bnan\b", picture)
    assert "FLOP bound" in cost_picture.draw_lengths(record)


def test_a_workload_without_an_unpacked_path_is_still_shown(make: Callable[..., CostRecord]) -> None:
    alone = workload(
        steps=workload()["steps"][3:],
        figures=workload()["figures"][1:],
        ratios=[],
        held_out=[],
        best_unpacked_time=None,
        best_unpacked_memory=None,
    )
    record = make(paths=[make().paths[1].model_dump()], workloads=[alone])
    assert "no unpacked path was measured beside it" in cost_markdown.render(record)
    assert cost_html.render(record)


def test_two_records_are_compared_by_their_ratios(make: Callable[..., CostRecord]) -> None:
    slower = workload(
        steps=[*workload()["steps"][:3], *(step("split", number, 1.6, 300) for number in range(3))],
        **of_split(
            median_s=1.6,
            lower_quartile_s=1.6,
            upper_quartile_s=1.6,
            slots_per_s=11.25,
            tokens_per_s=11.25,
            pairs_per_s=0.625,
        ),
        **of_ratio(time={"value": 0.8, "low": 0.32, "high": 0.8}),
    )
    difference = compare(make(), make(workloads=[slower]))
    assert [pair.what for pair in difference.moved] == ["balanced, split: time"]


def test_other_numbers_of_steps_are_a_setting_that_differs(make: Callable[..., CostRecord]) -> None:
    before = make()
    (first, *rest) = before.workloads
    after = before.model_copy(update={"workloads": [first.model_copy(update={"num_rounds": 20}), *rest]})
    difference = compare(before, after)
    assert difference.settings == (Change(f"steps of {first.name}, seed {first.seed}", "3", "20"),)
    assert closing_line(difference).endswith(", 1 setting differs")


def test_what_is_no_record_of_cost_is_refused(tmp_path: Path, make: Callable[..., CostRecord]) -> None:
    with pytest.raises(RecordError, match=r"holds no cost\.json"):
        read_cost(tmp_path)
    content = json.loads(cost_json(make()))
    for changes, message in (({"schema_version": 9}, "of schema_version 9"), ({"extra": 1}, "extra: unknown field")):
        (tmp_path / "cost.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(RecordError, match=message):
            read_cost(tmp_path)
