"""Plans of earlier runs as presets, at their full scale and at one for a laptop.

A preset fills in options that were not given; whatever differs from the recorded run is listed in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from verify.cost.data_pairs import NO_LIMITS, LengthLimits
from verify.cost.workload import REGIMES

Scale = Literal["full", "tiny"]
SCALES: tuple[Scale, ...] = ("full", "tiny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What options are where they are not given.

    Args:
        model: Name of the model.
        dtype: Of weights and passes.
        device: "cpu" or "cuda".
        num_ranks: Ranks; None for those that there are.
        threads: Threads of torch on a CPU; None for its own choice.
        num_steps: Steps of each path in each workload.
        pairs_per_rank: Pairs of a step.
        num_held_out: Pairs held out.
        regimes: Length regimes.
        sweep: Lengths of a sweep.
        seeds: One workload of each regime for each.
        limits: The longest pairs of a data file.
    """

    model: str = "small"
    dtype: str = "float32"
    device: str = "cpu"
    num_ranks: int | None = None
    threads: int | None = None
    num_steps: int = 5
    pairs_per_rank: int = 2
    num_held_out: int = 8
    regimes: tuple[str, ...] = REGIMES
    sweep: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    limits: LengthLimits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The plan of an earlier run, of which only ratios were kept.

    Args:
        name: Its name.
        what: What was run, in words.
        needs_data: Whether its lengths come from a preference file.
        full: The plan.
        tiny: The same for a laptop.
    """

    name: str
    what: str
    needs_data: bool
    full: Defaults
    tiny: Defaults

    def defaults(self, scale: Scale) -> Defaults:
        """The options at a scale."""
        return self.full if scale == "full" else self.tiny


def _full(**options: object) -> Defaults:
    """Qwen3-8B in bfloat16 on two GB10 nodes, a rank each."""
    machine: dict[str, object] = {"model": "qwen3-8b", "dtype": "bfloat16", "device": "cuda", "num_ranks": 2}
    return Defaults(**{**machine, "pairs_per_rank": 1, "num_held_out": 16, **options})  # type: ignore[arg-type]


def _tiny(**options: object) -> Defaults:
    """The small model in float32 on one thread, which other work on the machine disturbs least."""
    return Defaults(**{"num_ranks": 1, "threads": 1, **options})  # type: ignore[arg-type]


_512 = LengthLimits(prompt=512, response=512)
_256 = LengthLimits(prompt=256, response=256)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                name="mechanism",
                what="5 steps in each of three length regimes",
                needs_data=False,
                full=_full(sweep=(512, 1024, 2048)),
                tiny=_tiny(sweep=(128, 512), pairs_per_rank=1, num_held_out=4),
            ),
            Preset(
                name="response-long",
                what="20 steps of prompt 64 and response 192, seeds 17 and 23",
                needs_data=False,
                full=_full(regimes=("response-long",), seeds=(17, 23), num_steps=20),
                tiny=_tiny(regimes=("response-long",), seeds=(17, 23), num_steps=20, pairs_per_rank=1),
            ),
            Preset(
                name="ultrafeedback",
                what="20 steps on UltraFeedback",
                needs_data=True,
                full=_full(regimes=(), num_steps=20, limits=_512),
                tiny=_tiny(regimes=(), num_steps=20, limits=_256),
            ),
            Preset(
                name="headline",
                what="200 steps on H4 UltraFeedback, prompt and response at most 512",
                needs_data=True,
                full=_full(regimes=(), num_steps=200, num_held_out=512, limits=_512),
                tiny=_tiny(regimes=(), num_steps=40, num_held_out=32, limits=_256),
            ),
        )
    }
)


def preset_named(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ValueError: Unknown name; the message lists the known ones.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: give one of {', '.join(PRESETS)}")
    return PRESETS[name]


def chosen_preset(name: str | None, scale: str, *, has_data: bool) -> tuple[Preset | None, Scale, Defaults]:
    """A preset at a scale, and what options are where they were not given.

    Args:
        name: Name of the preset; None for none.
        scale: Name of the scale.
        has_data: Whether a preference file was given.

    Raises:
        ValueError: An unknown preset or scale, a scale without a preset, or a preset without its data.
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: give {' or '.join(SCALES)}")
    known: Scale = "tiny" if scale == "tiny" else "full"
    if name is None:
        if known == "tiny":
            raise ValueError("--scale tiny goes with --preset NAME; without a preset everything is as small as you say")
        return None, known, Defaults()
    preset = preset_named(name)
    if preset.needs_data and not has_data:
        raise ValueError(
            f"--preset {preset.name} needs --data FILE ({preset.what}), which was not given: a preference file, JSONL "
            "or Parquet, and --tokenizer DIR to count its tokens (without it four characters are taken for one)"
        )
    return preset, known, preset.defaults(known)
