"""Faults of the reference pass that only another frozen policy shows than the model with its adapters off.

Shape letters: N targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify.cases import Case
from verify.faults.conditions import Condition
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Forward, Reference
from verify.frozen_policy import ReferenceName
from verify.groups import TokenIds
from verify.models.adapters import adapters_off


@dataclass(frozen=True, slots=True)
class _Over:
    """Holds on cases over a frozen policy."""

    name: ReferenceName

    def __call__(self, case: Case) -> bool:
        return case.reference == self.name


def _response_behind_two_prompts(case: Case) -> bool:
    pairs = {(group.prompt_ids, ids) for group in case.groups for ids in group.completions}
    return case.reference == "cached" and len({ids for _, ids in pairs}) < len(pairs)


OVER_FROZEN_ADAPTER = Condition("the frozen policy is another adapter", _Over("frozen-adapter"))
OVER_SEPARATE_MODEL = Condition("the frozen policy is another model", _Over("separate-model"))
CACHED_RESPONSE_TWICE = Condition(
    "log-probs of the frozen policy were cached, and a response stands behind two prompts", _response_behind_two_prompts
)


def adapters_off_instead(name: ReferenceName, honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """The policy's own weights without adapters, whatever the frozen policy is; [N]."""
    with torch.no_grad(), adapters_off(model):
        return forward(rows, {})


def found_by_response(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Of each response the values that were kept when it was first seen; [N]."""
    logps, branches = honest(model, forward, rows), rows.branches()
    lengths = [len(branch.tokens) for branch in branches]
    kept: dict[TokenIds, Tensor] = {}
    found = [
        kept.setdefault(branch.piece.ids, values)
        for branch, values in zip(branches, torch.split(logps, lengths), strict=True)
    ]
    return torch.cat(found)


FAULTS = (
    Fault(
        name="frozen-adapter-ignored",
        stage="reference",
        replacement=partial(adapters_off_instead, "frozen-adapter"),
        what="The reference pass switches adapters off where the frozen policy is a copy of the initial adapter.",
        bites_where=OVER_FROZEN_ADAPTER,
        kinds=PREFERENCES,
        trains=("lora",),
        signature="policy exact; reference log-probs are those of the model without adapters",
        invisible_where="the frozen adapter at initialisation",
    ),
    Fault(
        name="separate-model-ignored",
        stage="reference",
        replacement=partial(adapters_off_instead, "separate-model"),
        what="The reference pass runs the policy's own weights where the frozen policy is another model.",
        bites_where=OVER_SEPARATE_MODEL,
        kinds=PREFERENCES,
        trains=("lora",),
        signature="policy exact; reference log-probs are those of the policy without adapters",
        invisible_where="a frozen model of the policy's own weights",
    ),
    Fault(
        name="cached-by-response",
        stage="reference",
        replacement=found_by_response,
        what="Cached log-probs of the frozen policy are found by the response, whatever its prompt.",
        bites_where=CACHED_RESPONSE_TWICE,
        kinds=PREFERENCES,
        signature="policy exact; reference log-probs of a response behind a second prompt are those behind the first",
        invisible_where="no response stands behind two prompts",
    ),
)
