"""How small an error of the routers' coefficient a run would not have seen, by what it saw of one of its faults.

Loss and gradients are linear in the coefficient C. Without the gradient of ``C L`` they are as far off as with a
coefficient of 0 there, M budgets; so a coefficient off by the share d is d M budgets off, and 1 / M is the least share
that shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.record_faults import BlindSpotRecord
from reports.words import number, percent
from verify.faults.kill_matrix import Kill

_WITHOUT_GRADIENT = "routers-without-gradient"


def router_coefficient(kills: Sequence[Kill], coefficient: float) -> Iterator[BlindSpotRecord]:
    """The least error of the coefficient that gradients show, in each dtype.

    Args:
        kills: What became of the planted faults.
        coefficient: Weight of the routers' loss; 0 where it is no part of the run.

    Yields:
        One blind spot for each dtype; one for all where the fault was not planted.
    """
    if not coefficient:
        return
    seen = [kill for kill in kills if kill.mutation.name == _WITHOUT_GRADIENT and _margin(kill) > 0]
    if not seen:
        yield BlindSpotRecord(
            what=f"a wrong coefficient of the routers' loss (it is {coefficient:g})",
            why=f"how large it would have to be was not measured: {_WITHOUT_GRADIENT} was not planted",
            faults=[],
        )
    for kill in seen:
        yield BlindSpotRecord(
            what=f"a router coefficient off by less than {percent(1 / _margin(kill))} (of {coefficient:g}), "
            f"in {kill.dtype}",
            why=f"without the gradient of the routers' loss those of case {', '.join(kill.cases)} are "
            f"{number(_margin(kill))} budgets off, and linear in the coefficient",
            faults=[],
        )


def _margin(kill: Kill) -> float:
    return max((catch.margin for catch in kill.catches if catch.check == "gradients"), default=0.0)
