"""What sharded parity runs: cases cut among ranks and into micro-batches, and the precisions of a sharded model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from types import MappingProxyType

from verify.cases import Case, under
from verify.default_cases.objectives import objective_cases
from verify.default_cases.tiny import tiny_cases
from verify.frozen_policy import ReferenceName
from verify.groups import PreferenceGroup
from verify.objective import REWARD_MODEL, ComparingName
from verify.training import TrainName


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A case, and how ranks run it.

    Args:
        case: The groups of the global batch, and the objective.
        micro_size: Most groups of a micro-batch.
        reference: The frozen policy of a preference objective: that of the run, or "cached", values that were computed
            before and stand beside the data.
        label: Its own name, of a case that is run in several ways; "" for that of the case.
    """

    case: Case
    micro_size: int
    reference: ReferenceName = "adapters-off"
    label: str = ""

    @property
    def name(self) -> str:
        """Of the case, and that the frozen policy is cached where it is."""
        name = self.label or self.case.name
        return f"{name}/cached" if self.reference == "cached" else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a sharded model computes in; names of torch dtypes.

    Args:
        weights: Of the shards, and so of the optimizer.
        computes: Of parameters in passes, and so of the gradients of a rank.
        reduces: In which gradients are summed over ranks.
    """

    weights: str
    computes: str
    reduces: str


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "float64": Precision(weights="float64", computes="float64", reduces="float64"),
        "float32": Precision(weights="float32", computes="float32", reduces="float32"),
        "bfloat16": Precision(weights="bfloat16", computes="bfloat16", reduces="float32"),
        "mixed-bfloat16": Precision(weights="float32", computes="bfloat16", reduces="float32"),
    }
)


def check_precisions(names: Sequence[str], train: TrainName = "lora") -> None:
    """Refuse an unknown precision, one given twice, and one in which what is trained cannot be.

    Shards of bfloat16 keep their gradients in bfloat16, whatever these were summed in.

    Raises:
        ValueError: With what would be right.
    """
    for name in names:
        if name not in PRECISIONS:
            raise ValueError(f"unknown dtype {name!r}: give some of {', '.join(PRECISIONS)}")
        if list(names).count(name) > 1:
            raise ValueError(f"--dtype {name} is given twice: once is enough")
        if name not in precisions_under(train):
            raise ValueError(
                f"--train {train} with --dtype {name}: weights would be trained in it; give mixed-bfloat16"
            )


def precisions_under(train: TrainName) -> tuple[str, ...]:
    """The precisions in which nothing that is trained is kept in bfloat16; adapters never are."""
    return tuple(name for name in PRECISIONS if train == "lora" or name != "bfloat16")


DEFAULT_PRECISIONS = ("float32", "mixed-bfloat16")

PROBED = "uneven-over-ranks"
"""The case of the checks beside parity, and of planted faults."""
UNLIKE_ROUND = "unlike-in-one-round"
"""The same groups in larger micro-batches: ranks run other numbers of groups at the same time."""
_PROBED_SIZES = ((33, 5, 21), (2, 18, 4), (48, 1, 6), (7, 27, 26), (14, 11, 1), (5, 9, 30), (21, 3, 2))
_MICRO_SIZES: Mapping[str, int] = {
    "groups-masked": 1,
    "examples-of-uneven-length": 1,
    "examples-of-several-turns": 2,
    "balanced": 1,
}
"""Default cases beside it: larger groups, both means of examples, and one group, which leaves other ranks without."""
_NUM_PROBED = 3
_ONLY_IN_FULL = ("groups-of-uneven-size", "tree-of-turns", "same-prompt-twice", "rollouts-of-one-prompt", "long-prompt")


def probed_scenario(vocab_size: int, seed: int, world_size: int) -> Scenario:
    """Two pairs for each rank and one more, all of other lengths: no rank has what another has.

    Of two ranks the first has a micro-batch of two pairs and one of one, the second one of two and a dummy call.

    Args:
        vocab_size: Of the model.
        seed: Of the token ids.
        world_size: Number of ranks.

    Returns:
        The scenario.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    groups = tuple(
        PreferenceGroup(tokens(prompt), (tokens(chosen),), (tokens(rejected),))
        for prompt, chosen, rejected in islice(cycle(_PROBED_SIZES), 2 * world_size + 1)
    )
    case = Case(name=PROBED, why="uneven in every part, and in what each rank gets", groups=groups)
    return Scenario(case=case, micro_size=2)


def unlike_round(probed: Scenario, world_size: int) -> Scenario:
    """The probed case with one micro-batch on each rank: of two ranks one of three pairs beside one of two.

    Elsewhere a micro-batch may stand beside others of its size only, so that a subject whose loss asks other ranks for
    their counts, and counts a round wrongly, would be right by chance.

    Args:
        probed: The scenario that is probed.
        world_size: Number of ranks.

    Returns:
        The scenario.
    """
    return replace(probed, micro_size=_most_of_a_rank(len(probed.case.groups), world_size), label=UNLIKE_ROUND)


def _most_of_a_rank(num_groups: int, world_size: int) -> int:
    return -(-num_groups // world_size)


def real_scenarios(groups: Sequence[PreferenceGroup], world_size: int) -> tuple[Scenario, ...]:
    """Real pairs in batches of up to two for each rank and one more.

    The first batch is the one that is probed, so its ranks have uneven numbers of pairs: of six pairs and two ranks
    five are in it, of four three.

    Args:
        groups: The pairs, in the order of the data.
        world_size: Number of ranks.

    Returns:
        The first batch over a frozen policy that is run, over one that is cached, and in one round; then the others.

    Raises:
        ValueError: No more pairs than ranks.
    """
    if len(groups) <= world_size:
        raise ValueError(
            f"{len(groups)} pairs over {world_size} ranks: some rank has to have more than another, and several; "
            f"give --pairs {2 * world_size + 1}, or at least {world_size + 1}"
        )
    most = 2 * world_size + 1
    first = min(most, len(groups)) - (len(groups) < most and len(groups) % world_size == 0)
    starts = [0, *range(first, len(groups), most)]
    batches = [groups[start:stop] for start, stop in zip(starts, [*starts[1:], len(groups)], strict=True)]
    cases = [
        Case(name=f"real-pairs-{number}", why=f"real pairs {_sources(batch)}", groups=tuple(batch))
        for number, batch in enumerate(batches)
    ]
    probed = Scenario(case=cases[0], micro_size=_uneven_size(_most_of_a_rank(first, world_size)))
    return (
        probed,
        replace(probed, reference="cached"),
        unlike_round(probed, world_size),
        *(Scenario(case=case, micro_size=2) for case in cases[1:]),
    )


def _uneven_size(count: int) -> int:
    """The smallest size, from two on, that leaves a smaller last micro-batch; 1 where there is none."""
    return next((size for size in range(2, count) if count % size), 1)


def _sources(groups: Sequence[PreferenceGroup]) -> str:
    return ", ".join(group.source for group in groups)


def default_scenarios(
    vocab_size: int, seed: int, world_size: int, *, full: bool, objectives: bool = True
) -> tuple[Scenario, ...]:
    """The scenarios of a run that names no case.

    Args:
        vocab_size: Of the model.
        seed: Of the token ids.
        world_size: Number of ranks.
        full: Whether more cases are among them.
        objectives: Whether cases of every objective are among them then.

    Returns:
        The scenarios; the first is the one that is probed, the second the same with a cached frozen policy, the third
        the same in larger micro-batches.
    """
    cases = {case.name: case for case in tiny_cases(vocab_size, seed)}
    probed = probed_scenario(vocab_size, seed, world_size)
    scenarios = [probed, replace(probed, reference="cached"), unlike_round(probed, world_size)]
    scenarios += [Scenario(case=cases[name], micro_size=size) for name, size in _MICRO_SIZES.items()]
    if full:
        scenarios += [Scenario(case=cases[name], micro_size=1) for name in _ONLY_IN_FULL]
        scenarios += [
            Scenario(case=case, micro_size=1)
            for case in objective_cases(vocab_size, seed)
            if objectives and case.objective_name != REWARD_MODEL
        ]
    return tuple(scenarios)


def named_scenarios(
    names: Sequence[str], vocab_size: int, seed: int, world_size: int, *, objectives: bool = True
) -> tuple[Scenario, ...]:
    """Scenarios by name, behind those that every run has.

    Args:
        names: Of scenarios, or of cases of the gate.
        vocab_size: Of the model.
        seed: Of the token ids.
        world_size: Number of ranks.
        objectives: Whether cases that are there for one objective each can be named.

    Returns:
        The three scenarios of the probed case, then those that are named; of a case that is no default one
        micro-batches have one group.

    Raises:
        ValueError: An unknown name.
    """
    default = default_scenarios(vocab_size, seed, world_size, full=True, objectives=objectives)
    known = {scenario.name: scenario for scenario in default}
    for case in tiny_cases(vocab_size, seed):
        known.setdefault(case.name, Scenario(case=case, micro_size=1))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown case {unknown[0]!r}: give some of {', '.join(known)}")
    probed = [scenario.name for scenario in default[:_NUM_PROBED]]
    return tuple(known[name] for name in dict.fromkeys((*probed, *names)))


def as_asked(scenarios: Sequence[Scenario], objective: ComparingName, reference: ReferenceName) -> tuple[Scenario, ...]:
    """Scenarios under the objective and over the frozen policy of a run.

    Where the frozen policy of the run is cached, the probed case is not there a second time. A reward model has no
    frozen policy, and supervised examples are of a causal LM: neither they nor cached values are there then.

    Args:
        scenarios: As they are under the sigmoid loss, over the model with its adapters off.
        objective: The objective of the run. Where it is not "sigmoid", every case of pairs and groups is under it.
        reference: The frozen policy of the run.

    Returns:
        The scenarios that are run.
    """
    if objective != "sigmoid":
        scenarios = [replace(scenario, case=under(scenario.case, objective)) for scenario in scenarios]
    if objective == REWARD_MODEL:
        return tuple(s for s in scenarios if s.case.objective_name == REWARD_MODEL and s.reference != "cached")
    asked = (s if s.reference == "cached" else replace(s, reference=reference) for s in scenarios)
    return tuple({scenario.name: scenario for scenario in asked}.values())
