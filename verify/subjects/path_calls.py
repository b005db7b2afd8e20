"""The forward calls of a training step on each path, taken apart for a run that has shapes and no values.

What a path feeds to the model, and the code that turns hidden states into log-probs, are those of the step itself. Left
out is what reads values: checks of groups, and the objective, which works on a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from packed_impl.attention import ModelKwargs, attention_implementation, backend_named, pretrained_model
from packed_impl.flex import BLOCK_SIZE, allowed_cells
from packed_impl.layout import PackedLayout, pack
from packed_impl.logps import DEFAULT_LOGIT_CHUNK, completion_logps
from packed_impl.sharded_model import decoder_layers
from packed_impl.windows import layer_windows
from verify.groups import PreferenceGroup

PathName = Literal["padded", "unpadded", "dense", "sparse", "split"]
PATHS: tuple[PathName, ...] = get_args(PathName)
UNSHARED: tuple[PathName, ...] = ("padded", "unpadded")
"""The paths on which every completion has its own copy of the prompt."""

LOGIT_CHUNK = DEFAULT_LOGIT_CHUNK
"""Number of completion tokens whose logits exist at one time, unless said otherwise."""

_BACKENDS: Mapping[PathName, str] = {
    "padded": "dense-sdpa",
    "unpadded": "dense-sdpa",
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


def path_calls(path: PathName, groups: Sequence[PreferenceGroup]) -> list[PathCall]:
    """The forward calls of a path.

    Args:
        path: One of ``PATHS``. The paths with shared prompts have a row for each group ("dense", "sparse"), or all
            groups in one row, where nothing is padded ("split").
        groups: The batch.

    Returns:
        The calls; their completions come in the standard order.
    """
    backend = _BACKENDS[path]
    if path == "padded":
        return [PathCall(layout, backend, is_causal=True) for layout in (_counted_on(_alone(groups)),)]
    if path == "unpadded":
        sequences = _unshared(groups)
        return [PathCall(_counted_on(_alone([sequence])), backend, is_causal=True) for sequence in sequences]
    rows = "one-row" if path == "split" else "row-per-group"
    return [PathCall(pack(groups, layout="shared-prompt", rows=rows), backend, is_causal=False)]


def _unshared(groups: Sequence[PreferenceGroup]) -> list[PreferenceGroup]:
    return [PreferenceGroup(group.prompt_ids, (completion,)) for group in groups for completion in group.completions]


def _alone(groups: Sequence[PreferenceGroup]) -> PackedLayout:
    return pack(_unshared(groups), layout="block-diagonal", rows="row-per-group")


def _counted_on(layout: PackedLayout) -> PackedLayout:
    return replace(layout, position_ids=torch.arange(layout.input_ids.shape[1]).expand_as(layout.input_ids))


def decoder_layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a causal LM, wrapped or not, in the order of the model."""
    return decoder_layers(model)


def attention_of(model: Any, path: PathName) -> AbstractContextManager[None]:
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
