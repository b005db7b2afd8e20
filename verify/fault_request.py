"""From options of ``packparity faults`` to runs of the gate; what can be wrong with them is found before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from verify.cases import Case, over, under
from verify.default_cases.images import image_cases
from verify.default_cases.objectives import objective_cases
from verify.default_cases.references import reference_cases
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import biting_cases
from verify.faults.fault import Fault, Mutation
from verify.faults.kernels import NOISY_KERNELS, NoisyKernel
from verify.faults.selection import asked_where_it_bites, select_mutations
from verify.gate import GateRequest
from verify.gate_pieces import Piece, pieces_of
from verify.jobs import choose_num_processes, why_one_process
from verify.models.dtypes import DTYPES
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, requested_config, vocabulary_size
from verify.models.sliding_window import sliding_window
from verify.models.vision import TINY_WITH_IMAGES, image_format
from verify.objective import COMPARING_NAMES, SFT_NAMES, ComparingName, Preference
from verify.subjects.faulty import FaultySubject
from verify.subjects.pairwise import VARIATIONS, default_variations
from verify.subjects.within_window import shows_within
from verify.tolerance import load_policy

OBJECTIVE = Preference(beta=0.1, label_smoothing=0.1)
"""No option at the value that hides its absence: beta is not 1, label smoothing not 0."""
MODEL, MODEL_WITH_IMAGES, MODEL_WITH_ROUTERS, MODEL_WITH_WINDOWS = (
    "tiny",
    TINY_WITH_IMAGES,
    "tiny-qwen3-moe",
    "tiny-mistral",
)
"""What faults are planted in: those of images in a model that sees them, those of routers in a mixture of experts, and
those of windows in a model whose layers have one."""
COEFFICIENT_OF_ROUTERS = 0.01
"""Small, as in training: the loss of routers is then a hundredth of the loss."""
_CASES_OF_ROUTERS = 4


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
        """What is put to the exact checks: nothing in a noisy kernel, where bits differ from call to call.

        Nor faults of images, routers and other frozen policies: the cases of the checks have none of these. Of those of
        a step that trains every weight only what a check is named for.
        """
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
    grounds = _grounds(options)
    asked, policy = _dtypes(options), load_policy(options.policy)
    runs: list[PlannedRun] = []
    left_out: list[str] = []
    for mutations, kernel, ground in _wanted(options.faults):
        model, cases, of_run = grounds[ground]
        # Rounding turns expert choices in bfloat16, and then nothing is proven of those faults.
        dtypes = tuple(dtype for dtype in asked if ground != "routers" or dtype != "bfloat16")
        if not dtypes:
            left_out += [f"{mutation.name} in bfloat16" for mutation in mutations]
            continue
        window = sliding_window(requested_config(model)) if ground == "windows" else None
        chosen, without_case = _on_biting_cases(
            mutations, cases, options.cases_per_fault, named=bool(options.faults), window=window
        )
        if without_case and (options.faults or not options.cases):
            where = without_case[0].bites_where.words
            raise ValueError(f"fault {without_case[0].name}: no case can show it; it bites where {where}")
        left_out += [f"{mutation.name} in {kernel.name}" if kernel else mutation.name for mutation in without_case]
        if not chosen:
            continue
        subjects = tuple(FaultySubject(mutation=m, cases=frozenset(c.name for c in shown_by)) for m, shown_by in chosen)
        used = {case.name for _, shown_by in chosen for case in shown_by}
        request = GateRequest(
            model=model,
            dtypes=dtypes,
            subjects=subjects,
            cases=tuple(
                case for case in cases if case.name in used or not (kernel or ground in ("every weight", "windows"))
            ),
            objective=of_run,
            policy=policy,
            variations=default_variations(model.device) if kernel is None else tuple(VARIATIONS),
            seed=options.seed,
            prepare_model=kernel.plant if kernel else None,
        )
        runs.append(
            PlannedRun(
                request=request,
                mutations={s.name: mutation for s, (mutation, _) in zip(subjects, chosen, strict=True)},
                exact_under={
                    s.name: objective
                    for s, (mutation, shown_by) in zip(subjects, chosen, strict=True)
                    if ground != "routers"
                    and (ground != "every weight" or _is_for_exact_checks(mutation))
                    and (objective := _exact_under(shown_by[0])) is not None
                },
                kernel=kernel,
            )
        )
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


_GroundName = Literal["text", "images", "every weight", "routers", "windows"]
_Wanted = tuple[tuple[Mutation, ...], NoisyKernel | None, _GroundName]
"""What to plant together: in which kernel, and in which model."""


def _exact_under(case: Case) -> ComparingName | None:
    """The objective under which a mutation that a case shows is put to the exact checks."""
    if case.has_images or case.reference is not None:
        return None
    return case.objective_name if case.objective_name in COMPARING_NAMES else OBJECTIVE.name


def _is_for_exact_checks(mutation: Mutation) -> bool:
    return isinstance(mutation, Fault) and not {"parity", "packed-ran"} & set(mutation.must_kill)


def _wanted(names: Sequence[str]) -> Iterator[_Wanted]:
    """What to plant under ordinary kernels, then in each noisy one; a noisy kernel can be named like a fault."""
    kernels = {kernel.name: kernel for kernel in NOISY_KERNELS}
    faults = [name for name in names if name not in kernels]
    selected = select_mutations(faults) if faults or not names else ()
    if of_text := tuple(mutation for mutation in selected if _ground_of(mutation) == "text"):
        yield of_text, None, "text"
    for name, kernel in kernels.items():
        if name in names or not names:
            yield select_mutations(kernel.planted), kernel, "text"
    others: tuple[_GroundName, ...] = ("images", "every weight", "routers", "windows")
    for ground in others:
        if planted_there := tuple(mutation for mutation in selected if _ground_of(mutation) == ground):
            yield planted_there, None, ground


def _ground_of(mutation: Mutation) -> _GroundName:
    if mutation.of_routers:
        return "routers"
    if mutation.of_windows:
        return "windows"
    if "lora" not in mutation.trains:
        return "every weight"
    return "images" if mutation.with_images else "text"


def _on_biting_cases(
    mutations: Sequence[Mutation], cases: tuple[Case, ...], at_most: int, *, named: bool, window: int | None
) -> tuple[list[tuple[Mutation, tuple[Case, ...]]], list[Mutation]]:
    """Mutations with the cases that they are run on, and those that no case can show."""
    chosen, without_case = [], []
    for selected in mutations:
        mutation = asked_where_it_bites(selected, cases)
        showing = [case for case in cases if window is None or _shows_within(window, mutation, case)]
        if shown_by := _shown_by(mutation, showing, at_most, named=named):
            chosen.append((mutation, shown_by))
        else:
            without_case.append(mutation)
    return chosen, without_case


def _shows_within(window: int, mutation: Mutation, case: Case) -> bool:
    # A harmless change shows nowhere.
    return mutation.bites(case) and (not isinstance(mutation, Fault) or shows_within(window, mutation, case))


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


_Ground = tuple[ModelRequest, tuple[Case, ...], Preference]
"""A model that faults are planted in, the cases that are run on it, and their objective."""


def _grounds(options: FaultOptions) -> dict[_GroundName, _Ground]:
    """What mutations are planted in; of the cases those that were named."""
    text, with_images, with_routers, with_windows = (
        ModelRequest(name=name, seed=options.seed, lora=LoraSpec(strength=0.3))
        for name in (MODEL, MODEL_WITH_IMAGES, MODEL_WITH_ROUTERS, MODEL_WITH_WINDOWS)
    )
    images = image_format(requested_config(with_images))
    assert images is not None
    sizes = vocabulary_size(text), vocabulary_size(with_images)
    cases = tuple(
        case for cases_of in (tiny_cases, objective_cases, reference_cases) for case in cases_of(sizes[0], options.seed)
    )
    of_images = image_cases(sizes[1], options.seed, images)
    names = [case.name for case in (*cases, *of_images)]
    for name in options.cases:
        if name not in names:
            raise ValueError(f"unknown case {name!r}: give some of {', '.join(names)}")

    def named(cases: tuple[Case, ...]) -> tuple[Case, ...]:
        return tuple(case for case in cases if not options.cases or case.name in options.cases)

    plain = [case for case in tiny_cases(sizes[0], options.seed) if case.kind == "pairs" and len(case.groups) > 1]
    of_routers = sorted(plain, key=lambda case: case.pairwise_slots)[:_CASES_OF_ROUTERS]
    every_weight = replace(text, train="all", reference="separate-model")
    over_one = tuple(case for case in cases if case.reference is None)
    return {
        "text": (text, named(cases), OBJECTIVE),
        "images": (with_images, named(of_images), OBJECTIVE),
        "windows": (with_windows, named(tiny_cases(sizes[0], options.seed)), OBJECTIVE),
        "every weight": (every_weight, named(over_one), OBJECTIVE),
        "routers": (
            with_routers,
            named(tuple(of_routers)),
            replace(OBJECTIVE, router_aux_loss_coef=COEFFICIENT_OF_ROUTERS),
        ),
    }
