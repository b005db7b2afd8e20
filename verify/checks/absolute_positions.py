"""Positions are right in themselves, not only in their differences: seen on a decoder with absolute positions."""

from __future__ import annotations

from copy import deepcopy

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.yardsticks import measured
from verify.comparison import compare_logps
from verify.subject import SubjectError
from verify.subjects import is_built_in


def hold_absolute_positions(bench: Bench, case: Case) -> Measured:
    """Log-probs on the decoder with absolute positions against the unpacked ones.

    Args:
        bench: The subject; its own model is not run.
        case: A case that the yardstick was measured on; it is drawn anew for that decoder's vocabulary.

    Returns:
        The differences.

    Raises:
        NotApplicableError: The subject cannot run that decoder.
    """
    yardstick = measured(bench.setting.yardsticks.absolute.get(case.name))
    groups = yardstick.case.groups
    # All subjects share the yardstick: what one does to the model must not reach the next.
    model = yardstick.model if is_built_in(bench.subject) else deepcopy(yardstick.model)
    try:
        actual = bench.run_logps(groups, model)
    except SubjectError as error:
        raise NotApplicableError(f"cannot run a decoder with absolute positions: {error}") from error
    comparison = compare_logps(actual, yardstick.expected, groups)
    place = comparison.worst[0]
    differing = sum(
        int((~((a - e).abs() <= yardstick.budget)).sum()) for a, e in zip(actual, yardstick.expected, strict=True)
    )  # NaN never equals
    return Measured(
        num_compared=comparison.num_compared,
        num_differing=differing,
        worst=f"{place.where}: {place.actual:.9g}, unpacked {place.expected:.9g}" if differing else "",
        ratio=comparison.max / yardstick.budget,
    )


ABSOLUTE_POSITIONS = ExactCheck(
    name="absolute-positions",
    claims=(
        "On a tiny decoder that adds a learned vector for each absolute position, log-probs of three groups, with "
        "shared turns and without, equal the unpacked ones but for rounding: the first token of every prompt stands at "
        "position 0."
    ),
    cannot_see="Positions beyond those of a short case; subjects that cannot run that decoder.",
    cases=("distinct-tokens", "distinct-turns"),
    measure=hold_absolute_positions,
)
