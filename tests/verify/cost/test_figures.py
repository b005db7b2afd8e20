"""What steps of two ranks amount to, by hand."""

from __future__ import annotations

import pytest

from reports.cost_record import PathFigures, RatioRecord, StepRecord, WorkloadRecord
from verify.cost.comparison import recorded_ratios
from verify.cost.figures import workload_record
from verify.cost.journal import Done
from verify.cost.paths import PATHS
from verify.cost.workload import drawn_plan
from verify.packing_plan.costs import FlopPrices, GroupLengths

SECOND = 1_000_000_000


def step(path: str, round_number: int, rank: int, seconds: float, peak: int, held: int = 10) -> StepRecord:
    return StepRecord(
        phase="measured",
        session=0,
        round=round_number,
        place=0,
        path=path,
        rank=rank,
        elapsed_ns=round(seconds * SECOND),
        cpu_ns=round(seconds * SECOND / 2),
        graphs_compiled=int(round_number == 0),
        loss=0.7,
        held_bytes=held,
        peak_bytes=peak,
        reserved_bytes=None,
        host_peak_bytes=peak,
    )


PAIRS = [GroupLengths(4, (2, 3)), GroupLengths(6, (1, 1))]
PADDED = [
    step("padded", 0, 0, 1, 100),
    step("padded", 0, 1, 2, 50),
    step("padded", 1, 0, 4, 60),
    step("padded", 1, 1, 3, 80),
]
SPLIT = [step("split", 0, 0, 1, 50), step("split", 0, 1, 1, 50), step("split", 1, 0, 1, 70), step("split", 1, 1, 2, 20)]


@pytest.fixture
def record() -> WorkloadRecord:
    plan = drawn_plan("w", PAIRS, seed=0, num_steps=2, num_held_out=0, vocab_size=9, source="by hand")
    paths = [PATHS["padded"], PATHS["split"]]
    prices = FlopPrices(by_token=1, by_pair=0, by_predictor=0)
    return workload_record(plan, Done([*PADDED, *SPLIT]), paths, prices, num_ranks=2, pairs_per_rank=1, seed=0)


def figures(record: WorkloadRecord, path: str) -> PathFigures:
    found = record.figures_of(path)
    assert found is not None
    return found


def ratio(record: WorkloadRecord) -> RatioRecord:
    found = record.ratio("split", "padded")
    assert found is not None
    return found


def test_a_step_is_that_of_the_slowest_rank(record: WorkloadRecord) -> None:
    padded = figures(record, "padded")
    assert (padded.median_s, padded.lower_quartile_s, padded.upper_quartile_s) == (3.0, 2.5, 3.5)  # of 2 and 4
    assert padded.median_cpu_s == 2.5  # of 1.5 and 3.5


def test_memory_is_summed_over_ranks_step_by_step(record: WorkloadRecord) -> None:
    assert figures(record, "padded").peak_bytes == 150
    assert figures(record, "padded").step_bytes == 130
    assert figures(record, "split").peak_bytes == 100
    assert ratio(record).memory == 100 / 150


def test_rates_count_both_ranks(record: WorkloadRecord) -> None:
    """Each round has both pairs: 7 + 6 and 7 + 7 unpacked tokens, padded to 2 x 7 on each rank, 9 + 8 packed."""
    padded, split = figures(record, "padded"), figures(record, "split")
    assert padded.pairs_per_s == pytest.approx((2 / 2 + 2 / 4) / 2)
    assert padded.slots_per_s == pytest.approx((28 / 2 + 28 / 4) / 2)
    assert padded.tokens_per_s == pytest.approx((27 / 2 + 27 / 4) / 2)
    assert padded.utilisation == pytest.approx(27 / 28)
    assert split.tokens_per_s == split.slots_per_s == pytest.approx((17 / 1 + 17 / 2) / 2)
    assert ratio(record).flops == pytest.approx(17 / 28)


def test_time_ratio_and_best_unpacked_path(record: WorkloadRecord) -> None:
    assert ratio(record).time.value == 1.5 / 3
    assert (record.best_unpacked_time, record.best_unpacked_memory) == ("padded", "padded")
    assert figures(record, "padded").steps_compiled == 1


@pytest.mark.parametrize(
    ("data_shape", "reasons"),
    [
        ("h4_ultrafeedback", ["--data is not of the shape argilla_ultrafeedback", "no backward"]),
        ("argilla_ultrafeedback", ["no backward", "--data is not of the shape h4_ultrafeedback"]),
    ],
)
def test_a_recorded_ratio_stands_beside_what_was_measured_on_data_of_its_kind(
    record: WorkloadRecord, data_shape: str, reasons: list[str]
) -> None:
    beside = recorded_ratios("ultrafeedback", [record], {}, data_shape)
    assert [each.why_not for each in beside if each.why_not != "the path was not among --paths"] == [
        reason for reason in reasons if reason != "no backward"
    ]
    measured = record.model_copy(update={"ratios": [_renamed(ratio(record), "sparse", "dense")]})
    found = [each.measured_time for each in recorded_ratios("ultrafeedback", [measured], {}, data_shape)]
    assert sorted(found, key=str) == [0.5, None]
    absent = recorded_ratios("mechanism", [record], {"sparse": "no backward on cpu"}, "")
    assert [each.why_not for each in absent] == ["no backward on cpu"] * 2 + ["the path was not among --paths"]


def _renamed(found: RatioRecord, path: str, over: str) -> RatioRecord:
    return found.model_copy(update={"path": path, "over": over})
