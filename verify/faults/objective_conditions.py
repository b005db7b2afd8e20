"""What a case must have for a fault of one preference objective to be seen: that objective, and at times more."""

from __future__ import annotations

from dataclasses import dataclass

from verify.cases import Case
from verify.faults.conditions import EVERYWHERE, Condition
from verify.faults.layout_conditions import MORE_THAN_PAIRS, SEVERAL_POSITIVES, UNEVEN_NUMBERS_OF_PAIRS
from verify.objective import PREFERENCE_NAMES, PreferenceName


@dataclass(frozen=True, slots=True)
class _Under:
    """Holds on cases of some objectives that meet another condition too."""

    names: tuple[PreferenceName, ...]
    also: Condition

    def __call__(self, case: Case) -> bool:
        return case.objective_name in self.names and self.also.holds(case)


def _under(*names: PreferenceName, words: str = "", also: Condition = EVERYWHERE) -> Condition:
    words = words or f"the objective is {' or '.join(names)}"
    return Condition(words if also is EVERYWHERE else f"{words}, and {also.words}", _Under(names, also))


def _uneven_responses(case: Case) -> bool:
    return len({count for group in case.groups for count in group.num_supervised}) > 1


def _response_of_two(case: Case) -> bool:
    return any(count > 1 for group in case.groups for count in group.num_supervised)


def _preferred_of_two(case: Case) -> bool:
    return any(count > 1 for group in case.groups for count in group.num_supervised[: len(group.positives)])


def _uneven_preferred(case: Case) -> bool:
    return len({count for group in case.groups for count in group.num_supervised[: len(group.positives)]}) > 1


_RESPONSE_OF_TWO = Condition("a response has two or more supervised tokens", _response_of_two)
_UNEVEN_RESPONSES = Condition("responses have different numbers of supervised tokens", _uneven_responses)
_PREFERRED_OF_TWO = Condition("a preferred response has two or more supervised tokens", _preferred_of_two)
_UNEVEN_PREFERRED = Condition("preferred responses have different numbers of supervised tokens", _uneven_preferred)

GROUPDPO_NAMES: tuple[PreferenceName, ...] = (
    "groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs",
)  # fmt: skip
LOG_SUM_EXP_NAMES: tuple[PreferenceName, ...] = ("groupdpo-mpo", "groupdpo-softmax")
_GROUPDPO_WORDS = "the objective is one of GroupDPO's"

OTHER_THAN_SIGMOID = _under(
    *(name for name in PREFERENCE_NAMES if name != "sigmoid"),
    words="the objective is a preference objective other than sigmoid",
)
IPO = _under("ipo")
MEANS_OF_LONG = _under("ipo", "sigmoid_norm", also=_RESPONSE_OF_TWO)
SIGMOID_NORM_OF_UNEVEN = _under("sigmoid_norm", also=_UNEVEN_RESPONSES)
ROBUST = _under("robust")
HINGE = _under("hinge")
RPO = _under("rpo")
RPO_OF_LONG = _under("rpo", also=_PREFERRED_OF_TWO)
LIKELIHOOD_OF_UNEVEN = _under(
    "rpo", *GROUPDPO_NAMES, words="the objective is rpo or one of GroupDPO's", also=_UNEVEN_PREFERRED
)
MPO = _under("groupdpo-mpo")
LOG_SUM_EXP = _under(*LOG_SUM_EXP_NAMES)
SOFTMAX_OF_SEVERAL = _under("groupdpo-softmax", also=SEVERAL_POSITIVES)
MARGIN_OF_GROUPS = _under("groupdpo-margin", also=MORE_THAN_PAIRS)
ALL_PAIRS_OF_UNEVEN = _under("groupdpo-all-pairs", also=UNEVEN_NUMBERS_OF_PAIRS)
GROUPDPO = _under(*GROUPDPO_NAMES, words=_GROUPDPO_WORDS)
GROUPDPO_IN_MICRO_BATCHES = _under(*GROUPDPO_NAMES, words=_GROUPDPO_WORDS, also=MORE_THAN_PAIRS)
