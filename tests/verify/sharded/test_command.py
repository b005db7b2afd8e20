"""``packparity sharded`` on two ranks, through the command line; one run, of which each test makes a claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reports.results import read_result
from reports.sharded_record import ShardedRecord
from verify.cli.sharded import sharded
from verify.sharded.checks import CHECKS
from verify.sharded.faults import FAULTS, HARMLESS

WANTED = 10.0
"""How far beyond its budget a fault has to be in float32."""


def packparity(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "verify", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("sharded")
    options = (
        "--layers",
        "1",
        "--dtype",
        "float32",
        "--case",
        "balanced",
        "--case",
        "examples-of-uneven-length",
        "--quiet",
    )
    subjects = ("--subject", "split", "--subject", "split/block-diagonal")
    return packparity("sharded", *options, *subjects, "--out", str(out)), out


@pytest.fixture(scope="module")
def record(ran: tuple[subprocess.CompletedProcess[str], Path]) -> ShardedRecord:
    found = read_result(ran[1])
    assert isinstance(found, ShardedRecord)
    return found


def test_an_honest_step_passes_with_status_0_on_all_ranks(
    ran: tuple[subprocess.CompletedProcess[str], Path], record: ShardedRecord
) -> None:
    assert (ran[0].returncode, ran[0].stderr) == (0, "")
    assert (record.verdict, record.reasons) == ("PASS", [])
    assert (record.world_size, record.backend, record.started_by) == (2, "gloo", "local ranks")


def test_the_report_is_shown_once_and_written_in_four_forms(
    ran: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    assert ran[0].stdout.count("PASS  sharded parity:") == 1
    assert sorted(path.name for path in ran[1].iterdir()) == ["junit.xml", "sharded.html", "sharded.json", "sharded.md"]


def test_what_is_read_is_what_was_written(record: ShardedRecord) -> None:
    again = ShardedRecord.model_validate(json.loads(record.model_dump_json()), strict=True)
    assert again == record


def test_ranks_had_uneven_numbers_of_groups_and_one_had_none(record: ShardedRecord) -> None:
    divided = {(result.scenario, tuple(result.groups_of_ranks)) for result in record.parity if result.groups_of_ranks}
    assert {("uneven-over-ranks", (3, 2)), ("balanced", (1, 0)), ("examples-of-uneven-length", (2, 2))} <= divided
    idle = next(result for result in record.parity if result.scenario == "balanced")
    assert (idle.verdict, idle.dummies_of_ranks) == ("PASS", [0, 1])


def test_every_quantity_was_held_against_one_process_the_oracle_and_the_unpacked_path(record: ShardedRecord) -> None:
    judged = [result for result in record.parity if result.verdict == "PASS"]
    assert len(judged) == 5
    for result in judged:
        found = {(each.against, each.judgement.quantity) for each in result.held}
        quantities = {"per_token_logps", "loss", "gradients"}
        if not result.scenario.startswith("examples"):
            quantities |= {"ref_per_token_logps", "rewards", "margins"}
        assert found == {(a, q) for a in ("single process", "oracle", "unpacked") for q in quantities}


def test_every_check_passes_on_an_honest_step(record: ShardedRecord) -> None:
    parity = {name for name in CHECKS if name.startswith("parity")}
    assert {check.check: check.verdict for check in record.checks} == dict.fromkeys(CHECKS.keys() - parity, "PASS")


OF_EVERY_RUN = tuple(fault for fault in FAULTS if not fault.frozen and fault.instead is None)


@pytest.mark.parametrize("fault", OF_EVERY_RUN, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_far_beyond_its_budget(record: ShardedRecord, fault: object) -> None:
    (planted,) = [each for each in record.planted if each.fault == fault.name]  # type: ignore[attr-defined]
    assert planted.caught_by == list(fault.checks)  # type: ignore[attr-defined]
    assert min(check.ratio for check in planted.checks) > WANTED


def test_faults_that_cannot_show_are_named_with_the_reason(record: ShardedRecord) -> None:
    left_out = [note for note in record.notes if note.startswith("not planted, as ")]
    for fault in set(FAULTS) - set(OF_EVERY_RUN):
        assert sum(fault.name in note for note in left_out) == 1
    assert {each.fault for each in record.planted} == {fault.name for fault in OF_EVERY_RUN}


def test_the_record_says_which_objective_and_frozen_policy(record: ShardedRecord) -> None:
    settings = {"name": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "nll_weight": 0.0, "reference": "adapters-off"}
    assert record.objective == settings


def test_every_check_fails_under_some_fault(record: ShardedRecord) -> None:
    assert {name for planted in record.planted for name in planted.caught_by} == CHECKS.keys()


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.name)
def test_a_harmless_change_is_not_taken_for_a_fault(record: ShardedRecord, change: object) -> None:
    (made,) = [each for each in record.harmless if each.change == change.name]  # type: ignore[attr-defined]
    assert not made.flagged_by
    assert {check.check for check in made.checks} >= {"parity", "every-group-once"}


def test_dummy_calls_leave_every_bit_of_the_gradients(record: ShardedRecord) -> None:
    (check,) = [check for check in record.checks if check.check == "dummy-calls"]
    assert (check.ratio, check.num_compared > 10_000) == (0.0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 1}, "1 rank: a model is sharded over at least 2"),
        ({"dtype": ["float16"]}, "unknown dtype 'float16': give some of float64, float32, bfloat16, mixed-bfloat16"),
        ({"dtype": ["float32", "float32"]}, "--dtype float32 is given twice"),
        ({"device": "tpu"}, "--device tpu: give cpu, or cuda"),
        ({"subject": ["splitt"]}, "unknown subject 'splitt'"),
        ({"model": "qwen4"}, "qwen4"),
        ({"train": "all", "dtype": ["bfloat16"]}, "weights would be trained in it; give mixed-bfloat16"),
        ({"objective": "dpo"}, "unknown objective 'dpo': give one of sigmoid, robust"),
        ({"objective": "robust"}, "label smoothing is 0: robust without any is sigmoid"),
        ({"objective": "ipo", "label_smoothing": 0.1}, "label_smoothing is 0.1: ipo has none"),
        ({"objective": "reward-model", "beta": 0.2}, "beta is 0.2: reward-model has none"),
        ({"objective": "reward-model", "reference": "cached"}, "--reference cached: reward-model has no frozen policy"),
        ({"reference": "frozen"}, "unknown reference 'frozen'"),
        ({"train": "all", "reference": "frozen-adapter"}, "--reference frozen-adapter with --train all"),
        ({"pairs": 5}, "--pairs goes with --data FILE"),
        ({"data": Path(__file__)}, "--data needs --tokenizer DIR"),
        ({"data": Path(__file__), "tokenizer": Path(__file__).parent, "case": ["balanced"]}, "give --data or --case"),
    ],
)
def test_wrong_options_are_refused_before_any_rank_is_started(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verify.sharded.ranks.start_local_ranks", None)
    with pytest.raises(ValueError, match=message):
        sharded(**options)


RANK = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({**RANK, "WORLD_SIZE": "1"}, {}, "1 rank: a model is sharded over at least 2"),
        (RANK, {}, "in the environment without WORLD_SIZE"),
        ({**RANK, "WORLD_SIZE": "2"}, {"ranks": 4}, "--ranks 4 with WORLD_SIZE 2"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(
    environment: dict[str, str], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        sharded(**options)
