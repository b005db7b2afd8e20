"""Rows and layout of 100,000 groups on one core: under 10 s for each layout, linear from 10,000 on. No mask is built.

tox -e bench -- tests/benchmarks/bench_layout.py
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import pytest
import torch

from packed_impl.bins import first_fit_decreasing, packed_length
from packed_impl.layout import LAYOUTS, pack

ROW_LENGTH = 4096
SIZES = (10_000, 30_000, 100_000)
TOKENS = tuple(range(1000, 1000 + ROW_LENGTH))


def random_groups(num_groups: int) -> list[SimpleNamespace]:
    """About 330 tokens each, so that a hundred thousand of them fit into memory as Python integers."""
    rng = random.Random(num_groups)

    def ids() -> tuple[int, ...]:
        length = rng.randint(20, 200)
        start = rng.randrange(len(TOKENS) - length)
        return TOKENS[start : start + length]

    return [
        SimpleNamespace(prompt_ids=ids(), positives=(ids(),), negatives=(ids(),), completion_masks=(), images=())
        for _ in range(num_groups)
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_of_many_groups(capsys: pytest.CaptureFixture[str], name: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for num_groups in SIZES:
            groups = random_groups(num_groups)
            lengths = [
                packed_length(len(g.prompt_ids), [len(r) for r in g.positives + g.negatives], layout=name)
                for g in groups
            ]
            start = time.process_time()
            rows = first_fit_decreasing(lengths, ROW_LENGTH)
            packed_s = time.process_time()
            layout = pack(groups, layout=name, rows=rows, row_length=ROW_LENGTH)
            end = time.process_time()
            with capsys.disabled():
                print(
                    f"{name:>19}: {num_groups:>7,} groups, {sum(lengths):>10,} tokens, {len(rows):>5,} rows "
                    f"({sum(lengths) / layout.input_ids.numel():.3f} filled): rows {packed_s - start:.2f} s, "
                    f"layout {end - packed_s:.2f} s, {(end - start) / num_groups * 1e6:.0f} us a group"
                )
    finally:
        torch.set_num_threads(threads)
