"""A training step, and the states of training that several paths keep apart on one model.

Each path trains adapters of its own from the same start, so that what is held out shows where their steps lead. The
model is there once: a path's adapters and optimizer state are put in before its step and taken out after it, to host
memory, outside what is timed. Of sharded tensors every rank keeps its own part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.cost.paths import Steps
from verify.groups import PreferenceGroup
from verify.objective import Preference

DEFAULT_LR = 5e-6

TrainingState = Mapping[str, Tensor]
"""Adapters and moments by name, on the host, as this rank has them."""


class NotFiniteError(Exception):
    """A loss that is not finite: the steps that follow would measure something else than training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW over the adapters.

    Args:
        lr: Learning rate.
        weight_decay: As torch's.
    """

    lr: float = DEFAULT_LR
    weight_decay: float = 0.0

    @property
    def settings(self) -> dict[str, str | float]:
        """Everything by name, for a record."""
        return {"name": "AdamW", "lr": self.lr, "weight_decay": self.weight_decay}


class Trainer:
    """A model, the optimizer of its adapters, and the state of whoever trains at the moment.

    Args:
        model: A PEFT model of which only adapters require grad; sharded or not.
        optimizer: The optimizer's settings.
        objective: The objective.
    """

    def __init__(self, model: Any, optimizer: OptimizerSettings, objective: Preference) -> None:
        self.model, self._objective = model, objective
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(
            list(self._trained.values()), lr=optimizer.lr, weight_decay=optimizer.weight_decay
        )

    def step(self, subject: Steps, groups: Sequence[PreferenceGroup]) -> Tensor:
        """Reference pass, policy pass, backward and optimizer.

        Args:
            subject: Computes the loss.
            groups: The batch of this rank; every rank has as many groups, so that the mean over ranks that sharding
                makes of gradients is the mean over all groups.

        Returns:
            The loss of this rank's batch before the step, on the device: nothing is waited for here.
        """
        loss: Tensor = subject.loss(self.model, groups, self._objective).loss
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def margins(self, subject: Steps, groups: Sequence[PreferenceGroup]) -> tuple[float, list[float]]:
        """Loss and margin of each pair of a batch, without gradients.

        Raises:
            NotFiniteError: The loss is not finite.
        """
        with torch.no_grad():
            output = subject.loss(self.model, groups, self._objective)
        return finite_loss(output.loss, f"of held-out pairs by {subject.name}"), output.margins.double().tolist()

    def state(self) -> dict[str, Tensor]:
        """Adapters and moments as they are now, copied to the host; moments that no step has made yet are left out."""
        state = {name: _host_copy(parameter) for name, parameter in self._trained.items()}
        for name, parameter in self._trained.items():
            for part, value in self._optimizer.state.get(parameter, {}).items():
                state[f"{name}/{part}"] = _host_copy(value)
        return state

    def put(self, state: TrainingState) -> None:
        """Put a state in.

        Moments that it lacks are set to zero where they are, so that the first step of a path that begins allocates no
        more than its others.
        """
        with torch.no_grad():
            for name, parameter in self._trained.items():
                _local(parameter).copy_(state[name])
                for part, value in self._optimizer.state.get(parameter, {}).items():
                    kept = state.get(f"{name}/{part}")
                    _local(value).zero_() if kept is None else _local(value).copy_(kept)

    def held(self) -> list[Tensor]:
        """Everything that is there between two steps: weights, buffers, adapters and moments."""
        moments = [value for parts in self._optimizer.state.values() for value in parts.values()]
        return [_local(tensor) for tensor in (*self.model.parameters(), *self.model.buffers(), *moments)]


def finite_loss(loss: Tensor, whose: str) -> float:
    """The value of a loss.

    Raises:
        NotFiniteError: It is not finite.
    """
    value = float(loss)
    if not torch.isfinite(loss).all():
        raise NotFiniteError(f"the loss {whose} is {value}: give a smaller learning rate, or another dtype")
    return value


def _local(tensor: Any) -> Any:
    """This rank's part of a sharded tensor; a plain one as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _host_copy(tensor: Any) -> Tensor:
    copied: Tensor = _local(tensor).detach().to("cpu", copy=True)
    return copied
