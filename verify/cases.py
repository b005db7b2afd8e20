"""A case: named input on which a subject is judged. Those of a run that names none are in ``verify.default_cases``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from verify.frozen_policy import REFERENCE_NAMES, ReferenceName
from verify.groups import PreferenceGroup
from verify.objective import OBJECTIVE_NAMES, PREFERENCE_NAMES, ComparingName, ObjectiveName, compares

CaseKind = Literal["pairs", "groups", "examples"]
CASE_KINDS: tuple[CaseKind, ...] = ("pairs", "groups", "examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input of the gate.

    Args:
        name: Stable id.
        why: What this case can show that others cannot.
        groups: The preference groups; a packed subject may put all of them into one row.
        objective_name: The objective whose loss and gradients are compared.
        reference: The frozen policy of a preference objective; None for that of the run.

    Raises:
        ValueError: No group, an unknown objective, or a rejected response missing where the objective
            compares, or given where it does not; an unknown frozen policy, or one of an objective without any.
    """

    name: str
    why: str
    groups: tuple[PreferenceGroup, ...]
    objective_name: ObjectiveName = "sigmoid"
    reference: ReferenceName | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError(f"case {self.name}: no groups, nothing would be compared")
        if self.objective_name not in OBJECTIVE_NAMES:
            raise ValueError(
                f"case {self.name}: unknown objective {self.objective_name!r}; give one of {', '.join(OBJECTIVE_NAMES)}"
            )
        if self.reference not in (None, *REFERENCE_NAMES):
            raise ValueError(
                f"case {self.name}: unknown reference {self.reference!r}; give one of {', '.join(REFERENCE_NAMES)}"
            )
        if self.reference is not None and self.objective_name not in PREFERENCE_NAMES:
            raise ValueError(
                f"case {self.name}: reference {self.reference}: {self.objective_name} has no frozen policy"
            )
        for index, group in enumerate(self.groups):
            if compares(self.objective_name) and not group.negatives:
                raise ValueError(
                    f"case {self.name}, group {index}: no rejected response, so that the objective "
                    f"{self.objective_name} compares nothing; give one, or an SFT objective"
                )
            if not compares(self.objective_name) and group.negatives:
                raise ValueError(
                    f"case {self.name}, group {index}: a rejected response under {self.objective_name}, which "
                    "learns from preferred ones only"
                )

    @property
    def kind(self) -> CaseKind:
        """What a subject has to take: pairs, groups of any number of responses, or supervised examples."""
        if not compares(self.objective_name):
            return "examples"
        return "pairs" if all(group.is_pair and not group.completion_masks for group in self.groups) else "groups"

    @property
    def has_images(self) -> bool:
        """Whether some prompt has an image."""
        return any(group.images for group in self.groups)

    @property
    def num_passes(self) -> int:
        """Forward passes of a step: one, and for a preference that of the frozen policy."""
        return 2 if self.objective_name in PREFERENCE_NAMES else 1

    @property
    def num_completion_tokens(self) -> int:
        """Supervised tokens over all completions."""
        return sum(sum(group.num_supervised) for group in self.groups)

    @property
    def num_completions(self) -> int:
        """Completions over all groups; as many rows has the pairwise layout."""
        return sum(len(group.completions) for group in self.groups)

    @property
    def pairwise_slots(self) -> int:
        """Token slots that one unpadded row per completion feeds to the embedding."""
        return sum(len(group.prompt_ids) + len(ids) for group in self.groups for ids in group.completions)

    @property
    def pairwise_images(self) -> int:
        """Images that pass a vision tower where each completion has a row of its own."""
        return sum(len(group.images) * len(group.completions) for group in self.groups)

    @property
    def can_save(self) -> bool:
        """Whether packing shows here in what is fed.

        Preferences in fewer slots, even where the last prompt token is repeated; examples in fewer rows.
        """
        if self.kind == "examples":
            return self.num_completions > 1
        return any(len(group.prompt_ids) > 1 and len(group.completions) > 1 for group in self.groups)


def under(case: Case, objective_name: ComparingName) -> Case:
    """A case with another objective that compares responses; a case of examples as it is."""
    return replace(case, objective_name=objective_name) if compares(case.objective_name) else case


def over(case: Case, reference: ReferenceName | None) -> Case:
    """A case over another frozen policy, or over that of the run; one of an objective without any as it is."""
    return replace(case, reference=reference) if case.objective_name in PREFERENCE_NAMES else case
