"""The objective of a run, as a value that subjects receive."""

from __future__ import annotations

from dataclasses import dataclass

_SMALLEST_BETA, _LARGEST_BETA = 1e-4, 100.0
_LARGEST_SMOOTHING = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoSigmoid:
    """DPO with the sigmoid loss (Rafailov et al. 2023, eq. 7; label smoothing: Mitchell 2023).

    Args:
        beta: Strength of the pull towards the reference policy; above 0.
        label_smoothing: Probability that a preference label is flipped, in [0, 0.45].

    Raises:
        ValueError: A value outside its range.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0
    name: str = "sigmoid"

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
