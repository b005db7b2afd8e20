"""Which faults a run plants, on which case, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.cases import Case
from verify.faults.catalogue import biting_cases
from verify.gate import GateRequest
from verify.precision import rounds_in
from verify.proof_of_life.kinds import kinds_of
from verify.proof_of_life.probes import (
    PROBES,
    PROBES_OF_EVERY_WEIGHT,
    PROBES_OF_IMAGES,
    PROBES_OF_REFERENCES,
    PROBES_OF_REWARDS,
    PROBES_OF_ROUTERS,
    PROBES_OF_WINDOWS,
    Probe,
)
from verify.subject import Subject, layout_of, support_for
from verify.subjects import is_built_in
from verify.subjects.faulty import FaultySubject
from verify.subjects.within_window import shows_within

SHARE_OF_RUN = 0.2
"""How much planted faults may add to the passes of a run on a model that is not tiny."""
MAX_LOGITS_BYTES = 2 * 2**30
"""Planted faults hold the logits of all slots at one time; a case that needs more is not planted in."""

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
_ORACLE_COSTS = 2
"""A pass of the oracle in passes of the witness: it computes in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planting:
    """One fault on one case of the run.

    Args:
        probe: The fault.
        case: Name of the case, the smallest that shows it.
        subject: What the gate runs.
    """

    probe: Probe
    case: str
    subject: FaultySubject


@dataclass(frozen=True, slots=True, kw_only=True)
class Plantings:
    """What a run plants.

    Args:
        chosen: The plantings; may be empty.
        left_out: Why probes that some case would show were left out, by their names.
        cost: Slots in passes that they add, as a share of those of the run without them.
    """

    chosen: tuple[Planting, ...]
    left_out: dict[str, str]
    cost: float

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What the gate runs beside the subjects under judgement."""
        return tuple(planting.subject for planting in self.chosen)


def choose_plantings(
    request: GateRequest,
    *,
    vocab_size: int,
    num_layers: int,
    is_tiny: bool,
    window: int | None = None,
    module_names: Sequence[str] | None = None,
    is_tied: bool = False,
) -> Plantings:
    """Choose what to plant: on a tiny model all that some case shows, elsewhere as many as cost a fifth of the run.

    Only on cases of a kind that some subject takes: what is caught elsewhere says nothing about it.

    Args:
        request: The run without planted faults.
        vocab_size: Width of the logits.
        num_layers: Decoder layers of the model, after a cut.
        is_tiny: Passes cost next to nothing.
        window: Sliding window of the model's layers; None for none.
        module_names: Names of the model's modules; None where every fault finds the modules that it sits in.
        is_tied: The head has the weight of the embedding.

    Returns:
        Plantings in the order of the probes; each on the smallest case that shows its fault, with gradients only where
        nothing else would show it.
    """
    affordable, spent = SHARE_OF_RUN * slots_in_passes(request), 0.0
    kinds = kinds_of(request.subjects)
    of_run = tuple(case for case in request.cases if case.kind in kinds)
    chosen: list[Planting] = []
    left_out: dict[str, str] = {}
    for probe in _probes(request, has_windows=window is not None):
        if num_layers < probe.min_layers or (probe.untied and is_tied):
            continue
        cases = _showing(probe, of_run, 1 if window is None else len(of_run))
        if not cases:
            continue
        case = next((c for c in cases if window is None or shows_within(window, probe.mutation, c)), None)
        reason = _unfit(probe, request, module_names)
        if not reason and case is None:
            reason = _hidden_by(window, probe)
        if reason or case is None:
            left_out[probe.fault] = reason
            continue
        slots, cost = _cost(probe, case, len(request.dtypes))
        num_bytes = slots * vocab_size * max(_BYTES[rounds_in(dtype)] for dtype in request.dtypes)
        if num_bytes > MAX_LOGITS_BYTES:
            left_out[probe.fault] = f"the logits of case {case.name} take {num_bytes / 2**30:.1f} GiB"
        elif not is_tiny and spent + cost > affordable:
            left_out[probe.fault] = "planted faults may add a fifth to the passes of a run"
        else:
            spent += cost
            chosen.append(_planted(probe, case))
    return Plantings(chosen=tuple(chosen), left_out=left_out, cost=spent / slots_in_passes(request))


def _probes(request: GateRequest, *, has_windows: bool) -> tuple[Probe, ...]:
    """Faults of what the run trains and adds to its loss, and of what its model has."""
    of_routers = PROBES_OF_ROUTERS if request.objective.router_aux_loss_coef else ()
    of_windows = PROBES_OF_WINDOWS if has_windows else ()
    every = (
        *PROBES_OF_EVERY_WEIGHT,
        *PROBES,
        *of_windows,
        *of_routers,
        *PROBES_OF_REWARDS,
        *PROBES_OF_REFERENCES,
        *PROBES_OF_IMAGES,
    )
    return tuple(probe for probe in every if request.model.train in probe.mutation.trains)


def _showing(probe: Probe, cases: tuple[Case, ...], at_most: int) -> Sequence[Case]:
    """Cases that show a fault. What any frozen policy shows is planted over that of the run, not over a case's own."""
    usual = tuple(case for case in cases if case.reference is None)
    return biting_cases(probe.mutation, usual, at_most) or biting_cases(probe.mutation, cases, at_most)


def _hidden_by(window: int | None, probe: Probe) -> str:
    """Why no case shows a fault of what attends to what in a model with a sliding window."""
    if probe.mutation.of_windows:
        return f"no case is long enough for a window of {window} tokens"
    return f"a window of {window} tokens hides them in every case"


def _unfit(probe: Probe, request: GateRequest, module_names: Sequence[str] | None) -> str:
    """Why a fault cannot be planted in this model under this frozen policy; "" where it can."""
    if probe.fault == "routers-count-reference-pass" and request.model.reference == "cached":
        return "cached log-probs come from no pass of the run"
    if module_names is not None and not any(probe.needs in name for name in module_names):
        return f"the model has no module {probe.needs.strip('.')}"
    return ""


def _cost(probe: Probe, case: Case, num_dtypes: int) -> tuple[int, int]:
    """Slots of a pass of the planted step, and slots in all of its passes."""
    shares = probe.mutation.packing.segments != "block-diagonal"
    slots = _packed_slots(case) if shares else case.pairwise_slots
    return slots, (case.num_passes + (probe.seen_in == "gradients")) * slots * num_dtypes


def _planted(probe: Probe, case: Case) -> Planting:
    subject = FaultySubject(
        mutation=probe.mutation,
        cases=frozenset({case.name}),
        gradients=probe.seen_in == "gradients",
        role="planted",  # "fault:" is a subject that was asked for
    )
    return Planting(probe=probe, case=case.name, subject=subject)


def slots_in_passes(request: GateRequest) -> float:
    """Token slots times passes (policy, reference, backward) of a run: oracle, unpacked forms, and subjects.

    Args:
        request: The run.

    Returns:
        An estimate by counting, in slots that one pass of the witness feeds.
    """
    unpacked = sum(_passes(case) * case.pairwise_slots for case in request.cases)
    forms = (1 + len(request.variations)) * len(request.dtypes)
    of_subjects = sum(_judged_slots(subject, request.cases) for subject in request.subjects)
    return (_ORACLE_COSTS + forms) * unpacked + len(request.dtypes) * of_subjects


def _passes(case: Case) -> int:
    """Forward passes of a step, and the backward pass."""
    return case.num_passes + 1


def _judged_slots(subject: Subject, cases: Sequence[Case]) -> int:
    """Slots in passes of one subject, on the cases that it takes."""
    slots = _packed_slots if layout_of(subject) == "packed" else _unpacked_slots
    # What a third party's subject supports is asked by the gate, where it is answered for.
    taken = [case for case in cases if not is_built_in(subject) or support_for(subject, case).supported]
    return sum(_passes(case) * slots(case) for case in taken)


def _packed_slots(case: Case) -> int:
    return sum(len(group.prompt_ids) + sum(len(ids) for ids in group.completions) for group in case.groups)


def _unpacked_slots(case: Case) -> int:
    return case.pairwise_slots
