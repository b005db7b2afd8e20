"""The forward calls of a training step on each path, taken apart for a run that has shapes and no values.

What a path feeds to the model, and the code that turns hidden states into log-probs, are those of the step itself. Left
out is what reads values: checks of groups, and the objective, which works on a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from packed_impl.attention import ModelKwargs, attention_implementation, backend_named, pretrained_model
from packed_impl.flex import BLOCK_SIZE, allowed_cells
from packed_impl.layout import PackedLayout, pack
from packed_impl.logps import DEFAULT_LOGIT_CHUNK, completion_logps
from packed_impl.sharded_model import decoder_layers
from packed_impl.unshared import unshared_layouts
from packed_impl.windows import layer_windows
from verify.groups import PreferenceGroup

LOGIT_CHUNK = DEFAULT_LOGIT_CHUNK
"""Number of completion tokens whose logits exist at one time, unless said otherwise."""

_BACKENDS: Mapping[str, str] = {
    "padded": "dense-sdpa",
    "unpadded": "dense-sdpa",
    "padding-free": "split",
    "dense": "dense-sdpa",
    "sparse": "flex",
    "split": "split",
}


@dataclass(frozen=True, eq=False, slots=True)
class PathCall:
    """One forward call of a step.

    Args:
        layout: What is fed to the model.
        backend: How it computes attention.
        is_causal: Rows hold one sequence each, so that causal attention without a mask is all that is needed.
    """

    layout: PackedLayout
    backend: str
    is_causal: bool

    def told(self, model: nn.Module, device_type: str) -> ModelKwargs:
        """What tells the layers who attends to whom, as on a kind of device."""
        if self.is_causal:
            return {"attention_mask": None}
        outermost = pretrained_model(model)
        return backend_named(self.backend).model_kwargs(
            self.layout.forests, torch.device(device_type), outermost.dtype, layer_windows(outermost)
        )

    def num_block_cells(self) -> int:
        """Cells of the blocks that FlexAttention computes for one head, all rows together."""
        total = 0
        for forest in self.layout.forests:
            is_touched = allowed_cells(forest, BLOCK_SIZE) > 0
            edges = torch.arange(0, forest.num_slots, BLOCK_SIZE)
            heights = edges.diff(append=torch.tensor([forest.num_slots]))
            total += int((is_touched * heights[:, None] * heights[None, :]).sum())
        return total


def path_calls(path: str, groups: Sequence[PreferenceGroup]) -> list[PathCall]:
    """The forward calls of a path.

    Args:
        path: Unpacked in one padded batch, in a call for each sequence, or side by side in one row; with shared prompts
            in a row for each group under a dense mask, or in one row ("sparse", "split").
        groups: The batch.

    Returns:
        The calls; their completions come in the standard order.

    Raises:
        ValueError: An unknown path.
    """
    if path not in _BACKENDS:
        raise ValueError(f"unknown path {path!r}: give one of {', '.join(_BACKENDS)}")
    backend = _BACKENDS[path]
    match path:
        case "padded":
            return [PathCall(layout, backend, is_causal=True) for layout in unshared_layouts(groups, "padded")]
        case "unpadded":
            layouts = unshared_layouts(groups, "row-per-sequence")
            return [PathCall(layout, backend, is_causal=True) for layout in layouts]
        case "padding-free":
            return [PathCall(pack(groups, layout="block-diagonal"), backend, is_causal=False)]
        case "dense":
            return [PathCall(pack(groups, rows="row-per-group"), backend, is_causal=False)]
        case _:
            return [PathCall(pack(groups), backend, is_causal=False)]


def decoder_layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a causal LM, wrapped or not, in the order of the model."""
    return decoder_layers(model)


def has_windows(model: nn.Module) -> bool:
    """Whether some layers have a sliding window."""
    return any(window is not None for window in layer_windows(pretrained_model(model)).by_type.values())


def attention_of(model: Any, path: str) -> AbstractContextManager[object]:
    """The context in which a model computes attention as a path does."""
    return attention_implementation(model, _BACKENDS[path])


def call_logps(model: Any, call: PathCall, told: ModelKwargs, *, logit_chunk: int) -> list[Tensor]:
    """Log-probs of the completions of one call, in the context of ``attention_of``.

    Args:
        model: The causal LM, wrapped or not.
        call: The call.
        told: Of ``PathCall.told``.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        One 1-D tensor per completion.
    """
    logps = completion_logps(model, call.layout, told, logit_chunk=logit_chunk)
    return list(torch.split(logps, list(call.layout.completion_lengths)))
