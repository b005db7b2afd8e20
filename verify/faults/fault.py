"""A fault as a value: which stage it replaces, what it imitates, and where it can be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from verify.cases import CASE_KINDS, Case, CaseKind
from verify.checks.check import EXACT_CHECK_NAMES, ExactCheckName
from verify.faults.conditions import EVERYWHERE, Condition
from verify.faults.stages import STAGES, STAGES_OF_BOTH, STAGES_OF_REWARDS, StageName
from verify.handed_out import on_copies
from verify.models.dtypes import DTYPES
from verify.objective import REWARD_MODEL, ObjectiveName
from verify.training import TRAIN_NAMES, TrainName

CheckName = Literal["parity", "packed-ran"] | ExactCheckName
CHECKS: tuple[CheckName, ...] = ("parity", "packed-ran", *EXACT_CHECK_NAMES)
ROUNDING_IN_BFLOAT16 = ("float64", "float32")
"""Where a fault shows that is no larger than the rounding of a bfloat16 model."""
PREFERENCES: tuple[CaseKind, ...] = ("pairs", "groups")
"""Kinds of case that compare responses."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The packed layout that a fault is planted in.

    Args:
        segments: "shared-prompt", "repeat-prompt-token", "prefix-tree" or "block-diagonal".
        rows: "one-row", "row-per-group" (several rows, uneven ones padded), or "bins" (the rows of the subjects of that
            name: whole groups by first-fit decreasing).
    """

    segments: str = "shared-prompt"
    rows: str = "one-row"


ROW_PER_GROUP = Packing(rows="row-per-group")
REPEAT_PROMPT_TOKEN = Packing(segments="repeat-prompt-token")
PREFIX_TREE = Packing(segments="prefix-tree")
BLOCK_DIAGONAL = Packing(segments="block-diagonal")
BINS = Packing(rows="bins")
BLOCK_DIAGONAL_BINS = Packing(segments="block-diagonal", rows="bins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One stage of the packed computation, replaced.

    Args:
        name: Stable id.
        stage: The stage.
        replacement: A module-level function, or a partial of one, so that the value pickles. Takes the honest function
            of the stage and then the stage's arguments.
        what: What is different, in one sentence.
        imitates: Entries of the public list in docs/faults.md.
        bites_where: Cases on which it can make a difference.
        packing: The layout it is planted in.
        kinds: Kinds of case it is planted on.
        remembers: Whether the replacement is handed a dict that lasts as long as its subject, as keyword ``kept``.
        with_images: Whether it is planted on cases with images, and on those only; what rewrites prompts would leave
            their placeholders without images.
        of_rewards: Whether it is planted in the step of a reward model, and no other: cases of that objective have it.
        trains: What is trained of the models that have the place where it sits.

    Raises:
        ValueError: A part is of another type, the name is empty, or there is no such stage.
    """

    name: str
    stage: StageName
    replacement: Callable[..., Any] = field(repr=False)
    what: str
    imitates: tuple[str, ...] = ()
    bites_where: Condition = EVERYWHERE
    packing: Packing = Packing()
    kinds: tuple[CaseKind, ...] = ("pairs",)
    remembers: bool = False
    with_images: bool = False
    of_rewards: bool = False
    trains: tuple[TrainName, ...] = TRAIN_NAMES

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a fault is named {self.name!r}: give it a non-empty string")
        _check_text(self, "what")
        if self.stage not in STAGES:
            raise ValueError(f"fault {self.name}: stage {self.stage!r}: give one of {', '.join(STAGES)}")
        if self.stage in STAGES_OF_REWARDS and not self.of_rewards:
            raise ValueError(f"fault {self.name}: stage {self.stage} belongs to reward models: say of_rewards=True")
        if not callable(self.replacement):
            raise ValueError(f"fault {self.name}: replacement is a {type(self.replacement).__name__}: give a function")
        if not self.kinds or not set(self.kinds) <= set(CASE_KINDS):
            raise ValueError(f"fault {self.name}: kinds is {self.kinds!r}: give some of {', '.join(CASE_KINDS)}")
        if not self.trains or not set(self.trains) <= set(TRAIN_NAMES):
            raise ValueError(f"fault {self.name}: trains is {self.trains!r}: give some of {', '.join(TRAIN_NAMES)}")

    def runs_under(self, objective_name: ObjectiveName) -> bool:
        """Whether the step of that objective has the stage in the form that the replacement knows."""
        if objective_name == REWARD_MODEL:
            return self.of_rewards or self.stage in STAGES_OF_BOTH
        return not self.of_rewards

    @property
    def of_routers(self) -> bool:
        """Whether it is about the loss of routers, which only a mixture of experts has."""
        return self.stage == "routers"

    @property
    def of_windows(self) -> bool:
        """Whether it is about a sliding window, which only some models have."""
        return self.stage == "window"

    def bites(self, case: Case) -> bool:
        """Whether the case has what it takes; the condition is asked of cases of its kinds only."""
        if (case.objective_name == REWARD_MODEL) != self.of_rewards or case.kind not in self.kinds:
            return False
        if case.has_images != self.with_images:
            return False
        holds = self.bites_where.holds
        if not getattr(holds, "__module__", "").startswith("verify.faults."):  # the catalogue's change nothing
            holds = on_copies(f"fault {self.name}", holds)
        return bool(holds(case))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Mutation):
    """A mutation that computes something else.

    Args:
        signature: Which tokens or tensors are off, and roughly by how much.
        invisible_where: Where no comparison of values can see it.
        must_kill: The checks that must catch it.
        dtypes: The dtypes in which it must be caught. In any other it is run as well, and shown, but nothing is
            expected: there rounding is as large as the fault.

    Raises:
        ValueError: As for any mutation; or no check must catch it, or in no dtype, or in an unknown one.
    """

    signature: str
    invisible_where: str = ""
    must_kill: tuple[CheckName, ...] = ("parity",)
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def __post_init__(self) -> None:
        Mutation.__post_init__(self)  # super() without arguments does not know a class made anew for its slots
        _check_text(self, "signature", "invisible_where")
        if not self.must_kill or not set(self.must_kill) <= set(CHECKS):
            raise ValueError(f"fault {self.name}: must_kill is {self.must_kill!r}: give some of {', '.join(CHECKS)}")
        if not self.dtypes or not set(self.dtypes) <= set(DTYPES):
            raise ValueError(f"fault {self.name}: dtypes is {self.dtypes!r}: give some of {', '.join(DTYPES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalentMutant(Mutation):
    """A mutation that provably computes the same, up to rounding: flagging it is a false alarm.

    Args:
        why_equal: The proof, in words.
        outside_proof: Exact checks that rest on more than the proof covers: they see the mutation, and rightly so.
    """

    why_equal: str
    outside_proof: tuple[ExactCheckName, ...] = ()

    def __post_init__(self) -> None:
        Mutation.__post_init__(self)
        _check_text(self, "why_equal")


def _check_text(mutation: Mutation, *fields: str) -> None:
    for name in fields:
        text = getattr(mutation, name)
        # What stands in a report as it is: white space is laid out anew there, other control characters are not.
        if not isinstance(text, str) or not " ".join(text.split()).isprintable():
            raise ValueError(f"fault {ascii(mutation.name)[1:-1]}: {name} is {text!a}: give a printable string")
