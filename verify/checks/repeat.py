"""The same call twice gives the same log-probs."""

from __future__ import annotations

import math

from verify.cases import Case
from verify.checks.bench import Bench, flat
from verify.checks.check import ExactCheck, Measured
from verify.checks.of_rewards import same_rewards_again
from verify.checks.yardsticks import measured
from verify.places import token_place


def _measure(bench: Bench, case: Case) -> Measured:
    before, again = flat(bench.logps(case.groups)), flat(bench.run_logps(case.groups, seeded=False))
    difference = (before - again).abs()
    on_cpu = next(bench.model.parameters()).device.type == "cpu"
    budget = 0.0 if on_cpu else measured(bench.setting.yardsticks.token_budgets.get(case.name))
    differing = (~(difference <= budget)).nonzero().reshape(-1).tolist()  # NaN never equals
    if not differing:
        largest = float(difference.max())
        return Measured(num_compared=len(before), num_differing=0, worst="", ratio=largest / budget if budget else 0.0)
    worst = differing[0]
    return Measured(
        num_compared=len(before),
        num_differing=len(differing),
        worst=f"{token_place(case.groups)(worst)}: {before[worst]:.9g}, then {again[worst]:.9g}",
        ratio=float(difference.max()) / budget if budget else math.inf,
    )


REPEAT = ExactCheck(
    name="repeat",
    claims=(
        "The same call twice gives the same log-probs: bit-identical on a CPU, within rounding elsewhere. Of a reward "
        "model: the same rewards, on a CPU."
    ),
    cannot_see="Gradients; what differs from one process to the next.",
    cases=("distinct-tokens",),
    measure=_measure,
    of_rewards=same_rewards_again,
)
