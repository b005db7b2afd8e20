"""From options of ``packparity cost`` to workloads and paths, with everything checked before a model is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path as FilePath

from reports.cost_record import PATH_NAMES
from verify.cost.data_pairs import DrawnPairs, LengthLimits, draw_pairs
from verify.cost.parity_evidence import ParityFile, read_parity
from verify.cost.paths import Path, paths_named
from verify.cost.presets import Defaults, Preset, Scale, chosen_preset
from verify.cost.training import DEFAULT_LR, OptimizerSettings
from verify.cost.workload import WorkloadPlan, drawn_plan, length_plan, regime_plan, split_plan
from verify.models.dtypes import DTYPES
from verify.models.lora import LoraSpec
from verify.models.memory import check_memory
from verify.models.request import ModelRequest, vocabulary_size
from verify.models.shape_file import is_shape_file, read_shape
from verify.objective import Preference
from verify.sharded.ranks import ranks_on_this_machine

SWEEP_STEPS = 3
"""Steps of each path at each length of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """Options of the command line; None, and nothing, where one was not given."""

    preset: str | None = None
    scale: str = "full"
    model: str | None = None
    layers: int | None = None
    paths: tuple[str, ...] = ()
    steps: int | None = None
    regimes: tuple[str, ...] = ()
    sweep: tuple[int, ...] | None = None
    data: FilePath | None = None
    tokenizer: FilePath | None = None
    max_prompt: int | None = None
    max_response: int | None = None
    pairs: int | None = None
    held_out: int | None = None
    seeds: tuple[int, ...] = ()
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    ranks: int | None = None
    lr: float = DEFAULT_LR
    beta: float = 0.1
    parity: FilePath | None = None
    out: FilePath | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCost:
    """A request in which nothing is wrong that can be known before the model is built.

    Args:
        options: What was asked for.
        preset: The preset, or None.
        scale: Its scale.
        model: The model.
        dtype: Name of the dtype.
        device: The torch device of this rank.
        threads: Threads of torch; None for its own choice.
        num_ranks: Ranks.
        paths: Every path that was asked for.
        plans: What is measured.
        pairs_per_rank: Pairs of a step on each rank.
        objective: The objective.
        optimizer: The optimizer.
        data: What was drawn from a file, or None.
        parity: The parity record, or None.
        notes: What a reader must know.
    """

    options: CostOptions
    preset: Preset | None
    scale: Scale
    model: ModelRequest
    dtype: str
    device: str
    threads: int | None
    num_ranks: int
    paths: tuple[Path, ...]
    plans: tuple[WorkloadPlan, ...]
    pairs_per_rank: int
    objective: Preference
    optimizer: OptimizerSettings
    data: DrawnPairs | None
    parity: ParityFile | None
    notes: tuple[str, ...]

    @property
    def measured_paths(self) -> tuple[Path, ...]:
        """Those that have a training step on this device."""
        return tuple(path for path in self.paths if not path.not_applicable(self.device.partition(":")[0]))


def prepare_cost(options: CostOptions, *, num_ranks: int, device: str | None) -> PreparedCost:
    """Check options and draw what is trained on.

    Args:
        options: The options.
        num_ranks: Ranks that there are.
        device: The device of this rank, where ranks were started; None for that of the options.

    Returns:
        The request.

    Raises:
        ValueError: An option or an input is wrong; the message says which and what would be right.
    """
    preset, scale, defaults = chosen_preset(options.preset, options.scale, has_data=options.data is not None)
    if options.tokenizer is not None and options.data is None:
        raise ValueError("--tokenizer goes with --data FILE, which was not given")
    _check_ranks(preset, defaults, options, num_ranks)
    dtype = options.dtype or defaults.dtype
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: give {', '.join(DTYPES)}")
    device = device or options.device or defaults.device
    name = options.model or defaults.model
    shape = read_shape(FilePath(name)) if is_shape_file(name) else None
    model = ModelRequest(
        name=name,
        lora=shape.lora if shape else LoraSpec(),
        config=shape.config if shape else None,
        num_layers=options.layers,
        device=device,
        seed=(options.seeds or defaults.seeds)[0],
    )
    check_memory(model, (dtype,), ranks_here=ranks_on_this_machine())
    paths = paths_named(options.paths or PATH_NAMES)
    if all(path.not_applicable(device.partition(":")[0]) for path in paths):
        raise ValueError(f"--paths {','.join(options.paths)}: {paths[0].not_applicable(device.partition(':')[0])}")
    parity = read_parity(options.parity) if options.parity is not None else None
    pairs = options.pairs or defaults.pairs_per_rank
    plans, data, notes = _plans(
        options, defaults, num_ranks=num_ranks, pairs_per_rank=pairs, vocab_size=vocabulary_size(model)
    )
    return PreparedCost(
        options=options,
        preset=preset,
        scale=scale,
        model=model,
        dtype=dtype,
        device=device,
        threads=options.threads or defaults.threads,
        num_ranks=num_ranks,
        paths=paths,
        plans=plans,
        pairs_per_rank=pairs,
        objective=Preference(beta=options.beta),
        optimizer=OptimizerSettings(lr=options.lr),
        data=data,
        parity=parity,
        notes=tuple(notes),
    )


def _check_ranks(preset: Preset | None, defaults: Defaults, options: CostOptions, num_ranks: int) -> None:
    if options.ranks is not None and options.ranks != num_ranks:
        raise ValueError(f"--ranks {options.ranks}, but there are {num_ranks} (WORLD_SIZE): leave --ranks out")
    needed = defaults.num_ranks
    if preset is not None and options.ranks is None and needed is not None and num_ranks != needed:
        raise ValueError(
            f"--preset {preset.name} at this scale is for {needed} ranks, and there are {num_ranks}: run it under "
            f"torchrun with {needed} processes, say --ranks {num_ranks} to run it otherwise, or give --scale tiny"
        )


def _plans(
    options: CostOptions, defaults: Defaults, *, num_ranks: int, pairs_per_rank: int, vocab_size: int
) -> tuple[tuple[WorkloadPlan, ...], DrawnPairs | None, list[str]]:
    steps = options.steps or defaults.num_steps
    held_out = defaults.num_held_out if options.held_out is None else options.held_out
    if held_out % num_ranks:
        raise ValueError(
            f"--held-out {held_out} over {num_ranks} ranks: every rank computes as many pairs, so give a multiple"
        )
    seeds = options.seeds or defaults.seeds
    regimes = options.regimes or (() if options.data is not None else defaults.regimes)
    per_step = num_ranks * pairs_per_rank
    plans, data, notes = [], None, list[str]()
    for seed in seeds:
        for regime in regimes:
            plan = regime_plan(
                regime,
                seed=seed,
                num_steps=steps,
                num_pairs=steps * per_step,
                num_held_out=held_out,
                vocab_size=vocab_size,
            )
            plans.append(plan if len(seeds) == 1 else replace(plan, name=f"{regime}, seed {seed}"))
        if options.data is not None:
            plan, data = _file_plan(options, defaults, steps, per_step, held_out, seed, vocab_size, notes)
            plans.append(plan if len(seeds) == 1 else replace(plan, name=f"{plan.name}, seed {seed}"))
    plans += [
        length_plan(
            length, seed=seeds[0], num_steps=SWEEP_STEPS, num_pairs=SWEEP_STEPS * per_step, vocab_size=vocab_size
        )
        for length in (defaults.sweep if options.sweep is None else options.sweep)
    ]
    if not plans:
        raise ValueError("nothing to measure: give --regime, --sweep or --data")
    if len({plan.name for plan in plans}) < len(plans):
        raise ValueError("a regime, seed or length is given twice: give each once")
    return tuple(plans), data, list(dict.fromkeys(notes))


def _file_plan(
    options: CostOptions,
    defaults: Defaults,
    steps: int,
    per_step: int,
    held_out: int,
    seed: int,
    vocab_size: int,
    notes: list[str],
) -> tuple[WorkloadPlan, DrawnPairs]:
    assert options.data is not None
    limits = LengthLimits(
        prompt=options.max_prompt or defaults.limits.prompt, response=options.max_response or defaults.limits.response
    )
    wanted = steps * per_step
    drawn = draw_pairs(options.data, options.tokenizer, limits, num_pairs=wanted + held_out, seed=seed)
    if len(drawn.lengths) <= held_out:
        left_out = ", ".join(f"{count} {reason}" for reason, count in drawn.left_out.items())
        raise ValueError(
            f"{drawn.file}: {len(drawn.lengths)} usable pairs ({limits}) of {drawn.rows_read} rows"
            f"{f' (left out: {left_out})' if left_out else ''}, of which {held_out} are to be held out: none is left "
            "to train on; hold out fewer (--held-out), allow longer ones (--max-prompt, --max-response), or give more"
        )
    if len(drawn.lengths) < wanted + held_out:
        notes.append(
            f"{drawn.file} gave {len(drawn.lengths)} pairs for {wanted} in steps and {held_out} held out: steps take "
            "theirs again from the first on"
        )
    name, source = drawn.file, f"drawn from {drawn.file}, {limits}, {drawn.counted}"
    if drawn.groups and _fits(drawn, vocab_size):
        return split_plan(name, drawn.groups, seed=seed, num_steps=steps, num_held_out=held_out, source=source), drawn
    notes.append(f"lengths are those of {drawn.file}, tokens are random: {_why_random(drawn, vocab_size)}")
    plan = drawn_plan(
        name, drawn.lengths, seed=seed, num_steps=steps, num_held_out=held_out, vocab_size=vocab_size, source=source
    )
    return plan, drawn


def _fits(drawn: DrawnPairs, vocab_size: int) -> bool:
    return all(max(map(max, (g.prompt_ids, *g.completions))) < vocab_size for g in drawn.groups)


def _why_random(drawn: DrawnPairs, vocab_size: int) -> str:
    if drawn.groups:
        return f"the model's vocabulary of {vocab_size:,} is not the tokenizer's"
    return "no tokenizer was given"


def settings_of(prepared: PreparedCost) -> dict[str, object]:
    """Everything that decides what is measured, for a journal."""
    plans: Sequence[dict[str, object]] = [
        {
            "name": plan.name,
            "seed": plan.seed,
            "steps": plan.num_steps,
            "held_out": len(plan.held_out),
            "source": plan.source,
        }
        for plan in prepared.plans
    ]
    return {
        "model": prepared.model.name,
        "shape": asdict(prepared.model.config) if prepared.model.config else None,
        "layers": prepared.model.num_layers,
        "dtype": prepared.dtype,
        "device": prepared.device.partition(":")[0],
        "threads": prepared.threads,
        "ranks": prepared.num_ranks,
        "pairs": prepared.pairs_per_rank,
        "paths": [path.name for path in prepared.measured_paths],
        "workloads": list(plans),
        "data_sha256": prepared.data.sha256 if prepared.data else None,
        "objective": prepared.objective.settings,
        "optimizer": prepared.optimizer.settings,
    }
