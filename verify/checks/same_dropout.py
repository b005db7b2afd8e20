"""Dropout before the LoRA factors with the same masks in every layout of the same tokens.

Ordinary dropout draws by place: the shared prompt of a packed row and its copies in unpacked rows would lose different
features. Here a feature is dropped or not by a hash of the seed, the module, the token's id and position, and its own
number, so that every copy of a token loses the same ones.

Shape letters: B rows, T slots, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PROBABILITY = 0.25

_MODULE, _TOKEN = 0x9E3779B97F4A7C15 - 2**64, 0x5851F42D4C957F2D
_POSITION, _FEATURE = 0x14057B7EF767814F, 0x2545F4914F6CDD1D
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_BITS = 24


class UnseenSlotsError(Exception):
    """A LoRA module ran on slots whose token ids or positions cannot be known; the message says why."""


@dataclass(slots=True)
class _Slots:
    """What the decoder was called with: a hash of id and position of each slot, int64 [B, T], or why there is none."""

    hashes: Tensor | None = None
    unknown: str = "a LoRA module ran outside of a call of the decoder"


class SameDropout(nn.Module):
    """Stands for the dropout of one LoRA module."""

    def __init__(self, slots: _Slots, number: int, seed: int) -> None:
        super().__init__()
        self._slots, self._start = slots, _wrapped(seed * _FEATURE + number * _MODULE)

    def forward(self, input_BTD: Tensor) -> Tensor:  # noqa: N803
        """Drop features and scale up what is left; in training mode only.

        Raises:
            UnseenSlotsError: The slots of the input are not those that the decoder was called with.
        """
        if not self.training:
            return input_BTD
        hashes_BT = self._slots.hashes  # noqa: N806
        if hashes_BT is None:
            raise UnseenSlotsError(self._slots.unknown)
        if input_BTD.shape[:-1] != hashes_BT.shape:
            raise UnseenSlotsError(
                f"a LoRA module is fed {tuple(input_BTD.shape[:-1])} slots of a call of {tuple(hashes_BT.shape)}"
            )
        features_D = torch.arange(1, input_BTD.shape[-1] + 1, device=input_BTD.device) * _FEATURE  # noqa: N806
        mixed_BTD = _mixed(_mixed(hashes_BT ^ self._start)[..., None] ^ features_D)  # noqa: N806
        kept_BTD = (mixed_BTD & (2**_BITS - 1)) >= PROBABILITY * 2**_BITS  # noqa: N806
        dropped_BTD: Tensor = input_BTD * kept_BTD.to(input_BTD.dtype) / (1 - PROBABILITY)  # noqa: N806
        return dropped_BTD


@contextmanager
def same_dropout(model: Any, *, seed: int) -> Iterator[None]:
    """Training mode with such dropout in every LoRA module; on leaving, all is as it was.

    Args:
        model: The PEFT-wrapped causal LM, whose LoRA modules have a dropout that does nothing.
        seed: Seed of the masks.

    Yields:
        Nothing.

    Raises:
        ValueError: The model has no LoRA module.
    """
    slots = _Slots()
    places = [module.lora_dropout for _, module in sorted(model.named_modules()) if hasattr(module, "lora_dropout")]
    if not places:
        raise ValueError(f"{type(model).__name__} has no LoRA module: there is nothing before which to drop features")
    before = [dict(place) for place in places]
    training = [(module, module.training) for module in model.modules()]
    decoder = model.get_base_model().get_decoder()
    hooks = [
        decoder.register_forward_pre_hook(lambda _, args, kwargs: _read(slots, args, kwargs), with_kwargs=True),
        decoder.register_forward_hook(lambda *_: _forget(slots), always_call=True),
    ]
    try:
        for number, place in enumerate(places):
            for name in place:
                place[name] = SameDropout(slots, number, seed)
        model.train()
        yield
    finally:
        for place, own in zip(places, before, strict=True):
            for name, module in own.items():
                place[name] = module
        for module, mode in training:
            module.training = mode
        for hook in hooks:
            hook.remove()


def _read(slots: _Slots, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    slots.hashes = None
    input_ids = arguments[0] if arguments else keywords.get("input_ids")
    position_ids = keywords.get("position_ids")
    cache = keywords.get("past_key_values")
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2:
        slots.unknown = "the decoder is called without token ids"
    elif cache is not None and cache.get_seq_length():
        slots.unknown = "the decoder is called with a cache, which holds tokens of another call"
    elif position_ids is not None and (position_ids.dim() != 2 or position_ids.shape[-1] != input_ids.shape[-1]):
        slots.unknown = f"the decoder is called with positions of shape {tuple(position_ids.shape)}"
    else:
        if position_ids is None:  # transformers then counts slots
            position_ids = torch.arange(input_ids.shape[-1], device=input_ids.device)
        slots.hashes = _mixed(_mixed(input_ids.long() * _TOKEN) ^ (position_ids.long() + 1) * _POSITION)


def _forget(slots: _Slots) -> None:
    slots.hashes, slots.unknown = None, _Slots().unknown


def _mixed(bits: Tensor) -> Tensor:
    """The finaliser of splitmix64 but for the sign in its shifts; int64 products wrap around."""
    bits = (bits ^ (bits >> 30)) * _MIX[0]
    bits = (bits ^ (bits >> 27)) * _MIX[1]
    return bits ^ (bits >> 31)


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
