"""Wall time, share of model passes and peak memory of ``packparity check``, as whole processes.

Run with ``tox -e bench -- tests/benchmarks/bench_check.py``; needs an otherwise idle machine.
"""

import json
import subprocess
import sys

import pytest


def check(*options: str) -> dict:
    """Run the gate in a fresh process and return the timing of its record."""
    command = [sys.executable, "-m", "verify", "check", "--json", "--quiet", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["timing"]


def report(benchmark, timings: list[dict]) -> None:
    for name in ("total_s", "import_s", "model_passes_s", "peak_host_bytes"):
        values = sorted(timing[name] for timing in timings)
        benchmark.extra_info[name] = values[len(values) // 2]
    info = benchmark.extra_info
    share = info["model_passes_s"] / info["total_s"]
    print(
        f"\n{info['total_s']:.1f} s in the process, imports {info['import_s']:.1f} s, "
        f"model passes {info['model_passes_s']:.1f} s ({share:.0%}), peak {info['peak_host_bytes'] / 2**30:.2f} GiB"
    )


def test_default_check(benchmark):
    """Target: at most 30 s on 2 cores, imports included; more than 70 % of it in model passes."""
    timings = []
    benchmark.pedantic(lambda: timings.append(check()), rounds=3, warmup_rounds=1)
    report(benchmark, timings)


@pytest.mark.slow
def test_full_depth_qwen3_0_6b(benchmark):
    """Target: two pairs of about 150 tokens in at most 5 minutes on 2 cores and 14 GiB."""
    timings = []
    benchmark.pedantic(lambda: timings.append(check("--model", "qwen3-0.6b")), rounds=1)
    report(benchmark, timings)
