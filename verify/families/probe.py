"""One model family, built tiny and fed packed rows in each way of calling.

Two questions are asked of each way, and a third of the family:

- Rewrite the tokens of the first example, at equal length: do the logits of the others keep every bit? Exact, and blind
  to what does not depend on tokens. Where experts are chosen by token, rewriting changes how many tokens an expert
  gets, and with it rounding: a change that is no larger than that of harmless changes is counted as rounding.
- Are packed log-probs those of the same examples alone? The contamination score, which also sees positions that run on.
- Are positions honoured? Positions 0 2 4 ... instead of 0 1 2 ..., under a mask of ones, change the logits, or not. And
  are 0 1 2 ... the positions that the model gives a sequence by itself?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from verify.contamination.examples import Examples, draw_examples
from verify.contamination.score import ContaminationError, Finding, Stack, Values, measure_contamination
from verify.families.tiny_config import VOCAB_SIZE, layer_kinds, tiny_config
from verify.groups import PreferenceGroup
from verify.subject import said_by
from verify.subjects.hf_position_ids import HfPositionIdsSubject, completion_logps

Outcome = Literal["isolated", "leaks", "other-values", "refused", "unresolved"]
Positions = Literal["honoured", "shifted", "ignored", "refused"]

_CALLS: tuple[tuple[str, HfPositionIdsSubject, str], ...] = (
    ("no-mask", HfPositionIdsSubject(), "use_cache=False"),
    ("no-mask/eager", HfPositionIdsSubject(attention="eager"), "use_cache=False, eager attention"),
    ("no-mask/sdpa", HfPositionIdsSubject(attention="sdpa"), "use_cache=False, SDPA"),
    ("no-mask/several-rows", HfPositionIdsSubject(rows="several-rows"), "use_cache=False, two rows, one padded"),
    ("no-mask/default-cache", HfPositionIdsSubject(cache="default"), "position_ids and nothing else"),
    ("ones-mask", HfPositionIdsSubject(mask="ones"), "attention_mask of ones, use_cache=False"),
    ("ones-mask/default-cache", HfPositionIdsSubject(mask="ones", cache="default"), "attention_mask of ones"),
    (
        "padding-mask/several-rows",
        HfPositionIdsSubject(mask="padding", rows="several-rows"),
        "attention_mask of the padding, use_cache=False, two rows, one padded",
    ),
)
"""Without a mask and a cache first, which is the call that transformers isolates."""

WAYS: Mapping[str, HfPositionIdsSubject] = {name: subject for name, subject, _ in _CALLS}
CALLS: Mapping[str, str] = {name: call for name, _, call in _CALLS}
"""What is passed beside ``input_ids`` and ``position_ids``, in words."""

_UNCHANGED: Mapping[Finding, Outcome] = {
    "isolated": "isolated",
    "contaminated": "other-values",
    "unresolved": "unresolved",
}
"""What a finding means where other tokens in front change nothing."""

_MOST_PARAMETERS = 30_000_000
_WEIGHT_SPREAD = 0.15
_ROUNDING = 100 * torch.finfo(torch.float32).eps
"""Share of the largest logit up to which a change is taken for rounding; leaks are larger by orders of magnitude."""


class NotBuiltError(Exception):
    """A family that could not be built or run even unpacked, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """One way of calling.

    Args:
        way: Its name in ``WAYS``.
        outcome: "isolated"; "leaks": other tokens in front change the logits; "other-values": they do not, and yet
            packed log-probs are not those of the examples alone; "refused": an error was raised; "unresolved".
        bit_identical: Whether rewriting left every bit; None where refused.
        score: Contamination score; None where refused.
        noise: Its noise floor.
        nats: Largest difference of a log-prob between packed and alone.
        reason: What was raised, or why nothing was resolved.
    """

    way: str
    outcome: Outcome
    bit_identical: bool | None = None
    score: float | None = None
    noise: float | None = None
    nats: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyResult:
    """One model family.

    Args:
        model_type: As in the config.
        architecture: Class of the causal LM.
        num_parameters: Of the tiny model.
        layer_kinds: Kinds of layers that the config names, sorted; empty where it names none.
        positions: Whether ``position_ids`` are honoured, ignored or refused; "shifted": honoured, but a sequence's own
            positions do not begin at 0, so that restarting at 0 computes something else than the ordinary call.
        ways: One result for each way.
    """

    model_type: str
    architecture: str
    num_parameters: int
    layer_kinds: tuple[str, ...]
    positions: Positions
    ways: tuple[WayResult, ...]


def probe(model_type: str, *, seed: int) -> FamilyResult:
    """Build a family and call it in every way.

    Args:
        model_type: A model type for which transformers has a causal LM.
        seed: Seed of weights and examples.

    Returns:
        What was found.

    Raises:
        NotBuiltError: It could not be built, or not be run on a single sequence.
    """
    try:
        model = build_tiny(model_type, seed)
        examples = draw_examples(VOCAB_SIZE, seed)
        model(input_ids=_ids(examples[0]), use_cache=False)
    except Exception as error:  # whatever a model class raises
        raise NotBuiltError(said_by(error)) from error
    positions = positions_of(model, examples)
    alone = alone_stack(model, with_positions=positions in ("honoured", "shifted"))
    return FamilyResult(
        model_type=model_type,
        architecture=type(model).__name__,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer_kinds=tuple(sorted(layer_kinds(model.config))),
        positions=positions,
        ways=tuple(_way(model, name, subject, examples, alone) for name, subject in WAYS.items()),
    )


def build_tiny(model_type: str, seed: int) -> Any:
    """The family at its smallest, in float32, with weights large enough for the context to matter.

    Raises:
        ValueError: It stays large.
    """
    config = tiny_config(model_type)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters at its smallest; no size field that is known here makes it tiny")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.dim() == 2 and parameter.is_floating_point():
            parameter.normal_(std=_WEIGHT_SPREAD, generator=generator)
    return model


def alone_stack(model: Any, *, with_positions: bool) -> Stack:
    """Examples one by one, each once: every way of calling is held against the same values.

    Args:
        model: The family.
        with_positions: Pass positions from 0, as packed rows do; else token ids and nothing else.

    Returns:
        A stack that packs nothing.
    """
    known: dict[PreferenceGroup, Tensor] = {}

    def stack(examples: Sequence[PreferenceGroup]) -> list[Tensor]:
        for example in examples:
            if example not in known:
                ids = _ids(example)
                positions = {"position_ids": torch.arange(ids.shape[1])[None]} if with_positions else {}
                logits = model(input_ids=ids, use_cache=False, **positions).logits[0]
                known[example] = completion_logps(logits, len(example.prompt_ids), example.completions[0])
        return [known[example] for example in examples]

    return stack


def positions_of(model: Any, examples: Examples) -> Positions:
    """Whether stretched positions change the logits of a single sequence, and its own begin at 0."""
    ids = _ids(examples[0])
    steps, ones = torch.arange(ids.shape[1])[None], torch.ones_like(ids)

    def logits(**positions: Tensor) -> Tensor:
        found: Tensor = model(input_ids=ids, attention_mask=ones, use_cache=False, **positions).logits
        return found

    try:
        own, from_zero, stretched = logits(), logits(position_ids=steps), logits(position_ids=2 * steps)
    except Exception:  # whatever a model class raises; each way of calling keeps the message
        return "refused"
    if torch.equal(from_zero, stretched):
        return "ignored"
    return "honoured" if _change(own, from_zero) <= _ROUNDING else "shifted"


def _way(model: Any, name: str, subject: HfPositionIdsSubject, examples: Examples, alone: Stack) -> WayResult:
    def stack(row: Sequence[PreferenceGroup]) -> Values:
        return alone(row) if len(row) == 1 else subject.per_token_logps(model, row)

    try:
        change = rewriting_change(model, subject, examples)
        found = measure_contamination(stack, examples, computed_in=torch.float32)
    except ContaminationError as error:
        return WayResult(way=name, outcome="unresolved", bit_identical=change == 0, reason=str(error))
    except Exception as error:  # whatever a model class raises
        return WayResult(way=name, outcome="refused", reason=said_by(error))
    outcome = "leaks" if change > _ROUNDING else _UNCHANGED[found.finding]
    return WayResult(
        way=name,
        outcome=outcome,
        bit_identical=change == 0,
        score=found.score,
        noise=found.noise,
        nats=found.nats,
        reason=found.words if outcome == "unresolved" else "",
    )


def rewriting_change(model: Any, subject: HfPositionIdsSubject, examples: Examples) -> float:
    """Largest change of a logit of the second example when the tokens of the first are all others, over the largest.

    The second stands behind the first in one row in every way of calling.
    """
    first = examples[0]
    others = replace(
        first,
        prompt_ids=tuple(_other(t) for t in first.prompt_ids),
        positives=(tuple(_other(t) for t in first.completions[0]),),
    )
    before, after = (
        subject.logits(model, [e.prompt_ids + e.completions[0] for e in (given, *examples[1:])])[1]
        for given in (first, others)
    )
    return _change(before, after)


def _change(before: Tensor, after: Tensor) -> float:
    """Largest difference over the largest value."""
    return float(((before - after).abs().max() / before.abs().max()).detach())


def _other(token: int) -> int:
    return token % (VOCAB_SIZE - 1) + 1


def _ids(example: PreferenceGroup) -> Tensor:
    return torch.tensor([example.prompt_ids + example.completions[0]])
