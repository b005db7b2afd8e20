"""What of the policy is trained, and the frozen policies that go with it."""

from __future__ import annotations

from typing import Literal, get_args

from verify.frozen_policy import REFERENCE_NAMES, ReferenceName

TrainName = Literal["lora", "all"]
"""LoRA adapters on a frozen model, or every weight of a model without adapters."""
TRAIN_NAMES: tuple[TrainName, ...] = get_args(TrainName)

_OWN_WEIGHTS: tuple[ReferenceName, ...] = ("adapters-off", "frozen-adapter")
"""Frozen policies that compute with the policy's own weights."""


def default_reference(train: TrainName) -> ReferenceName:
    """The frozen policy of a run that names none."""
    return "adapters-off" if train == "lora" else "separate-model"


def references_under(train: TrainName) -> tuple[ReferenceName, ...]:
    """The frozen policies whose weights are not trained."""
    return tuple(name for name in REFERENCE_NAMES if train == "lora" or name not in _OWN_WEIGHTS)


def check_reference(train: TrainName, reference: ReferenceName) -> None:
    """Refuse a frozen policy whose weights are trained.

    Args:
        train: What is trained.
        reference: The frozen policy.

    Raises:
        ValueError: It computes with the policy's own weights, and every one of them is trained.
    """
    if reference not in references_under(train):
        raise ValueError(
            f"--reference {reference} with --train {train}: it computes with the policy's own weights, which are all "
            "trained and have no adapters; give separate-model (the default there) or cached"
        )
