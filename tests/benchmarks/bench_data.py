"""Surveying a preference file without a tokenizer: rows a second on one core, and memory that does not grow.

tox -e bench -- tests/benchmarks/bench_data.py
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

SIZES = (10_000, 30_000, 100_000)
WORDS = ("alpha", "beta,", "gamma", '"delta"', "epsilon:", "eta\n", "theta.", "naïve")

SURVEY = """
import sys, time
from pathlib import Path
from verify.data.measures import CharacterMeasure
from verify.data.survey import survey_file

started = time.process_time()
survey = survey_file(Path(sys.argv[1]), CharacterMeasure(), seed=0)
seconds = time.process_time() - started
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(survey.rows_read, seconds, peak / 1024)
"""


def write(path: Path, num_rows: int, words: int) -> None:
    """Conversations with a prompt of ``words`` words and two responses of twice as many, give or take a half."""
    rng = random.Random(num_rows)

    def text(mean: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(mean // 2, mean * 3 // 2)))

    with path.open("w", encoding="utf-8") as file:
        for number in range(num_rows):
            user = {"role": "user", "content": f"{number} {text(words)}"}
            sides = {
                side: [user, {"role": "assistant", "content": f"{side} {text(2 * words)}"}]
                for side in ("chosen", "rejected")
            }
            file.write(json.dumps(sides, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("words", [30, 100])
def test_survey_of_many_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: int) -> None:
    for num_rows in SIZES:
        path = tmp_path / "rows.jsonl"
        write(path, num_rows, words)
        done = subprocess.run([sys.executable, "-c", SURVEY, str(path)], capture_output=True, text=True, check=True)
        rows, seconds, peak = map(float, done.stdout.split())
        with capsys.disabled():
            print(
                f"\n{rows:>9,.0f} rows of {path.stat().st_size / rows:,.0f} bytes: {rows / seconds:,.0f} rows/s of one "
                f"core, peak {peak:.1f} MiB"
            )
        path.unlink()
