"""What every attention function of this package checks before it computes.

Shape letters: B rows, T slots, N query heads, K key heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# Arguments that models pass to an attention function and that would change its result. None and 0.0 mean "off".
_VARIANTS = ("dropout", "softcap", "s_aux", "position_bias")


def check_kernel_call(
    name: str, query: Tensor, key: Tensor, value: Tensor, kwargs: Mapping[str, object], *, window: int | None
) -> None:
    """Refuse a call that the function would not compute as asked.

    Args:
        name: The backend, for the message.
        query: [B, N, T, H].
        key: [B, K, T, H].
        value: [B, K, T, H].
        kwargs: What transformers passed beside them.
        window: The sliding window of the rule that the call was given for its rows, None for none.

    Raises:
        ValueError: Mixed dtypes (autocast leaves q and k in float32 and v in half precision), a variant, or a layer
            whose window is another one than that of the rule.
    """
    dtypes = {query.dtype, key.dtype, value.dtype}
    if len(dtypes) > 1:
        found = ", ".join(f"{part} {x.dtype}" for part, x in (("query", query), ("key", key), ("value", value)))
        raise ValueError(f"{name} attention got mixed dtypes ({found}): run the model in one dtype, without autocast")
    for variant in _VARIANTS:
        setting = kwargs.get(variant)
        if setting is not None and not (isinstance(setting, float | int) and setting == 0):
            raise ValueError(
                f"{name} attention does not compute {variant} (got {setting!r}): switch it off in the model"
            )
    if (asked := kwargs.get("sliding_window")) != window:
        raise ValueError(
            f"{name} attention: the layer asks for sliding_window {asked!r}, its rows came with {window!r}"
        )


def as_under_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in the dtype of autocast, where it is on, as torch's own SDPA takes them then.

    Rotary positions leave queries and keys in float32 under autocast, and values in half precision.

    Args:
        query: [B, N, T, H].
        key: [B, K, T, H].
        value: [B, K, T, H].

    Returns:
        The same three, cast; or as they are where autocast is off, or not on their device.
    """
    device = query.device.type
    if not torch.is_autocast_enabled(device) or query.dtype == torch.float64:
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def native_gqa(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Bring keys and values to a number of heads that a fused SDPA kernel takes.

    The CPU kernel and CUDA's half-precision ones read shared key heads in place. CUDA's float32 kernel does not, and
    would be given up for one that materialises the mask; there the heads are repeated.

    Args:
        query: [B, N, T, H].
        key: [B, K, T, H].
        value: [B, K, T, H].

    Returns:
        Keys, values, and the value of SDPA's ``enable_gqa``.
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats == 1:
        return key, value, False
    if query.device.type == "cpu" or query.dtype in (torch.float16, torch.bfloat16):
        return key, value, True
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1), False
