"""What a step ought to compute: by the oracle, or where it knows no such model by the unpacked path in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from verify.frozen_policy import SeparateModel
from verify.groups import PreferenceGroup
from verify.model_state import Baseline
from verify.objective import Objective, Preference
from verify.observation import Observation, observe
from verify.subjects.oracle import apply_objective, observe_oracle, unknown_to_oracle
from verify.subjects.pairwise import WITNESS
from verify.trained_gradients import trained_name

_ROUNDING = 1e-6
"""Of a log-prob, in nats: models round in float32 here and there in any dtype."""


class UnfitModelError(ValueError):
    """A model that the oracle does not know cannot be judged: it is not causal, or part of it learns nothing."""


class Expectation:
    """The expected observations on a model.

    Args:
        model: The model of the run.

    Raises:
        UnfitModelError: The oracle does not know the model, and it is not causal.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._wide: Any = None
        self._wide_other: tuple[Any, Any] | None = None
        if unknown_to_oracle(model.config):
            self._wide = copy.deepcopy(model).to(torch.float64)
            check_causal(self._wide)
            self._baseline = Baseline.read(self._wide)

    @property
    def by(self) -> str:
        """Whose expectations they are, for a line of progress."""
        return "oracle" if self._wide is None else "unpacked in float64"

    def of(self, groups: Sequence[PreferenceGroup], objective: Objective) -> Observation:
        """What the model's weights mean on the groups of a case, in float64.

        With the oracle this is independent of the model's own code. Without, a fault of that code is in the expectation
        too, and only what packing changes can be seen.

        Args:
            groups: The groups.
            objective: The objective.

        Returns:
            The expected observation.

        Raises:
            SubjectError: The unpacked path cannot be run in float64.
            UnfitModelError: A trained tensor of a model that the oracle does not know takes no part in it.
        """
        if self._wide is None:
            return observe_oracle(self._model, groups, objective)
        observation = observe(
            WITNESS,
            self._wide,
            groups,
            self._widened(objective),
            apply_objective=apply_objective,
            seed=0,
            baseline=self._baseline,
        )
        self._check_every_tensor_learns(observation)
        return observation

    def _widened(self, objective: Objective) -> Objective:
        """The objective with the frozen policy in float64 as well; what was computed before stays as it is."""
        if not isinstance(objective, Preference) or not isinstance(objective.reference, SeparateModel):
            return objective
        other = objective.reference.model
        if self._wide_other is None or self._wide_other[0] is not other:
            self._wide_other = (other, copy.deepcopy(other).to(torch.float64))
        return replace(objective, reference=SeparateModel(self._wide_other[1]))

    def _check_every_tensor_learns(self, observation: Observation) -> None:
        trained = [trained_name(name) for name, p in self._wide.named_parameters() if p.requires_grad]
        if idle := [name for name in trained if name not in (observation.gradients or {})]:
            model_type = self._wide.config.model_type
            raise UnfitModelError(
                f"model type {model_type}: {len(idle)} of {len(trained)} trained tensors have no gradient ({idle[0]}): "
                "that layer takes no part in the computation, as cross-attention without an encoder"
            )


def check_causal(model: Any) -> None:
    """Refuse a model in which a token sees later ones.

    Two tokens in front of two different ones: the log-prob of the second must not change with the third.

    Args:
        model: The causal LM in float64, wrapped or not.

    Raises:
        UnfitModelError: It changes by more than rounding.
    """
    vocab_size = int(model.get_input_embeddings().num_embeddings)
    tokens = [(number * 7 + 3) % vocab_size for number in range(1, 7)]
    others = [(token + 1) % vocab_size for token in tokens]
    groups = [PreferenceGroup((*tokens[:3],), ((tokens[3], *last),)) for last in (tokens[4:], others[4:])]
    with torch.no_grad():
        first, second = (float(logps[0]) for logps in WITNESS.per_token_logps(model, groups))
    if not abs(first - second) <= _ROUNDING * max(1.0, abs(first)):
        raise UnfitModelError(
            f"model type {model.config.model_type}: the log-prob of a token changed from {first:.6g} to {second:.6g} "
            "with the tokens after it, so the model is not causal; packed training needs one that is"
        )
