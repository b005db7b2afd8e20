"""Runs under autocast: float32 weights, bfloat16 products, budgets of bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch

from reports.record_names import DtypeName
from verify.cases import Case
from verify.gate import GateOutcome
from verify.models.dtypes import DTYPES, computing_in, dtype_of_weights
from verify.models.request import ModelRequest, build_model
from verify.precision import AUTOCAST, DTYPE_NAMES, PRECISIONS, rounds_in
from verify.subject import Subject
from verify.subjects.pairwise import WITNESS
from verify.subjects.selection import BUILT_IN
from verify.verdict import Verdict


def test_records_hold_what_runs_compute_in() -> None:
    assert PRECISIONS == get_args(DtypeName) == (*DTYPE_NAMES, AUTOCAST)
    assert tuple(DTYPES) == DTYPE_NAMES
    assert [rounds_in(name) for name in PRECISIONS] == ["float64", "float32", "bfloat16", "bfloat16"]
    assert dtype_of_weights(AUTOCAST) is torch.float32


def test_the_unpacked_path_runs_in_torchs_own_autocast(short_case: Case) -> None:
    model = build_model(ModelRequest(name="tiny", num_layers=1), AUTOCAST).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    group = short_case.groups[0]
    ids = torch.tensor([group.prompt_ids + group.positives[0]])
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits[0]
        with computing_in(AUTOCAST, "cpu"):
            logps = WITNESS.per_token_logps(model, short_case.groups)[0]
        exact = WITNESS.per_token_logps(model, short_case.groups)[0]
    assert logits.dtype is torch.bfloat16
    start = len(group.prompt_ids)
    predicted = torch.log_softmax(logits[start - 1 : -1].float(), -1)
    expected = predicted[torch.arange(len(group.positives[0])), torch.tensor(group.positives[0])]
    # The same logits in bfloat16; sums of their log-softmax in float32 round as the vectors of the processor are long.
    assert torch.allclose(logps, expected, rtol=0, atol=4e-6)
    assert 1e-4 < float((logps - exact).abs().max()) < 0.5


def test_packed_paths_pass_under_autocast_and_wrong_ones_fail(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, third_party: Callable[[str], Subject]
) -> None:
    subjects = [BUILT_IN[name] for name in ("dense-eager", "dense-sdpa", "flex", "split", "split/two-pass")]
    wrong = [third_party(name) for name in ("CausalMaskOnly", "AdaptersStayOn", "ChosenAndRejectedSwapped")]
    outcome = gate([*subjects, *wrong], [two_pairs_case], dtypes=(AUTOCAST,))
    verdicts = {result.subject: result.verdict for result in outcome.results}
    assert {name: verdicts[name] for name in (s.name for s in subjects)} == dict.fromkeys(
        (s.name for s in subjects), Verdict.PASS
    )
    assert {verdicts[subject.name] for subject in wrong} == {Verdict.FAIL}


@pytest.mark.parametrize("precision", [*DTYPE_NAMES])
def test_without_autocast_nothing_is_cast(precision) -> None:
    with computing_in(precision, "cpu"):
        assert not torch.is_autocast_enabled("cpu")
    with computing_in(AUTOCAST, "cpu", weights_stay=False):
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert not torch.is_autocast_cache_enabled()
    assert not torch.is_autocast_enabled("cpu")
