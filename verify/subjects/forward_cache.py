"""Passes without gradients, kept: most planted faults feed the model the very rows that the honest step feeds."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
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

    def logits(self, model: Any, inputs: dict[str, Any], compute: Callable[[dict[str, Any]], Tensor]) -> Tensor:
        """The logits of a pass, computed where it has not been run before.

        The token ids pass the model's embedding in any case, so that whoever watches it, or exchanges tokens there,
        meets every pass.

        Args:
            model: The model that the pass is for; passes of any other than that of the cache are not kept.
            inputs: Keyword arguments of the call.
            compute: Runs the pass with such arguments.

        Returns:
            The logits; not to be written into.
        """
        if model is not self._model:
            return compute(inputs)
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        rest["inputs_embeds"] = model.get_input_embeddings()(inputs["input_ids"])
        adapters = tuple(() if module._disable_adapters else (*module.active_adapters,) for module in self._switches)
        key = (adapters, *((name, _content(value)) for name, value in sorted(rest.items())))
        if key not in self._logits:
            self._logits[key] = compute(rest)
        return self._logits[key]


def _content(value: Any) -> Any:
    """Type, shape and digest of a tensor; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return (
        value.dtype,
        tuple(value.shape),
        blake2b(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest(),
    )
