"""The score is 0 for a stack that isolates, 1 for one that does not, and tells a small leak from rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.contamination.examples import draw_examples, joined, rotations
from verify.contamination.score import ContaminationError, Stack
from verify.contamination.score import measure_contamination as measure_in
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest, build_model
from verify.subjects.hf_position_ids import HfPositionIdsSubject, completion_logps, sequence_rows
from verify.subjects.pairwise import VARIATIONS

EXAMPLES = draw_examples(257, seed=5)
measure_contamination = partial(measure_in, computed_in=torch.float32)


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(ModelRequest(name="tiny"), "float32").model


def masked_stack(model: Any, weight: float, layers: Sequence[int] | None = None) -> Stack:
    """A row in which attention to other sequences has its odds multiplied by a weight, in some layers or in all."""

    def stack(examples: Sequence[PreferenceGroup]) -> list[Tensor]:
        sequences = [example.prompt_ids + example.completions[0] for example in examples]
        rows = sequence_rows(sequences, len(sequences))
        number = torch.repeat_interleave(torch.arange(len(sequences)), torch.tensor([len(s) for s in sequences]))
        causal = torch.full((len(number), len(number)), -math.inf).triu(1)
        foreign = number[:, None] != number[None, :]
        isolated = causal.masked_fill(foreign, -math.inf)[None, None]
        leaking = (causal + foreign * (math.log(weight) if weight else -1e30))[None, None].clamp(min=-1e30)

        def exchange(_module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, "attention_mask": leaking}

        decoder = model.base_model.model.model.layers
        hooks = [
            decoder[i].register_forward_pre_hook(exchange, with_kwargs=True)
            for i in (range(len(decoder)) if layers is None else layers)
        ]
        try:
            with torch.no_grad():
                logits = model(
                    input_ids=rows.input_ids,
                    position_ids=rows.position_ids,
                    attention_mask=isolated.clamp(min=-1e30),
                    use_cache=False,
                ).logits
        finally:
            for hook in hooks:
                hook.remove()
        return [
            completion_logps(logits[0, start:], len(example.prompt_ids), example.completions[0])
            for example, (_, start) in zip(examples, rows.places, strict=True)
        ]

    return stack


def subject_stack(subject: Any, model: Any) -> Stack:
    def stack(examples: Sequence[PreferenceGroup]) -> list[Tensor]:
        with torch.no_grad():
            return list(subject.per_token_logps(model, examples))

    return stack


def test_each_example_stands_at_each_place_once() -> None:
    rows = rotations(EXAMPLES)
    for place in range(len(EXAMPLES)):
        assert {row[place] for row in rows} == set(EXAMPLES)


def test_a_full_leak_makes_the_neighbours_part_of_the_prompt() -> None:
    a, b, c = (PreferenceGroup((1, 2), ((3,),)), PreferenceGroup((4,), ((5, 6),)), PreferenceGroup((7,), ((8,),)))
    assert joined((a, b, c), 2) == PreferenceGroup((1, 2, 3, 4, 5, 6, 7), ((8,),))
    assert joined((a, b, c), 0) == a


def test_an_isolating_call_is_below_the_noise_floor_and_a_leaking_one_near_one(model: Any) -> None:
    padded = {"padded-batch": subject_stack(VARIATIONS["padded-right"], model)}
    isolated = measure_contamination(subject_stack(HfPositionIdsSubject(), model), EXAMPLES, variations=padded)
    leaking = measure_contamination(
        subject_stack(HfPositionIdsSubject(cache="default"), model), EXAMPLES, variations=padded
    )
    assert isolated.finding == "isolated"
    assert isolated.words.startswith("below the noise floor (")
    assert isolated.score < 1e-5
    assert leaking.finding == "contaminated"
    assert 0.7 < leaking.score < 1.4
    assert len(leaking.examples) == len(EXAMPLES)
    assert all(example.score > 0.3 for example in leaking.examples)


def test_a_stack_that_leaks_fully_is_exactly_one_where_the_full_leak_is_given(model: Any) -> None:
    leak = masked_stack(model, weight=1.0)
    found = measure_contamination(leak, EXAMPLES, full_leak=leak)
    assert found.score == 1.0
    assert [example.score for example in found.examples] == [1.0] * len(EXAMPLES)


@pytest.mark.parametrize(
    ("weight", "layers", "least", "most"),
    [(1e-3, None, 1e-4, 0.1), (1.0, [1], 1e-2, 1.0), (1e-4, [1], 1e-6, 1e-2)],
    ids=["weight-1e-3", "one-layer", "one-layer-at-1e-4"],
)
def test_a_small_leak_stands_out_from_rounding(
    model: Any, weight: float, layers: list[int] | None, least: float, most: float
) -> None:
    found = measure_contamination(masked_stack(model, weight, layers), EXAMPLES)
    assert found.finding == "contaminated"
    assert least < found.score < most
    assert measure_contamination(masked_stack(model, 0.0), EXAMPLES).finding == "isolated"


@pytest.mark.parametrize("seed", range(6))
def test_rounding_of_an_isolating_stack_is_never_called_contamination(model: Any, seed: int) -> None:
    found = measure_contamination(masked_stack(model, 0.0), draw_examples(257, seed, [(3, 2), (30, 9), (1, 1)]))
    assert found.finding == "isolated"
    assert found.score < 3 * found.noise


def test_rounding_of_bfloat16_is_noise_where_it_is_said_that_it_is_computed_in() -> None:
    """At the front of a row bfloat16 keeps its bits, behind other examples it does not."""
    stack = masked_stack(build_model(ModelRequest(name="tiny"), "bfloat16").model, 0.0)
    found = measure_in(stack, EXAMPLES, computed_in=torch.bfloat16)
    assert found.finding == "isolated"
    assert 1e-3 < found.noise < 0.1
    leaking = masked_stack(build_model(ModelRequest(name="tiny"), "bfloat16").model, 1.0)
    assert measure_in(leaking, EXAMPLES, computed_in=torch.bfloat16).finding == "contaminated"


def test_a_loss_per_example_is_enough(model: Any) -> None:
    def losses(of: Stack) -> Stack:
        return lambda examples: [-float(logps.mean()) for logps in of(examples)]

    assert measure_contamination(losses(masked_stack(model, 0.0)), EXAMPLES).finding == "isolated"
    assert measure_contamination(losses(masked_stack(model, 1e-3)), EXAMPLES).finding == "contaminated"


def toy(leak: float = 0.0, jitter: Callable[[], float] = lambda: 0.0, behind: float = 0.0) -> Stack:
    """The loss of an example is the sum of its tokens; neighbours add theirs times a factor."""

    def stack(examples: Sequence[PreferenceGroup]) -> list[Tensor]:
        sums = [float(sum(example.prompt_ids) + sum(example.completions[0])) for example in examples]
        return [
            torch.tensor([own + leak * sum(sums[:i]) + behind * sum(sums[i + 1 :]) + jitter()], dtype=torch.float64)
            for i, own in enumerate(sums)
        ]

    return stack


def test_a_leak_of_a_tenth_scores_a_tenth() -> None:
    found = measure_contamination(toy(leak=0.1), EXAMPLES, full_leak=toy(leak=1.0))
    assert found.score == pytest.approx(0.1)
    assert [example.score for example in found.examples] == pytest.approx([0.1] * len(EXAMPLES))


def test_a_stack_that_does_not_repeat_itself_resolves_nothing() -> None:
    values = iter(range(10_000))
    found = measure_contamination(toy(jitter=lambda: 10.0 * next(values)), EXAMPLES, full_leak=toy(leak=0.1))
    assert found.finding == "unresolved"
    assert "the stack is random" in found.words


def test_contamination_from_behind_resolves_nothing_rather_than_passing() -> None:
    found = measure_contamination(toy(behind=1.0), EXAMPLES, full_leak=toy(leak=1.0))
    assert found.finding == "unresolved"


def test_a_full_leak_that_makes_no_difference_is_an_error() -> None:
    with pytest.raises(ValueError, match="make no more difference than rounding"):
        measure_contamination(toy(), EXAMPLES, full_leak=toy())


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (EXAMPLES[:1], "at least two"),
        ((PreferenceGroup((1,), ((2,),), ((3,),)), *EXAMPLES), "example 0 has 2 completions"),
        ((EXAMPLES[0], EXAMPLES[0]), "two examples are equal"),
    ],
)
def test_examples_that_prove_nothing_are_refused(examples: Sequence[PreferenceGroup], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure_contamination(toy(), examples)


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (lambda examples: [1.0], "returned 1 values for 4 examples"),
        (lambda examples: [math.nan for _ in examples], "finite numbers are needed"),
        (lambda examples: [torch.ones(len(examples)) for _ in examples], "of the same tokens"),
        (lambda examples: None, "alone: the stack returned a NoneType; give a list"),
        (lambda examples: (1.0 for _ in examples), "alone: the stack returned a generator; give a list"),
        (lambda examples: 1.0, "alone: the stack returned a float; give a list"),
        (lambda examples: torch.tensor(1.0), "alone: the stack returned a Tensor; give a list"),
        (lambda examples: dict.fromkeys(range(len(examples)), 1.0), "alone: the stack returned a dict; give a list"),
        (lambda examples: {1.0}, "alone: the stack returned a set; give a list"),
        (lambda examples: "1", "alone: the stack returned a str; give a list"),
        (lambda examples: [None for _ in examples], "alone, example 0 of the row: a NoneType, which is no tensor"),
        (lambda examples: ["x" for _ in examples], "alone, example 0 of the row: a str, which is no tensor"),
        (lambda examples: [{} for _ in examples], "alone, example 0 of the row: a dict, which is no tensor"),
        (lambda examples: [[1.0, [2.0]] for _ in examples], "alone, example 0 of the row: a list, which is no tensor"),
        (lambda examples: [1j for _ in examples], "alone, example 0 of the row: complex numbers"),
        (lambda examples: [[] for _ in examples], r"alone, example 0 of the row: \[\]; finite numbers"),
    ],
)
def test_a_stack_that_returns_something_else_is_named(stack: Stack, message: str) -> None:
    with pytest.raises(ContaminationError, match=message):
        measure_contamination(stack, EXAMPLES)


def test_a_variation_and_a_full_leak_that_return_something_else_are_named() -> None:
    def nothing(_examples: Sequence[PreferenceGroup]) -> Any:
        return None

    with pytest.raises(ContaminationError, match="variation padded: the stack returned a NoneType"):
        measure_contamination(toy(0.5), EXAMPLES, variations={"padded": nothing})
    with pytest.raises(ContaminationError, match="leaked: the stack returned a NoneType"):
        measure_contamination(toy(0.5), EXAMPLES, full_leak=nothing)


def test_a_dtype_that_does_not_round_is_refused() -> None:
    with pytest.raises(ContaminationError, match=r"computed_in is torch\.int64"):
        measure_in(toy(), EXAMPLES, computed_in=torch.int64)


def test_one_tensor_with_a_loss_for_each_example_is_enough() -> None:
    def losses(examples: Sequence[PreferenceGroup]) -> Tensor:
        return torch.stack([value.mean() for value in toy(0.5)(examples)])

    def listed(examples: Sequence[PreferenceGroup]) -> list[float]:
        return [float(value) for value in losses(examples).double()]

    expected = measure_contamination(listed, EXAMPLES)
    assert measure_contamination(losses, EXAMPLES) == expected
