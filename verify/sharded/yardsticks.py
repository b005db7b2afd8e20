"""What sharded steps are held against, computed without sharding: oracle, unpacked path, and the subject itself.

The work is shared among the ranks, one form of one case at a time; each holds the whole model for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from verify.cases import Case
from verify.comparison import gradient_sizes
from verify.frozen_policy import ADAPTERS_OFF, CachedLogps, FrozenPolicy, ReferenceName
from verify.gate_work import noise_sample
from verify.model_holder import ModelHolder
from verify.models.dtypes import computing_in
from verify.noise import NoiseFloor, NoiseSample, measure_noise
from verify.objective import Objective, Preference, RunObjective, objective_named
from verify.observation import Observation, observe
from verify.sharded.alone import alone
from verify.sharded.dealing import shared_among_ranks
from verify.subject import Subject, support_for
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.tolerance import Policy
from verify.vacuity import implausible_witness, vacuous_adapters, vacuous_expectation

_ORACLE_COST = 3
"""Of the oracle in float64, a form of the unpacked path taking 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """One case in one dtype, as one process computes it.

    Args:
        case: The case.
        objective: Its objective; the frozen policy is that of each model on which it is computed.
        expected: The oracle's observation.
        witness: The unpacked path's.
        singles: Each subject's own, by its name, from one call with all groups.
        sizes: Sizes of the true gradients.
        noise: Comparisons among the forms of the unpacked path.
        vacuous: Why the case would prove nothing.
        implausible: Why its budgets are in doubt.
        looked_up: What stands beside the data for every token of every completion, where that is the frozen policy of
            the run; None where it is another.
    """

    case: Case
    objective: Objective
    expected: Observation
    witness: Observation
    singles: Mapping[str, Observation]
    sizes: Mapping[str, float]
    noise: NoiseSample
    vacuous: tuple[str, ...]
    implausible: tuple[str, ...]
    looked_up: Sequence[Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardsticks:
    """All cases of one dtype.

    Args:
        by_case: By the name of the case.
        noise: The noise floor over all of them.
    """

    by_case: Mapping[str, Yardstick]
    noise: NoiseFloor


def measure_yardsticks(
    holder: ModelHolder,
    cases: Sequence[Case],
    subjects: Sequence[Subject],
    *,
    dtype: str,
    objective: RunObjective,
    policy: Policy,
    variations: Sequence[str],
    seed: int,
    begin: Callable[[str], None],
) -> Yardsticks:
    """Observe every case in one process. A collective: each rank does some of the work.

    Args:
        holder: The whole model in this dtype.
        cases: The cases.
        subjects: The subjects that are run sharded.
        dtype: Name of the dtype, as the gate knows it.
        objective: The objective of cases of pairs and groups.
        policy: Bounds of what is plausible.
        variations: Names of the variations of the unpacked path.
        seed: Of torch's generator during passes.
        begin: Called before each form of each case.

    Returns:
        The yardsticks, on every rank.
    """
    of_cases = [objective_named(case.objective_name, holder.with_reference(objective)) for case in cases]
    unpacked = (WITNESS, *(VARIATIONS[name] for name in variations))
    device = "cpu" if holder.model.device.type == "cpu" else str(holder.model.device)

    def observed(piece: Piece) -> Observation:
        case, of_case = cases[piece.case], of_cases[piece.case]
        begin(f"{dtype} {case.name}: {'oracle' if piece.form is None else piece.form.name} in one process")
        if piece.form is None:
            return holder.expectation.of(case.groups, of_case)
        with computing_in(dtype, device), alone():
            return observe(
                piece.form,
                holder.model,
                case.groups,
                of_case,
                apply_objective=apply_objective,
                seed=seed,
                baseline=holder.baseline,
            )

    pieces = pieces_of(cases, unpacked, subjects, reference=holder.reference.name)
    of_pieces = shared_among_ranks(pieces, observed, lambda piece: cost_of(piece, cases))
    seen = [_Seen.of(number, pieces, of_pieces) for number in range(len(cases))]
    noises = shared_among_ranks(
        range(len(cases)), lambda number: noise_sample(cases[number], seen[number].forms, seen[number].expected)
    )
    looked_up = _looked_up(holder, cases)
    found = {
        case.name: Yardstick(
            case=case,
            objective=over(of_case, ADAPTERS_OFF),
            expected=of_forms.expected,
            witness=of_forms.forms[WITNESS.name],
            singles=of_forms.singles,
            sizes=gradient_sizes(of_forms.expected.gradients or {}),
            noise=noise,
            vacuous=(
                *vacuous_adapters(holder.model),
                *vacuous_expectation(of_forms.expected, case.groups, objective_name=case.objective_name),
            ),
            implausible=implausible_witness(noise.to_oracle, policy.plausible.for_dtype(dtype)),
            looked_up=of_cache,
        )
        for case, of_case, of_forms, noise, of_cache in zip(cases, of_cases, seen, noises, looked_up, strict=True)
    }
    proves_nothing = {name for name, yardstick in found.items() if yardstick.vacuous or yardstick.implausible}
    noise = measure_noise([yardstick.noise for yardstick in found.values()], not_pooled=proves_nothing)
    return Yardsticks(by_case=found, noise=noise)


def _looked_up(holder: ModelHolder, cases: Sequence[Case]) -> Sequence[Sequence[Tensor] | None]:
    """Cached values of each case, computed by one rank for all, so that all read the same bits."""
    cached = holder.reference
    if not isinstance(cached, CachedLogps):
        return [None] * len(cases)
    return shared_among_ranks(cases, lambda case: cached.look_up(case.groups))


def over(objective: Objective, frozen: FrozenPolicy) -> Objective:
    """The objective over another frozen policy, where it has one."""
    return replace(objective, reference=frozen) if isinstance(objective, Preference) else objective


Kind = Literal["oracle", "unpacked", "single"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank computes at one time.

    Args:
        case: Place of its case.
        kind: What for.
        form: What is run; None for the oracle.
    """

    case: int
    kind: Kind
    form: Subject | None


def pieces_of(
    cases: Sequence[Case], unpacked: Sequence[Subject], subjects: Sequence[Subject], *, reference: ReferenceName
) -> list[Piece]:
    """All that is computed in one process: of every case the oracle, the unpacked path's forms, and the subjects."""
    return [
        Piece(number, kind, form)
        for number, case in enumerate(cases)
        for kind, forms in _forms(case, unpacked, subjects, reference).items()
        for form in forms
    ]


def _forms(
    case: Case, unpacked: Sequence[Subject], subjects: Sequence[Subject], reference: ReferenceName
) -> Mapping[Kind, Sequence[Subject | None]]:
    supported = [subject for subject in subjects if support_for(subject, case, reference).supported]
    return {"oracle": [None], "unpacked": unpacked, "single": supported}


def cost_of(piece: Piece, cases: Sequence[Case]) -> float:
    """About how long a piece takes, by the token: float64 is slow."""
    slots = cases[piece.case].pairwise_slots
    return float(_ORACLE_COST * slots if piece.form is None else slots)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was computed of one case."""

    expected: Observation
    forms: Mapping[str, Observation]
    singles: Mapping[str, Observation]

    @staticmethod
    def of(case: int, pieces: Sequence[Piece], observations: Sequence[Observation]) -> _Seen:
        own = [(piece, seen) for piece, seen in zip(pieces, observations, strict=True) if piece.case == case]
        (expected,) = (seen for piece, seen in own if piece.form is None)
        forms, singles = (
            {piece.form.name: seen for piece, seen in own if piece.kind == kind and piece.form is not None}
            for kind in ("unpacked", "single")
        )
        return _Seen(expected, forms, singles)
