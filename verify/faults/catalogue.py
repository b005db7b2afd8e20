"""The fault catalogue: every planted fault and every negative control, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from verify.cases import CASE_KINDS, Case
from verify.faults import (
    accumulation,
    activations,
    bins,
    every_weight,
    examples,
    frozen_policy,
    gradients,
    images,
    kept,
    labels,
    larger_groups,
    layout,
    likelihood,
    mask,
    mask_kernels,
    objective,
    other_objectives,
    positions,
    predictors,
    prefix_trees,
    reduction,
    reference,
    reward_model,
    routers,
    supervision,
    token_logps,
    training,
    two_pass,
    windows,
)
from verify.faults.controls import EQUIVALENT_MUTANTS
from verify.faults.exact_claims import with_exact_claims
from verify.faults.fault import Fault, Mutation
from verify.faults.layout_controls import LAYOUT_MUTANTS

_AS_PLANTED: tuple[Fault, ...] = (
    *layout.FAULTS,
    *positions.FAULTS,
    *mask.FAULTS,
    *mask_kernels.FAULTS,
    *activations.FAULTS,
    *predictors.FAULTS,
    *supervision.FAULTS,
    *token_logps.FAULTS,
    *reduction.FAULTS,
    *reference.FAULTS,
    *objective.FAULTS,
    *accumulation.FAULTS,
    *gradients.FAULTS,
    *prefix_trees.FAULTS,
    *larger_groups.FAULTS,
    *examples.FAULTS,
    *labels.FAULTS,
    *bins.FAULTS,
    *kept.FAULTS,
    *training.FAULTS,
)
FAULTS: tuple[Fault, ...] = tuple(map(with_exact_claims, _AS_PLANTED))
"""What every run can show, whatever its preference objective."""
FAULTS_OF_OBJECTIVES: tuple[Fault, ...] = tuple(
    map(with_exact_claims, (*other_objectives.FAULTS, *likelihood.FAULTS, *two_pass.FAULTS))
)
"""What only a run with cases of some other preference objective than sigmoid can show."""
FAULTS_OF_REFERENCES: tuple[Fault, ...] = frozen_policy.FAULTS
"""What only a run with cases over other frozen policies than the model with its adapters off can show."""
FAULTS_OF_IMAGES: tuple[Fault, ...] = images.FAULTS
"""What only a run with a model that sees images can show."""
FAULTS_OF_ROUTERS: tuple[Fault, ...] = routers.FAULTS
"""What only a run with the loss of routers can show."""
FAULTS_OF_WINDOWS: tuple[Fault, ...] = windows.FAULTS
"""What only a run with a model whose layers have a sliding window can show."""
FAULTS_OF_REWARDS: tuple[Fault, ...] = reward_model.FAULTS
"""What only a run with cases of a reward model can show."""
FAULTS_OF_EVERY_WEIGHT: tuple[Fault, ...] = every_weight.FAULTS
"""What only a run that trains every weight can show."""
ALL_FAULTS: tuple[Fault, ...] = (
    *FAULTS,
    *FAULTS_OF_OBJECTIVES,
    *FAULTS_OF_REWARDS,
    *FAULTS_OF_REFERENCES,
    *FAULTS_OF_IMAGES,
    *FAULTS_OF_ROUTERS,
    *FAULTS_OF_WINDOWS,
    *FAULTS_OF_EVERY_WEIGHT,
)
CATALOGUE: tuple[Mutation, ...] = (
    *ALL_FAULTS,
    *EQUIVALENT_MUTANTS,
    *LAYOUT_MUTANTS,
    *kept.MUTANTS,
    *other_objectives.MUTANTS,
    *two_pass.MUTANTS,
    *reward_model.MUTANTS,
    *images.MUTANTS,
    *windows.MUTANTS,
)


def mutation_named(name: str) -> Mutation:
    """A fault or an equivalent mutant by name.

    Args:
        name: Its name.

    Returns:
        The mutation.

    Raises:
        ValueError: Unknown; the message gives the nearest names.
    """
    by_name = {mutation.name: mutation for mutation in CATALOGUE}
    if name not in by_name:
        close = get_close_matches(name, by_name, n=3, cutoff=0.4)
        nearest = f": did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"unknown fault {name!r}{nearest} (docs/faults.md lists all {len(by_name)})")
    return by_name[name]


def biting_cases(mutation: Mutation, cases: tuple[Case, ...], at_most: int) -> tuple[Case, ...]:
    """The cases that a mutation is run on: the smallest of those that have what it takes, of each kind in turn.

    Args:
        mutation: The fault or equivalent mutant.
        cases: The cases of the run.
        at_most: How many to choose.

    Returns:
        Chosen and ordered by rank within their kind, then by token slots, then by name. Empty where none has what it
        takes.
    """
    ranked = [
        (rank, case.pairwise_slots, case.name, case)
        for kind in CASE_KINDS
        for rank, case in enumerate(_smallest(case for case in cases if case.kind == kind and mutation.bites(case)))
    ]
    return tuple(case for *_, case in sorted(ranked, key=lambda entry: entry[:3])[:at_most])


def _smallest(cases: Iterable[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: (case.pairwise_slots, case.name))
