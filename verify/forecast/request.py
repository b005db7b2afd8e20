"""What is forecast: a model, a batch on each rank, how it is trained, on how many ranks of which device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from verify.models.lora import LoraSpec

Trained = Literal["lora", "all"]
TRAINED: tuple[Trained, ...] = get_args(Trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a step trains.

    Args:
        train: "lora": adapters alone, the reference policy is the model without them. "all": every parameter, the
            reference policy is a frozen copy of the model.
        checkpointing: Keep only the input of each layer for the backward pass, and compute the layer again there.
        lora: Rank, scaling and targets of the adapters.
    """

    train: Trained = "lora"
    checkpointing: bool = False
    lora: LoraSpec = field(default_factory=LoraSpec)
