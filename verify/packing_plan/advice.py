"""Whether packing is worth its while, and why."""

from __future__ import annotations

from reports.data_record import AdviceRecord, AlgebraRecord, SimulationRecord
from verify.packing_plan.simulate import REPEATED_ROWS

PAYS_FROM = 0.05
"""Share of the computation that sharing prompts has to save before packing is worth a new layout."""

_WITHOUT_SHARING = ("plain", "bucketing", "sorting", REPEATED_ROWS)


def advise(
    rows_read: int,
    usable: int,
    max_broken: float,
    algebra: AlgebraRecord | None,
    simulation: SimulationRecord | None,
    model: str,
) -> AdviceRecord:
    """Whether to pack, and why.

    What counts is what sharing prompts saves by itself: padding can be avoided without it.

    Args:
        rows_read: Rows of the file.
        usable: Rows that can be packed.
        max_broken: Largest share of other rows.
        algebra: Costs; None if no row is usable.
        simulation: Plans; None if no row is usable.
        model: Name of the model, for the reasons.

    Returns:
        The advice.
    """
    broken = rows_read - usable
    if algebra is None or simulation is None or broken > max_broken * rows_read:
        reason = f"{broken} of {rows_read} rows break the shared-prompt precondition"
        limit = "so nothing can be packed" if not usable else f"more than the share of {max_broken:.3g} that is allowed"
        return AdviceRecord(advice="cannot-be-used", reasons=[f"{reason}, {limit}"])
    ratio, what = (
        (algebra.token_ratio, "characters")
        if algebra.flop_ratio is None
        else (algebra.flop_ratio, f"forward FLOPs of {model}")
    )
    pays = 1 - ratio >= PAYS_FROM
    reasons = [
        f"sharing prompts saves {1 - ratio:.1%} of the {what}, {'at least' if pays else 'less than'} the "
        f"{PAYS_FROM:.0%} from which packing is worth a layout of its own; further copies of prompts are "
        f"{algebra.shared_share:.1%} of all {'characters' if algebra.flop_ratio is None else 'tokens'}"
    ]
    best = max(simulation.plans, key=lambda plan: plan.speed_up)
    without = max((p for p in simulation.plans if p.plan in _WITHOUT_SHARING), key=lambda plan: plan.speed_up)
    reasons.append(
        f"predicted fastest: {best.plan}, {best.speed_up:.2f} times as fast as padded sequences; "
        f"fastest without shared prompts: {without.plan}, {without.speed_up:.2f} times"
    )
    if broken:
        reasons.append(f"{broken} of {rows_read} rows break the precondition: leave them out, or feed them unpacked")
    return AdviceRecord(advice="pays" if pays else "does-not-pay", reasons=reasons)
