"""What the unpacked path computes in training: along optimizer steps, and with dropout."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verify.checks.cases import CheckCases
from verify.checks.check import ExactCheck, ExactCheckName
from verify.checks.gradient_yardsticks import PADDED_AND_EAGER, GradientYardstick, measure_gradients
from verify.checks.same_dropout import same_dropout
from verify.checks.trajectory import Trajectory, measure_trajectory
from verify.model_state import Baseline
from verify.models.adapters import has_adapters
from verify.objective import Preference, objective_named
from verify.tolerance import Policy

_ALONG_STEPS: tuple[ExactCheckName, ...] = ("optimizer-steps", "gradient-checkpointing")
_UNDER_DROPOUT: tuple[ExactCheckName, ...] = ("dropout",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingYardsticks:
    """What was measured, by the name of the case; nothing where no check of the run asks for it.

    Args:
        trajectories: Optimizer steps.
        under_dropout: Loss and gradients with dropout.
    """

    trajectories: Mapping[str, Trajectory]
    under_dropout: Mapping[str, GradientYardstick]


def measure_training(
    model: Any,
    cases: CheckCases,
    checks: Sequence[ExactCheck],
    *,
    dtype: str,
    objective: Preference,
    policy: Policy,
    seed: int,
) -> TrainingYardsticks:
    """Run the unpacked path on the cases that some checks ask for.

    Args:
        model: The model of the run; it is as before afterwards.
        cases: The cases of the checks.
        checks: The checks that will be run.
        dtype: Name of the dtype.
        objective: beta and label smoothing.
        policy: Factors and floors.
        seed: Seed of the passes and of dropout.

    Returns:
        What those checks need.
    """
    trajectories, under_dropout = dict[str, Trajectory](), dict[str, GradientYardstick]()
    for name, case in cases.by_name.items():
        of_case = objective_named(case.objective_name, objective)
        if _asked(checks, _ALONG_STEPS, name):
            trajectories[name] = measure_trajectory(
                model,
                case,
                cases.other_token[name],
                "SGD" if case.kind == "groups" else "AdamW",
                dtype=dtype,
                objective=of_case,
                policy=policy,
                seed=seed,
            )
        if _asked(checks, _UNDER_DROPOUT, name) and has_adapters(model):
            with same_dropout(model, seed=seed):
                under_dropout[name] = measure_gradients(
                    model,
                    Baseline.read(model),
                    case,
                    dtype=dtype,
                    objective=of_case,
                    policy=policy,
                    seed=seed,
                    forms=PADDED_AND_EAGER,
                )
    return TrainingYardsticks(trajectories=trajectories, under_dropout=under_dropout)


def _asked(checks: Sequence[ExactCheck], names: Collection[ExactCheckName], case: str) -> bool:
    return any(case in check.cases for check in checks if check.name in names)
