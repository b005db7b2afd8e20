"""Names of what a run computes in: one dtype throughout, or float32 weights under autocast.

Under autocast torch multiplies matrices in bfloat16 and leaves sums, norms and softmax in float32. What rounds most
decides, so that budgets and what rounding may hide are those of bfloat16.
"""

from __future__ import annotations

DTYPE_NAMES = ("float64", "float32", "bfloat16")
"""Dtypes that weights and passes have alike, most exact first."""
AUTOCAST = "autocast-bfloat16"
PRECISIONS = (*DTYPE_NAMES, AUTOCAST)


def rounds_in(precision: str) -> str:
    """Name of the dtype whose rounding is the largest."""
    return "bfloat16" if precision == AUTOCAST else precision
