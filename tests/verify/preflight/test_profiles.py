"""What gb10 checks is seen to fail, each with a hint: the machine is made up, the checks are real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from verify.preflight.finding import Finding
from verify.preflight.machine import Device, Machine, Memory, parse_meminfo, ptxas_version, read_driver, settings_of
from verify.preflight.profiles import PROFILES, Planned, check_profile, profile_named

GB10 = PROFILES["gb10"]
GOOD = Machine(
    host="spark-0",
    versions={},
    settings={},
    environment={"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "TRITON_PTXAS_PATH": "/usr/local/cuda-13.0/bin/ptxas"},
    memory=Memory(total_bytes=128_501_256_192, available_bytes=118_000_000_000, swap_free_bytes=16 * 2**30),
    device=Device(
        name="NVIDIA GB10",
        capability=(12, 1),
        total_bytes=128_501_256_192,
        free_bytes=90_000_000_000,
        driver="580.95.05",
    ),
    adapters=("roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1"),
    processes=1,
)
PLANNED = Planned(head_dim=128, flex=True, num_hosts=2)


def found(machine: Machine, planned: Planned = PLANNED, release: str = "13.0") -> dict[str, Finding]:
    return {each.part: each for each in check_profile(GB10, machine, planned, lambda path: release)}


def with_environment(**changes: str) -> Machine:
    return replace(GOOD, environment={**GOOD.environment, **changes})


def test_a_machine_as_published_is_go_in_every_part() -> None:
    outcomes = {part: each.outcome for part, each in found(GOOD).items()}
    assert outcomes == dict.fromkeys(("device", "memory-cap", "NCCL_IB_HCA", "TRITON_PTXAS_PATH", "head-dim"), "GO")


def test_the_cap_is_the_published_fraction_and_every_reading_is_recorded() -> None:
    measures = found(GOOD)["memory-cap"].measures
    assert measures["memory_fraction"] == pytest.approx(0.778, abs=5e-4)
    assert measures["mem_available_bytes"] == 118_000_000_000
    assert measures["swap_free_bytes"] == 16 * 2**30
    assert measures["device_free_bytes"] == 90_000_000_000


@pytest.mark.parametrize(
    ("machine", "planned", "release", "part", "seen"),
    [
        (replace(GOOD, device=replace(GOOD.device, name="NVIDIA H200", capability=(9, 0))), PLANNED, "13.0", "device",
         "capability 9.0"),
        (replace(GOOD, memory=replace(GOOD.memory, available_bytes=60_000_000_000)), PLANNED, "13.0", "memory-cap",
         "less memory is available"),
        (with_environment(NCCL_IB_HCA=""), PLANNED, "13.0", "NCCL_IB_HCA", "not set"),
        (with_environment(NCCL_IB_HCA="rocep1s0f1"), PLANNED, "13.0", "NCCL_IB_HCA", "does not name 2"),
        (with_environment(NCCL_IB_HCA="^rocep1s0f1,mlx5_0"), PLANNED, "13.0", "NCCL_IB_HCA", "does not name 2"),
        (with_environment(NCCL_IB_HCA="=rocep1s0f1:1,mlx5_0:1"), PLANNED, "13.0", "NCCL_IB_HCA", "names mlx5_0"),
        (with_environment(TRITON_PTXAS_PATH=""), PLANNED, "13.0", "TRITON_PTXAS_PATH", "not set"),
        (GOOD, PLANNED, "12.8", "TRITON_PTXAS_PATH", "release 12.8"),
        (GOOD, PLANNED, "", "TRITON_PTXAS_PATH", "release unknown"),
        (GOOD, replace(PLANNED, head_dim=256), "13.0", "head-dim", "head_dim 256"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_no_go_with_a_hint(
    machine: Machine, planned: Planned, release: str, part: str, seen: str
) -> None:
    findings = found(machine, planned, release)
    assert findings[part].outcome == "NO-GO"
    assert seen in findings[part].seen
    assert findings[part].hint
    assert [p for p, each in findings.items() if each.outcome == "NO-GO"] == [part]


def test_what_a_run_does_not_need_abstains() -> None:
    findings = found(GOOD, Planned(head_dim=256, flex=False, num_hosts=1))
    outcomes = {part: each.outcome for part, each in findings.items()}
    assert outcomes == {
        "device": "GO", "memory-cap": "GO", "NCCL_IB_HCA": "ABSTAINS", "TRITON_PTXAS_PATH": "ABSTAINS",
        "head-dim": "ABSTAINS",
    }  # fmt: skip


def test_adapters_may_be_meant_by_how_their_names_begin_unless_exact_ones_are_asked_for() -> None:
    assert found(with_environment(NCCL_IB_HCA="rocep1,roceP2"))["NCCL_IB_HCA"].outcome == "GO"
    assert found(with_environment(NCCL_IB_HCA="=rocep1,roceP2"))["NCCL_IB_HCA"].outcome == "NO-GO"


def test_without_a_profile_settings_are_said_not_to_be_looked_at() -> None:
    (only,) = check_profile(PROFILES["none"], GOOD, PLANNED)
    assert only.outcome == "ABSTAINS"


def test_a_ptxas_that_is_not_there_is_no_go() -> None:
    machine = with_environment(TRITON_PTXAS_PATH="/nowhere/ptxas")
    findings = {each.part: each for each in check_profile(GB10, machine, PLANNED)}
    assert "No such file" in findings["TRITON_PTXAS_PATH"].seen


def test_the_release_of_a_ptxas_is_read_from_what_it_says(tmp_path: Path) -> None:
    program = tmp_path / "ptxas"
    program.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'\n")
    program.chmod(0o755)
    assert ptxas_version(str(program)) == "13.0"


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown profile 'gb1' \(did you mean gb10\?\)"):
        profile_named("gb1")


def test_meminfo_is_read_in_bytes() -> None:
    text = "MemTotal:       24683656 kB\nMemAvailable:   24080868 kB\nHugePages_Total:       0\nSwapFree:  8 kB\n"
    assert parse_meminfo(text) == Memory(
        total_bytes=24683656 * 1024, available_bytes=24080868 * 1024, swap_free_bytes=8192
    )
    assert parse_meminfo("") == Memory()


def test_the_driver_is_read_from_the_kernel_module(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC version:\n"
    )
    assert read_driver(path) == "580.95.05"
    assert read_driver(tmp_path / "absent") == ""


def test_settings_that_name_what_a_machine_has_may_differ() -> None:
    environment = {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth1", "HOME": "/root", "OMP_NUM_THREADS": "1"}
    assert settings_of(environment) == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"}
