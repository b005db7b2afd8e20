"""From options of ``packparity faults`` to runs of the gate; what can be wrong with them is found before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verify.cases import Case, over, under
from verify.fault_grounds import (
    COEFFICIENT_OF_ROUTERS,
    GROUND_NAMES,
    MODEL_WITH_IMAGES,
    MODEL_WITH_ROUTERS,
    MODEL_WITH_WINDOWS,
    OBJECTIVE,
    Ground,
    GroundName,
    fault_grounds,
    ground_of,
)
from verify.faults.catalogue import biting_cases
from verify.faults.fault import Mutation
from verify.faults.kernels import NOISY_KERNELS, NoisyKernel
from verify.faults.selection import asked_where_it_bites, select_mutations
from verify.gate import GateRequest
from verify.gate_pieces import Piece, pieces_of
from verify.jobs import choose_num_processes, why_one_process
from verify.models.dtypes import DTYPES
from verify.objective import COMPARING_NAMES, SFT_NAMES, ComparingName
from verify.subjects.faulty import FaultySubject
from verify.subjects.pairwise import VARIATIONS, default_variations
from verify.tolerance import Policy, load_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """Options of the command line, as given; and whether torch was loaded for this run alone (``heavy_imports``)."""

    faults: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    cases_per_fault: int = 3
    jobs: int | None = None
    fresh: bool = False
    seed: int = 0
    policy: Path | None = None


@dataclass(frozen=True, slots=True)
class ExactPiece:
    """A mutation that is put to the exact checks in a dtype, under the objective of the first case that shows it."""

    dtype: str
    mutation: Mutation
    objective: ComparingName


@dataclass(frozen=True, slots=True)
class FaultPiece:
    """A piece of one of the runs that depends on no other.

    Args:
        run: Number of the run.
        piece: A piece of the gate's, or one of the exact checks.
    """

    run: int
    piece: Piece | ExactPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of the gate, with a subject for each mutation.

    Args:
        request: The run.
        mutations: The mutations by the names of their subjects.
        exact_under: The objective under which each is put to the exact checks, by the same names; none for those whose
            cases the checks have not.
        kernel: The noisy kernel that all passes go through, or None for the ordinary ones.
    """

    request: GateRequest
    mutations: Mapping[str, Mutation]
    exact_under: Mapping[str, ComparingName]
    kernel: NoisyKernel | None

    @property
    def exact_pieces(self) -> list[ExactPiece]:
        """What is put to the exact checks: nothing in a noisy kernel, where bits differ from call to call."""
        if self.kernel is not None:
            return []
        return [
            ExactPiece(dtype, mutation, objective)
            for dtype in self.request.dtypes
            for name, mutation in self.mutations.items()
            if (objective := self.exact_under.get(name)) is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFaults:
    """A request that was checked and can be run.

    Args:
        runs: The runs of the gate, that of the ordinary kernels first; at least one.
        notes: What a reader must know.
        num_processes: Processes that the runs are shared among.
    """

    runs: tuple[PlannedRun, ...]
    notes: tuple[str, ...]
    num_processes: int = 1

    @property
    def pieces(self) -> list[FaultPiece]:
        """The pieces of all runs: those of the gate run by run, then the exact checks."""
        return pieces_of_runs(self.runs)


def pieces_of_runs(runs: Sequence[PlannedRun]) -> list[FaultPiece]:
    """The pieces of several runs: those of the gate run by run, then the exact checks."""
    gates = [FaultPiece(number, piece) for number, run in enumerate(runs) for piece in pieces_of(run.request)]
    exact = [FaultPiece(number, piece) for number, run in enumerate(runs) for piece in run.exact_pieces]
    return [*gates, *exact]


def prepare_faults(options: FaultOptions) -> PreparedFaults:
    """Turn options into runs of the gate: the tiny model, with the catalogue's mutations as subjects.

    Noise is measured on all cases, as in ``packparity check``; each fault is run on a few cases that show it. A noisy
    kernel has a run of its own, on the cases of its faults, in which noise is measured anew. So do faults of images, in
    a model that sees them, those of a step that trains every weight, those of routers, in a mixture of experts, and
    those of windows, in a model whose layers have one.

    Args:
        options: The options.

    Returns:
        The prepared runs.

    Raises:
        ValueError: An unknown fault, case or dtype, or a named fault that no case can show.
    """
    grounds = fault_grounds(options.seed, options.cases)
    asked, policy = _dtypes(options), load_policy(options.policy)
    runs: list[PlannedRun] = []
    left_out: list[str] = []
    for mutations, kernel, name in _wanted(options.faults):
        ground = grounds[name]
        dtypes = tuple(dtype for dtype in asked if dtype not in ground.dtypes_left_out)
        if not dtypes:
            left_out += [f"{mutation.name} in {', '.join(asked)}" for mutation in mutations]
            continue
        chosen, without_case = _on_biting_cases(mutations, ground, options.cases_per_fault, named=bool(options.faults))
        if without_case and (options.faults or not options.cases):
            where = without_case[0].bites_where.words
            raise ValueError(f"fault {without_case[0].name}: no case can show it; it bites where {where}")
        left_out += [f"{mutation.name} in {kernel.name}" if kernel else mutation.name for mutation in without_case]
        if chosen:
            runs.append(_planned(chosen, ground, kernel, dtypes=dtypes, policy=policy, seed=options.seed))
    if not runs:
        raise ValueError("no fault of the catalogue bites on the cases that were named: nothing would be proven")
    num_processes = choose_num_processes(
        options.jobs,
        num_pieces=len(pieces_of_runs(runs)),
        num_threads=1,
        obstacle=why_one_process(
            [subject for run in runs for subject in run.request.subjects],
            device=runs[0].request.model.device,
            large=False,
            fresh=options.fresh,
        ),
    )
    return PreparedFaults(runs=tuple(runs), notes=tuple(_notes(runs, left_out)), num_processes=num_processes)


_Chosen = list[tuple[Mutation, tuple[Case, ...]]]
"""Mutations with the cases that they are run on."""


def _planned(
    chosen: _Chosen, ground: Ground, kernel: NoisyKernel | None, *, dtypes: tuple[str, ...], policy: Policy, seed: int
) -> PlannedRun:
    """A run of the gate with a subject for each mutation; noise is measured on all cases of the ground, as a rule."""
    subjects = {
        mutation: FaultySubject(mutation=mutation, cases=frozenset(case.name for case in shown_by))
        for mutation, shown_by in chosen
    }
    used = {case.name for _, shown_by in chosen for case in shown_by}
    only_used = kernel is not None or ground.only_cases_of_faults
    request = GateRequest(
        model=ground.model,
        dtypes=dtypes,
        subjects=tuple(subjects.values()),
        cases=tuple(case for case in ground.cases if case.name in used or not only_used),
        objective=ground.objective,
        policy=policy,
        variations=default_variations(ground.model.device) if kernel is None else tuple(VARIATIONS),
        seed=seed,
        prepare_model=kernel.plant if kernel else None,
    )
    under = {
        subjects[mutation].name: _exact_under(shown_by[0]) for mutation, shown_by in chosen if ground.is_asked(mutation)
    }
    return PlannedRun(
        request=request,
        mutations={subject.name: mutation for mutation, subject in subjects.items()},
        exact_under={name: objective for name, objective in under.items() if objective is not None},
        kernel=kernel,
    )


def _notes(runs: Sequence[PlannedRun], left_out: Sequence[str]) -> Iterator[str]:
    if left_out:
        yield f"left out, since no named case or dtype can show them: {', '.join(left_out)}"
    if any(run.request.model.name == MODEL_WITH_IMAGES for run in runs):
        yield (
            f"faults of images are planted in {MODEL_WITH_IMAGES}, which is held against its own unpacked path in "
            "float64; the exact checks, whose cases are text alone, are not put to them"
        )
    if any(run.request.model.name == MODEL_WITH_ROUTERS for run in runs):
        yield (
            f"faults of routers are planted in {MODEL_WITH_ROUTERS}, whose loss has {COEFFICIENT_OF_ROUTERS:g} times "
            "that of the routers in it; the exact checks, which leave it out, are not put to them"
        )
    if any(run.request.model.name == MODEL_WITH_WINDOWS for run in runs):
        yield f"faults of sliding windows are planted in {MODEL_WITH_WINDOWS}, whose layers have one of 8 tokens"
    if any(run.request.model.train == "all" for run in runs):
        yield "faults of full training are planted in a step that trains every weight, on cases of their own"


_Wanted = tuple[tuple[Mutation, ...], NoisyKernel | None, GroundName]
"""What to plant together: in which kernel, and on which ground."""


def _exact_under(case: Case) -> ComparingName | None:
    """The objective under which a mutation that a case shows is put to the exact checks."""
    if case.has_images or case.reference is not None:
        return None
    return case.objective_name if case.objective_name in COMPARING_NAMES else OBJECTIVE.name


def _wanted(names: Sequence[str]) -> Iterator[_Wanted]:
    """What to plant under ordinary kernels, then in each noisy one; a noisy kernel can be named like a fault."""
    kernels = {kernel.name: kernel for kernel in NOISY_KERNELS}
    faults = [name for name in names if name not in kernels]
    selected = select_mutations(faults) if faults or not names else ()
    if of_text := tuple(mutation for mutation in selected if ground_of(mutation) == "text"):
        yield of_text, None, "text"
    for name, kernel in kernels.items():
        if name in names or not names:
            yield select_mutations(kernel.planted), kernel, "text"
    for ground in GROUND_NAMES[1:]:
        if planted_there := tuple(mutation for mutation in selected if ground_of(mutation) == ground):
            yield planted_there, None, ground


def _on_biting_cases(
    mutations: Sequence[Mutation], ground: Ground, at_most: int, *, named: bool
) -> tuple[_Chosen, list[Mutation]]:
    """Mutations with the cases that they are run on, and those that no case can show."""
    chosen, without_case = [], []
    for selected in mutations:
        mutation = asked_where_it_bites(selected, ground.cases)
        showing = [case for case in ground.cases if ground.shows(mutation, case)]
        if shown_by := _shown_by(mutation, showing, at_most, named=named):
            chosen.append((mutation, shown_by))
        else:
            without_case.append(mutation)
    return chosen, without_case


def _shown_by(mutation: Mutation, cases: Sequence[Case], at_most: int, *, named: bool) -> tuple[Case, ...]:
    """The cases that a mutation is run on.

    Cases of other preference objectives than sigmoid, or over other frozen policies, are for mutations about those, and
    for those that were named together with such cases. Others may be harmless there: a hinge of the mean margin is the
    mean of the hinges.
    """
    usual = tuple(case for case in cases if case.objective_name in ("sigmoid", *SFT_NAMES) and case.reference is None)
    others = (case for case in cases if case not in usual)
    about = tuple(case for case in others if named or not mutation.bites(over(under(case, "sigmoid"), None)))
    return biting_cases(mutation, usual, at_most) or biting_cases(mutation, about, at_most)


def _dtypes(options: FaultOptions) -> tuple[str, ...]:
    for dtype in options.dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}: give {', '.join(DTYPES)}")
    return options.dtypes or ("float64", "float32")
