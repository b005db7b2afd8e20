"""The report of ``packparity data``: a preference file surveyed, what packing saves on it, and whether to use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from reports.data_record import (
    AlikenessRecord,
    CountedRowsRecord,
    DataReport,
    FileOrderRecord,
    TokenizerRecord,
)
from verify.data.file_order import Alikeness, FileOrder
from verify.data.measures import CharacterMeasure, TokenMeasure
from verify.data.rows import DataError, check_file
from verify.data.survey import PARTS, Counted, FileSurvey, Measure, Progress, survey_file
from verify.data.violations import NamedMeaning
from verify.packing_plan.advice import advise
from verify.packing_plan.costs import FlopPrices
from verify.packing_plan.decoder_sizes import DecoderSizes, read_decoder_sizes
from verify.packing_plan.records import (
    PlanOptions,
    algebra_record,
    default_row_limit,
    lengths_record,
    prefix_trees_record,
    simulation_record,
)
from verify.tool_version import tool_version


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """What was asked for; every limit in the unit of the lengths.

    Args:
        file: The preference file.
        tokenizer: Folder of the tokenizer; None to count characters.
        chars_per_token: Characters taken for one token, where there is no tokenizer.
        max_length: The trainer's limit on prompt and one response.
        max_tokens: Longest packed group that is used.
        max_broken: Largest share of unusable rows with which packing can still be used.
        plan: What the simulation takes.
    """

    file: Path
    tokenizer: Path | None = None
    chars_per_token: float | None = None
    max_length: int | None = None
    max_tokens: int | None = None
    max_broken: float = 0.05
    plan: PlanOptions = field(default_factory=PlanOptions)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A request in which nothing is wrong that can be known before the file is read."""

    options: DataOptions
    model: DecoderSizes
    measure: Measure
    tokenizer: TokenizerRecord | None


def prepare_data(options: DataOptions) -> PreparedData:
    """Check the request and load the tokenizer.

    Raises:
        ValueError: No such file or tokenizer, a model that is none, or options that exclude each other.
    """
    check_file(options.file)
    if not 0 <= options.max_broken <= 1:
        raise DataError(f"--max-broken is {options.max_broken}: expected a share between 0 and 1")
    if options.tokenizer is not None and options.chars_per_token is not None:
        raise DataError("--chars-per-token estimates what --tokenizer counts: give one of the two")
    characters = CharacterMeasure(options.chars_per_token)
    model = read_decoder_sizes(options.plan.model)
    if options.tokenizer is None:
        return PreparedData(options, model, characters, None)
    from verify.data.tokenise import identify_tokenizer, load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer)
    identity = identify_tokenizer(tokenizer, options.tokenizer)
    record = TokenizerRecord(
        name=identity.name,
        tokenizer_sha256=identity.tokenizer_sha256,
        chat_template_sha256=identity.chat_template_sha256,
    )
    return PreparedData(options, model, TokenMeasure(tokenizer, model.sizes.vocab_size), record)


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
        DataError: What `survey_file` finds, or a row limit below the longest group.
    """
    options = prepared.options
    survey = survey_file(
        options.file,
        prepared.measure,
        seed=options.plan.seed,
        max_sequence=options.max_length,
        max_group=options.max_tokens,
        progress=progress,
    )
    row_limit = _row_limit(survey, options, prepared.measure.unit)
    prices = FlopPrices.of(prepared.model.sizes) if prepared.measure.unit == "tokens" else None
    algebra = simulation = prefix_trees = None
    if survey.usable:
        algebra = algebra_record(survey.totals, prices)
        simulation = simulation_record(
            survey.sample, survey.longest, prepared.model.name, prices, options.plan, row_limit
        )
    if survey.tokenised and prices is not None:
        prefix_trees = prefix_trees_record(survey.tokenised, prices, row_limit, options.plan.seed)
    return DataReport(
        tool_version=tool_version(),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        file=survey.file,
        sha256=survey.sha256,
        shape=survey.shape,
        unit="tokens" if prepared.measure.unit == "tokens" else "characters",
        unit_note=_unit_note(prepared),
        tokenizer=prepared.tokenizer,
        model=prepared.model.name,
        max_length=options.max_length,
        max_tokens=options.max_tokens,
        rows_read=survey.rows_read,
        rows_usable=survey.usable,
        most_broken_share=options.max_broken,
        violations=[_counted(reason, rows) for reason, rows in survey.violations.items()],
        remarks=[_counted(remark, rows) for remark, rows in survey.remarks.items()],
        unchecked=_unchecked(prepared),
        lengths=[lengths_record(part, survey.histograms[part]) for part in PARTS] if survey.usable else [],
        file_order=_file_order(survey.order) if survey.usable else None,
        algebra=algebra,
        simulation=simulation,
        prefix_trees=prefix_trees,
        advice=advise(survey.rows_read, survey.usable, options.max_broken, algebra, simulation, prepared.model.name),
        notes=_notes(survey),
        read_s=survey.elapsed_s,
        total_s=time.perf_counter() - started,
    )


def _row_limit(survey: FileSurvey, options: DataOptions, unit: str) -> int:
    limit = options.plan.row_limit or default_row_limit(max(survey.longest, 1))
    if limit < survey.longest:
        raise DataError(
            f"{survey.longest_at}: the row takes {survey.longest} {unit} (the prompt once and every response), more "
            f"than the row limit of {limit}: a group is never cut or split; raise --row-limit to {survey.longest} at "
            f"least, or leave long groups out with --max-tokens {limit}"
        )
    return limit


def _file_order(order: FileOrder) -> FileOrderRecord:
    return FileOrderRecord(
        repeated_prompts=order.repeated_prompts,
        num_sources=order.num_sources,
        sources=_alikeness(order.sources),
        lengths=_alikeness(order.lengths),
    )


def _alikeness(alike: Alikeness | None) -> AlikenessRecord | None:
    return None if alike is None else AlikenessRecord(found=alike.found, random=alike.random, follows=alike.follows)


def _counted(name: NamedMeaning, rows: Counted) -> CountedRowsRecord:
    return CountedRowsRecord(name=str(name), meaning=name.meaning, rows=rows.rows, examples=list(rows.examples))


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
