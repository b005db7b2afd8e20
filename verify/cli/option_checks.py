"""What can be said about options without torch, and so at once: names, ranges, files that are not there.

The run checks everything again where it uses it; a checkpoint, a subject's file or a data set is looked into there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import cast

from reports.cost_record import PATH_NAMES, PathName
from reports.words import plural
from verify.data.rows import check_file
from verify.default_cases.images import image_cases
from verify.default_cases.objectives import objective_cases
from verify.default_cases.real_size import synthetic_cases
from verify.default_cases.references import reference_cases
from verify.default_cases.tiny import tiny_cases
from verify.frozen_policy import REFERENCE_NAMES, ReferenceName
from verify.images import ImageFormat
from verify.models.configs import NAMED_CONFIGS, TINY_PREFIX, named_config
from verify.objective import REWARD_MODEL
from verify.option_names import BACKEND_NAMES, BUILT_IN_SUBJECT_NAMES, VARIATION_NAMES
from verify.precision import DTYPE_NAMES, PRECISIONS
from verify.tolerance import load_policy
from verify.training import TRAIN_NAMES, TrainName, check_reference

_LARGEST_SEED = 2**63 - 2
"""Adapters are drawn with the seed after it, and torch's seeds are 64-bit integers."""
_MOST_THREADS = 1024
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse an empty argument: an empty path would be the working directory, an empty name nothing.

    Raises:
        ValueError: Naming the option in front of it.
    """
    for before, argument in pairwise(("", *arguments)):
        option, equals, value = argument.partition("=")
        if equals and option.startswith("--") and not value.strip():
            raise ValueError(f"{option} is empty: give a value, or leave the option out")
        if not argument.strip():
            raise ValueError(f"{before or 'the first argument'} is empty: give a value, or leave the option out")


def check_model(name: str, layers: int | None) -> None:
    """Refuse a model that neither has a name of ours nor is there, and a depth that a named one does not have.

    Which families a tiny one may be of only transformers knows, which is not loaded here.
    """
    if name.lower() in NAMED_CONFIGS:
        published = named_config(name).num_hidden_layers
        if layers is not None and layers > published:
            raise ValueError(f"--layers {layers}: {name} has {plural(published, 'layer')}")
    elif not Path(name).exists():
        if name.lower().endswith(".json"):
            raise ValueError(f"model file {name}: there is no such file")
        if name.lower().startswith(TINY_PREFIX):
            return
        named_config(name)


def check_dtypes(names: Sequence[str], *, autocast: bool = False) -> None:
    """Refuse an unknown dtype; whether autocast is one depends on the command."""
    _check_names("dtype", names, PRECISIONS if autocast else DTYPE_NAMES)


def checked_paths(text: str) -> tuple[PathName, ...]:
    """The paths of a training step that are named with commas between them, in our order; all of them for "".

    Raises:
        ValueError: An unknown name.
    """
    names = [name.strip() for name in text.split(",")] if text else list(PATH_NAMES)
    _check_names("path", names, PATH_NAMES)
    return tuple(path for path in PATH_NAMES if path in names)


def check_variations(names: Sequence[str]) -> None:
    """Refuse an unknown variation of the unpacked path."""
    _check_names("variation", names, VARIATION_NAMES)


def check_case_names(names: Sequence[str]) -> None:
    """Refuse an unknown case of ours."""
    with_images = image_cases(2**8, 0, ImageFormat((1, 1, 1), token_id=2**8, num_tokens=1))
    makers = (tiny_cases, synthetic_cases, objective_cases, reference_cases)
    others = [case for cases_of in makers for case in cases_of(2**8, 0)]
    _check_names("case", names, [case.name for case in (*others, *with_images)])


def check_subjects(names: Sequence[str], backends: Sequence[str]) -> None:
    """Refuse an unknown built-in subject, an unknown backend, a file that is not there, and both options at once."""
    if names and backends:
        raise ValueError("give --subject or --backend, not both: --backend chooses among the built-in subjects")
    _check_names("backend", backends, BACKEND_NAMES)
    check_files_of("subject", names)
    hint = "package.module:Class, file.py:Class or fault:NAME"
    _check_names("subject", [name for name in names if ":" not in name], [*BUILT_IN_SUBJECT_NAMES, hint])


def check_files_of(role: str, names: Sequence[str]) -> None:
    """Refuse ``file.py:NAME`` where there is no such file, and a name in nothing."""
    for name in names:
        origin, colon, _ = name.rpartition(":")
        if colon and not origin:
            raise ValueError(f"{role} {name!r}: nothing in front of the colon; give module:NAME or file.py:NAME")
        if origin.endswith(".py") and not Path(origin).is_file():
            kind = "a folder" if Path(origin).is_dir() else "no such file"
            raise ValueError(f"{role} file {origin}: there is {kind}; give file.py:NAME")


def check_numbers(*, seed: int, threads: int | None = None) -> None:
    """Refuse numbers that torch could not use."""
    if not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"--seed {seed}: give an integer from 0 to {_LARGEST_SEED}")
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise ValueError(f"--threads {threads}: give an integer from 1 to {_MOST_THREADS}")


def check_device_name(device: str) -> None:
    """Refuse what is not the name of a device that is supported."""
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"--device {device}: not a device that is supported; give cpu, cuda or cuda:N")


def check_policy(path: Path | None) -> None:
    """Refuse a policy that cannot be used."""
    if path is not None:
        load_policy(path)


def check_data_options(
    data: Path | None, *, tokenizer: Path | None, pairs: int | None, max_tokens: int | None, cases_file: Path | None
) -> None:
    """Refuse options that go with ``--data`` without it, ``--data`` without a tokenizer, and files not there."""
    if data is None:
        for name, value in (("--tokenizer", tokenizer), ("--pairs", pairs), ("--max-tokens", max_tokens)):
            if value is not None:
                raise ValueError(f"{name} goes with --data FILE, which was not given")
    elif cases_file is not None:
        raise ValueError("give --data or --cases-file, not both: each names the cases of the run")
    elif tokenizer is None:
        raise ValueError("--data needs --tokenizer DIR: pairs are tokenised through its chat template")
    else:
        check_file(data)
        if not tokenizer.is_dir():
            raise ValueError(f"--tokenizer {tokenizer}: there is no such folder; give the folder with tokenizer.json")
    if cases_file is not None and not cases_file.is_file():
        found = "a folder" if cases_file.is_dir() else "no such file"
        raise ValueError(f"--cases-file {cases_file}: there is {found}; give a JSON file of cases")


def checked_training(train: str, reference: str | None) -> tuple[TrainName, ReferenceName | None]:
    """What is trained, and the kind of frozen policy, by their names.

    Args:
        train: What is trained.
        reference: The frozen policy; None where none was named.

    Returns:
        The same.

    Raises:
        ValueError: There is no such name, or the weights of the frozen policy would be trained.
    """
    _check_names("train", [train], TRAIN_NAMES)
    _check_names("reference", [reference] if reference is not None else [], REFERENCE_NAMES)
    known = cast(TrainName, train), cast(ReferenceName | None, reference)
    if known[1] is not None:
        check_reference(known[0], known[1])
    return known


def check_frozen_policy(objective: str, reference: ReferenceName | None) -> None:
    """Refuse a frozen policy of what has none.

    Raises:
        ValueError: One was named for a reward model.
    """
    if objective == REWARD_MODEL and reference is not None:
        raise ValueError(f"--reference {reference}: {REWARD_MODEL} has no frozen policy; leave it out")


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"unknown {what} {name!r}{hint}: give one of {', '.join(known)}")
