"""Random cases: the same from the same seed, odd ones among them, and never two equal responses."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verify
from verify.calibration import shapes
from verify.calibration.shapes import CaseShape, HypothesisMissingError, draw_shapes, hypothesis_version, make_case

ROOT = Path(verify.__file__).resolve().parents[1]
CONTENTS = ("random", "responses-begin-alike", "prefix", "repeats-the-prompt", "two-tokens", "one-token")
VOCABULARY = 31
SEEDS = (5, 11)


def test_a_seed_gives_the_same_shapes_in_a_process_that_has_imported_next_to_nothing() -> None:
    """hypothesis would mix in constants from the sources it finds imported."""
    program = "from verify.calibration.shapes import draw_shapes; print(draw_shapes(11, 30))"
    fresh = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == repr(draw_shapes(11, 30))
    assert draw_shapes(12, 30) != draw_shapes(11, 30)


def test_odd_shapes_are_among_them() -> None:
    drawn = [shape for seed in SEEDS for shape in draw_shapes(seed, 40)]
    assert len(drawn) == 80
    groups = [lengths for shape in drawn for lengths in shape.groups]
    prompts, responses = [p for p, _, _ in groups], [n for _, c, r in groups for n in (c, r)]
    assert {len(shape.groups) for shape in drawn} == {1, 2, 3, 4, 5}
    assert {shape.content for shape in drawn} == set(CONTENTS)
    assert 1 in prompts
    assert 1 in responses
    assert max(prompts) > 256
    assert max(max(c, r) / min(c, r) for _, c, r in groups) > 20
    assert len(set(drawn)) > 50
    # The smallest of all is hypothesis's first example every time; it must not be the only one of a run of one case.
    alone = Counter(draw_shapes(seed, 1)[0] for seed in range(8))
    assert alone.most_common(1)[0][1] < 4


lengths = st.integers(1, 9)


@given(
    st.builds(
        CaseShape,
        st.lists(st.tuples(lengths, lengths, lengths), min_size=1, max_size=3).map(tuple),
        st.sampled_from(CONTENTS),
    ),
    st.integers(0, 99),
)
def test_cases_have_the_lengths_and_the_content_of_their_shape(shape: CaseShape, seed: int) -> None:
    case = make_case("a", shape, VOCABULARY, random.Random(seed))
    assert case == make_case("a", shape, VOCABULARY, random.Random(seed))
    for (prompt, chosen, rejected), group in zip(shape.groups, case.groups, strict=True):
        (chosen_ids,), (rejected_ids,) = group.positives, group.negatives
        assert (len(group.prompt_ids), len(chosen_ids)) == (prompt, chosen)
        assert chosen_ids != rejected_ids
        assert len(rejected_ids) in (rejected, rejected + 1)
        if shape.content == "prefix":
            assert chosen_ids[: min(chosen, rejected)] == rejected_ids[: min(chosen, rejected)]
        if shape.content == "responses-begin-alike":
            assert chosen_ids[: min(chosen, rejected, 4)] == rejected_ids[: min(chosen, rejected, 4)]
        if shape.content == "repeats-the-prompt":
            assert chosen_ids[:prompt] == group.prompt_ids[:chosen]
    tokens = {token for group in case.groups for ids in (group.prompt_ids, *group.completions) for token in ids}
    assert tokens <= set(range(VOCABULARY))
    most = {"one-token": 1, "two-tokens": 2}.get(shape.content, VOCABULARY)
    assert len(tokens) <= most


def test_without_hypothesis_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(HypothesisMissingError, match=r"with its extra, '\.\[calibrate\]' in place"):
        hypothesis_version()


def test_too_few_shapes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """hypothesis ends early where it has run out of different examples."""
    monkeypatch.setattr(shapes, "_shapes", lambda: st.just(CaseShape(((1, 1, 1),), "random")))
    with pytest.raises(RuntimeError, match="hypothesis drew 1 shapes; 6 were wanted"):
        draw_shapes(0, 5)
