"""What is kept of a result, on judgements made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from verify.budget import Budget
from verify.calibration.batch import draw_batch
from verify.calibration.measurement import keep, needed_factor, ratio_of_result
from verify.gate import Result
from verify.judgement import Judgement
from verify.tolerance import Policy
from verify.verdict import Verdict

BUDGET = Budget(value=3 * 0.2 + 0.1, factor=3.0, floor=0.1, noise=0.2, source="by hand")
LOGPS = Judgement(
    quantity="per_token_logps", kind="oracle", statistic="rms", verdict=Verdict.PASS, num_compared=5, measured=0.35,
    budget=BUDGET,
)  # fmt: skip
LOSS = replace(LOGPS, quantity="loss", statistic="max", measured=0.07)
NO_GRADIENT = replace(LOGPS, quantity="gradients", verdict=Verdict.NOT_APPLICABLE, measured=None, budget=None)
RESULT = Result(
    case="c", subject="s", dtype="float32", verdict=Verdict.PASS, reasons=(), judgements=(LOGPS, LOSS, NO_GRADIENT)
)


def test_the_largest_ratio_of_a_result_counts() -> None:
    assert ratio_of_result(RESULT) == pytest.approx(0.35 / 0.7)


@pytest.mark.parametrize(
    ("measured", "factor"), [(0.35, 1.25), (0.7, 3.0), (0.05, 0.0), (math.inf, math.inf), (math.nan, math.inf)]
)
def test_the_factor_that_would_have_sufficed_is_the_distance_above_the_floor_over_the_noise(
    measured: float, factor: float
) -> None:
    """At a budget of exactly what was measured the factor is the shipped one."""
    assert needed_factor(replace(LOGPS, measured=measured)) == pytest.approx(factor)


def test_there_is_no_factor_where_the_budget_is_no_multiple_of_noise() -> None:
    assert needed_factor(LOSS) is None
    assert needed_factor(NO_GRADIENT) is None
    assert needed_factor(replace(LOGPS, budget=replace(BUDGET, noise=0.0))) is None


def test_a_failure_without_a_value_is_infinitely_far() -> None:
    assert ratio_of_result(replace(RESULT, verdict=Verdict.FAIL, judgements=())) == math.inf
    bad = replace(RESULT, judgements=(replace(LOGPS, measured=math.nan, verdict=Verdict.FAIL),))
    assert ratio_of_result(bad) == math.inf


def test_only_what_was_judged_enters_the_distributions_and_the_rest_is_counted(policy: Policy) -> None:
    batch = draw_batch(6, 1, ("float64", "float32"), policy)
    honest, fault = (next(n for n, k in batch.populations.items() if k == kind) for kind in ("honest", "fault"))
    case = batch.request.cases[0].name
    results = [
        replace(RESULT, case=case, subject=honest),
        replace(RESULT, case=case, subject=honest, verdict=Verdict.INCONCLUSIVE),
        replace(RESULT, case=case, subject=honest, verdict=Verdict.NOT_APPLICABLE, judgements=()),
        replace(RESULT, case=case, subject=fault, verdict=Verdict.FAIL, judgements=(replace(LOGPS, measured=70.0),)),
    ]
    kept = keep(batch, results, processor_s=1.0)
    assert kept.results_by_verdict == {
        "honest": {"INCONCLUSIVE": 1, "NOT_APPLICABLE": 1, "PASS": 1},
        "fault": {"FAIL": 1},
    }
    of = {(s.population, s.measure, s.quantity, s.distance): s.distribution.exact for s in kept.series}
    assert of["honest", "ratio", "any", "any"] == pytest.approx([0.5])
    assert of["honest", "ratio", "loss", "oracle"] == pytest.approx([0.1])
    assert of["honest", "factor", "per_token_logps", "oracle"] == pytest.approx([1.25])
    assert ("honest", "factor", "loss", "oracle") not in of
    assert of["fault", "ratio", "per_token_logps", "any"] == pytest.approx([100])
    assert kept.largest_honest == pytest.approx(0.5)
    assert [(t.name, t.num_results, t.beyond) for t in kept.tallies] == [(honest, 1, 0), (fault, 1, 1)]
    assert [(e.subject, e.quantity) for e in kept.extremes] == [
        (honest, "per_token_logps"),
        (fault, "per_token_logps"),
    ]
