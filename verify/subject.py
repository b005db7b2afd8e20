"""The contract of a subject: anything that claims to compute the unpacked thing differently.

The least a subject has is ``name`` and ``per_token_logps``; everything else is optional. A subject imports nothing of
this project.

    class MySubject:
        name = "my-trainer"

        def per_token_logps(self, model, groups):
            '''One differentiable 1-D tensor per completion: group by group, positives before negatives.'''

``model`` is the PEFT-wrapped causal LM; under ``--train all`` the causal LM itself, whose every weight requires grad.
What sees images never does.

Optional attributes and methods:

- ``layout``: "packed" (default) or "unpacked". Whoever says packed must be seen to feed fewer token slots.
- ``takes``: the kinds of case it takes, a tuple of "pairs" (the default: one preferred and one rejected response),
  "groups" (any number of each) and "examples" (supervised fine-tuning: no rejected response, an SFT objective).
- ``supports(case) -> Support``: any object with ``supported`` and ``reason``; default yes.
- ``supports_gradients(model) -> Support``: default yes. Where not, only forward quantities are judged.
- ``loss(model, groups, objective) -> LossOutput``: any object with ``loss`` (differentiable scalar), ``rewards`` (one
  value per completion; not under SFT). Then the loss and the gradients through it are judged. If it also has
  ``per_token_logps`` and ``ref_per_token_logps`` (not under SFT), those are judged, and ``per_token_logps`` is not
  called apart. ``objective.name`` says which loss, its other attributes are the parameters.
  A step that runs backward itself (over micro-batches, in two passes) returns ``backward_done = True`` with the
  gradients of the whole batch in ``.grad``; its loss needs no graph then.
- ``references``: the frozen policies that ``loss`` takes, a tuple; by default "adapters-off" alone. That of the run is
  ``objective.reference``: "adapters-off" (the model without its adapters), "frozen-adapter" (another adapter, whose
  name is ``objective.reference.adapter``), "separate-model" (``objective.reference.model``), "cached"
  (``objective.reference.look_up(groups)`` gives one tensor per completion). A subject without a ``loss`` takes any.
- ``objectives``: names of the objectives that ``loss`` computes, a tuple; by default "sigmoid", "sft-token-mean" and
  "sft-example-mean". Of the others (``verify.objective.OBJECTIVE_NAMES``) a subject is asked for those that it names.
- ``adds_router_loss``: True where ``loss`` adds ``objective.router_aux_loss_coef`` times the load balancing loss of a
  mixture of experts, over the batch that unpacked training feeds (docs/checks.md); default False. Then ``loss`` may
  also return ``router_balance``, any object with ``shares`` (f_e) and ``probs`` (P_e), one value for each expert, which
  is judged.
- ``rewards(model, groups)``: one differentiable scalar per completion, where the model is a reward model. It, or a
  ``loss`` that names "reward-model" among its objectives, makes a subject one of reward models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from verify.cases import CASE_KINDS, Case, CaseKind
from verify.frozen_policy import REFERENCE_NAMES, ReferenceName
from verify.groups import PreferenceGroup
from verify.objective import OBJECTIVE_NAMES, PREFERENCE_NAMES, REWARD_MODEL, ObjectiveName

DEFAULT_OBJECTIVES: tuple[ObjectiveName, ...] = ("sigmoid", "sft-token-mean", "sft-example-mean")
DEFAULT_REFERENCES: tuple[ReferenceName, ...] = ("adapters-off",)
OPTIONAL_METHODS = ("supports", "supports_gradients", "loss", "rewards", "packed_rows")

_LONGEST_MESSAGE = 500


class SubjectError(Exception):
    """A subject broke its contract: it raised, or returned something that cannot be compared."""


def bounded(text: str) -> str:
    """Text of a subject in one line that any file can hold: no control characters, no half of a pair, not too long."""
    one_line = " ".join(text.split())
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line)
    return printable if len(printable) <= _LONGEST_MESSAGE else f"{printable[: _LONGEST_MESSAGE - 1]}…"


def said_by(error: BaseException) -> str:
    """Class and message of what a subject raised; its message may itself raise."""
    return bounded(f"{type(error).__name__}: {_read(error, str)}")


def shown(value: object) -> str:
    """What a subject returned, for a message."""
    return bounded(_read(value, repr))


def _read(value: object, as_text: Callable[[object], str]) -> str:
    try:
        return as_text(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be read"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a subject can do what is asked, and if not, why."""

    supported: bool
    reason: str = ""


@runtime_checkable
class Subject(Protocol):
    """The least a subject must have."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Sequence[Tensor]:
        """Log-probs of every completion token: one differentiable 1-D tensor per completion, in nats."""
        ...


class LossOutput(Protocol):
    """What ``loss`` of a subject returns."""

    loss: Tensor
    rewards: Tensor | Sequence[Tensor] | Sequence[float]  # of a preference objective


def layout_of(subject: Subject) -> str:
    """The layout that a subject claims: "packed" unless it says otherwise.

    Raises:
        SubjectError: Any other value.
    """
    layout = getattr(subject, "layout", "packed")
    if layout not in ("packed", "unpacked"):
        raise SubjectError(
            f"subject {subject.name}: layout is {bounded(repr(layout))}; it must be 'packed' or 'unpacked'"
        )
    return str(layout)


def kinds_taken(subject: Subject) -> tuple[CaseKind, ...]:
    """The kinds of case that a subject takes: pairs unless it says otherwise.

    Raises:
        SubjectError: Anything but a tuple or list of known kinds, without one twice.
    """
    takes = getattr(subject, "takes", ("pairs",))
    known = [kind for kind in CASE_KINDS if isinstance(takes, list | tuple) and kind in takes]
    if not known or len(known) != len(takes):
        raise SubjectError(
            f"subject {subject.name}: takes is {bounded(_read(takes, repr))}; it must be a tuple of some of "
            f"{', '.join(map(repr, CASE_KINDS))}"
        )
    return tuple(known)


def objectives_taken(subject: Subject) -> tuple[ObjectiveName, ...]:
    """The objectives that a subject's own ``loss`` computes: the sigmoid loss and both SFT means unless it says so.

    Raises:
        SubjectError: Anything but a tuple or list of known names, without one twice.
    """
    objectives = getattr(subject, "objectives", DEFAULT_OBJECTIVES)
    known = [name for name in OBJECTIVE_NAMES if isinstance(objectives, list | tuple) and name in objectives]
    if not known or len(known) != len(objectives):
        raise SubjectError(
            f"subject {subject.name}: objectives is {bounded(_read(objectives, repr))}; it must be a tuple of some of "
            f"{', '.join(map(repr, OBJECTIVE_NAMES))}"
        )
    return tuple(known)


def references_taken(subject: Subject) -> tuple[ReferenceName, ...]:
    """The frozen policies that a subject's own ``loss`` takes: the model with its adapters off unless it says so.

    Raises:
        SubjectError: Anything but a tuple or list of known names, without one twice.
    """
    references = getattr(subject, "references", DEFAULT_REFERENCES)
    known = [name for name in REFERENCE_NAMES if isinstance(references, list | tuple) and name in references]
    if not known or len(known) != len(references):
        raise SubjectError(
            f"subject {subject.name}: references is {bounded(_read(references, repr))}; it must be a tuple of some of "
            f"{', '.join(map(repr, REFERENCE_NAMES))}"
        )
    return tuple(known)


def takes_router_loss(subject: Subject) -> bool:
    """Whether a subject's own loss adds that of routers where it is asked to.

    Raises:
        SubjectError: It says something else than True or False.
    """
    adds = getattr(subject, "adds_router_loss", False)
    if not isinstance(adds, bool):
        raise SubjectError(f"subject {subject.name}: adds_router_loss is {shown(adds)}; it must be True or False")
    return adds


def owns_loss(subject: Subject) -> bool:
    """Whether the subject computes its own loss."""
    return callable(getattr(subject, "loss", None))


def computes_loss(subject: Subject, objective_name: ObjectiveName) -> bool:
    """Whether the subject's own loss is asked for under an objective: one without another way to it needs to name it.

    Raises:
        SubjectError: As :func:`objectives_taken`.
    """
    if not owns_loss(subject):
        return False
    return objective_name != REWARD_MODEL or objective_name in objectives_taken(subject)


def support_for(
    subject: Subject, case: Case, reference: ReferenceName = "adapters-off", *, router_loss: bool = False
) -> Support:
    """Whether the subject takes the case: kind, objective, frozen policy and router loss, and ``supports`` agrees.

    Args:
        subject: The subject.
        case: The case.
        reference: The frozen policy of the run.
        router_loss: Whether the loss of routers is part of the objective.

    Raises:
        SubjectError: ``supports`` raised, or returned something without ``supported`` and ``reason``, or said no
            without a reason; or ``takes``, ``objectives`` or ``references`` is wrong.
    """
    takes = kinds_taken(subject)
    if case.kind not in takes:
        return Support(False, f"a case of {case.kind}; the subject takes {', '.join(takes)}")
    objectives = objectives_taken(subject)
    if case.objective_name == REWARD_MODEL:
        if not computes_loss(subject, REWARD_MODEL) and not callable(getattr(subject, "rewards", None)):
            return Support(False, f"no method rewards, and no loss of its own that names {REWARD_MODEL}")
    elif owns_loss(subject) and case.objective_name not in objectives:
        return Support(False, f"objective {case.objective_name}; the subject's own loss is {', '.join(objectives)}")
    is_over_policy = case.objective_name in PREFERENCE_NAMES
    if owns_loss(subject) and is_over_policy and reference not in references_taken(subject):
        taken = ", ".join(references_taken(subject))
        return Support(False, f"reference {reference}; the subject's own loss takes {taken}")
    if router_loss and case.objective_name != REWARD_MODEL:
        if not owns_loss(subject) and not callable(getattr(subject, "routed_logps", None)):
            return Support(False, "no loss of its own, which the loss of the routers would be part of")
        if owns_loss(subject) and not takes_router_loss(subject):
            return Support(False, "the subject's own loss has no router loss: it does not say adds_router_loss")
    return _ask(subject, "supports", case)


def gradient_support(subject: Subject, model: Any) -> Support:
    """Whether gradients flow through the subject on this model and device; default yes.

    Raises:
        SubjectError: As for :func:`support_for`.
    """
    return _ask(subject, "supports_gradients", model)


def _ask(subject: Subject, method: str, argument: object) -> Support:
    ask = getattr(subject, method, None)
    if ask is None:
        return Support(True)
    try:
        answer = ask(argument)
    except (SubjectError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the subject raises
        raise SubjectError(f"subject {subject.name}: {method} raised {said_by(error)}") from error
    supported = getattr(answer, "supported", None)
    if not isinstance(supported, bool):
        raise SubjectError(
            f"subject {subject.name}: {method} returned {shown(answer)}; it must return an object with the attributes "
            "supported (bool) and reason (str)"
        )
    reason = bounded(_read(getattr(answer, "reason", ""), str))
    if not supported and not reason:
        raise SubjectError(f"subject {subject.name}: {method} said no without a reason")
    return Support(supported, reason)
