"""What can be said about options of ``packparity cost`` before torch is loaded, or a rank is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verify.cli import option_checks
from verify.cost.presets import chosen_preset
from verify.cost.workload import REGIMES
from verify.data.rows import check_file


def check_cost_options(
    *,
    preset: str | None,
    scale: str,
    model: str | None,
    layers: int | None,
    paths: Sequence[str],
    regimes: Sequence[str],
    seeds: Sequence[int],
    data: Path | None,
    tokenizer: Path | None,
    dtype: str | None,
    device: str | None,
    threads: int | None,
) -> None:
    """Refuse names that nothing has, and files that are not there.

    Raises:
        ValueError: Which one, and what can be given.
    """
    chosen_preset(preset, scale, has_data=data is not None)
    option_checks.checked_paths(",".join(paths))
    for regime in regimes:
        if regime not in REGIMES:
            raise ValueError(f"unknown regime {regime!r}: give some of {', '.join(REGIMES)}")
    if model is not None:
        option_checks.check_model(model, layers)
    option_checks.check_dtypes([dtype] if dtype is not None else [])
    for each in seeds or (0,):
        option_checks.check_numbers(seed=each, threads=threads)
    if device is not None:
        option_checks.check_device_name(device)
    if data is not None:
        check_file(data)
    if tokenizer is not None and data is None:
        raise ValueError("--tokenizer goes with --data FILE, which was not given")
    if tokenizer is not None and not tokenizer.is_dir():
        raise ValueError(f"--tokenizer {tokenizer}: there is no such folder; give the folder with tokenizer.json")
