"""The parity gate: every subject on every case in every dtype, held against oracle and witness.

Within a dtype all cases are observed first and judged afterwards, because the noise over all cases enters the budget of
each. Observations are dropped as soon as they are compared: what stays is differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch

from verify.cases import Case, CaseKind
from verify.checks.check import ExactCheck, Finding
from verify.decisions import Decisions
from verify.gate_pieces import pieces_of, traits_of
from verify.gate_work import CaseRun, GateWork, PieceDone, SubjectRun
from verify.judgement import Judge, Judgement, JudgingContext
from verify.model_holder import ModelHolder
from verify.models.request import ModelRequest, ModelUnderTest
from verify.noise import NoiseFloor, measure_noise
from verify.objective import RewardModel, RunObjective, objective_named
from verify.passes import PhaseSlots
from verify.router_flips import excuse_flips
from verify.router_ties import ties_note
from verify.subject import Subject
from verify.subjects.pairwise import VARIATIONS, default_variations
from verify.tolerance import Policy
from verify.verdict import Verdict, fold
from verify.workers import Begin, work_through

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all and what is being done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """What to judge, on what, and how.

    Args:
        model: The model request.
        dtypes: Names of dtypes; at least one.
        subjects: The implementations; at least one, names distinct.
        cases: The inputs; at least one, names distinct.
        objective: beta and label smoothing of the cases with a preference objective, or a reward model.
        policy: Factors and floors.
        variations: Names of the witness's harmless variations; at least one.
        seed: Seed of torch's generator during passes.
        prepare_model: Called with each model that is built, before anything runs on it. What it changes is there for
            unpacked and packed passes alike; the weights must stay.
        model_with_images: What cases with images are run on, where the model sees none; None if it does.

    Raises:
        ValueError: Something is empty or named twice.
    """

    model: ModelRequest
    dtypes: tuple[str, ...]
    subjects: tuple[Subject, ...]
    cases: tuple[Case, ...]
    objective: RunObjective
    policy: Policy
    variations: tuple[str, ...] = default_variations("cpu")
    seed: int = 0
    prepare_model: Callable[[Any], None] | None = None
    model_with_images: ModelRequest | None = None

    def __post_init__(self) -> None:
        for what, names in (
            ("dtypes", list(self.dtypes)),
            ("subjects", [subject.name for subject in self.subjects]),
            ("cases", [case.name for case in self.cases]),
            ("variations", list(self.variations)),
        ):
            if not names:
                raise ValueError(f"no {what}: nothing would be compared")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        unknown = sorted(set(self.variations) - VARIATIONS.keys())
        if unknown:
            raise ValueError(f"unknown variations {', '.join(unknown)}: give some of {', '.join(VARIATIONS)}")

    def model_of(self, case: Case) -> ModelRequest:
        """The model that a case is run on, with its frozen policy."""
        model = self.model_with_images if case.has_images and self.model_with_images is not None else self.model
        return model if case.reference in (None, model.reference) else replace(model, reference=case.reference)

    @property
    def num_steps(self) -> int:
        """Observations of the run: oracle, witness, variations and subjects, on each case in each dtype."""
        return len(self.dtypes) * len(self.cases) * (2 + len(self.variations) + len(self.subjects))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One subject on one case in one dtype."""

    case: str
    subject: str
    dtype: str
    verdict: Verdict
    reasons: tuple[str, ...]
    judgements: tuple[Judgement, ...] = ()
    phases: tuple[PhaseSlots, ...] = ()
    kind: CaseKind = "pairs"
    passes: int = 2
    """Forward passes of a step: one, and for a preference that of the frozen policy."""
    pairwise_slots: int = 0
    """Token slots that these passes feed with one unpadded row per completion."""
    pairwise_rows: int = 0
    pairwise_images: int = 0
    """Images that they run through a vision tower, each completion its own copy."""
    decisions: Decisions | None = None
    """Packed against unpacked, of a case with an objective that compares."""
    can_save: bool = False
    """As ``Case.can_save``."""

    @property
    def num_compared(self) -> int:
        """Values compared over all judgements."""
        return sum(judgement.num_compared for judgement in self.judgements)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOutcome:
    """Everything measured in one run of the gate.

    Args:
        results: In the order dtype, case, subject.
        model: The model in the last dtype, for its config and counts.
        model_passes_s: Wall time of forward and backward passes.
        notes: What a reader must know beside the verdict.
        findings: Of the exact checks, in the order dtype, subject, check.
        model_with_images: The model that cases with images were run on, where that is another.
    """

    results: tuple[Result, ...]
    model: ModelUnderTest
    model_passes_s: float
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    model_with_images: ModelUnderTest | None = None


def run_gate(
    request: GateRequest,
    progress: Progress,
    checks: Sequence[ExactCheck] = (),
    *,
    num_processes: int = 1,
    meanwhile: Callable[[], object] = lambda: None,
) -> GateOutcome:
    """Run the gate.

    Args:
        request: What to judge.
        progress: Called before each observation.
        checks: The exact checks that each subject is put to after the cases.
        num_processes: Processes that the pieces are shared among; where it may be more than one, see ``verify.jobs``.
        meanwhile: Done in this process while others work, as in :func:`verify.workers.work_through`.

    Returns:
        Results of every subject, case and dtype that were asked for, the same with any number of processes.

    Raises:
        ValueError: A token id outside the vocabulary, or a model that is not causal (UnfitModelError).
        WitnessError: The unpacked path cannot be run.
        WorkerError: One of several processes ended early.
    """
    work = GateWork(request, checks)
    begin = count_steps(progress, num_steps(request, checks))
    if num_processes > 1 and torch.get_num_threads() == 1:
        # Built once for all: with one thread and no backward pass torch starts nothing that a fork would leave behind.
        _holder_of_the_run(request, work, request.dtypes[0])
    done = work_through(
        pieces_of(request, checks), work, begin, num_processes=num_processes, traits=traits_of, meanwhile=meanwhile
    )
    return judge_pieces(request, done, work)


def num_steps(request: GateRequest, checks: Sequence[ExactCheck]) -> int:
    """Steps of a run of which progress tells."""
    return request.num_steps + (len(request.dtypes) * len(request.subjects) if checks else 0)


def count_steps(progress: Progress, total: int) -> Begin:
    """Tell progress how many steps were begun before."""
    done = count()
    return lambda text: progress(next(done), total, text)


def judge_pieces(request: GateRequest, done: Sequence[PieceDone], work: GateWork) -> GateOutcome:
    """Judge what all pieces of a run measured.

    Args:
        request: What to judge.
        done: What came of the pieces, in their order.
        work: Holds the model.

    Returns:
        The outcome.
    """
    results: list[Result] = []
    notes: dict[str, None] = {}
    for dtype in request.dtypes:
        runs = _unless_all_are_satisfied(
            [piece.case_run for piece in done if piece.dtype == dtype and piece.case_run is not None]
        )
        floors = _noise_floors(runs, request)
        if note := ties_note(dtype, [run.ties for run in runs if run.ties is not None]):
            notes[note] = None
        for run in runs:
            results += _judge_case(run, dtype, request, floors[request.model_of(run.case).name])
            for subject in run.subjects:
                if subject.settings_put_back:
                    left = ", ".join(subject.settings_put_back)
                    notes[f"subject {subject.subject} left the model changed, which was put back: {left}"] = None
    return GateOutcome(
        results=tuple(results),
        model=_holder_of_the_run(request, work, request.dtypes[-1]).under_test,
        model_with_images=_model_with_images(request, work),
        model_passes_s=sum(piece.passes_s for piece in done),
        notes=tuple(notes),
        findings=tuple(finding for piece in done for finding in piece.findings),
    )


def _holder_of_the_run(request: GateRequest, work: GateWork, dtype: str) -> ModelHolder:
    return work.holder_of(dtype, is_reward_model=isinstance(request.objective, RewardModel))


def _model_with_images(request: GateRequest, work: GateWork) -> ModelUnderTest | None:
    if request.model_with_images is None or not any(case.has_images for case in request.cases):
        return None
    return work.holder_of(request.dtypes[-1], request.model_with_images).under_test


def _unless_all_are_satisfied(runs: list[CaseRun]) -> list[CaseRun]:
    """The runs; those under the hinge prove nothing where none of them has a gradient that is not 0."""
    under_hinge = [run for run in runs if run.case.objective_name == "hinge"]
    if not all(run.is_satisfied for run in under_hinge):
        return runs
    reason = "no pair of any case is within the hinge: every gradient is zero"
    return [replace(run, vacuous=(*run.vacuous, reason)) if run.is_satisfied else run for run in runs]


def _noise_floors(runs: Sequence[CaseRun], request: GateRequest) -> dict[str, NoiseFloor]:
    """The noise over all cases of one dtype, by the name of the model that they were run on."""
    of_model: dict[str, list[CaseRun]] = {}
    for run in runs:
        of_model.setdefault(request.model_of(run.case).name, []).append(run)
    return {
        name: measure_noise(
            [run.noise for run in own],
            # Where an expert choice flips values jump: that is no noise of other cases.
            not_pooled={
                run.case.name for run in own if run.vacuous or run.is_satisfied or run.implausible or run.num_flipped
            },
        )
        for name, own in of_model.items()
    }


def _judge_case(run: CaseRun, dtype: str, request: GateRequest, noise: NoiseFloor) -> Iterator[Result]:
    context = JudgingContext(
        case=run.case.name,
        groups=run.case.groups,
        dtype_name=dtype,
        objective=objective_named(run.case.objective_name, request.objective),
        policy=request.policy,
        noise=noise,
        ties=run.ties,
    )
    to_oracle, to_witness = Judge("oracle", run.expected, context), Judge("differential", run.witness, context)
    for subject in run.subjects:
        judgements: tuple[Judgement, ...] = ()
        if subject.to_oracle:
            absent = subject.gradients_absent_because
            of_oracle = to_oracle(subject.to_oracle, gradients_absent_because=absent)
            of_witness = to_witness(subject.to_witness, gradients_absent_because=absent)
            judgements = (
                *excuse_flips(of_oracle, run.ties, subject.untouched_max[0]),
                *excuse_flips(of_witness, run.ties, subject.untouched_max[1]),
            )
        yield _result(run, subject, dtype, judgements)


def _result(run: CaseRun, subject: SubjectRun, dtype: str, judgements: tuple[Judgement, ...]) -> Result:
    if subject.verdict is not None:
        verdict, reasons = subject.verdict, [subject.reason]
    else:
        verdict = fold(judgement.verdict for judgement in judgements)
        reasons = list(dict.fromkeys(judgement.reason for judgement in judgements if judgement.reason))
    finite = not any(c.non_finite for c in subject.to_oracle)
    if run.implausible and subject.to_oracle and finite:
        # The budgets themselves are in doubt: neither PASS nor FAIL can rest on them.
        verdict, reasons = Verdict.INCONCLUSIVE, [*run.adapters, *run.vacuous, *run.implausible, *reasons]
    elif (run.vacuous or run.adapters) and verdict in (Verdict.PASS, Verdict.INCONCLUSIVE):
        verdict, reasons = Verdict.INCONCLUSIVE, [*run.adapters, *run.vacuous, *reasons]
    return Result(
        case=run.case.name,
        subject=subject.subject,
        dtype=dtype,
        verdict=verdict,
        reasons=tuple(reasons),
        judgements=judgements,
        phases=subject.phases,
        kind=run.case.kind,
        decisions=subject.decisions,
        passes=run.num_passes,
        pairwise_slots=run.num_passes * run.case.pairwise_slots,
        pairwise_rows=run.num_passes * run.case.num_completions,
        pairwise_images=run.num_passes * run.case.pairwise_images,
        can_save=run.case.can_save,
    )
