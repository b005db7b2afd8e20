"""What the record of a simulation says about one plan is said once."""

from __future__ import annotations

from verify.packing_plan.costs import FlopPrices, GroupLengths
from verify.packing_plan.records import PlanOptions, simulation_record


def test_both_tables_say_the_same_of_a_plan_at_the_row_limit() -> None:
    """Four short groups are repeated many times, whatever the largest limit of the second table."""
    groups = [
        GroupLengths(10, (3, 2)),
        GroupLengths(5, (3, 4, 1, 5, 2)),
        GroupLengths(3, (8, 1, 2)),
        GroupLengths(7, (4, 1, 3)),
    ]
    plan = PlanOptions(num_ranks=1, groups_per_rank=2)
    made = simulation_record(groups, 20, "a model", FlopPrices(7, 1, 3), plan, row_limit=24)
    in_plans = [each for each in made.plans if each.row_limit is not None]
    assert len(in_plans) == 2
    assert [each for each in made.by_row_limit if each.row_limit == 24] == in_plans
    assert max(each.row_limit or 0 for each in made.by_row_limit) == 1024
