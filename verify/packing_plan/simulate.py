"""An epoch under data parallelism, step by step: what each way of filling rows computes, pads and waits for.

Every plan takes the same groups in the same sampling order, and about the same number of groups per optimizer step. A
step lasts as long as its slowest rank. A rank's time is its forward FLOPs: linear layers over all slots, padding
included, and attention as the layout's kernel has it:

    plain       each sequence a row, padded to the longest of the rank's batch; a causal kernel covers the whole row
    packing     each group a row, padded to the longest of the batch; padding attends to itself only
    sequence    whole groups (or, without shared prompts, whole sequences) in rows of the limit, filled first-fit
    packing     decreasing; padding attends to itself only
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from verify.packing_plan.costs import (
    FlopPrices,
    GroupLengths,
    Work,
    causal_pairs,
    packed_work,
)
from verify.packing_plan.order import OrderCheck, check_order, sampling_order
from verify.subjects.bins import (
    Rows,
    batches_in_order,
    first_fit_decreasing,
    length_bucketed_batches,
    length_sorted_batches,
)

REPEATED_ROWS = "sequence packing, prompts repeated"
SHARED_ROWS = "sequence packing, prompts shared"

FEWEST_STEPS = 8
"""A shorter data set is repeated until it fills this many steps, so that single rows do not decide."""

_MOST_GROUPS, _MOST_SEQUENCES = 20_000, 200_000
"""Where a data set is repeated, up to this many groups, with this many responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the steps are made up.

    Args:
        prices: FLOPs of the model.
        num_ranks: Data-parallel ranks, which wait for each other at each step.
        groups_per_rank: Groups that a rank takes in each step; in rows of several groups, as nearly as whole rows do.
        row_limit: Slots of a row in sequence packing.
        seed: Seed of the sampling order.
        other_row_limits: Row limits to compare with. The epoch is long enough for the largest of all limits, so that
            one setting has one epoch, whatever is run over it.

    Raises:
        ValueError: A number below one.
    """

    prices: FlopPrices
    num_ranks: int
    groups_per_rank: int
    row_limit: int
    seed: int
    other_row_limits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_ranks", "groups_per_rank", "row_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 1")

    @property
    def row_limits(self) -> tuple[int, ...]:
        """All row limits, ascending."""
        return tuple(sorted({self.row_limit, *self.other_row_limits}))


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank does in one step.

    Args:
        work: Everything that is computed, padding included.
        useful_tokens: Tokens of the data among the slots.
        num_rows: Rows.
        num_examples: Groups in them; a sequence of a group of K counts as 1/K.
    """

    work: Work
    useful_tokens: int
    num_rows: int
    num_examples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """One way of filling rows, over an epoch.

    Args:
        plan: Its name.
        num_steps: Steps of the epoch; an incomplete last one is left out, unless it is the only one.
        num_rows: Rows in them.
        num_examples: Groups in them.
        slots_per_step: Slots, padding included; mean.
        useful_tokens_per_step: Slots that hold a token of the data; mean.
        peak_slots: Most slots that a rank holds in one step.
        flops: Forward FLOPs of all ranks.
        waiting_share: Share of the ranks' time in which they wait for the slowest.
        speed_up: Time for each group unpacked and padded ("plain") over the time with this plan.
    """

    plan: str
    num_steps: int
    num_rows: int
    num_examples: float
    slots_per_step: float
    useful_tokens_per_step: float
    peak_slots: int
    flops: int
    waiting_share: float
    speed_up: float

    @property
    def token_utilisation(self) -> float:
        """Slots that hold a token of the data / slots."""
        return self.useful_tokens_per_step / self.slots_per_step

    @property
    def padded_tokens_per_step(self) -> float:
        """Slots that hold padding; mean over steps."""
        return self.slots_per_step - self.useful_tokens_per_step

    @property
    def examples_per_row(self) -> float:
        """Groups of the epoch / rows of the epoch; below one where a group takes several rows."""
        return self.num_examples / self.num_rows


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Groups in sampling order, with their positions in the data set."""

    groups: Sequence[GroupLengths]
    positions: Sequence[int]


Steps = Sequence[Sequence[RankStep]]
"""What each rank does, step by step."""


def simulate(groups: Sequence[GroupLengths], setting: Setting, plans: Sequence[str] = ()) -> tuple[PlanResult, ...]:
    """Run an epoch under each plan.

    Args:
        groups: Lengths of the groups, in the order of the data set.
        setting: Model, ranks, batch, row limit and seed.
        plans: Names from `PLANS`; all of them if empty.

    Returns:
        One result for each plan, in the order asked for.

    Raises:
        ValueError: No group, an unknown plan, or a group longer than the row limit (where a plan has one).
    """
    if unknown := [plan for plan in plans if plan not in PLANS]:
        raise ValueError(f"unknown plan {unknown[0]!r}: expected one of {', '.join(PLANS)}")
    epoch = _epoch(groups, setting)
    plain_time = _time_of_plain_group(epoch, setting)
    return tuple(_result(plan, PLANS[plan](epoch, setting), setting, plain_time) for plan in plans or tuple(PLANS))


def simulate_row_limits(groups: Sequence[GroupLengths], setting: Setting) -> tuple[tuple[int, PlanResult], ...]:
    """Run the epoch of `simulate` in rows of each limit of the setting, with prompts repeated and with prompts shared.

    Args:
        groups: As in `simulate`.
        setting: As in `simulate`.

    Returns:
        For each limit, ascending, both plans.

    Raises:
        ValueError: As `simulate`.
    """
    epoch = _epoch(groups, setting)
    plain_time = _time_of_plain_group(epoch, setting)
    results = []
    for plan, items in ((REPEATED_ROWS, _sequences(epoch)), (SHARED_ROWS, _packed_groups(epoch))):
        for limit in setting.row_limits:
            limited = replace(setting, row_limit=limit)
            steps = _sequence_packed(len(epoch.groups), limited, items)
            results.append((limit, _result(plan, steps, limited, plain_time)))
    return tuple(sorted(results, key=lambda each: each[0]))


def order_in_rows(groups: Sequence[GroupLengths], setting: Setting, *, shuffled: bool) -> OrderCheck | None:
    """Whether rows of several groups with shared prompts follow the order of the data set.

    Args:
        groups: As in `simulate`.
        setting: As in `simulate`.
        shuffled: Shuffle the groups before they are packed, as every plan does; False to see what that prevents.

    Returns:
        What was found; None where no row holds two groups.
    """
    order = sampling_order(len(groups), setting.seed) if shuffled else range(len(groups))
    rows = first_fit_decreasing([groups[position].packed for position in order], setting.row_limit)
    return check_order([[order[item] for item in row] for row in rows], setting.seed)


def _epoch(groups: Sequence[GroupLengths], setting: Setting) -> _Epoch:
    """The shuffled groups, cut to whole steps; a short data set is repeated first."""
    if not groups:
        raise ValueError("no group to plan for: at least one is needed")
    step = setting.num_ranks * setting.groups_per_rank
    tokens_of_steps = FEWEST_STEPS * setting.num_ranks * setting.row_limits[-1]
    repeats = max(-(-FEWEST_STEPS * step // len(groups)), -(-tokens_of_steps // sum(group.packed for group in groups)))
    num_sequences = sum(len(group.responses) for group in groups)
    affordable = min(_MOST_GROUPS // len(groups), _MOST_SEQUENCES // num_sequences)
    repeats = max(1, min(repeats, affordable), -(-step // len(groups)))
    positions = [
        position for repeat in range(repeats) for position in sampling_order(len(groups), setting.seed + repeat)
    ]
    positions = positions[: len(positions) // step * step]
    return _Epoch([groups[position] for position in positions], positions)


def _time(steps: Steps, prices: FlopPrices) -> int:
    """FLOPs of the slowest rank, summed over steps."""
    return sum(max(prices.flops(rank.work) for rank in step) for step in steps)


def _time_of_plain_group(epoch: _Epoch, setting: Setting) -> float:
    plain = _plain(epoch, setting, batches_in_order)
    return _time(plain, setting.prices) / _num_examples(plain)


def _num_examples(steps: Steps) -> float:
    return sum(rank.num_examples for step in steps for rank in step)


def _result(plan: str, steps: Steps, setting: Setting, time_of_plain_group: float) -> PlanResult:
    ranks = [rank for step in steps for rank in step]
    num_examples = _num_examples(steps)
    flops = sum(setting.prices.flops(rank.work) for rank in ranks)
    time = _time(steps, setting.prices)
    return PlanResult(
        plan=plan,
        num_steps=len(steps),
        num_rows=sum(rank.num_rows for rank in ranks),
        num_examples=num_examples,
        slots_per_step=sum(rank.work.tokens for rank in ranks) / len(steps),
        useful_tokens_per_step=sum(rank.useful_tokens for rank in ranks) / len(steps),
        peak_slots=max(rank.work.tokens for rank in ranks),
        flops=flops,
        waiting_share=1 - flops / (setting.num_ranks * time),
        speed_up=time_of_plain_group * num_examples / time,
    )


Batching = Callable[[Sequence[int], int], Rows]
"""Cut items in sampling order into batches of a size."""


def _sorted_by(lengths: Sequence[int]) -> Batching:
    return lambda order, size: length_sorted_batches(order, lengths, size)


def _bucketed_by(lengths: Sequence[int]) -> Batching:
    bounds = [2**exponent for exponent in range(max(lengths).bit_length())]
    return lambda order, size: length_bucketed_batches(order, lengths, size, bounds)


def _longest_sequences(epoch: _Epoch) -> list[int]:
    return [max(group.sequences) for group in epoch.groups]


def _steps_of_groups(
    epoch: _Epoch, setting: Setting, batching: Batching, rank_step: Callable[[Sequence[GroupLengths]], RankStep]
) -> list[list[RankStep]]:
    """Batches of a whole step, cut into those of the ranks."""
    size = setting.groups_per_rank
    steps = batching(range(len(epoch.groups)), size * setting.num_ranks)
    return [
        [rank_step([epoch.groups[item] for item in step[at : at + size]]) for at in range(0, len(step), size)]
        for step in steps
    ]


def _plain(epoch: _Epoch, setting: Setting, batching: Batching) -> Steps:
    return _steps_of_groups(epoch, setting, batching, _padded_sequences)


def _packed(epoch: _Epoch, setting: Setting, batching: Batching) -> Steps:
    return _steps_of_groups(epoch, setting, batching, _padded_groups)


def _padded_sequences(groups: Sequence[GroupLengths]) -> RankStep:
    """A row for each sequence, padded to the longest; a causal kernel does not skip padding."""
    sequences = [length for group in groups for length in group.sequences]
    width = max(sequences)
    predictors = sum(sum(group.responses) for group in groups)
    work = Work(width * len(sequences), causal_pairs(width) * len(sequences), predictors)
    return RankStep(work, sum(sequences), len(sequences), len(groups))


def _padded_groups(groups: Sequence[GroupLengths]) -> RankStep:
    """A row for each group, padded to the longest; padding attends to itself only."""
    width = max(group.packed for group in groups)
    parts = [packed_work(group) for group in groups]
    pairs = sum(part.pairs + causal_pairs(width - part.tokens) for part in parts)
    work = Work(width * len(groups), pairs, sum(part.predictors for part in parts))
    return RankStep(work, sum(part.tokens for part in parts), len(groups), len(groups))


@dataclass(frozen=True, slots=True)
class _Items:
    """What rows of several groups are filled with, whole groups or single sequences; [N] each.

    Args:
        tokens: Slots that an item takes.
        pairs: Pairs of query and key within it.
        predictors: Its positions that go through the head.
        examples: The part of a group that it is.
    """

    tokens: NDArray[np.int64]
    pairs: NDArray[np.int64]
    predictors: NDArray[np.int64]
    examples: NDArray[np.float64]


def _items(parts: Sequence[tuple[Work, float]]) -> _Items:
    tokens, pairs, predictors = np.array([(w.tokens, w.pairs, w.predictors) for w, _ in parts], dtype=np.int64).T
    return _Items(tokens, pairs, predictors, np.array([examples for _, examples in parts]))


def _packed_groups(epoch: _Epoch) -> _Items:
    return _items([(packed_work(group), 1.0) for group in epoch.groups])


def _sequences(epoch: _Epoch) -> _Items:
    """Those of one group may lie in different rows."""
    return _items(
        [
            (Work(group.prompt + response, causal_pairs(group.prompt + response), response), 1 / len(group.responses))
            for group in epoch.groups
            for response in group.responses
        ]
    )


def _sequence_packed(num_groups: int, setting: Setting, items: _Items) -> Steps:
    """Rows of the limit, filled with whole items, in shuffled order; about as many groups per step as without."""
    limit = setting.row_limit
    filled = first_fit_decreasing(items.tokens.tolist(), limit)
    rows = [filled[i] for i in sampling_order(len(filled), setting.seed)]
    order = np.array([item for row in rows for item in row], dtype=np.intp)
    row_starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])[:-1]]).astype(np.intp)
    useful, pairs, predictors, examples = (
        np.add.reduceat(values[order], row_starts)
        for values in (items.tokens, items.pairs, items.predictors, items.examples)
    )
    padding = limit - useful
    pairs = pairs + padding * (padding + 1) // 2
    rows_per_rank = max(1, round(setting.groups_per_rank * len(rows) / num_groups))
    ranks = [
        RankStep(
            Work(limit * len(useful[batch]), int(pairs[batch].sum()), int(predictors[batch].sum())),
            int(useful[batch].sum()),
            len(useful[batch]),
            float(examples[batch].sum()),
        )
        for batch in (slice(at, at + rows_per_rank) for at in range(0, len(rows), rows_per_rank))
    ]
    whole = len(ranks) // setting.num_ranks * setting.num_ranks or len(ranks)
    return [ranks[at : at + setting.num_ranks] for at in range(0, whole, setting.num_ranks)]


PLANS: Mapping[str, Callable[[_Epoch, Setting], Steps]] = MappingProxyType(
    {
        "plain": lambda epoch, setting: _plain(epoch, setting, batches_in_order),
        "bucketing": lambda epoch, setting: _plain(epoch, setting, _bucketed_by(_longest_sequences(epoch))),
        "sorting": lambda epoch, setting: _plain(epoch, setting, _sorted_by(_longest_sequences(epoch))),
        "packing": lambda epoch, setting: _packed(epoch, setting, batches_in_order),
        "packing, sorting": lambda epoch, setting: _packed(
            epoch, setting, _sorted_by([group.packed for group in epoch.groups])
        ),
        REPEATED_ROWS: lambda epoch, setting: _sequence_packed(len(epoch.groups), setting, _sequences(epoch)),
        SHARED_ROWS: lambda epoch, setting: _sequence_packed(len(epoch.groups), setting, _packed_groups(epoch)),
    }
)
"""What each plan is called, from the simplest on."""
