"""How often FlexAttention is compiled while the lengths of packed rows change from step to step.

    python -m verify.on_a_gpu.recompilation --device cuda --shapes 48 --out DIR

One compiled for each new length costs seconds in each step of a training run. Every step here has other lengths, drawn
alike from first to last: what has to be compiled once is compiled in the first half, and a graph that the second half
still needs is a FAIL. So is torch's limit of recompilations, behind which it would go on, unfused, without a word.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from reports.record_setting import Environment
from reports.store import RecordError, problems_of
from reports.values import Count, RecordPart, Text

RECOMPILATION_FILE = "recompilation.json"
Lengths = tuple[tuple[int, int, int], ...]
"""Prompt, preferred and rejected response of each pair of a row."""


class RecompilationRecord(RecordPart):
    """Graphs compiled over steps of changing lengths."""

    kind: Literal["recompilation"] = "recompilation"
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"]
    reason: Text
    environment: Environment
    dtype: Text
    shapes: Annotated[list[list[tuple[int, int, int]]], Field(min_length=2)]
    graphs: list[Count]
    """Compiled so far, after each step; shorter than the shapes where a step could not be run."""


def drawn_shapes(count: int, seed: int) -> list[Lengths]:
    """Rows of one to four pairs, of one block of 128 slots to many."""
    generator = random.Random(seed)
    return [
        tuple(
            (generator.randint(1, 300), generator.randint(1, 200), generator.randint(1, 200))
            for _ in range(generator.randint(1, 4))
        )
        for _ in range(count)
    ]


def judged(graphs: Sequence[int], num_shapes: int) -> tuple[Literal["PASS", "FAIL", "INCONCLUSIVE"], str]:
    """Whether compilation comes to an end.

    Args:
        graphs: Compiled so far, after each step.
        num_shapes: Steps that there were to be.
    """
    if not graphs or not graphs[-1]:
        return "INCONCLUSIVE", "nothing was compiled: another attention ran"
    half = num_shapes // 2
    in_words = f"{graphs[-1]} graphs in {len(graphs)} steps of changing lengths"
    if len(graphs) < num_shapes:
        return "FAIL", f"{in_words}, then torch's limit of recompilations was reached"
    if graphs[-1] > graphs[half - 1]:
        late = [step for step in range(half, num_shapes) if graphs[step] > graphs[step - 1]]
        return "FAIL", f"{in_words}: still compiled in step {', '.join(str(step + 1) for step in late)}"
    return "PASS", f"{in_words}, none after step {graphs.index(graphs[-1]) + 1}"


def count_graphs(shapes: Sequence[Lengths], device: str, dtype: str, *, seed: int) -> list[int]:
    """Run a training step on each row, on one layer with the heads of Qwen3-8B.

    Returns:
        Graphs compiled after each step; up to where torch's limit was reached.
    """
    import torch._dynamo
    from torch._dynamo.exc import FailOnRecompileLimitHit

    from verify.cost.device import num_compiled
    from verify.groups import PreferenceGroup
    from verify.models.configs import named_config
    from verify.models.request import ModelRequest, build_model
    from verify.objective import Preference
    from verify.subjects.packed import PackedSubject

    published = named_config("qwen3-8b")
    config = replace(
        published, hidden_size=256, intermediate_size=256, vocab_size=512, num_hidden_layers=1, num_parameters=0
    )
    model = build_model(
        ModelRequest(name="heads-of-qwen3-8b", config=config, device=device, seed=seed), dtype
    ).model.train()
    generator, subject, graphs = random.Random(seed), PackedSubject(backend="flex"), list[int]()

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(generator.choices(range(config.vocab_size), k=count))

    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for lengths in shapes:
            groups = [PreferenceGroup(tokens(p), (tokens(c),), (tokens(r),)) for p, c, r in lengths]
            try:
                loss: Any = subject.loss(model, groups, Preference(beta=0.1)).loss
                loss.backward()
            except FailOnRecompileLimitHit:
                break
            model.zero_grad(set_to_none=True)
            graphs.append(num_compiled())
    return graphs


def read_recompilation(folder: Path) -> RecompilationRecord:
    """Read what a run has written.

    Raises:
        RecordError: There is no such file, or it is not valid.
    """
    place = folder / RECOMPILATION_FILE
    try:
        return RecompilationRecord.model_validate_json(place.read_bytes())
    except OSError as error:
        raise RecordError(f"{place}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise RecordError(f"{place}: {problems_of(error)}") from error


def options() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser("python -m verify.on_a_gpu.recompilation", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda; on a CPU there is no backward pass to compile")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shapes", type=int, default=48, help="steps, each of other lengths; 4 or more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {RECOMPILATION_FILE}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, write the record, and end with 0 for PASS, 1 for FAIL, 3 where nothing was proven."""
    given = options().parse_args(arguments)
    from verify.environment import read_environment
    from verify.subjects.kernel_attention import backward_support

    shapes = drawn_shapes(max(4, given.shapes), given.seed)
    graphs: list[int] = []
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"]
    support = backward_support("flex", given.device)
    if not support.supported:
        verdict, reason = "NOT_APPLICABLE", support.reason
    else:
        graphs = count_graphs(shapes, given.device, given.dtype, seed=given.seed)
        verdict, reason = judged(graphs, len(shapes))
    record = RecompilationRecord(
        verdict=verdict,
        reason=reason,
        environment=read_environment(given.device),
        dtype=given.dtype,
        shapes=[list(lengths) for lengths in shapes],
        graphs=graphs,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record.model_dump(mode="json"), indent=1) + "\n"
    (given.out / RECOMPILATION_FILE).write_text(text, encoding="utf-8")
    print(f"{verdict}: {reason}")  # noqa: T201
    return {"PASS": 0, "FAIL": 1}.get(verdict, 3)


if __name__ == "__main__":
    raise SystemExit(main())
