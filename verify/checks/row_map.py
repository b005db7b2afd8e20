"""The rows that a subject shows, against a walk of every completion's path."""

from __future__ import annotations

import math

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.packed_rows import check_packed_rows
from verify.checks.path_walk import walk_paths


def _measure(bench: Bench, case: Case) -> Measured:
    packed_rows = getattr(bench.subject, "packed_rows", None)
    if packed_rows is None:
        raise NotApplicableError("has no packed_rows(groups): its rows cannot be looked at")
    shown = bench.call(lambda: packed_rows(case.groups))
    walk = walk_paths(check_packed_rows(shown, case.groups, subject=bench.subject.name), case.groups)
    return Measured(
        num_compared=walk.num_compared,
        num_differing=sum(deviation.count for deviation in walk.deviations),
        worst=walk.deviations[0].words if walk.deviations else "",
        ratio=math.inf if walk.deviations else 0.0,
    )


ROW_MAP = ExactCheck(
    name="row-map",
    claims=(
        "In the rows that the subject shows, every completion's path holds exactly its prompt and its tokens, at "
        "positions 0, 1, 2, ...; each slot of it attends to exactly the path up to itself (a block mask is rebuilt "
        "from its full and partial blocks, cell by cell); each token is predicted from the one before it on the path, "
        "and as many enter the sum as the completion has supervised ones."
    ),
    cannot_see=(
        "Whether these are the rows that the subject computes with; a sliding window of the model, which is not asked; "
        "what padding attends to; what follows the last supervised token of a completion."
    ),
    cases=(
        "distinct-tokens",
        "distinct-turns",
        "groups-of-one-prompt",
        "distinct-examples",
        "one-conversation",
        "six-levels",
        "long-rows",
    ),
    measure=_measure,
    of_rewards=_measure,
)
