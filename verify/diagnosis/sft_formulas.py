"""Wrong losses of supervised fine-tuning, as weights of tokens: which are counted, and what the sum is divided by.

With two completions of losses ``a`` and ``b b b``: the token mean weighs every token 1/4, the example mean 1/2 and 1/6,
a mean over micro-batches of one completion too; a sum weighs all of them 1.

Shape letters: K completions, L tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.diagnosis.examples import Example
from verify.faults.stages import StageName
from verify.objective import Sft

Counted = tuple[Tensor, ...]
"""For every sequence which of its entries count; bool, [L]."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A loss: the sum of token losses with these weights.

    Args:
        stage: The stage that is wrong where a subject computes it.
        what: What it computes, in words.
        weights: One vector for each sequence, [L].
    """

    stage: StageName
    what: str
    weights: tuple[Tensor, ...]

    def value(self, examples: Sequence[Example]) -> float:
        """The loss, in nats."""
        return sum(float(w @ x.losses) for w, x in zip(self.weights, examples, strict=True))

    def of_completions(self, examples: Sequence[Example]) -> list[Tensor]:
        """Derivative of the loss by the log-prob of each completion token."""
        return [-w[x.own] for w, x in zip(self.weights, examples, strict=True)]

    def counts_others(self, examples: Sequence[Example]) -> bool:
        """Whether tokens count that are of no completion: the prompt's, or what stands behind the end."""
        return any(bool(w[: x.own.start].any() or w[x.own.stop :].any()) for w, x in zip(self.weights, examples))  # noqa: B905


def formulas(examples: Sequence[Example], objective: Sft) -> tuple[Formula, ...]:
    """The right loss first, then the wrong ones.

    Args:
        examples: The sequences.
        objective: The right mean.

    Returns:
        Formulas of different weights; of two that are the same on these sequences the first.
    """
    found: list[Formula] = []
    for formula in _all(examples, objective):
        if not any(_same(formula, known) for known in found):
            found.append(formula)
    return tuple(found)


def _same(one: Formula, other: Formula) -> bool:
    return all(torch.allclose(a, b, rtol=1e-9, atol=0) for a, b in zip(one.weights, other.weights, strict=True))


def _all(examples: Sequence[Example], objective: Sft) -> Iterator[Formula]:
    right = tuple(example.supervised for example in examples)
    groups = torch.tensor([example.group for example in examples])
    lengths = torch.tensor([float(len(example.path)) for example in examples], dtype=torch.float64)
    of_mean = _token_mean if objective.mean == "token" else _example_mean
    yield _formula("objective", "the right loss", right, of_mean(_counts(right)))
    for stage, what, weights in _means(_counts(right), lengths, groups):
        yield _formula(stage, what, right, weights)
    for what, runs in _means_of_runs(examples):
        yield Formula("reduction", what, runs)
    for what, counted in _selections(examples):
        yield _formula("supervision", what, counted, of_mean(_counts(counted)))
        yield _formula("supervision", f"{what}, and the number they are divided by does not follow",
                       counted, of_mean(_counts(right)))  # fmt: skip


def _formula(stage: StageName, what: str, counted: Counted, weights: Tensor) -> Formula:
    return Formula(stage, what, tuple(mask * weight for mask, weight in zip(counted, weights, strict=True)))


def _counts(counted: Counted) -> Tensor:
    return torch.stack([mask.sum() for mask in counted]).double()


def _token_mean(counts: Tensor) -> Tensor:
    """Weight of every counted token of each completion; [K]."""
    return torch.ones_like(counts) / counts.sum()


def _example_mean(counts: Tensor) -> Tensor:
    return 1 / (len(counts) * counts.clamp(min=1))


def _means(counts: Tensor, lengths: Tensor, groups: Tensor) -> Iterator[tuple[StageName, str, Tensor]]:
    """The right tokens, put together wrongly; weights are [K]."""
    ones = torch.ones_like(counts)
    yield "objective", "the mean over all tokens of the batch, not over examples", _token_mean(counts)
    yield "objective", "the mean over examples, not over all tokens of the batch", _example_mean(counts)
    num_groups = int(groups.max()) + 1
    for words, part in (
        ("of one prompt each", groups),
        ("of two prompts each", groups // 2),
        ("of two examples each", torch.arange(len(counts)) // 2),
        ("of four examples each", torch.arange(len(counts)) // 4),
    ):
        num_parts = int(part.max()) + 1
        tokens, examples = (torch.zeros(num_parts, dtype=torch.float64).index_add(0, part, x) for x in (counts, ones))
        yield "accumulation", f"the mean of the token means of micro-batches {words}", 1 / (num_parts * tokens[part])
        yield (
            "accumulation", f"the mean of the example means of micro-batches {words}",
            1 / (num_parts * examples[part] * counts),
        )  # fmt: skip
        yield "accumulation", f"the sum of the token means of micro-batches {words}", 1 / tokens[part]
    yield "accumulation", "the sum over all tokens, divided by nothing", ones
    yield "accumulation", "the sum over all tokens, divided by the number of examples", ones / len(counts)
    yield "accumulation", "the sum over all tokens, divided by the number of prompts", ones / num_groups
    yield "accumulation", "the sum of the means of the examples, divided by nothing", 1 / counts
    yield (
        "reduction",
        "the sum over supervised tokens, divided by the number of all response tokens",
        ones / lengths.sum(),
    )
    yield (
        "reduction", "the mean over examples of sums divided by the whole length of the response",
        1 / (len(counts) * lengths),
    )  # fmt: skip
    yield (
        "reduction", "the mean over examples of sums divided by the length of the longest",
        ones / (len(counts) * lengths.max()),
    )  # fmt: skip


def _means_of_runs(examples: Sequence[Example]) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """A run of supervised tokens, as of one turn, is averaged on its own."""
    num_runs = torch.tensor([int(_runs(example.supervised).max()) for example in examples])
    of_run = [_weights_within_runs(example.supervised) for example in examples]
    yield (
        "the mean over examples of the mean of the means of their runs of supervised tokens",
        tuple(w / (len(examples) * int(n)) for w, n in zip(of_run, num_runs, strict=True)),
    )
    yield "the mean of the means of all runs of supervised tokens", tuple(w / int(num_runs.sum()) for w in of_run)


def _weights_within_runs(mask: Tensor) -> Tensor:
    """1 over the length of its run for a supervised token, 0 for any other."""
    runs = _runs(mask)
    lengths = torch.bincount(runs[mask], minlength=int(runs.max()) + 1)
    return torch.where(mask, 1 / lengths[runs].double().clamp(min=1), 0.0)


def _selections(examples: Sequence[Example]) -> Iterator[tuple[str, Counted]]:
    """The wrong tokens."""
    right = tuple(example.supervised for example in examples)

    def each(select: object) -> Counted:
        return tuple(select(x, mask.clone()) for x, mask in zip(examples, right, strict=True))  # type: ignore[operator]

    yield "tokens that are not supervised count", each(_all_of_the_response)
    yield "prompt tokens count too", each(lambda x, mask: mask | (torch.arange(len(mask)) < x.own.start))
    yield (
        "every token counts, the prompt's and those that are not supervised",
        each(lambda x, mask: torch.arange(len(mask)) < x.own.stop),
    )
    yield "the last prompt token counts too", each(lambda x, mask: mask | (torch.arange(len(mask)) == x.own.start - 1))
    late = each(lambda x, mask: mask.roll(1).index_fill(0, torch.tensor([0]), False))
    yield "the mask of supervised tokens lies one token late", late
    yield (
        "the mask of supervised tokens lies one token late, within the response",
        tuple(mask & (torch.arange(len(mask)) < x.own.stop) for x, mask in zip(examples, late, strict=True)),
    )
    early = each(lambda x, mask: mask.roll(-1))
    yield "the mask of supervised tokens lies one token early", early
    yield (
        "the mask of supervised tokens lies one token early, within the response",
        tuple(mask & (torch.arange(len(mask)) >= x.own.start) for x, mask in zip(examples, early, strict=True)),
    )
    yield "the first token of each run of supervised ones is not counted", each(lambda x, mask: mask & mask.roll(1))
    yield "the last token of each run of supervised ones is not counted", each(lambda x, mask: mask & mask.roll(-1))
    yield (
        "the first supervised token of each response is not counted",
        each(lambda x, mask: mask & (mask.cumsum(0) > 1)),
    )
    yield (
        "the last supervised token of each response is not counted",
        each(lambda x, mask: mask & (mask.cumsum(0) < mask.sum())),
    )
    yield (
        "only the last run of supervised tokens counts",
        each(lambda x, mask: mask & (_runs(mask) == _runs(mask).max())),
    )
    yield "only the first run of supervised tokens counts", each(lambda x, mask: mask & (_runs(mask) == 1))
    behind = [index < len(examples) - 1 for index in range(len(examples))]
    yield (
        "the end of each sequence predicts the start of the next",
        tuple(torch.cat((mask[:-1], torch.tensor([one]))) for mask, one in zip(right, behind, strict=True)),
    )
    yield (
        "the end of each sequence predicts the start of another",
        tuple(torch.cat((mask[:-1], torch.tensor([True]))) for mask in right),
    )
    yield "tokens that several responses share count once", _shared_once(examples)


def _all_of_the_response(example: Example, mask: Tensor) -> Tensor:
    mask[example.own] = True
    return mask


def _runs(mask: Tensor) -> Tensor:
    """Number of the run of supervised tokens that each entry is in or behind, from 1."""
    return (mask & ~torch.cat((torch.tensor([False]), mask[:-1]))).cumsum(0)


def _shared_once(examples: Sequence[Example]) -> Counted:
    seen: set[int] = set()
    counted = []
    for example in examples:
        mask = example.supervised.clone()
        for place, number in enumerate(example.path, start=example.own.start):
            mask[place] &= number not in seen
        seen.update(number for place, number in enumerate(example.path, example.own.start) if mask[place])
        counted.append(mask)
    return tuple(counted)
