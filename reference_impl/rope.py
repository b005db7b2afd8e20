"""Rotary position embedding (Su et al. 2021), and the frequencies that Llama 3 slows down for longer contexts.

Legend: T tokens, H head width, X any leading dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 and 3.2 stretch the context that they were first trained on.

    A plane of wavelength ``2 pi / w`` turns ``L w / (2 pi)`` times over the original length L. Planes that turn more
    than ``high_freq_factor`` times stay; those that turn less than ``low_freq_factor`` times are slowed by ``factor``;
    in between the two are mixed.

    Args:
        factor: What the frequency of a slow plane is divided by.
        low_freq_factor: Turns up to which a plane is slow.
        high_freq_factor: Turns from which a plane stays as it is.
        original_length: L, in tokens.

    Raises:
        ValueError: A value that is not positive, or a low factor that is not below the high one.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_length"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} of the llama3 rope scaling is {getattr(self, name)!r}: it must be positive")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor {self.low_freq_factor} of the llama3 rope scaling is not below high_freq_factor "
                f"{self.high_freq_factor}: frequencies between the two are mixed"
            )


def rotary_frequencies(head_dim: int, theta: float, scaling: Llama3Scaling | None = None) -> Tensor:
    """``w_i = theta^(-2i/H)`` for i in 0 .. H/2-1 (Su et al. 2021, section 3.2.2), slowed where a scaling says so.

    With ``s = (L w / (2 pi) - low) / (high - low)``, cut to 0 .. 1, a scaled frequency is ``w (s + (1 - s) / factor)``
    (Llama 3.1, ``apply_scaling`` of the published model code, in other words).

    Args:
        head_dim: H.
        theta: The base.
        scaling: Llama 3's, or None.

    Returns:
        Radians per token, float64, [H/2].
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = theta**-exponents
    if scaling is None:
        return frequencies
    turns = scaling.original_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept_share + (1 - kept_share) / scaling.factor)


def rotary_angles(positions_T: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position * w_i``.

    Args:
        positions_T: Position of each token, [T].
        frequencies: Of :func:`rotary_frequencies`, [H/2].

    Returns:
        Two float64 tensors, [T, H/2].
    """
    angles = positions_T.to(torch.float64)[:, None] * frequencies.to(positions_T.device)
    return angles.cos(), angles.sin()


def rotate(x_XTH: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the plane of coordinates (i, i + H/2) by its angle; Hugging Face checkpoints pair them so."""
    cos, sin = rotation
    first, second = x_XTH.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
