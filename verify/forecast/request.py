"""What is forecast: how a step trains, and what each rank brings to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from verify.models.lora import LoraSpec
from verify.subjects.path_calls import LOGIT_CHUNK

Trained = Literal["lora", "all"]
TRAINED: tuple[Trained, ...] = get_args(Trained)


def checked_trained(name: str) -> Trained:
    """What is trained, of that name.

    Raises:
        ValueError: An unknown name.
    """
    for known in TRAINED:
        if name == known:
            return known
    raise ValueError(f"--train {name}: give one of {', '.join(TRAINED)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a step trains.

    Args:
        train: "lora": adapters alone, the reference policy is the model without them. "all": every parameter, the
            reference policy is a frozen copy of the model.
        checkpointing: Keep only the input of each layer for the backward pass, and compute the layer again there.
        lora: Rank, scaling and targets of the adapters.
        logit_chunk: Number of completion tokens of a forward call whose logits exist at one time.
    """

    train: Trained = "lora"
    checkpointing: bool = False
    lora: LoraSpec = field(default_factory=LoraSpec)
    logit_chunk: int = LOGIT_CHUNK
