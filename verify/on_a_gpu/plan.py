"""What runs on a machine with a GPU, in the order of worth; and the same steps on tiny models, for a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from verify.models.configs import NamedConfig, named_config
from verify.models.lora import LoraSpec
from verify.models.shape_file import Shape, shape_text

Kind = Literal["check", "recompilation", "cost", "forecast"]

CASES = ("length-127", "length-128", "length-129", "two-pairs-of-150")
"""Around the block size of FlexAttention, and two pairs in one row."""
SUBJECTS = ("dense-eager", "dense-sdpa", "flex", "split")
MEASURED = ("dense-sdpa/row-per-group", "flex", "split")
"""Subjects that the packed paths of ``packparity cost`` are; a record of theirs is what its result cites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of the run.

    Args:
        name: Its folder, and how it is called.
        kind: What it is.
        what: What it shows, in words.
        arguments: What Python runs, from ``-m`` on.
        longest_s: Seconds after which it is ended.
        needs_float32: Its record must say that float32 matrices are multiplied in float32.
        cites: The step whose record it cites, where that step passed.
    """

    name: str
    kind: Kind
    what: str
    arguments: tuple[str, ...]
    longest_s: float
    needs_float32: bool = False
    cites: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The models and machine of a run.

    Args:
        device: "cuda" or "cpu".
        narrow: The model that is judged at full depth, as options.
        wide: The model of full width and few layers.
        config: The same as a config, for a forecast.
        cost: Options of the cost run.
        cites: The step whose record it cites.
        forecast: Options of a forecast.
        num_shapes: Shapes over which recompilation is counted.
        budget_s: Seconds for all steps together.
        patience: Factor on the longest that a step may take.
        options: Of every check.
    """

    device: str
    narrow: tuple[str, ...]
    wide: tuple[str, ...]
    config: NamedConfig
    cost: tuple[str, ...]
    cites: str
    forecast: tuple[str, ...]
    num_shapes: int
    budget_s: float = 570.0
    patience: float = 1.0
    options: tuple[str, ...] = ()

    @property
    def shape_file_text(self) -> str:
        """The wide model as the text of a shape file: a forecast takes another depth from a file only."""
        return shape_text(Shape(self.config, LoraSpec()))


WIDE_LAYERS = 4
SHAPE_FILE = "wide-model.json"
"""The wide model in the folder of the run."""

FULL = Scale(
    device="cuda",
    narrow=("--model", "qwen3-0.6b"),
    wide=("--model", "qwen3-8b", "--layers", str(WIDE_LAYERS)),
    config=replace(named_config("qwen3-8b"), num_hidden_layers=WIDE_LAYERS, num_parameters=0),
    cost=("--preset", "mechanism", "--layers", str(WIDE_LAYERS), "--ranks", "1", "--device", "cuda"),
    cites="parity-8b-bfloat16",
    forecast=("--device", "h200", "--dtype", "bfloat16"),
    num_shapes=48,
)
REHEARSAL = Scale(
    device="cpu",
    narrow=("--model", "tiny"),
    wide=("--model", "small", "--layers", "1"),
    config=replace(named_config("small"), num_hidden_layers=1),
    cost=(
        "--preset", "mechanism", "--scale", "tiny", "--layers", "1", "--steps", "2", "--sweep", "128",
        "--held-out", "2",
    ),
    cites="parity-8b-float32",
    forecast=("--device", "cpu", "--dtype", "float32"),
    num_shapes=8,
    budget_s=1800.0,
    patience=6.0,
    options=("--jobs", "1", "--threads", "1"),
)  # fmt: skip

COMPARED: dict[str, tuple[int, int]] = {"balanced": (128, 128), "response-long": (64, 192)}
"""Regimes of the cost run that are forecast too: prompt and response."""


def plan(out: Path, scale: Scale) -> tuple[Step, ...]:
    """The steps, most worth first: what time does not suffice for is the least loss.

    Args:
        out: The folder of the run.
        scale: FULL or REHEARSAL.
    """
    steps = (
        _check("parity-0.6b-float32", scale, scale.narrow, SUBJECTS, "float32", out, longest_s=150),
        _check("parity-8b-float32", scale, scale.wide, (*SUBJECTS, MEASURED[0]), "float32", out, longest_s=150),
        Step(
            name="recompilation",
            kind="recompilation",
            what=f"FlexAttention compiled, forward and backward, over {scale.num_shapes} shapes of packed rows",
            arguments=(
                "-m", "verify.on_a_gpu.recompilation", "--device", scale.device, "--shapes", str(scale.num_shapes),
                "--out", str(out / "recompilation"),
            ),
            longest_s=120,
        ),
        _check("parity-8b-bfloat16", scale, scale.wide, MEASURED, "bfloat16", out, longest_s=120),
        Step(
            name="mechanism",
            kind="cost",
            what="step time and memory of every path, three length regimes and longer sequences",
            arguments=("-m", "verify", "cost", *scale.cost, "--quiet", "--out", str(out / "mechanism")),
            longest_s=200,
            cites=scale.cites,
        ),
        *(_forecast(regime, lengths, scale, out) for regime, lengths in COMPARED.items()),
        _check("parity-0.6b-bfloat16", scale, scale.narrow, SUBJECTS, "bfloat16", out, longest_s=120),
    )  # fmt: skip
    return tuple(replace(step, longest_s=step.longest_s * scale.patience) for step in steps)


def _check(
    name: str,
    scale: Scale,
    model: tuple[str, ...],
    subjects: tuple[str, ...],
    dtype: str,
    out: Path,
    *,
    longest_s: float,
) -> Step:
    named = [part for subject in subjects for part in ("--subject", subject)]
    cases = [part for case in CASES for part in ("--case", case)]
    return Step(
        name=name,
        kind="check",
        what=f"log-probs, rewards, loss and LoRA gradients against the float64 oracle, {' '.join(model)}, {dtype}",
        arguments=(
            "-m", "verify", "check", *model, "--device", scale.device, "--dtype", dtype, *named, *cases,
            *scale.options, "--quiet", "--out", str(out / name),
        ),
        longest_s=longest_s,
        needs_float32=dtype == "float32",
    )  # fmt: skip


def _forecast(regime: str, lengths: tuple[int, int], scale: Scale, out: Path) -> Step:
    prompt, response = map(str, lengths)
    step = ("--prompt", prompt, "--response", response, "--pairs", "1")
    folder = out / f"forecast-{regime}"
    return Step(
        name=folder.name,
        kind="forecast",
        what="the same step from shapes alone, to stand beside what was measured; needs no GPU",
        arguments=(
            "-m", "verify", "forecast", "--model", str(out / SHAPE_FILE), *scale.forecast, *step, "--no-longest",
            "--quiet", "--out", str(folder),
        ),
        longest_s=90,
    )  # fmt: skip
