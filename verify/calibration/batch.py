"""A batch is one run of the gate as a user would make it: its own weights, adapters, objective, cases and subjects.

Noise is pooled over the cases of a run, so results within a batch depend on each other and batches do not. What is in
a batch follows from the seed and the batch's number alone: any of them can be run again, in any process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verify.calibration.group_shapes import draw_group_shapes, make_group_case
from verify.calibration.kinds import DrawnKind, case_kind
from verify.calibration.shapes import draw_shapes, make_case
from verify.cases import Case
from verify.faults.catalogue import FAULTS
from verify.faults.conditions import SEVERAL_GROUPS
from verify.faults.controls import EQUIVALENT_MUTANTS
from verify.faults.fault import Mutation
from verify.gate import GateRequest
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, vocabulary_size
from verify.objective import Preference
from verify.subjects.faulty import FaultySubject
from verify.subjects.packed import PACKED_SUBJECTS, PackedSubject
from verify.tolerance import Policy

Population = Literal["honest", "fault"]

RUN_SIZES = (1, 2, 5, 19)
"""Cases of a run: users give one or two of their own, or take the default ones."""
PACKED_PER_BATCH = 3
_RUN_SIZE_WEIGHTS = (30, 30, 10, 30)
_FAULTS_PER_BATCH = 2
_CASES_PER_FAULT = 3
_CASES_PER_MUTANT = 3
# The noise floor knows sequences that start as late as a row may place them: right at any distance, not only near.
_MUTANTS = tuple(
    replace(mutant, bites_where=SEVERAL_GROUPS) if mutant.name == "positions-shifted-by-tree" else mutant
    for mutant in EQUIVALENT_MUTANTS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One run of the gate.

    Args:
        number: Its number.
        request: What the gate is asked.
        populations: For each subject by name: honest, or a planted fault.
    """

    number: int
    request: GateRequest
    populations: dict[str, Population]


def batch_sizes(seed: int, num_cases: int) -> tuple[int, ...]:
    """Number of cases of every batch, of as many batches as it takes.

    Args:
        seed: Seed of the calibration.
        num_cases: Cases over all batches, at least.

    Returns:
        One number per batch.
    """
    sizes: list[int] = []
    while sum(sizes) < num_cases:
        sizes.append(_run_size(_generator(seed, len(sizes))))
    return tuple(sizes)


def draw_batch(seed: int, number: int, dtypes: Sequence[str], policy: Policy, kind: DrawnKind = "pairs") -> Batch:
    """Draw one batch.

    Args:
        seed: Seed of the calibration.
        number: Number of the batch; batches take the dtypes in turn.
        dtypes: Names of dtypes.
        policy: The tolerance policy.
        kind: Kind of all its cases.

    Returns:
        The batch.
    """
    rng = _generator(seed, number)
    size = _run_size(rng)
    model = ModelRequest(name="tiny", seed=rng.getrandbits(31), lora=LoraSpec(strength=0.3))
    cases = _cases(number, size, model, rng, kind)
    objective = _objective(rng)
    subjects: dict[str, tuple[Population, PackedSubject | FaultySubject]] = {
        subject.name: ("honest", subject)
        for subject in rng.sample([s for s in PACKED_SUBJECTS if case_kind(kind) in s.takes], PACKED_PER_BATCH)
    }
    subjects.update((s.name, ("honest", s)) for s in _planted(_MUTANTS, 1, _CASES_PER_MUTANT, cases, rng))
    faults = [fault for fault in FAULTS if "parity" in fault.must_kill and _can_show(fault, objective)]
    subjects.update((s.name, ("fault", s)) for s in _planted(faults, _FAULTS_PER_BATCH, _CASES_PER_FAULT, cases, rng))
    request = GateRequest(
        model=model,
        dtypes=(dtypes[number % len(dtypes)],),
        subjects=tuple(subject for _, subject in subjects.values()),
        cases=cases,
        objective=objective,
        policy=policy,
        seed=model.seed,
    )
    return Batch(number=number, request=request, populations={name: kind for name, (kind, _) in subjects.items()})


def _generator(seed: int, number: int) -> random.Random:
    return random.Random(f"packparity calibrate, seed {seed}, batch {number}")


def _run_size(rng: random.Random) -> int:
    return rng.choices(RUN_SIZES, weights=_RUN_SIZE_WEIGHTS)[0]


def _cases(number: int, size: int, model: ModelRequest, rng: random.Random, kind: DrawnKind) -> tuple[Case, ...]:
    vocab_size, seed = vocabulary_size(model), rng.getrandbits(63)
    names = [f"b{number}-c{index}" for index in range(size)]
    if kind == "pairs":
        pairs = zip(names, draw_shapes(seed, size), strict=True)
        return tuple(make_case(name, shape, vocab_size, rng) for name, shape in pairs)
    shapes = zip(names, draw_group_shapes(kind, seed, size), strict=True)
    return tuple(make_group_case(name, shape, vocab_size, rng) for name, shape in shapes)


def _objective(rng: random.Random) -> Preference:
    """Beta from 0.01 to 1, evenly in its logarithm; label smoothing 0 in one of four, else up to 0.3."""
    beta = 10 ** rng.uniform(-2, 0)
    smoothing = rng.uniform(0.02, 0.3)
    return Preference(beta=beta, label_smoothing=0.0 if rng.random() < 0.25 else smoothing)


def _planted(
    mutations: Sequence[Mutation], count: int, cases_per_mutation: int, cases: Sequence[Case], rng: random.Random
) -> Iterator[FaultySubject]:
    """Mutations that some case can show, each on a few of those cases."""
    for mutation in rng.sample(mutations, len(mutations)):
        showing = [case.name for case in cases if mutation.bites(case) and not _proves_nothing(case)]
        if not showing:
            continue
        chosen = rng.sample(showing, min(cases_per_mutation, len(showing)))
        yield replace(FaultySubject(mutation=mutation), cases=frozenset(chosen))
        count -= 1
        if count == 0:
            return


def _proves_nothing(case: Case) -> bool:
    """Attention weights do not matter: one kind of token, or no token that sees more than one. INCONCLUSIVE, mostly."""
    kinds = {token for group in case.groups for ids in (group.prompt_ids, *group.completions) for token in ids}
    longest = max(len(group.prompt_ids) + len(ids) for group in case.groups for ids in group.completions)
    return len(kinds) == 1 or longest == 2


def _can_show(fault: Mutation, objective: Preference) -> bool:
    """A fault of the objective may be one of label smoothing, and at 0 there is nothing to see."""
    return objective.label_smoothing > 0 or fault.stage != "objective"
