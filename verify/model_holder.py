"""The model that a run works on, and what it must be after each subject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from verify.expectation import Expectation
from verify.model_state import Baseline, WeightsChangedError
from verify.models.request import ModelRequest, build_model, build_reward_model
from verify.sentinel import model_bits, same_bits


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
