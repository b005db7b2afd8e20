"""The cases of a run of the gate, as its options ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports.record_setting import DataRecord
from verify.case_files import read_cases
from verify.cases import Case, over, under
from verify.default_cases.images import SHOWS_MOST, image_cases
from verify.default_cases.objectives import objective_cases
from verify.default_cases.real_size import real_cases, synthetic_cases
from verify.default_cases.references import reference_cases
from verify.default_cases.tiny import tiny_cases
from verify.images import ImageFormat
from verify.objective import REWARD_MODEL, ComparingName
from verify.training import references_under

if TYPE_CHECKING:
    from verify.check_request import CheckOptions
    from verify.data.load import LoadedPairs

_VIOLATIONS_KEPT = 50


def choose_cases(
    options: CheckOptions,
    *,
    vocab_size: int,
    reduced: bool,
    objective: ComparingName,
    reward_models: bool = True,
    images: ImageFormat | None = None,
) -> tuple[tuple[Case, ...], LoadedPairs | None]:
    """The cases that options ask for: real pairs, those of a file, or our own.

    Args:
        options: The options.
        vocab_size: Of the model, tokens of text alone.
        reduced: Whether a few cases stand for all of our own.
        objective: The objective of the run. Where it is not "sigmoid", every case of pairs and groups is under it.
        reward_models: Whether cases of reward models are among our own that run unless some are named.
        images: What the model takes as an image, or another one that cases with images are run on; None where nothing
            sees any.

    Returns:
        The cases, and the real pairs where there are some.

    Raises:
        ValueError: Options that do not go together, an unknown case, or a file that cannot be read.
    """
    if options.data is not None:
        if options.cases_file is not None:
            raise ValueError("give --data or --cases-file, not both: each names the cases of the run")
        loaded = _real_pairs(options, vocab_size)
        cases = default = real_cases(loaded.groups)
    else:
        loaded = None
        _refuse_options_of_data(options)
        if options.cases_file is not None:
            cases = default = read_cases(options.cases_file)
        else:
            cases, default = _own_cases(options, vocab_size, reduced, objective, reward_models, images)
    chosen = _named(options.cases, cases) if options.cases else default
    if objective != "sigmoid":
        chosen = tuple(under(case, objective) for case in chosen)
    if options.frozen_policy != "adapters-off":
        chosen = tuple(over(case, case.reference or options.frozen_policy) for case in chosen)
    return tuple(chosen), loaded


def _refuse_options_of_data(options: CheckOptions) -> None:
    for name, value in (
        ("--tokenizer", options.tokenizer), ("--pairs", options.pairs), ("--max-tokens", options.max_tokens),
    ):  # fmt: skip
        if value is not None:
            raise ValueError(f"{name} goes with --data FILE, which was not given")


def _own_cases(
    options: CheckOptions,
    vocab_size: int,
    reduced: bool,
    objective: ComparingName,
    reward_models: bool,
    images: ImageFormat | None,
) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Those that can be named, and those that run unless some are."""
    named, few = tiny_cases(vocab_size, options.seed), synthetic_cases(vocab_size, options.seed)
    # Cases that are there for one objective each mean nothing under another.
    seen = image_cases(vocab_size, options.seed, images) if images else ()
    named = (*named, *seen)
    others = objective_cases(vocab_size, options.seed) if objective == "sigmoid" else ()
    of_run = [case for case in others if reward_models or case.objective_name != REWARD_MODEL]
    over_others = () if objective == REWARD_MODEL else reference_cases(vocab_size, options.seed)
    if options.reference in (None, "adapters-off"):
        of_run += [case for case in over_others if case.reference in references_under(options.train)]
    of_large = (*few, *(case for case in seen if case.name == SHOWS_MOST))
    default = of_large if reduced else (*named, *of_run) if options.full else named
    return (*named, *few, *others, *over_others), default


def _named(names: Sequence[str], cases: Sequence[Case]) -> tuple[Case, ...]:
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown case {name!r}: give some of {', '.join(known)}")
    return tuple(case for case in cases if case.name in names)


def _real_pairs(options: CheckOptions, vocab_size: int) -> LoadedPairs:
    if options.data is None or options.tokenizer is None:
        raise ValueError("--data needs --tokenizer DIR: pairs are tokenised through its chat template")
    from verify.data.load import load_pairs  # imports tokenizers, which other runs do without

    return load_pairs(
        options.data,
        options.tokenizer,
        num_pairs=options.pairs,
        seed=options.seed,
        max_tokens=options.max_tokens,
        vocab_size=vocab_size,
    )


def data_record(loaded: LoadedPairs, cases: Sequence[Case]) -> DataRecord:
    """What the record of a run says about its real pairs.

    Args:
        loaded: The pairs.
        cases: The cases that hold them.

    Returns:
        The part of the record.
    """
    return DataRecord(
        file=loaded.file,
        sha256=loaded.sha256,
        shape=loaded.shape,
        rows_read=loaded.rows_read,
        usable_rows=len(loaded.lengths),
        violations_by_reason={str(reason): count for reason, count in loaded.violation_counts.items()},
        violations=[str(violation) for violation in loaded.violations[:_VIOLATIONS_KEPT]],
        tokenizer=loaded.tokenizer.name,
        tokenizer_sha256=loaded.tokenizer.tokenizer_sha256,
        num_pairs=sum(len(case.groups) for case in cases),
        notes=list(loaded.notes),
    )
