"""``packparity data``: survey a preference file, predict what packing saves, and say whether to use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from reports.data_record import (
    AdviceRecord,
    AlgebraRecord,
    BinRecord,
    CountedRowsRecord,
    DataReport,
    OrderRecord,
    PartLengthsRecord,
    PlanRecord,
    SimulationRecord,
    TokenizerRecord,
)
from verify.data.length_statistics import LengthHistogram
from verify.data.measures import CharacterMeasure, TokenMeasure
from verify.data.rows import DataError, check_file
from verify.data.survey import PARTS, Counted, FileSurvey, Measure, Progress, survey_file
from verify.data.violations import NamedMeaning
from verify.models.configs import NAMED_CONFIGS, NamedConfig
from verify.packing_plan.costs import FlopPrices, GroupLengths
from verify.packing_plan.simulate import REPEATED_ROWS, SHARED_ROWS, PlanResult, Setting, simulate

PAYS_FROM = 0.05
"""Share of the computation that sharing prompts has to save before packing is worth a new layout."""

SHORTEST_DEFAULT_LIMIT = 4096
_DOUBLINGS_SHOWN = 6
_QUANTILES = (5, 25, 50, 75, 95, 99)
_TOKENS_ONLY = FlopPrices(by_token=1, by_pair=0, by_predictor=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """What was asked for; every limit in the unit of the lengths.

    Args:
        file: The preference file.
        tokenizer: Folder of the tokenizer; None to count characters.
        chars_per_token: Characters taken for one token, where there is no tokenizer.
        model: Name of a published config.
        row_limit: Slots of a row in sequence packing; None for a power of two that every pair fits into.
        max_length: The trainer's limit on prompt and one response.
        max_tokens: Longest packed pair that is used.
        num_ranks: Data-parallel ranks of the simulation.
        pairs_per_rank: Pairs that each rank takes in a step.
        max_broken: Largest share of unusable rows with which packing can still be used.
        seed: Seed of sample, sampling order and order check.
    """

    file: Path
    tokenizer: Path | None = None
    chars_per_token: float | None = None
    model: str = "qwen3-8b"
    row_limit: int | None = None
    max_length: int | None = None
    max_tokens: int | None = None
    num_ranks: int = 8
    pairs_per_rank: int = 4
    max_broken: float = 0.05
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A request in which nothing is wrong that can be known before the file is read."""

    options: DataOptions
    config: NamedConfig
    measure: Measure
    tokenizer: TokenizerRecord | None


def prepare_data(options: DataOptions) -> PreparedData:
    """Check the request and load the tokenizer.

    Raises:
        DataError: No such file or tokenizer, an unknown model, or options that exclude each other.
    """
    check_file(options.file)
    config = NAMED_CONFIGS.get(options.model.lower())
    if config is None:
        raise DataError(f"unknown model {options.model!r}: give one of {', '.join(NAMED_CONFIGS)}")
    if not 0 <= options.max_broken <= 1:
        raise DataError(f"--max-broken is {options.max_broken}: expected a share between 0 and 1")
    if options.tokenizer is None:
        return PreparedData(options, config, CharacterMeasure(options.chars_per_token), None)
    if options.chars_per_token is not None:
        raise DataError("--chars-per-token estimates what --tokenizer counts: give one of the two")
    from verify.data.tokenise import identify_tokenizer, load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer)
    identity = identify_tokenizer(tokenizer, options.tokenizer)
    record = TokenizerRecord(
        name=identity.name,
        tokenizer_sha256=identity.tokenizer_sha256,
        chat_template_sha256=identity.chat_template_sha256,
    )
    return PreparedData(options, config, TokenMeasure(tokenizer, config.vocab_size), record)


def report_data(prepared: PreparedData, progress: Progress, *, command: Sequence[str], started: float) -> DataReport:
    """Survey the file and predict.

    Args:
        prepared: The request.
        progress: Told how far the reading is.
        command: The command line, for the record.
        started: ``time.perf_counter()`` when the program began.

    Returns:
        The report.

    Raises:
        DataError: What `survey_file` finds, or a row limit below the longest pair.
    """
    options = prepared.options
    survey = survey_file(
        options.file,
        prepared.measure,
        seed=options.seed,
        max_sequence=options.max_length,
        max_pair=options.max_tokens,
        progress=progress,
    )
    algebra = simulation = None
    if survey.usable:
        prices = FlopPrices.of(prepared.config) if prepared.measure.unit == "tokens" else None
        algebra = _algebra(survey, prices)
        simulation = _simulation(survey, options, prices, row_limit=_row_limit(survey, options, prepared.measure.unit))
    return DataReport(
        tool_version=version("packparity"),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        file=survey.file,
        sha256=survey.sha256,
        shape=survey.shape,
        unit="tokens" if prepared.measure.unit == "tokens" else "characters",
        unit_note=_unit_note(prepared),
        tokenizer=prepared.tokenizer,
        model=options.model.lower(),
        rows_read=survey.rows_read,
        rows_usable=survey.usable,
        most_broken_share=options.max_broken,
        violations=[_counted(reason, rows) for reason, rows in survey.violations.items()],
        remarks=[_counted(remark, rows) for remark, rows in survey.remarks.items()],
        unchecked=_unchecked(prepared),
        lengths=[_lengths(part, survey.histograms[part]) for part in PARTS] if survey.usable else [],
        algebra=algebra,
        simulation=simulation,
        advice=advise(survey.rows_read, survey.usable, options.max_broken, algebra, simulation, options.model.lower()),
        notes=_notes(survey),
        read_s=survey.elapsed_s,
        total_s=time.perf_counter() - started,
    )


def _row_limit(survey: FileSurvey, options: DataOptions, unit: str) -> int:
    if options.row_limit is None:
        return max(SHORTEST_DEFAULT_LIMIT, 1 << (survey.longest - 1).bit_length())
    if options.row_limit < survey.longest:
        raise DataError(
            f"{survey.longest_at}: the pair takes {survey.longest} {unit} (the prompt once and both responses), more "
            f"than the row limit of {options.row_limit}: a pair is never cut or split; raise --row-limit to "
            f"{survey.longest} at least, or leave long pairs out with --max-tokens {options.row_limit}"
        )
    return options.row_limit


def _algebra(survey: FileSurvey, prices: FlopPrices | None) -> AlgebraRecord:
    totals = survey.totals
    return AlgebraRecord(
        tokens_unpacked=totals.unpacked.tokens,
        tokens_packed=totals.packed.tokens,
        attention_pairs_unpacked=totals.unpacked.pairs,
        attention_pairs_packed=totals.packed.pairs,
        shared_share=totals.shared_share,
        token_ratio=totals.token_ratio,
        flop_ratio=None if prices is None else prices.flops(totals.packed) / prices.flops(totals.unpacked),
        memory_ratio=totals.memory_ratio,
        eq1_share=totals.eq1_packs / totals.num_pairs,
    )


def _simulation(
    survey: FileSurvey, options: DataOptions, prices: FlopPrices | None, *, row_limit: int
) -> SimulationRecord:
    groups = [GroupLengths(prompt, (chosen, rejected)) for prompt, chosen, rejected in survey.sample.tolist()]

    def run(limit: int, plans: Sequence[str] = ()) -> tuple[PlanResult, ...]:
        setting = Setting(
            prices=prices or _TOKENS_ONLY,
            num_ranks=options.num_ranks,
            groups_per_rank=options.pairs_per_rank,
            row_limit=limit,
            seed=options.seed,
        )
        return simulate(groups, setting, plans)

    results = run(row_limit)
    shortest = 1 << (survey.longest - 1).bit_length()
    limits = sorted({row_limit, *(shortest << doubling for doubling in range(_DOUBLINGS_SHOWN))})
    by_limit = [(limit, result) for limit in limits for result in run(limit, (REPEATED_ROWS, SHARED_ROWS))]
    order = next(result.order for result in results if result.plan == SHARED_ROWS)
    return SimulationRecord(
        pairs_sampled=len(groups),
        seed=options.seed,
        num_ranks=options.num_ranks,
        pairs_per_rank=options.pairs_per_rank,
        row_limit=row_limit,
        time_is="characters through linear layers alone; attention needs token counts"
        if prices is None
        else f"forward FLOPs of {options.model.lower()}, padding included; backward passes are a multiple of them",
        plans=[_plan(result, row_limit if result.plan in (REPEATED_ROWS, SHARED_ROWS) else None) for result in results],
        by_row_limit=[_plan(result, limit) for limit, result in by_limit],
        order=None
        if order is None
        else OrderRecord(
            seed=order.seed,
            pairs_in_a_row=order.num_pairs,
            mean_distance=order.mean_distance,
            random_distance=order.random_distance,
            standard_deviations=order.standard_deviations,
            follows_file_order=order.follows_dataset_order,
        ),
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
    )


def advise(
    rows_read: int,
    usable: int,
    max_broken: float,
    algebra: AlgebraRecord | None,
    simulation: SimulationRecord | None,
    model: str,
) -> AdviceRecord:
    """Whether to pack, and why.

    What counts is what sharing prompts saves by itself: padding can be avoided without it.

    Args:
        rows_read: Rows of the file.
        usable: Rows that can be packed.
        max_broken: Largest share of other rows.
        algebra: Costs; None if no row is usable.
        simulation: Plans; None if no row is usable.
        model: Name of the model, for the reasons.

    Returns:
        The advice.
    """
    broken = rows_read - usable
    if algebra is None or simulation is None or broken > max_broken * rows_read:
        reason = f"{broken} of {rows_read} rows break the shared-prompt precondition"
        limit = "so nothing can be packed" if not usable else f"more than the share of {max_broken:.3g} that is allowed"
        return AdviceRecord(advice="cannot-be-used", reasons=[f"{reason}, {limit}"])
    ratio, what = (
        (algebra.token_ratio, "characters")
        if algebra.flop_ratio is None
        else (algebra.flop_ratio, f"forward FLOPs of {model}")
    )
    pays = 1 - ratio >= PAYS_FROM
    reasons = [
        f"sharing prompts saves {1 - ratio:.1%} of the {what}, {'at least' if pays else 'less than'} the "
        f"{PAYS_FROM:.0%} from which packing is worth a layout of its own; second copies of prompts are "
        f"{algebra.shared_share:.1%} of all {'characters' if algebra.flop_ratio is None else 'tokens'}"
    ]
    best = max(simulation.plans, key=lambda plan: plan.speed_up)
    without = max((p for p in simulation.plans if p.plan in _WITHOUT_SHARING), key=lambda plan: plan.speed_up)
    reasons.append(
        f"predicted fastest: {best.plan}, {best.speed_up:.2f} times as fast as padded sequences; "
        f"fastest without shared prompts: {without.plan}, {without.speed_up:.2f} times"
    )
    if broken:
        reasons.append(f"{broken} of {rows_read} rows break the precondition: leave them out, or feed them unpacked")
    return AdviceRecord(advice="pays" if pays else "does-not-pay", reasons=reasons)


_WITHOUT_SHARING = ("plain", "bucketing", "sorting", REPEATED_ROWS)


def _counted(name: NamedMeaning, rows: Counted) -> CountedRowsRecord:
    return CountedRowsRecord(name=str(name), meaning=name.meaning, rows=rows.rows, examples=list(rows.examples))


def _lengths(part: str, histogram: LengthHistogram) -> PartLengthsRecord:
    return PartLengthsRecord.model_validate(
        {
            "part": part,
            "mean": histogram.total / histogram.num_lengths,
            "shortest": histogram.shortest,
            "longest": histogram.longest,
            "quantiles": {str(percent): histogram.quantile(percent / 100) for percent in _QUANTILES},
            "bins": [BinRecord(least=a, greatest=b, pairs=count) for a, b, count in histogram.bins()],
        }
    )


def _unit_note(prepared: PreparedData) -> str:
    if prepared.tokenizer is not None:
        return f"tokens of {prepared.tokenizer.name}, chat template included"
    per_token = prepared.options.chars_per_token
    if per_token is None:
        return "characters of the texts, without a chat template (no tokenizer was given)"
    return f"tokens estimated as characters / {per_token:g}, without a chat template (no tokenizer was given)"


def _unchecked(prepared: PreparedData) -> list[str]:
    if prepared.tokenizer is not None:
        return []
    needs = "a merge of tokens over the end of the prompt, a doubled begin token, a missing end token, a chat template"
    return [f"not looked for without --tokenizer: {needs} that refuses or rewrites turns"]


def _notes(survey: FileSurvey) -> list[str]:
    return [
        f"column {name!r} was left out, only the text is read ({rows} of {survey.rows_read} rows fill it)"
        for name, rows in survey.left_out.items()
    ]
