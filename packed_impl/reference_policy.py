"""What stands for the frozen policy of DPO: four choices, whose values differ from the first step on.

With LoRA's usual initialisation "adapters-off" and a frozen copy of the fresh adapter are the same policy. They part
when training goes on from an adapter that has been trained before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from packed_impl.adapters import adapters_off, frozen_adapter
from packed_impl.attention import causal_lm
from packed_impl.groups import Group
from packed_impl.layout import PackedLayout
from packed_impl.reference_cache import ReferenceCache

REFERENCE_POLICIES = ("adapters-off", "frozen-adapter", "separate-model", "cached")

Forward = Callable[[nn.Module, PackedLayout], list[Tensor]]
"""A pass of a model: log-probs of the completions of packed rows."""

RefLogps = Callable[[Sequence[Group], PackedLayout], list[Tensor]]
"""The same of the frozen policy: groups, and these groups packed; one 1-D tensor without gradient per completion."""


class ReferencePolicy(Protocol):
    """A frozen policy: its log-probs are those that the policy's own are held against."""

    name: ClassVar[str]
    """One of ``REFERENCE_POLICIES``."""

    def frozen(self, model: nn.Module, groups: Sequence[Group], forward: Forward) -> AbstractContextManager[RefLogps]:
        """Make the frozen policy ready for a batch.

        While the context is open the model may be in another state; afterwards it is as it was, ``requires_grad`` of
        every parameter included.

        Args:
            model: The policy.
            groups: The batch.
            forward: How a model computes log-probs.

        Returns:
            A context; its value computes log-probs of groups of the batch, or of parts of them.

        Raises:
            ValueError: On entering: a policy or a batch that this frozen policy does not fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class AdaptersOff:
    """The policy with its adapters off.

    Dropout that is on for the policy is on here as well.
    """

    name: ClassVar[str] = "adapters-off"

    @contextmanager
    def frozen(self, model: nn.Module, groups: Sequence[Group], forward: Forward) -> Iterator[RefLogps]:
        """As in `ReferencePolicy`; refused where no adapter is on."""
        with adapters_off(model):
            yield lambda _, packed: forward(model, packed)


@dataclass(frozen=True, slots=True)
class FrozenAdapter:
    """The policy with another, frozen adapter active: a copy of the initial one, as TRL has it for PEFT models.

    Dropout that is on for the policy is on here as well, that of the frozen adapter included.

    Args:
        adapter: Name of the adapter.
    """

    adapter: str
    name: ClassVar[str] = "frozen-adapter"

    @contextmanager
    def frozen(self, model: nn.Module, groups: Sequence[Group], forward: Forward) -> Iterator[RefLogps]:
        """As in `ReferencePolicy`; what is refused is listed under `adapters.frozen_adapter`."""
        with frozen_adapter(model, self.adapter):
            yield lambda _, packed: forward(model, packed)


@dataclass(frozen=True, slots=True, eq=False)
class SeparateModel:
    """Another model, as full fine-tuning needs it.

    It has to be in eval mode and without parameters that require gradients. Neither is set here: a model that somebody
    else trains, or that draws dropout anew in each step, is not frozen, and a silent switch would hide that.

    Args:
        model: The model, wrapped or not; it may be on another device than the policy.
    """

    model: nn.Module
    name: ClassVar[str] = "separate-model"

    @contextmanager
    def frozen(self, model: nn.Module, groups: Sequence[Group], forward: Forward) -> Iterator[RefLogps]:
        """As in `ReferencePolicy`; refused is the policy itself, another vocabulary, and a model that is not frozen."""
        policy, other = causal_lm(model), causal_lm(self.model)
        if other is policy:
            raise ValueError("the separate model is the policy itself: give another model, or a copy")
        if any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ValueError(
                f"the separate model ({type(other).__name__}) has parameters that require gradients, so it is not "
                "frozen: call requires_grad_(False)"
            )
        if any(module.training for module in self.model.modules()):
            raise ValueError(f"the separate model ({type(other).__name__}) is in training mode: call eval()")
        sizes = [each.config.get_text_config().vocab_size for each in (other, policy)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"the separate model ({type(other).__name__}) has a vocabulary of {sizes[0]}, the policy one of "
                f"{sizes[1]}: log-probs over other tokens do not compare"
            )
        with torch.no_grad():
            yield lambda _, packed: [logps.to(policy.device) for logps in forward(self.model, packed)]


@dataclass(frozen=True, slots=True, eq=False)
class CachedLogps:
    """Log-probs computed earlier, looked up by what each completion is, never by where it stands.

    Args:
        cache: The log-probs.
        tokenizer_fingerprint: Of the tokenizer that made the batch; "" where it is not known.
    """

    cache: ReferenceCache
    tokenizer_fingerprint: str = ""
    name: ClassVar[str] = "cached"

    @contextmanager
    def frozen(self, model: nn.Module, groups: Sequence[Group], forward: Forward) -> Iterator[RefLogps]:
        """As in `ReferencePolicy`; what is refused is listed under `ReferenceCache.look_up`."""
        device = causal_lm(model).device

        def look_up(groups: Sequence[Group]) -> list[Tensor]:
            return [logps.to(device) for logps in self.cache.look_up(groups, self.tokenizer_fingerprint)]

        look_up(groups)  # the whole batch, before anything runs, so that messages name its groups
        yield lambda part, _: look_up(part)


ADAPTERS_OFF = AdaptersOff()
