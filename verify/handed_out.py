"""What third parties' code is handed: copies of the groups and of the objective, looked at again after each call.

Frozen dataclasses can be changed by ``object.__setattr__``. The run's own values are those that every later subject and
the oracle are given, so no one else gets hold of them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from functools import wraps
from typing import Any, TypeVar

from verify.cases import Case
from verify.frozen_policy import CachedLogps, FrozenPolicy
from verify.groups import PreferenceGroup
from verify.objective import Preference, RewardModel, Sft
from verify.subject import SubjectError

_Value = TypeVar("_Value")


def on_copies(who: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A third party's method that is handed copies.

    Args:
        who: Whose it is, for the message, e.g. "subject mine".
        method: Takes cases, groups, the objective, and anything else, which is passed on as it is.

    Returns:
        The method. It raises SubjectError where a copy is not as it was after the call.
    """

    @wraps(method, assigned=(), updated=())
    def call(*given: Any) -> Any:
        handed = [_copied(value) for value in given]
        result = method(*handed)
        for value, copied in zip(given, handed, strict=True):
            if what := _changed(value, copied):
                raise SubjectError(f"{who} changed {what} it was given: it must leave its arguments as they are")
        return result

    return call


def _copied(value: _Value) -> _Value:
    if isinstance(value, Preference):
        return replace(value, reference=_reference(value.reference))
    if isinstance(value, PreferenceGroup | Sft | RewardModel):
        return copy(value)
    if isinstance(value, Case):
        copied = copy(value)
        object.__setattr__(copied, "groups", _copied(value.groups))
        return copied
    if isinstance(value, list | tuple) and any(isinstance(item, PreferenceGroup) for item in value):
        return type(value)(map(_copied, value))
    return value


def _changed(value: Any, copied: Any) -> str:
    """What differs from the value that a copy was made of; "" if nothing does.

    The fields of a copy are the very tuples and numbers of the original, which cannot be changed themselves: comparing
    identity suffices, and does not call what a third party may have put there.
    """
    if isinstance(value, PreferenceGroup):
        return "" if _same_fields(value, copied) else "the groups"
    if isinstance(value, Preference):
        same = _same_fields(value, copied, "reference") and _same_reference(value.reference, copied.reference)
        return "" if same else "the objective"
    if isinstance(value, Sft | RewardModel):
        return "" if _same_fields(value, copied) else "the objective"
    if isinstance(value, Case):
        return "" if _same_fields(value, copied, "groups") and not _changed(value.groups, copied.groups) else "the case"
    if isinstance(value, list | tuple) and copied is not value:
        same = isinstance(copied, list | tuple) and len(value) == len(copied)
        return "" if same and not any(map(_changed, value, copied)) else "the groups"
    return ""


def _reference(frozen: FrozenPolicy) -> FrozenPolicy:
    """A copy; of cached log-probs one that keeps what it looks up apart."""
    return CachedLogps(frozen.look_up) if isinstance(frozen, CachedLogps) else copy(frozen)


def _same_reference(frozen: FrozenPolicy, copied: Any) -> bool:
    if isinstance(frozen, CachedLogps):
        return isinstance(copied, CachedLogps) and bool(copied.compute == frozen.look_up)
    return type(copied) is type(frozen) and _same_fields(frozen, copied)


def _same_fields(value: Any, copied: Any, *but: str) -> bool:
    names = [field.name for field in fields(value) if field.name not in but]
    return all(getattr(copied, name, None) is getattr(value, name) for name in names)
