"""How evenly the routers of a mixture of experts use their experts, and the loss that keeps them even.

``E sum_e f_e P_e`` over all tokens of all layers with routers, f_e the share of tokens that take expert e and P_e its
mean probability. In unpacked training that is one padded batch of all sequences of the case, in the policy's pass: a
prompt counts once for each of its completions, padding and the frozen policy's pass count nothing.

Shape letter: E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.subject import SubjectError, shown

_KNOWN_TO_ORACLE = ("qwen3_moe",)


def _none() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class RouterBalance:
    """What was observed of the routers of a step; float64 on the CPU, empty where they have no part in it.

    Args:
        shares: f_e, the share of tokens that each expert is given, over all layers; [E].
        probs: P_e, the mean probability of each expert; [E].
    """

    shares: Tensor = field(default_factory=_none)
    probs: Tensor = field(default_factory=_none)

    def __bool__(self) -> bool:
        return len(self.probs) > 0

    @property
    def loss(self) -> float:
        """``E sum_e f_e P_e``."""
        return len(self.probs) * float(self.shares @ self.probs)


NO_BALANCE = RouterBalance()


def experts_per_token(model: Any) -> int:
    """Experts that a token takes; 0 of a model that has no routers whose load balancing loss the oracle knows.

    Args:
        model: The model, wrapped or not, or its config.

    Returns:
        The number.
    """
    config = getattr(model, "config", model).get_text_config()
    return int(config.num_experts_per_tok) if config.model_type in _KNOWN_TO_ORACLE else 0


def check_balance(output: object, subject: str) -> RouterBalance:
    """Check what ``loss`` of a subject says of its routers; values are not looked at.

    Args:
        output: What it returned.
        subject: Name for messages.

    Returns:
        The balance; empty where it says nothing.

    Raises:
        SubjectError: Without ``shares`` and ``probs``, or they are no vectors, or empty.
    """
    given = getattr(output, "router_balance", None)
    if given is None:
        return NO_BALANCE
    vectors = []
    for name in ("shares", "probs"):
        vector = getattr(given, name, None)
        if not isinstance(vector, Tensor) or vector.dim() != 1 or not len(vector) or not vector.is_floating_point():
            raise SubjectError(
                f"subject {subject}: loss(...).router_balance.{name} is {shown(vector)}; "
                "it must be a vector of one number for each expert"
            )
        vectors.append(vector.detach().to("cpu", torch.float64, copy=True))
    return RouterBalance(*vectors)


class RoutedSubject:
    """A subject without a loss of its own whose passes tell of their routers; the passes of a step, in their order.

    Args:
        subject: Has a method ``routed_logps``, as the forms of the unpacked path.
    """

    def __init__(self, subject: Any) -> None:
        self.name, self._subject, self.passes = subject.name, subject, list[Any]()

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Sequence[Tensor]:
        """As in the contract of a subject; what the routers did is kept."""
        self.passes.append(self._subject.routed_logps(model, groups))
        logps: Sequence[Tensor] = self.passes[-1].per_token_logps
        return logps
