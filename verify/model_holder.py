"""The model that a run works on, and what it must be after each subject."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

import torch
from torch import Tensor

from verify.expectation import Expectation
from verify.frozen_policy import ADAPTERS_OFF, CachedLogps, FrozenAdapter, FrozenPolicy, SeparateModel
from verify.groups import PreferenceGroup
from verify.model_state import Baseline, WeightsChangedError, weights_hash
from verify.models.request import FROZEN_ADAPTER, ModelRequest, build_model, build_reward_model
from verify.module_walk import named_modules, named_parameters
from verify.objective import RewardModel, RunObjective
from verify.sentinel import model_bits, same_bits
from verify.subjects.pairwise import WITNESS


class LeftBehindError(Exception):
    """A subject changed what every model in this process computes; it cannot be put back."""


class ModelHolder:
    """The model of one dtype, built again after a subject has changed its weights.

    Args:
        request: What to build.
        dtype: Name of the dtype.
        prepare: Called with each model that is built, before anything runs on it.
        is_reward_model: Build a reward model rather than a causal LM.
    """

    def __init__(
        self,
        request: ModelRequest,
        dtype: str,
        prepare: Callable[[Any], None] | None = None,
        *,
        is_reward_model: bool = False,
    ) -> None:
        self._request = request
        self._build = partial(build_reward_model if is_reward_model else build_model, request, dtype)
        self._prepare, self.is_reward_model = prepare, is_reward_model
        self._expectation: Expectation | None = None
        self.rebuild()

    @property
    def model(self) -> Any:
        """The model."""
        return self.under_test.model

    @property
    def expectation(self) -> Expectation:
        """What steps on the model ought to compute.

        Raises:
            UnfitModelError: The oracle does not know the model, and it is not causal.
        """
        if self._expectation is None:
            self._expectation = Expectation(self.model)
        return self._expectation

    def rebuild(self) -> None:
        """Build it, and read what it must be from now on."""
        self._expectation = None
        self.under_test = self._build()
        if self._prepare is not None:
            self._prepare(self.under_test.model)
        self.baseline = Baseline.read(self.under_test.model)
        self.bits = model_bits(self.model)
        self.reference = self._frozen_policy()
        other = self.under_test.other
        self._baseline_of_other = None if other is None else Baseline.read(other)

    @property
    def expects_the_same_in_all_dtypes(self) -> bool:
        """Whether all dtypes run the same weights, and the same frozen policy: what was cached is of one dtype."""
        return self.under_test.exact_in_bfloat16 and not isinstance(self.reference, CachedLogps)

    def with_reference(self, objective: RunObjective) -> RunObjective:
        """The objective with the frozen policy that goes with this model, where it has one."""
        return objective if isinstance(objective, RewardModel) else replace(objective, reference=self.reference)

    def _frozen_policy(self) -> FrozenPolicy:
        """What preference objectives on the model compare with."""
        name, other = self._request.reference, self.under_test.other
        if self.is_reward_model:
            return ADAPTERS_OFF
        match name:
            case "adapters-off":
                return ADAPTERS_OFF
            case "frozen-adapter":
                return FrozenAdapter(FROZEN_ADAPTER)
            case "separate-model":
                return SeparateModel(other)
            case "cached":
                return CachedLogps(partial(_unpacked_logps, other))
            case _:
                assert_never(name)

    def check_other(self, subject: str) -> tuple[str, ...]:
        """Hold the model that is or computed the frozen policy to what it was.

        Returns:
            Settings of it that the subject left changed, and that were put back.

        Raises:
            WeightsChangedError: A weight is another one, or is trained, or a gradient came to it.
        """
        other, baseline = self.under_test.other, self._baseline_of_other
        if baseline is None:
            return ()
        modules = named_modules(other)
        trained = [name for name, p in named_parameters(modules) if p.requires_grad or p.grad is not None]
        if trained or weights_hash(modules) != baseline.hashes:
            what = f"{trained[0]} is trained" if trained else "weights differ"
            raise WeightsChangedError(f"subject {subject} changed the separate model of the reference: {what}")
        return tuple(f"of the separate model {what}" for what in baseline.settings.put_back(other, modules))

    def check_bits(self, subject: str) -> None:
        """Hold the model to what it computed when it was built.

        Raises:
            LeftBehindError: It computes something else now, and so does a new one: nothing can be judged any more.
            WeightsChangedError: It computes something else now; a new one does not.
        """
        if self._gives_the_bits(lambda: self.model):
            return
        if not self._gives_the_bits(lambda: self._build().model):
            raise LeftBehindError(
                f"subject {subject} left something behind that changes what any model computes (a patched function or "
                "class?): no other subject can be judged in this run"
            )
        raise WeightsChangedError(f"subject {subject} left the model computing something else than before")

    def _gives_the_bits(self, model: Callable[[], Any]) -> bool:
        """Whether a model computes what this one did; a function patched for other lengths may raise instead."""
        try:
            return same_bits(self.bits, model_bits(model()))
        except Exception:
            return False


def _unpacked_logps(model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
    with torch.no_grad():
        return WITNESS.per_token_logps(model, groups)
