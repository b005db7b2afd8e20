"""What packing would save, as records: the algebra over all groups, and the simulation over a sample of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.data_record import (
    AlgebraRecord,
    BinRecord,
    ByResponsesRecord,
    OrderRecord,
    PartLengthsRecord,
    PlanRecord,
    PrefixTreesRecord,
    SharedPrefixesRecord,
    SimulationRecord,
)
from verify.data.length_statistics import LengthHistogram
from verify.data.survey import MOST_COUNTED
from verify.packing_plan.costs import FlopPrices, GroupLengths
from verify.packing_plan.prefix_trees import ALONE, TokenGroup, counted_works
from verify.packing_plan.simulate import (
    REPEATED_ROWS,
    SHARED_ROWS,
    PlanResult,
    Setting,
    order_in_rows,
    simulate,
    simulate_row_limits,
)
from verify.packing_plan.totals import NOTHING, Totals

SHORTEST_DEFAULT_LIMIT = 4096
_DOUBLINGS_SHOWN = 6
_QUANTILES = (5, 25, 50, 75, 95, 99)
_TOKENS_ONLY = FlopPrices(by_token=1, by_pair=0, by_predictor=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the simulation was asked for.

    Args:
        model: A published name, a JSON file of a shape, or the folder of a checkpoint.
        row_limit: Slots of a row in sequence packing, in the unit of the lengths; None for a power of two that every
            group fits into.
        num_ranks: Data-parallel ranks.
        groups_per_rank: Groups that each rank takes in a step.
        seed: Seed of sample, sampling order and order check.
    """

    model: str = "qwen3-8b"
    row_limit: int | None = None
    num_ranks: int = 8
    groups_per_rank: int = 4
    seed: int = 0


def default_row_limit(longest: int) -> int:
    """A power of two that every group fits into."""
    return max(SHORTEST_DEFAULT_LIMIT, 1 << (longest - 1).bit_length())


def algebra_record(by_count: Mapping[int, Totals], prices: FlopPrices | None) -> AlgebraRecord:
    """The exact sums.

    Args:
        by_count: Costs of the groups, by number of responses.
        prices: FLOPs of the model; None where lengths are not in tokens.

    Returns:
        The record.
    """
    totals = sum(by_count.values(), NOTHING)
    return AlgebraRecord(
        tokens_unpacked=totals.unpacked.tokens,
        tokens_packed=totals.packed.tokens,
        attention_pairs_unpacked=totals.unpacked.pairs,
        attention_pairs_packed=totals.packed.pairs,
        shared_share=totals.shared_share,
        token_ratio=totals.token_ratio,
        flop_ratio=_flop_ratio(totals, prices),
        memory_ratio=totals.memory_ratio,
        eq1_unpacked=totals.eq1_unpacked,
        eq1_packed=totals.eq1_packed,
        eq1_ratio=totals.eq1_ratio,
        eq1_share=totals.eq1_packs / totals.num_groups,
        by_responses=[
            ByResponsesRecord(
                responses=count,
                or_more=count == MOST_COUNTED,
                groups=part.num_groups,
                token_ratio=part.token_ratio,
                attention_ratio=part.packed.pairs / part.unpacked.pairs,
                flop_ratio=_flop_ratio(part, prices),
                eq1_ratio=part.eq1_ratio,
                eq1_share=part.eq1_packs / part.num_groups,
            )
            for count, part in by_count.items()
        ],
    )


def _flop_ratio(totals: Totals, prices: FlopPrices | None) -> float | None:
    return None if prices is None else prices.flops(totals.packed) / prices.flops(totals.unpacked)


def simulation_record(
    groups: Sequence[GroupLengths],
    longest: int,
    model: str,
    prices: FlopPrices | None,
    plan: PlanOptions,
    row_limit: int,
) -> SimulationRecord:
    """An epoch in each way of filling rows, over several row limits, and whether rows follow the file's order.

    Args:
        groups: Lengths of groups, in the order of the file.
        longest: Slots of the longest group, sampled or not.
        model: What the model is called.
        prices: FLOPs of the model; None where lengths are not in tokens.
        plan: What was asked for.
        row_limit: Slots of a row in sequence packing.

    Returns:
        The record.
    """
    shortest = 1 << (longest - 1).bit_length()
    setting = Setting(
        prices=prices or _TOKENS_ONLY,
        num_ranks=plan.num_ranks,
        groups_per_rank=plan.groups_per_rank,
        row_limit=row_limit,
        seed=plan.seed,
        other_row_limits=tuple(shortest << doubling for doubling in range(_DOUBLINGS_SHOWN)),
    )
    return SimulationRecord(
        groups_sampled=len(groups),
        seed=plan.seed,
        num_ranks=plan.num_ranks,
        groups_per_rank=plan.groups_per_rank,
        row_limit=row_limit,
        time_is="characters through linear layers alone; attention needs token counts"
        if prices is None
        else f"forward FLOPs of {model}, padding included; backward passes are a multiple of them",
        plans=[
            _plan(result, row_limit if result.plan in (REPEATED_ROWS, SHARED_ROWS) else None)
            for result in simulate(groups, setting)
        ],
        by_row_limit=[_plan(result, limit) for limit, result in simulate_row_limits(groups, setting)],
        order=_order(groups, setting),
    )


def prefix_trees_record(
    groups: Sequence[TokenGroup], prices: FlopPrices, row_limit: int, seed: int
) -> PrefixTreesRecord:
    """What the prefix trees of some groups hold, next to shared prompts and to each sequence alone.

    Args:
        groups: Tokens of the groups, in the order of the file.
        prices: FLOPs of the model.
        row_limit: Slots of a row in sequence packing.
        seed: Seed of the sample, and of the shuffle before rows are filled.

    Returns:
        The record.
    """
    works = counted_works(groups, row_limit, seed)
    return PrefixTreesRecord(
        groups_sampled=len(groups),
        seed=seed,
        row_limit=row_limit,
        ways=[
            SharedPrefixesRecord(
                way=way,
                tokens=work.tokens,
                attention_pairs=work.pairs,
                flop_ratio=prices.flops(work) / prices.flops(works[ALONE]),
            )
            for way, work in works.items()
        ],
    )


def _order(groups: Sequence[GroupLengths], setting: Setting) -> OrderRecord | None:
    shuffled, unshuffled = (order_in_rows(groups, setting, shuffled=shuffled) for shuffled in (True, False))
    if shuffled is None or unshuffled is None:
        return None
    return OrderRecord(
        seed=shuffled.seed,
        pairs_in_a_row=shuffled.num_pairs,
        mean_distance=shuffled.mean_distance,
        random_distance=shuffled.random_distance,
        standard_deviations=shuffled.standard_deviations,
        follows_file_order=shuffled.follows_dataset_order,
        unshuffled_standard_deviations=unshuffled.standard_deviations,
    )


def _plan(result: PlanResult, row_limit: int | None) -> PlanRecord:
    return PlanRecord(
        plan=result.plan,
        row_limit=row_limit,
        speed_up=result.speed_up,
        token_utilisation=result.token_utilisation,
        waiting_share=result.waiting_share,
        examples_per_row=result.examples_per_row,
        examples_per_step=result.num_examples / result.num_steps,
        useful_tokens_per_step=result.useful_tokens_per_step,
        padded_tokens_per_step=result.padded_tokens_per_step,
        peak_slots=result.peak_slots,
        flops_per_example=result.flops / result.num_examples,
    )


def lengths_record(part: str, histogram: LengthHistogram) -> PartLengthsRecord:
    """The distribution of the lengths of one part."""
    return PartLengthsRecord.model_validate(
        {
            "part": part,
            "mean": histogram.total / histogram.num_lengths,
            "shortest": histogram.shortest,
            "longest": histogram.longest,
            "quantiles": {str(percent): histogram.quantile(percent / 100) for percent in _QUANTILES},
            "bins": [BinRecord(least=a, greatest=b, number=count) for a, b, count in histogram.bins()],
        }
    )
