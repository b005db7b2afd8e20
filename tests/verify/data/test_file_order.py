"""Whether neighbours are alike, against a count of all neighbours, and on files of known order."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.data.file_order import FileOrder, source_of

rows = st.lists(
    st.tuples(st.sampled_from("pqr"), st.sampled_from(["a", "b", None]), st.integers(1, 900)), min_size=1, max_size=40
)


def order_of(rows: list[tuple[str, str | None, int]], batch: int = 7) -> FileOrder:
    order = FileOrder()
    for at in range(0, len(rows), batch):
        prompts, sources, _ = zip(*rows[at : at + batch], strict=True)
        order.add_texts(prompts, sources)
        order.add_lengths(np.array([length for _, _, length in rows[at : at + batch]]))
    return order


@given(rows)
def test_what_is_kept_of_a_stream_is_what_a_look_at_all_neighbours_finds(
    rows: list[tuple[str, str | None, int]],
) -> None:
    order = order_of(rows)
    assert order.repeated_prompts == sum(a[0] == b[0] for a, b in pairwise(rows))
    sources = [source for _, source, _ in rows]
    told = [(a, b) for a, b in pairwise(sources) if a is not None and b is not None]
    counts = Counter(source for source in sources if source is not None)
    assert order.num_sources == len(counts)
    if len(counts) == 2 and told:
        assert order.sources is not None
        assert order.sources.found == pytest.approx(sum(a == b for a, b in told) / len(told))
        total = counts.total()
        same = sum(a == b for a in counts.elements() for b in counts.elements()) - total
        assert order.sources.random == pytest.approx(same / (total * (total - 1)))
    else:
        assert order.sources is None


def test_lengths_that_drift_correlate_and_shuffled_ones_do_not() -> None:
    lengths = [50 + i for i in range(2000)]
    shuffled = random.Random(0).sample(lengths, len(lengths))
    drifting, mixed = (order_of([("p", None, n) for n in each], 1000).lengths for each in (lengths, shuffled))
    assert drifting is not None
    assert mixed is not None
    assert drifting.found > 0.99
    assert drifting.follows
    assert abs(mixed.found) < 0.1
    assert not mixed.follows


def test_the_correlation_is_that_of_logarithms() -> None:
    lengths = [10, 20, 40, 20, 80, 160, 80, 90]
    logarithms = np.log(lengths)
    centred = logarithms - logarithms.mean()
    expected = (centred[1:] * centred[:-1]).mean() / (centred**2).mean()
    for batch in (1, 3, 8):
        found = order_of([("p", None, n) for n in lengths], batch).lengths
        assert found is not None
        assert found.found == pytest.approx(expected, abs=1e-9)


def test_equal_lengths_and_single_sources_tell_nothing() -> None:
    order = order_of([("p", "a", 5)] * 20)
    assert order.lengths is None
    assert order.sources is None


def test_a_column_with_a_new_value_in_each_row_is_no_source() -> None:
    order = order_of([("p", f"id-{i}", 5) for i in range(1100)])
    assert order.num_sources == 0
    assert order.sources is None


def test_the_source_is_a_string_of_bounded_length() -> None:
    assert source_of({"source": "a", "dataset": "b"}) == "a"
    assert source_of({"source": 3, "dataset": "b"}) == "b"
    assert source_of({"text": "a"}) is None
    assert len(source_of({"source": "x" * 10_000}) or "") == 200
