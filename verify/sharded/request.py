"""From options of ``packparity sharded`` to a request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from verify.groups import check_token_ids
from verify.models.configs import TINY_CONFIGS, TINY_PREFIX
from verify.models.lora import LoraSpec
from verify.models.memory import check_memory
from verify.models.request import ModelRequest, has_rotary_positions, requested_config, vocabulary_size
from verify.models.shape_file import is_shape_file, read_shape
from verify.sharded.ranks import RankPlace, ranks_on_this_machine
from verify.sharded.run import ShardedRequest
from verify.sharded.scenarios import (
    DEFAULT_PRECISIONS,
    PRECISIONS,
    check_precisions,
    default_scenarios,
    named_scenarios,
    precisions_under,
    real_scenarios,
)
from verify.subject import Subject
from verify.subjects.pairwise import VARIATIONS, default_variations
from verify.subjects.selection import default_subjects, select_subject
from verify.tolerance import load_policy
from verify.training import TrainName, default_reference

if TYPE_CHECKING:
    from verify.data.load import LoadedPairs

QUICK_SUBJECTS = ("split", "dense-sdpa", "split/block-diagonal")
"""Of our own subjects one that masks nothing away, one that masks, and one for examples."""
_OF_EXAMPLES = ("split/block-diagonal",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedOptions:
    """Options of the command line, as given."""

    model: str
    layers: int | None
    subjects: tuple[str, ...]
    backends: tuple[str, ...]
    precisions: tuple[str, ...]
    cases: tuple[str, ...]
    full: bool
    data: Path | None
    tokenizer: Path | None
    pairs: int | None
    max_tokens: int | None
    seed: int
    policy: Path | None
    train: TrainName = "lora"

    @property
    def is_tiny(self) -> bool:
        """Whether passes cost next to nothing."""
        return self.model.lower() in TINY_CONFIGS or self.model.lower().startswith(TINY_PREFIX)


def prepare(options: ShardedOptions, place: RankPlace) -> tuple[ShardedRequest, LoadedPairs | None]:
    """Turn options into a request; everything that can be wrong with them is found here.

    Args:
        options: The options.
        place: Where this rank stands.

    Returns:
        The request, the same on every rank but for the device; and the real pairs where some were asked for.

    Raises:
        ValueError: An option is wrong, or the model does not fit; the message says what would be right.
    """
    shape = read_shape(Path(options.model)) if is_shape_file(options.model) else None
    model = ModelRequest(
        name=options.model,
        num_layers=options.layers,
        device=place.device,
        seed=options.seed,
        lora=shape.lora if shape else LoraSpec(strength=0.3 if options.is_tiny else 0.1),
        config=shape.config if shape else None,
        reference=default_reference(options.train),
        train=options.train,
    )
    config = requested_config(model)
    vocab_size = vocabulary_size(model)
    loaded = _real_pairs(options, vocab_size, place.world_size)
    if loaded is not None:
        scenarios = real_scenarios(loaded.groups, place.world_size)
    elif options.cases:
        scenarios = named_scenarios(options.cases, vocab_size, options.seed, place.world_size)
    else:
        scenarios = default_scenarios(vocab_size, options.seed, place.world_size, full=options.full)
    for scenario in scenarios:
        check_token_ids(scenario.case.groups, int(config.get_text_config().vocab_size))
    if options.train == "all":
        scenarios = tuple(s if s.reference == "cached" else replace(s, reference="separate-model") for s in scenarios)
    check_precisions(options.precisions, options.train)
    precisions = options.precisions or (precisions_under(options.train) if options.full else DEFAULT_PRECISIONS)
    weights = sorted({PRECISIONS[name].weights for name in precisions})
    # Whole, to be held against, and once more until it is sharded.
    check_memory(model, weights, ranks_here=ranks_on_this_machine(), copies=2)
    variations = default_variations(place.device)
    if not has_rotary_positions(config):
        variations = tuple(name for name in variations if not VARIATIONS[name].positions_run_on)
    request = ShardedRequest(
        model=model,
        precisions=precisions,
        subjects=_subjects(options),
        scenarios=scenarios,
        policy=load_policy(options.policy),
        variations=variations,
        seed=options.seed,
    )
    return request, loaded


def _real_pairs(options: ShardedOptions, vocab_size: int, world_size: int) -> LoadedPairs | None:
    if options.data is None or options.tokenizer is None:
        return None
    from verify.data.load import load_pairs  # imports tokenizers, which other runs do without

    return load_pairs(
        options.data,
        options.tokenizer,
        num_pairs=options.pairs,
        seed=options.seed,
        max_tokens=options.max_tokens,
        vocab_size=vocab_size,
        by_default=2 * world_size + 1,
    )


def _subjects(options: ShardedOptions) -> tuple[Subject, ...]:
    if options.subjects:
        return tuple(select_subject(name) for name in dict.fromkeys(options.subjects))
    if options.backends or options.full:
        return default_subjects(options.backends, full=True)
    return tuple(select_subject(name) for name in QUICK_SUBJECTS if options.data is None or name not in _OF_EXAMPLES)
