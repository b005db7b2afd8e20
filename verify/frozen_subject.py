"""A third party's subject, with what it says about itself asked once.

Name, layout, supported cases and the methods it has are asked for in several places: by the gate, by the proof that the
packed path ran, by the exact checks, by the report. A subject that said packed here and unpacked there would be held to
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from verify.cases import CaseKind
from verify.frozen_policy import ReferenceName
from verify.handed_out import on_copies
from verify.names import unfit_name
from verify.objective import ObjectiveName
from verify.option_names import BUILT_IN_SUBJECT_NAMES
from verify.subject import (
    OPTIONAL_METHODS,
    Subject,
    SubjectError,
    kinds_taken,
    layout_of,
    objectives_taken,
    references_taken,
    said_by,
    support_for,
    takes_router_loss,
)

_RESERVED_PREFIXES = ("planted:", "fault:")


@dataclass(frozen=True, eq=False)
class FrozenSubject:
    """A subject as it was when it was selected.

    Args:
        name: Its name, checked.
        layout: "packed" or "unpacked".
        takes: The kinds of case it takes.
        objectives: The objectives that its own loss computes.
        references: The frozen policies that its own loss takes.
        adds_router_loss: Whether its own loss adds that of routers.
        per_token_logps: Its method; this and all others are handed copies of the groups.
        optional: Those of ``OPTIONAL_METHODS`` that it has; others are absent here as they are there.
    """

    name: str
    layout: str
    takes: tuple[CaseKind, ...]
    objectives: tuple[ObjectiveName, ...]
    references: tuple[ReferenceName, ...]
    adds_router_loss: bool
    per_token_logps: Callable[..., Any]
    optional: Mapping[str, Callable[..., Any]]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self.optional[name]
        except KeyError:
            raise AttributeError(f"subject {self.name} has no {name}") from None


def frozen(subject: Any) -> Subject:
    """Ask a subject for everything it says about itself.

    Args:
        subject: What the user named.

    Returns:
        A subject that gives the same answers from now on.

    Raises:
        SubjectError: No name or a bad one, no ``per_token_logps``, another layout than the two, an attribute that
            raises.
    """
    try:
        name = _checked_name(getattr(subject, "name", None))
        if not callable(getattr(subject, "per_token_logps", None)):
            raise SubjectError(f"{name}: no method per_token_logps(model, groups)")
        layout, takes, objectives = layout_of(subject), kinds_taken(subject), objectives_taken(subject)
        references, adds_router_loss = references_taken(subject), takes_router_loss(subject)
        methods = {method: getattr(subject, method, None) for method in OPTIONAL_METHODS}
    except SubjectError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a property of the user's raises
        raise SubjectError(f"an attribute of the contract raised {said_by(error)}") from error
    who = f"subject {name}"
    optional = {method: on_copies(who, found) for method, found in methods.items() if callable(found)}
    if "supports" in optional:
        asked: Any = SimpleNamespace(name=name, takes=takes, objectives=objectives, references=references, **optional)
        optional["supports"] = cache(partial(support_for, asked))
    return FrozenSubject(
        name=name,
        layout=layout,
        takes=takes,
        objectives=objectives,
        references=references,
        adds_router_loss=adds_router_loss,
        per_token_logps=on_copies(who, subject.per_token_logps),
        optional=optional,
    )


def _checked_name(name: object) -> str:
    """A name that can be told from others, in one line of a report.

    Raises:
        SubjectError: Saying what would be right.
    """
    if not isinstance(name, str) or not name.strip():
        raise SubjectError("no name: give it a non-empty string attribute 'name'")
    name = str.__str__(name)  # a subclass of str may say something else every time
    if wrong := unfit_name(name):
        raise SubjectError(wrong)
    if name in BUILT_IN_SUBJECT_NAMES or name == "pairwise" or name.startswith(_RESERVED_PREFIXES):
        raise SubjectError(f"the name {name!r} is that of a subject of packparity: give it one of its own")
    return name
