"""What a training step of the planned batch takes on one rank, followed on shapes alone: nothing is allocated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from reports.cost_record import PathName
from verify.forecast.forecast import optimizer_step, pairs_of, step_peak
from verify.forecast.paper_model import PaperModel
from verify.forecast.peak import PeakBytes
from verify.forecast.request import Training
from verify.models.lora import LoraSpec

PATHS: Mapping[str, PathName] = MappingProxyType({"dense-sdpa": "dense", "flex": "sparse", "split": "split"})
"""By backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """What one rank packs into one step.

    Args:
        prompt: Tokens of each prompt.
        response: Tokens of each response.
        pairs: Of the step on one rank.
    """

    prompt: int
    response: int
    pairs: int

    @property
    def tokens(self) -> int:
        """Slots of the packed row: every prompt once."""
        return self.pairs * (self.prompt + 2 * self.response)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Memory of a step with LoRA and AdamW, without gradient checkpointing.

    Args:
        peaks: Bytes of a rank at the peak, by backend.
        loading: Bytes of the host: the whole model, which every rank holds while it is built and sharded.
    """

    peaks: Mapping[str, PeakBytes]
    loading: int


def step_memory(
    config: Any,
    lora: LoraSpec,
    batch: PlannedBatch,
    backends: Sequence[str],
    *,
    dtype: torch.dtype,
    device_type: str,
    world_size: int,
) -> StepMemory:
    """Follow a step on shapes.

    Args:
        config: The transformers config, at the depth of training.
        lora: The adapters.
        batch: The batch of one rank.
        backends: Of attention; flex has no step on a CPU, and is left out there.
        dtype: Of the weights.
        device_type: "cpu" or "cuda".
        world_size: Ranks that the weights are shared among.

    Returns:
        What it takes.

    Raises:
        ValueError: The model cannot be followed on shapes.
    """
    model = PaperModel(config, Training(lora=lora), dtype=dtype, device_type=device_type)
    optimizer = optimizer_step(model, world_size)
    pairs = pairs_of(prompt=batch.prompt, response=batch.response, number=batch.pairs)
    peaks = {
        backend: step_peak(model, model.step(PATHS[backend], pairs), optimizer, world_size)
        for backend in backends
        if not (backend == "flex" and device_type == "cpu")
    }
    return StepMemory(peaks=peaks, loading=model.state.num_bytes(1))


def cut_config(config: Any, num_layers: int) -> Any:
    """A copy of a config with fewer layers."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config()
    if num_layers != text.num_hidden_layers:
        text.num_hidden_layers = num_layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:num_layers]
    return cut
