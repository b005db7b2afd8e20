"""The search against a walk through every argument."""

from __future__ import annotations

import pytest

from verify.forecast.longest import Found, last_below

GROWING = {
    "line": lambda x: 3 * x + 7,
    "parabola": lambda x: x * x + 10 * x + 100,
    "stairs": lambda x: 100 * (x // 9) + 50,
    "late": lambda x: max(40, x**3),
    "bend": lambda x: 5 * x if x < 40 else 60 * x,
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("bound", [0, 50, 99, 1000, 3131, 10**9])
@pytest.mark.parametrize("first", [1, 17, 100])
def test_it_finds_the_last_argument_that_fits(name: str, bound: int, first: int) -> None:
    value_at = GROWING[name]
    fitting = [x for x in range(1, 101) if value_at(x) <= bound]
    expected = Found(fitting[-1], value_at(fitting[-1])) if fitting else Found(0, value_at(1))
    assert last_below(bound, value_at, most=100, first=first) == expected


def test_a_parabola_takes_few_looks() -> None:
    looks: list[int] = []

    def value_at(x: int) -> int:
        looks.append(x)
        return 10**10 + 10**7 * x + 300 * x * x

    assert (
        last_below(3 * 10**10, value_at, most=10_000, first=16).argument == 1_892
    )  # 29,993,899,200; at 1,893 it is above
    assert len(looks) <= 7
