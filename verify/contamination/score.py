"""The contamination score: how far packed examples are from the same examples alone, between none and all of a leak.

A stack is anything that packs examples into one row and tells the log-probs or the loss of each. Nothing is known of
its mask, its positions or its kernels. For example ``i`` in row ``r`` with something in front of it, let

- ``alone_i``      be its values in a row of its own,
- ``packed_ir``    its values in the row,
- ``leaked_ir``    its values with all tokens in front of it put before its prompt, as one long example,

and ``|x|`` the root mean square over its values. Then, over all ``i`` and ``r``,

    score = sqrt( mean |packed_ir - alone_i|^2  /  mean |leaked_ir - alone_i|^2 )

0: the neighbours make no difference. 1: they make as much as if they were part of the prompt. A leak with restarted
positions sees the same tokens at other distances and comes out near 1 rather than at it; give ``full_leak`` where the
stack can be made to leak, and 1 is exactly that.

No score is 0 in floating point. The noise floor is the same ratio with harmless changes in the numerator: the example
at the *front* of each row, where a causal model cannot see what stands behind it, in rows of the same lengths and in
the other orders of the neighbours; and whatever ``variations`` add, e.g. alone in a padded batch. An order that puts
other neighbours in front is no harmless change: what it changes is what a leak is. At the front of a row kernels may
well round as they do alone, so the floor is never below one unit in the last place of the dtype that the stack computes
in, which must be said: log-probs of a bfloat16 model come as float32.

What it cannot see:

- anything that is wrong in the same way alone and packed;
- contamination below the noise floor, which in bfloat16 is some hundredths of a full leak;
- with a loss per example instead of log-probs: differences that cancel in the mean;
- contamination from what stands *behind* an example. It raises the noise floor, so that nothing can be resolved, and
  that is said, but not where it comes from;
- randomness (dropout left on): the same.

A score says that something arrives, not how: positions that run on through a row raise it as a leaking mask does. With
access to the model, rewriting the tokens in front tells the two apart (``verify.families.probe``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from verify.contamination.examples import check_examples, joined, rotations
from verify.groups import PreferenceGroup
from verify.trained_gradients import to_float64

Values = Sequence[Tensor] | Sequence[float] | Tensor
Stack = Callable[[Sequence[PreferenceGroup]], Values]
"""Packs examples into one row, in the order given, and returns for each its log-probs (1-D) or its loss, in a list; the
losses may come as one tensor."""


class ContaminationError(ValueError):
    """Nothing can be said: the examples, the values or the full leak are of no use."""


Finding = Literal["isolated", "contaminated", "unresolved"]

TIMES_NOISE = 4.0
"""A score above so many noise floors is contamination. Honest stacks stay near 1 or below (docs/contamination.md)."""
LARGEST_NOISE = 0.1
"""A noise floor above this share of a full leak resolves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleContamination:
    """One example over all rows in which something stands in front of it.

    Args:
        score: As defined above, over this example.
        noise: Its noise floor.
        nats: The largest difference of one value between packed and alone.
    """

    score: float
    noise: float
    nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """What was measured on a stack.

    Args:
        score: 0 isolated, 1 as much as a full leak.
        noise: The noise floor, on the same scale.
        nats: The largest difference of one value between packed and alone.
        examples: The same for each example, in the order given.
    """

    score: float
    noise: float
    nats: float
    examples: tuple[ExampleContamination, ...]

    @property
    def finding(self) -> Finding:
        """Nothing where the noise is too large; else contaminated where the score stands out from it."""
        if self.noise > LARGEST_NOISE:
            return "unresolved"
        return "contaminated" if self.score > TIMES_NOISE * self.noise else "isolated"

    @property
    def words(self) -> str:
        """The score as a report says it."""
        match self.finding:
            case "isolated":
                return f"below the noise floor ({self.noise:.2g} of a full leak)"
            case "contaminated":
                return f"{self.score:.3g} of a full leak (noise floor {self.noise:.2g})"
            case "unresolved":
                return (
                    f"unresolved: harmless changes make {self.noise:.2g} of a full leak; either rounding is that "
                    "large, or what stands behind an example reaches it, or the stack is random"
                )


def measure_contamination(
    stack: Stack,
    examples: Sequence[PreferenceGroup],
    *,
    computed_in: torch.dtype,
    variations: Mapping[str, Stack] | None = None,
    full_leak: Stack | None = None,
) -> Contamination:
    """Measure how far packed examples are from the same examples alone.

    The stack is called on each example alone, on each rotation of the examples as one row, and, without ``full_leak``,
    on each example behind its neighbours as one long example: ``n + n + n (n - 1)`` calls for ``n`` examples.

    Args:
        stack: What is measured. It must be deterministic (dropout off).
        examples: At least two, each a prompt of its own and one completion.
        computed_in: The dtype of the stack's activations, whatever that of the values it returns.
        variations: Harmless ways of computing all examples apart, by name, e.g. in one padded batch.
        full_leak: The same row with plain causal attention over everything, where the stack can be made to do that.

    Returns:
        Score, noise floor and finding.

    Raises:
        ContaminationError: Equal examples, a stack that returns something else than a list, too few values or one
            that is not finite, a dtype without rounding, or a full leak that makes no difference, so that nothing could
            be seen.
        ValueError: Examples that cannot be used.
    """
    if not computed_in.is_floating_point:
        raise ContaminationError(f"computed_in is {computed_in}; give the dtype of the activations, a floating one")
    rows = rotations(check_examples(examples))
    alone = {example: _values(stack, (example,), "alone")[0] for example in examples}
    if len(alone) != len(examples):
        raise ContaminationError("two examples are equal; their values could not be told apart")
    packed_sq, leaked_sq, harmless_sq, nats = ({e: list[float]() for e in examples} for _ in range(4))
    for row in rows:
        packed = _values(stack, row, "packed")
        if full_leak is None:
            leaked = tuple(_values(stack, (joined(row, place),), "leaked")[0] for place in range(1, len(row)))
        else:
            leaked = _values(full_leak, row, "leaked")[1:]
        harmless_sq[row[0]].append(_mean_square(packed[0], alone[row[0]]))
        for example, in_row, in_leak in zip(row[1:], packed[1:], leaked, strict=True):
            packed_sq[example].append(_mean_square(in_row, alone[example]))
            leaked_sq[example].append(_mean_square(in_leak, alone[example]))
            nats[example].append(float(_difference(in_row, alone[example]).abs().max()))
    for name, vary in (variations or {}).items():
        for example, varied in zip(examples, _values(vary, tuple(examples), f"variation {name}"), strict=True):
            harmless_sq[example].append(_mean_square(varied, alone[example]))
    return _contamination([
        _Squares(
            packed=_mean(packed_sq[example]),
            leaked=_mean(leaked_sq[example]),
            harmless=max(*harmless_sq[example], _rounding_square(alone[example], computed_in)),
            rounding=_rounding_square(alone[example], computed_in),
            nats=max(nats[example]),
        )
        for example in examples
    ])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Squares:
    """Mean squared differences from alone, of one example; and the largest difference of one value."""

    packed: float
    leaked: float
    harmless: float
    rounding: float
    nats: float


def _contamination(squares: Sequence[_Squares]) -> Contamination:
    for index, square in enumerate(squares):
        if square.leaked <= square.rounding:
            raise ContaminationError(
                f"example {index}: its neighbours as part of its prompt make no more difference than rounding "
                f"({square.leaked**0.5:.3g} nats): no leak could be seen. Give a model whose context matters"
            )
    leaked = _mean([square.leaked for square in squares])
    return Contamination(
        score=math.sqrt(_mean([square.packed for square in squares]) / leaked),
        noise=math.sqrt(_mean([square.harmless for square in squares]) / leaked),
        nats=max(square.nats for square in squares),
        examples=tuple(
            ExampleContamination(
                score=math.sqrt(square.packed / square.leaked),
                noise=math.sqrt(square.harmless / square.leaked),
                nats=square.nats,
            )
            for square in squares
        ),
    )


def _values(stack: Stack, examples: Sequence[PreferenceGroup], what: str) -> tuple[Tensor, ...]:
    """One float64 vector per example; a loss is a vector of one.

    Raises:
        ContaminationError: No list of values, the wrong number of them, or one that is no number or not finite.
    """
    returned = _listed(stack(examples), what)
    if len(returned) != len(examples):
        raise ContaminationError(f"{what}: the stack returned {len(returned)} values for {len(examples)} examples")
    vectors = tuple(_vector(value, f"{what}, example {index} of the row") for index, value in enumerate(returned))
    for index, vector in enumerate(vectors):
        if not len(vector) or not bool(vector.isfinite().all()):
            raise ContaminationError(
                f"{what}, example {index} of the row: {vector.tolist()[:3]}; finite numbers are needed"
            )
    return vectors


def _listed(returned: object, what: str) -> list[object]:
    """What a stack returned, if it has an order and a length; a generator may give its values only once."""
    has_values = isinstance(returned, Collection) and not isinstance(returned, Mapping | Set | str | bytes)
    if not has_values or (isinstance(returned, Tensor) and not returned.ndim):
        raise ContaminationError(
            f"{what}: the stack returned a {type(returned).__name__}; give a list with the log-probs (1-D) or the "
            "loss of each example, in the order of the examples"
        )
    return list(cast(Collection[object], returned))


def _vector(value: object, where: str) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ContaminationError(
            f"{where}: a {type(value).__name__}, which is no tensor or number; give the log-probs (1-D) or the loss"
        ) from error
    if tensor.is_complex():
        raise ContaminationError(f"{where}: complex numbers; log-probs and losses are real")
    return to_float64(tensor).reshape(-1)


def _difference(values: Tensor, alone: Tensor) -> Tensor:
    if values.shape != alone.shape:
        raise ContaminationError(
            f"the stack returned {len(values)} values for an example that has {len(alone)} alone: give log-probs of "
            "the same tokens, or one loss, each time"
        )
    return values - alone


def _mean_square(values: Tensor, alone: Tensor) -> float:
    return float(_difference(values, alone).square().mean())


def _rounding_square(alone: Tensor, dtype: torch.dtype) -> float:
    """Where harmless changes keep every bit: one unit in the last place."""
    return (torch.finfo(dtype).eps * float(alone.abs().max())) ** 2


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
