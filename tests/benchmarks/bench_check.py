"""CPU and wall time of ``packparity check`` and ``packparity faults``, as whole processes.

CPU time (user + system, children included) is what the program costs; wall time also depends on what else the machine
does. Run with ``tox -e bench -- tests/benchmarks/bench_check.py``, wall times on an otherwise idle machine.
"""

import json
import resource
import subprocess
import sys
from statistics import median

import pytest


def measured(command: str, *options: str) -> dict[str, float]:
    """Run a command in a fresh process; times of its record and of the process, in seconds, and peak memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [sys.executable, "-m", "verify", command, "--json", "--quiet", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(run.stdout)["timing"], "cpu_s": cpu_s}


def report(benchmark, runs: list[dict[str, float]]) -> None:
    info = {name: median(run[name] for run in runs) for name in runs[0]}
    benchmark.extra_info.update(info)
    share = info["model_passes_s"] / info["total_s"]
    print(
        f"\n{info['total_s']:.1f} s in the process, {info['cpu_s']:.1f} s of CPU, imports {info['import_s']:.1f} s, "
        f"model passes {info['model_passes_s']:.1f} s ({share:.0%}), peak {info['peak_host_bytes'] / 2**30:.2f} GiB"
    )


def test_default_check(benchmark):
    """Target: at most 30 s on 2 cores, imports, exact checks and planted faults included; more than 70 % in passes."""
    runs = []
    benchmark.pedantic(lambda: runs.append(measured("check")), rounds=3, warmup_rounds=1)
    report(benchmark, runs)


def test_a_wrong_option(benchmark):
    """Target: said within 1.5 s, before torch is imported."""

    def wrong() -> None:
        command = [sys.executable, "-m", "verify", "check", "--dtype", "float16"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 2

    benchmark.pedantic(wrong, rounds=3, warmup_rounds=1)


@pytest.mark.slow
def test_whole_catalogue_of_faults(benchmark):
    """Target: the catalogue on the tiny model, in float64 and float32, in at most 3 minutes on 2 cores."""
    runs = []
    options = ("--dtype", "float64", "--dtype", "float32")
    benchmark.pedantic(lambda: runs.append(measured("faults", *options)), rounds=1)
    report(benchmark, runs)


@pytest.mark.slow
def test_full_depth_qwen3_0_6b(benchmark):
    """Target: two pairs of about 150 tokens in at most 5 minutes on 2 cores and 14 GiB."""
    runs = []
    benchmark.pedantic(lambda: runs.append(measured("check", "--model", "qwen3-0.6b")), rounds=1)
    report(benchmark, runs)
