"""Patterns over quantities: which of log-probs, reference, rewards, loss and gradients differ at all."""

from __future__ import annotations

from collections.abc import Callable, Set

from verify.comparison import Quantity
from verify.diagnosis.patterns.pattern import Pattern, found

Beyond = Set[Quantity]
_LOGPS: frozenset[Quantity] = frozenset({"per_token_logps", "ref_per_token_logps"})


def policy_only(beyond: Beyond) -> str | None:
    """Adapters, or the pass with gradients."""
    if beyond & _LOGPS != {"per_token_logps"}:
        return None
    return "policy log-probs differ, those of the frozen policy are exact"


def reference_only(beyond: Beyond) -> str | None:
    """The pass of the frozen policy."""
    if beyond & _LOGPS != {"ref_per_token_logps"}:
        return None
    return "log-probs of the frozen policy differ, those of the policy are exact"


def rewards_only(beyond: Beyond) -> str | None:
    """Logging."""
    if not beyond or not beyond <= {"rewards", "margins"}:
        return None
    return "only rewards differ: log-probs, loss and gradients are exact"


def after_the_log_probs(beyond: Beyond) -> str | None:
    """What is made of right log-probs."""
    if not beyond or beyond & _LOGPS or "rewards" not in beyond or beyond <= {"rewards", "margins"}:
        return None
    return "all log-probs are exact, what is made of them differs: rewards, and what follows"


def loss_and_gradients_only(beyond: Beyond) -> str | None:
    """What is made of right rewards."""
    if "loss" not in beyond or not beyond <= {"loss", "gradients"}:
        return None
    return "log-probs and rewards are exact, the loss differs"


def gradients_only(beyond: Beyond) -> str | None:
    """The backward pass."""
    return "every forward quantity is exact, only gradients differ" if beyond == {"gradients"} else None


QUANTITY_PATTERNS: tuple[Callable[[Beyond], str | None], ...] = (
    policy_only,
    reference_only,
    rewards_only,
    after_the_log_probs,
    loss_and_gradients_only,
    gradients_only,
)


def loss_of_right_log_probs(beyond: Beyond) -> str | None:
    """What supervised fine-tuning makes of right log-probs."""
    if "loss" not in beyond or not beyond <= {"loss", "gradients"}:
        return None
    return "the log-probs of supervised tokens are exact, the loss differs"


SFT_PATTERNS: tuple[Callable[[Beyond], str | None], ...] = (loss_of_right_log_probs, gradients_only)


def rewards_and_what_follows(beyond: Beyond) -> str | None:
    """The decoder, or the head and where it reads."""
    if "rewards" not in beyond or beyond <= {"rewards", "margins"}:
        return None
    return "rewards differ, and what is made of them"


def rewards_alone(beyond: Beyond) -> str | None:
    """Logging."""
    return "only rewards differ: loss and gradients are exact" if beyond and beyond <= {"rewards", "margins"} else None


def loss_of_right_rewards(beyond: Beyond) -> str | None:
    """What a reward model makes of right rewards."""
    return "all rewards are exact, the loss differs" if "loss" in beyond and beyond <= {"loss", "gradients"} else None


REWARD_MODEL_PATTERNS: tuple[Callable[[Beyond], str | None], ...] = (
    rewards_and_what_follows,
    rewards_alone,
    loss_of_right_rewards,
    gradients_only,
)


def reward_model_patterns(beyond: Beyond) -> tuple[Pattern, ...]:
    """Patterns of the differing quantities of a reward model, which has no log-probs; at most one.

    Args:
        beyond: Quantities of which some value is beyond its budget.
    """
    return found(REWARD_MODEL_PATTERNS, beyond)


def quantity_patterns(beyond: Beyond, *, is_sft: bool = False) -> tuple[Pattern, ...]:
    """Patterns of the differing quantities; at most one.

    Args:
        beyond: Quantities of which some value is beyond its budget.
        is_sft: The objective has neither a frozen policy nor rewards.
    """
    return found(SFT_PATTERNS if is_sft else QUANTITY_PATTERNS, beyond)
