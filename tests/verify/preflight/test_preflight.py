"""The program on two ranks: GO with its report, and ranks that disagree end alike, each difference named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from reports.preflight_record import PreflightRecord
from reports.preflight_store import read_preflight
from verify.cli.preflight_checks import check_preflight_options, rank_arguments

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
    "PYTHONPATH": str(ROOT),
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    statuses: Sequence[int]
    out: str
    err: Sequence[str]
    record: PreflightRecord


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "verify", "preflight", *arguments]


@pytest.fixture(scope="module")
def went(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The whole on two ranks that the program starts itself, the oracle on one of two layers."""
    folder = tmp_path_factory.mktemp("go")
    arguments = ("--ranks", "2", "--backend", "split", "--oracle-layers", "1", "--quiet", "--out", str(folder))
    done = subprocess.run(
        program(*arguments, "--prompt", "16", "--response", "16"),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return Run([done.returncode], done.stdout, [done.stderr], read_preflight(folder))


def test_two_ranks_of_this_machine_are_go(went: Run) -> None:
    assert went.statuses == [0], went.err
    assert went.record.decision == "GO"
    assert went.out.splitlines()[-4].startswith("GO: ")


def test_every_probe_left_a_finding(went: Run) -> None:
    found = {finding.name for finding in went.record.findings if finding.outcome == "GO"}
    assert found >= {
        "arguments", "versions", "settings", "devices", "collectives results",
        "memory headroom step split", "memory headroom loading", "attention split", "parity split",
        "determinism split", "full depth split", "would notice leak", "would notice world-size",
    }  # fmt: skip


def test_what_this_machine_does_not_have_abstains(went: Run) -> None:
    abstained = {finding.name for finding in went.record.findings if finding.outcome == "ABSTAINS"}
    assert abstained == {"profile", "checkpoint", "data"}


def test_both_ranks_are_in_the_record_and_a_cut_depth_is_said(went: Run) -> None:
    assert [rank.rank for rank in went.record.ranks] == [0, 1]
    assert any("1 of 2 layers" in limit for limit in went.record.limits)
    assert any("any GPU" in limit for limit in went.record.limits)
    assert "full depth" in went.record.required


def test_the_two_ways_of_judging_had_something_to_compare(went: Run) -> None:
    measures = {finding.name: finding.measures for finding in went.record.findings}
    gradients = [value for name, value in measures["parity split"].items() if "gradients" in name]
    assert 0 < max(gradients) <= 1
    assert any(name.startswith("oracle_") for name in measures["parity split"])
    assert any(name.startswith("single_process_") for name in measures["parity split"])
    assert all(name.startswith("unpacked_") for name in measures["full depth split"])


@pytest.fixture(scope="module")
def disagreed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks started with other seeds."""
    folder = tmp_path_factory.mktemp("disagreed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            program("--seed", str(rank), "--quiet", "--out", str(folder)),
            env={
                **ENVIRONMENT, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    return Run([rank.returncode for rank in ranks], outputs[0][0], [err for _, err in outputs], read_preflight(folder))


def test_ranks_that_disagree_end_with_the_same_status_and_the_difference(disagreed: Run) -> None:
    assert disagreed.statuses == [1, 1], disagreed.err
    assert "arguments: seed is 1 on rank 1, 0 on rank 0" in disagreed.record.reasons
    assert disagreed.out.splitlines()[-4].startswith("NO-GO: ")


def test_nothing_is_judged_together_where_ranks_do_not_run_the_same(disagreed: Run) -> None:
    assert {finding.probe for finding in disagreed.record.findings} == {"arguments", "versions", "settings"}


def test_a_preflight_needs_two_ranks_and_says_how_to_get_them() -> None:
    for arguments, environment, message in (
        ((), {}, "needs ranks: start it with torchrun or Slurm, or give --ranks 2"),
        (("--ranks", "1"), {}, "--ranks 1: at least 2 are needed"),
        (
            (),
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            "world size 1",
        ),
    ):
        done = subprocess.run(
            program(*arguments), env={**ENVIRONMENT, **environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def check(**changes: object) -> None:
    options = {"model": "tiny", "layers": None, "dtype": "float32", "backends": (), "profile": "none", "device": None}
    check_preflight_options(**{**options, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "tini"}, "did you mean tiny"),
        ({"dtype": "float16"}, "unknown dtype"),
        ({"backends": ("flx",)}, "did you mean flex"),
        ({"backends": ("flex", "flex")}, "named twice"),
        ({"profile": "gb20"}, "did you mean gb10"),
        ({"device": "cuda:1"}, "give cpu or cuda"),
    ],
)
def test_names_that_nothing_bears_are_refused(changes: dict[str, object], message: str) -> None:
    check()
    with pytest.raises(ValueError, match=message):
        check(**changes)


def test_a_checkpoint_that_one_machine_lacks_is_left_to_the_ranks() -> None:
    check(model="/nowhere/checkpoint")


def test_local_ranks_get_every_argument_but_their_number() -> None:
    assert rank_arguments(["preflight", "--ranks", "2", "--out", "a"]) == ["preflight", "--out", "a"]
    assert rank_arguments(["preflight", "--ranks=2", "--quiet"]) == ["preflight", "--quiet"]
