"""The frozen policy that a preference objective compares with: four kinds, whose values differ from the first step on.

With adapters at their usual start, B = 0, the first two are the same; the gate draws everything away from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from verify.groups import PreferenceGroup, TokenIds
from verify.images import Image
from verify.models.adapters import adapter_active, adapters_off

if TYPE_CHECKING:  # not imported where only names are asked for
    from torch import Tensor

ReferenceName = Literal["adapters-off", "frozen-adapter", "separate-model", "cached"]
REFERENCE_NAMES: tuple[ReferenceName, ...] = get_args(ReferenceName)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptersOff:
    """The policy's own weights without its adapter."""

    name: ClassVar[ReferenceName] = "adapters-off"
    passes: ClassVar[int] = 1

    @contextmanager
    def standing_in(self, model: Any) -> Iterator[Any]:
        """The model that computes the reference log-probs, which while the context is open is the frozen policy."""
        with adapters_off(model):
            yield model


@dataclass(frozen=True, slots=True, eq=False)
class FrozenAdapter:
    """The policy's own weights with another adapter, such as a copy of the one that training started from.

    Args:
        adapter: Its name in the policy's model; none of its parameters requires grad.
    """

    adapter: str
    name: ClassVar[ReferenceName] = "frozen-adapter"
    passes: ClassVar[int] = 1

    @contextmanager
    def standing_in(self, model: Any) -> Iterator[Any]:
        """As in :class:`AdaptersOff`."""
        with adapter_active(model, self.adapter):
            yield model


@dataclass(frozen=True, slots=True, eq=False)
class SeparateModel:
    """Another model without adapters, as full fine-tuning has it.

    Args:
        model: A causal LM in eval mode; nothing in it requires grad.
    """

    model: Any
    name: ClassVar[ReferenceName] = "separate-model"
    passes: ClassVar[int] = 1

    @contextmanager
    def standing_in(self, model: Any) -> Iterator[Any]:
        """As in :class:`AdaptersOff`."""
        yield self.model


@dataclass(frozen=True, slots=True, eq=False)
class CachedLogps:
    """Log-probs that were computed before, looked up by what a completion is and never by where it stands.

    Args:
        compute: Gives the log-probs of every token of the completions of groups; asked once for each completion, so
            that all who look it up are given the same values.
    """

    compute: Callable[[Sequence[PreferenceGroup]], Sequence[Tensor]]
    known: dict[tuple[TokenIds, tuple[Image, ...], TokenIds], Tensor] = field(default_factory=dict, repr=False)
    name: ClassVar[ReferenceName] = "cached"
    passes: ClassVar[int] = 0

    def look_up(self, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every token of every completion.

        Args:
            groups: The groups, in any order.

        Returns:
            One 1-D tensor per completion: group by group, positives before negatives; copies.
        """
        found: list[Tensor] = []
        for group in groups:
            keys = [(group.prompt_ids, group.images, completion) for completion in group.completions]
            if any(key not in self.known for key in keys):
                self.known.update(zip(keys, self.compute([group]), strict=True))
            found += [self.known[key].clone() for key in keys]
        return found


FrozenPolicy = AdaptersOff | FrozenAdapter | SeparateModel | CachedLogps
ADAPTERS_OFF = AdaptersOff()
