"""From options of ``packparity sharded`` to a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verify.check_refusals import check_cases_fit
from verify.frozen_policy import ReferenceName
from verify.models.configs import TINY_CONFIGS, TINY_PREFIX
from verify.models.lora import LoraSpec
from verify.models.memory import check_memory
from verify.models.request import ModelRequest, has_rotary_positions, requested_config, vocabulary_size
from verify.models.shape_file import is_shape_file, read_shape
from verify.objective import REWARD_MODEL, ComparingName, run_objective
from verify.sharded.ranks import RankPlace, ranks_on_this_machine
from verify.sharded.run import ShardedRequest
from verify.sharded.scenarios import (
    DEFAULT_PRECISIONS,
    PRECISIONS,
    Scenario,
    as_asked,
    check_precisions,
    default_scenarios,
    named_scenarios,
    precisions_under,
    real_scenarios,
)
from verify.subject import Subject
from verify.subjects.oracle import unknown_to_oracle
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
    objective: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    nll_weight: float | None = None
    reference: ReferenceName | None = None

    @property
    def frozen_policy(self) -> ReferenceName:
        """The frozen policy that is asked for, or that goes with what is trained."""
        return default_reference(self.train) if self.reference is None else self.reference

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
    objective = run_objective(
        options.objective,
        beta=options.beta,
        label_smoothing=options.label_smoothing,
        nll_weight=options.nll_weight,
    )
    shape = read_shape(Path(options.model)) if is_shape_file(options.model) else None
    model = ModelRequest(
        name=options.model,
        num_layers=options.layers,
        device=place.device,
        seed=options.seed,
        lora=shape.lora if shape else LoraSpec(strength=0.3 if options.is_tiny else 0.1),
        config=shape.config if shape else None,
        reference=options.frozen_policy,
        train=options.train,
    )
    config = requested_config(model)
    vocab_size = vocabulary_size(model)
    loaded = _real_pairs(options, vocab_size, place.world_size)
    if loaded is not None:
        scenarios = as_asked(real_scenarios(loaded.groups, place.world_size), objective.name, options.frozen_policy)
    else:
        scenarios = _own_scenarios(options, objective.name, vocab_size, place.world_size)
    check_cases_fit([s.case for s in scenarios], config, unknown_to_oracle(config), options.train)
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
        objective=objective,
    )
    return request, loaded


def _own_scenarios(
    options: ShardedOptions, objective: ComparingName, vocab_size: int, world_size: int
) -> tuple[Scenario, ...]:
    """Our own cases, as options name them.

    Raises:
        ValueError: A case that is unknown, or that is left out under the objective of the run.
    """
    # Cases that are there for one objective each mean nothing under another.
    of_each, seed = objective == "sigmoid", options.seed
    if options.cases:
        named = named_scenarios(options.cases, vocab_size, seed, world_size, objectives=of_each)
    else:
        named = default_scenarios(vocab_size, seed, world_size, full=options.full, objectives=of_each)
    scenarios = as_asked(named, objective, options.frozen_policy)
    left = {scenario.case.name for scenario in scenarios}
    for scenario in named if options.cases else ():
        if scenario.case.name not in left:
            raise ValueError(
                f"--case {scenario.name} with --objective {objective}: it is of supervised examples, which are run on "
                "a causal LM; leave one of the two out"
            )
    return scenarios


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
    has_examples = options.data is None and options.objective != REWARD_MODEL
    return tuple(select_subject(name) for name in QUICK_SUBJECTS if has_examples or name not in _OF_EXAMPLES)
