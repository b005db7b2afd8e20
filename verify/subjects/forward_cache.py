"""Passes without gradients, kept: most planted faults feed the model the very rows that the honest step feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_Key = tuple[Any, ...]


class ForwardCache:
    """Logits of one model by what went into it.

    Args:
        model: The PEFT-wrapped model; its weights must not change while the cache is in use.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._switches = [module for module in model.modules() if hasattr(module, "_disable_adapters")]
        self._logits: dict[_Key, Tensor] = {}

    def logits(self, model: Any, inputs: dict[str, Any], compute: Callable[[], Tensor]) -> Tensor:
        """The logits of a pass, computed where it has not been run before.

        Args:
            model: The model that the pass is for; passes of any other than that of the cache are not kept.
            inputs: Keyword arguments of the call.
            compute: Runs the pass.

        Returns:
            The logits; not to be written into.
        """
        if model is not self._model:
            return compute()
        adapters_off = tuple(bool(module._disable_adapters) for module in self._switches)
        key = (adapters_off, *((name, _content(value)) for name, value in sorted(inputs.items())))
        if key not in self._logits:
            self._logits[key] = compute()
        return self._logits[key]


def _content(value: Any) -> Any:
    """Type, shape and bytes of a tensor; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.dtype, tuple(value.shape), value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
