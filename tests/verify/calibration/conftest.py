"""Batches as they are kept, without running anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reports.calibration import BatchRecord, Distribution, ExtremeRecord, Series, SubjectTally


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., BatchRecord]:
    """A batch of one case with some honest ratios of one subject, and some of one fault."""

    def make(number: int, honest: list[float], fault: list[float], **changes: Any) -> BatchRecord:
        dtype = changes.pop("dtype", "float32")
        of = {"honest": ("dense-sdpa", honest, "largest"), "fault": ("fault:a", fault, "smallest")}
        settings: dict[str, Any] = {
            "number": number,
            "dtype": dtype,
            "num_cases": 1,
            "num_completion_tokens": 7,
            "processor_s": 0.5,
            "results_by_verdict": {
                kind: {"FAIL": sum(v > 1 for v in values), "PASS": sum(v <= 1 for v in values)}
                for kind, (_, values, _) in of.items()
            },
            "largest_honest": max(honest, default=0.0),
            "series": [
                Series(
                    population=kind, dtype=dtype, measure="ratio", quantity="any", distance="any",
                    distribution=Distribution.of(values, end),
                )
                for kind, (_, values, end) in of.items()
            ],
            "tallies": [
                SubjectTally(
                    population=kind, dtype=dtype, name=name, num_results=len(values), beyond=sum(v > 1 for v in values),
                    outermost=max(values) if kind == "honest" else min(values), expected=kind == "fault",
                )
                for kind, (name, values, _) in of.items()
                if values
            ],
            "extremes": [
                ExtremeRecord(
                    ratio=ratio, dtype=dtype, batch=number, case=f"b{number}-c0", shape="random: 3+2+2", subject=name,
                    quantity="gradients", distance="oracle", statistic="max", beta=0.1, label_smoothing=0.0,
                )
                for name, values, end in of.values()
                for ratio in sorted(values, reverse=end == "largest")[:1]
            ],
            **changes,
        }  # fmt: skip
        return BatchRecord(**settings)

    return make
