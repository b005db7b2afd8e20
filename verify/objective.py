"""The objective of a run, as a value that subjects receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ObjectiveName = Literal["sigmoid", "sft-token-mean", "sft-example-mean"]
OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = ("sigmoid", "sft-token-mean", "sft-example-mean")

_SMALLEST_BETA, _LARGEST_BETA = 1e-4, 100.0
_LARGEST_SMOOTHING = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoSigmoid:
    """DPO with the sigmoid loss (Rafailov et al. 2023, eq. 7; label smoothing: Mitchell 2023).

    Of a group with m preferred and n rejected responses the loss is the mean over its m n pairs (derived: equation 7 at
    1+1), of a batch the mean over its groups.

    Args:
        beta: Strength of the pull towards the reference policy; above 0.
        label_smoothing: Probability that a preference label is flipped, in [0, 0.45].

    Raises:
        ValueError: A value outside its range.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0
    name: Literal["sigmoid"] = "sigmoid"

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise ValueError(f"beta is {self.beta}: it must be a positive number")
        if not _SMALLEST_BETA <= self.beta <= _LARGEST_BETA:
            raise ValueError(
                f"beta is {self.beta}: outside [{_SMALLEST_BETA}, {_LARGEST_BETA}] float32 cannot tell rewards or "
                "coefficients from zero"
            )
        if not 0 <= self.label_smoothing <= _LARGEST_SMOOTHING:
            raise ValueError(
                f"label_smoothing is {self.label_smoothing}: it must lie in [0, {_LARGEST_SMOOTHING}] (nearer to 0.5 "
                "both labels pull alike, and what is left of the coefficient of a gradient is rounding)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Supervised fine-tuning: the mean of -log p over supervised tokens. It has no frozen policy, rewards or margins.

    The two means weight examples differently. Two completions of one and of three supervised tokens with losses ``a``
    and ``b b b``: the token mean is (a + 3b) / 4, the example mean (a + b) / 2.

    Args:
        mean: "token": over all supervised tokens of the batch. "example": over the completions, of each one's own mean.
    """

    mean: Literal["token", "example"] = "token"

    @property
    def name(self) -> Literal["sft-token-mean", "sft-example-mean"]:
        """The name of the objective."""
        return "sft-token-mean" if self.mean == "token" else "sft-example-mean"


Objective = DpoSigmoid | Sft


def objective_named(name: ObjectiveName, dpo: DpoSigmoid) -> Objective:
    """The objective of a case.

    Args:
        name: Name of the objective.
        dpo: What preference objectives take their parameters from.

    Returns:
        The objective.

    Raises:
        ValueError: An unknown name.
    """
    if name == "sigmoid":
        return dpo
    if name in OBJECTIVE_NAMES:
        return Sft(mean="token" if name == "sft-token-mean" else "example")
    raise ValueError(f"unknown objective {name!r}: give one of {', '.join(OBJECTIVE_NAMES)}")
